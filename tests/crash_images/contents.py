"""What a data folder holds, as a broker's store opens it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from router.broker.node.registry import FileRegistry
from router.broker.storage import (
    Cursor,
    DamagedError,
    Entry,
    Ledger,
    Store,
    StoreOptions,
    bits,
)
from router.sharing.registry import RegistryRecord
from tests.crash_images.facts import names_in

OPTIONS: Final = StoreOptions(
    segment=24 << 10, journal=24 << 10, cache=64 << 10, reserve=0, open_files=64
)
"""As the recorded router has them."""
STREAMS: Final = "nats-stream"
_READ_ENTRIES: Final = 50
_READ_BYTES: Final = 1 << 20


@dataclass
class Message:
    """A value that is served: its name, the entry it is in, and its number in the partition."""

    name: str
    entry: int
    number: int


@dataclass
class Group:
    """A subscription: what it has acknowledged of what is kept, and its commit.

    Messages are acknowledged: pairs of their entry and number.
    """

    acknowledged: set[tuple[int, int]]
    commit: int | None

    def without(self, damage: Sequence[tuple[int, int]]) -> Group:
        """Return the group without the entries of ranges, ends included."""
        kept = {m for m in self.acknowledged if not any(a <= m[0] <= b for a, b in damage)}
        return Group(kept, self.commit)


@dataclass
class Partition:
    """A partition: what is served of it, and what clients have with it."""

    ledger: int
    next_entry: int
    next_number: int
    messages: list[Message] = field(default_factory=list)
    groups: dict[str, Group] = field(default_factory=dict)
    producers: dict[str, int] = field(default_factory=dict)
    """The entry that each named producer stored last."""
    damage: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of entries that cannot be read, ends included."""
    settings: str = ""
    """Policies and properties of the topic and of its groups."""


@dataclass
class Contents:
    """Topics by their names, and the registry's records by kind and name."""

    topics: dict[str, list[Partition]]
    records: dict[str, dict[str, RegistryRecord]]


@asynccontextmanager
async def opened(folder: Path, *, close: bool) -> AsyncIterator[tuple[Store, FileRegistry]]:
    """Open a folder as a broker does; without `close` its process is as if killed.

    Raises StoreError if it cannot be opened.
    """
    registry = await FileRegistry.open(folder)
    try:
        store = await Store.open(folder, OPTIONS, time.time)  # noqa: TID251 - its clock
        try:
            yield store, registry
        finally:
            if not close:
                store.fail(PermissionError(13, "killed"))
            await store.close()
    finally:
        await registry.close()


async def read(store: Store, registry: FileRegistry) -> Contents:
    """Return all that is there; raises ValueError if a value is not as it was published."""
    topics = {}
    for record in store.topics():
        ledgers = [store.ledger(number) for number in record.ledger_ids]
        topics[record.name] = parts = [await _partition(store, ledger) for ledger in ledgers]
        for part, ledger in zip(parts, ledgers, strict=True):
            groups = {
                one.name: (one.properties, one.passive) for one in store.subscriptions(ledger.id)
            }
            part.settings = f"{record.policies} {record.properties} {sorted(groups.items())}"
    streams = {record.name: record for record in await registry.list(STREAMS)}
    return Contents(topics, {STREAMS: streams})


async def _partition(store: Store, ledger: Ledger) -> Partition:
    found = Partition(ledger.id, ledger.next_entry, ledger.next_index)
    entries = []
    start = ledger.first_entry
    while start < ledger.durable_entry:
        try:
            read = await ledger.read(start, _READ_ENTRIES, _READ_BYTES)
        except DamagedError as error:
            found.damage.append((error.first, error.last))
            start = error.last + 1
            continue
        if not read:
            break
        entries += read
        start = read[-1].entry_id + 1
    for entry in entries:
        found.messages += _messages(ledger, entry)
    for record in store.subscriptions(ledger.id):
        acknowledged = {pair for e in entries for pair in _acknowledged(record.cursor, e)}
        commit = None if record.commit is None else record.commit.number
        found.groups[record.name] = Group(acknowledged, commit)
    for name, state in ledger.producers:
        found.producers[name] = state.entry
    return found


def _acknowledged(cursor: Cursor, entry: Entry) -> Iterator[tuple[int, int]]:
    """Yield the messages of an entry that are acknowledged: some of them may be, or all."""
    whole = cursor.is_acked(entry.entry_id)
    left = bits(cursor.ack_set(entry.entry_id))
    for place in range(entry.messages):
        if whole or (left and not left >> place & 1):
            yield entry.entry_id, entry.index + 1 - entry.messages + place


def _messages(ledger: Ledger, entry: Entry) -> list[Message]:
    names = names_in(entry.payload)
    first = entry.index + 1 - entry.messages
    if len(names) != entry.messages:
        raise ValueError(f"entry {entry.entry_id} of ledger {ledger.id} has the values {names}")
    return [
        Message(name, entry.entry_id, first + place)
        for place, name in enumerate(names)
        if not ledger.deleted_numbers.covers(first + place, first + place)
    ]
