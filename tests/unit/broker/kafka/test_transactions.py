"""Transactions of Kafka's producers: what readers see when, who is fenced, what a restart keeps."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from router.broker.kafka.batch_reader import BatchReader
from router.broker.kafka.failures import ErrorCode
from router.broker.storage import StoreError
from router.broker.topics.calls import AdminCalls
from router.broker.topics.cursor_administration import CursorAdmin
from router.broker.topics.descriptions import topic_stats
from router.broker.transactions import (
    ProducerEpoch,
    TransactionalProducers,
    TransactionCalls,
    TransactionError,
    coordinator,
)
from router.broker.transactions import producers as names
from router.broker.transactions.producers import EXPIRY_MS, LAST_EPOCH, MAX_TIMEOUT_MS
from router.errors import ValueNotFoundError
from router.model import TopicName
from router.wire.kafka.record_batches import next_offset
from tests.unit.broker.kafka.serving import KafkaClient, KafkaServer, serving
from tests.unit.broker.kafka.test_fetch import fetched, records
from tests.unit.broker.kafka.test_produce import FULL, batch, produced
from tests.unit.broker.kafka.transacting import TransactionalClient, group_offset

COMMITTED, UNCOMMITTED = 1, 0
VERSIONS = [pytest.param(False, id="first"), pytest.param(True, id="second")]


async def values(client: KafkaClient, isolation: int = COMMITTED) -> list[bytes | None]:
    """What a reader from the beginning gets."""
    found: list[bytes | None] = []
    offset = 0
    while True:
        part = await fetched(client, offset, isolation_level=isolation)
        assert not part.error_code
        if not part.records:
            return found
        found += [record.value for at, record in records(part) if at >= offset]
        offset = next_offset(bytes(part.records), offset)


def with_producer(
    folder: Path,
    test: Callable[[KafkaServer, KafkaClient, TransactionalClient], Awaitable[None]],
    *,
    second: bool = False,
) -> None:
    async def run() -> None:
        async with serving(folder) as server:
            await server.topics.create(TopicName.parse(FULL))
            client = server.client()
            producer = TransactionalClient(client, second=second)
            assert await producer.init() == 0
            await test(server, client, producer)

    asyncio.run(run())


async def decided(server: KafkaServer) -> None:
    """Return when no transaction is open on the partition."""
    partition, over = server.topics.opened(FULL), asyncio.Event()
    assert partition is not None
    partition.ledger.listeners[over.set] = None
    while partition.ledger.undecided is not None:
        over.clear()
        await over.wait()


class Leases:
    """Those of a node without polls."""

    def forget(self, topic: str, subscription: str | None = None) -> None:
        """Drop nothing."""


async def ends(client: KafkaClient) -> tuple[int, int, int]:
    """The last offsets for committed and other readers, and the end of the leader's epoch."""
    found = []
    for isolation in (COMMITTED, UNCOMMITTED):
        place = client.struct(
            "ListOffsetsRequest", "ListOffsetsPartition", partition_index=0, timestamp=-1
        )
        topic = client.struct(
            "ListOffsetsRequest", "ListOffsetsTopic", name="t", partitions=[place]
        )
        answer = await client.ask("ListOffsets", 5, isolation_level=isolation, topics=[topic])
        found.append(answer.topics[0].partitions[0].offset)
    name = "OffsetForLeaderEpochRequest"
    place = client.struct(name, "OffsetForLeaderPartition", partition=0, leader_epoch=0)
    topic = client.struct(name, "OffsetForLeaderTopic", topic="t", partitions=[place])
    answer = await client.ask("OffsetForLeaderEpoch", 3, topics=[topic])
    return found[0], found[1], answer.topics[0].partitions[0].end_offset


def test_a_partition_is_described_to_its_first_undecided_entry(tmp_path: Path) -> None:
    async def test(server: KafkaServer, _: KafkaClient, producer: TransactionalClient) -> None:
        partition, record = server.topics.opened(FULL), server.topics.find(FULL)
        assert partition is not None
        assert record is not None

        async def described_end() -> tuple[int, int]:
            [one] = (await topic_stats(record, [partition], None)).partitions
            return one.next_entry, one.undecided

        assert await producer.write(b"a") == 0
        assert await described_end() == (0, 1)
        assert await producer.end(commit=True) == 0
        assert await described_end() == (1, 0)

    with_producer(tmp_path, test)


def test_a_transaction_has_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "MAX_RANGES", 2)
    monkeypatch.setattr(coordinator, "MAX_POSITIONS", 1)
    monkeypatch.setattr(coordinator, "MAX_OPEN", 1)

    async def test(server: KafkaServer, client: KafkaClient, producer: TransactionalClient) -> None:
        for _ in range(2):
            assert await producer.write(b"a") == 0
            await produced(client, batch(1))
        assert await producer.write(b"a") == ErrorCode.POLICY_VIOLATION
        assert await producer.commit_offset("g", 0) == 0
        assert await producer.commit_offset("h", 0) == ErrorCode.POLICY_VIOLATION
        other = TransactionalClient(client, "other", second=True)
        assert await other.init() == 0
        assert await other.write(b"b") == ErrorCode.POLICY_VIOLATION
        assert await producer.end(commit=False) == 0
        assert await other.write(b"b") == 0

    with_producer(tmp_path, test, second=True)


def producers_of(server: KafkaServer) -> TransactionalProducers:
    found = server.context.broker.transactions
    assert found is not None
    return found


@pytest.mark.parametrize("second", VERSIONS)
def test_a_transaction_is_seen_when_it_is_committed(tmp_path: Path, second: bool) -> None:
    async def test(server: KafkaServer, client: KafkaClient, producer: TransactionalClient) -> None:
        assert await producer.write(b"a", b"b") == 0
        await produced(client, batch(1))
        assert await values(client) == []
        assert await values(client, UNCOMMITTED) == [b"a", b"b", b"\0" * 5]
        part = await fetched(client, 0, isolation_level=COMMITTED)
        assert (part.high_watermark, part.last_stable_offset) == (3, 0)
        assert list(part.aborted_transactions) == []
        assert await ends(client) == (0, 3, 3)
        assert await producer.write(b"c") == 0
        assert await producer.end(commit=True) == 0
        assert await values(client) == [b"a", b"b", b"\0" * 5, b"c"]

    with_producer(tmp_path, test, second=second)


@pytest.mark.parametrize("second", VERSIONS)
def test_nothing_is_seen_of_a_transaction_that_is_aborted(tmp_path: Path, second: bool) -> None:
    async def test(server: KafkaServer, client: KafkaClient, producer: TransactionalClient) -> None:
        assert await producer.write(b"a") == 0
        await produced(client, batch(1))
        assert await producer.write(b"b") == 0
        assert await producer.end(commit=False) == 0
        for isolation in (COMMITTED, UNCOMMITTED):
            assert await values(client, isolation) == [b"\0" * 5]
        assert await producer.write(b"c") == 0
        assert await producer.end(commit=True) == 0
        assert await values(client) == [b"\0" * 5, b"c"]

    with_producer(tmp_path, test, second=second)


def test_a_reader_that_waits_is_sent_what_is_committed(tmp_path: Path) -> None:
    async def test(server: KafkaServer, client: KafkaClient, producer: TransactionalClient) -> None:
        assert await producer.write(b"a") == 0
        reader = server.client()
        waiting = asyncio.create_task(
            fetched(reader, 0, isolation_level=COMMITTED, max_wait_ms=20_000)
        )
        await asyncio.sleep(0)
        assert await producer.end(commit=True) == 0
        assert [record.value for _, record in records(await waiting)] == [b"a"]

    with_producer(tmp_path, test)


@pytest.mark.parametrize("second", VERSIONS)
def test_a_second_producer_of_an_id_aborts_and_fences_the_first(
    tmp_path: Path, second: bool
) -> None:
    async def test(server: KafkaServer, client: KafkaClient, producer: TransactionalClient) -> None:
        assert await producer.write(b"a") == 0
        later = TransactionalClient(server.client(), second=second)
        assert await later.init() == 0
        assert (later.producer, later.epoch) == (producer.producer, producer.epoch + 1)
        assert await values(client, UNCOMMITTED) == []
        assert await producer.send(b"b") == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await producer.end(commit=True) == ErrorCode.PRODUCER_FENCED
        assert await producer.add() == ErrorCode.PRODUCER_FENCED
        assert await producer.add_offsets("g") == ErrorCode.PRODUCER_FENCED
        assert await producer.commit_offset("g", 0) == ErrorCode.INVALID_PRODUCER_EPOCH
        expected = {"producer_id": producer.producer, "producer_epoch": producer.epoch}
        assert await producer.init(**expected) == ErrorCode.PRODUCER_FENCED
        assert await later.write(b"c") == 0
        assert await later.end(commit=True) == 0
        assert await values(client) == [b"c"]

    with_producer(tmp_path, test, second=second)


def test_two_that_begin_at_the_same_time_get_different_epochs(tmp_path: Path) -> None:
    async def test(server: KafkaServer, _: KafkaClient, _producer: TransactionalClient) -> None:
        begin = producers_of(server).begin_producer
        first, second = await asyncio.gather(begin("new", None, 60_000), begin("new", None, 60_000))
        assert first.epoch < second.epoch

    with_producer(tmp_path, test)


def test_an_end_does_not_return_the_epoch_of_one_that_begins_meanwhile(tmp_path: Path) -> None:
    async def test(server: KafkaServer, _: KafkaClient, producer: TransactionalClient) -> None:
        found, current = producers_of(server), ProducerEpoch(producer.producer, producer.epoch)
        ended, begun = await asyncio.gather(
            found.end("tx", None, current, commit=False, raises_epoch=True),
            found.begin_producer("tx", None, 60_000),
        )
        assert ended.epoch < begun.epoch

    with_producer(tmp_path, test, second=True)


def test_a_producer_that_names_its_epoch_gets_the_next_and_may_repeat_that(tmp_path: Path) -> None:
    async def test(server: KafkaServer, client: KafkaClient, producer: TransactionalClient) -> None:
        assert await producer.write(b"a") == 0
        before = {"producer_id": producer.producer, "producer_epoch": producer.epoch}
        for _ in range(2):
            assert await producer.init(**before) == 0
            assert producer.epoch == before["producer_epoch"] + 1
        assert await values(client) == []

    with_producer(tmp_path, test)


def test_behind_the_last_epoch_comes_another_producer_id(tmp_path: Path) -> None:
    async def test(server: KafkaServer, client: KafkaClient, producer: TransactionalClient) -> None:
        found = producers_of(server).find("tx")
        assert found is not None
        found.current = found.current._replace(epoch=LAST_EPOCH)
        producer.epoch = LAST_EPOCH
        assert await producer.write(b"a") == 0
        before = producer.producer
        assert await producer.end(commit=True) == 0
        assert (producer.producer > before, producer.epoch) == (True, 0)
        assert await producer.write(b"b") == 0
        assert await producer.end(commit=True) == 0
        assert await values(client) == [b"a", b"b"]

    with_producer(tmp_path, test, second=True)


def test_a_transaction_is_aborted_and_fenced_when_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "CHECK_SECONDS", 0.01)

    async def test(server: KafkaServer, client: KafkaClient, producer: TransactionalClient) -> None:
        assert await producer.write(b"a") == 0
        (transaction,) = producers_of(server).transactions.open
        transaction.deadline = 0.0
        await decided(server)
        transactions = producers_of(server).transactions
        await asyncio.gather(*transactions._tasks)
        assert transactions.timed_out == 1
        assert await producer.send(b"b") == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await producer.end(commit=True) == ErrorCode.PRODUCER_FENCED
        assert await values(client, UNCOMMITTED) == []

    with_producer(tmp_path, test)


def test_a_transaction_that_a_failed_disk_keeps_from_its_end_is_aborted_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise StoreError("the store failed")

    async def run() -> None:
        failures: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, found: failures.append(found))
        async with serving(tmp_path) as server:
            await server.topics.create(TopicName.parse(FULL))
            producer = TransactionalClient(server.client())
            assert await producer.init() == 0
            assert await producer.write(b"a") == 0
            transactions = producers_of(server).transactions
            (transaction,) = transactions.open
            with monkeypatch.context() as patched:
                patched.setattr(transactions, "_decide", fail)
                transaction.deadline = 0.0
                transactions._check()
                while transactions._tasks:
                    await asyncio.wait(transactions._tasks)
                    await asyncio.sleep(0)
            del transaction, transactions
        monkeypatch.setattr(coordinator, "CHECK_SECONDS", 0.01)
        async with serving(tmp_path) as server:
            producer.client = server.client()
            (transaction,) = producers_of(server).transactions.open
            transaction.deadline = 0.0
            await decided(server)
            assert await producer.end(commit=True) == ErrorCode.PRODUCER_FENCED
        gc.collect()
        assert failures == []

    asyncio.run(run())


def test_a_message_at_a_time_is_one_that_may_be_read(tmp_path: Path) -> None:
    async def test(server: KafkaServer, client: KafkaClient, producer: TransactionalClient) -> None:
        partition = server.topics.opened(FULL)
        assert partition is not None
        await produced(client, batch(1))
        assert await producer.write(b"a") == 0
        ledger, calls = partition.ledger.id, AdminCalls(server.topics)
        now_ms = server.topics.now_ms()
        assert await calls.message_at(FULL, now_ms + 1) == (ledger, 0, partition.index)
        await partition.subscribe("s", 0)
        cursors = CursorAdmin(server.topics, Leases())
        await cursors.skip(FULL, "s", count=None, before_ms=now_ms + 1)
        assert partition.subscriptions["s"].cursor.mark_delete == 0

    with_producer(tmp_path, test)


def test_administrators_see_and_abort_what_is_open(tmp_path: Path) -> None:
    async def test(server: KafkaServer, client: KafkaClient, producer: TransactionalClient) -> None:
        calls = TransactionCalls(server.topics, producers_of(server))
        assert await calls.transactions() == {"count": 0, "transactions": []}
        assert await producer.write(b"a", b"b") == 0
        await produced(client, batch(1))
        assert await producer.write(b"c") == 0
        assert await producer.commit_offset("g", 1) == 0
        (found,) = (await calls.transactions())["transactions"]
        assert (found["producer"], found["state"], found["dialect"]) == ("tx", "open", "kafka")
        assert (found["partitions"], found["positions"], found["timeout"]) == (1, 1, 60.0)
        assert found["id"] == f"kafka:{producer.producer}"
        for name in ("tx", found["id"]):
            described = await calls.transaction(name)
            assert described["joined"] == [{"topic": FULL, "partition": 0, "messages": 3}]
            assert described["commits"] == [
                {"group": "g", "topic": FULL, "partition": 0, "number": 1}
            ]
        assert (await calls.abort_transaction(found["id"]))["id"] == found["id"]
        assert await values(client, UNCOMMITTED) == [b"\0" * 5]
        assert await producer.end(commit=True) == ErrorCode.PRODUCER_FENCED
        with pytest.raises(ValueNotFoundError):
            await calls.abort_transaction("tx")

    with_producer(tmp_path, test, second=True)


@pytest.mark.parametrize("timeout_ms", [0, -1, MAX_TIMEOUT_MS + 1])
def test_a_timeout_has_a_bound(tmp_path: Path, timeout_ms: int) -> None:
    async def test(server: KafkaServer, client: KafkaClient, producer: TransactionalClient) -> None:
        assert await producer.init(timeout_ms) == ErrorCode.INVALID_TRANSACTION_TIMEOUT

    with_producer(tmp_path, test)


def test_the_end_of_a_transaction_may_be_repeated(tmp_path: Path) -> None:
    async def test(server: KafkaServer, client: KafkaClient, producer: TransactionalClient) -> None:
        assert await producer.end(commit=True) == ErrorCode.INVALID_TXN_STATE
        assert await producer.write(b"a") == 0
        assert await producer.end(commit=True) == 0
        assert await producer.end(commit=True) == 0
        assert await producer.end(commit=False) == ErrorCode.INVALID_TXN_STATE
        producer.second = True
        assert await producer.send(b"b") == 0
        epoch = producer.epoch
        assert await producer.end(commit=True) == 0
        assert producer.epoch == epoch + 1
        producer.epoch = epoch
        assert await producer.end(commit=True) == 0
        assert producer.epoch == epoch + 1
        producer.epoch = epoch
        assert await producer.end(commit=False) == ErrorCode.PRODUCER_FENCED
        producer.epoch = epoch + 1
        assert await producer.end(commit=True) == ErrorCode.INVALID_TXN_STATE
        assert await producer.end(commit=False) == 0
        assert producer.epoch == epoch + 2

    with_producer(tmp_path, test)


def test_a_partition_is_added_before_it_is_written_in_the_first_version(tmp_path: Path) -> None:
    async def test(server: KafkaServer, client: KafkaClient, producer: TransactionalClient) -> None:
        assert await producer.send(b"a") == ErrorCode.INVALID_TXN_STATE
        assert await producer.add() == 0
        assert await producer.send(b"a") == 0
        assert await producer.end(commit=True) == 0
        # What comes late is no part of a later transaction.
        assert await producer.send(b"b") == ErrorCode.INVALID_TXN_STATE
        assert await producer.add("missing") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await values(client) == [b"a"]

    with_producer(tmp_path, test)


def test_requests_of_another_producer_id_are_refused(tmp_path: Path) -> None:
    async def test(server: KafkaServer, client: KafkaClient, producer: TransactionalClient) -> None:
        producer.producer += 1
        assert await producer.add() == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        producer.name = "other"
        assert await producer.end(commit=True) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        producer.name = ""
        assert await producer.init() == ErrorCode.INVALID_REQUEST
        part = await produced(client, batch(1, attributes=1 << 4, producer=(1, 0, 0)))
        assert part.error_code == ErrorCode.INVALID_RECORD
        part = await produced(client, batch(1, attributes=1 << 5))
        assert part.error_code == ErrorCode.INVALID_RECORD

    with_producer(tmp_path, test)


@pytest.mark.parametrize("second", VERSIONS)
@pytest.mark.parametrize("commit", [True, False])
def test_positions_are_committed_with_their_transaction(
    tmp_path: Path, second: bool, commit: bool
) -> None:
    async def test(server: KafkaServer, client: KafkaClient, producer: TransactionalClient) -> None:
        await produced(client, batch(5))
        if not second:
            assert await producer.commit_offset("g", 3) == ErrorCode.INVALID_TXN_STATE
            assert await producer.add_offsets("g") == 0
        assert await producer.commit_offset("g", 2) == 0
        assert await producer.commit_offset("g", 3) == 0
        assert await group_offset(client, "g") == (0, -1)
        unstable = (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
        assert await group_offset(client, "g", stable=True) == unstable
        assert await producer.end(commit=commit) == 0
        assert await group_offset(client, "g", stable=True) == (0, 3 if commit else -1)

    with_producer(tmp_path, test, second=second)


def test_a_position_is_unstable_until_the_last_transaction_with_it_ends(tmp_path: Path) -> None:
    """After a restart too."""
    unstable = ErrorCode.UNSTABLE_OFFSET_COMMIT, -1

    async def run() -> None:
        async with serving(tmp_path) as server:
            await server.topics.create(TopicName.parse(FULL))
            names = {name: TransactionalClient(server.client(), name) for name in "ab"}
            for one in names.values():
                assert await one.init() == 0
                assert await one.add_offsets("g") == 0
                assert await one.commit_offset("g", 0) == 0
        async with serving(tmp_path) as server:
            client = server.client()
            for one in names.values():
                assert await group_offset(client, "g", stable=True) == unstable
                one.client = client
                assert await one.end(commit=False) == 0
            assert await group_offset(client, "g", stable=True) == (0, -1)

    asyncio.run(run())


def test_a_reader_that_waits_for_a_decision_does_not_read_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read(*_: Any) -> Any:
        raise AssertionError("nothing may be read yet")

    async def run() -> None:
        async with serving(tmp_path) as server:
            await server.topics.create(TopicName.parse(FULL))
            producer = TransactionalClient(server.client())
            assert await producer.init() == 0
            await produced(producer.client, batch(1))
            assert await producer.write(b"a") == 0
        async with serving(tmp_path) as server:
            client = server.client()
            with monkeypatch.context() as patched:
                patched.setattr(BatchReader, "read", read)
                part = await fetched(client, 1, isolation_level=COMMITTED, max_wait_ms=20)
            assert (part.error_code, bytes(part.records or b"")) == (0, b"")

    asyncio.run(run())


@pytest.mark.parametrize("commit", [True, False])
def test_a_restart_goes_on_with_an_open_transaction(tmp_path: Path, commit: bool) -> None:
    async def run() -> None:
        async with serving(tmp_path) as server:
            await server.topics.create(TopicName.parse(FULL))
            producer = TransactionalClient(server.client())
            assert await producer.init() == 0
            assert await producer.write(b"a") == 0
            await produced(producer.client, batch(1))
            assert await producer.write(b"b") == 0
            assert await producer.add_offsets("g") == 0
            assert await producer.commit_offset("g", 1) == 0
        async with serving(tmp_path) as server:
            producer.client = client = server.client()
            assert await values(client) == []
            assert await values(client, UNCOMMITTED) == [b"a", b"\0" * 5, b"b"]
            assert await producer.send(b"c") == 0
            assert await producer.end(commit=commit) == 0
            expected = [b"a", b"\0" * 5, b"b", b"c"] if commit else [b"\0" * 5]
            assert await values(client) == expected
        async with serving(tmp_path) as server:
            client = server.client()
            assert await values(client) == expected
            assert await group_offset(client, "g") == (0, 1 if commit else -1)
            assert not producers_of(server).transactions.open
            assert await TransactionalClient(client).init() == 0

    asyncio.run(run())


@pytest.mark.parametrize("commit", [True, False])
def test_a_restart_finishes_what_was_decided(
    tmp_path: Path, commit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: Any) -> None:
        return

    async def run() -> None:
        async with serving(tmp_path) as server:
            await server.topics.create(TopicName.parse(FULL))
            producer = TransactionalClient(server.client(), second=True)
            assert await producer.init() == 0
            assert await producer.write(b"a") == 0
            assert await producer.commit_offset("g", 1) == 0
            with monkeypatch.context() as patched:
                patched.setattr(coordinator.TransactionCoordinator, "_finish", nothing)
                assert await producer.end(commit=commit) == 0
        async with serving(tmp_path) as server:
            client = server.client()
            assert await values(client) == ([b"a"] if commit else [])
            assert await group_offset(client, "g") == (0, 1 if commit else -1)
            assert not producers_of(server).transactions.open

    asyncio.run(run())


def test_tools_see_transactions(tmp_path: Path) -> None:
    async def test(server: KafkaServer, client: KafkaClient, producer: TransactionalClient) -> None:
        async def state() -> Any:
            answer = await client.ask("DescribeTransactions", 0, transactional_ids=["tx"])
            return answer.transaction_states[0]

        assert (await state()).transaction_state == "Empty"
        assert await producer.write(b"a") == 0
        found = await state()
        assert (found.error_code, found.transaction_state) == (0, "Ongoing")
        assert (found.producer_id, found.producer_epoch) == (producer.producer, producer.epoch)
        assert found.transaction_timeout_ms == 60_000
        assert [(one.topic, list(one.partitions)) for one in found.topics] == [("t", [0])]
        topic = client.struct(
            "DescribeProducersRequest", "TopicRequest", name="t", partition_indexes=[0]
        )
        answer = await client.ask("DescribeProducers", 0, topics=[topic])
        (one,) = answer.topics[0].partitions[0].active_producers
        assert (one.producer_id, one.current_txn_start_offset) == (producer.producer, 0)

        async def listed(**filters: Any) -> list[str]:
            fields = {"state_filters": [], "producer_id_filters": [], **filters}
            answer = await client.ask("ListTransactions", 1, **fields)
            return [one.transactional_id for one in answer.transaction_states]

        assert await listed(state_filters=["Ongoing"]) == ["tx"]
        assert await listed(state_filters=["Empty"]) == []
        assert await listed(producer_id_filters=[producer.producer]) == ["tx"]
        assert await listed(producer_id_filters=[producer.producer + 1]) == []
        assert await listed(duration_filter=0) == ["tx"]
        assert await listed(duration_filter=1_000) == []
        assert await producer.end(commit=True) == 0
        assert (await state()).transaction_state == "CompleteCommit"
        assert await listed(duration_filter=0) == []

    with_producer(tmp_path, test)


def test_ids_that_were_not_used_for_long_are_forgotten(tmp_path: Path) -> None:
    async def test(server: KafkaServer, client: KafkaClient, producer: TransactionalClient) -> None:
        producers = producers_of(server)
        found = producers.find("tx")
        assert found is not None
        producers.expire_names()
        assert producers.find("tx") is found
        found.used_ms = 0
        assert await producer.write(b"a") == 0
        producers.expire_names()  # not while one is open
        assert await producer.end(commit=True) == 0
        found.used_ms = 0
        producers.expire_names()
        assert await producer.add() == ErrorCode.INVALID_PRODUCER_ID_MAPPING

    with_producer(tmp_path, test)


def test_one_principal_leaves_names_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart too; what is full is not looked through again with each request."""
    monkeypatch.setattr(names, "MAX_NAMES", 8)
    seconds = [1_700_000_000.0]
    looks: list[None] = []
    expire_names = TransactionalProducers.expire_names

    def counted(self: TransactionalProducers) -> None:
        looks.append(None)
        expire_names(self)

    monkeypatch.setattr(TransactionalProducers, "expire_names", counted)

    async def refused(found: TransactionalProducers, name: str, principal: str | None) -> bool:
        try:
            await found.begin_producer(name, principal, 1_000)
        except TransactionError:
            return True
        return False

    async def run() -> None:
        async with serving(tmp_path, clock=lambda: seconds[0]) as server:
            found = producers_of(server)
            assert not await refused(found, "free", None)
            assert not await refused(found, "a", "anna")
            assert not await refused(found, "free", "anna")  # it is hers from now on
        async with serving(tmp_path, clock=lambda: seconds[0]) as server:
            found = producers_of(server)
            for name in ("b", "c"):
                assert not await refused(found, name, "anna")
            assert await refused(found, "d", "anna")  # she has half
            assert await refused(found, "d", "anna")
            assert len(looks) == 1
            assert not await refused(found, "a", "anna")
            for number in range(4):
                assert not await refused(found, f"n{number}", None)
            assert await refused(found, "o", "otto")
            seconds[0] += EXPIRY_MS / 1_000 + 1
            assert not await refused(found, "d", "anna")
            assert [one.name for one in found.all] == ["d"]
            looks.clear()
            seconds[0] -= EXPIRY_MS / 1_000  # the clock is set back
            for name in ("e", "f", "g", "h", "i"):
                await refused(found, name, "anna")
            assert len(looks) == 1

    asyncio.run(run())


def test_clients_learn_which_version_of_the_protocol_is_served(tmp_path: Path) -> None:
    async def test(server: KafkaServer, client: KafkaClient, producer: TransactionalClient) -> None:
        named = {"client_software_name": "x", "client_software_version": "1"}
        answer = await client.ask("ApiVersions", 4, **named)
        found = {one.name: one.max_version_level for one in answer.finalized_features}
        assert found == {"transaction.version": 2, "group.version": 1}

    with_producer(tmp_path, test)
