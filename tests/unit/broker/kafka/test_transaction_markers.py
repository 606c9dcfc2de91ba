"""WriteTxnMarkers: administrators abort what is open; nothing else that it asks is done."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from router.broker.audit import AuditLog
from router.broker.kafka.failures import ErrorCode
from router.broker.kafka.session import sessions
from router.broker.transactions import ProducerEpoch
from router.model import TopicName
from tests.unit.broker.kafka.serving import KafkaClient, KafkaServer, with_server
from tests.unit.broker.kafka.test_produce import batch, produced
from tests.unit.broker.kafka.test_tools import NOT_LOCAL
from tests.unit.broker.kafka.test_transactions import values
from tests.unit.broker.kafka.transacting import TransactionalClient

NONE = ErrorCode.NONE


async def marked(
    client: KafkaClient,
    producer: ProducerEpoch,
    *indexes: int,
    commit: bool = False,
    version: int = 0,
) -> list[int]:
    """Ask to end what a producer has in partitions of the topic `t`; return the codes."""
    request = "WriteTxnMarkersRequest"
    topic = client.struct(
        request, "WritableTxnMarkerTopic", name="t", partition_indexes=list(indexes or (0,))
    )
    marker = client.struct(
        request,
        "WritableTxnMarker",
        producer_id=producer.producer,
        producer_epoch=producer.epoch,
        transaction_result=commit,
        transaction_version=version,
        topics=[topic],
    )
    (found,) = (await client.ask("WriteTxnMarkers", 2, markers=[marker])).markers
    assert found.producer_id == producer.producer
    return [part.error_code for topic in found.topics for part in topic.partitions]


@pytest.mark.parametrize("second", [False, True])
def test_an_abort_ends_the_whole_transaction(tmp_path: Path, second: bool) -> None:
    async def test(server: KafkaServer) -> None:
        client = server.client()
        await server.topics.create(TopicName.parse("persistent://public/default/t"), 3)
        producer = TransactionalClient(client, second=second)
        assert await producer.init() == 0
        if second:
            # An epoch of a transaction before, which the partition remembers.
            assert await producer.write(b"x") == 0
            assert await producer.end(commit=True) == 0
        current = ProducerEpoch(producer.producer, producer.epoch)
        assert await producer.write(b"a") == 0
        assert await producer.write(b"b", index=1) == 0
        await produced(client, batch(1))
        before = [b"x"] if second else []
        # Not the right, not this partition, an epoch that is over, a commit, no producer.
        stranger = server.client(NOT_LOCAL)
        assert await marked(stranger, current) == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await marked(client, current, 2, 9) == [NONE, missing]
        old = current._replace(epoch=current.epoch - 1)
        assert await marked(client, old) == [ErrorCode.INVALID_PRODUCER_EPOCH]
        assert await marked(client, current, commit=True) == [ErrorCode.INVALID_TXN_STATE]
        assert await marked(client, ProducerEpoch(77, 0)) == [NONE]
        assert await values(client) == before
        assert await marked(client, current, 0, 1) == [NONE, NONE]
        assert await values(client) == [*before, b"\0" * 5]
        # Nothing is open: a repetition is answered alike, a late batch of it is not taken.
        assert await marked(client, current, 0, 1) == [NONE, NONE]
        assert await marked(client, current, commit=True) == [NONE]
        assert await marked(client, old) == [ErrorCode.INVALID_PRODUCER_EPOCH]
        assert await producer.end(commit=True) == ErrorCode.PRODUCER_FENCED
        assert await producer.init() == 0

    with_server(tmp_path, test)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_marker_of_transactions_that_raise_the_epoch_has_a_later_one(
    tmp_path: Path, version: int
) -> None:
    """Apache Kafka refuses late ones by that (KIP-1228)."""

    async def test(server: KafkaServer) -> None:
        client = server.client()
        await server.topics.create(TopicName.parse("persistent://public/default/t"), 1)
        producer = TransactionalClient(client)
        assert await producer.init() == 0
        assert await producer.write(b"a") == 0
        current = ProducerEpoch(producer.producer, producer.epoch)
        late = ErrorCode.INVALID_PRODUCER_EPOCH if version == 2 else NONE
        assert await marked(client, current, version=version) == [late]
        is_open = late is not NONE
        assert (await producer.write(b"b") == 0) is is_open
        later = current._replace(epoch=current.epoch + 1)
        assert await marked(client, later, version=version) == [NONE]
        assert await producer.write(b"c") != 0
        assert await marked(client, later, version=version) == [NONE]
        assert await values(client) == []

    with_server(tmp_path, test)


def test_transactional_ids_are_listed_by_a_pattern(tmp_path: Path) -> None:
    async def test(server: KafkaServer) -> None:
        client = server.client()
        for name in ("orders-1", "orders-2", "other"):
            assert await TransactionalClient(client, name).init() == 0

        async def listed(pattern: str | None) -> tuple[int, list[str]]:
            answer = await client.ask("ListTransactions", 2, transactional_id_pattern=pattern)
            found = sorted(one.transactional_id for one in answer.transaction_states)
            return answer.error_code, found

        everything = ["orders-1", "orders-2", "other"]
        assert await listed(None) == await listed("") == (0, everything)
        assert await listed("orders-.*") == (0, everything[:2])
        assert await listed("orders") == (0, [])
        for invalid in ("[", "a" * 2_000):
            assert await listed(invalid) == (ErrorCode.INVALID_REGULAR_EXPRESSION, [])

    with_server(tmp_path, test)


def test_an_abort_is_in_the_audit(tmp_path: Path) -> None:
    async def test(server: KafkaServer) -> None:
        audit = AuditLog(tmp_path, lambda: 1)
        opened = await sessions(replace(server.context.broker, audit=audit))
        server.context = replace(server.context, open_sessions=lambda _: opened)
        client = server.client()
        await server.topics.create(TopicName.parse("persistent://public/default/t"))
        producer = TransactionalClient(client)
        assert await producer.init() == 0
        assert await producer.write(b"a") == 0
        current = ProducerEpoch(producer.producer, producer.epoch)
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await marked(client, ProducerEpoch(77, 0), 9) == [missing]
        assert await marked(client, current) == [NONE]
        await audit.written()
        found = [(one["action"], one["target"]) for one in await audit.newest(9)]
        assert found == [("abort-transaction", f"kafka:{producer.producer}")]

    with_server(tmp_path, test)
