"""Administration of subscriptions and their cursors, as CommandAdmin asks for it.

Acknowledging here needs no consumer: whoever holds an entry then lets go of it. Lists are bounded,
for a frame holds at most 100,000 fields.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, Protocol

from router.broker.cursors import Ack, Cursor
from router.broker.descriptions import subscriptions_after
from router.broker.dispatch import Counting, Partition, Subscription, Whence
from router.broker.dispatch.feed import batch_size
from router.broker.dispatch.subscription import REPLICATED
from router.broker.ledger import DamagedError, Ledger
from router.broker.topic_groups import Groups
from router.broker.topics import Topics
from router.errors import BadRequestError, FencedError, NotAllowedError, ReadFailedError
from router.wire.pulsar import MAX_MESSAGE_SIZE
from router.wire.pulsar import pulsar_pb2 as pb

MAX_NAME: Final = 1_024
MAX_POSITIONS: Final = 10_000
MAX_ACK_SET: Final = 2_048
CURSORS: Final = 500
"""Of a page."""
READS: Final = 256
"""Of entries, for one cursor."""
MAX_RANGES: Final = 10_000
"""Of an answer."""


class Forgetting(Protocol):
    """The node's leases, as the administration of topics uses them."""

    def forget(self, topic: str, subscription: str | None = None) -> None:
        """Drop positions left for a next poll."""
        ...


class CursorAdmin:
    """Answers requests about subscriptions."""

    def __init__(self, topics: Topics, leases: Forgetting) -> None:
        self._topics = topics
        self._groups = Groups(topics)
        self._leases = leases

    async def create(self, asked: pb.CreateSubscription, _: pb.CommandAdminResponse) -> None:
        """Make a subscription exist."""
        if not 1 <= len(asked.subscription) <= MAX_NAME:
            raise BadRequestError(f"a subscription's name has 1 to {MAX_NAME} characters")
        name = self._topics.parse(asked.topic)
        await self._groups.subscribe(name, asked.subscription, self._whence(asked))

    async def delete(self, asked: pb.SubscriptionRef, _: pb.CommandAdminResponse) -> None:
        """Delete a subscription."""
        name = self._topics.parse(asked.topic)
        await self._groups.unsubscribe(name, asked.subscription, force=asked.force)
        self._leases.forget(str(name), asked.subscription)

    async def reset(self, asked: pb.ResetSubscription, _: pb.CommandAdminResponse) -> None:
        """Move a subscription."""
        name = self._topics.parse(asked.topic)
        given = [asked.earliest, asked.latest, asked.HasField("timestamp_ms")]
        given += [asked.HasField("position"), bool(asked.positions)]
        if given.count(True) != 1:
            raise BadRequestError("exactly one of earliest, latest, a time, a position is needed")
        to = _positions(asked.positions) if asked.positions else self._whence(asked)
        await self._groups.reset(name, asked.subscription, to)
        self._leases.forget(str(name), asked.subscription)

    async def acknowledge(self, asked: pb.AcknowledgePositions, _: pb.CommandAdminResponse) -> None:
        """Acknowledge the positions; return when that is on disk.

        Raises FencedError and others before anything was acknowledged.
        """
        found = self._find(asked.topic, asked.subscription)
        by_ledger = {subscription.ledger.id: subscription for subscription in found}
        if len(asked.message_id) > MAX_POSITIONS:
            raise BadRequestError(f"at most {MAX_POSITIONS} positions are acknowledged at once")
        acks: list[tuple[Subscription, Ack]] = []
        for place in asked.message_id:
            if len(place.ack_set) > MAX_ACK_SET:
                raise BadRequestError(f"an ack_set has at most {MAX_ACK_SET} words")
            subscription = by_ledger.get(place.ledgerId)
            if subscription is None:
                continue
            if place.router_epoch not in (0, subscription.epoch):
                raise FencedError("the subscription was reset since this was received")
            ack = Ack(place.entryId, asked.cumulative, tuple(place.ack_set))
            acks.append((subscription, ack))
        for subscription in by_ledger.values():
            self._apply(subscription, [ack for of, ack in acks if of is subscription])
        await self._stored()

    async def describe(self, asked: pb.DescribeCursors, response: pb.CommandAdminResponse) -> None:
        """Answer where subscriptions stand on each partition."""
        if asked.HasField("subscription"):
            found = list(self._find(asked.topic, asked.subscription))
        else:
            after = (asked.after_partition, asked.after_subscription)
            partitions = self._topics.pieces(self._topics.parse(asked.topic))
            page = subscriptions_after(
                partitions, after if asked.HasField("after_subscription") else None
            )
            found = list(islice(page, CURSORS))
            response.more = len(found) == CURSORS
        counting, room = Counting(), MAX_RANGES
        for subscription in found:
            state = _state(subscription, room)
            state.backlog = await counting.backlog(subscription.ledger, subscription.cursor)
            await _add_sizes(state, subscription.ledger)
            room -= len(state.acknowledged) + len(state.partial)
            response.cursors.append(state)

    async def skip(self, asked: pb.SkipMessages, _: pb.CommandAdminResponse) -> None:
        """Acknowledge what comes next; return when that is on disk."""
        given = [asked.HasField("count"), asked.all, asked.HasField("before_ms")]
        if given.count(True) != 1:
            raise BadRequestError("exactly one of a count, all and a time is needed")
        for subscription in self._find(asked.topic, asked.subscription):
            ledger, cursor = subscription.ledger, subscription.cursor
            end = ledger.durable_entry
            if asked.HasField("count"):
                start = max(cursor.mark_delete + 1, ledger.first_entry)
                end = min(end, unacked_entry(cursor, start, asked.count) + 1) if asked.count else 0
            elif asked.HasField("before_ms"):
                end = await ledger.find_time(asked.before_ms)
            if end:
                self._apply(subscription, [Ack(end - 1, cumulative=True)])
        await self._stored()

    async def read(self, asked: pb.ReadEntry, response: pb.CommandAdminResponse) -> None:
        """Answer one entry of a partition, if there is one."""
        given = ["entry", "subscription", "earliest", "latest"]
        if [asked.HasField(field) for field in given].count(True) != 1 or asked.nth < 1:
            raise BadRequestError("exactly one of entry, subscription, earliest, latest is needed")
        partition = self._partition(asked.topic)
        ledger = partition.ledger
        number = self._wanted(partition, asked)
        if not ledger.first_entry <= number < ledger.durable_entry:
            return
        found = await ledger.read(number, 1, 1)
        if not found or found[0].entry_id != number:
            return
        if len(found[0].payload) > MAX_MESSAGE_SIZE:
            raise ReadFailedError(f"the entry {number} is too large to be shown")
        response.entry.message_id.ledgerId = ledger.id
        response.entry.message_id.entryId = number
        response.entry.message_id.partition = partition.index
        response.entry.payload = found[0].payload
        response.entry.timestamp_ms = found[0].timestamp_ms
        response.entry.index = found[0].index

    def _wanted(self, partition: Partition, asked: pb.ReadEntry) -> int:
        ledger = partition.ledger
        if asked.HasField("entry"):
            return asked.entry
        if asked.HasField("subscription"):
            (subscription,) = self._find(asked.topic, asked.subscription)
            start = max(subscription.cursor.mark_delete + 1, ledger.first_entry)
            return unacked_entry(subscription.cursor, start, asked.nth)
        if asked.latest:
            return ledger.durable_entry - asked.nth
        return ledger.first_entry + asked.nth - 1

    def _partition(self, topic: str) -> Partition:
        name = self._topics.parse(topic)
        partitions = self._topics.pieces(name)
        if len(partitions) != 1:
            raise NotAllowedError(f"{name} has {len(partitions)} partitions: name one")
        return partitions[0]

    def _whence(self, asked: pb.CreateSubscription | pb.ResetSubscription) -> Whence:
        when = asked.timestamp_ms if asked.HasField("timestamp_ms") else None
        if not asked.HasField("position"):
            return Whence(asked.earliest, when)
        self._partition(asked.topic)
        return Whence(position=(asked.position.ledgerId, asked.position.entryId))

    def _find(self, topic: str, subscription: str) -> Iterable[Subscription]:
        return self._groups.find(self._topics.parse(topic), subscription)

    def _apply(self, subscription: Subscription, acks: Iterable[Ack]) -> None:
        """Acknowledge for nobody in particular; what is not stored is ignored."""
        known = [ack for ack in acks if ack.entry < subscription.ledger.durable_entry]
        if known:
            subscription.used()
        for ack in known:
            if subscription.record is not None:
                self._topics.store.acknowledge(subscription.record, ack)
            else:
                subscription.cursor.apply(ack)
        dispatcher = subscription.dispatcher
        if known and dispatcher is not None:
            whole = [ack.entry for ack in known if subscription.cursor.is_acked(ack.entry)]
            # Whoever holds an entry lets go of it, whichever consumer is named.
            dispatcher.acknowledged(dispatcher.consumers[0], whole)
            if any(ack.cumulative for ack in known):
                dispatcher.swept()
            subscription.look_for_end()
            dispatcher.run()

    async def _stored(self) -> None:
        stored = asyncio.Event()
        self._topics.store.after_sync(stored.set)
        await stored.wait()


def _positions(named: Sequence[pb.MessageIdData]) -> dict[int, Whence]:
    """Return where partitions go on, each by its number."""
    if len(named) > MAX_POSITIONS:
        raise BadRequestError(f"at most {MAX_POSITIONS} partitions are moved at once")
    found = {place.partition: Whence(position=(place.ledgerId, place.entryId)) for place in named}
    if len(found) < len(named):
        raise BadRequestError("a partition is named twice")
    return found


def unacked_entry(cursor: Cursor, start: int, nth: int) -> int:
    """Return the nth entry from `start` on, counted from 1, that is not acknowledged whole."""
    at = start
    for first, last in cursor.ranges():
        if last < at:
            continue
        if first - at >= nth:
            break
        nth -= max(0, first - at)
        at = last + 1
    return at + nth - 1


async def _add_sizes(state: pb.CursorState, ledger: Ledger) -> None:
    """Tell how many messages the entries have that are acknowledged in part, READS of them."""
    for part in state.partial[:READS]:
        number = part.entryId
        entry = ledger.cached(number)
        if entry is None:
            try:
                found = await ledger.read(number, 1, 1)
            except (DamagedError, OSError):
                continue  # where delivery meets the damage it is reported
            entry = found[0] if found and found[0].entry_id == number else None
        if entry is not None:
            part.batch_size = batch_size(entry) or 1


def _state(subscription: Subscription, room: int) -> pb.CursorState:
    cursor, record = subscription.cursor, subscription.record
    ranges = list(islice(cursor.ranges(), room + 1))
    partial = [entry for entry, _ in islice(cursor.partials(), room + 1)]
    kept = ranges[:room]
    parts = partial[: room - len(kept)]
    ledger_id, dispatcher = subscription.ledger.id, subscription.dispatcher
    state = pb.CursorState(
        partition=subscription.partition.index,
        subscription=subscription.name,
        ledger_id=ledger_id,
        mark_delete=cursor.mark_delete,
        acknowledged=[pb.EntryRange(first=first, last=last) for first, last in kept],
        partial=[
            pb.MessageIdData(ledgerId=ledger_id, entryId=entry, ack_set=cursor.ack_set(entry))
            for entry in parts
        ],
        cut=len(kept) < len(ranges) or len(parts) < len(partial),
        durable=subscription.durable,
        unacked=sum(consumer.held_messages for consumer in subscription.consumers),
        type=dispatcher.kind.value if dispatcher is not None else None,
        replicated=subscription.replicated,
    )
    if record is not None:
        state.created_ms, state.last_used_ms = record.created_ms, record.last_used_ms
        for key, value in record.properties.items():
            if key != REPLICATED:
                state.properties.add(key=key, value=value)
    return state
