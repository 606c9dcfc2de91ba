"""Where the messages of a copied batch were read and where they are stored, in few numbers.

A batch of 5,000 messages that were published one by one is one run; one that lies in entries of
many messages has a run for each shape that follows another.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from router.backends import Receipt
from router.model import Position

Key = tuple[int, int, int]
"""Ledger, entry, index in the entry (0 where there is none): in the order of a partition."""
_LAST: Final = 2**31 - 1


def key_of(position: Position) -> Key:
    """Return what orders a position among those of its partition."""
    return position.ledger, position.entry, max(0, position.batch_index)


def end_key_of(position: Position) -> Key:
    """Return `key_of` where a position without an index is the last message of its entry."""
    index = position.batch_index if position.batch_index >= 0 else _LAST
    return position.ledger, position.entry, index


class EntryRun(NamedTuple):
    """So many `entries` in a row, each with so many `messages` from index `begin` on.

    `begin` is -1 where an entry is no batch; `size` is that of the batch, 0: unknown.
    """

    ledger: int
    entry: int
    entries: int
    begin: int
    messages: int
    size: int

    @property
    def total(self) -> int:
        """Return how many messages it has in all."""
        return self.entries * self.messages

    def positions(self, partition: int) -> Iterator[Position]:
        """Yield the messages' positions in order."""
        for entry in range(self.entry, self.entry + self.entries):
            for step in range(self.messages):
                index = self.begin + step if self.begin >= 0 else -1
                yield Position(self.ledger, entry, partition, index, self.size)

    def upto(self, key: Key) -> int:
        """Return how many messages of the run are at a place or before it."""
        ledger, entry, index = key
        if ledger != self.ledger:
            return self.total if ledger > self.ledger else 0
        ahead = entry - self.entry
        if ahead < 0:
            return 0
        if ahead >= self.entries:
            return self.total
        step = index - max(0, self.begin) + 1
        return ahead * self.messages + min(self.messages, max(0, step))


def runs_of(positions: Iterable[Position]) -> tuple[EntryRun, ...]:
    """Return the runs of positions that follow one another."""
    runs: list[EntryRun] = []
    for entry in _entries(positions):
        last = runs[-1] if runs else None
        if (
            last is not None
            and last[3:] == entry[3:]
            and (last.ledger, last.entry + last.entries) == entry[:2]
        ):
            runs[-1] = last._replace(entries=last.entries + 1)
        else:
            runs.append(entry)
    return tuple(runs)


def _entries(positions: Iterable[Position]) -> Iterator[EntryRun]:
    """Yield a run for each entry, or for each part of it whose messages follow one another."""
    at: EntryRun | None = None
    for found in positions:
        ledger, entry, index = found.ledger, found.entry, found.batch_index
        if at is not None:
            if index > 0 and (ledger, entry, index) == (
                at.ledger,
                at.entry,
                at.begin + at.messages,
            ):
                at = at._replace(messages=at.messages + 1)
                continue
            yield at
        at = EntryRun(ledger, entry, 1, index, 1, found.batch_size)
    if at is not None:
        yield at


def write_runs(runs: Sequence[EntryRun]) -> str:
    """Return runs as text."""
    return json.dumps(runs, separators=(",", ":"))


def read_runs(text: str) -> tuple[EntryRun, ...]:
    """Return the runs that a text says."""
    return tuple(EntryRun(*run) for run in json.loads(text))


def write_receipt(receipt: Receipt) -> str:
    """Return a receipt as text; whether it was a duplicate is not kept."""
    parts = [
        (at.ledger, at.entry, at.batch_index, at.batch_size, part.stored, int(part.flat))
        for part in receipt.parts or (receipt,)
        for at in (part.position,)
    ]
    return json.dumps(parts, separators=(",", ":"))


def read_receipt(text: str, partition: int) -> Receipt:
    """Return the receipt that a text says."""
    return Receipt.joined(
        [
            Receipt(Position(ledger, entry, partition, index, size), stored, flat=bool(flat))
            for ledger, entry, index, size, stored, flat in json.loads(text)
        ]
    )
