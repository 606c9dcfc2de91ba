"""Administration of subscriptions and their cursors.

Acknowledging here needs no consumer: a consumer that holds an entry then lets go of it. Lists are
bounded, for a frame of the protocol that answers holds at most 100,000 fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol

from router.broker.consume import (
    REPLICATED,
    BacklogCounter,
    Partition,
    PartitionSubscription,
    StartPosition,
)
from router.broker.consume.visible import Visible
from router.broker.storage import Ack, Cursor, DamagedError, Entry, Ledger, Store
from router.broker.topics.descriptions import Place, subscriptions_after
from router.broker.topics.groups import TopicSubscriptions, check_name, only_partition
from router.broker.topics.topics import Topics
from router.errors import BadRequestError, FencedError
from router.model.administration import CursorDescription, EntryChoice, EntryRange, PartialEntry

MAX_POSITIONS: Final = 10_000
MAX_ACK_SET_WORDS: Final = 2_048
MAX_CURSORS_PER_PAGE: Final = 500
"""Of a page."""
MAX_READS_PER_CURSOR: Final = 256
"""Of entries, for one cursor."""
MAX_RANGES_PER_PAGE: Final = 10_000
"""Of an answer."""


@dataclass(frozen=True, slots=True)
class EntryAck:
    """An entry that is acknowledged, or of which the messages of `ack_set` are left.

    An `epoch` that is not 0 must be that of the subscription: a reset is not undone.
    """

    ledger: int
    entry: int
    ack_set: tuple[int, ...] = ()
    epoch: int = 0


class Forgetting(Protocol):
    """The node's leases, as the administration of topics uses them."""

    def forget(self, topic: str, subscription: str | None = None) -> None:
        """Drop positions left for a next poll."""
        ...


class CursorAdmin:
    """The subscriptions of topics; where a partition is named, on that partition only.

    Calls raise BadRequestError, TopicNotFoundError, SubscriptionNotFoundError, and DamagedError,
    OSError where the disk cannot be read.
    """

    def __init__(self, topics: Topics, leases: Forgetting) -> None:
        self._topics = topics
        self._groups = TopicSubscriptions(topics)
        self._leases = leases

    async def create(self, topic: str, subscription: str, start: StartPosition) -> None:
        """Make a subscription exist; one that exists is left as it is."""
        check_name(subscription)
        name = self._topics.parse(topic)
        self._check_one_partition(topic, start)
        await self._groups.subscribe(name, subscription, start)

    async def delete(self, topic: str, subscription: str, *, force: bool) -> None:
        """Delete a subscription, with `force` also one that is read."""
        name = self._topics.parse(topic)
        if not force:  # before it is looked for: its members may have read nothing yet
            self._topics.live_members.check(str(name), subscription)
        await self._groups.unsubscribe(name, subscription, force=force)
        self._leases.forget(str(name), subscription)

    async def reset(
        self, topic: str, subscription: str, to: StartPosition | Mapping[int, StartPosition]
    ) -> None:
        """Move a subscription; with positions by partition, on those partitions."""
        name = self._topics.parse(topic)
        self._topics.live_members.check(str(name), subscription)
        if isinstance(to, StartPosition):
            self._check_one_partition(topic, to)
        elif len(to) > MAX_POSITIONS:
            raise BadRequestError(f"at most {MAX_POSITIONS} partitions are moved at once")
        await self._groups.reset(name, subscription, to)
        self._leases.forget(str(name), subscription)

    async def acknowledge(
        self, topic: str, subscription: str, acks: Sequence[EntryAck], *, cumulative: bool
    ) -> None:
        """Acknowledge entries of all partitions that their ledgers name, and return when on disk.

        Raises FencedError and others before anything was acknowledged; BadRequestError for an entry
        that the topic does not have and never had.
        """
        found = self._find(topic, subscription)
        by_ledger = {subscription.ledger.id: subscription for subscription in found}
        ends = {ledger: one.ledger.durable_entry for ledger, one in by_ledger.items()}
        if not ends.keys() >= {ack.ledger for ack in acks}:
            pieces = self._topics.pieces(self._topics.parse(topic))
            ends = {piece.ledger.id: piece.ledger.durable_entry for piece in pieces}
        if len(acks) > MAX_POSITIONS:
            raise BadRequestError(f"at most {MAX_POSITIONS} positions are acknowledged at once")
        known: dict[int, list[Ack]] = {ledger: [] for ledger in by_ledger}
        for ack in acks:
            if len(ack.ack_set) > MAX_ACK_SET_WORDS:
                raise BadRequestError(f"an ack_set has at most {MAX_ACK_SET_WORDS} words")
            if ack.entry >= ends.get(ack.ledger, 0):
                raise BadRequestError(
                    f"{ack.ledger}:{ack.entry} is the id of no message of {topic}"
                )
            if (moving := by_ledger.get(ack.ledger)) is None:
                continue
            if ack.epoch not in (0, moving.epoch):
                raise FencedError("the subscription was reset since this was received")
            known[ack.ledger].append(Ack(ack.entry, cumulative, ack.ack_set))
        for ledger, moving in by_ledger.items():
            acknowledge_now(self._topics.store, moving, known[ledger])
        await self._topics.store.synced()

    async def describe(self, topic: str, subscription: str) -> list[CursorDescription]:
        """Return where a subscription stands on each partition.

        A group of live members that has committed nothing stands nowhere.
        """
        name = self._topics.parse(topic)
        live = self._topics.live_members.of(str(name), subscription)
        pieces = self._topics.pieces(name)
        if live and not any(subscription in piece.subscriptions for piece in pieces):
            return []
        return await self._described(self._find(topic, subscription))

    async def describe_all(
        self, topic: str, after: Place | None, *, earliest: bool = False
    ) -> tuple[list[CursorDescription], bool]:
        """Return a page of where subscriptions stand, and whether there may be more.

        With `earliest` also when the first message of each backlog was stored.
        """
        partitions = self._topics.pieces(self._topics.parse(topic))
        found = list(islice(subscriptions_after(partitions, after), MAX_CURSORS_PER_PAGE))
        described = await self._described(found)
        if earliest:
            for one, subscription in zip(described, found, strict=True):
                one.earliest_ms = await earliest_ms(subscription)
        return described, len(found) == MAX_CURSORS_PER_PAGE

    async def skip(
        self, topic: str, subscription: str, *, count: int | None, before_ms: int | None
    ) -> None:
        """Acknowledge what comes next on each partition, and return when that is on disk.

        So many entries, or those stored before a time; with neither, all there are.
        """
        for moving in self._find(topic, subscription):
            ledger, cursor = moving.ledger, moving.cursor
            end = moving.visible.end_entry
            if count is not None:
                start = max(cursor.mark_delete + 1, ledger.first_entry)
                end = min(end, unacked_entry(cursor, start, count) + 1) if count else 0
            elif before_ms is not None:
                end = min(end, await ledger.find_time(before_ms))
            if end:
                acknowledge_now(self._topics.store, moving, [Ack(end - 1, cumulative=True)])
        await self._topics.store.synced()

    async def read(self, topic: str, choice: EntryChoice) -> tuple[Partition, Entry | None]:
        """Return a partition and its entry, None: there is none.

        Where nothing is visible of an entry that is counted, the next one stands for it.
        """
        partition = only_partition(self._topics, topic)
        visible, ledger = partition.visible, partition.ledger
        place = self._entry_number(topic, partition, choice)
        entry = await _entry(visible, place)
        if entry is not None and visible.messages(entry) != 0:
            return partition, entry
        if choice.entry is not None or not ledger.first_entry <= place < visible.end_entry:
            return partition, None
        # Of an entry that is gone, that is the number of the first message behind it.
        before = await ledger.number_before(place)
        number = visible.last_to(before - 1) if choice.latest else visible.first_from(before)
        if not visible.contains(number):
            return partition, None
        return partition, await _entry(visible, await ledger.entry_of_number(number))

    def _entry_number(self, topic: str, partition: Partition, choice: EntryChoice) -> int:
        ledger = partition.ledger
        if choice.entry is not None:
            return choice.entry
        if choice.subscription is not None:
            (subscription,) = self._find(topic, choice.subscription)
            start = max(subscription.cursor.mark_delete + 1, ledger.first_entry)
            return unacked_entry(subscription.cursor, start, choice.nth)
        if choice.latest:
            return partition.visible.end_entry - choice.nth
        return ledger.first_entry + choice.nth - 1

    def _check_one_partition(self, topic: str, start: StartPosition) -> None:
        """Raise NotAllowedError if a position is given for a topic of several partitions."""
        if start.position is not None:
            only_partition(self._topics, topic)

    def _find(self, topic: str, subscription: str) -> Sequence[PartitionSubscription]:
        return self._groups.find(self._topics.parse(topic), subscription)

    async def _described(self, found: Iterable[PartitionSubscription]) -> list[CursorDescription]:
        counter, ranges_left, described = BacklogCounter(), MAX_RANGES_PER_PAGE, []
        for subscription in found:
            one = _description(subscription, ranges_left)
            one.backlog = await counter.backlog(subscription.visible, subscription.cursor)
            await _add_sizes(one, subscription.ledger)
            ranges_left -= len(one.acknowledged) + len(one.partial)
            described.append(one)
        return described


def acknowledge_now(store: Store, subscription: PartitionSubscription, acks: Iterable[Ack]) -> None:
    """Acknowledge without a consumer; what is not stored is ignored."""
    known = [ack for ack in acks if ack.entry < subscription.ledger.durable_entry]
    if known:
        subscription.touch()
    for ack in known:
        if subscription.record is not None:
            store.acknowledge(subscription.record, ack)
        else:
            subscription.cursor.apply(ack)
    dispatcher = subscription.dispatcher
    if known and dispatcher is not None:
        whole = [ack.entry for ack in known if subscription.cursor.is_acked(ack.entry)]
        dispatcher.acknowledged(whole)
        if any(ack.cumulative for ack in known):
            dispatcher.release_acknowledged()
        subscription.notify_end()
        dispatcher.run()


def acknowledge_before(store: Store, subscription: PartitionSubscription, end: int) -> None:
    """Acknowledge all entries before one, held by a consumer or not; on disk with the next sync."""
    if end > subscription.cursor.mark_delete + 1:
        acknowledge_now(store, subscription, [Ack(end - 1, cumulative=True)])


def size_from(ledger: Ledger, entry: int) -> int:
    """Return about how many bytes a ledger has from an entry on."""
    held = ledger.durable_entry - ledger.first_entry
    left = min(max(0, ledger.durable_entry - entry), held)
    return ledger.size_bytes * left // held if held else 0


async def earliest_ms(subscription: PartitionSubscription) -> int | None:
    """Return when the first message of a backlog was stored, in ms since 1970, None: it is empty.

    Raises OSError.
    """
    start = max(subscription.cursor.mark_delete + 1, subscription.ledger.first_entry)
    entry = await _entry(subscription.visible, subscription.cursor.next_unacked(start))
    return None if entry is None else entry.timestamp_ms


async def _entry(visible: Visible, number: int) -> Entry | None:
    """Return an entry that may be delivered by its number, None: there is none."""
    if not visible.ledger.first_entry <= number < visible.end_entry:
        return None
    return await visible.ledger.entry(number)


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


async def _add_sizes(described: CursorDescription, ledger: Ledger) -> None:
    """Find how many messages the entries have that are acknowledged in part.

    Of MAX_READS_PER_CURSOR of them; the others stay unknown.
    """
    for part in described.partial[:MAX_READS_PER_CURSOR]:
        try:
            entry = await ledger.entry(part.entry)
        except (DamagedError, OSError):
            continue  # where delivery meets the damage it is reported
        if entry is not None:
            part.messages = entry.messages


def _description(subscription: PartitionSubscription, ranges_left: int) -> CursorDescription:
    cursor, record = subscription.cursor, subscription.record
    ranges = list(islice(cursor.ranges(), ranges_left + 1))
    partial = [entry for entry, _ in islice(cursor.partials(), ranges_left + 1)]
    kept = ranges[:ranges_left]
    parts = partial[: ranges_left - len(kept)]
    dispatcher = subscription.dispatcher
    described = CursorDescription(
        partition=subscription.partition.index,
        subscription=subscription.name,
        ledger_id=subscription.ledger.id,
        mark_delete=cursor.mark_delete,
        acknowledged=tuple(EntryRange(*found) for found in kept),
        partial=[PartialEntry(entry, cursor.ack_set(entry)) for entry in parts],
        cut=len(kept) < len(ranges) or len(parts) < len(partial),
        durable=subscription.durable,
        unacked=sum(consumer.held_messages for consumer in subscription.consumers),
        type=dispatcher.kind.value if dispatcher is not None else None,
        replicated=subscription.replicated,
        messages_out=subscription.sent_messages
        + sum(consumer.flow.messages for consumer in subscription.consumers),
        bytes_out=subscription.sent_bytes
        + sum(consumer.flow.bytes for consumer in subscription.consumers),
    )
    if record is not None:
        described.created_ms, described.last_used_ms = record.created_ms, record.last_used_ms
        given = record.properties.items()
        described.properties = {key: value for key, value in given if key != REPLICATED}
    return described
