"""What clients did and saw, and what must hold of it at every moment.

A message is named by its publisher and a number, `p3:17`. The log of a partition is learned from
deliveries: whatever was delivered at a place is there for good. A group has, for each partition,
the place behind the last message that a client acknowledged: nothing behind it may come while that
is not acknowledged, and nothing before it once the acknowledgement is known to be processed.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple, Protocol

from tests.simulation.plan import EXCUSED_BY_DAMAGE
from tests.simulation.seeded import CLOCK

MAX_VIOLATIONS = 20
MAX_JOINS = 50
SESSION_GRACE_SECONDS = 2.0


def name_of(value: bytes) -> str:
    """Return the name of the message with a value, which must be as it was published."""
    name, _, filler = value.partition(b" ")
    published = name + b" " + b"." * len(filler)
    assert value == published, f"bytes that were not published: {value!r}"
    return name.decode()


class Holding(Protocol):
    """A connection under which messages are held."""

    @property
    def is_open(self) -> bool:
        """Return whether the broker sees it open."""
        ...


class InFlight(NamedTuple):
    """Who has a message and has not acknowledged it, and the message's key, empty: none."""

    consumer: str
    holding: Holding
    key: str = ""


class Join(NamedTuple):
    """A member joined a Kafka group: when it sent that, when it was answered, and with what."""

    sent_at: float
    answered_at: float
    generation: int


class Place(NamedTuple):
    """A message of a partition: its entry, its number there, and how many messages that has."""

    entry: int
    number: int = 0
    size: int = 1

    @property
    def following(self) -> tuple[int, int]:
        """Return where the next message is."""
        if self.number + 1 < self.size:
            return (self.entry, self.number + 1)
        return (self.entry + 1, 0)


class PartitionName(NamedTuple):
    """A partition of a topic, -1: of one that has none."""

    topic: str
    partition: int


class GroupPartition(NamedTuple):
    """A group on a partition."""

    partition: PartitionName
    group: str


@dataclass
class PartitionLog:
    """What is known of the log of a partition; places are entry and number."""

    messages: dict[tuple[int, int], str] = field(default_factory=dict)
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    acknowledged: dict[str, float] = field(default_factory=dict)
    """Published and acknowledged to the publisher, with the time at which it was sent first."""


@dataclass
class Progress:
    """Where a group stands in a partition, as its clients know."""

    received: set[str] = field(default_factory=set)
    acknowledged_to: tuple[int, int] | None = None
    """The place behind what clients sent an acknowledgement for."""
    processed_to: tuple[int, int] = (0, 0)
    """As far as the broker of this boot processed acknowledgements."""
    processed_at: float = 0.0
    processed: list[tuple[float, tuple[int, int]]] = field(default_factory=list)
    durable_to: tuple[int, int] = (0, 0)
    starts_at_zero: bool = False
    confirmed: dict[str, float] = field(default_factory=dict)
    """Messages that were acknowledged one by one, with the time of the broker's answer."""
    is_individual: bool = False
    acknowledging: set[str] = field(default_factory=set)
    """Messages of which one acknowledgement was sent, of a group that acknowledges one by one."""


class History:
    """All that happened in a run; `violations` says what must not have."""

    def __init__(self, *, has_damage: bool = False) -> None:
        self.violations: list[str] = []
        self._has_damage = has_damage
        self.logs: dict[PartitionName, PartitionLog] = {}
        self.groups: dict[GroupPartition, Progress] = {}
        self.deleted: set[PartitionName] = set()
        """Those that are deleted, or may be: nothing more need be delivered of them."""
        self.counts: dict[str, int] = {}
        self.log_lines: dict[str, int] = {}
        self.boot = 0
        self.lines: list[str] | None = None
        self._hash = sha256()
        self.runs_since = 0.0
        """The broker has neither started nor stood still since."""
        self.synced_since = 0.0
        """What was journalled before is on disk."""
        self._holders: dict[GroupPartition, tuple[str, Holding]] = {}
        self._in_flight: dict[GroupPartition, dict[str, InFlight]] = {}
        self._newest_of_key: dict[tuple[GroupPartition, str], tuple[int, int]] = {}
        self._joins: dict[str, deque[Join]] = {}
        self._assigned: dict[tuple[GroupPartition, int, str], str] = {}

    # The trace.

    def trace(self, what: str, text: str = "") -> None:
        """Add an event to the trace."""
        line = f"{CLOCK.now:.6f} {what} {text}\n"
        self._hash.update(line.encode())
        if self.lines is not None:
            self.lines.append(line)

    def carried(self, link: int, direction: str, data: bytes) -> None:
        """Add bytes that arrived."""
        self.trace(f"{link}{direction}", f"{len(data)} {zlib.crc32(data):08x}")

    def digest(self) -> str:
        """Return the hash of the trace so far."""
        return self._hash.hexdigest()

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number

    def logged(self, event: str) -> None:
        self.log_lines[event] = self.log_lines.get(event, 0) + 1

    def violation(self, kind: str, text: str) -> None:
        """Note that something happened that must not."""
        if self._has_damage and kind in EXCUSED_BY_DAMAGE:
            self.count(f"with damage: {kind}")
            return
        self.trace("VIOLATION", f"{kind}: {text}")
        if len(self.violations) < MAX_VIOLATIONS:
            self.violations.append(f"{CLOCK.now - 1000:.3f} s: {kind}: {text}")

    # The broker.

    def booted(self, boot: int) -> None:
        """Begin another process of the broker: what it processed and did not sync may be gone."""
        self.boot, self.runs_since = boot, CLOCK.now
        for progress in self.groups.values():
            progress.processed_to = progress.durable_to
            progress.processed.clear()
        self._joins.clear()
        self._assigned.clear()

    # Publishing.

    def log(self, name: PartitionName) -> PartitionLog:
        if name not in self.logs:
            self.logs[name] = PartitionLog()
        return self.logs[name]

    def published(self, name: PartitionName, messages: Sequence[str], sent_at: float) -> None:
        """Note an acknowledged publish, which was sent last at a time.

        Whatever was acknowledged before that is in the journal before it, and so on disk.
        """
        log = self.log(name)
        for message in messages:
            log.acknowledged[message] = sent_at
        self.count("published", len(messages))
        self.synced_since = max(self.synced_since, sent_at)

    # Groups.

    def progress(self, group: GroupPartition) -> Progress:
        if group not in self.groups:
            self.groups[group] = Progress()
        return self.groups[group]

    def delivered(
        self,
        group: GroupPartition,
        messages: Sequence[tuple[Place, str]],
        asked_at: float,
        after: tuple[int, int] | None = None,
    ) -> None:
        """Check and note messages of a partition that came in one answer, asked for at a time.

        `after`: where the consumer, which has the partition for itself, received the last one.
        """
        log, progress = self.log(group.partition), self.progress(group)
        self.count("delivered", len(messages))
        first = messages[0][0]
        start = (first.entry, first.number)
        if after is None:
            self._check_start(group, progress, start, asked_at)
        elif start != after:
            self.violation("a gap between answers", f"{group}: {start} instead of {after}")
        expected = start
        for place, message in messages:
            at = (place.entry, place.number)
            if at != expected:
                self.violation("a gap in an answer", f"{group}: {at} instead of {expected}")
            expected = place.following
            self._check_place(group, log, at, message)
            progress.received.add(message)

    def _check_start(
        self, group: GroupPartition, progress: Progress, start: tuple[int, int], asked_at: float
    ) -> None:
        self.mark_durable(progress)
        behind = progress.acknowledged_to
        if behind is None:
            if progress.starts_at_zero and start != (0, 0):
                self.violation("the beginning is missing", f"{group} began at {start}")
        elif start > behind:
            self.violation("messages were passed over", f"{group}: {behind} to {start}")
        if progress.processed_at < asked_at and start < progress.processed_to:
            text = f"{group} was at {progress.processed_to}, and got {start}"
            self.violation("acknowledged messages came again", text)

    def _check_place(
        self, group: GroupPartition, log: PartitionLog, at: tuple[int, int], message: str
    ) -> None:
        known = log.messages.setdefault(at, message)
        if known != message:
            self.violation("an entry changed", f"{group} at {at}: {message}, before {known}")
        where = log.places.setdefault(message, at)
        if where != at:
            self.violation("a duplicate", f"{group}: {message} at {at} and {where}")

    def hold(self, group: GroupPartition, consumer: str, holding: Holding) -> None:
        """Note that a consumer has messages of a partition and has not acknowledged them."""
        holder = self._holders.get(group)
        if holder is not None and holder[0] != consumer and holder[1].is_open:
            self.violation("two holders", f"{group}: {holder[0]} and {consumer}")
        self._holders[group] = (consumer, holding)

    def release(self, group: GroupPartition, consumer: str) -> None:
        """Note that it is about to acknowledge them, or to go."""
        if (holder := self._holders.get(group)) is not None and holder[0] == consumer:
            del self._holders[group]

    def acknowledging(self, group: GroupPartition, end: tuple[int, int]) -> None:
        """Note that an acknowledgement of all before a place is sent."""
        progress = self.progress(group)
        progress.acknowledged_to = max(progress.acknowledged_to or (0, 0), end)

    def processed(self, group: GroupPartition, end: tuple[int, int], boot: int) -> None:
        """Note that the broker of a boot has processed that."""
        progress = self.progress(group)
        if boot == self.boot and end > progress.processed_to:
            progress.processed_to, progress.processed_at = end, CLOCK.now
            progress.processed.append((CLOCK.now, end))

    def confirmed(self, group: GroupPartition, end: tuple[int, int], boot: int) -> None:
        """Note that the broker has answered an acknowledgement, which is on disk then."""
        self.processed(group, end, boot)
        progress = self.progress(group)
        progress.durable_to = max(progress.durable_to, end)

    # Messages that are acknowledged one by one.

    def delivered_one(
        self, group: GroupPartition, place: Place, message: str, asked_at: float
    ) -> None:
        """Check and note a message that was asked for at a time."""
        progress = self.progress(group)
        progress.is_individual = True
        self.count("delivered")
        if progress.confirmed.get(message, asked_at) < asked_at:
            self.violation("an acknowledged message came again", f"{group}: {message}")
        self._check_place(group, self.log(group.partition), (place.entry, place.number), message)
        progress.received.add(message)

    def acknowledging_one(self, group: GroupPartition, message: str) -> None:
        """Note that the acknowledgement of a message is sent."""
        self.progress(group).acknowledging.add(message)

    def confirmed_one(self, group: GroupPartition, message: str) -> None:
        """Note that the broker has answered the acknowledgement of a message."""
        self.progress(group).confirmed.setdefault(message, CLOCK.now)

    def hold_one(self, group: GroupPartition, place: Place, message: str, taken: InFlight) -> None:
        """Note that a consumer has a message, which no other has while it holds it.

        One with a key is delivered behind all others of its key, and to whom has those.
        """
        at, held = (place.entry, place.number), self._in_flight.setdefault(group, {})
        for other, one in held.items():
            conflicts = other == message or (taken.key and one.key == taken.key)
            if one.consumer == taken.consumer or not conflicts or not one.holding.is_open:
                continue
            if other == message:
                self.violation("a message at two consumers", f"{group}: {message}: {one} {taken}")
            else:
                text = f"{group}: {other} and {message} of {taken.key}: {one} {taken}"
                self.violation("a key at two consumers", text)
        held[message] = taken
        if taken.key and message not in self.progress(group).received:
            newest = self._newest_of_key.get((group, taken.key), at)
            if at < newest:
                self.violation("order of a key", f"{group}: {message} at {at} after {newest}")
            self._newest_of_key[group, taken.key] = at

    def release_one(self, group: GroupPartition, message: str, consumer: str) -> None:
        """Note that a consumer is about to acknowledge a message, or to give it back."""
        held = self._in_flight.get(group, {})
        if message in held and held[message].consumer == consumer:
            del held[message]

    def release_all(self, group: GroupPartition, consumer: str) -> None:
        """Note that a consumer is about to go."""
        held = self._in_flight.get(group, {})
        self._in_flight[group] = {m: one for m, one in held.items() if one.consumer != consumer}

    # Members of a group that have its partitions under a generation.

    def joined(self, group: str, generation: int, sent_at: float, boot: int) -> None:
        """Note the answer to a join that was sent at a time: a generation has begun since."""
        if boot == self.boot:
            joins = self._joins.setdefault(group, deque(maxlen=MAX_JOINS))
            joins.append(Join(sent_at, CLOCK.now, generation))

    def assigned(
        self, group: GroupPartition, generation: int, leader: str, member: str, boot: int
    ) -> None:
        """Note that a member of a generation, in which a member leads, is to read a partition."""
        if boot == self.boot:
            other = self._assigned.setdefault((group, generation, leader), member)
            if other != member:
                text = f"{group} in generation {generation}: {other} and {member}"
                self.violation("a partition at two members", text)

    def committed(
        self, group: str, generation: int, since: float, sent_at: float, boot: int
    ) -> None:
        """Note that a commit was taken, of a member that has its assignment since a time.

        A group that has no member left begins to count generations again.
        """
        for join in self._joins.get(group, ()) if boot == self.boot else ():
            began_between = join.sent_at > since and join.answered_at <= sent_at
            if began_between and join.generation != generation:
                text = f"{group}: of {generation} after {join}"
                self.violation("a commit of an earlier generation was taken", text)

    def beat(self, member: str, seconds: float, heard_at: float, sent_at: float, boot: int) -> None:
        """Check a request of a member that was taken: its session, of so long, had not ended.

        `heard_at`: when the member's request before it was answered.
        """
        is_late = sent_at - heard_at > seconds + SESSION_GRACE_SECONDS
        has_run = sent_at - self.runs_since > SESSION_GRACE_SECONDS
        if boot == self.boot and is_late and has_run:
            self.violation("a session that does not end", f"{member}, silent since {heard_at}")

    def mark_durable(self, progress: Progress) -> None:
        """Take what was processed before a publish that was acknowledged as on disk."""
        while progress.processed and progress.processed[0][0] < self.synced_since:
            progress.durable_to = max(progress.durable_to, progress.processed.pop(0)[1])

    # At the end.

    def missing(self, group: GroupPartition) -> set[str]:
        """Return what was published and acknowledged and has not come to a group."""
        if group.partition in self.deleted:
            return set()
        return self.log(group.partition).acknowledged.keys() - self.progress(group).received

    def held(self, group: GroupPartition) -> set[str]:
        """Return what came to consumers of a group, none of which has acknowledged it."""
        progress = self.progress(group)
        return progress.received - progress.acknowledging if progress.is_individual else set()

    def check_end(self) -> None:
        """Check what holds after a quiet time in which every group could read all there is."""
        for group in self.groups:
            if missing := self.missing(group):
                text = f"{group} misses {len(missing)}: {_first(missing)}"
                self.violation("acknowledged and not delivered", text)
            if held := self.held(group):
                text = f"{group} holds {len(held)}: {_first(held)}"
                self.violation("delivered and never acknowledged", text)
        for name, log in self.logs.items():
            self._check_density(name, log)
            self._check_order(name, log)

    def _check_density(self, name: PartitionName, log: PartitionLog) -> None:
        expected = 0
        for entry in sorted({entry for entry, _ in log.messages}):
            if entry != expected:
                self.violation(
                    "offsets are not dense", f"{name}: {expected} to {entry} are missing"
                )
            expected = entry + 1

    def _check_order(self, name: PartitionName, log: PartitionLog) -> None:
        newest: dict[str, int] = {}
        for _, message in sorted(log.messages.items()):
            publisher, _, number = message.partition(":")
            if newest.get(publisher, -1) > int(number):
                self.violation(
                    "order of a publisher", f"{name}: {message} after {newest[publisher]}"
                )
            newest[publisher] = int(number)


def _first(messages: set[str]) -> str:
    return ", ".join(sorted(messages)[:5])
