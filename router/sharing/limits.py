"""Limits over time that a node keeps for all its workers: token buckets and empty polls; no I/O.

All of it is bounded: what is kept longest without use goes first, which costs a limit one round of
leniency and nothing else.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Final

MAX_BUCKETS: Final = 100_000
MAX_EMPTY_POLLERS: Final = 50_000
MAX_EMPTY_POLLS: Final = 1_000
MINUTE: Final = 60.0

Clock = Callable[[], float]


class TokenBuckets:
    """Token buckets by name; `clock` is monotonic, in seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # The tokens of each bucket, and when there were so many; the last used is last.
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(
        self, name: str, per_minute: float, burst: int, *, look_only: bool = False
    ) -> float | None:
        """Take one token, or only look for one; None when there is one, else the seconds until."""
        rate = per_minute / MINUTE if 0 < per_minute < math.inf else 0.0
        now = self._clock()
        tokens, since = self._buckets.pop(name, (float(burst), now))
        tokens = min(burst, tokens + (now - since) * rate)
        granted = tokens >= 1
        self._buckets[name] = tokens - (granted and not look_only), now
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        if granted:
            return None
        return min((1 - tokens) / rate, 1e9) if rate and burst else MINUTE


class EmptyPolls:
    """How often each consumer id polled for nothing within the last minute.

    An id that did so too often is let in again after a minute's share, 6 s of 10 polls a minute:
    then the limit holds on average, and no client has to wait for longer than the original's did.
    Until the whole minute is over, which was not taken, clients give up or poll on regardless.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._polls: OrderedDict[Hashable, deque[float]] = OrderedDict()

    def wait(self, poller: Hashable, per_minute: int) -> float | None:
        """Return the seconds until this id may poll for nothing again; None: it may now.

        `per_minute` = 0 is no limit; limits above MAX_EMPTY_POLLS are MAX_EMPTY_POLLS.
        """
        polls = self._polls.get(poller)
        limit = min(per_minute, MAX_EMPTY_POLLS)
        if polls is None or limit == 0 or len(polls) < limit:
            return None
        free = min(polls[-limit] + MINUTE, polls[-1] + MINUTE / limit)
        wait = free - self._clock()
        return wait if wait > 0 else None

    def empty(self, poller: Hashable, per_minute: int) -> None:
        """Count a poll that found nothing; only as many are remembered as the limit needs."""
        if per_minute == 0:
            return
        polls = deque(self._polls.pop(poller, ()), maxlen=min(per_minute, MAX_EMPTY_POLLS))
        polls.append(self._clock())
        self._polls[poller] = polls
        self._prune()

    def delivered(self, poller: Hashable) -> None:
        """Forget the empty polls of an id that found messages."""
        self._polls.pop(poller, None)

    def __len__(self) -> int:
        return len(self._polls)

    def _prune(self) -> None:
        # The first is the one whose last empty poll is the longest ago.
        horizon = self._clock() - MINUTE
        while self._polls:
            poller, polls = next(iter(self._polls.items()))
            if polls[-1] > horizon and len(self._polls) <= MAX_EMPTY_POLLERS:
                return
            del self._polls[poller]
