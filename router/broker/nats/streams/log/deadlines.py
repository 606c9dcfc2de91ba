"""The deadlines of a stream's messages that have a time to live, nearest first.

A message says with the header `Nats-TTL` how long it lives (ADR-43). A deadline stays here when its
message is deleted before; such deadlines are dropped when there are MAX_DEADLINES, or twice as many
as were left then: delete markers, of which a subject has one, may be more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from router.wire.nats import headers

TTL: Final = "Nats-TTL"
MARK: Final = b"\nNats-TTL:"
MARKER_REASON: Final = "Nats-Marker-Reason"
NEVER: Final = -1
MAX_DEADLINES: Final = 200_000
"""Of one stream, about 30 MB; a publish that brings more is refused."""
MIN_REVIEW_MS: Final = 1_000
"""Between two looks for deadlines of messages that are deleted."""

_MAX_NUMBER: Final = 2**63 - 1
_MAX_DIGITS: Final = 19
_UNITS_NS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_PART: Final = re.compile(r"([0-9]{1,19})(?:\.([0-9]{0,19}))?(ns|us|µs|μs|ms|s|m|h)")
_SECOND_NS: Final = 1_000_000_000


class Deadline(NamedTuple):
    """When a message ends, in ms since 1970, and what the index counts of it.

    `is_marker`: no delete marker takes its place.
    """

    at_ms: int
    sequence: int
    subject: str
    size: int
    is_marker: bool = False


class Deadlines:
    """The deadlines of one stream; `is_deleted` says whether a sequence is deleted already."""

    def __init__(self, is_deleted: Callable[[int], bool]) -> None:
        self._is_deleted = is_deleted
        self._heap: list[Deadline] = []
        self._reviewed_ms = 0
        self._review_at = MAX_DEADLINES

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Deadline]:
        return iter(self._heap)

    def add(
        self, stored_ms: int, ttl_seconds: int, place: tuple[int, str, int], *, is_marker: bool
    ) -> None:
        """Take a message, by sequence, subject and size, that was stored at a time."""
        at_ms = min(stored_ms + 1_000 * ttl_seconds, _MAX_NUMBER)
        heappush(self._heap, Deadline(at_ms, *place, is_marker))
        if len(self._heap) > self._review_at:
            self._drop_deleted()
            self._review_at = max(MAX_DEADLINES, 2 * len(self._heap))

    def restore(self, found: Iterable[Deadline]) -> None:
        """Have these deadlines only."""
        self._heap = list(found)
        heapify(self._heap)

    def clear(self) -> None:
        """Forget all: no message is left."""
        self._heap.clear()

    def accept_more(self, now_ms: int) -> bool:
        """Return whether there may be one more."""
        if len(self._heap) < MAX_DEADLINES:
            return True
        if abs(now_ms - self._reviewed_ms) >= MIN_REVIEW_MS:
            self._reviewed_ms = now_ms
            self._drop_deleted()
        return len(self._heap) < MAX_DEADLINES

    def next_ms(self) -> int | None:
        """Return the nearest deadline of a message that is there, in ms since 1970."""
        heap = self._heap
        while heap and self._is_deleted(heap[0].sequence):
            heappop(heap)
        return heap[0].at_ms if heap else None

    def take_due(self, now_ms: int, last_sequence: int, count: int) -> list[Deadline]:
        """Take out messages up to a sequence whose time is over, at most so many."""
        due: list[Deadline] = []
        while len(due) < count and (at_ms := self.next_ms()) is not None:
            if at_ms > now_ms or self._heap[0].sequence > last_sequence:
                break
            due.append(heappop(self._heap))
        return due

    def _drop_deleted(self) -> None:
        self.restore(one for one in self._heap if not self._is_deleted(one.sequence))


def message_ttl(block: bytes) -> int:
    """Return the seconds that a message lives by its headers; 0: it says nothing, or NEVER.

    As for nats-server: whole seconds, a duration of Go of at least a second, or `never`. Raises
    ValueError.
    """
    text = headers.first(block, TTL)
    if not text:
        return 0
    if text.lower() == "never":
        return NEVER
    duration_ns = _duration_ns(text)
    if duration_ns is not None:
        if duration_ns < _SECOND_NS:
            raise ValueError("a message lives a second or longer")
        return duration_ns // _SECOND_NS
    if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS:
        return min(int(text), _MAX_NUMBER)
    raise ValueError("it is neither seconds nor a duration")


def is_marker(block: bytes) -> bool:
    """Return whether a message is a delete marker, or the one that purged a key of a bucket."""
    if headers.first(block, MARKER_REASON):
        return True
    return headers.first(block, "KV-Operation") == "PURGE"


def _duration_ns(text: str) -> int | None:
    """Return a duration as Go writes it, a negative one as 0; None: it is none."""
    digits = text.removeprefix("-") if text.startswith("-") else text.removeprefix("+")
    if digits == "0":
        return 0
    at = total = 0
    while at < len(digits):
        part = _PART.match(digits, at)
        if part is None:
            return None
        whole, fraction, unit = part[1], part[2] or "", _UNITS_NS[part[3]]
        total += int(whole) * unit + int(fraction or "0") * unit // 10 ** len(fraction)
        at = part.end()
    if not digits or total > _MAX_NUMBER:
        return None
    return 0 if text.startswith("-") else total
