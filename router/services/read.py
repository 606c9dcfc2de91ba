"""Reading topics without a subscription: from a position, once or as a stream that goes on.

Theory of operation. A `MessageFeed` has a reader for each partition that it is asked for and takes
from them in turns. It begins at a start of the store's, or *after* a message, for which it opens
the reader at that message's entry and drops what is not behind it: a client that says which message
it had last continues exactly there, whether the entry is a batch or not. Where a feed stands is a
`StartPosition` for each partition, so that it can be told to the client and be given back by it.
The end of a topic is turned into the message that is the last one when the feed begins: a client
that had no message yet, and comes back, misses none.

A stream is the same feed, read on until its client leaves, its time is over or the worker stops.
The number of streams of a worker is bounded. Nothing is kept when one ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Generic, Protocol, TypeVar

from router.backends import Backend, Reader, Start
from router.errors import (
    NotAllowedError,
    NotSupportedError,
    TooManyRequestsError,
    TopicNotFoundError,
)
from router.model import NOT_PARTITIONED, PartitionStats, Position, Stored, TopicName
from router.node import Mailbox
from router.services.consume import ClientGoneError, PollMailbox, WaitingClient
from router.services.topic_metadata import TopicMetadataCache
from router.settings.options import SettingsOptions, from_setting

LAST_OF_BATCH: Final = 2**31 - 1
STREAM_MESSAGES: Final = 200


@dataclass(frozen=True, slots=True)
class After:
    """Behind a message."""

    position: Position


StartPosition = Start | int | Position | After
"""Where reading begins: at an end, a time in ms since 1970, a message, or behind one."""


def placed(mark: StartPosition, partition: int) -> StartPosition:
    """Return a place in this partition; an end or a time is in any."""
    if isinstance(mark, After):
        return After(replace(mark.position, partition=partition))
    return replace(mark, partition=partition) if isinstance(mark, Position) else mark


@dataclass(frozen=True, slots=True)
class ReadOptions(SettingsOptions):
    """The settings that reading reads; times in seconds."""

    backend_timeout: float = from_setting("backend.timeout")
    create_topics: bool = from_setting("pip64.auto_create")
    streams: int = from_setting("stream.connections")
    heartbeat: float = from_setting("stream.heartbeat")
    longest: float = from_setting("stream.max_duration")
    chunk: int = from_setting("stream.buffer")


@dataclass(frozen=True, slots=True)
class ReadBounds:
    """What one reading takes at most; `timeout` in seconds."""

    timeout: float
    limit: int
    max_bytes: int


class MessageFeed:
    """Messages of some partitions of a topic: each once, in the order of its partition."""

    def __init__(
        self,
        backend: Backend,
        topic: TopicName,
        starts: Mapping[int, StartPosition],
        mailbox: Mailbox,
        timeout: float,
    ) -> None:
        self.positions: dict[int, StartPosition] = dict(starts)
        self._timeout = timeout
        self._readers: dict[int, Reader] = {}
        self._after: dict[int, Position] = {}
        self._turns = list(starts)
        try:
            for partition, start in starts.items():
                self._readers[partition] = self._open(backend, topic, partition, start, mailbox)
        except BaseException:
            self.close()
            raise

    def _open(
        self,
        backend: Backend,
        topic: TopicName,
        partition: int,
        start: StartPosition,
        mailbox: Mailbox,
    ) -> Reader:
        if isinstance(start, After):
            self._after[partition] = start.position
            start = Position(start.position.ledger, start.position.entry, partition)
        return backend.read(topic, partition, start, mailbox, self._timeout)

    def take(self, limit: int, max_bytes: int) -> list[Stored]:
        """Return what is there, within the bounds; a larger message comes alone."""
        found: list[Stored] = []
        for partition in list(self._turns):
            room = max_bytes - sum(stored.message.size() for stored in found)
            if len(found) >= limit or (found and room <= 0):
                break
            some = self._receive(partition, limit - len(found), max(room, 1))
            if some:
                # The next call begins with another partition.
                self._turns.remove(partition)
                self._turns.append(partition)
            found += some
        return found

    def _receive(self, partition: int, limit: int, room: int) -> list[Stored]:
        reader, after = self._readers[partition], self._after.get(partition)
        while some := reader.receive(limit, room, self._timeout):
            if after is not None:
                some = [stored for stored in some if stored.position > after]
            if some:
                self._after.pop(partition, None)
                return some
        return []

    def had(self, stored: Stored) -> None:
        """Note that a message is handed on: what is told as `positions` is behind it."""
        self.positions[stored.position.partition] = After(stored.position)

    def close(self) -> None:
        """Close all readers; callable twice."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()


class TakingFeed(Protocol):
    """What a stream takes its messages from."""

    def take(self, limit: int, max_bytes: int) -> list[Stored]:
        """Return what is there, within the bounds."""
        ...

    def close(self) -> None:
        """Close all readers; callable twice."""
        ...


FeedType = TypeVar("FeedType", bound=TakingFeed)


class MessageStream(Generic[FeedType]):
    """A feed that goes on; iterating it gives messages, or none as a sign of life."""

    def __init__(
        self, service: TopicReader, feed: FeedType, mailbox: PollMailbox, client: WaitingClient
    ) -> None:
        self._service = service
        self._client = client
        self._mailbox = mailbox
        self._ended = False
        self.feed = feed

    def __iter__(self) -> Iterator[list[Stored]]:
        """Give what comes, until it is over; raise ClientGoneError, and what the store raises."""
        service = self._service
        end = service.clock() + service.options.longest
        while not service.stopping and service.clock() < end:
            if found := self.feed.take(STREAM_MESSAGES, service.options.chunk):
                yield found
            elif not self._wait(min(end, service.clock() + service.options.heartbeat)):
                yield []

    def _wait(self, until: float) -> bool:
        """Wait for a message; return False if there was none in that time."""
        if self._client.is_closed():
            raise ClientGoneError
        left = until - self._service.clock()
        if left <= 0:
            return False
        pause = self._client.check_seconds()
        self._mailbox.wait(min(left, pause))
        if self._client.is_closed():
            raise ClientGoneError
        # Looked at again in any case: what woke it may be the client, the store or the time.
        return self._service.clock() < until or self._service.stopping

    def close(self) -> None:
        """End; callable twice."""
        if not self._ended:
            self._ended = True
            self.feed.close()
            self._service.ended(self._mailbox)


@dataclass(eq=False)
class Repeated:
    """Fetches one after the other, as a stream."""

    _service: TopicReader
    _fetch: Callable[[float], list[Stored]]
    _mailbox: PollMailbox

    def __iter__(self) -> Iterator[list[Stored]]:
        """Give what is fetched, until it is over; raise what fetching raises."""
        service = self._service
        end = service.clock() + service.options.longest
        while not service.stopping and (left := end - service.clock()) > 0:
            yield self._fetch(min(left, service.options.heartbeat))

    def close(self) -> None:
        """End; callable twice."""
        self._service.ended(self._mailbox)


@dataclass(eq=False)
class TopicReader:
    """Reads topics; calls block, and may be made from many threads or greenlets."""

    _backend: Backend
    _topics_cache: TopicMetadataCache
    options: ReadOptions
    clock: Callable[[], float]
    stopping: bool = field(default=False, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _waiting: set[PollMailbox] = field(default_factory=set, init=False)
    _streams: set[PollMailbox] = field(default_factory=set, init=False)

    def partitions(self, topic: TopicName) -> list[int]:
        """Return the partitions of a topic as the store numbers them; raise TopicNotFoundError."""
        count = self._topics_cache.partitions(topic, create=self.options.create_topics)
        return list(range(count)) if count else [NOT_PARTITIONED]

    def partition(self, topic: TopicName, number: int) -> int:
        """Return a partition as the store numbers it; 0 of a plain topic is the topic.

        Raises TopicNotFoundError where there is none of that number.
        """
        found = self.partitions(topic)
        if not 0 <= number < len(found):
            raise TopicNotFoundError(
                f"topic {topic.local} has no partition {number}, but {len(found)}"
            )
        return found[number]

    def read(
        self,
        topic: TopicName,
        partition: int,
        start: StartPosition,
        bounds: ReadBounds,
        caller: tuple[PollMailbox, WaitingClient],
    ) -> list[Stored]:
        """Return messages, as soon as there are some, or none when the time is over.

        Raises TopicNotFoundError, ClientGoneError, and what the store raises.
        """
        mailbox, client = caller
        deadline = self.clock() + bounds.timeout
        feed = self.feed(topic, {partition: start}, mailbox)
        self._waiting.add(mailbox)
        try:
            while not (found := feed.take(bounds.limit, bounds.max_bytes)):
                if client.is_closed():
                    raise ClientGoneError
                left = deadline - self.clock()
                if left <= 0 or self.stopping:
                    return []
                mailbox.wait(min(left, client.check_seconds()))
        finally:
            self._waiting.discard(mailbox)
            feed.close()
        return found

    def stream(
        self,
        topic: TopicName,
        starts: Mapping[int, StartPosition],
        mailbox: PollMailbox,
        client: WaitingClient,
    ) -> MessageStream[MessageFeed]:
        """Begin a stream, which the caller closes.

        Raises TooManyRequestsError when the worker has as many as it may have.
        """
        self.begin(mailbox)
        try:
            anchored = self._anchored(topic, starts)
            return MessageStream(self, self.feed(topic, anchored, mailbox), mailbox, client)
        except BaseException:
            self.ended(mailbox)
            raise

    def repeated(self, fetch: Callable[[float], list[Stored]], mailbox: PollMailbox) -> Repeated:
        """Begin a stream of fetches, each of which waits so many seconds; the caller closes it."""
        self.begin(mailbox)
        return Repeated(self, fetch, mailbox)

    def begin(self, mailbox: PollMailbox) -> None:
        """Count a stream, until `ended`; raise TooManyRequestsError if there are enough."""
        with self._lock:
            if len(self._streams) >= self.options.streams:
                raise TooManyRequestsError(
                    f"There are {len(self._streams)} streams already (stream.connections).",
                    retry_after=5,
                )
            self._streams.add(mailbox)

    def ended(self, mailbox: PollMailbox) -> None:
        """Forget a stream."""
        with self._lock:
            self._streams.discard(mailbox)

    def stop(self) -> None:
        """Answer all that waits now, and end all streams."""
        self.stopping = True
        with self._lock:
            waiting = [*self._waiting, *self._streams]
        for mailbox in waiting:
            mailbox.wake()

    def feed(
        self, topic: TopicName, starts: Mapping[int, StartPosition], mailbox: PollMailbox
    ) -> MessageFeed:
        """Return a feed that begins there, which the caller closes; raise TopicNotFoundError."""
        try:
            return MessageFeed(self._backend, topic, starts, mailbox, self.options.backend_timeout)
        except TopicNotFoundError:
            self._topics_cache.forget(topic)
            raise

    def reader(
        self, topic: TopicName, partition: int, start: Start | int | Position, mailbox: Mailbox
    ) -> Reader:
        """Return a reader of one partition, which the caller closes; raise TopicNotFoundError."""
        try:
            return self._backend.read(
                topic, partition, start, mailbox, self.options.backend_timeout
            )
        except TopicNotFoundError:
            self._topics_cache.forget(topic)
            raise

    def has_lost(self, topic: TopicName, position: Position) -> bool:
        """Return whether a partition keeps no message up to a position any more; raises as `read`.

        False where the store does not describe its topics.
        """
        try:
            stats = self._backend.describe_topic(topic, self.options.backend_timeout)
        except (NotSupportedError, NotAllowedError):
            return False
        return any(
            found.partition == position.partition
            and (
                not found.messages
                or (found.ledger == position.ledger and found.first_entry > position.entry)
            )
            for found in stats.partitions
        )

    def _anchored(
        self, topic: TopicName, starts: Mapping[int, StartPosition]
    ) -> dict[int, StartPosition]:
        """Say where the end of each partition is, as long as it is asked for."""
        if Start.LATEST not in starts.values():
            return dict(starts)
        try:
            stats = self._backend.describe_topic(topic, self.options.backend_timeout)
        except (NotSupportedError, NotAllowedError):
            return dict(starts)  # a store that does not tell: it goes by the word then
        ends = {found.partition: found for found in stats.partitions}
        anchored = dict(starts)
        for partition, start in starts.items():
            end = ends.get(partition)
            if start is not Start.LATEST or end is None:
                continue
            anchored[partition] = end_of_partition(end)
        return anchored


def end_of_partition(found: PartitionStats) -> StartPosition:
    """Return where a partition ends: behind its last message, which may be gone by now."""
    if not found.messages:
        return Start.EARLIEST
    if not found.next_entry:
        return Position(found.ledger, 0, found.partition)
    return After(Position(found.ledger, found.next_entry - 1, found.partition, LAST_OF_BATCH))
