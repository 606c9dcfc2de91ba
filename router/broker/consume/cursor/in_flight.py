"""Which messages of a partition REST consumers were given and may not be given again yet.

Theory of operation. A fetch acknowledges nothing: what it gave is in flight until it is
acknowledged, its time is over or its consumer is gone. Messages that were given together are one
*span*, so that a fetch passes over all that is in flight by looking at a few spans, and reads none
of it. A message that is to come later has a span, too: those next to each other are one, which is
looked through when the first of them is due.

Acknowledging knows nothing of spans. Those at or below the cursor's mark-delete position are
dropped when the next fetch begins; what is acknowledged above it is passed over by the cursor.
Too many spans are joined, where that delays least: nothing is ever given earlier by it. It is all
in memory, as leases are, and belongs to an epoch of the subscription: a reset and a restart of the
broker forget it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Set
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple

MAX_SPANS: Final = 400
"""Of one subscription of a partition."""
SEVERAL: Final = ""
"""Instead of a consumer's id: a span of several consumers waits for its time."""
_DELAYED: Final = -1

MessagePlace = tuple[int, int]
"""An entry, and the index of a message in it; behind an entry is the first place of the next."""


@dataclass(frozen=True, slots=True)
class InFlightTerms:
    """How long messages that a fetch takes are in flight, and which consumers there are.

    `live`: the ids of all consumers at a time in ms since 1970. With more than `max_unacknowledged`
    messages that are not acknowledged a fetch takes only what is due again.
    """

    ack_timeout_ms: int
    max_unacknowledged: int
    live: Set[str]
    live_at_ms: int

    def due(self, now_ms: int) -> int:
        """Return until when what is given now is in flight, in steps of a tenth of the timeout.

        So what is given at about the same time becomes one span.
        """
        step = max(1, self.ack_timeout_ms // 10)
        return (now_ms // step + 11) * step


class InFlightRange(NamedTuple):
    """Messages from a place to before another that may not be given before `due`.

    Both times are in ms since 1970.
    """

    first: MessagePlace
    end: MessagePlace
    due: int
    consumer: str
    given_ms: int

    def is_over(self, terms: InFlightTerms, now_ms: int) -> bool:
        """Return whether its messages may be given: it is due, or its consumer is gone."""
        return self.due <= now_ms or (
            self.consumer != SEVERAL
            and self.consumer not in terms.live
            and self.given_ms < terms.live_at_ms
        )


_FIRST: Final = attrgetter("first")
_END: Final = attrgetter("end")


class InFlight:
    """The spans of one subscription of a partition, in order; they do not overlap.

    `unacknowledged`: at most so many messages before `end` are not acknowledged.
    """

    def __init__(self) -> None:
        self.unacknowledged = 0
        self._epoch = 0
        self._spans: list[InFlightRange] = []

    @property
    def end(self) -> MessagePlace:
        """Return behind which place nothing was given yet."""
        return self._spans[-1].end if self._spans else (0, 0)

    def begin(self, epoch: int, entry: int) -> None:
        """Drop what is of another epoch of the subscription, and what ends before an entry."""
        spans = self._spans
        if epoch != self._epoch:
            self._epoch = epoch
            spans.clear()
        del spans[: bisect_right(spans, (entry, 0), key=_END)]
        if not spans:
            self.unacknowledged = 0

    def next(self, entry: int, terms: InFlightTerms, now_ms: int) -> int:
        """Return the first entry at or after one of which something may be given."""
        spans, place = self._spans, (entry, 0)
        for at in range(bisect_right(spans, place, key=_END), len(spans)):
            span = spans[at]
            if span.first > place or span.is_over(terms, now_ms):
                break
            place = span.end
        return place[0]

    def held(self, entry: int, messages: int, terms: InFlightTerms, now_ms: int) -> int:
        """Return which of the messages of an entry may not be given, a bit for each."""
        spans, held = self._spans, 0
        for at in range(bisect_right(spans, (entry, 0), key=_END), len(spans)):
            span = spans[at]
            if span.first[0] > entry:
                break
            if not span.is_over(terms, now_ms):
                first = span.first[1] if span.first[0] == entry else 0
                end = span.end[1] if span.end[0] == entry else messages
                held |= (1 << end) - (1 << first)
        return held

    def next_due(self, terms: InFlightTerms, now_ms: int) -> int | None:
        """Return when the next span is over, in ms since 1970; None: there is none."""
        waiting = (span.due for span in self._spans if not span.is_over(terms, now_ms))
        return min(waiting, default=None)

    def give(self, messages: int, span: InFlightRange) -> None:
        """Note a span of so many messages, which is given from now on."""
        self.unacknowledged += messages
        self._put(span)

    def delay(self, entry: int, messages: int, due_ms: int) -> None:
        """Note an entry that is to come later; it is counted the first time."""
        if not self._is_noted(entry):
            self.unacknowledged += messages
        self._put(InFlightRange((entry, 0), (entry + 1, 0), due_ms, SEVERAL, _DELAYED))

    def _is_noted(self, entry: int) -> bool:
        at = bisect_right(self._spans, (entry, 0), key=_END)
        return at < len(self._spans) and self._spans[at].first <= (entry, 0)

    def _put(self, span: InFlightRange) -> None:
        """Have a span take the place of what there is of others."""
        spans = self._spans
        low = bisect_right(spans, span.first, key=_END)
        high = bisect_left(spans, span.end, lo=low, key=_FIRST)
        pieces, at = [span], low
        if low < high and spans[low].first < span.first:
            pieces.insert(0, spans[low]._replace(end=span.first))
            at += 1
        if low < high and spans[high - 1].end > span.end:
            pieces.append(spans[high - 1]._replace(first=span.end))
        spans[low:high] = pieces
        if at and (joined := _continued(spans[at - 1], span)) is not None:
            spans[at - 1 : at + 1] = [joined]
        if len(spans) > MAX_SPANS:
            self._join_nearest()

    def _join_nearest(self) -> None:
        """Join the two neighbours that are due at about one time."""
        spans = self._spans
        at = min(
            range(len(spans) - 1),
            key=lambda i: (
                abs(spans[i].due - spans[i + 1].due),
                spans[i].consumer != spans[i + 1].consumer,
            ),
        )
        spans[at : at + 2] = [_joined(spans[at], spans[at + 1])]


def _continued(span: InFlightRange, following: InFlightRange) -> InFlightRange | None:
    """Return a span with the one behind it if that makes no difference, else None."""
    if span.end != following.first or span.consumer != following.consumer:
        return None
    is_delayed = span.given_ms == following.given_ms == _DELAYED
    if not is_delayed and (
        span.due != following.due or _DELAYED in (span.given_ms, following.given_ms)
    ):
        return None
    return _joined(span, following)


def _joined(span: InFlightRange, following: InFlightRange) -> InFlightRange:
    """Return both as one, of which nothing is given earlier than of each.

    Messages that are to come later say so themselves: they may be looked at too early.
    """
    first, end = span.first, following.end
    if span.given_ms == following.given_ms == _DELAYED:
        return InFlightRange(first, end, min(span.due, following.due), SEVERAL, _DELAYED)
    consumers = {one.consumer for one in (span, following) if one.given_ms != _DELAYED}
    return InFlightRange(
        first,
        end,
        max(span.due, following.due),
        consumers.pop() if len(consumers) == 1 else SEVERAL,
        max(span.given_ms, following.given_ms),
    )


def runs(mask: int, count: int) -> Iterator[tuple[int, int]]:
    """Yield the runs of the lowest `count` bits that are set: where each begins and ends."""
    while mask and count > 0:
        first = (mask & -mask).bit_length() - 1
        rest = mask >> first
        run = min((~rest & rest + 1).bit_length() - 1, count)
        yield first, first + run
        count -= run
        mask &= -1 << first + run
