"""How many messages a second topics are given, from what they held at earlier looks."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from threading import Lock
from typing import Final

from router.model import TopicName

WINDOW_SECONDS: Final = 60.0
MIN_SECONDS: Final = 1.0
"""Between two looks that tell a rate."""
MAX_TOPICS: Final = 2_000
MAX_LOOKS: Final = 20
"""Of one topic, in WINDOW_SECONDS."""


class Rates:
    """The looks of one worker; calls may be made from many threads or greenlets."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = Lock()
        self._looks: OrderedDict[TopicName, deque[tuple[float, int]]] = OrderedDict()

    def look(self, topic: TopicName, messages: int) -> float | None:
        """Note what a topic holds; return its rate since the oldest look within a minute.

        None: there was no such look, or retention or a new topic of this name took messages away.
        """
        now = self._clock()
        with self._lock:
            looks = self._looks.setdefault(topic, deque())
            self._looks.move_to_end(topic)
            if len(self._looks) > MAX_TOPICS:
                self._looks.popitem(last=False)
            while looks and looks[0][0] < now - WINDOW_SECONDS:
                looks.popleft()
            if not looks or now - looks[-1][0] >= WINDOW_SECONDS / MAX_LOOKS:
                looks.append((now, messages))
            since, held = looks[0]
        if now - since < MIN_SECONDS or messages < held:
            return None
        return (messages - held) / (now - since)
