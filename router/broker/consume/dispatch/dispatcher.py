"""What dispatchers of all kinds have in common: consumers, and a feed that starts at the cursor.

Theory of operation. A dispatcher lives as long as its subscription has consumers. `run` sends what
can be sent now and returns: it is called when entries arrive, permits come, a connection drains, a
read ends. Nothing waits inside, and no task stands behind a consumer.

Messages that are not visible are left out as if they were acknowledged: they are taken off what the
cursor has of their entry, and an entry of which nothing is left is passed over. That is not
journalled, because it is found again after a restart.

The feed supplies entries from memory where they are, else from disk. An entry that the readers'
protocol has another form for is supplied when the connection has made that form, which it may do
beside the event loop: until then it is as if the entry was being read. Damage stays until it is
repaired. What else keeps a file from being opened, such as too many open files, may pass: the read
is tried again after a while, because no client would ask for it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, Protocol

import structlog

from router.broker.consume.consumer import ClientConsumer, ConsumerLink, SubscriptionType
from router.broker.consume.context import DeliveryContext
from router.broker.consume.cursor.pending_acks import PendingAcks
from router.broker.consume.entry_info import UnreadableEntryError
from router.broker.consume.visible import Visible
from router.broker.storage import Ack, Cursor, DamagedError, Entry, Ledger, words

MAX_READ_ENTRIES: Final = 256
MAX_READ_BYTES: Final = 1 << 20
READ_RETRY_SECONDS: Final = 2.0
MAX_PREPARED_ENTRIES: Final = 64
MAX_PREPARED_BYTES: Final = 128 << 10
"""Of entries of another format that are made ready together."""
NO_FORMAT: Final = -1
_NONE_PREPARED: Final = range(0)

_log = structlog.get_logger(__name__)


class EntrySource(Protocol):
    """What a dispatcher needs of its subscription."""

    context: DeliveryContext
    ledger: Ledger
    visible: Visible
    cursor: Cursor
    delivered: Cursor | PendingAcks
    name: str
    topic_name: str
    # NOT_PARTITIONED of a topic without partitions.
    partition_index: int

    def skip(self, first: int, end: int) -> None:
        """Take the entries from `first` to before `end`, which are gone, as acknowledged."""
        ...

    def pass_over(self, first: int, end: int) -> None:
        """Take the entries from `first` to before `end`, which are left out, as acknowledged."""
        ...

    def notify_end(self) -> None:
        """Notify each consumer, once, if a terminated topic is acknowledged to its end."""
        ...


class EntryFeed:
    """Supplies entries without waiting; `ready` is called when a read from disk has ended.

    At most one read is under way. What it brought is kept until it is taken, MAX_READ_BYTES of it;
    `ahead_bytes` is how much of that is left.
    """

    __slots__ = (
        "_ahead",
        "_format",
        "_idle",
        "_link",
        "_prepared",
        "_read",
        "_ready",
        "_retry",
        "_source",
        "ahead_bytes",
        "failure",
        "position",
    )

    def __init__(self, source: EntrySource, ready: Callable[[], None]) -> None:
        self.position = 0
        self.failure: Exception | None = None
        self._source = source
        self._ready = ready
        self._ahead: dict[int, Entry] = {}
        self.ahead_bytes = 0
        self._read: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._idle: list[Callable[[], None]] = []
        self._link: ConsumerLink | None = None
        self._format = NO_FORMAT
        self._prepared = _NONE_PREPARED

    def supply(self, link: ConsumerLink) -> None:
        """Supply entries that can be delivered to this connection and its like."""
        self._link = link
        self._format = link.entry_format

    @property
    def reading(self) -> bool:
        """Return whether a read from disk is under way."""
        return self._read is not None

    def take(self) -> Entry | None:
        """Return the next entry in order and go on; None: there is none, or not yet."""
        cursor, visible, entry = self._source.delivered, self._source.visible, None
        number = cursor.next_unacked(self.position)
        while number < visible.end_entry:
            entry = self._find(number, MAX_READ_ENTRIES)
            if entry is not None:
                if not visible.leaves_out or self._leave_out(entry):
                    self.position = number + 1
                    break
                entry = None
            before, number = number, cursor.next_unacked(number)
            if number == before:
                break
        return entry

    def get(self, number: int, ahead: int) -> Entry | None:
        """Return one entry if it is in memory; else read it, and up to `ahead` from it on.

        One of which nothing is visible is not returned: it is acknowledged then.
        """
        entry = self._find(number, ahead)
        if entry is None or not self._source.visible.leaves_out or self._leave_out(entry):
            return entry
        return None

    def _find(self, number: int, ahead: int) -> Entry | None:
        entry = self._ahead.get(number) or self._source.ledger.cached(number)
        if entry is None:
            if self._read is None and self.failure is None:
                self._begin(self._fetch(number, ahead))
            return None
        if entry.format != self._format and self._has_to_wait(entry):
            return None
        if self._ahead.pop(number, None) is not None:
            self.ahead_bytes -= len(entry.payload)
        return entry

    def rewind(self, position: int) -> None:
        """Go on from another entry; a failed read may be tried again."""
        self.close()
        self.position = position
        self.failure = None

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call back when no read is under way: at once, or after what it brought was sent."""
        if self._read is None:
            callback()
        else:
            self._idle.append(callback)

    def close(self) -> None:
        """Stop the read that is under way, as if it had ended."""
        if self._read is not None:
            self._read.cancel()
            self._read = None
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        self._ahead.clear()
        self.ahead_bytes = 0
        self._call_idle()

    def _leave_out(self, entry: Entry) -> bool:
        """Take what is left out of an entry as acknowledged; return whether something is left.

        If nothing is, the entries behind it that are left out too are passed over with it, or a
        read looks for the first that is not.
        """
        source, number = self._source, entry.entry_id
        cursor, visible = source.cursor, source.visible
        live = visible.messages(entry)
        if live is None:
            return True
        if live:
            cursor.apply(Ack(number, ack_set=tuple(words(live))))
            if not cursor.is_acked(number):
                return not source.delivered.is_acked(number)
        source.pass_over(number, number + 1)
        next_number = visible.first_from(entry.index + 1)
        if next_number > entry.index + MAX_READ_ENTRIES:
            following = source.ledger.cached_entry_of_number(next_number)
            if following is not None:
                source.pass_over(number, following)
            elif self._read is None:
                self._begin(self._pass_over_to(number, next_number))
        return False

    async def _pass_over_to(self, first: int, next_number: int) -> None:
        """Pass over the entries from one on to the one that holds the message of a number."""
        ledger = self._source.ledger
        try:
            self._source.pass_over(first, await ledger.entry_of_number(next_number))
        except OSError as error:
            self._fail(error)
        self._resume()

    def _begin(self, reading: Coroutine[Any, Any, None]) -> None:
        self._read = asyncio.get_running_loop().create_task(reading)

    def _has_to_wait(self, entry: Entry) -> bool:
        """Return whether an entry of another format is not ready to be delivered.

        Entries behind it that are in memory are prepared with it.
        """
        if self._link is None or entry.entry_id in self._prepared:
            return False
        ledger, entries, size = self._source.ledger, [entry], len(entry.payload)
        for number in range(entry.entry_id + 1, entry.entry_id + MAX_PREPARED_ENTRIES):
            following = self._ahead.get(number) or ledger.cached(number)
            size += MAX_PREPARED_BYTES if following is None else len(following.payload)
            if following is None or size > MAX_PREPARED_BYTES:
                break
            entries.append(following)
        work = self._link.prepare(ledger.id, entries)
        numbers = range(entry.entry_id, entry.entry_id + len(entries))
        if work is None:
            self._prepared = numbers
        elif self._read is None:
            self._begin(self._wait_for(work, numbers))
        return work is not None

    async def _wait_for(self, work: asyncio.Future[Any], numbers: range) -> None:
        # Others may wait for the same work: it is not cancelled with this task.
        await asyncio.wait((work,))
        self._prepared = numbers
        self._resume()

    async def _fetch(self, number: int, ahead: int) -> None:
        visible = self._source.visible
        end = visible.end_entry
        try:
            entries = await visible.read(number, ahead, MAX_READ_BYTES)
        except (DamagedError, OSError) as error:
            self._fail(error)
        else:
            # Entries that are gone stand before the first one, or were reclaimed between two.
            expected = number
            for found in [entry.entry_id for entry in entries] or [end]:
                if found > expected:
                    self._source.skip(expected, found)
                expected = found + 1
            self._ahead = {entry.entry_id: entry for entry in entries}
            self.ahead_bytes = sum(len(entry.payload) for entry in entries)
        self._resume()

    def _resume(self) -> None:
        self._read = None
        self._ready()
        if self._read is None:
            self._call_idle()

    def _fail(self, error: Exception) -> None:
        self.failure = error
        _log.error("reading-failed", ledger=self._source.ledger.id, reason=str(error))
        if isinstance(error, OSError):
            self._retry = asyncio.get_running_loop().call_later(
                READ_RETRY_SECONDS, self._read_again
            )

    def _read_again(self) -> None:
        self._retry = self.failure = None
        self._ready()

    def _call_idle(self) -> None:
        waiting, self._idle = self._idle, []
        for callback in waiting:
            callback()


class Dispatcher(ABC):
    """Decides for one subscription which consumer gets the next entry."""

    __slots__ = ("_closed", "_passed_over", "_source", "consumers", "feed")

    kind: SubscriptionType

    def __init__(self, source: EntrySource) -> None:
        self.consumers: list[ClientConsumer] = []
        self.feed = EntryFeed(source, self.run)
        self._source = source
        self._passed_over: list[tuple[ClientConsumer, Entry, str]] = []
        self._closed = False
        self.rewind()

    def add(self, consumer: ClientConsumer) -> None:
        """Add a consumer; raise SubscriptionBusyError, HashRangeError."""
        self.feed.supply(consumer.link)
        self.consumers.append(consumer)

    def remove(self, consumer: ClientConsumer) -> None:
        """Remove a consumer; what it did not acknowledge will be delivered again."""
        self.consumers.remove(consumer)

    @abstractmethod
    def run(self) -> None:
        """Send what can be sent now."""

    @abstractmethod
    def redeliver(self, consumer: ClientConsumer, entries: Iterable[int]) -> None:
        """Deliver again what the consumer returns; no entries: all that it has."""

    def acknowledged(self, entries: Iterable[int]) -> None:  # noqa: B027 - for shared ones
        """Release these entries, which are acknowledged."""

    def hold_out(self, entries: Iterable[int]) -> None:
        """Release these entries, which a transaction acknowledged that is open."""
        self.acknowledged(entries)

    def restore(self, entries: Iterable[int]) -> None:
        """Deliver these entries again, whose transaction was aborted, and what is behind them."""
        self.rewind()
        self.run()

    def release_acknowledged(self) -> None:  # noqa: B027 - for shared ones
        """Release all entries that are acknowledged: all before one were."""

    def rewind(self) -> None:
        """Go back to the first entry that is not acknowledged."""
        self.feed.rewind(self._source.cursor.mark_delete + 1)

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call back when all that can be delivered is."""
        if self._passed_over:
            asyncio.get_running_loop().call_soon(self.when_settled, callback)
        else:
            self.feed.when_idle(callback)

    def close(self) -> None:
        """Stop for good."""
        self._closed = True
        self.feed.close()
        # A connection that was waited for calls `run` once more when it is writable again.
        for consumer in self.consumers:
            consumer.permits = 0

    def _deliver(self, consumer: ClientConsumer, entry: Entry, redeliveries: int) -> None:
        left = self._source.delivered.ack_set(entry.entry_id) or ()
        try:
            consumer.deliver(entry, redeliveries, left)
        except UnreadableEntryError as error:
            self._pass_over(consumer, entry, str(error))

    def _pass_over(self, consumer: ClientConsumer, entry: Entry, reason: str) -> None:
        """Skip an entry soon that cannot be sent: its caller is in the middle of sending.

        What it meets until then is reported together.
        """
        if not self._passed_over:
            asyncio.get_running_loop().call_soon(self._skip_passed_over)
        self._passed_over.append((consumer, entry, reason))

    def _skip_passed_over(self) -> None:
        """Take entries that their consumer's protocol has no form for as acknowledged.

        As with damage that is not journaled: after a restart they are met again.
        """
        passed_over, self._passed_over = self._passed_over, []
        entries = [entry.entry_id for _, entry, _ in passed_over]
        source = self._source
        source.context.tally.damaged += len(entries)
        _log.error(
            "unreadable-entries-skipped",
            ledger=source.ledger.id,
            subscription=source.name,
            first=min(entries),
            last=max(entries),
            entries=len(entries),
            reason=passed_over[0][2],
        )
        for consumer, entry, _ in passed_over:
            source.cursor.skip(entry.entry_id, entry.entry_id)
            if not self._closed:
                consumer.permits += entry.messages
        self.acknowledged(entries)
        self.run()
        source.notify_end()
