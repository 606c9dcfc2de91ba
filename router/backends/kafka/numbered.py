"""Batches that carry a number: each is stored whole and once, however often it is tried.

Theory of operation. A batch is one transaction, over as many partitions as its messages go to, in
which a group that exists for the batches' name alone commits the number as its offset. It does so
on the first partition of the first message's topic, since Kafka takes offsets for topics that exist
only; a batch that is tried again has the same first message. A number that is committed with the
same owner's note is not stored again. The owner is whoever counts: numbers of another one, who may
have begun at 0 again, say nothing about his.

The transactional id is the name, so that whoever begins under it later fences those before him, and
the batch they left open is undone. Further transactions of the same one renew his claim, which
fails when he was fenced: he does not fence back. Kafka ends a transaction that takes longer than
`TIMEOUT_MS`, the longest that brokers allow as they come; readers of committed messages wait for as
long where a run was killed and none follows it.

Kafka keeps a group's offsets for `offsets.retention.minutes` (7 days) after the last commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Final

from router.backends import Batch
from router.backends.kafka.cluster import Cluster
from router.backends.kafka.failures import DUPLICATE
from router.backends.kafka.names import kafka_partition
from router.backends.kafka.offsets import Offsets
from router.backends.kafka.producing import in_parts, produce
from router.backends.kafka.records import encode
from router.backends.kafka.transactions import Transaction, is_fenced
from router.errors import FencedError, RouterError
from router.model import Message, TopicName

TIMEOUT_MS: Final = 15 * 60 * 1000
UNDO_SECONDS: Final = 5.0
_NOTE: Final = "router-owner "


class Numbered:
    """The batches that go under one name; used by one thread at a time."""

    def __init__(
        self,
        cluster: Cluster,
        offsets: Offsets,
        topic: Callable[[TopicName], str],
        name: str,
        wall_ms: Callable[[], int],
    ) -> None:
        self._cluster = cluster
        self._offsets = offsets
        self._topic = topic
        self._name = name
        self._wall_ms = wall_ms
        self._transaction: Transaction | None = None
        self._open = False
        # Who counted last under this claim, and how far: known better here than by a Kafka that
        # was killed while it made the commit so, whose answer may be long in coming.
        self._last: tuple[str, int] | None = None

    def store(self, number: int, owner: str, appends: Iterable[Batch], patience: float) -> bool:
        """Store a batch unless the owner's number is; return whether it was stored now.

        `appends` are taken one by one, and stored in their order in each partition. Failures that
        may pass are waited out for `patience` seconds each. Raises FencedError when another one
        began under the same name; what `Backend.publish` raises, and then nothing is visible unless
        the last step's outcome is not known.
        """
        waiting = iter(appends)
        first = next(waiting, None)
        if first is None:
            return False
        transaction = self._begin(time.monotonic() + patience)
        marker = self._topic(first.topic)
        if self._stored(marker, owner, time.monotonic() + patience) >= number:
            return False
        self._open = True
        try:
            run = _Run(self._cluster, transaction, self._wall_ms, patience)
            for append in chain((first,), waiting):
                run.send(self._topic(append.topic), append)
            deadline = time.monotonic() + patience
            transaction.commit_offset(self._name, marker, 0, number, _NOTE + owner, deadline)
        except BaseException as error:
            # Undone whole; if this does not come through, the next batch or the next run does it.
            with suppress(RouterError):
                transaction.abandon(time.monotonic() + UNDO_SECONDS)
                self._open = False
            if isinstance(error, RouterError) and is_fenced(error):
                raise FencedError(self._fenced(error)) from error
            raise
        transaction.end(commit=True, deadline=time.monotonic() + patience)
        self._open = False
        self._last = owner, number
        return True

    def _begin(self, deadline: float) -> Transaction:
        """Return the transaction under this name, which only the first call takes from others."""
        if self._transaction is None:
            transaction = Transaction(self._cluster, self._name, TIMEOUT_MS)
            transaction.begin(deadline)
            self._transaction = transaction
            return transaction
        try:
            if self._open:
                # Renewed while it is open, it would be undone, and its claim with it.
                self._transaction.abandon(deadline)
                self._open = False
            self._transaction.renew(deadline)
        except FencedError as error:
            raise FencedError(self._fenced(error)) from error
        return self._transaction

    def _stored(self, marker: str, owner: str, deadline: float) -> int:
        """Return the last number of the owner that is stored, -1: none is known."""
        if self._last is not None and self._last[0] == owner:
            return self._last[1]
        commit = self._offsets.committed(self._name, marker, (0,), deadline).get(0)
        if commit is None or commit.note != _NOTE + owner:
            return -1
        return commit.offset

    def _fenced(self, error: RouterError) -> str:
        return (
            f"Another run publishes as {self._name}, or a batch took longer than "
            f"{TIMEOUT_MS // 60_000} minutes: this one is fenced. {error}"
        )


class _Run:
    """One transaction's appends; numbers in each partition begin at 0."""

    def __init__(
        self,
        cluster: Cluster,
        transaction: Transaction,
        wall_ms: Callable[[], int],
        patience: float,
    ) -> None:
        self._cluster = cluster
        self._transaction = transaction
        self._wall_ms = wall_ms
        self._patience = patience
        self._next: dict[tuple[str, int], int] = {}

    def send(self, topic: str, append: Batch) -> None:
        """Make an append part of the transaction."""
        partition = kafka_partition(append.partition)
        if (topic, partition) not in self._next:
            deadline = time.monotonic() + self._patience
            self._transaction.add_partition(topic, partition, deadline)
            self._next[topic, partition] = 0
        in_parts(append.messages, lambda messages: self._send(topic, partition, messages))

    def _send(self, topic: str, partition: int, messages: Sequence[Message]) -> int:
        transaction, deadline = self._transaction, time.monotonic() + self._patience
        sequence = self._next[topic, partition]
        data = encode(messages, self._wall_ms(), transaction.producer, sequence, transactional=True)

        def attempt() -> int:
            code, offset = produce(
                self._cluster, topic, partition, data, transaction.name, deadline
            )
            if code not in {0, DUPLICATE}:
                self._cluster.check(topic, code, f"topic {topic}", deadline)
            return offset

        offset = self._cluster.persist(attempt, deadline)
        self._next[topic, partition] = sequence + len(messages)
        return offset
