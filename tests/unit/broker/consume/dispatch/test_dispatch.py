"""Delivery to consumers, over a real store and connections that only take notes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.broker.consume import (
    BacklogCounter,
    ClientConsumer,
    PartitionSubscription,
    SubscriptionType,
)
from router.broker.consume.dispatch import exclusive, individual
from router.broker.entries import ENTRY_FORMATS
from router.broker.storage import Ack, Hole, Store, StoreOptions
from router.broker.topics.topics import TopicOptions, Topics
from router.errors import (
    NotAllowedError,
    SubscriptionBusyError,
    SubscriptionLimitError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from router.model import Message, TopicName
from tests.unit.broker.consume.dispatch.bench import Bench, on_a_partition
from tests.unit.broker.storage.rig import until

pytestmark = pytest.mark.timeout(30)


async def test_exclusive_consumer_gets_all_in_order_when_it_has_permits(folder: Path) -> None:
    async with on_a_partition(folder) as bench:
        subscription = await bench.subscription()
        await bench.publish(5)
        consumer = bench.consumer(subscription, "a", SubscriptionType.EXCLUSIVE, permits=3)
        assert bench.notes.entries() == [0, 1, 2]
        subscription.flow(consumer, 100)
        await bench.publish(2)
        assert bench.notes.entries() == [0, 1, 2, 3, 4, 5, 6]


async def test_batch_takes_a_permit_for_each_message(folder: Path) -> None:
    async with on_a_partition(folder) as bench:
        subscription = await bench.subscription()
        await bench.publish(5, batch=3)
        consumer = bench.consumer(subscription, "a", SubscriptionType.EXCLUSIVE, permits=4)
        assert bench.notes.entries() == [0, 1]
        assert consumer.permits == -2
        subscription.flow(consumer, 3)
        assert bench.notes.entries() == [0, 1, 2]


async def test_exclusive_subscription_refuses_and_probes_when_it_has_a_consumer(
    folder: Path,
) -> None:
    async with on_a_partition(folder) as bench:
        subscription = await bench.subscription()
        bench.consumer(subscription, "a", SubscriptionType.EXCLUSIVE)
        with pytest.raises(SubscriptionBusyError, match="already connected"):
            bench.consumer(subscription, "b", SubscriptionType.EXCLUSIVE)
        with pytest.raises(SubscriptionBusyError, match="different type"):
            bench.consumer(subscription, "b", SubscriptionType.SHARED)
        assert bench.notes.probes == 1


async def test_unacknowledged_entries_come_again_when_an_exclusive_consumer_goes(
    folder: Path,
) -> None:
    async with on_a_partition(folder) as bench:
        subscription = await bench.subscription()
        await bench.publish(4)
        first = bench.consumer(subscription, "a", SubscriptionType.EXCLUSIVE, permits=9)
        subscription.acknowledge(first, [Ack(0), Ack(2)], None)
        subscription.detach(first)
        bench.consumer(subscription, "b", SubscriptionType.EXCLUSIVE, permits=9)
        assert bench.notes.entries("b") == [1, 3]


async def test_exclusive_redelivery_starts_over_without_counting(folder: Path) -> None:
    async with on_a_partition(folder) as bench:
        subscription = await bench.subscription()
        await bench.publish(3)
        consumer = bench.consumer(subscription, "a", SubscriptionType.EXCLUSIVE, permits=9)
        subscription.acknowledge(consumer, [Ack(0)], None)
        subscription.redeliver(consumer, [])
        assert bench.notes.got[3:] == [("a", 1, 0), ("a", 2, 0)]


async def test_shared_consumers_take_turns_and_stop_at_their_permits(folder: Path) -> None:
    async with on_a_partition(folder) as bench:
        subscription = await bench.subscription()
        bench.consumer(subscription, "a", SubscriptionType.SHARED, permits=100)
        bench.consumer(subscription, "b", SubscriptionType.SHARED, permits=2)
        await bench.publish(10)
        counts = Counter(name for name, _, _ in bench.notes.got)
        assert counts == {"a": 8, "b": 2}
        assert sorted(bench.notes.entries()) == list(range(10))


async def test_shared_consumers_of_lower_priority_number_come_first(folder: Path) -> None:
    async with on_a_partition(folder) as bench:
        subscription = await bench.subscription()
        bench.consumer(subscription, "late", SubscriptionType.SHARED, permits=9, priority=1)
        bench.consumer(subscription, "early", SubscriptionType.SHARED, permits=3, priority=0)
        await bench.publish(5)
        assert bench.notes.entries("early") == [0, 1, 2]
        assert bench.notes.entries("late") == [3, 4]


async def test_redeliveries_are_counted_when_a_shared_consumer_gives_back(folder: Path) -> None:
    async with on_a_partition(folder) as bench:
        subscription = await bench.subscription()
        await bench.publish(3)
        consumer = bench.consumer(subscription, "a", SubscriptionType.SHARED, permits=99)
        subscription.redeliver(consumer, [1])
        subscription.redeliver(consumer, [1, 77])
        subscription.redeliver(consumer, [])
        assert bench.notes.got[3:] == [
            ("a", 1, 1),
            ("a", 1, 2),
            ("a", 0, 1),
            ("a", 1, 3),
            ("a", 2, 1),
        ]


async def test_held_entries_go_to_the_others_uncounted_when_a_shared_consumer_goes(
    folder: Path,
) -> None:
    async with on_a_partition(folder) as bench:
        subscription = await bench.subscription()
        await bench.publish(4)
        first = bench.consumer(subscription, "a", SubscriptionType.SHARED, permits=9)
        second = bench.consumer(subscription, "b", SubscriptionType.SHARED, permits=9)
        subscription.acknowledge(second, [Ack(1)], None)
        subscription.detach(first)
        assert bench.notes.got[4:] == [("b", 0, 0), ("b", 2, 0), ("b", 3, 0)]


async def test_shared_delivery_pauses_when_a_consumer_holds_too_much(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(individual, "MAX_HELD", 2)
    async with on_a_partition(folder) as bench:
        subscription = await bench.subscription()
        await bench.publish(4)
        consumer = bench.consumer(subscription, "a", SubscriptionType.SHARED, permits=9)
        assert bench.notes.entries() == [0, 1]
        subscription.acknowledge(consumer, [Ack(0)], None)
        assert bench.notes.entries() == [0, 1, 2]


async def test_shared_delivery_pauses_when_all_together_hold_too_much(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(individual, "MAX_HELD_BY_ALL", 3)
    async with on_a_partition(folder) as bench:
        subscription = await bench.subscription()
        await bench.publish(6)
        first = bench.consumer(subscription, "a", SubscriptionType.SHARED, permits=2)
        second = bench.consumer(subscription, "b", SubscriptionType.SHARED, permits=9)
        assert bench.notes.entries() == [0, 1, 2]
        subscription.acknowledge(first, [Ack(0)], None)
        assert bench.notes.entries("b") == [2, 3]
        subscription.detach(first)  # what it held comes again, to the other one
        assert bench.notes.entries("b") == [2, 3, 1]
        subscription.acknowledge(second, [Ack(1), Ack(2), Ack(3)], None)
        assert bench.notes.entries("b") == [2, 3, 1, 4, 5]


async def test_redeliveries_are_counted_until_the_entry_is_acknowledged(folder: Path) -> None:
    async with on_a_partition(folder) as bench:
        subscription = await bench.subscription()
        await bench.publish(2)
        consumer = bench.consumer(subscription, "a", SubscriptionType.SHARED, permits=99)
        for count in (1, 2):
            subscription.redeliver(consumer, [0, 1])
            assert bench.notes.got[-2:] == [("a", 0, count), ("a", 1, count)]
        dispatcher = subscription.dispatcher
        assert isinstance(dispatcher, individual.Individual)
        subscription.acknowledge(consumer, [Ack(0)], None)
        assert dispatcher._pending.redelivered == {1: 2}
        subscription.acknowledge(consumer, [Ack(1, cumulative=True)], None)
        assert dispatcher._pending.redelivered == {}


async def test_position_beyond_the_end_is_the_end(folder: Path) -> None:
    async with on_a_partition(folder) as bench:
        subscription = await bench.subscription()
        await bench.publish(2)
        await subscription.reset_durably(10**6)
        bench.consumer(subscription, "a", SubscriptionType.EXCLUSIVE, permits=9)
        await bench.publish(2)
        assert bench.notes.entries() == [2, 3]


@pytest.mark.parametrize("durable", [False, True])
async def test_acknowledging_what_is_not_stored_yet_acknowledges_nothing(
    folder: Path, durable: bool
) -> None:
    async with on_a_partition(folder) as bench:
        subscription = bench.partition.read_from("r", 0)
        if durable:
            subscription = await bench.subscription()
        consumer = bench.consumer(subscription, "a", SubscriptionType.EXCLUSIVE, permits=9)
        for ack in (Ack(1), Ack(2, cumulative=True)):
            subscription.acknowledge(consumer, [ack], None)
        await bench.publish(3)
        assert bench.notes.entries() == [0, 1, 2]


async def test_delivery_pauses_until_the_connection_takes_more(folder: Path) -> None:
    async with on_a_partition(folder) as bench:
        subscription = await bench.subscription()
        await bench.publish(6)
        bench.notes.room = 2
        bench.consumer(subscription, "a", SubscriptionType.EXCLUSIVE, permits=9)
        assert bench.notes.entries() == [0, 1]
        bench.notes.drain(3)
        assert bench.notes.entries() == [0, 1, 2, 3, 4]


async def test_acknowledged_messages_of_a_batch_are_named_when_it_comes_again(folder: Path) -> None:
    async with on_a_partition(folder) as bench:
        subscription = await bench.subscription()
        await bench.publish(1, batch=4)
        consumer = bench.consumer(subscription, "a", SubscriptionType.SHARED, permits=99)
        subscription.acknowledge(consumer, [Ack(0, ack_set=(0b1101,))], None)
        subscription.redeliver(consumer, [0])
        assert bench.notes.got[1:] == [("a", 0, 1)]
        assert bench.notes.ack_sets == {0: [0b1101]}


async def test_failover_delivers_to_the_chosen_one_and_moves_on_when_it_goes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exclusive, "FAILOVER_DELAY_SECONDS", 0.01)
    async with on_a_partition(folder) as bench:
        subscription = await bench.subscription()
        await bench.publish(2)
        # On the ring of this topic, which has no partitions, "b" comes before "a".
        second = bench.consumer(subscription, "a", SubscriptionType.FAILOVER, permits=9)
        subscription.acknowledge(second, [Ack(0)], None)
        first = bench.consumer(subscription, "b", SubscriptionType.FAILOVER, permits=9)
        await bench.publish(1)
        await until(lambda: len(bench.notes.got) == 4)
        assert bench.notes.got == [("a", 0, 0), ("a", 1, 0), ("b", 1, 0), ("b", 2, 0)]
        subscription.detach(first)
        assert bench.notes.got[4:] == [("a", 1, 0), ("a", 2, 0)]
        assert bench.notes.active == [("a", True), ("a", False), ("b", True), ("a", True)]


async def test_failover_spreads_partitions_over_the_best_priority_by_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exclusive, "FAILOVER_DELAY_SECONDS", 0.01)

    async def active(topics: Topics, partition: int) -> str:
        bench = Bench(await topics.open(f"p-partition-{partition}", create=False))
        subscription = await bench.subscription()
        for name, priority in [("z", 0), ("y", 0), ("a", 1)]:
            bench.consumer(
                subscription, name, SubscriptionType.FAILOVER, permits=9, priority=priority
            )
        dispatcher = subscription.dispatcher
        assert isinstance(dispatcher, exclusive.Failover)
        await until(lambda: dispatcher.active is not None)
        await bench.publish(1)
        return bench.notes.got[-1][0]

    store = await Store.open(folder, StoreOptions(), lambda: 1_000.0)
    topics = Topics(store, TopicOptions(), lambda: 1_000.0, ENTRY_FORMATS)
    await topics.create(TopicName("public", "default", "p"), 3)
    assert [await active(topics, n) for n in range(3)] == ["y", "z", "y"]
    await store.close()


async def test_acknowledging_what_is_not_stored_changes_nothing(folder: Path) -> None:
    async with on_a_partition(folder) as bench:
        subscription = await bench.subscription()
        await bench.publish(2)
        consumer = bench.consumer(subscription, "a", SubscriptionType.EXCLUSIVE, permits=9)
        subscription.acknowledge(consumer, [Ack(5, cumulative=True), Ack(2)], None)
        assert subscription.cursor.mark_delete == -1


async def test_consumers_are_let_go_when_the_subscription_is_reset(folder: Path) -> None:
    async with on_a_partition(folder) as bench:
        subscription = await bench.subscription()
        await bench.publish(3)
        consumer = bench.consumer(subscription, "a", SubscriptionType.EXCLUSIVE, permits=9)
        subscription.acknowledge(consumer, [Ack(2, cumulative=True)], None)
        await subscription.reset_durably(1)
        assert bench.notes.closed == ["a"]
        bench.consumer(subscription, "a", SubscriptionType.EXCLUSIVE, permits=9)
        assert bench.notes.entries() == [0, 1, 2, 1, 2]


async def test_subscription_that_is_not_durable_ends_with_its_last_consumer(folder: Path) -> None:
    async with on_a_partition(folder) as bench:
        await bench.publish(3)
        subscription = bench.partition.read_from("r", 1)
        consumer = bench.consumer(subscription, "a", SubscriptionType.EXCLUSIVE, permits=9)
        assert bench.notes.entries() == [1, 2]
        with pytest.raises(NotAllowedError):
            await bench.partition.subscribe("r", 0)
        subscription.detach(consumer)
        assert "r" not in bench.partition.subscriptions


async def test_durable_subscription_can_not_be_read_from(folder: Path) -> None:
    async with on_a_partition(folder) as bench:
        await bench.subscription("d")
        with pytest.raises(NotAllowedError, match="Durable"):
            bench.partition.read_from("d", 0)


async def test_subscriptions_are_limited(folder: Path) -> None:
    async with on_a_partition(folder) as bench:
        together = [bench.partition.subscribe(f"s{n}", 0) for n in range(3)]
        await asyncio.gather(*together)
        with pytest.raises(SubscriptionLimitError):
            await bench.partition.subscribe("s3", 0)
        with pytest.raises(SubscriptionLimitError):
            bench.partition.read_from("s4", 0)


async def test_one_subscription_is_made_when_two_ask_at_once(folder: Path) -> None:
    async with on_a_partition(folder) as bench:
        first, second = await asyncio.gather(
            bench.partition.subscribe("s", 0), bench.partition.subscribe("s", 5)
        )
        assert first is second


async def settled(subscription: PartitionSubscription) -> None:
    done = asyncio.Event()
    subscription.when_settled(done.set)
    await asyncio.wait_for(done.wait(), 5)


@asynccontextmanager
async def reopened(folder: Path, entries: int) -> AsyncIterator[Bench]:
    """Open a partition whose entries are on disk only."""
    async with on_a_partition(folder) as bench:
        await bench.subscription()
        await bench.publish(entries)
    async with on_a_partition(folder, cache=0) as bench:
        yield bench


async def test_entries_are_read_from_disk_when_memory_does_not_have_them(folder: Path) -> None:
    async with reopened(folder, 700) as bench:
        subscription = await bench.subscription()
        assert bench.partition.ledger.cached(0) is None
        bench.consumer(subscription, "a", SubscriptionType.EXCLUSIVE, permits=10_000)
        assert bench.notes.got == []
        await settled(subscription)
        assert bench.notes.entries() == list(range(700))


async def test_given_back_entries_are_read_from_disk_before_new_ones(folder: Path) -> None:
    async with reopened(folder, 20) as bench:
        subscription = await bench.subscription()
        consumer = bench.consumer(subscription, "a", SubscriptionType.SHARED, permits=10)
        await settled(subscription)
        subscription.redeliver(consumer, [3, 8])
        subscription.flow(consumer, 4)
        await settled(subscription)
        assert bench.notes.got[10:] == [("a", 3, 1), ("a", 8, 1), ("a", 10, 0), ("a", 11, 0)]


def damage(folder: Path, needle: int = 0) -> None:
    """Change one byte of the only segment's record number `needle` (records are equally large)."""
    (segment,) = folder.rglob("*.seg")
    data = bytearray(segment.read_bytes())
    data[len(data) * (2 * needle + 1) // 40] ^= 0xFF
    segment.write_bytes(data)


async def test_delivery_stops_at_damage_and_says_so_once_all_before_it_is_acknowledged(
    folder: Path,
) -> None:
    async with on_a_partition(folder) as bench:
        await bench.subscription()
        await bench.publish(20)
    damage(folder, 10)
    async with on_a_partition(folder, cache=0) as bench:
        subscription = await bench.subscription()
        consumer = bench.consumer(subscription, "a", SubscriptionType.EXCLUSIVE, permits=100)
        await settled(subscription)
        delivered = bench.notes.entries()
        assert delivered == list(range(len(delivered)))
        assert 5 < len(delivered) < 20
        assert subscription.failure is None
        assert subscription.end == len(delivered)
        subscription.acknowledge(consumer, [Ack(delivered[-1], cumulative=True)], None)
        assert "damaged" in str(subscription.failure)


async def test_reader_of_what_retention_removed_begins_with_what_is_left(folder: Path) -> None:

    small: dict[str, Any] = {"segment": 1_000, "retention_ms": 1_000, "cache": 0}
    async with on_a_partition(folder, **small) as bench:
        await bench.publish(40)
    async with on_a_partition(folder, **small) as bench:
        await bench.publish(1)
        await bench.partition.store.retain(10_000_000)
        first = bench.partition.ledger.first_entry
        assert first > 0
        reader = bench.partition.read_from("r", 0)
        bench.consumer(reader, "a", SubscriptionType.EXCLUSIVE, permits=100)
        await settled(reader)
        assert bench.notes.entries() == list(range(first, 41))
        assert bench.partition.context.tally.damaged == 0
        assert await BacklogCounter().backlog(bench.partition.visible, reader.cursor) == 41 - first


async def test_gap_in_the_middle_is_passed_over_and_counted_as_damage(folder: Path) -> None:
    async with on_a_partition(folder) as bench:
        await bench.publish(10)
        reader = bench.partition.read_from("r", 0)
        bench.partition.ledger.holes = [Hole(3, 5, "damage")]
        reader.skip(3, 6)
        bench.consumer(reader, "a", SubscriptionType.SHARED, permits=100)
        assert bench.notes.entries() == [0, 1, 2, 6, 7, 8, 9]
        assert bench.partition.context.tally.damaged == 3


async def test_reading_is_tried_again_when_files_can_not_be_opened(folder: Path) -> None:
    def hide(suffix: str, hidden: str) -> None:
        (segment,) = folder.rglob(f"*{suffix}")
        segment.rename(segment.with_suffix(hidden))

    async with reopened(folder, 20) as bench:
        hide(".seg", ".hidden")
        subscription = await bench.subscription()
        consumer = bench.consumer(subscription, "a", SubscriptionType.EXCLUSIVE, permits=100)
        await settled(subscription)
        assert subscription.failure is not None
        hide(".hidden", ".seg")
        subscription.redeliver(consumer, [])
        await settled(subscription)
        assert bench.notes.entries() == list(range(20))


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 4)),
        st.tuples(st.just("flow"), st.integers(0, 2), st.integers(1, 5)),
        st.tuples(st.just("ack"), st.integers(0, 30)),
        st.tuples(st.just("leave"), st.integers(0, 2)),
        st.tuples(st.just("give back"), st.integers(0, 2)),
    ),
    max_size=30,
)


@pytest.mark.slow
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kind=st.sampled_from(list(SubscriptionType)), actions=ACTIONS)
def test_nothing_is_lost_whatever_consumers_do(
    tmp_path_factory: pytest.TempPathFactory, kind: SubscriptionType, actions: list[tuple[Any, ...]]
) -> None:
    """In the end a consumer with permits has every entry that is not acknowledged."""

    async def test() -> None:
        async with on_a_partition(tmp_path_factory.mktemp("law")) as bench:
            subscription = await bench.subscription()
            here: dict[int, ClientConsumer] = {}
            published, acked = 0, set()
            for what, *values in actions:
                if what == "publish":
                    await bench.publish(values[0])
                    published += values[0]
                elif what == "ack" and here and values[0] in bench.notes.entries():
                    subscription.acknowledge(next(iter(here.values())), [Ack(values[0])], None)
                    acked.add(values[0])
                elif what == "flow":
                    who = 0 if kind is SubscriptionType.EXCLUSIVE else values[0]
                    if who not in here:
                        here[who] = bench.consumer(subscription, f"c{who}", kind)
                    subscription.flow(here[who], values[1])
                elif what == "leave" and values[0] in here:
                    subscription.detach(here.pop(values[0]))
                elif what == "give back" and values[0] in here:
                    subscription.redeliver(here[values[0]], [])
            for consumer in here.values():
                subscription.detach(consumer)
            before = len(bench.notes.got)
            bench.consumer(subscription, "last", kind, permits=10_000)
            await settled(subscription)
            again = [entry for _, entry, _ in bench.notes.got[before:]]
            assert again == sorted(set(range(published)) - acked)

    asyncio.run(test())


async def test_topic_name_of_a_partition_is_its_own(folder: Path) -> None:
    store = await Store.open(folder, StoreOptions(), lambda: 1_000.0)
    topics = Topics(store, TopicOptions(), lambda: 1_000.0, ENTRY_FORMATS)
    await topics.create(TopicName("public", "default", "p"), 2)
    assert topics.opened("p-partition-1") is not None
    with pytest.raises(NotAllowedError):
        topics.opened("p")
    await store.close()


@pytest.mark.parametrize("kind", list(SubscriptionType))
async def test_consumer_that_was_let_go_gets_nothing_when_its_connection_drains(
    folder: Path, kind: SubscriptionType
) -> None:
    async with on_a_partition(folder) as bench:
        subscription = await bench.subscription()
        bench.notes.room = 2
        bench.consumer(subscription, "a", kind, permits=100)
        later = 2_000_000 if kind.individual else None
        await bench.publish(2)
        await bench.publish(4, messages=[Message(b"v", deliver_at=later)])
        await bench.publish(6)
        before = len(bench.notes.got)
        await subscription.reset_durably(0)
        assert bench.notes.closed == ["a"]
        bench.notes.drain(100)
        await asyncio.sleep(0)
        assert len(bench.notes.got) == before


async def test_subscription_that_is_gone_takes_no_consumer(folder: Path) -> None:
    async with on_a_partition(folder) as bench:
        subscription = await bench.subscription()
        await bench.partition.delete(subscription)
        with pytest.raises(SubscriptionNotFoundError):
            bench.consumer(subscription, "a", SubscriptionType.SHARED)
        bench.partition.close()
        with pytest.raises(TopicNotFoundError):
            bench.partition.read_from("r", 0)
