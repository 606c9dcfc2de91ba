"""Transactions of Pulsar's clients: what readers see when, what is refused, what restarts keep."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from router.broker.consume import PartitionSubscription
from router.broker.pulsar.transactions import COORDINATOR_TOPIC, MAX_TIMEOUT_MS
from router.broker.transactions import (
    Transaction,
    TransactionCoordinator,
    acknowledgements,
    coordinator,
)
from router.wire.pulsar import command, encode
from router.wire.pulsar import pulsar_pb2 as pb
from tests.unit.broker.pulsar.serving import Context
from tests.unit.broker.pulsar.test_connection import TOPIC, opened_client
from tests.unit.broker.pulsar.transacting import Ids, TransactionalClient
from tests.unit.broker.storage.disks import HeldDisk

EXCLUSIVE, SHARED = pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Shared
LOST = {"txnid_most_bits": 0, "txnid_least_bits": 99}


def with_transactions(
    folder: Path, test: Callable[[TransactionalClient, Context], Awaitable[None]]
) -> None:
    async def run() -> None:
        async with opened_client(folder) as (_, context):
            client = TransactionalClient(context)
            try:
                await client.producer()
                await test(client, context)
            finally:
                client.close()

    asyncio.run(run())


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
        assert await client.sees(b"a")
        ids, other = await client.begin(), await client.begin()
        await client.write(b"b", b"c", ids=ids)
        await client.write(b"d", ids=other)
        await client.write(b"e")
        await client.write(b"f", ids=ids)
        assert await client.sees()
        assert not (await client.end(ids)).HasField("error")
        assert await client.sees(b"b", b"c")
        assert not (await client.end(other, commit=False)).HasField("error")
        assert await client.sees(b"e", b"f")

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
        assert await client.sees(b"b")
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
        assert await client.sees()
        await client.end(kept[0], commit=False)
        await client.end(kept[1])
        assert await client.sees(b"b")

    with_transactions(folder, before)
    with_transactions(folder, after)


KINDS = [
    pytest.param(kind, id=pb.CommandSubscribe.SubType.Name(kind))
    for kind in (SHARED, pb.CommandSubscribe.Key_Shared)
]


def subscription_of(context: Context) -> PartitionSubscription:
    partition = context.topics.opened(TOPIC)
    assert partition is not None
    return partition.subscriptions["s"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_acknowledgement_takes_effect_with_the_commit(
    folder: Path, kind: pb.CommandSubscribe.SubType
) -> None:
    async def test(client: TransactionalClient, context: Context) -> None:
        await client.subscribe(kind)
        for value in (b"a", b"b"):
            await client.write(value)
        first, second = await client.received(2)
        ids = await client.begin()
        assert not (await client.acknowledge(first, ids=ids)).HasField("error")
        cursor = subscription_of(context).cursor
        assert cursor.mark_delete == -1
        # Held out of redelivery, whoever asks for it, and of another consumer's messages.
        await client.ask("CLOSE_CONSUMER", consumer_id=0)
        await client.subscribe(kind)
        assert await client.sees(b"b")
        await client.end(ids)
        assert cursor.mark_delete == 0
        assert subscription_of(context).delivered is cursor
        await client.acknowledge(second)
        assert cursor.mark_delete == 1
        assert await client.sees()

    with_transactions(folder, test)


@pytest.mark.parametrize("kind", [*KINDS, pytest.param(EXCLUSIVE, id="Exclusive")])
@pytest.mark.parametrize("anew", [False, True])
def test_an_abort_delivers_again(
    folder: Path, kind: pb.CommandSubscribe.SubType, *, anew: bool
) -> None:
    async def test(client: TransactionalClient, context: Context) -> None:
        await client.subscribe(kind)
        for value in (b"a", b"b", b"c"):
            await client.write(value)
        received = await client.received(3)
        ids = await client.begin()
        await client.acknowledge(received[1], ids=ids)
        if anew:
            await client.ask("CLOSE_CONSUMER", consumer_id=0)
            await client.subscribe(kind)
            assert await client.sees(b"a", b"c")
        await client.end(ids, commit=False)
        expected = [b"a", b"b", b"c"] if kind == EXCLUSIVE else [b"b"]
        assert await client.sees(*expected)
        await client.acknowledge(*received)
        assert subscription_of(context).cursor.mark_delete == 2

    with_transactions(folder, test)


def test_each_abort_counts_as_a_redelivery(folder: Path) -> None:
    async def test(client: TransactionalClient, _: Context) -> None:
        await client.subscribe(SHARED)
        await client.write(b"a")
        for count in range(3):
            (received,) = await client.received(1)
            assert received.redeliveries == count
            ids = await client.begin()
            await client.acknowledge(received, ids=ids)
            await client.end(ids, commit=False)

    with_transactions(folder, test)


def test_what_a_transaction_acknowledged_is_a_conflict_for_every_other(folder: Path) -> None:
    async def test(client: TransactionalClient, _: Context) -> None:
        await client.subscribe(SHARED)
        for value in (b"a", b"b", b"c"):
            await client.write(value)
        first, second, third = await client.received(3)
        ids, other = await client.begin(), await client.begin()
        await client.acknowledge(first, ids=ids)
        for again in (ids, other):
            answer = await client.acknowledge(second, first, ids=again)
            assert answer.error == pb.TransactionConflict
            assert {name: getattr(answer, name) for name in again} == again
        assert not (await client.acknowledge(second, ids=other)).HasField("error")
        assert not (await client.acknowledge(third)).HasField("error")
        assert (await client.acknowledge(third, ids=ids)).error == pb.TransactionConflict
        # Without a transaction it is acknowledged for good, whatever is decided.
        assert not (await client.acknowledge(first)).HasField("error")
        await client.end(ids, commit=False)
        await client.end(other, commit=False)
        assert await client.sees(b"b")
        answer = await client.acknowledge(second, ids=LOST)
        assert answer.error == pb.TransactionNotFound

    with_transactions(folder, test)


async def test_a_conflict_is_answered_when_what_it_is_with_is_on_disk(folder: Path) -> None:
    disk = HeldDisk()
    async with opened_client(folder, disk=disk) as (_, context):
        client = TransactionalClient(context)
        await client.producer()
        await client.subscribe(SHARED)
        await client.write(b"a")
        (received,) = await client.received(1)
        acked = {"consumer_id": 0, "message_id": [received.place]}
        acks = [
            encode(command(pb.BaseCommand.ACK, request_id=number, ack_type=0, **acked, **ids))
            for number, ids in enumerate([await client.begin(), await client.begin()])
        ]
        await client.client.silent_until_synced(disk, *acks)
        answers = [one.ackResponse for one in client.client.received()]
        assert [one.HasField("error") for one in answers] == [False, True]
        client.close()


def test_messages_of_a_batch_are_acknowledged_one_by_one(folder: Path) -> None:
    async def test(client: TransactionalClient, context: Context) -> None:
        await client.subscribe(SHARED)
        await client.write(b"a", b"b", b"c")
        received = await client.received(3)
        ids, other = await client.begin(), await client.begin()
        for index, transaction in enumerate((ids, other, ids)):
            answer = await client.acknowledge(received[index].alone(3), ids=transaction)
            assert not answer.HasField("error")
        answer = await client.acknowledge(received[1].alone(3), ids=ids)
        assert answer.error == pb.TransactionConflict
        await client.end(other, commit=False)
        assert await client.sees(b"b")
        cursor = subscription_of(context).cursor
        await client.end(ids)
        assert cursor.ack_set(0) == [0b010]
        await client.acknowledge(received[1].alone(3))
        assert cursor.mark_delete == 0

    with_transactions(folder, test)


def test_a_batch_of_which_the_rest_is_deleted_comes_again_after_an_abort(folder: Path) -> None:
    async def test(client: TransactionalClient, context: Context) -> None:
        await client.subscribe(SHARED)
        await client.write(b"a", b"b")
        received = await client.received(2)
        ids = await client.begin()
        await client.acknowledge(received[1].alone(2), ids=ids)
        subscription = subscription_of(context)
        context.topics.store.delete_messages(subscription.ledger, [(0, 0)])
        await client.ask("CLOSE_CONSUMER", consumer_id=0)
        await client.subscribe(SHARED)
        assert await client.sees()
        assert subscription.cursor.mark_delete == -1
        await client.end(ids, commit=False)
        assert await client.sees(b"b")

    with_transactions(folder, test)


def test_one_transaction_acknowledges_cumulatively_at_a_time(folder: Path) -> None:
    async def test(client: TransactionalClient, context: Context) -> None:
        await client.subscribe(EXCLUSIVE)
        for value in (b"a", b"b", b"c"):
            await client.write(value)
        received = await client.received(3)
        ids, other = await client.begin(), await client.begin()
        cumulative = {"ack_type": pb.CommandAck.Cumulative}

        async def acknowledge(index: int, transaction: Ids) -> pb.ServerError | None:
            answer = await client.acknowledge(received[index], ids=transaction, **cumulative)
            return answer.error if answer.HasField("error") else None

        assert await acknowledge(1, ids) is None
        assert await acknowledge(2, other) == pb.TransactionConflict
        assert await acknowledge(0, ids) == pb.TransactionConflict
        await client.end(ids, commit=False)
        assert await client.sees(b"a", b"b", b"c")
        assert await acknowledge(1, other) is None
        await client.end(other)
        assert subscription_of(context).cursor.mark_delete == 1
        ids = await client.begin()
        assert await acknowledge(1, ids) == pb.TransactionConflict

    with_transactions(folder, test)


def test_an_aborted_cumulative_acknowledgement_brings_nothing_twice_to_another_consumer(
    folder: Path,
) -> None:
    async def test(client: TransactionalClient, _: Context) -> None:
        await client.subscribe(EXCLUSIVE)
        await client.write(b"a")
        await client.write(b"b")
        received = await client.received(2)
        ids = await client.begin()
        await client.acknowledge(received[1], ids=ids, ack_type=pb.CommandAck.Cumulative)
        await client.ask("CLOSE_CONSUMER", consumer_id=0)
        await client.subscribe(EXCLUSIVE)
        assert await client.sees(b"a", b"b")
        await client.end(ids, commit=False)
        assert await client.sees()

    with_transactions(folder, test)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("commit", [True, False])
def test_a_restart_goes_on_with_what_was_acknowledged(
    folder: Path, kind: pb.CommandSubscribe.SubType, *, commit: bool
) -> None:
    kept: list[Ids] = []

    async def before(client: TransactionalClient, _: Context) -> None:
        await client.subscribe(kind)
        await client.write(b"a", b"b")
        await client.write(b"c")
        first, _second, third = await client.received(3)
        kept.append(await client.begin())
        await client.acknowledge(first.alone(2), third, ids=kept[0])

    async def after(client: TransactionalClient, context: Context) -> None:
        assert context.broker.transactions is not None
        await context.broker.transactions.transactions.load()
        await client.subscribe(kind)
        assert await client.sees(b"b")
        await client.end(kept[0], commit=commit)
        cursor = subscription_of(context).cursor
        assert cursor.ack_set(0) == ([0b10] if commit else [])
        assert cursor.is_acked(1) is commit
        again = [] if commit else [b"a", b"b", b"c"]
        assert await client.sees(*again)

    with_transactions(folder, before)
    with_transactions(folder, after)


def test_a_decision_that_was_cut_off_acknowledges_with_the_next_start(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def before(client: TransactionalClient, context: Context) -> None:
        await client.subscribe(SHARED)
        await client.write(b"a")
        ids = await client.begin()
        await client.write(b"b", ids=ids)
        await client.acknowledge(*await client.received(1), ids=ids)
        decided = asyncio.Event()

        async def cut_off(*_: object) -> None:
            decided.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(TransactionCoordinator, "_finish", cut_off)
        ending = asyncio.ensure_future(client.end(ids))
        async with asyncio.timeout(20):
            await decided.wait()
        ending.cancel()
        assert context.broker.transactions is not None
        await context.broker.transactions.transactions.close()
        monkeypatch.undo()

    async def after(client: TransactionalClient, context: Context) -> None:
        assert context.broker.transactions is not None
        await context.broker.transactions.transactions.load()
        await client.subscribe(SHARED)
        assert await client.sees(b"b")
        assert subscription_of(context).cursor.mark_delete == 0

    with_transactions(folder, before)
    with_transactions(folder, after)


def test_an_abort_that_was_cut_off_delivers_the_rest_again_with_the_next_start(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acknowledgements, "ACKS_IN_STEP", 1)

    async def before(client: TransactionalClient, context: Context) -> None:
        assert context.broker.transactions is not None
        transactions = context.broker.transactions.transactions
        await client.subscribe(SHARED)
        for value in (b"a", b"b", b"c"):
            await client.write(value)
        ids = await client.begin()
        await client.acknowledge(*await client.received(3), ids=ids)
        begin_abort = transactions.acknowledgements.begin_abort

        async def cut_off(transaction: Transaction) -> None:
            await begin_abort(transaction)
            await asyncio.Event().wait()

        monkeypatch.setattr(transactions.acknowledgements, "begin_abort", cut_off)
        transaction = transactions.find(f"pulsar/{ids['txnid_least_bits']}")
        assert transaction is not None
        ending = asyncio.ensure_future(transactions.abort(transaction))
        first, second = await client.received(2)
        assert [first.value, second.value] == [b"a", b"b"]
        await client.acknowledge(first)
        ending.cancel()
        await transactions.close()

    async def after(client: TransactionalClient, context: Context) -> None:
        assert context.broker.transactions is not None
        await context.broker.transactions.transactions.load()
        await client.subscribe(SHARED)
        assert await client.sees(b"b", b"c")

    with_transactions(folder, before)
    with_transactions(folder, after)
