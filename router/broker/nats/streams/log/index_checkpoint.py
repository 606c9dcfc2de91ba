"""The checkpoint of a subject index: a file in the data folder, written as a whole.

It says up to which entry it goes, and what was deleted of that. A start that finds another set of
deleted messages, a damaged file or none, builds the index from the log: the file is only a shortcut
and is never trusted against the log. It is written when the broker ends, and now and then of an
index that has grown, after everything that it says is on disk.
"""

from __future__ import annotations

import asyncio
import os
from array import array
from dataclasses import dataclass
from pathlib import Path
from struct import Struct, error
from typing import Final

import structlog

from router.broker.consume.visible import Visible
from router.broker.disk.files import crc32c
from router.broker.nats.streams.log.deadlines import Deadline
from router.broker.nats.streams.log.indexing import Indexer
from router.broker.nats.streams.log.subject_index import SubjectState
from router.broker.storage import Store, StoreError

_MAGIC: Final = b"RSIX"
_VERSION: Final = 3
_HEAD: Final = Struct(">4sHQQQQQQQIQQQ?")
_SUM: Final = Struct(">I")
_NUMBERS: Final = 5
"""Of each subject: count, first, last, flags, places."""
_NO_PLACES: Final = 1 << 32
_DEADLINE_NUMBERS: Final = 5
"""Of each deadline: time, sequence, place of the subject, size, whether it is a marker's."""
FOLDER: Final = "subjects"
MIN_GROWTH_ENTRIES: Final = 1_000
"""Entries behind the last checkpoint after which another one is worth its while."""
MAX_LIVE_SUBJECTS: Final = 50_000
"""Of an index that is written while it is used: a tenth of a second of the event loop."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class IndexCheckpoint:
    """An index up to the entry before `position`, and what it was taken from."""

    position: int
    messages: int
    bytes: int
    unreadable: int
    foreign: bool
    subjects: dict[str, SubjectState]
    deadlines: list[Deadline]


class IndexFile:
    """The checkpoint of one ledger; `words` are what the subjects of its messages depend on."""

    def __init__(self, folder: Path, visible: Visible) -> None:
        self._visible = visible
        self._ledger = visible.ledger
        self.path = folder / FOLDER / f"{visible.ledger.id}.idx"
        self._saved_entry = 0

    async def restore(self, indexer: Indexer, words: str) -> None:
        """Give an indexer what the file holds, if that belongs to the ledger as it is."""
        try:
            data = await asyncio.to_thread(_read, self.path)
        except OSError as failure:  # without it all of the log is read
            _log.warning("nats-index-not-read", ledger=self._ledger.id, reason=str(failure))
            return
        found = load(data, self._visible, _key(words)) if data else None
        if found is not None:
            indexer.index.restore(found.subjects, found.messages, found.bytes)
            indexer.resume(found.position, found.unreadable, found.deadlines, foreign=found.foreign)
            self._saved_entry = found.position
        elif data:
            # Not at a later start either, when the log has grown beyond the place that it names.
            await self.erase()

    def is_due(self, indexer: Indexer, min_growth_entries: int) -> bool:
        """Return whether it is worth its while to write down an index that is in use."""
        grown = self._ledger.next_entry - self._saved_entry
        return grown >= min_growth_entries and len(indexer.index.subjects) <= MAX_LIVE_SUBJECTS

    async def save(self, indexer: Indexer, words: str, store: Store) -> None:
        """Write the index down, unless it is not complete."""
        ledger, index = self._ledger, indexer.index
        if not indexer.advance() or not indexer.has_all or index.overflowed:
            return
        position = ledger.next_entry
        data = dump(self._visible, indexer, _key(words))
        try:
            await store.synced()
            await asyncio.to_thread(_write, self.path, data)
            self._saved_entry = position
        except (OSError, StoreError) as failure:
            _log.warning("nats-index-not-saved", ledger=ledger.id, reason=str(failure))

    async def erase(self) -> None:
        """Remove the file: the topic is deleted."""
        await asyncio.to_thread(self.path.unlink, missing_ok=True)


def dump(visible: Visible, indexer: Indexer, key: int) -> bytes:
    """Return the bytes of a checkpoint of all that was appended.

    `key` names the configuration that it was made under.
    """
    ledger, index, numbers, places = visible.ledger, indexer.index, array("Q"), array("Q")
    for state in index.subjects.values():
        held = state.places
        flags = state.first_exact | state.last_exact << 1
        size = _NO_PLACES if held is None else len(held)
        numbers.extend((state.count, state.first, state.last, flags, size))
        for place in held or ():
            places.extend(place)
    deadlines = _numbers_of_deadlines(indexer)
    names = "\n".join(index.subjects).encode()
    head = _HEAD.pack(
        _MAGIC,
        _VERSION,
        ledger.id,
        ledger.next_entry,
        index.messages,
        index.bytes,
        indexer.unreadable,
        ledger.first_number,
        _left_out(visible),
        key,
        len(names),
        len(index.subjects),
        len(deadlines) // _DEADLINE_NUMBERS,
        indexer.foreign,
    )
    body = head + names + deadlines.tobytes() + numbers.tobytes() + places.tobytes()
    return body + _SUM.pack(crc32c(body, 0))


def load(data: bytes, visible: Visible, key: int) -> IndexCheckpoint | None:
    """Return a checkpoint; None: it is damaged, or not of the ledger as it is now."""
    ledger = visible.ledger
    try:
        head = _HEAD.unpack_from(data)
        (checksum,) = _SUM.unpack_from(data, len(data) - _SUM.size)
    except error:
        return None
    if crc32c(data[: -_SUM.size], 0) != checksum:
        return None
    magic, version, ledger_id, position, messages, size, unreadable = head[:7]
    first_number, deleted, made_under, names_size, count, timed, foreign = head[7:]
    if (magic, version, ledger_id, made_under) != (_MAGIC, _VERSION, ledger.id, key):
        return None
    if (first_number, deleted) != (ledger.first_number, _left_out(visible)):
        return None
    if position > ledger.durable_entry:
        return None
    at = _HEAD.size + names_size
    names = data[_HEAD.size : at].decode().split("\n") if count else []
    numbers, places, times = array("Q"), array("Q"), array("Q")
    times.frombytes(data[at : at + 8 * _DEADLINE_NUMBERS * timed])
    at += 8 * _DEADLINE_NUMBERS * timed
    numbers.frombytes(data[at : at + 8 * _NUMBERS * count])
    places.frombytes(data[at + 8 * _NUMBERS * count : -_SUM.size])
    subjects: dict[str, SubjectState] = {}
    taken = 0
    for place, name in enumerate(names):
        found, first, last, flags, held = numbers[place * _NUMBERS : (place + 1) * _NUMBERS]
        state = subjects[name] = SubjectState(first, None)
        state.count, state.last = found, last
        state.first_exact, state.last_exact = bool(flags & 1), bool(flags & 2)
        if held != _NO_PLACES:
            pairs = places[taken : taken + 2 * held]
            state.places = list(zip(pairs[::2], pairs[1::2], strict=True))
            taken += 2 * held
    rows = zip(*(times[part::_DEADLINE_NUMBERS] for part in range(_DEADLINE_NUMBERS)), strict=True)
    deadlines = [
        Deadline(at_ms, seq, names[place], held, bool(marks))
        for at_ms, seq, place, held, marks in rows
    ]
    return IndexCheckpoint(position, messages, size, unreadable, foreign, subjects, deadlines)


def _numbers_of_deadlines(indexer: Indexer) -> array[int]:
    """Return the deadlines of messages whose subjects are there; others are deleted."""
    numbers = array("Q")
    if indexer.deadlines:
        places = {subject: place for place, subject in enumerate(indexer.index.subjects)}
        for at_ms, sequence, subject, size, is_marker in indexer.deadlines:
            if subject in places:
                numbers.extend((at_ms, sequence, places[subject], size, is_marker))
    return numbers


def _write(path: Path, data: bytes) -> None:
    """Write a file as a whole, or leave the one before. Raises OSError."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    new = path.with_suffix(".new")
    with new.open("wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _read(path: Path) -> bytes:
    """Return the bytes of a file, empty if there is none. Raises OSError."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _left_out(visible: Visible) -> int:
    """Return a number that differs for other sets of messages that are left out or given up."""
    flat = array("Q")
    for span in visible.left_out(visible.ledger.first_number):
        flat.extend(span)
    for hole in visible.ledger.holes:
        flat.extend((hole.first, hole.last))
    return crc32c(flat.tobytes(), 0) | visible.leaves_out << 32 & 0x7FFFFFFF_00000000


def _key(words: str) -> int:
    """Return a number that differs for other words."""
    return crc32c(words.encode(), 0)
