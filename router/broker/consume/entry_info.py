"""What delivery knows of a stored entry besides its bytes: `EntryInfo`, by a format that reads it.

Delivery never parses a payload. Each stored format has a module in `router.broker.entries` that
can; the table of them, by the format tag of an entry, is handed in when the broker starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from router.model import NO_PROPERTIES


class UnreadableEntryError(Exception):
    """A stored entry cannot be given to a reader, for the reason that the sentence says."""


class MessageChunk(NamedTuple):
    """Which part an entry is of a message that is stored in several entries.

    `message` is a hash of the message's id, the same in all its chunks. `number` counts from 0 to
    before `total`.
    """

    message: int
    number: int
    total: int


class MessageKey(NamedTuple):
    """The key of a message, None: it has none; a tombstone says that its key is deleted."""

    key: bytes | None
    tombstone: bool


class EntryInfo(Protocol):
    """The description of one entry; what is not asked for is not read."""

    @property
    def messages(self) -> int:
        """Return how many messages the entry holds."""
        ...

    @property
    def deliver_at_ms(self) -> int:
        """Return when the entry may be delivered, in ms since 1970; 0: at once."""
        ...

    @property
    def chunk(self) -> MessageChunk | None:
        """Return which part of a message the entry is; None: its messages are whole."""
        ...

    @property
    def producer(self) -> tuple[str, int]:
        """Return the name of the producer and the sequence id of the entry's first message."""
        ...

    def key_hash(self) -> int:
        """Return the hash (`hashing.murmur3`) of what decides which Key_Shared consumer gets it.

        All formats hash the bytes of the first message's key, so that a key meets one consumer
        whatever wrote it. An entry without a key has a hash of its own.
        """
        ...

    def properties(self) -> Sequence[Mapping[str, str]]:
        """Return the properties of each message; raise UnreadableEntryError."""
        ...


class EntryFormat(Protocol):
    """What delivery asks of a stored format. Payloads that are not sound are described too."""

    def describe(self, payload: bytes) -> EntryInfo:
        """Return the description of an entry."""
        ...

    def describe_special(self, payload: bytes) -> EntryInfo | None:
        """Return the description of an entry that has a time of delivery or is a chunk.

        None: any other. It is called for each entry that is delivered, so it should be quick; an
        entry that has neither may be described all the same.
        """
        ...


class OpaqueEntry:
    """The description of an entry of which nothing is known: one message, at once, no key."""

    messages: Final = 1
    deliver_at_ms: Final = 0
    chunk: Final = None
    producer: Final = ("", 0)

    def key_hash(self) -> int:
        """Return 0: all such entries have the same key."""
        return 0

    def properties(self) -> Sequence[Mapping[str, str]]:
        """Return no properties."""
        return (NO_PROPERTIES,)


OPAQUE_ENTRY: Final = OpaqueEntry()
