"""Owns how much goes to and from one consumer: counts, and what they come to in a second.

Counting costs a few additions a delivery, and rates are worked out when somebody asks. The
alternative, a timer that takes samples of every consumer, costs the same whether anybody asks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

OVER: Final = 10.0
"""Rates are taken over so many seconds at the least."""


class Rates(NamedTuple):
    """What went by in a second."""

    messages: float = 0.0
    bytes: float = 0.0
    redelivered: float = 0.0
    acknowledged: float = 0.0


NOTHING: Final = Rates()


@dataclass(slots=True)
class Flow:
    """What went to a consumer and came back since it came, at `since` by a clock in seconds.

    Messages, bytes and redelivered messages, and acknowledgements: one may name many messages.
    """

    since: float = 0.0
    messages: int = 0
    bytes: int = 0
    redelivered: int = 0
    acknowledged: int = 0
    _before: Rates = field(default=NOTHING, init=False)
    _rates: Rates | None = field(default=None, init=False)

    def rates(self, now: float) -> Rates:
        """Return the rates since they were last worked out; within OVER, those of that time."""
        passed = now - self.since
        counts = Rates(self.messages, self.bytes, self.redelivered, self.acknowledged)
        if passed <= 0 or (passed < OVER and self._rates is not None):
            return self._rates or NOTHING
        pairs = zip(counts, self._before, strict=True)
        rates = Rates(*((count - before) / passed for count, before in pairs))
        if passed >= OVER:
            self.since, self._before, self._rates = now, counts, rates
        return rates
