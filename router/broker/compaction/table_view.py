"""Owns the calls of administration about keys: the table view of a topic, compaction on request.

The table view has the newest value of each key, over all partitions. A key that stands in several
partitions, because its publishers chose them in different ways, has the value that was
stored last. A page is bounded in keys, in bytes of values, and in what is taken apart for it: an
entry once, beside the event loop, however many of its messages the page has.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from router.broker.compaction.compactor import LEAST_DONE_FIRST, Compactor
from router.broker.compaction.indexes import KeyedFormat, KeyIndexes
from router.broker.compaction.key_index import IndexDamagedError, KeyedMessage
from router.broker.consume import Partition
from router.broker.consume.entry_info import UnreadableEntryError
from router.broker.storage import DamagedError, Entry
from router.broker.topics.calls import AdminCalls
from router.broker.topics.topics import Topics
from router.errors import BadRequestError, NotAllowedError, ReadFailedError, ValueNotFoundError
from router.errors.quoting import quoted
from router.model import Message, TopicName

MAX_PAGE_KEYS: Final = 1_000
MAX_PAGE_BYTES: Final = 1 << 20
"""Of values, keys and properties; the page ends behind the one that is over it."""
MAX_OPENED_BYTES: Final = 32 << 20
MAX_OPENED_MESSAGES: Final = 100_000
"""Of the entries that a page takes apart; it ends behind the one that is over either."""
MAX_VALUE_BYTES: Final = 3 << 20
"""Of one value with its key and properties: an answer has to fit into a frame."""


class ReadableFormat(KeyedFormat, Protocol):
    """A format of entries that can be taken apart."""

    def to_messages(self, payload: bytes) -> Sequence[Message]:
        """Return all messages of an entry; raise UnreadableEntryError."""
        ...


class _Row(NamedTuple):
    partition: Partition
    newest: KeyedMessage


class _OpenedEntries:
    """The entries that were taken apart for an answer, by ledger and id."""

    def __init__(self) -> None:
        self.entries: dict[tuple[int, int], Sequence[Message]] = {}
        self._messages = self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Return whether no more should be taken apart."""
        return self._messages > MAX_OPENED_MESSAGES or self._bytes > MAX_OPENED_BYTES

    def add(self, place: tuple[int, int], messages: Sequence[Message], size: int) -> None:
        """Take the messages of an entry, of so many bytes."""
        self.entries[place] = messages
        self._messages += len(messages)
        self._bytes += size


class CompactionCalls(AdminCalls):
    """The calls of administration, with those about the values of keys.

    `clean` is called to have topics cleaned soon whose cleanup policy is compaction.
    """

    def __init__(
        self,
        topics: Topics,
        indexes: KeyIndexes,
        compactor: Compactor,
        formats: Mapping[int, ReadableFormat],
        clean: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(topics)
        self._indexes = indexes
        self._compactor = compactor
        self._formats = formats
        self._clean = clean

    async def compact(self, topic: str) -> None:
        """Begin to compact a topic or partition; raise ConflictError if that is under way.

        A topic whose cleanup policy is compaction is cleaned soon, if that is due.
        """
        for partition in self._topics.pieces(self._topics.parse(topic)):
            self._compactor.begin(partition)
        if self._topics.policies(self._topics.whole(topic)).compacts:
            self._clean()

    async def compaction(self, topic: str) -> Sequence[str]:
        """Return the status of a partition's last compaction, see `Compactor`, and why it failed.

        Those of a topic with partitions: of the one that is the least done.
        """
        found = [
            self._compactor.status(one) for one in self._topics.pieces(self._topics.parse(topic))
        ]
        status, last_error = min(found, key=lambda one: LEAST_DONE_FIRST.index(one.status))
        return status, last_error

    async def latest_value(self, topic: str, key: str) -> Mapping[str, Any]:
        """Return the newest message of a key, which is in base64; see `_shown`.

        Raises ValueNotFoundError if the key has none, or was deleted.
        """
        name = self._compacted(topic)
        key_bytes = _bytes(key)
        rows = []
        for partition in self._topics.pieces(name):
            found = await self._newest(partition, key_bytes)
            if found is not None:
                rows.append(_Row(partition, found))
        if not rows:
            raise ValueNotFoundError(f"{name} has no key {_text(key_bytes)}")
        newest = max(rows, key=lambda row: row.newest.time_ms)
        shown = await self._shown(newest, _OpenedEntries())
        if shown is None:
            raise ValueNotFoundError(f"{name}: the key {_text(key_bytes)} is deleted")
        return shown

    async def latest_values(self, topic: str, after: str | None, limit: int) -> Mapping[str, Any]:
        """Return the newest messages of the keys behind one, in base64, by key; None: the first.

        `values` are as of `latest_value`, maybe fewer than `limit`; `next` is where the next page
        goes on, None: there is none.
        """
        name = self._compacted(topic)
        limit = max(1, min(limit, MAX_PAGE_KEYS))
        after_key = None if after is None else _bytes(after)
        newest: dict[bytes, _Row] = {}
        for partition in self._topics.pieces(name):
            for found in await self._page(partition, after_key, limit + 1):
                present = newest.get(found.key)
                if present is None or present.newest.time_ms < found.time_ms:
                    newest[found.key] = _Row(partition, found)
        keys = sorted(newest)
        values: list[Mapping[str, Any]] = []
        size, opened = 0, _OpenedEntries()
        for place, key in enumerate(keys):
            if place == limit or size > MAX_PAGE_BYTES or opened.is_full:
                return {"values": values, "next": b64encode(keys[place - 1]).decode()}
            shown = await self._shown(newest[key], opened)
            if shown is not None:
                values.append(shown)
                size += shown["size"]
        return {"values": values, "next": None}

    def _compacted(self, text: str) -> TopicName:
        """Return a topic's name; raise NotAllowedError if it is not compacted."""
        name = self._topics.parse(text)
        if not self._topics.policies(self._topics.whole(text)).compacts:
            raise NotAllowedError(
                f"{name} is not compacted: only a topic with the cleanup policy compact has the"
                " newest value of each key (cleanupPolicy, or cleanup.policy in Kafka)"
            )
        return name

    async def _newest(self, partition: Partition, key: bytes) -> KeyedMessage | None:
        try:
            return await self._indexes.of(partition.visible).find(key)
        except IndexDamagedError as error:
            raise ReadFailedError(f"the index of keys: {error}") from error

    async def _page(
        self, partition: Partition, after_key: bytes | None, limit: int
    ) -> list[KeyedMessage]:
        try:
            return await self._indexes.of(partition.visible).page(after_key, limit)
        except IndexDamagedError as error:
            raise ReadFailedError(f"the index of keys: {error}") from error

    async def _shown(self, row: _Row, opened: _OpenedEntries) -> dict[str, Any] | None:
        """Return a key's newest message for JSON; None: it is deleted. Raises ReadFailedError.

        A message that is gone was superseded meanwhile, and a newer one of its key has its place.
        """
        partition, newest = row
        message = None
        while message is None:
            if newest.tombstone:
                return None
            message = await self._message(partition, newest.number, opened)
            if message is None:
                newer = await self._newest(partition, newest.key)
                if newer is None or newer.number <= newest.number:
                    return None
                newest = newer
        size, number = message.size(), newest.number
        if size > MAX_VALUE_BYTES:
            raise ReadFailedError(f"the message {number} of {size} bytes is too large to be shown")
        return {
            "key": b64encode(newest.key).decode(),
            "value": b64encode(message.value).decode(),
            "properties": dict(message.properties),
            "time_ms": newest.time_ms,
            "partition": max(0, partition.index),
            "number": number,
            "size": size,
        }

    async def _message(
        self, partition: Partition, number: int, opened: _OpenedEntries
    ) -> Message | None:
        """Return a message; None: it is gone, or not visible. Raises ReadFailedError."""
        visible = partition.visible
        if not visible.contains(number):
            return None
        try:
            entries = await visible.read(await partition.ledger.entry_of_number(number), 1, 1)
            if not entries or number <= entries[0].index - entries[0].messages:
                return None
            place = number - (entries[0].index + 1 - entries[0].messages)
            return (await self._messages(partition, entries[0], opened))[place]
        except (DamagedError, UnreadableEntryError, IndexError) as error:
            raise ReadFailedError(f"the message {number}: {error}") from error

    async def _messages(
        self, partition: Partition, entry: Entry, opened: _OpenedEntries
    ) -> Sequence[Message]:
        """Return all messages of an entry; raise UnreadableEntryError."""
        place = partition.ledger.id, entry.entry_id
        if (found := opened.entries.get(place)) is not None:
            return found
        codec = self._formats[entry.format]
        messages, size = await self._indexes.in_thread(_take_apart, codec, entry.payload)
        opened.add(place, messages, size)
        return messages


def _take_apart(codec: ReadableFormat, payload: bytes) -> tuple[Sequence[Message], int]:
    messages = codec.to_messages(payload)
    return messages, sum(message.size() for message in messages)


def _text(key: bytes) -> str:
    return quoted(key.decode(errors="replace"))


def _bytes(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError as error:
        raise BadRequestError("a key is not in base64") from error
