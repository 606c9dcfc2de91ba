"""What clients of all dialects do at once to one partition, in any order, beside the plain model.

After each step every client has been sent what the model says, in its order, and nothing else.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from router.broker.consume import SubscriptionType
from router.broker.storage import KAFKA_FORMAT, NATS_FORMAT, PULSAR_FORMAT
from router.model import Position
from tests.unit.broker.consume.engine import (
    Engine,
    JetStreamClient,
    PulsarClient,
    use_virtual_time,
)
from tests.unit.broker.consume.engine_model import (
    Cumulative,
    Fetches,
    Group,
    Individual,
    JetStream,
    Log,
    Permitted,
)
from tests.unit.broker.consume.polls.polling import Clock, Got

SECOND_NS = 1_000_000_000
MEMORY = Path("/dev/shm")
"""Files that cost no sync, where there are such."""
POLICIES = ("explicit", "all", "none")
pick = st.integers(0, 1 << 16)


class EngineMachine(RuleBasedStateMachine):
    """One partition; a group of each dialect and kind, with one client each.

    `patience`: real seconds that a delivery is waited for which the model says is made.
    """

    patience = 10.0

    def __init__(self) -> None:
        super().__init__()
        self.clock, self.patch = Clock(), pytest.MonkeyPatch()
        make_loop = use_virtual_time(self.patch, self.clock)
        self.runner = asyncio.Runner(loop_factory=make_loop)
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        self.engine: Engine | None = None
        self.clients: dict[str, PulsarClient | JetStreamClient] = {}
        self.replies: dict[tuple[str, int], str] = {}
        self.ends: list[Position] = []
        self.named = -1

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    @property
    def rig(self) -> Engine:
        assert self.engine is not None
        return self.engine

    @property
    def now(self) -> int:
        return int(self.clock.now)

    @initialize(
        backoff=st.sampled_from([(), (), (2,), (1, 7)]),
        max_deliver=st.sampled_from([-1, 2, 3]),
        max_pending=st.sampled_from([-1, 1, 3]),
        sizes=st.lists(st.integers(1, 4), min_size=2, max_size=5),
        permits=st.sampled_from([0, 9, 24]),
    )
    def begin(
        self,
        backoff: tuple[int, ...],
        max_deliver: int,
        max_pending: int,
        sizes: list[int],
        permits: int,
    ) -> None:
        self.log = log = Log()
        self.polls, self.answers = Group("polls", log), Group("answers", log)
        self.fetches = Fetches("fetches", log)
        self.cumulative = Cumulative("cumulative", log)
        self.individual = Individual("individual", log)
        if 0 < max_deliver < len(backoff):
            max_deliver = len(backoff)
        self.streams = {
            policy: JetStream(
                policy,
                log,
                policy=policy,
                backoff=backoff,
                max_deliver=-1 if policy == "none" else max_deliver,
                max_pending=-1 if policy == "none" else max_pending,
            )
            for policy in POLICIES
        }
        if "none" in self.streams:
            self.streams["none"].backoff = ()
        self.run(self.open(first=True))
        for size in sizes:
            self.publish(size, PULSAR_FORMAT)
        self.ask_all(permits)

    async def open(self, *, first: bool = False) -> None:
        self.engine = engine = await Engine.open(self.folder, self.clock)
        for name, one in self.streams.items():
            config: dict[str, Any] = {}
            if first:
                config = {"ack_policy": name, "max_ack_pending": one.max_pending}
                if name == "none":
                    config = {"ack_policy": name}
                elif one.backoff:
                    config["backoff"] = [wait * SECOND_NS for wait in one.backoff]
                else:
                    config["ack_wait"] = one.ack_wait * SECOND_NS
                if one.max_deliver > 0:
                    config["max_deliver"] = one.max_deliver
            self.clients[name] = await engine.jetstream(name, **config)
            one.connected = True
        for group in (self.cumulative, self.individual):
            await self.join(group)

    async def join(self, group: Permitted) -> None:
        kind = SubscriptionType.SHARED if group is self.individual else SubscriptionType.EXCLUSIVE
        self.clients[group.name] = await self.rig.pulsar(group.name, kind)
        group.connected = True

    def teardown(self) -> None:
        try:
            if self.engine is not None:
                self.drain()
                self.run(self.engine.close())
        finally:
            self.runner.close()
            self.patch.undo()
            shutil.rmtree(self.folder)

    # What all dialects see.

    @rule(
        count=st.integers(1, 4),
        tag=st.sampled_from([PULSAR_FORMAT, PULSAR_FORMAT, KAFKA_FORMAT, NATS_FORMAT]),
    )
    def publish(self, count: int, tag: int) -> None:
        numbers = range(self.log.end, self.log.end + count)
        self.log.entries.append(numbers)
        self.run(self.rig.publish([b"%d" % number for number in numbers], tag))
        self.look()

    @precondition(lambda self: self.log.end > len(self.log.deleted))
    @rule(which=pick, soon=st.booleans(), limits=st.sampled_from([(), (1, 3)]))
    def delete(self, which: int, soon: bool, limits: tuple[int, ...]) -> None:
        """Delete a message, or one of those that the next poll would have; poll before and after.

        So a batch is deleted of that a poll is in the middle of.
        """
        for limit in limits[:1]:
            self.poll(limit, written=True)
        there = [n for n in range(self.log.end) if n not in self.log.deleted]
        if soon and (following := self.polls.left()[:3]):
            there = following
        number = there[which % len(there)]
        self.log.deleted.add(number)
        for one in self.streams.values():
            one.settle(number)
        self.run(self.rig.delete(number))
        self.look()
        for limit in limits[1:]:
            self.poll(limit, written=True)

    @rule(seconds=st.sampled_from([3, 3, 6, 30]))
    def pass_time(self, seconds: int) -> None:
        self.run(self.rig.advance(seconds))
        for one in self.streams.values():
            one.pass_time(self.now)
        self.look()

    @rule(permits=st.sampled_from([0, 9, 24]))
    def restart(self, permits: int) -> None:
        self.run(self.rig.close())
        for group in self.groups():
            group.restart()
        self.ends, self.named = [], -1
        self.run(self.open())
        self.look()
        self.ask_all(permits)

    def ask_all(self, permits: int) -> None:
        for name in self.clients if permits else ():
            self.ask_for_more(name, permits if name in POLICIES else permits // 3)

    def groups(self) -> list[Group]:
        streams: list[Group] = list(self.streams.values())
        others = [self.polls, self.answers, self.fetches, self.cumulative, self.individual]
        return others + streams

    # HTTP: polls, polls that name an answer, fetches.

    @rule(limit=st.integers(1, 6), written=st.booleans())
    def poll(self, limit: int, written: bool) -> None:
        """Poll; what is answered is acknowledged by DONE, or its client is gone."""
        count = min(limit, len(self.polls.left()))
        while count:
            found, _ = self.run(self._poll("polls", count, written=written))
            numbers = self.check(found, self.polls.left(), count)
            if not written:
                return
            self.polls.acknowledged.update(range(numbers[-1] + 1))
            count -= len(numbers)

    @rule(limit=st.integers(1, 6), names=st.booleans())
    def poll_explicitly(self, limit: int, names: bool) -> None:
        """Poll; what is answered is acknowledged by a later poll that names where it ends."""
        ends = self.ends if names else []
        if ends:
            self.answers.acknowledged.update(range(self.named + 1))
        numbers = None
        while numbers is None or len(numbers) < min(limit, len(self.answers.left())):
            found, self.ends = self.run(
                self._poll("answers", limit, explicit_partitions=1, acknowledged=ends)
            )
            numbers = self.check(found, self.answers.left(), limit)
        self.named = numbers[-1] if numbers else -1

    @rule(
        limit=st.integers(1, 6),
        consumer=st.sampled_from(["c", "c", "d"]),
        seconds=st.sampled_from([0, 0, 12]),
    )
    def fetch(self, limit: int, consumer: str, seconds: int) -> None:
        """Fetch, as the only consumer that there is; another id has to be forgotten before."""
        if seconds:
            self.pass_time(seconds)
        if any(who != consumer for _, who in self.fetches.given.values()):
            self.pass_time(6)
        now_ms, timeout_ms = self.now * 1000, self.fetches.timeout_ms
        expected = self.fetches.may_come(consumer, now_ms)
        count = min(limit, len(expected)) or 1
        while count:
            terms = self.rig.house.terms(consumer, ack_timeout_ms=timeout_ms)
            found, _ = self.run(self._poll("fetches", count, consumer=consumer, fetch=terms))
            numbers = self.check(found, expected, count)
            if not numbers:
                return
            self.fetches.given |= dict.fromkeys(numbers, (now_ms, consumer))
            del expected[: len(numbers)]
            count = min(count - len(numbers), len(expected))

    async def _poll(
        self, group: str, limit: int, *, consumer: str = "c", written: bool = True, **terms: Any
    ) -> tuple[list[Got], list[Position]]:
        house = self.rig.house
        poll_id = house.begin(consumer, limit, group=group, **terms)
        await house.stored()
        found = house.answer(poll_id)
        ends = house.ends(poll_id) if found else []
        house.done(poll_id, delivered=written)
        await self.rig.settle()
        return found, ends

    def check(self, found: list[Got], expected: list[int], limit: int) -> list[int]:
        """Check that an answer has what comes next; return the numbers of its messages.

        It has fewer where an entry has to be read, or made of another format, beside one that is
        there; the next poll has more.
        """
        numbers = [int(got.value) for got in found]
        assert numbers == expected[: len(numbers)][:limit], f"polled {numbers}, not {expected}"
        assert bool(numbers) == bool(expected)
        return numbers

    @rule(which=pick)
    def acknowledge_fetched(self, which: int) -> None:
        if not (given := sorted(self.fetches.given)):
            return
        number = given[which % len(given)]
        entry = self.log.entry_of(number)
        numbers = self.log.entries[entry]
        self.fetches.acknowledged.add(number)
        left = ((1 << len(numbers)) - 1) & ~(1 << number - numbers.start)
        self.run(self.rig.acknowledge("fetches", entry, left))

    # Pulsar.

    @rule(group=st.sampled_from(["cumulative", "individual", *POLICIES]), count=st.integers(1, 9))
    def ask_for_more(self, group: str, count: int) -> None:
        """Give permits, or pull."""
        client, model = self.clients[group], self.permitted(group)
        if not model.connected:
            return
        model.permits += count

        async def ask() -> None:
            if isinstance(client, PulsarClient):
                client.flow(count)
            else:
                client.pull(count)

        self.run(ask())
        self.look()

    def permitted(self, name: str) -> Permitted:
        groups: dict[str, Permitted] = {
            **self.streams,
            "cumulative": self.cumulative,
            "individual": self.individual,
        }
        return groups[name]

    @precondition(lambda self: self.individual.known())
    @rule(which=st.lists(pick, min_size=1, max_size=3), part=st.sampled_from([0, 0, 1, 2]))
    def acknowledge_individually(self, which: list[int], part: int) -> None:
        """Acknowledge entries that were sent, held or returned, or all but some messages."""
        for one in which:
            if known := self.individual.known():
                self.acknowledge_one(known[one % len(known)], part)

    def acknowledge_one(self, entry: int, part: int) -> None:
        numbers = self.log.entries[entry]
        left = {n for n in self.individual.unacknowledged_in(entry) if part and (n + part) % 2}
        self.individual.acknowledge(entry, left)
        self.run(self._acknowledge("individual", entry, {n - numbers.start for n in left}))
        self.look()

    @precondition(lambda self: self.cumulative.position)
    @rule(which=pick, part=st.sampled_from([0, 0, 1, 2]))
    def acknowledge_cumulatively(self, which: int, part: int) -> None:
        entry = which % self.cumulative.position
        numbers = self.log.entries[entry]
        unacknowledged = self.cumulative.unacknowledged_in(entry)
        left = set(unacknowledged[-part:] if part else ())
        self.cumulative.acknowledged.update(n for n in range(numbers.stop) if n not in left)
        places = {n - numbers.start for n in left}
        self.run(self._acknowledge("cumulative", entry, places, cumulative=True))
        self.look()

    async def _acknowledge(
        self, group: str, entry: int, left: set[int], *, cumulative: bool = False
    ) -> None:
        client = self.clients[group]
        assert isinstance(client, PulsarClient)
        client.acknowledge(entry, sum(1 << place for place in left), cumulative=cumulative)

    @precondition(lambda self: self.individual.held)
    @rule(which=st.lists(pick, max_size=3), permits=st.sampled_from([0, 6]))
    def give_back(self, which: list[int], permits: int) -> None:
        """Acknowledge negatively what is held, some of it or all, and ask for as much."""
        held = sorted(self.individual.held)
        entries = sorted({held[one % len(held)] for one in which})
        for entry in entries or held:
            self.individual.give_back(entry)
        self.run(self._give_back("individual", entries))
        self.look()
        if permits:
            self.ask_for_more("individual", permits)

    @precondition(lambda self: self.cumulative.connected)
    @rule()
    def give_all_back(self) -> None:
        self.cumulative.return_all()
        self.run(self._give_back("cumulative", []))
        self.look()

    async def _give_back(self, group: str, entries: list[int]) -> None:
        client = self.clients[group]
        assert isinstance(client, PulsarClient)
        client.give_back(*entries)

    @rule(group=st.sampled_from(["cumulative", "individual"]))
    def leave_and_join(self, group: str) -> None:
        """End a consumer, and open another one: what it held comes again, uncounted."""
        model, client = self.permitted(group), self.clients[group]
        assert isinstance(client, PulsarClient)
        model.restart()

        async def change() -> None:
            client.leave()
            await self.join(model)

        self.run(change())
        self.look()

    # JetStream.

    @precondition(lambda self: any(one.pending for one in self.streams.values()))
    @rule(
        which=st.lists(pick, min_size=1, max_size=4),
        word=st.sampled_from(["ack", "term", "nak", "nak", "progress", "progress"]),
        delay=st.sampled_from([None, 1, 4]),
        batch=st.sampled_from([0, 12]),
        seconds=st.sampled_from([0, 3]),
    )
    def answer(
        self, which: list[int], word: str, delay: int | None, batch: int, seconds: int
    ) -> None:
        """Acknowledge messages that are pending, each by its last delivery; pull more.

        Time passes before it and after it.
        """
        if seconds:
            self.pass_time(seconds)
        for one in which:
            pending = [(each, n) for each in self.streams.values() for n in sorted(each.pending)]
            if pending:
                model, number = pending[one % len(pending)]
                self.answer_one(model, number, word, delay)
                if batch:
                    self.ask_for_more(model.name, batch)
        if seconds:
            self.pass_time(seconds)

    def answer_one(self, model: JetStream, number: int, word: str, delay: int | None) -> None:
        client, reply = self.clients[model.name], self.replies[model.name, number]
        assert isinstance(client, JetStreamClient)
        if word == "nak":
            model.refuse(number, self.now, delay)
            text = b"" if delay is None else b' {"delay": %d}' % (delay * SECOND_NS)
            self.run(self._say(client, reply, b"-NAK" + text))
        elif word == "progress":
            model.extend(number, self.now)
            self.run(self._say(client, reply, b"+WPI"))
        elif not (model.policy == "all" and self._is_behind(model, reply)):
            model.acknowledge(number)
            self.run(self._say(client, reply, b"+TERM" if word == "term" else b"+ACK"))
        self.look()

    def _is_behind(self, model: JetStream, reply: str) -> bool:
        """Return whether an acknowledgement of all is overtaken by one of a later delivery."""
        floor = self.run(self.rig.served.info(model.name))["ack_floor"]
        return int(reply.split(".")[6]) <= int(floor["consumer_seq"])

    async def _say(self, client: JetStreamClient, reply: str, payload: bytes) -> None:
        client.say(reply, payload)

    # The check.

    def look(self) -> None:
        """Check what clients were sent since the last look, and that nothing is left."""
        expected = {
            name: [*self.permitted(name).deliveries(self.now)] for name in sorted(self.clients)
        }
        self.run(self._wait_for({name: len(sent) for name, sent in expected.items()}))
        for name, wanted in expected.items():
            client = self.clients[name]
            got, client.got = client.got, []
            self.replies |= {(name, one.number): one.reply for one in got}
            sent = [(one.number, one.before, one.left) for one in got]
            should = [(one.number, one.before, one.left) for one in wanted]
            assert sent == should, f"{name} was sent {sent}, not {should}"

    async def _wait_for(self, counts: dict[str, int]) -> None:
        await self.rig.settle()
        for name, count in counts.items():
            got = self.clients[name].got
            await self.rig.until(lambda got=got, count=count: len(got) >= count, self.patience)  # type: ignore[misc]

    @invariant()
    def backlogs_are_what_is_left(self) -> None:
        if self.engine is not None:
            for group in (self.cumulative, self.individual):
                assert self.run(self.rig.backlog(group.name)) == len(group.left())

    def drain(self) -> None:
        """Whoever goes on receiving and acknowledging gets all that is left."""
        for group in ("cumulative", "individual"):
            self.leave_and_join(group)
        for _ in range(4):
            self.pass_time(30)
        for name in self.clients:
            self.ask_for_more(name, 1_000)
        for number in self.individual.left():
            assert self.log.entry_of(number) in self.individual.held
        self.poll(1_000, written=True)
