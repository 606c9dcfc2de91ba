"""Kafka's transactions, as far as the router needs them: offsets and batches that go together.

A transaction has a name (the transactional id). A transaction fences those that began under its
name before: what the older one still sends is refused, and what it left open is undone. The
versions of the requests are those of the first transaction protocol, which all brokers speak since
3.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from router.backends.kafka import apis
from router.backends.kafka.cluster import GROUP, TRANSACTION, Cluster, partition_codes, top_code
from router.backends.kafka.failures import CodeError, codes
from router.backends.kafka.producing import STORED, Part, in_parts, produce
from router.errors import FencedError, RouterError
from router.model import Message
from router.wire.kafka.error_codes import ErrorCode
from router.wire.kafka.record_messages import write_messages

# An open transaction holds up the readers of its partitions: one whose worker died ends by itself.
TIMEOUT_MS: Final = 20_000
_FENCED: Final = codes(
    "PRODUCER_FENCED INVALID_PRODUCER_EPOCH INVALID_PRODUCER_ID_MAPPING"
    " TRANSACTION_COORDINATOR_FENCED"
)


class KafkaTransactions:
    """Transactions under one name, one after the other; not for several threads at once.

    All calls raise FencedError once another began one under the same name, and what
    `router_error` makes of other failures.
    """

    def __init__(self, cluster: Cluster, name: str, timeout_ms: int = TIMEOUT_MS) -> None:
        self.name = name
        self.producer = (-1, -1)
        self.cluster = cluster
        self._timeout_ms = timeout_ms

    def begin(self, deadline: float) -> None:
        """Fence every transaction of this name before; undo what they left open."""
        self._init((-1, -1), deadline)

    def renew(self, deadline: float) -> None:
        """Begin again with numbers from 0; raise FencedError if another began since."""
        self._init(self.producer, deadline)

    def _init(self, known: tuple[int, int], deadline: float) -> None:
        request = apis.INIT_PRODUCER_ID(
            transactional_id=self.name,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=known[0],
            producer_epoch=known[1],
        )
        answer = self._ask(request, top_code, deadline)
        self.producer = answer.producer_id, answer.producer_epoch

    def add_partition(self, topic: str, partition: int, deadline: float) -> None:
        """Make the next batches of a partition part of the transaction."""
        topics = [{"name": topic, "partitions": [partition]}]
        named = {f"v3_and_below_{name}": value for name, value in self._named().items()}
        request = apis.ADD_PARTITIONS_TO_TXN(**named, v3_and_below_topics=topics)

        def codes_of(answer: Any) -> Iterable[int]:
            topics = answer.results_by_topic_v3_and_below
            return [p.partition_error_code for t in topics for p in t.results_by_partition]

        self._ask(request, codes_of, deadline)

    def commit_offset(
        self, group: str, topic: str, partition: int, offset: int, note: str, deadline: float
    ) -> None:
        """Commit a group's offset as part of the transaction."""
        named = {**self._named(), "group_id": group}
        self._ask(apis.ADD_OFFSETS_TO_TXN(**named), top_code, deadline)
        committed = {
            "partition_index": partition,
            "committed_offset": offset,
            "committed_metadata": note,
        }
        topics = [{"name": topic, "partitions": [committed]}]
        request = apis.TXN_OFFSET_COMMIT(**named, topics=topics)
        self._ask(request, partition_codes, deadline, (GROUP, group))

    def end(self, *, commit: bool, deadline: float) -> None:
        """Commit all of it, or none of it."""
        self._ask(apis.END_TXN(**self._named(), committed=commit), top_code, deadline)

    def abandon(self, deadline: float) -> None:
        """Undo what is open, if anything is; a commit under way stays."""
        try:
            self.end(commit=False, deadline=deadline)
        except RouterError as error:
            cause = error.__cause__
            if not (isinstance(cause, CodeError) and cause.code == ErrorCode.INVALID_TXN_STATE):
                raise

    def _named(self) -> dict[str, Any]:
        producer_id, epoch = self.producer
        return {
            "transactional_id": self.name,
            "producer_id": producer_id,
            "producer_epoch": epoch,
        }

    def _ask(
        self,
        request: apis.ApiRequest,
        codes_of: Callable[[Any], Iterable[int]],
        deadline: float,
        coordinator: tuple[int, str] | None = None,
    ) -> Any:
        """Return the answer of a coordinator, None: the transaction's."""
        kind, key = coordinator or (TRANSACTION, self.name)
        try:
            return self.cluster.ask_until_done(kind, key, request, codes_of, deadline)
        except RouterError as error:
            if is_fenced(error):
                raise FencedError(f"{error}") from error
            raise


@dataclass(eq=False)
class TransactionAppends:
    """The appends of one transaction; numbers in each partition begin at 0.

    `deadline` is asked for the deadline of each step.
    """

    _transaction: KafkaTransactions
    _wall_ms: Callable[[], int]
    _deadline: Callable[[], float]
    _next: dict[tuple[str, int], int] = field(default_factory=dict, init=False)

    def append(self, topic: str, partition: int, messages: Sequence[Message]) -> list[Part]:
        """Make messages part of the transaction; return where they are.

        Raises PartialPublishError for a failure after the first part, and other RouterErrors.
        """
        if (topic, partition) not in self._next:
            self._transaction.add_partition(topic, partition, self._deadline())
            self._next[topic, partition] = 0
        return in_parts(messages, lambda part: self._send(topic, partition, part))

    def _send(self, topic: str, partition: int, messages: Sequence[Message]) -> int:
        transaction, deadline = self._transaction, self._deadline()
        cluster = transaction.cluster
        sequence = self._next[topic, partition]
        data = write_messages(
            messages, self._wall_ms(), transaction.producer, sequence, transactional=True
        )

        def attempt() -> int:
            code, offset = produce(cluster, topic, partition, data, transaction.name, deadline)
            if code not in STORED:
                cluster.check(topic, code, f"topic {topic}", deadline)
            return offset

        offset = cluster.persist(attempt, deadline)
        self._next[topic, partition] = sequence + len(messages)
        return offset


def is_fenced(error: RouterError) -> bool:
    """Return whether Kafka refused because another began under the same name."""
    cause = error.__cause__
    return isinstance(cause, CodeError) and cause.code in _FENCED
