"""Which messages of a partition are in flight: given to a consumer, and not due again yet.

Theory of operation. The messages of a partition, in their order, are covered by *spans*: each ends
at a message and says until when what it covers is not to be given, and to whom it was given. A
fetch goes through the unacknowledged messages from the first one. What no span covers is new; what
a span covers is passed over, unless its time is over or its consumer is gone; a message that is to
come later gets a span until then. The spans are built again on the way: those of acknowledged
messages vanish by themselves: acknowledging needs to know nothing of them.

Remembering each message was the alternative: it grows with the messages, spans with the fetches.
Too many of them are joined, where that delays least; nothing is ever given earlier by that. What is
to come later needs no time of its own in the record, as its message says it: however many messages
with different times stand together, they are one span.

Nothing here waits, asks for the time or stores: a record of the registry is made and read.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final, NamedTuple

import orjson

from router.model import Position, Stored

KIND: Final = "pip64-given"
"""The records of spans, named by topic, subscription and partition."""

MAX_SPANS: Final = 400
MAX_RECORD_BYTES: Final = 60_000
"""Of a record, which has to fit into the registry however long the ids of consumers are."""
NO_CONSUMER: Final = ""


class MessagePlace(NamedTuple):
    """Where a message is in its partition; the order of places is that of messages."""

    ledger: int
    entry: int
    batch: int


class InFlightSpan(NamedTuple):
    """Messages up to a place, not to be given before `due` (ms since 1970) to anybody.

    `consumer`: who has them; when that one is gone they are due. NOBODY: several consumers, or,
    with nothing to wait for (`due` 0), messages that say themselves when they are to come.
    """

    upto: MessagePlace
    due: int
    consumer: str

    def over(self, now_ms: int, live: Set[str]) -> bool:
        """Return whether its messages may be given."""
        return self.due <= now_ms or (self.consumer != NO_CONSUMER and self.consumer not in live)


def place_of(position: Position) -> MessagePlace:
    """Return the place of a message."""
    return MessagePlace(position.ledger, position.entry, position.batch_index)


class InFlightTracker:
    """The messages in flight of one partition, while a fetch goes through it."""

    def __init__(self, spans: list[InFlightSpan] | None = None, epoch: int = 0) -> None:
        self.epoch = epoch
        self._known = spans or []
        self._made: list[InFlightSpan] = []
        self._at = 0
        self._last: MessagePlace | None = None
        self.passed_over = 0
        self.next_due: int | None = None

    @classmethod
    def load(cls, value: bytes) -> InFlightTracker:
        """Return what a record says; raise ValueError for bytes that are none."""
        epoch, spans = orjson.loads(value)
        return cls([InFlightSpan(MessagePlace(*s[:3]), s[3], s[4]) for s in spans], epoch)

    def dump(self) -> bytes:
        """Return the record of the spans as they are now, at most MAX_RECORD_BYTES long."""
        spans = self.spans()
        while len(value := orjson.dumps([self.epoch, _plain(spans)])) > MAX_RECORD_BYTES:
            spans = _joined(spans, len(spans) // 2)
        return value

    def over(self, now_ms: int, live: Set[str]) -> bool:
        """Return whether no span keeps anything from being given: none has to be remembered."""
        return all(span.over(now_ms, live) for span in self.spans())

    def spans(self) -> list[InFlightSpan]:
        """Return the spans, those that are not gone through among them."""
        last = self._last
        rest = self._known if last is None else [s for s in self._known if s.upto > last]
        return _joined([*self._made, *rest], MAX_SPANS)

    def may_give(self, stored: Stored, now_ms: int, live: Set[str]) -> bool:
        """Go on to the next unacknowledged message; return whether it may be given now.

        Call `give` or `leave` about it before the next.
        """
        self._check_epoch(stored.position.epoch)
        place = place_of(stored.position)
        while self._at < len(self._known) and self._known[self._at].upto < place:
            self._at += 1
        if self._at < len(self._known):
            span = self._known[self._at]
            if not span.over(now_ms, live):
                self._cover(place, span.due, span.due, span.consumer)
                return False
        due = stored.message.deliver_at
        if due is not None and due > now_ms:
            self._cover(place, due, 0, NO_CONSUMER)
            return False
        return True

    def give(self, stored: Stored, due: int, consumer: str) -> None:
        """Give the message to a consumer, until then."""
        self._add(place_of(stored.position), due, consumer)

    def _cover(self, place: MessagePlace, due: int, until: int, consumer: str) -> None:
        self.passed_over += 1
        self.next_due = due if self.next_due is None else min(self.next_due, due)
        self._add(place, until, consumer)

    def _add(self, place: MessagePlace, due: int, consumer: str) -> None:
        if self._made and self._made[-1][1:] == (due, consumer):
            self._made.pop()
        self._made.append(InFlightSpan(place, due, consumer))
        self._last = place

    def _check_epoch(self, epoch: int) -> None:
        """Forget all spans if the subscription was reset since they were made."""
        if self.epoch != epoch:
            self.epoch = epoch
            self._known, self._made, self._at, self._last = [], [], 0, None


def _plain(spans: list[InFlightSpan]) -> list[list[object]]:
    return [[*span.upto, span.due, span.consumer] for span in spans]


def _joined(spans: list[InFlightSpan], limit: int) -> list[InFlightSpan]:
    """Join neighbours until there are not too many, first those that are due at about one time."""
    while len(spans) > limit:
        near = sorted(
            range(len(spans) - 1),
            key=lambda i: (
                abs(spans[i].due - spans[i + 1].due),
                spans[i].consumer != spans[i + 1].consumer,
            ),
        )
        spans = _paired(spans, near, len(spans) - limit)
    return spans


def _paired(spans: list[InFlightSpan], near: list[int], limit: int) -> list[InFlightSpan]:
    """Join spans with the ones behind them, the first of `near` first; each at most once."""
    joined: set[int] = set()
    for at in near:
        if len(joined) == limit:
            break
        if at - 1 not in joined and at + 1 not in joined:
            joined.add(at)
    return [
        _one(span, spans[at + 1]) if at in joined else span
        for at, span in enumerate(spans)
        if at - 1 not in joined
    ]


def _one(first: InFlightSpan, second: InFlightSpan) -> InFlightSpan:
    later = max(first, second, key=lambda span: span.due)
    # When only one of two consumers is gone, nothing of the other's may come early.
    waiting = {span.consumer for span in (first, second) if span.due}
    return InFlightSpan(second.upto, later.due, waiting.pop() if len(waiting) == 1 else NO_CONSUMER)
