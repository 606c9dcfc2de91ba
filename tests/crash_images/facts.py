"""What clients know for certain: calls that they made of a broker, when, and how they ended.

Times are nanoseconds of the monotonic clock until `placed` puts each fact into a recording.
"""

from __future__ import annotations

import re
import threading
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

from tests.crash_images.recording import Event, Send

_VALUE: Final = re.compile(rb"#(\w+):(\d{6}):([0-9a-f]{8}):([.\w]*)#")


MESSAGES_OF_A_KEY: Final = 4
"""In a compacted topic: then no newer one hides that the last of them is gone."""


class Fact(NamedTuple):
    """A call that a client made; `done` is None if it was not answered.

    `begun` and `done` are times, and places in the recording once it is placed: what is left of a
    recording's first events knows no call that begun behind them, and each that was done in them.
    `kind` says what was called: `publish` of a `value`, `acknowledge` of it, `delete`, ...
    """

    kind: str
    topic: str
    value: str
    group: str
    begun: int
    done: int | None
    port: int


class Facts:
    """Collects the facts of all clients."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.all: list[Fact] = []

    def add(self, fact: Fact) -> None:
        """Take one more; any thread may call this."""
        with self._lock:
            self.all.append(fact)


def placed(facts: Sequence[Fact], events: Sequence[Event]) -> list[Fact]:
    """Return the facts with places in the recording, in the order in which they began.

    A call was answered by the last write to its connection before the client had the answer.
    """
    sends: dict[int, tuple[list[int], list[int]]] = {}
    times: list[int] = []
    places: list[int] = []
    for place, event in enumerate(events):
        if isinstance(event, Send):
            of_port = sends.setdefault(event.port, ([], []))
            for where in (of_port, (times, places)):
                where[0].append(event.time_ns)
                where[1].append(place)
    found = []
    for fact in sorted(facts, key=lambda one: one.begun):
        before = bisect_right(times, fact.begun)
        begun = places[before - 1] if before else 0
        done = None
        if fact.done is not None:
            own_times, own_places = sends[fact.port]
            last = bisect_right(own_times, fact.done) - 1
            assert last >= 0, fact
            assert own_times[last] > fact.begun, fact
            done = own_places[last] + 1
        found.append(fact._replace(begun=begun, done=done))
    return found


def make_value(label: str, number: int, size: int) -> str:
    """Return a value of about so many bytes that can be found and checked in any bytes."""
    body = "x." * (size // 2)
    return f"#{label}:{number:06d}:{_sum(label, number, body):08x}:{body}#"


def name_of(value: str) -> str:
    """Return what identifies a value: its label and number."""
    return value[1:].rsplit(":", 2)[0]


def key_of(name: str) -> str:
    """Return the key of a value in a compacted topic: a publisher has one after the other."""
    label, _, number = name.partition(":")
    return f"{label}-{int(number) // MESSAGES_OF_A_KEY}"


def names_in(data: bytes) -> list[str]:
    """Return the names of the values in an entry; raise ValueError if one is not as it was made."""
    found = []
    for label, number, checksum, body in _VALUE.findall(data):
        if int(checksum, 16) != _sum(label.decode(), int(number), body.decode()):
            raise ValueError(f"a value of {label.decode()} is not what was published")
        found.append(f"{label.decode()}:{number.decode()}")
    return found


def _sum(label: str, number: int, body: str) -> int:
    return zlib.crc32(f"{label}:{number}:{body}".encode())
