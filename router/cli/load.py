"""The load of `router bench`: clients that publish, fetch, or send and wait for what they sent.

Where a rate is asked for, each request has a time at which it is due, and its latency counts from
then: one that had to wait for a slow request before it is as late as its user would find it.
Counting from the moment it was sent would leave that out (coordinated omission).
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from router.backends import Start
from router.cli.connection import StoreConnection, Tail
from router.cli.histogram import Histogram
from router.errors import RouterError
from router.model import Message

if TYPE_CHECKING:
    from router.cli.connection import Consumption

MAX_BYTES: Final = 4 << 30
"""What one run publishes at most, whatever it was asked for."""
FETCH_MESSAGES: Final = 1_000
FETCH_SECONDS: Final = 1.0
DRAIN_SECONDS: Final = 10.0
"""How long a run waits for messages that were sent and have not come."""
LATE_SECONDS: Final = 10.0
"""How long after its time a run goes on with requests that are due already."""
NUMBER_BYTES: Final = 8
LAST: Final = 2 ** (8 * NUMBER_BYTES) - 1
"""The number of the message behind the last one."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What to do; `duration` in seconds, `rate` in messages a second (0: as fast as it goes).

    `messages` None: until the time is over.
    """

    duration: float
    messages: int | None
    size: int
    clients: int
    batch: int
    rate: float

    def bound(self) -> int:
        """Return how many messages are published at most."""
        limit = MAX_BYTES // max(1, self.size)
        return limit if self.messages is None else min(limit, self.messages)


@dataclass(slots=True)
class LoadOutcome:
    """What was done; `latency` is of requests, or of messages from when they were due."""

    messages: int = 0
    requests: int = 0
    lost: int = 0
    seconds: float = 0.0
    latency: Histogram = field(default_factory=Histogram)

    def add(self, other: LoadOutcome) -> None:
        """Add what another client did at the same time."""
        self.messages += other.messages
        self.requests += other.requests
        self.latency.add(other.latency)


class LoadRun:
    """One run over a topic: its clients, each a thread with a connection of its own."""

    def __init__(self, there: StoreConnection, topic: str, plan: LoadPlan) -> None:
        self._there = there
        self._topic = topic
        self._plan = plan
        self._name = f"bench-{secrets.token_hex(8)}"
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._given = 0
        self._failures: list[RouterError] = []

    def publish(self) -> LoadOutcome:
        """Publish; latencies are those of requests."""
        return self._clients(self._publisher)

    def subscribe(self) -> LoadOutcome:
        """Have the clients, consumers of one group, read what is there; latencies of fetches."""
        return self._clients(self._consumer)

    def latency(self) -> LoadOutcome:
        """Send messages when they are due, and take the time until they arrive."""
        due: list[float] = []
        outcome = LoadOutcome()
        reader = threading.Thread(target=self._guarded, args=(self._reader, due, outcome))
        reader.start()
        try:
            began = time.monotonic()
            self._guarded(self._sender, due)
            outcome.seconds = time.monotonic() - began
            reader.join(DRAIN_SECONDS)
        finally:
            self._stop.set()
            reader.join(DRAIN_SECONDS)
        self._check()
        outcome.lost = len(due) - outcome.messages
        return outcome

    def _clients(self, work: Callable[[StoreConnection, int, LoadOutcome], None]) -> LoadOutcome:
        outcomes = [LoadOutcome() for _ in range(self._plan.clients)]
        threads = [
            threading.Thread(target=self._guarded, args=(self._client, work, number, outcome))
            for number, outcome in enumerate(outcomes)
        ]
        began = time.monotonic()
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            self._stop.set()
        found = LoadOutcome(seconds=time.monotonic() - began)
        self._check()
        for outcome in outcomes:
            found.add(outcome)
        return found

    def _client(
        self,
        work: Callable[[StoreConnection, int, LoadOutcome], None],
        number: int,
        outcome: LoadOutcome,
    ) -> None:
        with closing(self._there.sibling()) as there:
            work(there, number, outcome)

    def _guarded(self, function: Callable[..., None], *arguments: object) -> None:
        """Call what may fail in a thread of its own; the first failure ends the run."""
        try:
            function(*arguments)
        except RouterError as error:
            self._failures.append(error)
            self._stop.set()

    def _check(self) -> None:
        if self._failures:
            raise self._failures[0]

    def _due(self, number: int, clients: int) -> Iterator[tuple[float, int]]:
        """Yield when a client's next request is due, and how many messages it may have then."""
        plan = self._plan
        began = time.monotonic()
        end = began + plan.duration
        interval = plan.batch * clients / plan.rate if plan.rate else 0.0
        due = began + number * interval / clients
        while due < end and not self._stop.is_set():
            now = time.monotonic()
            if interval:
                self._stop.wait(max(0.0, due - now))
            else:
                due = now
            late = now > end + LATE_SECONDS
            if late or due >= end or self._stop.is_set() or not (count := self._take(plan.batch)):
                return
            yield due, count
            due += interval

    def _take(self, count: int) -> int:
        """Take so many of the messages that are left to be published, or what there is."""
        with self._lock:
            count = min(count, self._plan.bound() - self._given)
            self._given += count
        return count

    def _publisher(self, there: StoreConnection, number: int, outcome: LoadOutcome) -> None:
        value = secrets.token_bytes(self._plan.size)
        # A key for each message, so that the partitions share them.
        for due, count in self._due(number, self._plan.clients):
            key = outcome.requests
            messages = [Message(value, b"%d" % (key + index)) for index in range(count)]
            there.publish(self._topic, messages, None)
            outcome.latency.record(time.monotonic() - due)
            outcome.messages += count
            outcome.requests += 1

    def _consumer(self, there: StoreConnection, number: int, outcome: LoadOutcome) -> None:
        opened = there.consume(self._topic, self._name, f"bench-{number}", Start.EARLIEST)
        with closing(opened) as consumption:
            while not self._stop.is_set() and self._fetch(consumption, outcome):
                if self._given >= self._plan.bound():
                    self._stop.set()

    def _fetch(self, consumption: Consumption, outcome: LoadOutcome) -> bool:
        began = time.monotonic()
        found = consumption.fetch(FETCH_MESSAGES, FETCH_SECONDS)
        if not found:
            return False
        consumption.acknowledge()
        outcome.latency.record(time.monotonic() - began)
        outcome.messages += len(found)
        outcome.requests += 1
        self._take(len(found))
        return True

    def _sender(self, due: list[float]) -> None:
        padding = bytes(max(0, self._plan.size - NUMBER_BYTES))
        with closing(self._there.sibling()) as there:
            for at, _ in self._due(0, 1):
                message = Message(len(due).to_bytes(NUMBER_BYTES) + padding)
                due.append(at)
                there.publish(self._topic, [message], None)
            there.publish(self._topic, [Message(LAST.to_bytes(NUMBER_BYTES))], None)

    def _reader(self, due: list[float], outcome: LoadOutcome) -> None:
        """Take what arrives until the message behind the last one is there."""
        with closing(self._there.sibling()) as there:
            for found in there.tail(self._topic, Tail(Start.EARLIEST, DRAIN_SECONDS)):
                arrived = time.monotonic()
                for one in found:
                    number = int.from_bytes(one.message.value[:NUMBER_BYTES])
                    if number == LAST:
                        return
                    outcome.latency.record(arrived - due[number])
                    outcome.messages += 1
                if self._stop.is_set():
                    return
