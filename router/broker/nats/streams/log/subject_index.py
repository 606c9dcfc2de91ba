"""Owns what is known of the subjects of one stream: count, bytes, first and last message of each.

Theory of operation. A message is added when it is appended and removed when it is deleted, in any
order; what a deletion leaves is found without reading where that is possible. A subject keeps the
places of its messages while they are few: at most MAX_PLACES, or the bound that the stream has for
a subject if that is no larger than MAX_BOUNDED_PLACES. A subject with more keeps its first and last
sequence, and a deletion at an end leaves a bound of it: `first` may lie before the first message,
`last` behind the last one. `StreamLog` reads the log to find them when it needs them.

The alternative, the places of all messages in every case, would take memory for each message that
is stored instead of for each subject.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final

from router.wire.nats.subjects import SubjectTrie, is_literal, matches

MAX_KNOWN_SUBJECTS: Final = 1_000
"""Whose answers a matcher keeps."""
MAX_PLACES: Final = 8
"""Places that a subject keeps in a stream that does not bound its messages."""
MAX_BOUNDED_PLACES: Final = 64
"""The largest bound under which all places are kept; the history of a KV bucket is no longer."""
MESSAGE_OVERHEAD_BYTES: Final = 30
HEADERS_OVERHEAD_BYTES: Final = 4
"""What nats-server counts for a message, and for headers, besides their bytes."""


def stored_size(subject: str, headers: bytes, payload: bytes) -> int:
    """Return the bytes that a message counts for in a stream, as nats-server counts them."""
    size = MESSAGE_OVERHEAD_BYTES + len(subject) + len(payload)
    return size + HEADERS_OVERHEAD_BYTES + len(headers) if headers else size


@dataclass(slots=True)
class SubjectBudget:
    """How many subjects all streams together may have, and how many they have."""

    limit: int
    used: int = 0


class SubjectState:
    """The messages of one subject; `places`: sequence and size of each, in order; None: too many.

    `last` is exact, or no message is behind it; likewise `first`.
    """

    __slots__ = ("count", "first", "first_exact", "last", "last_exact", "places")

    def __init__(self, sequence: int, places: list[tuple[int, int]] | None) -> None:
        self.count = 0
        self.first = self.last = sequence
        self.first_exact = self.last_exact = True
        self.places = places


class SubjectIndex:
    """The subjects of a stream, within what the budget leaves.

    `messages` and `bytes` count live messages; `limit` is how many a subject may have, and `over`
    are the subjects with more. `overflowed`: a message that could not be refused had a subject for
    which the budget had no space, so that the index is not complete.
    """

    __slots__ = (
        "_budget",
        "_max_places",
        "bytes",
        "limit",
        "messages",
        "over",
        "overflowed",
        "subjects",
    )

    def __init__(self, budget: SubjectBudget, limit: int = 0) -> None:
        self._budget = budget
        self.messages = self.bytes = 0
        self.overflowed = False
        self.subjects: dict[str, SubjectState] = {}
        self.over: dict[str, None] = {}
        self.configure(limit)

    def configure(self, limit: int) -> None:
        """Bound the messages of a subject; 0 or less: there is no bound."""
        self.limit = limit
        bounded = 0 < limit <= MAX_BOUNDED_PLACES
        # One more, for what was appended and makes the oldest too many.
        self._max_places = max(MAX_PLACES, limit + MAX_PLACES if bounded else 0)
        self.over = {
            subject: None for subject, state in self.subjects.items() if 0 < limit < state.count
        }

    def has_room(self, subject: str) -> bool:
        """Return whether a message of this subject may come."""
        return subject in self.subjects or self._budget.used < self._budget.limit

    def add(self, subject: str, sequence: int, size: int) -> None:
        """Count a message; its subject is left out if the budget has no space for it."""
        self.messages += 1
        self.bytes += size
        state = self.subjects.get(subject)
        if state is None:
            if self._budget.used >= self._budget.limit:
                self.overflowed = True
                return
            self._budget.used += 1
            state = self.subjects[subject] = SubjectState(sequence, [])
        state.count += 1
        if sequence >= state.last:
            state.last = sequence
            state.last_exact = True
        elif sequence < state.first or (sequence == state.first and not state.first_exact):
            state.first = sequence
            state.first_exact = True
        if (places := state.places) is not None:
            places.append((sequence, size))
            if state.last != sequence:
                places.sort()
            if len(places) > self._max_places:
                state.places = None
        if 0 < self.limit < state.count:
            self.over[subject] = None

    def remove(self, subject: str, sequence: int, size: int) -> None:
        """Take a message out of the counts; it must have been added."""
        self.messages -= 1
        self.bytes -= size
        state = self.subjects.get(subject)
        if state is None:
            return
        state.count -= 1
        if not state.count:
            del self.subjects[subject]
            self._budget.used -= 1
            self.over.pop(subject, None)
        elif state.places is not None:
            state.places.remove((sequence, size))
            state.first, state.last = state.places[0][0], state.places[-1][0]
        else:
            _shrink(state, sequence)

    def matching(self, filters: Sequence[str]) -> Iterator[tuple[str, SubjectState]]:
        """Yield the subjects that match any filter, in no order; no filters: all."""
        if not filters or ">" in filters:
            yield from self.subjects.items()
            return
        if all(is_literal(one) for one in filters):
            for subject in dict.fromkeys(filters):
                if (state := self.subjects.get(subject)) is not None:
                    yield subject, state
            return
        found: Callable[[str], object]
        if len(filters) == 1:
            found = partial(matches, filters[0])
        else:
            # The cost of a subject does not grow with the filters.
            trie: SubjectTrie[int] = SubjectTrie(max_cached=0)
            for one in filters:
                trie.insert(one, 0)
            found = trie.match
        for subject, state in self.subjects.items():
            if found(subject):
                yield subject, state

    def bounds(self, filters: Sequence[str]) -> tuple[int, int] | None:
        """Return sequences around all messages that match; None: there are no such messages."""
        first = last = 0
        for _, state in self.matching(filters):
            first = min(first or state.first, state.first)
            last = max(last, state.last)
        return (first, last) if last else None

    def clear(self) -> None:
        """Forget everything, and release the budget."""
        self._budget.used -= len(self.subjects)
        self.subjects = {}
        self.over = {}
        self.messages = self.bytes = 0
        self.overflowed = False

    def restore(self, subjects: dict[str, SubjectState], messages: int, size: int) -> None:
        """Take over what a checkpoint holds."""
        self.clear()
        self.subjects = subjects
        self._budget.used += len(subjects)
        self.messages, self.bytes = messages, size
        self.configure(self.limit)


class SubjectMatcher:
    """Whether subjects match any of `filters`; none: all do. Answers are kept."""

    max_known: ClassVar = MAX_KNOWN_SUBJECTS

    def __init__(self, filters: Sequence[str]) -> None:
        self.filters = () if ">" in filters else tuple(filters)
        self._known: dict[str, bool] = {}

    def __call__(self, subject: str) -> bool:
        """Return whether a subject matches."""
        if not self.filters:
            return True
        known = self._known.get(subject)
        if known is None:
            if len(self._known) >= self.max_known:
                self._known.clear()
            known = any(matches(one, subject) for one in self.filters)
            self._known[subject] = known
        return known


def _shrink(state: SubjectState, sequence: int) -> None:
    """Take one of several messages out of the bounds of a subject without places."""
    if sequence == state.first:
        state.first, state.first_exact = sequence + 1, False
    elif sequence == state.last:
        state.last, state.last_exact = sequence - 1, False
    if state.count == 1:
        if state.last_exact:
            state.first, state.first_exact = state.last, True
        elif state.first_exact:
            state.last, state.last_exact = state.first, True
