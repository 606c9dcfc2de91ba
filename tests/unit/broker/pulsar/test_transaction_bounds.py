"""What transactions hold has bounds, and is of nothing that is gone."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from router.broker.consume.cursor.pending_acks import PendingAcks
from router.broker.consume.dispatch.shared import Shared
from router.broker.storage import CommittedPosition, ValueChange, ValueOperation
from router.broker.transactions import (
    Transaction,
    TransactionalProducers,
    TransactionCalls,
    TransactionError,
    acknowledgements,
    coordinator,
)
from router.model import TopicName
from router.wire.pulsar import MAX_BATCH
from router.wire.pulsar import pulsar_pb2 as pb
from tests.unit.broker.pulsar.serving import Context
from tests.unit.broker.pulsar.test_connection import TOPIC
from tests.unit.broker.pulsar.test_transactions import (
    EXCLUSIVE,
    SHARED,
    subscription_of,
    with_transactions,
)
from tests.unit.broker.pulsar.transacting import Ids, Received, TransactionalClient


def producers_of(context: Context) -> TransactionalProducers:
    assert context.broker.transactions is not None
    return context.broker.transactions


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("cumulative", [False, True])
def test_acknowledgements_of_a_deleted_subscription_are_not_those_of_a_later_one(
    folder: Path, *, restarts: bool, cumulative: bool
) -> None:
    kept: list[Ids] = []
    how = {"ack_type": pb.CommandAck.Cumulative} if cumulative else {}

    async def before(client: TransactionalClient, _: Context) -> None:
        for value in (b"a", b"b"):
            await client.write(value)
        for order in (1, 0):
            await client.subscribe(EXCLUSIVE)
            received = await client.received(2)
            kept.append(await client.begin())
            await client.acknowledge(received[order], ids=kept[-1], **how)
            if len(kept) == 1:
                await client.ask("UNSUBSCRIBE", consumer_id=0)

    async def after(client: TransactionalClient, context: Context) -> None:
        if restarts:
            await producers_of(context).transactions.load()
        assert not (await client.end(kept[0])).HasField("error")
        subscription = subscription_of(context)
        assert subscription.cursor.mark_delete == -1
        assert not subscription.cursor.is_acked(1)
        assert not (await client.end(kept[1])).HasField("error")
        assert subscription.cursor.mark_delete == 0
        assert subscription.delivered is subscription.cursor

    async def both(client: TransactionalClient, context: Context) -> None:
        await before(client, context)
        if not restarts:
            await after(client, context)

    with_transactions(folder, both)
    if restarts:
        with_transactions(folder, after)


def test_what_a_client_says_of_the_size_of_a_batch_takes_no_memory(folder: Path) -> None:
    async def test(client: TransactionalClient, context: Context) -> None:
        await client.subscribe(SHARED)
        await client.write(b"a", b"b")
        received = await client.received(2)
        ids = await client.begin()
        first = received[0].alone(2)
        for size, refused in ((MAX_BATCH + 1, True), (MAX_BATCH, False)):
            first.place.batch_size = size
            answer = await client.acknowledge(first, ids=ids)
            assert answer.HasField("error") is refused
        answer = await client.acknowledge(received[1].alone(2), ids=ids)
        assert not answer.HasField("error")
        owner = f"transaction/pulsar/{ids['txnid_least_bits']}"
        assert max(map(len, context.topics.store.values.of(owner).values())) < 100

    with_transactions(folder, test)


def test_what_a_power_cut_took_is_of_no_transaction_when_its_numbers_are_given_out_again(
    folder: Path,
) -> None:
    """As a power cut in relaxed mode leaves it: the metadata knows more than the journal."""
    kept: list[Ids] = []

    async def before(client: TransactionalClient, context: Context) -> None:
        await client.subscribe(SHARED)
        await client.write(b"a")
        kept.extend([await client.begin(), await client.begin()])
        await client.acknowledge(*await client.received(1), ids=kept[0])
        await client.write(b"b", ids=kept[1])
        subscription, store = subscription_of(context), context.topics.store
        owner, other = (f"transaction/pulsar/{ids['txnid_least_bits']}" for ids in kept)
        ledger, values = subscription.ledger.id, dict(store.values.of(owner))
        (acked,) = (key for key in values if key.startswith("a/"))
        lost, reach = acked.replace("/0/s", "/3/s"), acked.replace("a/", "c/").replace("/0/s", "/s")
        last = struct.pack(">QQ", 3, 1)
        for change in (
            ValueChange(ValueOperation.PUT, owner, lost, values[acked]),
            ValueChange(ValueOperation.PUT, owner, reach, b"3"),
            ValueChange(ValueOperation.PUT, other, f"r/{ledger}/1", last),
            ValueChange(ValueOperation.PUT, other, f"r/{ledger}/3", last),
        ):
            store.change_value(change)

    async def between(client: TransactionalClient, context: Context) -> None:
        await producers_of(context).transactions.load()
        for value in (b"c", b"d", b"e"):
            await client.write(value)

    async def after(client: TransactionalClient, context: Context) -> None:
        await producers_of(context).transactions.load()
        await client.subscribe(SHARED)
        await client.end(kept[1], commit=False)
        assert await client.sees(b"c", b"d", b"e")
        await client.end(kept[0])
        cursor = subscription_of(context).cursor
        assert [cursor.is_acked(entry) for entry in range(5)] == [True, True, False, False, False]

    for part in (before, between, after):
        with_transactions(folder, part)


def test_nothing_is_kept_of_a_transaction_that_is_decided(folder: Path) -> None:
    async def test(client: TransactionalClient, context: Context) -> None:
        await client.subscribe(SHARED)
        await client.write(b"a")
        (received,) = await client.received(1)
        ids = await client.begin()
        await client.acknowledge(received, ids=ids)
        await client.acknowledge(received)
        gone = TOPIC.removesuffix("t") + "gone"
        await context.topics.create(TopicName.parse(gone))
        await client.producer(gone, 1)
        await client.write(b"b", ids=ids, number=1)
        await context.topics.delete(TopicName.parse(gone))
        transactions = producers_of(context).transactions
        await client.end(ids, commit=False)
        assert not transactions._undecided
        dispatcher = subscription_of(context).dispatcher
        assert isinstance(dispatcher, Shared)
        assert not dispatcher._pending.redelivered

    with_transactions(folder, test)


def test_one_principal_leaves_transactions_to_the_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "MAX_OPEN", 8)

    async def before(_: TransactionalClient, context: Context) -> None:
        transactions = producers_of(context).transactions
        for key in ("pulsar/1", "kafka/1", "kafka/2", "kafka/3"):
            transactions.begin(key, 60_000, "a")
        await context.topics.store.synced()

    async def after(client: TransactionalClient, context: Context) -> None:
        transactions = producers_of(context).transactions
        await transactions.load()
        with pytest.raises(TransactionError, match="too many transactions are open"):
            transactions.begin("pulsar/2", 60_000, "a")
        producers = producers_of(context)
        current = await producers.begin_producer("id", "a", 60_000)
        with pytest.raises(TransactionError, match="too many transactions are open"):
            producers.begun(producers.check("id", "a", current))
        transactions.begin("pulsar/3", 60_000, "b")
        for _ in range(3):
            await client.begin()  # of no principal
        for one in list(transactions.open):
            await transactions.abort(one)
        transactions.begin("pulsar/2", 60_000, "a")

    with_transactions(folder, before)
    with_transactions(folder, after)


@pytest.mark.parametrize("restarts", [False, True])
def test_what_the_parts_of_open_transactions_take_is_bounded(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, restarts: bool
) -> None:
    """Of one principal, and of all; what is decided takes nothing."""
    monkeypatch.setattr(coordinator, "MAX_BYTES", 16_000)

    async def before(client: TransactionalClient, context: Context) -> None:
        await client.write(b"a")
        transactions = producers_of(context).transactions
        for owner in "abcd":
            transactions.begin(f"pulsar/{owner}", 60_000, owner)
        fill(context, "a")
        await context.topics.store.synced()
        if not restarts:
            await after(client, context)

    async def after(client: TransactionalClient, context: Context) -> None:
        transactions = producers_of(context).transactions
        if restarts:
            await transactions.load()
        another = transactions.begin("pulsar/another", 60_000, "a")
        with pytest.raises(TransactionError, match="too many bytes"):
            add_position(context, another)
        for owner in "bcd":
            fill(context, owner)
        await client.subscribe(SHARED)
        (received,) = await client.received(1)
        ids = await client.begin()
        refused: list[dict[str, Any]] = [{}, {"ack_type": pb.CommandAck.Cumulative}]
        for how in refused:
            answer = await client.acknowledge(received, ids=ids, **how)
            assert answer.error == pb.NotAllowedError
        assert (await client.write(b"b", ids=ids)).error == pb.NotAllowedError
        for owner in "ab":
            full = transactions.find(f"pulsar/{owner}")
            assert full is not None
            await transactions.abort(full)
        add_position(context, another)
        assert not (await client.acknowledge(received, ids=ids)).HasField("error")

    with_transactions(folder, before)
    if restarts:
        with_transactions(folder, after)


def add_position(context: Context, to: Transaction, group: str = "g") -> None:
    partition = context.topics.opened(TOPIC)
    assert partition is not None
    commit = CommittedPosition(0, 0, "m" * 100, 0)
    producers_of(context).transactions.set_position(to, partition.ledger, group, commit)


def fill(context: Context, key: str) -> None:
    """Add parts until no more may be added of the owner; what replaces one takes nothing."""
    found = producers_of(context).transactions.find(f"pulsar/{key}")
    assert found is not None

    def add_all() -> None:
        for number in range(100):
            size = found.size_bytes
            add_position(context, found, f"g{number // 2}")
            assert (found.size_bytes > size) is (number % 2 == 0)

    with pytest.raises(TransactionError, match="too many bytes"):
        add_all()


@pytest.mark.parametrize("kind", [SHARED, pb.CommandSubscribe.Key_Shared])
def test_an_abort_delivers_nothing_before_its_time(
    folder: Path, kind: pb.CommandSubscribe.SubType
) -> None:
    async def test(client: TransactionalClient, _: Context) -> None:
        await client.subscribe(kind)
        await client.write(b"now")
        (received,) = await client.received(1)
        await client.write(b"later", deliver_at=2_000_000)
        later = replace(received, place=pb.MessageIdData())
        later.place.CopyFrom(received.place)
        later.place.entryId += 1
        ids = await client.begin()
        assert not (await client.acknowledge(later, ids=ids)).HasField("error")
        await client.end(ids, commit=False)
        assert await client.sees()

    with_transactions(folder, test)


def test_administrators_see_what_is_acknowledged(folder: Path) -> None:
    async def test(client: TransactionalClient, context: Context) -> None:
        for value in (b"a", b"b", b"c"):
            await client.write(value)
        await client.subscribe(EXCLUSIVE)
        received = await client.received(3)
        calls = TransactionCalls(context.topics, producers_of(context))
        shown = {"subscription": "s", "topic": TOPIC, "partition": 0}
        ids = await client.begin()
        for one in received[:2]:
            await client.acknowledge(one, ids=ids)
        (found,) = (await calls.transactions())["transactions"]
        described = await calls.transaction(found["id"])
        assert described["acknowledged"] == [shown | {"entries": 2, "through": None}]
        assert not (await client.end(ids, commit=False)).HasField("error")
        ids = await client.begin()
        await client.acknowledge(received[2], ids=ids, ack_type=pb.CommandAck.Cumulative)
        (found,) = (await calls.transactions())["transactions"]
        described = await calls.transaction(found["id"])
        assert described["acknowledged"] == [shown | {"entries": 0, "through": 2}]

    with_transactions(folder, test)


def test_a_commit_of_many_acknowledgements_leaves_time_for_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acknowledgements, "ACKS_IN_STEP", 4)

    async def test(client: TransactionalClient, context: Context) -> None:
        await client.subscribe(SHARED)
        for number in range(20):
            await client.write(b"%d" % number)
        cursor, reached = subscription_of(context).cursor, [-1]
        async for _ in decide(client, context, await client.received(20), commit=True):
            if cursor.mark_delete != reached[-1]:
                reached.append(cursor.mark_delete)
        assert reached == [-1, 3, 7, 11, 15, 19]
        assert subscription_of(context).delivered is cursor
        assert await client.sees()

    with_transactions(folder, test)


@pytest.mark.parametrize("kind", [SHARED, pb.CommandSubscribe.Key_Shared, EXCLUSIVE])
def test_an_abort_of_many_acknowledgements_leaves_time_for_others_and_keeps_their_order(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kind: pb.CommandSubscribe.SubType
) -> None:
    monkeypatch.setattr(acknowledgements, "ACKS_IN_STEP", 4)

    async def test(client: TransactionalClient, context: Context) -> None:
        await client.subscribe(kind, permits=20)
        for number in range(21):
            await client.write(b"%d" % number)
        steps = {20}
        async for held in decide(client, context, await client.received(20), commit=False):
            if steps == {20} and held < 20:
                client.permit(1_000)  # what is new could come now
            steps.add(held)
        assert steps == {0, 4, 8, 12, 16, 20}
        assert subscription_of(context).delivered is subscription_of(context).cursor
        assert await client.sees(*(b"%d" % number for number in range(21)))

    with_transactions(folder, test)


async def decide(
    client: TransactionalClient, context: Context, received: list[Received], *, commit: bool
) -> AsyncIterator[int]:
    """Decide on the acknowledgements of entries; yield how many are held, in each turn."""
    ids = await client.begin()
    await client.acknowledge(*reversed(received), ids=ids)
    transactions = producers_of(context).transactions
    found = transactions.find(f"pulsar/{ids['txnid_least_bits']}")
    assert found is not None
    pending = subscription_of(context).delivered
    assert isinstance(pending, PendingAcks)
    deciding = asyncio.create_task(transactions.decide(found, commit=commit))
    while not deciding.done():
        await asyncio.sleep(0)
        yield len(pending.held)
    await deciding
