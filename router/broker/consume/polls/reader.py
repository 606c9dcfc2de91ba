"""One partition of a group as polls read it, one at a time: what comes next, and its slices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Protocol

from router.broker.consume import (
    ClientConsumer,
    ConsumerFlow,
    PartitionSubscription,
    SubscriptionType,
)
from router.broker.consume.cursor.in_flight import runs
from router.broker.consume.cursor.pending_acks import PendingAcks
from router.broker.consume.dispatch.exclusive import Exclusive
from router.broker.consume.entry_info import UnreadableEntryError
from router.broker.consume.polls.fetching import PartitionFetch
from router.broker.consume.polls.requests import GroupPollRequest, TakenMessages
from router.broker.storage import PULSAR_FORMAT, Ack, Entry, words
from router.errors import FencedError, ReadFailedError, over_max_bytes
from router.errors.quoting import failure_text
from router.model import Position

if TYPE_CHECKING:
    from router.broker.consume.polls.poll import Poll

_CLIENT: Final = "router"


class OpenedEntry:
    """An entry as polls are given it: whole, unless it is `sliceable`.

    `size`: bytes of its messages without their compression, about; `inflated`: those that are kept.
    """

    __slots__ = ("inflated", "payload", "size", "sliceable", "stored")

    def __init__(self, stored: Entry, payload: bytes, size: int) -> None:
        self.stored = stored
        self.payload = payload
        self.size = size
        self.sliceable = False
        self.inflated = 0

    def message_size(self, index: int) -> int:
        """Return the bytes of a message that count against limits; ValueError: damage hides it."""
        raise ValueError(f"message {index} is not apart from the others")

    def slice(self, first: int, end: int) -> bytes:
        """Return the messages from `first` to before `end` as the payload of an entry."""
        raise ValueError(f"messages {first} to {end} are not apart from the others")


class Opener(Protocol):
    """Opens stored entries; see `router.broker.entries.slicing`."""

    def open(self, ledger_id: int, entry: Entry) -> OpenedEntry:
        """Return an entry opened; raise UnreadableEntryError."""
        ...

    def prepare(
        self, ledger_id: int, entries: Sequence[Entry], tag: int
    ) -> asyncio.Future[Any] | None:
        """Begin to make entries of another format into the tag's; None: `open` may be called."""
        ...


class PollReader(Exclusive):
    """Reads for the polls of one partition of a group, as the subscription's only consumer.

    It is attached while a poll has it. What it keeps in between is of use to the next poll, and
    where that begins follows from the cursor.
    """

    __slots__ = (
        "_consumer",
        "_counting",
        "_fetch",
        "_opened",
        "_opener",
        "_poll",
        "last",
        "subscription",
    )

    entry_format = PULSAR_FORMAT
    peer = client = _CLIENT

    def __init__(self, subscription: PartitionSubscription, opener: Opener) -> None:
        self.subscription = subscription
        self.last: Position | None = None
        self._opener = opener
        self._poll: Poll | None = None
        self._opened: OpenedEntry | None = None
        self._fetch: PartitionFetch | None = None
        self._counting: asyncio.Task[None] | None = None
        super().__init__(subscription)
        self._consumer = ClientConsumer(
            self, 0, _CLIENT, leased=True, flow=ConsumerFlow(monotonic())
        )

    @property
    def partition(self) -> int:
        """Return the number of the partition, NOT_PARTITIONED: the only one."""
        return self.subscription.partition_index

    @property
    def held_bytes(self) -> int:
        """Return how many bytes are kept for the next poll."""
        opened = self._opened
        kept = 0 if opened is None else len(opened.payload) + opened.inflated
        return kept + self.feed.ahead_bytes

    def read_failure(self) -> ReadFailedError | None:
        """Return what made reading fail, None: it did not."""
        failure = self.feed.failure
        if failure is None:
            return None
        return ReadFailedError(
            failure_text(failure) if isinstance(failure, OSError) else str(failure)
        )

    @property
    def is_settled(self) -> bool:
        """Return whether what can be delivered now was: no read from disk is under way."""
        return not (self.feed.reading or self._passed_over or self._counting)

    def attach(self, poll: Poll, request: GroupPollRequest) -> None:
        """Read for a poll, from the cursor on.

        Raises SubscriptionBusyError, SubscriptionNotFoundError.
        """
        self._consumer.name = consumer = request.consumer
        self._consumer.flow = ConsumerFlow(monotonic())
        self.subscription.attach(self._consumer, SubscriptionType.EXCLUSIVE, self)
        self._poll = poll
        self.last = None
        if request.fetch is not None:
            self._fetch = PartitionFetch(self.subscription, consumer, request.fetch)
        feed = self.feed
        if feed.failure is None:
            feed.position = self.subscription.cursor.mark_delete + 1
        else:
            self.rewind()

    def restore(self, entries: Iterable[int]) -> None:
        """Go on: nothing was read past the entries of a transaction."""
        self.run()

    def detach(self) -> None:
        """Read no longer for a poll; callable twice."""
        self._poll = self._fetch = None
        if self._counting is not None:
            self._counting.cancel()
            self._counting = None
        self.subscription.detach(self._consumer)

    def discard(self) -> None:
        """Drop what is kept."""
        self._opened = None
        self.feed.close()

    def acknowledge(self, upto: Position) -> None:
        """Acknowledge everything up to a message; raise FencedError after a reset."""
        subscription = self.subscription
        if upto.epoch != subscription.epoch:
            raise FencedError("the subscription was reset since")
        left: Sequence[int] = ()
        if 0 <= upto.batch_index < upto.batch_size - 1:
            left = words((1 << upto.batch_size) - (1 << upto.batch_index + 1))
        elif self._opened is not None and self._opened.stored.entry_id <= upto.entry:
            self._opened = None
        ack = Ack(upto.entry, cumulative=True, ack_set=tuple(left))
        subscription.acknowledge(self._consumer, (ack,), None)

    def when_stored(self, call: Callable[[], None]) -> None:
        """Call when all that was acknowledged so far is on disk."""
        self.subscription.context.store.after_sync(call)

    def give(self, upto: Position) -> None:
        """Have what a fetch took be in flight, up to a message."""
        if self._fetch is not None:
            self._fetch.deliver(upto)

    def seconds_until_due(self) -> float | None:
        """Return after how many seconds a fetch is to look again; None: there is no such time."""
        return None if self._fetch is None else self._fetch.seconds_until_due()

    def take(
        self, request: GroupPollRequest, limit: int, max_bytes: int, into: list[TakenMessages]
    ) -> tuple[int, int]:
        """Take what comes next, at most so many messages and bytes; return how many of both.

        The first message of a poll may be larger. Raises MessageOverMaxBytesError if it must not,
        and TooManyRequestsError for a fetch if too much is not acknowledged.
        """
        count = size = 0
        if self._fetch is not None:
            self.feed.position = self._fetch.begin()
        while count < limit and (size < max_bytes or not into):
            opened = self._next()
            if opened is None:
                break
            left = self._left(opened)
            if not left:
                continue
            before = len(into)
            more = self._take_of(request, opened, left, limit - count, max_bytes - size, into)
            if len(into) == before:
                break
            count += more[0]
            size += more[1]
            # What is left of a batch comes before the next entry.
            is_partial = self.last is not None and self.last.batch_index >= 0
            if is_partial or opened.size > request.max_inflated:
                break
        if count:
            flow = self._consumer.flow
            flow.messages += count
            flow.bytes += size
            self.subscription.context.tally.dispatched += count
            self.subscription.context.tally.delivered += count
        return count, size

    def _take_of(
        self,
        request: GroupPollRequest,
        opened: OpenedEntry,
        left: int,
        left_messages: int,
        left_bytes: int,
        into: list[TakenMessages],
    ) -> tuple[int, int]:
        """Take what fits of what is left of an entry; return how many messages and bytes."""
        before = len(into)
        if opened.sliceable and (opened.size > left_bytes or left.bit_count() > left_messages):
            try:
                more = self._slice(request, opened, left, left_messages, left_bytes, into)
            except ValueError:  # the worker says what is wrong with it
                del into[before:]
                opened.sliceable = False
                more = self._take_whole(request, opened, left, left_bytes, into)
        else:
            more = self._take_whole(request, opened, left, left_bytes, into)
        if self._fetch is not None:
            self._fetch.took(opened.stored, left, more[0])
        return more

    def _may_go_on(self, fetch: PartitionFetch) -> bool:
        """Go on to the next entry of which a fetch may take something; return if it may now.

        Raises TooManyRequestsError if it may not, and has nothing yet.
        """
        self.feed.position = position = fetch.next(self.feed.position)
        if not (fetch.is_full and fetch.is_new(position)):
            return True
        if fetch.needs_count:
            if self._counting is None:
                loop = asyncio.get_running_loop()
                self._counting = loop.create_task(self._count(fetch))
            return False
        if not fetch.has_taken:
            raise fetch.too_many()
        return False

    async def _count(self, fetch: PartitionFetch) -> None:
        await fetch.count()
        self._counting = None
        self.run()

    def _next(self) -> OpenedEntry | None:
        """Return the next entry that is not acknowledged, opened; None: there is none yet.

        For a fetch the next that is not in flight; raises TooManyRequestsError if too many are.
        """
        if self._fetch is not None and not self._may_go_on(self._fetch):
            return None
        feed, opened, delivered = self.feed, self._opened, self.subscription.delivered
        if isinstance(delivered, PendingAcks) and delivered.holds_next(feed.position):
            # What a poll returns is acknowledged with all before it: it waits for the decision.
            return None
        if opened is not None:
            number = opened.stored.entry_id
            if self.subscription.cursor.next_unacked(feed.position) == number:
                feed.position = number + 1
                return opened
        start = feed.position
        while (entry := feed.take()) is not None:
            if isinstance(delivered, PendingAcks) and delivered.holds_next(start):
                feed.position = start  # what stands before the one that is held was left out
                return None
            try:
                self._opened = self._opener.open(self.subscription.ledger.id, entry)
            except UnreadableEntryError as error:
                self._pass_over(self._consumer, entry, str(error))
                start = feed.position
            else:
                return self._opened
        return None

    def _left(self, opened: OpenedEntry) -> int:
        """Return the messages of an entry that may be taken, as bits.

        Those that are visible and not acknowledged, for a fetch nor in flight.
        """
        stored, subscription = opened.stored, self.subscription
        left = subscription.cursor.remaining(stored.entry_id) or (1 << stored.messages) - 1
        if (visible := subscription.visible.messages(stored)) is not None:
            left &= visible
        return left if self._fetch is None else self._fetch.left(stored, left)

    def _take_whole(
        self,
        request: GroupPollRequest,
        opened: OpenedEntry,
        left: int,
        left_bytes: int,
        into: list[TakenMessages],
    ) -> tuple[int, int]:
        """Take all that is left of an entry, unless something was taken and it is too large."""
        stored = opened.stored
        if opened.size > left_bytes:
            if into:
                return 0, 0
            if request.strict and stored.messages == 1 and opened.size <= request.max_inflated:
                raise over_max_bytes(opened.size, request.max_bytes)
        if opened.size > request.max_inflated and into:
            return 0, 0
        subscription = self.subscription
        everything = left.bit_count() == stored.messages
        into.append(
            TakenMessages(
                self.partition,
                subscription.ledger.id,
                stored.entry_id,
                subscription.epoch,
                stored.timestamp_ms,
                opened.payload,
                () if everything else words(left),
            )
        )
        self.last = Position(
            subscription.ledger.id, stored.entry_id, self.partition, epoch=subscription.epoch
        )
        return left.bit_count(), opened.size

    def _slice(
        self,
        request: GroupPollRequest,
        opened: OpenedEntry,
        left: int,
        left_messages: int,
        left_bytes: int,
        into: list[TakenMessages],
    ) -> tuple[int, int]:
        """Take some of what is left of a batch: each run of messages is a batch of its own."""
        subscription, stored = self.subscription, opened.stored
        ledger, epoch, messages = subscription.ledger.id, subscription.epoch, stored.messages
        count = size = 0
        is_full = False
        for first, stop in runs(left, left_messages):
            end = first
            for index in range(first, stop):
                more = opened.message_size(index)
                if size + more > left_bytes:
                    is_full = bool(into) or index > first
                    if is_full:
                        break
                    if request.strict:
                        raise over_max_bytes(more, request.max_bytes)
                    is_full = True
                size += more
                end = index + 1
                if is_full:
                    break
            if end == first:
                break
            payload = opened.slice(first, end)
            into.append(
                TakenMessages(
                    self.partition,
                    ledger,
                    stored.entry_id,
                    epoch,
                    stored.timestamp_ms,
                    payload,
                    first=first,
                    batch_size=messages,
                )
            )
            count += end - first
            left &= -1 << end
            self.last = Position(ledger, stored.entry_id, self.partition, end - 1, messages, epoch)
            if is_full:
                break
        if not left and self.last is not None and count:
            self.last = Position(ledger, stored.entry_id, self.partition, epoch=epoch)
        return count, size

    def run(self) -> None:
        """Have the poll look again."""
        if self._poll is not None:
            self._poll.ready()

    def close(self) -> None:
        """Keep what was read: the next poll goes on with it."""

    # What delivery asks of a consumer's connection: router.broker.consume.ConsumerLink.

    writable = True

    def when_writable(self, resume: Callable[[], None]) -> None:
        """Call at once: a poll is not answered while its connection takes nothing."""
        resume()

    def deliver(
        self,
        consumer: ClientConsumer,
        entry: Entry,
        redeliveries: int,
        ack_set: Sequence[int],
    ) -> None:
        """Never called: polls take."""

    def prepare(self, ledger_id: int, entries: Sequence[Entry]) -> asyncio.Future[Any] | None:
        """Begin to make entries of another format into Pulsar entries, unless that is quick."""
        return self._opener.prepare(ledger_id, entries, PULSAR_FORMAT)

    def consumer_closed(self, consumer: ClientConsumer) -> None:
        """Notify the poll that the subscription was reset or deleted."""
        self.remove(consumer)
        poll, self._poll = self._poll, None
        self.discard()
        if poll is not None:
            poll.closed(self)

    def activity_changed(self, consumer: ClientConsumer, active: bool) -> None:
        """Do nothing: there is one consumer."""

    def reached_end(self, consumer: ClientConsumer) -> None:
        """Do nothing: polls of a terminated topic end with their time."""

    def probe(self, *, soon: bool = False) -> None:
        """Do nothing: the poll ends with its time, or with its worker's connection."""
