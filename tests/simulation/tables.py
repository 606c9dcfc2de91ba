"""What must hold of a compacted topic: the log, folded by key, is the newest value of each key.

Each key has one publisher, whose messages are numbered, so that the newest of a key is the one with
the highest number. Every message carries its name in a header, because a tombstone has no value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tests.simulation.history import History
from tests.simulation.seeded import CLOCK

NAME_HEADER: Final = "name"


class Keyed(NamedTuple):
    """A message of a key; a tombstone deletes it."""

    key: str
    number: int
    is_tombstone: bool
    size: int


@dataclass
class KeyHistory:
    """What was published of a key; `newest` is the number that was acknowledged last."""

    newest: int = 0
    tombstones: list[tuple[int, float]] = field(default_factory=list)
    """Their numbers, and when each was sent first."""


@dataclass
class TableLog:
    """What is known of a partition; offsets are learned from scans."""

    sent: dict[str, Keyed] = field(default_factory=dict)
    keys: dict[str, KeyHistory] = field(default_factory=dict)
    offsets: dict[str, int] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    gone: dict[int, float] = field(default_factory=dict)
    """Offsets that a scan did not find any more, and when that was noticed."""
    present: set[int] = field(default_factory=set)


class Tables:
    """The partitions of a compacted topic, with what clients published and read of them."""

    def __init__(
        self, history: History, delete_retention: float, max_superseded_bytes: float
    ) -> None:
        self._history = history
        self._retention = delete_retention
        self._max_superseded_bytes = max_superseded_bytes
        self._logs: dict[int, TableLog] = {}

    def log(self, partition: int) -> TableLog:
        return self._logs.setdefault(partition, TableLog())

    def sending(self, partition: int, name: str, message: Keyed) -> None:
        """Note that a message is about to be sent for the first time."""
        log = self.log(partition)
        log.sent[name] = message
        key = log.keys.setdefault(message.key, KeyHistory())
        if message.is_tombstone:
            key.tombstones.append((message.number, CLOCK.now))

    def published(self, partition: int, names: Sequence[str]) -> None:
        """Note that messages were acknowledged."""
        log = self.log(partition)
        for name in names:
            message = log.sent[name]
            key = log.keys[message.key]
            key.newest = max(key.newest, message.number)

    def newest(self, partition: int) -> dict[str, int]:
        """Return the number that was acknowledged last of each key."""
        keys = self.log(partition).keys
        return {key: found.newest for key, found in keys.items() if found.newest}

    def scanned(
        self,
        partition: int,
        found: Sequence[tuple[int, str]],
        floor: Mapping[str, int],
        began_at: float,
    ) -> None:
        """Check a read of the whole log: offsets and names, with `newest` of when it began."""
        log = self.log(partition)
        self._check_places(log, found)
        self._check_gone(partition, log, {offset for offset, _ in found})
        took = CLOCK.now - began_at
        self.folded(
            partition, self.fold(partition, found), floor, may_be_stale=took >= self._retention
        )

    def fold(self, partition: int, found: Sequence[tuple[int, str]]) -> dict[str, int]:
        """Return the number of the last message of each key, in the order of the log."""
        folded: dict[str, int] = {}
        for _, name in found:
            key, number, _, _ = self.log(partition).sent[name]
            if number < folded.get(key, 0):
                self._history.violation("order of a key", f"{name} after {folded[key]} of {key}")
            folded[key] = number
        return folded

    def folded(
        self,
        partition: int,
        found: Mapping[str, int],
        floor: Mapping[str, int],
        *,
        may_be_stale: bool = False,
        leaves_out_deleted: bool = False,
    ) -> None:
        """Check the newest number of each key as a reader knows it, against `newest` of before.

        A tombstone that may be gone explains a key that is not there; or an older message of it, if
        the reader may have been too slow to meet the tombstone.
        """
        before = CLOCK.now - (0.0 if leaves_out_deleted else self._retention)
        for key, least in floor.items():
            number = found.get(key)
            if number is not None and number >= least:
                continue
            tombstones = self.log(partition).keys[key].tombstones
            may_be_gone = any(number >= least and at <= before for number, at in tombstones)
            if may_be_gone and (number is None or may_be_stale):
                continue
            text = f"{partition}: {key} at {number}, acknowledged was {least}; {tombstones[-3:]}"
            self._history.violation("the newest value of a key is not there", text)

    def is_clean(self, partition: int, found: Sequence[tuple[int, str]]) -> bool:
        """Return whether the log has no more superseded messages than the cleaner may leave."""
        sent, newest = self.log(partition).sent, self.fold(partition, found)
        messages = [sent[name] for _, name in found]
        live = sum(one.size for one in messages if one.number == newest[one.key])
        return sum(one.size for one in messages) <= 2 * live + self._max_superseded_bytes

    def _check_places(self, log: TableLog, found: Sequence[tuple[int, str]]) -> None:
        violation, last = self._history.violation, -1
        for offset, name in found:
            if offset <= last:
                violation("a gap in an answer", f"{name}: {offset} after {last}")
            last = offset
            if (known := log.names.setdefault(offset, name)) != name:
                violation("an entry changed", f"at {offset}: {name}, before {known}")
            if (place := log.offsets.setdefault(name, offset)) != offset:
                violation("a duplicate", f"{name} at {offset} and {place}")

    def _check_gone(self, partition: int, log: TableLog, offsets: set[int]) -> None:
        """Check that what a scan did not find stays away, once its deletion is on disk."""
        for offset in offsets & log.gone.keys():
            if log.gone.pop(offset) < self._history.synced_since:
                text = f"{partition}: {log.names[offset]} at {offset}"
                self._history.violation("a deleted message came back", text)
        missing = log.present - offsets
        log.gone.update(dict.fromkeys(missing - log.gone.keys(), CLOCK.now))
        log.present = offsets
        self._history.count("messages cleaned", len(missing))
