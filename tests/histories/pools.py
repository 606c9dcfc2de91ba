"""Subscriptions that several Pulsar consumers share: who has which message, and what comes again.

A consumer is a new member each time that it attaches. What it was sent may have been sent at any
time since the broker got the last request of it that was answered: each answer comes behind all
that was sent before. From then on, too, the broker may have found its connection lost.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Final

from router.wire.pulsar import pulsar_pb2 as pb
from tests.histories.pulsar_members import PulsarMember
from tests.histories.recording import History, Output, UnknownOutcomeError
from tests.histories.scenarios import Scenario, Step, read_all

MAX_PERMITS: Final = 3
DRAIN_SECONDS: Final = 30.0
DRAIN_PERMITS: Final = 1_000
PAUSE_SECONDS: Final = 0.02


class Pool(Scenario):
    """A shared subscription of three consumers; Kafka and Pulsar append."""

    model, label = "pool", "pool"
    kind: int = pb.CommandSubscribe.Shared
    # Whether nothing is sent to a consumer with permits only if others have all.
    complete = True
    Member: type[PulsarMember] = PulsarMember

    def prepare(self) -> None:
        self.create_topic()
        self._members: list[PoolClient] = []

    def workers(self) -> list[Step]:
        return [self._producer(), *(self.member(f"pulsar-{n}", self.Member).step for n in range(3))]

    def conclude(self) -> None:
        for one in self._members:
            one.lose()
        last = self.member(f"last-{len(self._members)}", PulsarMember)
        last.attach()
        until = time.monotonic() + DRAIN_SECONDS
        while not last.drain() and time.monotonic() < until:
            time.sleep(PAUSE_SECONDS)
        self.history.record("last", "drained", dict)
        read_all(self.history, self.kafka(), self.name)

    def key_of(self, value: str, _chance: random.Random) -> tuple[str, bytes | None]:
        """Return what the judge knows a message's order by, and the key that it has."""
        return value, None

    def member(self, label: str, member: type[PulsarMember]) -> PoolClient:
        """Return a new consumer, which is not attached yet."""
        client = self._owned.enter_context(closing(member(self._ports.pulsar)))
        made = PoolClient(self, label, client)
        self._members.append(made)
        return made

    def _producer(self) -> Step:
        kafka, wire = self.kafka(), self.wire()

        def step(chance: random.Random) -> None:
            for append in (kafka.append_keyed, wire.append_keyed):
                value = self.value("producer")
                key, given = self.key_of(value, chance)
                call = partial(append, self.name, given, value)
                self.history.record("producer", "append", call, value=value, key=key)

        return step


class FailoverPool(Pool):
    """A failover subscription: all messages in order to the one that has the turn."""

    label = "failover"
    kind = pb.CommandSubscribe.Failover

    def key_of(self, _value: str, _chance: random.Random) -> tuple[str, bytes | None]:
        return "", None


class Takeover(FailoverPool):
    """A consumer takes the turn from one that has messages, which then hears of that."""

    label = "takeover"

    def workers(self) -> list[Step]:
        produce = self._producer()
        first, second = (self.member(f"pulsar-{n}", self.Member) for n in range(2))

        def step(chance: random.Random) -> None:
            produce(chance)
            first.attach(1)
            first.wait()
            second.attach(0)
            second.wait()
            first.take(0)
            second.acknowledge(second.held)

        return [step]


class KeyedPool(Pool):
    """A key_shared subscription: the messages of a key in order to one consumer at a time."""

    label = "key-shared"
    kind = pb.CommandSubscribe.Key_Shared
    # What waits for the consumer that has its key.
    complete = False

    def key_of(self, _value: str, chance: random.Random) -> tuple[str, bytes | None]:
        key = chance.choice("abc")
        return key, key.encode()


class PoolClient:
    """What one client records of its consumers, of which it has one at a time."""

    def __init__(self, pool: Pool, label: str, client: PulsarMember) -> None:
        self._pool = pool
        self._history: History = pool.history
        self._label = label
        self._client = client
        self._count = 0
        self._given = 0
        self._attached = False
        self.held: list[str] = []
        # When the last call began that was answered.
        self._answered = 0

    @property
    def _name(self) -> str:
        return f"{self._label}-{self._count}"

    def step(self, chance: random.Random) -> None:
        """Make one call by chance."""
        if not self._attached:
            # One in ten takes the turn of a failover subscription over at once.
            self.attach(0 if chance.random() < 0.1 else self._count + 1)
            return
        kind = chance.random()
        if kind < 0.35 and self.held:
            self.acknowledge(chance.sample(self.held, min(len(self.held), chance.randint(1, 2))))
        elif kind < 0.42:
            self._release(self._client.give_back)
        elif kind < 0.48:
            self._release(self._client.leave, stays=False)
        elif kind < 0.52 and not self._client.permits:
            self._client.close()
            self.lose()
        else:
            self.take(chance.randint(1, MAX_PERMITS))

    def attach(self, priority: int = 0) -> None:
        """Become another consumer; raise RefusedError if that did not work."""
        self._count += 1
        began = time.monotonic_ns()
        self._client.attach(self._pool.name, self._pool.kind, self._name, priority)
        self._answered, self._attached, self.held = began, True, []

    def take(self, limit: int) -> Output | None:
        """Give as many permits as are missing to the limit; say so if nothing is left to take."""
        began = time.monotonic_ns()
        permits = self._client.permits
        call = partial(self._client.take, max(0, limit - permits))
        # Without permits nothing was sent before.
        return self._call(call, None if permits else began)

    def wait(self) -> None:
        """Take until something has come: one that takes a turn over waits for a second."""
        until = time.monotonic() + DRAIN_SECONDS
        while not self.held and time.monotonic() < until:
            self.take(MAX_PERMITS)
            time.sleep(PAUSE_SECONDS)

    def acknowledge(self, values: list[str]) -> None:
        """Acknowledge some of what it has."""
        began = time.monotonic_ns()
        done = self._call(partial(self._client.acknowledge, values))
        for value in values:
            self._note("ack", began, known=done is not None, value=value)
        self.held = [value for value in self.held if value not in values]

    def drain(self) -> bool:
        """Take and acknowledge what there is; return whether all of the log is acknowledged."""
        found = self.take(DRAIN_PERMITS)
        if found is not None and self.held:
            self.acknowledge(self.held)
        elif found is not None:
            return bool(found["last"])
        else:
            self.attach()
        return False

    def lose(self) -> None:
        """Be gone without a word, which the broker finds out at some time."""
        if self._attached:
            self._attached = False
            self._note("lose", self._answered, limit=int(self._client.permits > 0))
            self._client.close()

    def _release(self, call: Callable[[], Output], *, stays: bool = True) -> None:
        began, self.held = time.monotonic_ns(), []
        if self._call(call) is not None:
            self._note("release", began)
            self._attached = stays

    def _call(self, call: Callable[[], Output], sent_since: int | None = None) -> Output | None:
        """Make a call and record what came with its answer; without one the consumer is lost."""
        began = time.monotonic_ns()
        turns = self._client.turns_lost
        try:
            found = call()
        except UnknownOutcomeError:
            self.lose()
            return None
        for value in found["values"]:
            self._note("hold", sent_since or self._answered, value=value, offset=self._given)
            self._given += 1
        self.held += found["values"]
        if self._client.turns_lost > turns:
            self._note("lose", self._answered)
        if self._pool.complete and "last" in found and self._client.active and self._client.permits:
            self._note("none", began)
        self._answered = began
        return found

    def _note(self, op: str, began: int, *, known: bool = True, **inputs: object) -> None:
        self._history.note(self._name, op, began, known=known, member=self._name, **inputs)
