"""Whatever publishers and consumers do, delivery is what a simple model of it says.

The model knows what is stored, what is acknowledged and who was sent what, and nothing of cursors,
dispatchers or disks. Each thing that a connection is told is checked against it as it was told, and
after every step nothing may be left that could have been sent.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast
from unittest import TestCase

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from router.broker.consume import (
    ClientConsumer,
    KeyPolicy,
    PartitionSubscription,
    SubscriptionType,
)
from router.broker.consume.dispatch import dispatcher, exclusive
from router.broker.consume.membership.hashing import murmur3, slot_of_hash
from router.broker.consume.membership.key_slots import Ring
from router.broker.entries import ENTRY_FORMATS
from router.broker.storage import PULSAR_FORMAT, Ack, Entry, Store, StoreOptions, bits, words
from router.broker.topics.topics import TopicOptions, Topics
from router.model import Message
from router.wire.pulsar import pack
from tests.processes import ManualClock

pytestmark = [pytest.mark.slow, pytest.mark.no_cover]

KEYS = (b"a", b"b", b"c", b"d")
NAMES = ("n", "m", "l", "k")


class Observer(NamedTuple):
    """What a connection was told: an entry for a consumer, or whether that is the active one."""

    consumer: ClientConsumer
    entry: int = -1
    redeliveries: int = 0
    left: int = 0
    active: bool | None = None


class Wire:
    """A connection of all consumers that notes what it is told, in order."""

    entry_format = PULSAR_FORMAT

    def __init__(self) -> None:
        self.told: list[Observer] = []
        self.room = True
        self._waiting: dict[Callable[[], None], None] = {}

    @property
    def writable(self) -> bool:
        return self.room

    def when_writable(self, resume: Callable[[], None]) -> None:
        self._waiting[resume] = None

    def open(self) -> None:
        self.room = True
        waiting, self._waiting = self._waiting, {}
        for resume in waiting:
            resume()

    def deliver(
        self,
        consumer: ClientConsumer,
        entry: Entry,
        redeliveries: int,
        ack_set: Sequence[int],
    ) -> None:
        assert self.room, "sent to a connection that takes nothing"
        self.told.append(Observer(consumer, entry.entry_id, redeliveries, bits(ack_set)))

    def activity_changed(self, consumer: ClientConsumer, active: bool) -> None:
        self.told.append(Observer(consumer, active=active))

    def prepare(self, ledger_id: int, entries: Sequence[Entry]) -> asyncio.Future[Any] | None:
        return None

    def consumer_closed(self, consumer: ClientConsumer) -> None:
        raise AssertionError("nobody seeks here")

    def reached_end(self, consumer: ClientConsumer) -> None:
        raise AssertionError("nothing is terminated here")

    def probe(self, *, soon: bool = False) -> None:
        """Take note of nothing."""


@dataclass
class Stored:
    """An entry as it was published, and what became of it."""

    key: bytes
    messages: int
    due_ms: int
    # The messages not acknowledged yet, as bits.
    left: int
    # The messages that were deleted, as bits.
    deleted: int = 0
    holder: ClientConsumer | None = None
    redeliveries: int = 0
    # Whether its time had come when it was first sent, or would have been.
    late: bool = False

    @property
    def live(self) -> int:
        """The messages that are neither acknowledged nor deleted, as bits."""
        return self.left & ~self.deleted


@dataclass
class Model:
    """What is stored, and what consumers are owed."""

    kind: SubscriptionType
    now_ms: Callable[[], int]
    entries: list[Stored] = field(default_factory=list)
    permits: dict[ClientConsumer, int] = field(default_factory=dict)
    active: ClientConsumer | None = None
    # An active consumer has been sent all before this that it did not acknowledge.
    position: int = 0
    in_order: bool = True
    # Whose a key is; the laws of it are tested by themselves.
    ring: Ring = field(default_factory=Ring)

    @property
    def shared(self) -> bool:
        return self.kind.individual

    def open_entries(self) -> Iterator[tuple[int, Stored]]:
        """Yield what is to be sent, and what a consumer holds although it was deleted since."""
        entries = enumerate(self.entries)
        return ((n, e) for n, e in entries if e.live or (e.left and e.holder is not None))

    def due(self, entry: Stored) -> bool:
        return not self.shared or entry.due_ms <= self.now_ms()

    def held_by(self, consumer: ClientConsumer) -> list[int]:
        return [n for n, entry in self.open_entries() if entry.holder is consumer]

    def sent(self, told: Observer) -> None:
        """Check what was sent, and take note of it."""
        entry = self.entries[told.entry]
        whole = (1 << entry.messages) - 1
        assert self.permits[told.consumer] > 0, "sent without permits"
        assert entry.live, "acknowledged or deleted, and sent again"
        assert (told.left or whole) == entry.live
        assert told.redeliveries == entry.redeliveries
        assert self.due(entry), "sent before its time"
        self.permits[told.consumer] -= entry.messages
        if self.shared:
            assert entry.holder is None, "sent to two"
            if self.kind is SubscriptionType.KEY_SHARED:
                assert told.consumer is self.owner(entry), "sent to one whose key it is not"
                if self.in_order:
                    self._check_order(told, entry)
            entry.holder = told.consumer
        else:
            assert told.consumer is self.active, "sent to one that is not active"
            assert told.entry == self._next_in_order(), "out of order"
            self.position = told.entry + 1

    def _check_order(self, told: Observer, entry: Stored) -> None:
        for n, other in self.open_entries():
            if other.key == entry.key and other.holder is not None:
                assert other.holder is told.consumer, "two consumers have the same key"
            # What is delayed comes when it comes, and is no part of the order.
            if other.key == entry.key and n < told.entry and not other.late and not entry.late:
                assert other.holder is not None, "overtaken by one of the same key"

    def _next_in_order(self) -> int | None:
        return next((n for n, _ in self.open_entries() if n >= self.position), None)

    def changed(self, told: Observer) -> None:
        """Take note of who is active."""
        self.active = told.consumer if told.active else None
        self.position = 0

    def check_nothing_is_left(self) -> None:
        """Check that all was sent that could be."""
        able = {consumer for consumer, permits in self.permits.items() if permits > 0}
        if not self.shared:
            if self.active in able:
                assert self._next_in_order() is None, "an entry was left"
            return
        waiting = [e for _, e in self.open_entries() if e.holder is None and self.due(e)]
        if self.kind is SubscriptionType.SHARED:
            assert not (able and waiting), "an entry was left"
        else:
            for entry in waiting:
                owner = self.owner(entry)
                assert owner not in able or self._is_held_up(entry.key), "an entry was left"

    def _is_held_up(self, key: bytes) -> bool:
        """Tell whether another consumer than the one whose the key is holds some of it."""
        return self.in_order and any(
            entry.holder is not self.owner(entry)
            for _, entry in self.open_entries()
            if entry.key == key and entry.holder is not None
        )

    def owner(self, entry: Stored) -> ClientConsumer | None:
        return self.ring.owner(slot_of_hash(murmur3(entry.key)))


class Delivery(RuleBasedStateMachine):
    """One subscription of one partition, and up to four consumers."""

    kind: SubscriptionType
    keys = KeyPolicy()

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp())
        self.clock = ManualClock()
        self.model = Model(self.kind, lambda: int(self.clock() * 1000))
        self.model.in_order = not self.keys.out_of_order
        self.wire = Wire()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(exclusive, "FAILOVER_DELAY_SECONDS", 0)
        # So that runs of deleted messages are passed over without being read.
        self.patch.setattr(dispatcher, "MAX_READ_ENTRIES", 2)
        self.store: Store | None = None

    def wait(self, work: Coroutine[Any, Any, None]) -> None:
        self.loop.run_until_complete(work)

    @initialize(entries=st.integers(0, 5), cold=st.booleans())
    def begin(self, entries: int, cold: bool) -> None:
        """Begin with some entries, which are on disk only if it is a `cold` start."""
        self.options = StoreOptions(cache=0) if cold else StoreOptions()
        self.wait(self.open())
        for _ in range(entries):
            self.publish(KEYS[0], 1, 0)
        if cold:
            self.restart()

    @rule(key=st.sampled_from(KEYS), messages=st.integers(1, 3), delay=st.sampled_from((0, 0, 5)))
    def publish(self, key: bytes, messages: int, delay: int) -> None:
        due = self.model.now_ms() + delay * 1000 if delay else 0
        sent = [Message(b"v", key=key, deliver_at=due or None)] * messages
        self.model.entries.append(Stored(key, messages, due, (1 << messages) - 1, late=bool(due)))
        self.wait(self.store_entry(pack(sent, "p", len(self.model.entries), 1), messages))
        self.look()

    @precondition(lambda self: len(self.model.permits) < self.most())
    @rule(permits=st.integers(0, 4), priority=st.integers(0, 1))
    def join(self, permits: int, priority: int) -> None:
        taken = {consumer.name for consumer in self.model.permits}
        name = next(name for name in NAMES if name not in taken)
        consumer = ClientConsumer(self.wire, 1, name, priority=priority, keys=self.keys)
        self.model.permits[consumer] = 0
        self.model.ring.add(consumer)
        if self.kind is SubscriptionType.EXCLUSIVE:
            self.model.active, self.model.position = consumer, 0
        with self.on_the_loop():
            self.subscription.attach(consumer, self.kind)
        self.look()
        if permits:
            self.flow_to(consumer, permits)

    @precondition(lambda self: self.model.permits)
    @rule(who=st.integers(0, 3), permits=st.integers(1, 6))
    def flow(self, who: int, permits: int) -> None:
        self.flow_to(self.one(who), permits)

    @precondition(lambda self: self.model.permits)
    @rule(who=st.integers(0, 3))
    def leave(self, who: int) -> None:
        consumer = self.one(who)
        for number in self.model.held_by(consumer):
            self.model.entries[number].holder = None
        del self.model.permits[consumer]
        self.model.ring.remove(consumer)
        if self.model.active is consumer:
            self.model.active = None
        if not self.model.permits:
            self.forget_counts()
        with self.on_the_loop():
            self.subscription.detach(consumer)
        self.look()

    @precondition(lambda self: self.model.permits)
    @rule(who=st.integers(0, 3), which=st.integers(0, 30), part=st.sampled_from((0, 0, 0, 5)))
    def acknowledge(self, who: int, which: int, part: int) -> None:
        """Acknowledge an entry that was sent, by whom it was sent to or not; or a part of it."""
        sent = [
            number
            for number, entry in self.model.open_entries()
            if entry.holder or (not self.model.shared and number < self.model.position)
        ]
        if sent:
            number = sent[which % len(sent)]
            self.acked(number, self.model.entries[number].left & part)
            left = tuple(words(self.model.entries[number].left))
            self.send_ack(self.one(who), Ack(number, ack_set=left))

    @precondition(lambda self: self.model.permits)
    @rule(who=st.integers(0, 3))
    def acknowledge_all_that_it_holds(self, who: int) -> None:
        consumer = self.one(who)
        for number in self.model.held_by(consumer):
            self.acked(number, 0)
            self.send_ack(consumer, Ack(number), look=False)
        self.look()

    @precondition(lambda self: self.model.active and not self.model.shared)
    @rule(back=st.integers(1, 3), part=st.integers(0, 7))
    def acknowledge_all_up_to(self, back: int, part: int) -> None:
        number = self.model.position - back
        if number >= 0 and self.model.active:
            for before in range(number):
                self.acked(before, 0)
            # Of what is acknowledged already, nothing can be left.
            left = self.model.entries[number].left & part
            self.acked(number, left)
            self.send_ack(self.model.active, Ack(number, cumulative=True, ack_set=(left,)))

    @precondition(lambda self: self.model.permits)
    @rule(who=st.integers(0, 3), which=st.sets(st.integers(0, 30), max_size=4))
    def give_back(self, who: int, which: set[int]) -> None:
        """Give entries back, some of which the consumer may not hold; none: all that it holds."""
        consumer = self.one(who)
        if self.model.shared:
            for number in self.model.held_by(consumer):
                if number in which or not which:
                    self.model.entries[number].holder = None
                    self.model.entries[number].redeliveries += 1
        elif consumer is self.model.active:
            self.model.position = 0
        with self.on_the_loop():
            self.subscription.redeliver(consumer, sorted(which))
        self.look()

    @precondition(lambda self: self.model.entries)
    @rule(which=st.integers(0, 30), messages=st.integers(1, 7), following=st.integers(0, 3))
    def delete(self, which: int, messages: int, following: int) -> None:
        """Delete messages of an entry, and some of the entries behind it whole."""
        which %= len(self.model.entries)
        first = sum(entry.messages for entry in self.model.entries[:which])
        numbers = []
        for entry in self.model.entries[which : which + 1 + following]:
            gone = [n for n in range(entry.messages) if messages >> n & 1]
            entry.deleted |= sum(1 << n for n in gone)
            numbers += [first + n for n in gone]
            first, messages = first + entry.messages, 7
        assert self.store is not None
        with self.on_the_loop():
            ledger = self.subscription.partition.ledger
            self.store.delete_messages(ledger, [(number, number) for number in numbers])
        self.look()

    @rule(seconds=st.integers(1, 4))
    def pass_time(self, seconds: int) -> None:
        self.clock.advance(seconds)
        with self.on_the_loop():
            self.subscription.partition.deliver_arrivals()
        self.look()

    @rule()
    def close_the_connection_for_writing(self) -> None:
        self.wire.room = False

    @rule()
    def restart(self) -> None:
        """Begin again from what is on disk: nobody is connected, nothing under way."""
        self.wait(self.close())
        for entry in self.model.entries:
            entry.holder = None
        self.model.permits.clear()
        self.model.ring = Ring()
        self.model.active = None
        self.forget_counts()
        self.wait(self.open())

    def teardown(self) -> None:
        """Whoever comes last, with permits and time enough, gets all that is left, in order."""
        try:
            if self.store is not None:
                self.drain()
                self.wait(self.close())
        finally:
            self.patch.undo()
            self.loop.close()
            shutil.rmtree(self.folder)

    def drain(self) -> None:
        for consumer in list(self.model.permits):
            self.leave(list(self.model.permits).index(consumer))
        self.clock.advance(100)
        self.join(10_000, 0)
        (last,) = self.model.permits
        left = [number for number, _ in self.model.open_entries()]
        if self.model.shared:
            assert self.model.held_by(last) == left
        else:
            assert self.model.position == (left[-1] + 1 if left else 0)

    def most(self) -> int:
        return 1 if self.kind is SubscriptionType.EXCLUSIVE else len(NAMES)

    def one(self, who: int) -> ClientConsumer:
        return list(self.model.permits)[who % len(self.model.permits)]

    def flow_to(self, consumer: ClientConsumer, permits: int) -> None:
        self.model.permits[consumer] += permits
        with self.on_the_loop():
            self.subscription.flow(consumer, permits)
        self.look()

    def acked(self, number: int, left: int) -> None:
        self.model.entries[number].left = left
        if not left:
            self.model.entries[number].holder = None

    def send_ack(self, consumer: ClientConsumer, ack: Ack, *, look: bool = True) -> None:
        with self.on_the_loop():
            self.subscription.acknowledge(consumer, [ack], None)
        if look:
            self.look()

    def forget_counts(self) -> None:
        for entry in self.model.entries:
            entry.redeliveries = 0

    def look(self) -> None:
        """Let reads end, check what was told, and that nothing is left."""
        self.wait(self.settle())
        self.check()
        if not self.wire.room:
            with self.on_the_loop():
                self.wire.open()
            self.wait(self.settle())
            self.check()
        self.model.check_nothing_is_left()

    def check(self) -> None:
        told, self.wire.told = self.wire.told, []
        for one in told:
            if one.active is None:
                self.model.sent(one)
            elif one.active or one.consumer is self.model.active:
                self.model.changed(one)
        for consumer, permits in self.model.permits.items():
            assert consumer.permits == permits
            assert permits > -3, "overrun by more than a batch"

    @contextmanager
    def on_the_loop(self) -> Iterator[None]:
        """Have what is called think that it runs on the loop, as everything of the broker does."""
        asyncio._set_running_loop(self.loop)
        try:
            yield
        finally:
            asyncio._set_running_loop(None)

    async def open(self) -> None:
        self.store = await Store.open(self.folder, self.options, self.clock)
        topics = Topics(self.store, TopicOptions(), self.clock, ENTRY_FORMATS)
        partition = await topics.open("t", create=True)
        self.subscription: PartitionSubscription = await partition.subscribe("s", 0)

    async def close(self) -> None:
        assert self.store is not None
        self.subscription.partition.ledger.listeners.clear()
        for consumer in list(self.subscription.consumers):
            self.subscription.detach(consumer)
        await self.store.close()
        self.wire.told.clear()

    async def store_entry(self, payload: bytes, messages: int) -> None:
        stored = asyncio.Event()
        partition = self.subscription.partition
        partition.ledger.append(payload, PULSAR_FORMAT, messages, 1, lambda _: None)
        partition.store.after_sync(stored.set)
        await stored.wait()
        await asyncio.sleep(0)

    async def settle(self) -> None:
        await asyncio.sleep(0.001 if self.kind is SubscriptionType.FAILOVER else 0)
        read = asyncio.Event()
        self.subscription.when_settled(read.set)
        await asyncio.wait_for(read.wait(), 10)


class OnExclusive(Delivery):
    kind = SubscriptionType.EXCLUSIVE


class OnFailover(Delivery):
    kind = SubscriptionType.FAILOVER


class OnShared(Delivery):
    kind = SubscriptionType.SHARED


class OnKeyShared(Delivery):
    kind = SubscriptionType.KEY_SHARED


class OnKeySharedInAnyOrder(Delivery):
    kind = SubscriptionType.KEY_SHARED
    keys = KeyPolicy(out_of_order=True)


def cases(machine: type[Delivery], examples: int) -> type[TestCase]:
    made: Any = machine.TestCase
    made.settings = settings(max_examples=examples, stateful_step_count=30, deadline=None)
    return cast("type[TestCase]", made)


TestOnExclusive = cases(OnExclusive, 10)
TestOnFailover = cases(OnFailover, 10)
TestOnShared = cases(OnShared, 12)
TestOnKeyShared = cases(OnKeyShared, 24)
TestOnKeySharedInAnyOrder = cases(OnKeySharedInAnyOrder, 8)
