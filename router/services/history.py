"""What topics and groups held over the last minutes, for charts; kept while pages ask for it.

Nothing samples by itself: the page of a topic notes what it holds, and finds what others noted
before. So a router at which no page is open does no work for charts, and a worker that is asked now
and then has a coarser history than one that is asked every few seconds.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final, NamedTuple

from router.model import TopicName, TopicStats

SPAN_MS: Final = 15 * 60 * 1000
MIN_SAMPLE_INTERVAL_MS: Final = 5_000
"""Samples that come sooner are not noted: other pages are open too."""
RATE_SPAN_MS: Final = 60_000
"""How far back a rate goes at most."""
MIN_RATE_MS: Final = 1_000
"""Over how long a rate is taken at least."""
MAX_SAMPLES: Final = SPAN_MS // MIN_SAMPLE_INTERVAL_MS
MAX_SERIES: Final = 300
"""Topics and groups of one worker; those that were noted longest ago go first."""

Series = tuple[TopicName, str]
"""A topic and a group of it, "": all its groups."""


class Sample(NamedTuple):
    """What a topic held at a time in ms since 1970: messages stored, and not acknowledged ones."""

    at: int
    messages: int
    lag: int


class Histories:
    """The samples of one worker; callable from many threads or greenlets."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.now_ms = now_ms
        self._lock = Lock()
        self._series: OrderedDict[Series, deque[Sample]] = OrderedDict()

    def note_topic(self, stats: TopicStats) -> list[Sample]:
        """Note what a topic and all its groups hold, as `note` does."""
        lag = sum(one.backlog for one in stats.subscriptions if one.durable)
        stored = sum(one.messages for one in stats.partitions)
        return self.note((stats.info.topic, ""), stored, lag)

    def note(self, series: Series, messages: int, lag: int) -> list[Sample]:
        """Note what a topic holds now, and return what was noted within SPAN_MS, in order."""
        now = self.now_ms()
        with self._lock:
            found = self._series.setdefault(series, deque(maxlen=MAX_SAMPLES))
            self._series.move_to_end(series)
            while found and found[-1].at > now:
                found.pop()  # the clock was set back
            while found and found[0].at < now - SPAN_MS:
                found.popleft()
            if not found or now - found[-1].at >= MIN_SAMPLE_INTERVAL_MS:
                found.append(Sample(now, messages, lag))
            while len(self._series) > MAX_SERIES:
                self._series.popitem(last=False)
            return list(found)


def rate(samples: Sequence[Sample], now_ms: int, messages: int) -> float | None:
    """Return how many messages a second came since the oldest sample within RATE_SPAN_MS.

    `messages` is what the topic holds now. None: the oldest sample is too new, or retention or a
    new topic of this name took messages away.
    """
    first = next((one for one in samples if one.at >= now_ms - RATE_SPAN_MS), None)
    if first is None or now_ms - first.at < MIN_RATE_MS or messages < first.messages:
        return None
    return (messages - first.messages) * 1000 / (now_ms - first.at)
