"""Appends with a name, from an Idempotency-Key, which are stored once however often they are asked.

Theory of operation. Kafka remembers the numbers of a producer's last batches, not names. But the
messages can go in one transaction with an offset of a group that exists for this name alone: its
offset is where the messages begin, its note says how many they are. So a repeat finds out whether
the first try came through, at any node and for as long as Kafka keeps offsets
(`offsets.retention.minutes`, 7 days by default), and two tries at once fence one another. The
alternatives: refusing keys on Kafka, or a topic of keys that every worker holds in memory.

It costs eight round trips instead of one, so it is used for named appends only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Final

from router.backends import Batch, Receipt
from router.backends.kafka.cluster import Cluster
from router.backends.kafka.failures import DUPLICATE
from router.backends.kafka.names import REPEATS, kafka_partition
from router.backends.kafka.offsets import Offsets
from router.backends.kafka.producing import Part, in_parts, produce, receipt
from router.backends.kafka.records import encode
from router.backends.kafka.transactions import Transaction, is_fenced
from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    FencedError,
    OutcomeUnknownError,
    PartialPublishError,
    PublishRefusedError,
    RouterError,
)
from router.model import Message, Position

UNDO_SECONDS: Final = 2.0


class Repeats:
    """Stores batches that have a name; calls may be made from many threads or greenlets."""

    def __init__(self, cluster: Cluster, offsets: Offsets, wall_ms: Callable[[], int]) -> None:
        self._cluster = cluster
        self._offsets = offsets
        self._wall_ms = wall_ms

    def publish(self, topic: str, batch: Batch, deadline: float) -> Receipt:
        """Store a batch unless it is stored already; raise what `Backend.publish` raises."""
        partition = kafka_partition(batch.partition)
        identity = f"{topic}\0{partition}\0{batch.producer}"
        name = REPEATS + sha256(identity.encode()).hexdigest()[:32]
        if (found := self._found(name, topic, batch, deadline)) is not None:
            return found
        transaction = Transaction(self._cluster, name)
        try:
            transaction.begin(deadline)
            # Between the first look and here another try may have come through.
            if (found := self._found(name, topic, batch, deadline)) is not None:
                return found
            parts = self._store(transaction, topic, partition, batch, deadline)
        except FencedError as error:
            raise PublishRefusedError(
                "Another request with the same idempotency key is under way.", retry_after=1
            ) from error
        return receipt(batch.partition, parts)

    def _found(self, name: str, topic: str, batch: Batch, deadline: float) -> Receipt | None:
        partition = kafka_partition(batch.partition)
        commit = self._offsets.committed(name, topic, (partition,), deadline).get(partition)
        if commit is None:
            return None
        sequence, count = (int(word) for word in commit.note.split())
        if batch.sequence > sequence:
            return None
        found = Position(0, commit.offset, batch.partition)
        return Receipt(found, count, duplicate=True, flat=True)

    def _store(
        self,
        transaction: Transaction,
        topic: str,
        partition: int,
        batch: Batch,
        deadline: float,
    ) -> list[Part]:
        sequence = 0

        def send(messages: Sequence[Message]) -> int:
            nonlocal sequence
            data = encode(
                messages, self._wall_ms(), transaction.producer, sequence, transactional=True
            )

            def attempt() -> int:
                code, offset = produce(
                    self._cluster, topic, partition, data, transaction.name, deadline
                )
                if code not in {0, DUPLICATE}:
                    self._cluster.check(topic, code, f"topic {topic}", deadline)
                return offset

            offset = self._cluster.persist(attempt, deadline)
            sequence += len(messages)
            return offset

        try:
            transaction.add_partition(topic, partition, deadline)
            parts = in_parts(batch.messages, send)
            note = f"{batch.sequence} {len(batch.messages)}"
            first, _ = parts[0]
            transaction.commit_offset(transaction.name, topic, partition, first, note, deadline)
        except RouterError as error:
            # Undone whole; if this does not come through, Kafka or the next try does it.
            with suppress(RouterError):
                transaction.end(commit=False, deadline=time.monotonic() + UNDO_SECONDS)
            if is_fenced(error):
                raise FencedError(str(error)) from error
            if isinstance(error, PartialPublishError):
                raise PublishRefusedError(str(error)) from error
            raise
        try:
            transaction.end(commit=True, deadline=deadline)
        except (BackendTimeoutError, BackendUnavailableError) as error:
            raise OutcomeUnknownError.because(error) from error
        return parts
