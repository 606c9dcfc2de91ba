"""Delivery to many consumers with the messages of a key in order: to one consumer at a time.

Theory of operation. A key falls into a slot, and a slot belongs to a consumer (`assignment`). While
one consumer holds an entry of a slot, no other gets an entry of it, even if the slot is its own by
now: so order is kept when consumers come and go, and only the slots that change hands wait (the
"draining hashes" of Apache Pulsar). That needs no memory of the change, only how many entries of
which slot each consumer holds.

What cannot be sent now is *parked*, by number: in the queue of its consumer, or barred behind the
consumer that holds its slot, or in no queue if the slot has no consumer. A new entry
is sent at once only if the queue of its consumer is empty; so within a slot nothing overtakes. When
as many are parked as may be, reading stops until some can be sent: a consumer that does not keep up
holds the others up in the end, and memory does not grow. The alternative, to let one consumer's
entries be read again and again from the start, costs the disk what this saves in memory.

Entries are parked without their bytes, and are looked up again when their turn comes; the entry
that stands first among all queues that can move is the next, so that the disk is read in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

from router.broker.consume.consumer import ClientConsumer, SubscriptionType
from router.broker.consume.dispatch.dispatcher import Dispatcher, EntrySource
from router.broker.consume.dispatch.individual import REPLAY_AHEAD, Individual
from router.broker.consume.membership.hashing import slot_of_hash
from router.broker.consume.membership.key_slots import Assignment, Ranges, Ring
from router.broker.storage import Entry
from router.errors import SubscriptionBusyError

MAX_PARKED_PER_CONSUMER: Final = 2_000
MAX_PARKED: Final = 20_000
# Of numbers in queues that are acknowledged without having been sent; more are cleared out.
MAX_STALE: Final = 1_000


@dataclass(slots=True)
class _Holder:
    """The consumer that holds entries of a slot, and how many."""

    consumer: ClientConsumer
    entries: int = 0


class KeyShared(Individual):
    """Many consumers, each with keys of its own."""

    kind = SubscriptionType.KEY_SHARED

    def __init__(self, source: EntrySource) -> None:
        super().__init__(source)
        self._assignment: Assignment = Ring()
        self._in_order = True
        self._formats = source.context.formats
        # The slot of each entry that is held, and of each that is parked.
        self._slots: dict[int, int] = {}
        self._parked: dict[int, int] = {}
        self._slot_holders: dict[int, _Holder] = {}
        self._queues: dict[ClientConsumer, list[int]] = {}
        self._barred: dict[int, list[int]] = {}
        self._stale = 0
        # Entries that no consumer holds and that are to come again; their slots are not known.
        self._returned: list[int] = []

    def add(self, consumer: ClientConsumer) -> None:
        """Add a consumer; raise HashRangeError, or SubscriptionBusyError if its mode differs."""
        if self.consumers:
            _check_alike(self.consumers[0], consumer)
        else:
            self._in_order = not consumer.keys.out_of_order
            self._assignment = Ranges() if consumer.keys.sticky else Ring()
        self._assignment.add(consumer)
        super().add(consumer)
        self._place_all()

    def remove(self, consumer: ClientConsumer) -> None:
        """Remove a consumer: what it holds goes to the consumers that have its slots now."""
        self._assignment.remove(consumer)
        Dispatcher.remove(self, consumer)
        self._put_back(consumer, list(consumer.held))
        self._place_all()
        self.run()

    def run(self) -> None:
        """Send what is parked as far as it can be, then what is new."""
        self._blocked = False
        self.delayed.look()
        self._park_due()
        if self._park_returned() and self._send_parked():
            self._send_new()
        if self.delayed:
            self.delayed.arm()

    def acknowledged(self, entries: Iterable[int]) -> None:
        """Release the entries, which may free a slot for other consumers."""
        entries = list(entries)
        for entry in entries:
            if self._parked.pop(entry, None) is not None:
                self._stale += 1
                self._blocked = True
        if self._stale > MAX_STALE:
            self._place_all()
        super().acknowledged(entries)

    def release_acknowledged(self) -> None:
        """Release all entries that are acknowledged, held or parked."""
        acked = self._source.cursor.is_acked
        self._parked = {entry: slot for entry, slot in self._parked.items() if not acked(entry)}
        self._place_all()
        super().release_acknowledged()

    def _put_back(self, consumer: ClientConsumer, entries: Iterable[int]) -> None:
        for entry in entries:
            slot = self._slots[entry]
            self._pending.held.pop(entry)
            self._release(consumer, entry)
            self._park(entry, slot)

    def _release(self, consumer: ClientConsumer, entry: int) -> bool:
        if not super()._release(consumer, entry):
            return False
        slot = self._slots.pop(entry)
        holder = self._slot_holders.get(slot)
        if holder is not None:
            holder.entries -= 1
            if not holder.entries:
                del self._slot_holders[slot]
                for number in self._barred.pop(slot, ()):
                    self._blocked = True
                    if number in self._parked:
                        self._place(number, slot)
        return True

    def _park(self, entry: int, slot: int) -> None:
        self._parked[entry] = slot
        self._place(entry, slot)

    def _place(self, entry: int, slot: int) -> None:
        owner = self._assignment.owner(slot)
        if self._is_barred(slot, owner):
            self._barred.setdefault(slot, []).append(entry)
        elif owner is not None:
            heappush(self._queues.setdefault(owner, []), entry)

    def _is_barred(self, slot: int, owner: ClientConsumer | None) -> bool:
        holder = self._slot_holders.get(slot)
        return holder is not None and holder.consumer is not owner

    def _place_all(self) -> None:
        """Put everything that is parked in the queue where it belongs now."""
        self._queues = {}
        self._barred = {}
        self._stale = 0
        for entry, slot in self._parked.items():
            self._place(entry, slot)

    def _park_due(self) -> None:
        while len(self._parked) < MAX_PARKED and (due := self.delayed.due()) is not None:
            self._park(*due)

    def _return(self, entry: int) -> None:
        heappush(self._returned, entry)

    def _park_returned(self) -> bool:
        """Park what was returned without its slot; False: a read has to end first."""
        while self._returned:
            number = self._returned[0]
            entry = self._look_up(number, REPLAY_AHEAD)
            if entry is not None:
                info = self._formats[entry.format].describe(entry.payload)
                self._park(number, slot_of_hash(info.key_hash()))
            elif not self._source.delivered.is_acked(number):
                return False
            heappop(self._returned)
        return True

    def _send_parked(self) -> bool:
        """Send what can be sent of what is parked; False: a read has to end first."""
        heads = [
            (queue[0], place, consumer)
            for place, (consumer, queue) in enumerate(self._queues.items())
            if self._can_take(consumer)
        ]
        heapify(heads)
        while heads:
            number, place, consumer = heads[0]
            if not self._send_first(consumer, number):
                return False
            queue = self._queues.get(consumer)
            if queue and self._can_take(consumer):
                heapreplace(heads, (queue[0], place, consumer))
            else:
                heappop(heads)
        return True

    def _send_first(self, consumer: ClientConsumer, number: int) -> bool:
        """Send the first of a consumer's queue, or drop it if it is done with; False: not yet."""
        slot = self._parked.get(number)
        entry = None
        if slot is not None:
            entry = self._look_up(number, min(len(self._parked), REPLAY_AHEAD))
            if entry is None and not self._source.delivered.is_acked(number):
                return False
        self._parked.pop(number, None)
        queue = self._queues[consumer]
        heappop(queue)
        if not queue:
            del self._queues[consumer]
        if entry is not None and slot is not None:
            self._send_of(slot, consumer, entry)
        return True

    def _send_new(self) -> None:
        limit = min(MAX_PARKED, MAX_PARKED_PER_CONSUMER * len(self.consumers))
        owner: ClientConsumer | None = None
        while len(self._parked) < limit and not self.delayed.full:
            # Mostly the one that took the last entry can take one more.
            if not (owner and self._can_take(owner)) and not any(
                map(self._can_take, self.consumers)
            ):
                return
            entry = self.feed.take()
            if entry is None:
                return
            info = self._formats[entry.format].describe(entry.payload)
            slot, when = slot_of_hash(info.key_hash()), info.deliver_at_ms
            if when and self.delayed.put_aside(entry.entry_id, when, slot):
                continue
            owner = self._assignment.owner(slot)
            if owner is None or not self._takes_new(owner, slot):
                self._park(entry.entry_id, slot)
            else:
                self._send_of(slot, owner, entry)

    def _takes_new(self, owner: ClientConsumer, slot: int) -> bool:
        return (
            owner not in self._queues and not self._is_barred(slot, owner) and self._can_take(owner)
        )

    def _send_of(self, slot: int, consumer: ClientConsumer, entry: Entry) -> None:
        self._slots[entry.entry_id] = slot
        if self._in_order:
            self._slot_holders.setdefault(slot, _Holder(consumer)).entries += 1
        self._send(consumer, entry)


def _check_alike(present: ClientConsumer, coming: ClientConsumer) -> None:
    """Raise SubscriptionBusyError, as Apache Pulsar words it, if two are not of the same mode."""
    mode, other = (_mode(consumer) for consumer in (present, coming))
    if mode != other:
        raise SubscriptionBusyError(
            f"Subscription is of different type. Active subscription key_shared mode of '{mode}' "
            f"is different than the connecting consumer's key_shared mode '{other}'."
        )
    if present.keys.out_of_order != coming.keys.out_of_order:
        active, comer = ("allows", "does not allow"), ("does not allow", "allows")
        words = active if present.keys.out_of_order else comer
        raise SubscriptionBusyError(
            f"Subscription is of different type. Active subscription {words[0]} out of order "
            f"delivery while the connecting consumer {words[1]} it."
        )


def _mode(consumer: ClientConsumer) -> str:
    return "STICKY" if consumer.keys.sticky else "AUTO_SPLIT"
