"""Owns small values of other packages, which change in one step with entries and cursors.

A value has an owner and a key. A change is a record of the journal, so that it is on disk together
with whatever else the same step of the event loop appended, acknowledged or deleted: a transaction
is decided, with all that follows from it, by one commit group. All values are in memory; a
checkpoint writes those that changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple


class ValueOperation(IntEnum):
    """What a change does, as the journal has it."""

    PUT = 0
    REMOVE = 1
    DROP = 2
    """All values of an owner."""


class ValueChange(NamedTuple):
    """A change of a value of an owner, or, by DROP, of all of them."""

    operation: ValueOperation
    owner: str
    key: str = ""
    value: bytes = b""


class StoredValues:
    """All values by their owners and keys."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, bytes]] = {}
        # The newest change of each value that the metadata does not have; None: it was removed.
        self._unsaved: dict[str, dict[str, bytes | None]] = {}
        self._dropped: dict[str, None] = {}

    def load(self, owner: str, key: str, value: bytes) -> None:
        """Take a value as the metadata has it."""
        self._values.setdefault(owner, {})[key] = value

    def of(self, owner: str) -> Mapping[str, bytes]:
        """Return the values of an owner by their keys."""
        return self._values.get(owner, {})

    def owners(self, prefix: str) -> list[str]:
        """Return the owners with values whose names begin so."""
        return [owner for owner in self._values if owner.startswith(prefix)]

    def apply(self, change: ValueChange) -> None:
        """Make a change in memory."""
        operation, owner, key, value = change
        if operation is ValueOperation.DROP:
            self._values.pop(owner, None)
            self._unsaved.pop(owner, None)
            self._dropped[owner] = None
            return
        unsaved = self._unsaved.setdefault(owner, {})
        if operation is ValueOperation.PUT:
            self._values.setdefault(owner, {})[key] = unsaved[key] = value
            return
        unsaved[key] = None
        values = self._values.get(owner, {})
        values.pop(key, None)
        if not values:
            self._values.pop(owner, None)

    def take_changes(self) -> Iterator[ValueChange]:
        """Return what a checkpoint is to store, in order; it is handed over, to any thread."""
        unsaved, dropped = self._unsaved, self._dropped
        self._unsaved, self._dropped = {}, {}
        return _changes(unsaved, dropped)


def _changes(
    unsaved: Mapping[str, Mapping[str, bytes | None]], dropped: Iterable[str]
) -> Iterator[ValueChange]:
    for owner in dropped:
        yield ValueChange(ValueOperation.DROP, owner)
    for owner, values in unsaved.items():
        for key, value in values.items():
            if value is None:
                yield ValueChange(ValueOperation.REMOVE, owner, key)
            else:
                yield ValueChange(ValueOperation.PUT, owner, key, value)
