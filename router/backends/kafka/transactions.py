"""Kafka's transactions, as far as the router needs them: offsets and batches that go together.

A transaction has a name (the transactional id). Whoever begins one under a name fences whoever did
so before: what the older one still sends is refused, and what it left open is undone. The versions
of the requests are those of the first transaction protocol, which all brokers speak since 3.0.
"""

from __future__ import annotations

from typing import Any, Final

from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from router.backends.kafka.cluster import GROUP, TRANSACTION, Cluster
from router.backends.kafka.failures import FENCED, OLD_EPOCH, CodeError, check
from router.errors import FencedError, RouterError

# An open transaction holds up the readers of its partitions: one whose worker died ends by itself.
TIMEOUT_MS: Final = 20_000
_MOVED: Final = frozenset({14, 15, 16})
_NOTHING_OPEN: Final = 48
_FENCED: Final = frozenset({FENCED, OLD_EPOCH, 49, 52})


class Transaction:
    """Transactions under one name, one after the other; not for several threads at once.

    All calls raise FencedError once another began one under the same name, and what `told` makes
    of other failures.
    """

    def __init__(self, cluster: Cluster, name: str, timeout_ms: int = TIMEOUT_MS) -> None:
        self.name = name
        self.producer = (-1, -1)
        self._cluster = cluster
        self._timeout_ms = timeout_ms

    def begin(self, deadline: float) -> None:
        """Fence everybody who had this name before; undo what they left open."""
        self._init((-1, -1), deadline)

    def renew(self, deadline: float) -> None:
        """Begin again with numbers from 0, unless another one began since: he is not fenced."""
        self._init(self.producer, deadline)

    def _init(self, known: tuple[int, int], deadline: float) -> None:
        def attempt() -> None:
            request = InitProducerIdRequest(
                transactional_id=self.name,
                transaction_timeout_ms=self._timeout_ms,
                producer_id=known[0],
                producer_epoch=known[1],
                max_version=4,
            )
            answer = self._ask(request, deadline)
            self._check(answer.error_code)
            self.producer = answer.producer_id, answer.producer_epoch

        self._persist(attempt, deadline)

    def add_partition(self, topic: str, partition: int, deadline: float) -> None:
        """Make the next batches of a partition part of the transaction."""
        kind: Any = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic

        def attempt() -> None:
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.name,
                v3_and_below_producer_id=self.producer[0],
                v3_and_below_producer_epoch=self.producer[1],
                v3_and_below_topics=[kind(name=topic, partitions=[partition])],
                max_version=3,
            )
            for found in self._ask(request, deadline).results_by_topic_v3_and_below:
                for p in found.results_by_partition:
                    self._check(p.partition_error_code)

        self._persist(attempt, deadline)

    def commit_offset(
        self, group: str, topic: str, partition: int, offset: int, note: str, deadline: float
    ) -> None:
        """Commit a group's offset as part of the transaction."""

        def join() -> None:
            request = AddOffsetsToTxnRequest(
                transactional_id=self.name,
                producer_id=self.producer[0],
                producer_epoch=self.producer[1],
                group_id=group,
                max_version=3,
            )
            self._check(self._ask(request, deadline).error_code)

        def commit() -> None:
            request = self._commit(group, topic, partition, offset, note)
            answer = self._cluster.ask_coordinator(GROUP, group, request, deadline)
            for found in answer.topics:
                for p in found.partitions:
                    if p.error_code in _MOVED:
                        self._cluster.forget_coordinator(GROUP, group)
                    check(p.error_code, f"group {group}")

        self._persist(join, deadline)
        self._persist(commit, deadline)

    def _commit(self, group: str, topic: str, partition: int, offset: int, note: str) -> Any:
        of: Any = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        committed = of.TxnOffsetCommitRequestPartition(
            partition_index=partition,
            committed_offset=offset,
            committed_leader_epoch=-1,
            committed_metadata=note,
        )
        return TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=group,
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=[of(name=topic, partitions=[committed])],
            max_version=3,
        )

    def end(self, *, commit: bool, deadline: float) -> None:
        """Make all of it so, or none of it."""

        def attempt() -> None:
            request = EndTxnRequest(
                transactional_id=self.name,
                producer_id=self.producer[0],
                producer_epoch=self.producer[1],
                committed=commit,
                max_version=3,
            )
            self._check(self._ask(request, deadline).error_code)

        self._persist(attempt, deadline)

    def abandon(self, deadline: float) -> None:
        """Undo what is open, if anything is; what is on its way to be made so stays."""
        try:
            self.end(commit=False, deadline=deadline)
        except RouterError as error:
            cause = error.__cause__
            if not (isinstance(cause, CodeError) and cause.code == _NOTHING_OPEN):
                raise

    def _ask(self, request: Any, deadline: float) -> Any:
        return self._cluster.ask_coordinator(TRANSACTION, self.name, request, deadline)

    def _check(self, code: int) -> None:
        if code in _MOVED:
            self._cluster.forget_coordinator(TRANSACTION, self.name)
        check(code, f"transaction {self.name}")

    def _persist(self, attempt: Any, deadline: float) -> None:
        try:
            self._cluster.persist(attempt, deadline)
        except RouterError as error:
            if is_fenced(error):
                raise FencedError(f"{error}") from error
            raise


def is_fenced(error: RouterError) -> bool:
    """Return whether Kafka refused because another began under the same name."""
    cause = error.__cause__
    return isinstance(cause, CodeError) and cause.code in _FENCED
