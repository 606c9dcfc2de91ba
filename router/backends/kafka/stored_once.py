"""Batches that are stored whole and once, however often they are tried: repeats and numbered ones.

**Repeats** have a name, from an Idempotency-Key. Kafka remembers the numbers of a producer's last
batches, not names. But the messages can go in one transaction with an offset of a group that exists
for this name alone: its offset is where the messages begin, its note says where each part is and
how many it has. So a repeat finds out whether the first try was stored, at any node and for as long
as Kafka keeps offsets (`offsets.retention.minutes`, 7 days by default), and two tries at once fence
one another. The alternatives: refusing keys on Kafka, or a topic of keys that every worker holds in
memory. It costs eight round trips instead of one, so it is used for named appends only.

**Numbered** batches are those of a pipeline. A batch is one transaction, over as many partitions as
its messages go to, in which a group that exists for the batches' name alone commits the number as
its offset, on the first partition of the first message's topic, since Kafka takes offsets for
topics that exist only; a batch that is tried again has the same first message. A number that is
committed with the same owner's note is not stored again. The numbers of another owner, which may
begin at 0, say nothing about this one's. The transactional id is the name, so that a later run
under it fences those before it, and the batch they left open is undone. Further transactions of the
same run renew its claim, which fails if it was fenced. Kafka ends a transaction that takes longer
than `TIMEOUT_MS`, the longest that brokers allow by default; readers of committed messages wait for
as long if a run was killed and no other follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from itertools import chain
from typing import Final

from router.backends import Batch, Receipt
from router.backends.kafka.cluster import Cluster
from router.backends.kafka.names import REPEATS, kafka_partition
from router.backends.kafka.offsets import CommittedOffset, Offsets
from router.backends.kafka.producing import Part, receipt
from router.backends.kafka.transactions import KafkaTransactions, TransactionAppends, is_fenced
from router.clocks import deadline_in
from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    EntryTooLargeError,
    FencedError,
    OutcomeUnknownError,
    PartialPublishError,
    PublishRefusedError,
    RouterError,
)
from router.model import Position, TopicName

TIMEOUT_MS: Final = 15 * 60 * 1000
UNDO_SECONDS: Final = 5.0
REPEAT_UNDO_SECONDS: Final = 2.0
_NOTE: Final = "router-owner "
MAX_NOTED_PARTS: Final = 100
"""Kafka keeps notes of `offset.metadata.max.bytes`, 4 KiB, and a part has up to 27 characters."""


def _write_parts(parts: Sequence[Part]) -> str:
    """Return where parts are as text, in one part those between which nothing else came.

    Beyond what a note may hold, the last ones are said to follow one another.
    """
    joined: list[Part] = []
    for offset, count in parts:
        last = joined[-1] if joined else (offset, 0)
        if sum(last) == offset or len(joined) == MAX_NOTED_PARTS:
            joined[-1:] = [(last[0], last[1] + count)]
        else:
            joined.append((offset, count))
    return " ".join(f"{offset}:{count}" for offset, count in joined)


def _read_parts(text: str) -> list[Part]:
    parts = (part.partition(":") for part in text.split())
    return [(int(offset), int(count)) for offset, _, count in parts]


def _found(commit: CommittedOffset | None, batch: Batch) -> Receipt | None:
    """Return where a batch is, None unless what its name committed says that it is stored."""
    if commit is None:
        return None
    number, _, stored = commit.note.partition(" ")
    if batch.sequence > int(number):
        return None
    if batch.sequence < int(number):
        # Only where the last one is was noted.
        return Receipt(Position(-1, -1, batch.partition), len(batch.messages), duplicate=True)
    return replace(receipt(batch.partition, _read_parts(stored)), duplicate=True)


@dataclass(eq=False, slots=True)
class Repeats:
    """Stores batches that have a name; calls may be made from many threads or greenlets."""

    _cluster: Cluster
    _offsets: Offsets
    _wall_ms: Callable[[], int]

    def publish(self, topic: str, batch: Batch, deadline: float) -> Receipt:
        """Store a batch unless it is stored already; raise what `Backend.publish` raises."""
        partition = kafka_partition(batch.partition)
        identity = f"{topic}\0{partition}\0{batch.producer}"
        name = REPEATS + sha256(identity.encode()).hexdigest()[:32]
        # What a killed try left open is not waited for: the transaction that begins ends it.
        commits = self._offsets.committed(name, topic, (partition,), deadline)
        if (found := _found(commits.get(partition), batch)) is not None:
            return found
        transaction = KafkaTransactions(self._cluster, name)
        try:
            transaction.begin(deadline)
            # Between the first look and here another try may have come through.
            commits = self._offsets.settled(name, topic, (partition,), deadline)
            if (found := _found(commits.get(partition), batch)) is not None:
                return found
            parts = self._store(transaction, topic, partition, batch, deadline)
        except FencedError as error:
            raise PublishRefusedError(
                "Another request with the same idempotency key is under way.", retry_after=1
            ) from error
        return receipt(batch.partition, parts)

    def _store(
        self,
        transaction: KafkaTransactions,
        topic: str,
        partition: int,
        batch: Batch,
        deadline: float,
    ) -> list[Part]:
        try:
            appends = TransactionAppends(transaction, self._wall_ms, lambda: deadline)
            parts = appends.append(topic, partition, batch.messages)
            note = f"{batch.sequence} {_write_parts(parts)}"
            first, _ = parts[0]
            transaction.commit_offset(transaction.name, topic, partition, first, note, deadline)
        except RouterError as error:
            # Undone whole; if this does not come through, Kafka or the next try does it.
            with suppress(RouterError):
                transaction.end(commit=False, deadline=deadline_in(REPEAT_UNDO_SECONDS))
            if is_fenced(error):
                raise FencedError(str(error)) from error
            if isinstance(error, PartialPublishError):
                refused = error.__cause__
                large = isinstance(refused, EntryTooLargeError)
                cls = EntryTooLargeError if large else PublishRefusedError
                raise cls(str(error)) from error
            raise
        try:
            transaction.end(commit=True, deadline=deadline)
        except (BackendTimeoutError, BackendUnavailableError) as error:
            raise OutcomeUnknownError.because(error) from error
        return parts


@dataclass(eq=False, slots=True)
class Numbered:
    """The batches that go under one name; used by one thread at a time."""

    _cluster: Cluster
    _offsets: Offsets
    _topic: Callable[[TopicName], str]
    _name: str
    _wall_ms: Callable[[], int]
    _transaction: KafkaTransactions | None = field(default=None, init=False)
    _open: bool = field(default=False, init=False)
    _last: tuple[str, int] | None = field(default=None, init=False)
    """The last owner under this claim and its number: a Kafka that was killed while it committed
    them may answer late."""

    def store(self, number: int, owner: str, appends: Iterable[Batch], timeout: float) -> bool:
        """Store a batch unless the owner's number is; return whether it was stored now.

        `appends` are taken one by one, and stored in their order in each partition. Failures that
        may pass are waited out for `timeout` seconds each. Raises FencedError when another one
        began under the same name; what `Backend.publish` raises, and then nothing is visible unless
        the last step's outcome is not known.
        """
        waiting = iter(appends)
        first = next(waiting, None)
        if first is None:
            return False
        transaction = self._begin(deadline_in(timeout))
        marker = self._topic(first.topic)
        if self._stored(marker, owner, deadline_in(timeout)) >= number:
            return False
        self._open = True
        try:
            stored_together = TransactionAppends(
                transaction, self._wall_ms, partial(deadline_in, timeout)
            )
            for append in chain((first,), waiting):
                partition = kafka_partition(append.partition)
                stored_together.append(self._topic(append.topic), partition, append.messages)
            deadline = deadline_in(timeout)
            transaction.commit_offset(self._name, marker, 0, number, _NOTE + owner, deadline)
        except BaseException as error:
            # Undone whole; if this does not come through, the next batch or the next run does it.
            with suppress(RouterError):
                transaction.abandon(deadline_in(UNDO_SECONDS))
                self._open = False
            if isinstance(error, RouterError) and is_fenced(error):
                raise FencedError(self._fenced(error)) from error
            raise
        transaction.end(commit=True, deadline=deadline_in(timeout))
        self._open = False
        self._last = owner, number
        return True

    def _begin(self, deadline: float) -> KafkaTransactions:
        """Return the transaction under this name, which only the first call takes from others."""
        if self._transaction is None:
            transaction = KafkaTransactions(self._cluster, self._name, TIMEOUT_MS)
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
        commit = self._offsets.settled(self._name, marker, (0,), deadline).get(0)
        if commit is None or commit.note != _NOTE + owner:
            return -1
        return commit.offset

    def _fenced(self, error: RouterError) -> str:
        return (
            f"Another run publishes as {self._name}, or a batch took longer than "
            f"{TIMEOUT_MS // 60_000} minutes: this one is fenced. {error}"
        )
