"""AddPartitionsToTxn (24), AddOffsetsToTxn (25), EndTxn (26), TxnOffsetCommit (28): transactions.

And DescribeTransactions (65), ListTransactions (66).

Theory of operation. The names of Kafka's are those of `broker.transactions`: a transactional id is
the name of a transactional producer. Clients that know the second version of the protocol (KIP-890,
the finalized feature `transaction.version`) add a partition by writing to it, and have another
epoch after each EndTxn; the others name partitions before. A partition has no control batches: what
was aborted is deleted, so that what a reader is sent is decided, and the list of aborted
transactions in a Fetch response is empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from router.access.permissions import Right
from router.broker.kafka.client import KafkaApi, KafkaRequest
from router.broker.kafka.context import LEADER_EPOCH
from router.broker.kafka.failures import REFUSALS, ErrorCode, KafkaError, error_code
from router.broker.kafka.group_membership import check_group_id
from router.broker.kafka.group_offsets import PartitionPart, commit_each, commit_of, sync_topics
from router.broker.kafka.group_values import GroupCaller
from router.broker.kafka.topic_catalog import pattern_test
from router.broker.storage import Ledger
from router.broker.transactions import (
    ProducerEpoch,
    Refusal,
    Transaction,
    TransactionalProducer,
    TransactionError,
)
from router.model import TopicName

IMPLICIT_JOIN: Final = 5
"""The first version of TxnOffsetCommit and EndTxn of the second version of the protocol."""
FENCED_FROM: Final = 2
"""The first version of EndTxn and of what adds to a transaction that knows PRODUCER_FENCED."""
NO_START: Final = -1
STATES: Final = frozenset(
    {
        *("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"),
        *("Dead", "PrepareEpochFence"),
    }
)


def current_of(body: Any) -> ProducerEpoch:
    """Return which producer a request is of."""
    return ProducerEpoch(body.producer_id, body.producer_epoch)


def refused(request: KafkaRequest, failure: Exception, fenced_from: int = FENCED_FROM) -> ErrorCode:
    """Return the code of a refusal, as clients of the request's version know it; count it."""
    code = error_code(failure)
    if code is ErrorCode.INVALID_PRODUCER_EPOCH and request.version >= fenced_from:
        code = ErrorCode.PRODUCER_FENCED
    request.count_error(code)
    return code


async def add_partitions(request: KafkaRequest) -> Any:
    """Add partitions to a transaction, which begins with the first; all of them or none."""
    body, producers = request.body, request.context.producers
    codes: dict[tuple[str, int], ErrorCode] = {}
    ledgers: list[Ledger] = []
    places = [
        (topic.name, index) for topic in body.v3_and_below_topics for index in topic.partitions
    ]
    for place in places:
        try:
            ledgers.append(request.client.partition(*place, Right.PUBLISH, LEADER_EPOCH).ledger)
            codes[place] = ErrorCode.OPERATION_NOT_ATTEMPTED
        except REFUSALS as failure:
            codes[place] = refused(request, failure)
    if len(ledgers) == len(places):
        current = ProducerEpoch(body.v3_and_below_producer_id, body.v3_and_below_producer_epoch)
        name = body.v3_and_below_transactional_id
        try:
            producer = producers.check(name, request.client.owner_name, current)
            for ledger in ledgers:
                producers.join(producer, ledger)
            await request.context.topics.store.synced()
            codes = dict.fromkeys(places, ErrorCode.NONE)
        except REFUSALS as failure:
            codes = dict.fromkeys(places, refused(request, failure))
    return request.response(
        results_by_topic_v3_and_below=[
            request.struct(
                "AddPartitionsToTxnTopicResult",
                name=topic.name,
                results_by_partition=[
                    request.struct(
                        "AddPartitionsToTxnPartitionResult",
                        partition_index=index,
                        partition_error_code=codes[topic.name, index],
                    )
                    for index in topic.partitions
                ],
            )
            for topic in body.v3_and_below_topics
        ]
    )


async def add_offsets(request: KafkaRequest) -> Any:
    """Begin a transaction, if none is open, that will commit positions of a group."""
    body, producers = request.body, request.context.producers
    code = check_group_id(body.group_id)
    if code is ErrorCode.NONE:
        try:
            name, principal = body.transactional_id, request.client.owner_name
            producers.begun(producers.check(name, principal, current_of(body)))
            await request.context.topics.store.synced()
        except REFUSALS as failure:
            code = refused(request, failure)
    return request.response(error_code=code)


async def end_txn(request: KafkaRequest) -> Any:
    """Answer when a transaction is decided."""
    body = request.body
    try:
        current = await request.context.producers.end(
            body.transactional_id,
            request.client.owner_name,
            current_of(body),
            commit=body.committed,
            raises_epoch=request.version >= IMPLICIT_JOIN,
        )
    except REFUSALS as failure:
        return request.response(error_code=refused(request, failure))
    if request.version < IMPLICIT_JOIN:
        return request.response()
    return request.response(producer_id=current.producer, producer_epoch=current.epoch)


async def commit_offsets(request: KafkaRequest) -> Any:
    """Take positions that a group gets with the commit; answer when that is on disk."""
    refusal = ErrorCode.NONE
    transaction: Transaction | None = None
    ready: list[PartitionPart] = []
    try:
        producer, producers = _check_caller(request), request.context.producers
        implicit = request.version >= IMPLICIT_JOIN
        transaction = producers.begun(producer) if implicit else producers.opened(producer)
    except REFUSALS as failure:
        refusal = _refused_commit(request, failure)

    async def prepare(part: PartitionPart) -> None:
        # Whatever could refuse the commit refuses it now.
        commit_of(request, part.requested)
        await request.context.coordinator.offsets.open(part.partition(), part.group_name)
        ready.append(part)

    topics = await commit_each(request, lambda: refusal, prepare)
    if transaction is not None:
        _take(request, transaction, ready)
    await sync_topics(request, topics)
    return request.response(topics=topics)


def _take(request: KafkaRequest, transaction: Transaction, parts: Sequence[PartitionPart]) -> None:
    """Have a transaction take positions, unless the caller was fenced while they were prepared.

    It is one step of the event loop: who asks for stable offsets after a rebalance finds all of
    them awaited, or the member that was there before is refused them.
    """
    try:
        _check_caller(request)
    except REFUSALS as failure:
        code = _refused_commit(request, failure)
        for part in parts:
            part.result.error_code = code
        return
    transactions = request.context.producers.transactions
    for part in parts:
        try:
            commit, ledger = commit_of(request, part.requested), part.partition().ledger
            transactions.set_position(transaction, ledger, part.group_name, commit)
        except REFUSALS as failure:
            part.result.error_code = error_code(failure)


def _refused_commit(request: KafkaRequest, failure: Exception) -> ErrorCode:
    # The requests of a group know no other code for a producer that was fenced.
    return refused(request, failure, fenced_from=IMPLICIT_JOIN + 1)


def _check_caller(request: KafkaRequest) -> TransactionalProducer:
    """Return the producer of TxnOffsetCommit; raise what refuses it, or its member of the group."""
    body, producers = request.body, request.context.producers
    if (error := check_group_id(body.group_id)) is not ErrorCode.NONE:
        raise KafkaError(error)
    if body.member_id or body.generation_id >= 0:
        caller = GroupCaller(body.member_id, body.group_instance_id, body.generation_id)
        error = request.context.coordinator.check_commit(body.group_id, caller)
        if error is ErrorCode.STALE_MEMBER_EPOCH:
            error = ErrorCode.ILLEGAL_GENERATION  # the other one is not of this API
        if error is not ErrorCode.NONE:
            raise KafkaError(error)
    return producers.check(body.transactional_id, request.client.owner_name, current_of(body))


def describe_transactions(request: KafkaRequest) -> Any:
    """Answer with the state of each producer, and the partitions of what it has open."""
    return request.response(
        transaction_states=[
            _described(request, name) for name in dict.fromkeys(request.body.transactional_ids)
        ]
    )


def list_transactions(request: KafkaRequest) -> Any:
    """Answer with the producers that the client may see and that pass the filters."""
    body = request.body
    states, ids = frozenset(body.state_filters), frozenset(body.producer_id_filters)

    def passes(producer: TransactionalProducer) -> bool:
        return (
            _may_see(request, producer)
            and (not ids or producer.current.producer in ids)
            and (not states or state_of(request, producer) in states)
            and _lasts(request, producer)
        )

    try:
        matches = pattern_test(body.transactional_id_pattern or "(?s).*")
    except KafkaError as failure:
        request.count_error(failure.code)
        return request.response(error_code=failure.code)
    return request.response(
        unknown_state_filters=sorted(states - STATES),
        transaction_states=[
            request.struct(
                "TransactionState",
                transactional_id=one.name,
                producer_id=one.current.producer,
                transaction_state=state_of(request, one),
            )
            for one in request.context.producers.all
            if passes(one) and matches(one.name)
        ],
    )


def state_of(request: KafkaRequest, producer: TransactionalProducer) -> str:
    """Return the state of a producer in Kafka's words."""
    transaction = request.context.producers.transaction(producer)
    if transaction is not None:
        return {None: "Ongoing", True: "PrepareCommit", False: "PrepareAbort"}[
            transaction.committed
        ]
    return {None: "Empty", True: "CompleteCommit", False: "CompleteAbort"}[producer.committed]


def _described(request: KafkaRequest, name: str) -> Any:
    found = request.context.producers.find(name)
    code = ErrorCode.NONE
    if found is None:
        code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    elif not _may_see(request, found):
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    described = request.struct("TransactionState", error_code=code, transactional_id=name)
    request.count_error(code)
    if code is not ErrorCode.NONE or found is None:
        return described
    described.transaction_state = state_of(request, found)
    described.transaction_timeout_ms = found.timeout_ms
    described.producer_id, described.producer_epoch = found.current
    described.transaction_start_time_ms = NO_START
    transaction = request.context.producers.transaction(found)
    if transaction is not None:
        described.transaction_start_time_ms = transaction.begun_ms
        described.topics = [
            request.struct("TopicData", topic=topic, partitions=partitions)
            for topic, partitions in _partitions(request, transaction.ledgers()).items()
        ]
    return described


def _partitions(request: KafkaRequest, ledgers: Iterable[Ledger]) -> dict[str, list[int]]:
    """Return the partitions with these logs that the client may see, by Kafka names."""
    topics, found = request.context.topics, dict[str, list[int]]()
    for ledger in ledgers:
        record = topics.store.topic(ledger.topic_id)
        if record is not None:
            name = TopicName.parse(record.name)
            if request.client.may(name, Right.VIEW):
                index = record.ledger_ids.index(ledger.id)
                found.setdefault(topics.kafka_names.of(name), []).append(index)
    return found


def _lasts(request: KafkaRequest, producer: TransactionalProducer) -> bool:
    """Return whether a producer's transaction is open for as long as the filter demands."""
    shortest_ms: int = request.body.duration_filter
    if shortest_ms < 0:
        return True
    transaction = request.context.producers.transaction(producer)
    if transaction is None:
        return False
    return request.context.topics.now_ms() - transaction.begun_ms >= shortest_ms


def _may_see(request: KafkaRequest, producer: TransactionalProducer) -> bool:
    principal = request.client.owner_name
    return principal is None or producer.principal in {"", principal}


def join_by_batch(
    request: KafkaRequest, producer: ProducerEpoch, ledger: Ledger, *, implicit: bool
) -> Transaction:
    """Return the transaction that a batch of Produce belongs to; raise KafkaError.

    `implicit`: the batch adds its partition, otherwise that was added before.
    """
    producers = request.context.producers
    try:
        found = producers.check(request.body.transactional_id, request.client.owner_name, producer)
        join = producers.join if implicit else producers.joined
        transaction = join(found, ledger)
        producers.transactions.check_space(transaction)
    except TransactionError as error:
        code = error_code(error)
        if error.refusal is Refusal.BUSY and not implicit:
            code = ErrorCode.NOT_ENOUGH_REPLICAS  # which these clients repeat
        raise KafkaError(code, str(error)) from error
    return transaction


APIS: Final = (
    KafkaApi(24, "AddPartitionsToTxn", (0, 3), add_partitions),
    KafkaApi(25, "AddOffsetsToTxn", (0, 4), add_offsets),
    KafkaApi(26, "EndTxn", (0, 5), end_txn),
    KafkaApi(28, "TxnOffsetCommit", (0, 5), commit_offsets),
    KafkaApi(65, "DescribeTransactions", (0, 0), describe_transactions),
    KafkaApi(66, "ListTransactions", (0, 2), list_transactions),
)
