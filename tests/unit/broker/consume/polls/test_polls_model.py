"""Whatever publishers and polls do, polls are answered what a plain list of messages says.

The model knows what is stored, deleted, acknowledged and in flight, and nothing of entries,
cursors, leases, spans or readers. Each answer is checked against it: the next messages of each
partition, none left out, none twice, as many as fit; for a fetch the next that are not in flight.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from unittest import TestCase

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from router.broker.consume import StartPosition
from router.broker.consume.cursor.in_flight import InFlightTerms
from router.broker.storage import KAFKA_FORMAT, NATS_FORMAT, PULSAR_FORMAT
from router.errors import MessageOverMaxBytesError, SubscriptionBusyError
from router.model import Message, TopicName
from router.wire.pulsar.pulsar_pb2 import LZ4, NONE, ZLIB
from tests.unit.broker.consume.polls.polling import GROUP, TOPIC, Got, House, Worker

pytestmark = pytest.mark.slow

FRAME_BYTES = 12
"""Of a message in a batch, at most."""
FORMATS = [
    (PULSAR_FORMAT, NONE),
    (PULSAR_FORMAT, LZ4),
    (PULSAR_FORMAT, ZLIB),
    (KAFKA_FORMAT, NONE),
    (NATS_FORMAT, NONE),
]


@dataclass
class Log:
    """The messages of a partition: values, which are deleted, and which are acknowledged.

    The first `done` are, and those of `single`. `entries`: how many messages each has. `given`:
    until when messages are in flight, and whose they are.
    """

    values: list[bytes] = field(default_factory=list)
    entries: list[int] = field(default_factory=list)
    deleted: set[int] = field(default_factory=set)
    single: set[int] = field(default_factory=set)
    given: dict[int, tuple[int, str]] = field(default_factory=dict)
    done: int = 0

    def left(self, fetch: InFlightTerms | None = None) -> list[int]:
        """Return the numbers of the messages that are to come, to a poll or to a fetch."""
        gone = self.deleted | self.single
        left = [n for n in range(self.done, len(self.values)) if n not in gone]
        return left if fetch is None else [n for n in left if self._may_give(n, fetch)]

    def _may_give(self, number: int, fetch: InFlightTerms) -> bool:
        due, consumer = self.given.get(number, (0, ""))
        return due <= fetch.live_at_ms or consumer not in fetch.live


@dataclass
class Poll:
    """A poll that was begun, and what it took of each partition: up to before this number."""

    consumer: str
    limit: int
    max_bytes: int
    taken: dict[int, int] | None = None
    stale: bool = False
    fetch: InFlightTerms | None = None
    given: dict[int, list[int]] = field(default_factory=dict)
    answered_ms: int = 0


class Machine(RuleBasedStateMachine):
    """Publishers, polls, deletions and resets over one topic."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    @initialize(partitions=st.sampled_from([0, 2]), cache=st.sampled_from([0, 1 << 20]))
    def begin(self, partitions: int, cache: int) -> None:
        self.cache = cache
        self.house: House = self.run(House.open(self.folder, partitions, cache=cache))
        self.logs = {n: Log() for n in range(partitions)} if partitions else {-1: Log()}
        self.polls: dict[int, Poll] = {}
        self.kept: dict[tuple[str, int], int] = {}
        self.exists = False
        self.live = {"c1", "c2"}

    def teardown(self) -> None:
        if hasattr(self, "house"):
            self.run(self.house.close())
        self.runner.close()
        shutil.rmtree(self.folder)

    @rule(data=st.data(), sizes=st.lists(st.integers(0, 40), min_size=1, max_size=6))
    def publish(self, data: st.DataObject, sizes: list[int]) -> None:
        partition = data.draw(st.sampled_from(sorted(self.logs)))
        tag, compression = data.draw(st.sampled_from(FORMATS))
        log = self.logs[partition]
        first = len(log.values)
        log.entries.append(len(sizes))
        values = [b"%d:" % (first + n) + b"x" * size for n, size in enumerate(sizes)]
        log.values += values
        self.run(
            self.house.publish([Message(value) for value in values], partition, tag, compression)
        )
        self.look()

    @rule(
        consumer=st.sampled_from(["c1", "c2"]),
        limit=st.integers(1, 4) | st.just(100),
        max_bytes=st.sampled_from([1, 30, 90, 1 << 20]),
        timeout=st.sampled_from([0.0, 3.0]),
    )
    def poll(self, consumer: str, limit: int, max_bytes: int, timeout: float) -> None:
        if any(poll.consumer == consumer for poll in self.polls.values()):
            return

        async def begin() -> int:
            poll_id = self.house.begin(consumer, limit, max_bytes=max_bytes, timeout=timeout)
            await self.house.settle()
            return poll_id

        self.polls[self.run(begin())] = Poll(consumer, limit, max_bytes)
        self.exists = True
        self.look()

    @rule(
        consumer=st.sampled_from(["c1", "c2"]),
        limit=st.integers(1, 4) | st.just(100),
        max_bytes=st.sampled_from([1, 30, 1 << 20]),
    )
    def fetch(self, consumer: str, limit: int, max_bytes: int) -> None:
        if any(poll.consumer == consumer for poll in self.polls.values()):
            return
        self.live.add(consumer)
        terms = self.house.terms(*self.live, ack_timeout_ms=3_000)

        async def begin() -> int:
            poll_id = self.house.begin(consumer, limit, max_bytes=max_bytes, fetch=terms)
            await self.house.settle()
            return poll_id

        self.polls[self.run(begin())] = Poll(consumer, limit, max_bytes, fetch=terms)
        self.exists = True
        self.look()

    @rule(consumer=st.sampled_from(["c1", "c2"]))
    def consumer_is_deleted(self, consumer: str) -> None:
        self.live.discard(consumer)
        # What was given in the same millisecond may be another consumer's of that name.
        self.time_passes(1.0)

    @precondition(lambda self: any(log.given for log in self.logs.values()))
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        partition = data.draw(
            st.sampled_from(sorted(p for p, log in self.logs.items() if log.given))
        )
        log = self.logs[partition]
        number = data.draw(st.sampled_from(sorted(log.given)))
        first = entry = 0
        while first + log.entries[entry] <= number:
            first += log.entries[entry]
            entry += 1
        log.single.add(number)
        place = entry, number - first, log.entries[entry]
        self.run(self.house.acknowledge(*place, partition=partition))

    @precondition(lambda self: any(poll.taken for poll in self.polls.values()))
    @rule(data=st.data(), how=st.sampled_from(["written", "kept", "lost"]))
    def end(self, data: st.DataObject, how: str) -> None:
        answered = sorted(n for n, poll in self.polls.items() if poll.taken)
        poll_id = data.draw(st.sampled_from(answered))
        poll = self.polls.pop(poll_id)
        assert poll.taken is not None
        if poll.fetch is not None and how != "lost" and not poll.stale:
            for partition, numbers in poll.given.items():
                due = poll.fetch.due(poll.answered_ms), poll.consumer
                self.logs[partition].given.update(dict.fromkeys(numbers, due))
        elif how != "lost" and not poll.stale:
            for partition, upto in poll.taken.items():
                if how == "written":
                    self.logs[partition].done = upto
                else:
                    self.kept[poll.consumer, partition] = upto

        async def done() -> None:
            self.house.done(poll_id, delivered=how != "lost", keep=how == "kept")
            await self.house.stored()

        self.run(done())
        self.look()

    @rule()
    def worker_leaves(self) -> None:
        async def leave() -> None:
            gone = self.house.worker
            self.house.worker = Worker(now_ms=gone.now_ms)
            self.house.engine.gone(gone)
            await self.house.settle()

        self.run(leave())
        self.polls.clear()

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        partition = data.draw(st.sampled_from(sorted(self.logs)))
        log = self.logs[partition]
        if not log.values:
            return
        first = data.draw(st.integers(0, len(log.values) - 1))
        last = data.draw(st.integers(first, min(first + 3, len(log.values) - 1)))
        log.deleted.update(range(first, last + 1))

        async def delete() -> None:
            ledger = self.house.partition(partition).ledger
            self.house.store.delete_messages(ledger, [(first, last)])
            await self.house.stored()

        self.run(delete())

    @precondition(lambda self: self.exists)
    @rule()
    def reset(self) -> None:
        name = TopicName.parse(TOPIC)
        self.run(self.house.groups.reset(name, GROUP, StartPosition(earliest=True)))
        self.house.leases.forget(TOPIC, GROUP)
        self.kept.clear()
        for log in self.logs.values():
            log.done = 0
            log.single.clear()
            log.given.clear()
        for poll in self.polls.values():
            poll.stale = poll.taken is not None
        self.run(self.house.settle())
        self.look()

    @rule(seconds=st.sampled_from([1.0, 4.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        async def advance() -> None:
            self.house.clock.advance(seconds)
            await self.house.settle()

        self.run(advance())
        self.look()

    def look(self) -> None:
        """Check what was answered since the last look."""
        answers = self.house.worker.answers
        for poll_id in sorted(answers):
            found, poll = answers.pop(poll_id), self.polls[poll_id]
            if isinstance(found, SubscriptionBusyError) or found == []:
                del self.polls[poll_id]  # the time of the poll is over
                continue
            assert isinstance(found, list), found
            poll.answered_ms = self.house.worker.answered_ms.pop(poll_id)
            self.check(poll, found)

    def check(self, poll: Poll, found: list[Got]) -> None:
        assert 1 <= len(found) <= poll.limit
        size = sum(len(got.value) for got in found)
        assert size <= poll.max_bytes or len(found) == 1
        poll.taken = {}
        full = len(found) == poll.limit
        for partition, log in self.logs.items():
            values = [got.value for got in found if got.partition == partition]
            # What the id's last poll left was acknowledged when the partition was granted to it.
            if values:
                for name in ("c1", "c2"):
                    kept = self.kept.pop((name, partition), None)
                    if kept is not None and name == poll.consumer:
                        log.done = max(log.done, kept)
            left = log.left(poll.fetch)
            expected = [log.values[n] for n in left]
            assert values == expected[: len(values)], "not what comes next"
            if values:
                poll.taken[partition] = left[len(values) - 1] + 1
                poll.given[partition] = left[: len(values)]
                rest = expected[len(values) :]
                # A batch that is answered whole counts with what frames its messages.
                framed = size + FRAME_BYTES * (len(found) + 1)
                more = rest and framed + len(rest[0]) <= poll.max_bytes
                # An entry that is not in memory is not waited for beside one that is.
                waits = self.cache == 0 or len(self.logs) > 1
                assert full or not more or waits, "fewer than fit"
        for other in self.polls.values():
            if other is not poll and other.taken and not other.stale:
                assert not set(other.taken) & set(poll.taken), "two polls have a partition"

    @invariant()
    def a_poll_that_is_alone_has_what_there_is(self) -> None:
        if not hasattr(self, "house") or len(self.polls) != 1:
            return
        (poll,) = self.polls.values()
        alone = self.house.leases._groups[TOPIC, GROUP].assignor.members() == {poll.consumer}
        if alone and poll.taken is None and not self.kept:
            waits = any(log.left(poll.fetch) for log in self.logs.values())
            assert not waits, "waits beside messages"


def cases(machine: type[Machine]) -> type[TestCase]:
    made: Any = machine.TestCase
    made.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
    return cast("type[TestCase]", made)


TestPolls = cases(Machine)


@asynccontextmanager
async def on_a_house(partitions: int = 0, **options: int) -> AsyncIterator[House]:
    with tempfile.TemporaryDirectory() as folder:
        house = await House.open(Path(folder), partitions, **options)
        try:
            yield house
        finally:
            await house.close()


async def test_first_message_that_is_too_large_is_refused_where_the_bound_is_strict() -> None:
    async with on_a_house() as house:
        await house.publish([Message(b"x" * 50), Message(b"y")])
        with pytest.raises(MessageOverMaxBytesError, match="50 bytes, maxBytes is 10"):
            await house.poll(max_bytes=10, strict=True)
        assert await house.poll(max_bytes=10) == [b"x" * 50]


async def test_poll_that_waits_when_its_topic_grows_reads_the_new_partitions() -> None:
    async with on_a_house(partitions=2) as house:
        waiting = house.begin("c", timeout=60.0)
        await house.settle()
        await house.topics.change(
            TopicName.parse(TOPIC), lambda record: house.store.grow_topic(record, 3)
        )
        assert await house.poll("other", group="h") == []
        house.begin("d", timeout=60.0)
        await house.settle()
        await house.publish([Message(b"a")], 2)
        house.clock.advance(1.0)
        await house.settle()
        answered = [found for found in house.worker.answers.values() if found]
        assert [[got.value for got in found] for found in answered] == [[b"a"]]  # type: ignore[union-attr]
        assert waiting not in house.worker.answers or house.answer(waiting)


async def test_what_was_sent_is_counted_once() -> None:
    async with on_a_house() as house:
        await house.publish([Message(b"x")] * 10)
        for _ in range(10):
            assert await house.poll(limit=1) == [b"x"]
        (subscription,) = house.partition(-1).subscriptions.values()
        assert subscription.sent_messages == 10


async def test_what_is_left_of_a_batch_comes_before_the_next_entry() -> None:
    async with on_a_house() as house:
        await house.publish([Message(b"a"), Message(b"b" * 30)])
        await house.publish([Message(b"c")])
        assert await house.poll(max_bytes=10) == [b"a"]
        assert await house.poll(max_bytes=10) == [b"b" * 30]
        assert await house.poll(max_bytes=10) == [b"c"]
