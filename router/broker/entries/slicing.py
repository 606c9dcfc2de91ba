"""Entries that polls are in the middle of: opened once, and given out in slices.

A poll that takes one message of a batch of 500 costs what one message costs: the batch is kept as
it was opened, its messages are found as far as polls have come, and a slice is a batch of its own
with the messages that are taken. An entry of which all that is left is taken is given as it is
stored. What is no batch, or would take long to decompress, is given whole.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError  # noqa: N812 - its own name says nothing
from typing import Final

from router.broker.consume.polls.reader import OpenedEntry
from router.broker.entries import Transcoder
from router.broker.storage import PULSAR_FORMAT, Entry
from router.wire import ProtocolError
from router.wire.pulsar import join_payload, split_payload
from router.wire.pulsar.batches import Header, described, inflate, read_head
from router.wire.pulsar.pulsar_pb2 import NONE, MessageMetadata

MAX_INFLATED_HERE: Final = 256 << 10
"""Of a compressed batch: more is left to the worker, for the event loop would wait for it."""
_SIZE: Final = Struct(">I")


class EntryOpener:
    """Opens stored entries of any format as readers of Pulsar's format are given them."""

    def __init__(self, transcoder: Transcoder) -> None:
        self._transcoder = transcoder
        self.prepare = transcoder.prepare

    def open(self, ledger_id: int, entry: Entry) -> OpenedEntry:
        """Return an entry opened; raise UnreadableEntryError if the format has no form for it."""
        payload = entry.payload
        if entry.format != PULSAR_FORMAT:
            payload = self._transcoder.payload(ledger_id, entry, PULSAR_FORMAT)
        try:
            parts = split_payload(payload)
        except ProtocolError:
            return OpenedEntry(entry, payload, len(payload))
        metadata, body = parts.metadata, parts.body
        compressed = metadata.compression != NONE
        size = metadata.uncompressed_size if compressed else len(body)
        opaque = bool(metadata.encryption_keys) or metadata.num_chunks_from_msg > 1
        if opaque or parts.checksum_ok is False:
            return OpenedEntry(entry, payload, len(body))
        if not metadata.HasField("num_messages_in_batch"):
            return OpenedEntry(entry, payload, size + _described_size(metadata))
        if metadata.num_messages_in_batch != entry.messages or (
            compressed and size > MAX_INFLATED_HERE
        ):
            return OpenedEntry(entry, payload, size)
        try:
            plain = inflate(metadata, body, MAX_INFLATED_HERE) if compressed else body
        except ProtocolError:
            return OpenedEntry(entry, payload, size)
        metadata.ClearField("compression")
        metadata.ClearField("uncompressed_size")
        return BatchEntry(entry, payload, metadata, plain)


class BatchEntry(OpenedEntry):
    """A batch, of whose messages slices are made."""

    __slots__ = ("_body", "_ends", "_metadata", "_sizes")

    def __init__(
        self,
        entry: Entry,
        payload: bytes,
        metadata: MessageMetadata,
        body: memoryview | bytes,
    ) -> None:
        super().__init__(entry, payload, len(body))
        self.sliceable = True
        self.inflated = 0 if isinstance(body, memoryview) else len(body)
        self._metadata = metadata
        self._body = memoryview(body)
        self._ends = [0]
        self._sizes: list[int] = []

    def message_size(self, index: int) -> int:
        """Return the bytes of a message that count against limits; raise ValueError if damaged."""
        while len(self._sizes) <= index:
            self._find_next()
        return self._sizes[index]

    def slice(self, first: int, end: int) -> bytes:
        """Return the messages from `first` to before `end` as an entry of their own."""
        self.message_size(end - 1)
        metadata = self._metadata
        metadata.num_messages_in_batch = end - first
        return join_payload(metadata, bytes(self._body[self._ends[first] : self._ends[end]]))

    def _find_next(self) -> None:
        at, body = self._ends[-1], self._body
        start = at + _SIZE.size
        try:
            value_at = start + _SIZE.unpack_from(body, at)[0]
            size, key, single = read_head(bytes(body[start:value_at]))
        except (ProtocolError, StructError) as error:
            raise ValueError(f"a batch is not what its metadata says: {error}") from error
        end = value_at + size
        if not value_at <= end <= len(body):
            raise ValueError("a message is larger than its batch")
        if single is not None:
            size += _described_size(single)
        elif key is not None:
            size += len(key)
        self._ends.append(end)
        self._sizes.append(size)


def _described_size(header: Header) -> int:
    key, properties, _ = described(header)
    return len(key or b"") + sum(len(k) + len(v) for k, v in properties.items())
