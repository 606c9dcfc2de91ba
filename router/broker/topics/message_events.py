"""What became of stored messages: requeued, discarded, replayed or sent again; in memory.

An event covers the messages of a partition from one place to another. The newest events of all
partitions are kept within a bound: after a restart, and of what is dropped, they are not known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

MAX_BYTES: Final = 8 << 20
EVENT_BYTES: Final = 500
"""What an event takes beside its texts, about."""
LEDGER_BYTES: Final = 1_000
"""What a ledger that has events takes beside them, about."""
MAX_TEXT: Final = 800
"""Characters of each text; the longest full name of a topic has 766."""

EntryPlace = tuple[int, int]
"""An entry, and the index of a message in its batch; -1: it is none."""


@dataclass(frozen=True, slots=True)
class MessageEvent:
    """What was done with the messages from `first` to `last`; `at` in ms since 1970.

    `operation` names what may be noted twice, as a request that is repeated is; "": it cannot be.
    """

    first: EntryPlace
    last: EntryPlace
    action: str
    topic: str
    user: str
    operation: str
    at: int


class MessageEvents:
    """The events of all ledgers; `since` is the time in ms from which on none is missing."""

    def __init__(self, now_ms: Callable[[], int], max_bytes: int = MAX_BYTES) -> None:
        self.since = now_ms()
        self._now_ms = now_ms
        self._events: dict[int, deque[MessageEvent]] = {}
        self._order: deque[int] = deque()  # ledgers of all events, the oldest event first
        self._bytes = 0
        self._max_bytes = max_bytes

    def add(
        self,
        ledger: int,
        places: tuple[EntryPlace, EntryPlace],
        action: str,
        topic: str,
        user: str,
        operation: str = "",
    ) -> None:
        """Note what was done just now with the messages from one place to another."""
        first, last = places
        texts = (topic[:MAX_TEXT], user[:MAX_TEXT], operation[:MAX_TEXT])
        event = MessageEvent(first, last, action, *texts, self._now_ms())
        if (events := self._events.get(ledger)) is None:
            events = self._events[ledger] = deque()
            self._bytes += LEDGER_BYTES
        events.append(event)
        self._order.append(ledger)
        self._bytes += _size(event)
        while self._bytes > self._max_bytes:
            self._drop(self._order.popleft())

    def find(self, ledger: int, place: EntryPlace) -> list[MessageEvent]:
        """Return what was done with a message, the oldest first; an operation is there once."""
        found: list[MessageEvent] = []
        operations = set[tuple[str, ...]]()
        for one in self._events.get(ledger, ()):
            name = (one.operation, one.action, one.topic, one.user)
            if one.first <= place <= one.last and not (one.operation and name in operations):
                operations.add(name)
                found.append(one)
        return found

    def _drop(self, ledger: int) -> None:
        events = self._events[ledger]
        dropped = events.popleft()
        self._bytes -= _size(dropped)
        self.since = max(self.since, dropped.at + 1)
        if not events:
            del self._events[ledger]
            self._bytes -= LEDGER_BYTES


def _size(event: MessageEvent) -> int:
    # A text of Python has up to four bytes for a character.
    return EVENT_BYTES + 4 * sum(map(len, (event.action, event.topic, event.user, event.operation)))
