"""A plain model of what groups of all dialects are delivered: sets of messages with states.

It knows the numbers of the messages of each entry and which are deleted, and of each group which
are acknowledged and which are pending; nothing of cursors, spans, heaps, floors or readers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.unit.broker.consume.engine import Delivery


@dataclass
class Log:
    """The messages of the partition: the numbers of each entry, and those that are deleted."""

    entries: list[range] = field(default_factory=list)
    deleted: set[int] = field(default_factory=set)

    @property
    def end(self) -> int:
        return self.entries[-1].stop if self.entries else 0

    def entry_of(self, number: int) -> int:
        return next(at for at, numbers in enumerate(self.entries) if number in numbers)


@dataclass
class Group:
    """What one group has acknowledged; `name` is that of its subscription."""

    name: str
    log: Log
    acknowledged: set[int] = field(default_factory=set)

    def left(self) -> list[int]:
        """Return the messages that are visible and not acknowledged."""
        gone = self.acknowledged | self.log.deleted
        return [number for number in range(self.log.end) if number not in gone]

    def left_of(self, entry: int) -> list[int]:
        numbers = self.log.entries[entry]
        return [n for n in numbers if n not in self.acknowledged and n not in self.log.deleted]

    def bits_of(self, entry: int) -> int:
        first = self.log.entries[entry].start
        return sum(1 << number - first for number in self.left_of(entry))

    def restart(self) -> None:
        """Go on with what is on disk: a broker's memory is gone."""

    def unacknowledged_in(self, entry: int) -> list[int]:
        return [n for n in self.log.entries[entry] if n not in self.acknowledged]


@dataclass
class Fetches(Group):
    """REST consumers: what a fetch took is in flight for a time; `given`: when, and to whom."""

    given: dict[int, tuple[int, str]] = field(default_factory=dict)
    timeout_ms: int = 10_000

    def may_come(self, live: str, now_ms: int) -> list[int]:
        """Return what a fetch may take whose consumer is the only one there is."""
        return [number for number in self.left() if not self._is_in_flight(number, live, now_ms)]

    def _is_in_flight(self, number: int, live: str, now_ms: int) -> bool:
        if number not in self.given:
            return False
        since, consumer = self.given[number]
        passed = now_ms - since
        # It ends with a step of a tenth of its time.
        assert not self.timeout_ms <= passed < self.timeout_ms * 11 // 10, "not known here"
        return passed < self.timeout_ms and (consumer == live or not passed)

    def restart(self) -> None:
        self.given.clear()


@dataclass
class Permitted(Group, ABC):
    """A group whose client is sent messages as soon as it has permits for them."""

    permits: int = 0
    connected: bool = False

    def deliveries(self, now: int) -> Iterator[Delivery]:
        """Yield what is sent now, and take note of it."""
        while self.connected and self.permits > 0:
            sent = self.take(now)
            if sent is None:
                return
            yield sent

    @abstractmethod
    def take(self, now: int) -> Delivery | None:
        """Return what is sent next; None: nothing now."""

    def restart(self) -> None:
        self.permits, self.connected = 0, False


@dataclass
class Cumulative(Permitted):
    """Pulsar's exclusive consumer: entries in order, from what it returned or acknowledged on."""

    position: int = 0

    def take(self, now: int) -> Delivery | None:
        del now
        entries = range(self.position, len(self.log.entries))
        entry = next((one for one in entries if self.left_of(one)), None)
        if entry is None:
            return None
        self.position = entry + 1
        self.permits -= len(self.log.entries[entry])
        return Delivery(entry, 0, self.bits_of(entry))

    def return_all(self) -> None:
        self.position = 0

    def restart(self) -> None:
        super().restart()
        self.position = 0


@dataclass
class Individual(Permitted):
    """Pulsar's shared consumer: what it holds, and how often it returned an entry."""

    held: set[int] = field(default_factory=set)
    returned: dict[int, int] = field(default_factory=dict)
    sent: int = 0

    def take(self, now: int) -> Delivery | None:
        del now
        for entry in range(len(self.log.entries)):
            is_returned = entry < self.sent and entry not in self.held
            if self.left_of(entry) and (is_returned or entry >= self.sent):
                self.sent = max(self.sent, entry + 1)
                self.held.add(entry)
                self.permits -= len(self.log.entries[entry])
                return Delivery(entry, self.returned.get(entry, 0), self.bits_of(entry))
        return None

    def known(self) -> list[int]:
        """Return the entries that were sent and are not acknowledged."""
        return [entry for entry in range(self.sent) if self.unacknowledged_in(entry)]

    def acknowledge(self, entry: int, left: set[int]) -> None:
        self.acknowledged |= {n for n in self.log.entries[entry] if n not in left}
        if not self.unacknowledged_in(entry):
            self.held.discard(entry)

    def give_back(self, entry: int) -> None:
        if entry in self.held:
            self.held.remove(entry)
            self.returned[entry] = self.returned.get(entry, 0) + 1

    def restart(self) -> None:
        super().restart()
        self.held.clear()
        self.returned.clear()


@dataclass
class Pending:
    """A message of JetStream without its acknowledgement; `due` None: it waits to be delivered."""

    attempts: int = 0
    due: int | None = None


@dataclass
class JetStream(Permitted):
    """A consumer of JetStream; times are whole seconds.

    `queue`: what is to be delivered again, in its order. `exhausted`: delivered for the last time.
    """

    policy: str = "explicit"
    ack_wait: int = 5
    backoff: tuple[int, ...] = ()
    max_deliver: int = -1
    max_pending: int = -1
    next: int = 0
    pending: dict[int, Pending] = field(default_factory=dict)
    queue: list[int] = field(default_factory=list)
    exhausted: set[int] = field(default_factory=set)

    def take(self, now: int) -> Delivery | None:
        if self.queue:
            number = self.queue.pop(0)
        elif 0 < self.max_pending <= len(self.pending):
            return None
        else:
            news = (n for n in self.left() if n >= self.next)
            if (found := next(news, None)) is None:
                return None
            number, self.next = found, found + 1
        one = self.pending.setdefault(number, Pending())
        one.attempts += 1
        one.due = now + self.wait(one)
        self.permits -= 1
        if self.policy == "none":
            del self.pending[number]
        return Delivery(number, one.attempts - 1)

    def wait(self, one: Pending) -> int:
        times = self.backoff or (self.ack_wait,)
        return times[min(one.attempts, len(times)) - 1]

    def settle(self, number: int) -> None:
        self.pending.pop(number, None)
        self.exhausted.discard(number)
        if number in self.queue:
            self.queue.remove(number)

    def acknowledge(self, number: int) -> None:
        """Take an acknowledgement, or the end of a message's deliveries."""
        numbers = [number]
        if self.policy == "all":
            numbers = [n for n in [*self.pending, *self.exhausted] if n <= number]
        for one in numbers:
            if one in self.pending or one in self.exhausted:
                self.acknowledged.add(one)
            self.settle(one)

    def refuse(self, number: int, now: int, delay: int | None) -> None:
        one = self.pending.get(number)
        if one is not None and delay is not None:
            if number in self.queue:
                self.queue.remove(number)
            one.due = now + delay
        elif one is not None and number not in self.queue:
            self._expire(number)

    def extend(self, number: int, now: int) -> None:
        one = self.pending.get(number)
        if one is not None and one.due is not None:
            one.due = now + self.wait(one)

    def pass_time(self, now: int) -> None:
        for number, one in sorted(self.pending.items()):
            if one.due is not None and one.due <= now:
                self._expire(number)

    def _expire(self, number: int) -> None:
        one = self.pending[number]
        if 0 < self.max_deliver <= one.attempts:
            self.settle(number)
            self.exhausted.add(number)
        else:
            one.due = None
            self.queue.append(number)

    def restart(self) -> None:
        super().restart()
        self.queue.sort()
