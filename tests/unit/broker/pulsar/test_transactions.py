"""Transactions of Pulsar's clients: what readers see when, what is refused, what restarts keep."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from router.broker.pulsar.transactions import COORDINATOR_TOPIC, MAX_TIMEOUT_MS
from router.broker.transactions import coordinator
from router.wire.pulsar import pulsar_pb2 as pb
from tests.unit.broker.pulsar.serving import Context
from tests.unit.broker.pulsar.test_connection import TOPIC, with_client
from tests.unit.broker.pulsar.transacting import TransactionalClient

EXCLUSIVE, SHARED = pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Shared
LOST = {"txnid_most_bits": 0, "txnid_least_bits": 99}


def with_transactions(
    folder: Path, test: Callable[[TransactionalClient, Context], Awaitable[None]]
) -> None:
    async def run(_: object, context: Context) -> None:
        client = TransactionalClient(context)
        try:
            await client.producer()
            await test(client, context)
        finally:
            client.close()

    with_client(folder, run)


def test_clients_find_one_coordinator(folder: Path) -> None:
    async def test(client: TransactionalClient, _: Context) -> None:
        assert (await client.ask("PARTITIONED_METADATA", topic=COORDINATOR_TOPIC)).partitions == 1
        found = await client.ask("LOOKUP", topic=f"{COORDINATOR_TOPIC}-partition-0")
        assert found.response == pb.CommandLookupTopicResponse.Connect
        assert not (await client.ask("TC_CLIENT_CONNECT_REQUEST", tc_id=0)).HasField("error")
        missing = await client.ask("TC_CLIENT_CONNECT_REQUEST", tc_id=1)
        assert missing.error == pb.TransactionCoordinatorNotFound
        missing = await client.ask("NEW_TXN", tc_id=1, txn_ttl_seconds=1_000)
        assert missing.error == pb.TransactionCoordinatorNotFound

    with_transactions(folder, test)


def test_a_transaction_is_seen_whole_in_the_order_of_the_log_or_not_at_all(folder: Path) -> None:
    async def test(client: TransactionalClient, _: Context) -> None:
        await client.subscribe(EXCLUSIVE)
        await client.write(b"a")
        assert await client.values() == [b"a"]
        ids, other = await client.begin(), await client.begin()
        await client.write(b"b", b"c", ids=ids)
        await client.write(b"d", ids=other)
        await client.write(b"e")
        await client.write(b"f", ids=ids)
        assert await client.values() == []
        assert not (await client.end(ids)).HasField("error")
        assert await client.values() == [b"b", b"c"]
        assert not (await client.end(other, commit=False)).HasField("error")
        assert await client.values() == [b"e", b"f"]

    with_transactions(folder, test)


def test_what_is_not_open_is_refused(folder: Path) -> None:
    async def test(client: TransactionalClient, _: Context) -> None:
        assert (await client.end(LOST)).error == pb.TransactionNotFound
        added = await client.ask("ADD_PARTITION_TO_TXN", partitions=[TOPIC], **LOST)
        assert added.error == pb.TransactionNotFound
        named = [pb.Subscription(topic=TOPIC, subscription="s")]
        added = await client.ask("ADD_SUBSCRIPTION_TO_TXN", subscription=named, **LOST)
        assert added.error == pb.TransactionNotFound
        # Clients that get another error than this one send the message again for ever.
        assert (await client.write(b"a", ids=LOST)).error == pb.NotAllowedError
        ids = await client.begin()
        assert not (await client.end(ids)).HasField("error")
        assert (await client.end(ids)).error == pb.TransactionNotFound
        for timeout_ms in (0, MAX_TIMEOUT_MS + 1):
            answer = await client.ask("NEW_TXN", txn_ttl_seconds=timeout_ms)
            assert answer.error == pb.NotAllowedError

    with_transactions(folder, test)


def test_topics_that_cannot_take_part_are_refused(folder: Path) -> None:
    async def test(client: TransactionalClient, _: Context) -> None:
        ids = await client.begin()
        passing = f"non-{TOPIC}"
        await client.producer(passing, 1)
        expected = {
            passing: pb.NotAllowedError,
            TOPIC.removesuffix("t") + "missing": pb.TopicNotFound,
        }
        for topic, error in expected.items():
            added = await client.ask("ADD_PARTITION_TO_TXN", partitions=[TOPIC, topic], **ids)
            assert added.error == error
            named = [pb.Subscription(topic=topic, subscription="s")]
            added = await client.ask("ADD_SUBSCRIPTION_TO_TXN", subscription=named, **ids)
            assert added.error == error
        assert (await client.write(b"a", ids=ids, number=1)).error == pb.NotAllowedError
        added = await client.ask("ADD_PARTITION_TO_TXN", partitions=[TOPIC], **ids)
        assert not added.HasField("error")

    with_transactions(folder, test)


def test_a_transaction_whose_time_is_over_is_aborted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "CHECK_SECONDS", 0.01)

    async def test(client: TransactionalClient, _: Context) -> None:
        await client.subscribe(EXCLUSIVE)
        ids = await client.begin(timeout_ms=1_000)
        await client.write(b"a", ids=ids)
        await client.write(b"b")
        seen: list[bytes] = []
        async with asyncio.timeout(20):
            while not seen:
                seen = await client.values()
        assert seen == [b"b"]
        assert (await client.end(ids)).error == pb.TransactionNotFound

    with_transactions(folder, test)


def test_a_restart_goes_on_with_what_is_open(folder: Path) -> None:
    kept = []

    async def before(client: TransactionalClient, _: Context) -> None:
        for value in (b"a", b"b"):
            ids = await client.begin()
            await client.write(value, ids=ids)
            kept.append(ids)

    async def after(client: TransactionalClient, context: Context) -> None:
        assert context.broker.transactions is not None
        await context.broker.transactions.transactions.load()
        await client.subscribe(EXCLUSIVE)
        assert await client.values() == []
        await client.end(kept[0], commit=False)
        await client.end(kept[1])
        assert await client.values() == [b"b"]

    with_transactions(folder, before)
    with_transactions(folder, after)
