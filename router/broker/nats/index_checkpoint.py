"""The checkpoint of a subject index: a file beside the ledger's segments, written as a whole.

It says up to which entry it goes, and what was deleted of that. A start that finds another set of
deleted messages, a damaged file or none, builds the index from the log: the file is only a shortcut
and is never trusted against the log.
"""

from __future__ import annotations

import os
from array import array
from dataclasses import dataclass
from pathlib import Path
from struct import Struct, error
from typing import Final

from router.broker.nats.subject_index import SubjectState
from router.broker.storage import Ledger
from router.broker.storage.records import crc32c

_MAGIC: Final = b"RSIX"
_VERSION: Final = 1
_HEAD: Final = Struct(">4sHQQQQQQQIQQ?")
_SUM: Final = Struct(">I")
_NUMBERS: Final = 5
"""Of each subject: count, first, last, flags, places."""
_NO_PLACES: Final = 1 << 32
FOLDER: Final = "subjects"


@dataclass(frozen=True, slots=True)
class IndexCheckpoint:
    """An index up to the entry before `position`, and what it was taken from."""

    position: int
    messages: int
    bytes: int
    unreadable: int
    foreign: bool
    subjects: dict[str, SubjectState]


def path_of(folder: Path, ledger_id: int) -> Path:
    """Return the file of a ledger."""
    return folder / FOLDER / f"{ledger_id}.idx"


def dump(ledger: Ledger, checkpoint: IndexCheckpoint, key: int) -> bytes:
    """Return the bytes of a checkpoint; `key` names the configuration that it was made under."""
    numbers, places = array("Q"), array("Q")
    for state in checkpoint.subjects.values():
        held = state.places
        flags = state.first_exact | state.last_exact << 1
        size = _NO_PLACES if held is None else len(held)
        numbers.extend((state.count, state.first, state.last, flags, size))
        for place in held or ():
            places.extend(place)
    names = "\n".join(checkpoint.subjects).encode()
    head = _HEAD.pack(
        _MAGIC,
        _VERSION,
        ledger.id,
        checkpoint.position,
        checkpoint.messages,
        checkpoint.bytes,
        checkpoint.unreadable,
        ledger.first_number,
        _deleted(ledger),
        key,
        len(names),
        len(checkpoint.subjects),
        checkpoint.foreign,
    )
    body = head + names + numbers.tobytes() + places.tobytes()
    return body + _SUM.pack(crc32c(body, 0))


def load(data: bytes, ledger: Ledger, key: int) -> IndexCheckpoint | None:
    """Return a checkpoint; None: it is damaged, or not of the ledger as it is now."""
    try:
        head = _HEAD.unpack_from(data)
        (checksum,) = _SUM.unpack_from(data, len(data) - _SUM.size)
    except error:
        return None
    if crc32c(data[: -_SUM.size], 0) != checksum:
        return None
    magic, version, ledger_id, position, messages, size, unreadable = head[:7]
    first_number, deleted, made_under, names_size, count, foreign = head[7:]
    if (magic, version, ledger_id, made_under) != (_MAGIC, _VERSION, ledger.id, key):
        return None
    if (first_number, deleted) != (ledger.first_number, _deleted(ledger)):
        return None
    if position > ledger.durable_entry:
        return None
    at = _HEAD.size + names_size
    names = data[_HEAD.size : at].decode().split("\n") if count else []
    numbers, places = array("Q"), array("Q")
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
    return IndexCheckpoint(position, messages, size, unreadable, foreign, subjects)


def write(path: Path, data: bytes) -> None:
    """Write a file as a whole, or leave the one before. Raises OSError."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    new = path.with_suffix(".new")
    with new.open("wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def read(path: Path) -> bytes:
    """Return the bytes of a file, empty if there is none. Raises OSError."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _deleted(ledger: Ledger) -> int:
    """Return a number that differs for other sets of deleted messages."""
    flat = array("Q")
    for span in ledger.deleted.ranges(ledger.first_number):
        flat.extend(span)
    return crc32c(flat.tobytes(), 0) | ledger.deleted.count << 32 & 0x7FFFFFFF_00000000


def digest(data: bytes) -> int:
    """Return a number that differs for other bytes."""
    return crc32c(data, 0)
