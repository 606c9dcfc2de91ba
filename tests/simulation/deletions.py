"""Clients that delete from a stream, in each way that JetStream has, and the law that it stays so.

A message that a reader did not find, though it was stored, is gone: it must not be found again. One
that nothing deletes is there: no client asked for that, it has no time to live that may be over,
and the stream's limit does not reach it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from tests.simulation.history import History
from tests.simulation.nats_clients import NOT_FOUND, NatsPeer, code_of, read_answer
from tests.simulation.protocols import Client, value_of
from tests.simulation.seeded import CLOCK
from tests.simulation.workers import World

STREAM: Final = "D"
SUBJECTS: Final = ("d.a", "d.b", "d.c")
MAX_MESSAGES: Final = 100
"""The stream's limit."""
KEPT_MESSAGES: Final = MAX_MESSAGES - 10
"""What the limit does not reach, though publishes without an answer may have been stored."""
RECENT: Final = 8
MAX_LOOKS: Final = 12
LOOKED_AT: Final = 60
"""Messages that each looks for when it is quiet."""


class DeletionLaw:
    """What is known of the stream, from which no retention of the broker takes anything."""

    def __init__(self, history: History) -> None:
        self.subjects: dict[int, str] = {}
        self.recent: list[int] = []
        self.begun = asyncio.Event()
        self._history = history
        self._names: dict[int, str] = {}
        self._newest = 0
        self._may_be_gone: set[int] = set()
        self._purged_below: dict[str, int] = {}
        self._gone: dict[int, float] = {}

    def stored(self, sequence: int, subject: str, name: str, *, lives: bool) -> None:
        """Note an acknowledged publish; `lives`: it has no time to live."""
        self.subjects[sequence] = subject
        self._newest = max(self._newest, sequence)
        if not lives or sequence < self._purged_below.get(subject, 0):
            self._may_be_gone.add(sequence)
        self._found(sequence, name)

    def deleting(self, sequences: list[int]) -> None:
        """Note that a deletion is about to be sent."""
        self._may_be_gone.update(sequences)
        self.recent = (self.recent + sequences)[-RECENT:]
        self.begun.set()

    def purging(self, subject: str, before: int) -> list[int]:
        """Note a purge of a subject below a sequence; return what it deletes for certain."""
        self._purged_below[subject] = max(before, self._purged_below.get(subject, 0))
        known = [one for one, its in self.subjects.items() if its == subject and one < before]
        self.deleting(known)
        return known

    def missed(self, sequence: int) -> None:
        """Note that a stored message was not found, or that its deletion was confirmed."""
        self._gone.setdefault(sequence, CLOCK.now)
        if sequence > self._newest - KEPT_MESSAGES and sequence not in self._may_be_gone:
            self._history.violation("acknowledged and not delivered", f"{STREAM}: {sequence}")

    def found(self, sequence: int, name: str, asked_at: float) -> None:
        """Note that a message was found, asked for at a time."""
        self._found(sequence, name)
        if self._gone.get(sequence, asked_at) < asked_at:
            self._history.violation("a deleted message came back", f"{STREAM}: {sequence}")

    def _found(self, sequence: int, name: str) -> None:
        known = self._names.setdefault(sequence, name)
        if known != name:
            text = f"{STREAM}: {sequence} is {name}, before {known}"
            self._history.violation("an entry changed", text)


class NatsLooker(Client):
    """Looks for messages one by one, those first that are about to be deleted."""

    def __init__(self, world: World, law: DeletionLaw, name: str, mean: float) -> None:
        super().__init__(world, name, mean)
        self.law = law

    async def work(self) -> None:
        peer = await self.opened()
        while not self.world.is_quiet:
            await self.act(peer)
        known = sorted(self.law.subjects)
        for sequence in self.chance.sample(known, min(LOOKED_AT, len(known))):
            await self.look_for(peer, sequence)
        self.empty_in_quiet += 1
        peer.stream.close()

    async def opened(self) -> NatsPeer:
        """Connect, and make the stream if it is not there."""
        peer = await NatsPeer.open(self.world)
        config = {
            "name": STREAM,
            "subjects": ["d.>"],
            "max_msgs": MAX_MESSAGES,
            "allow_direct": True,
            "allow_msg_ttl": True,
        }
        await peer.call(f"STREAM.CREATE.{STREAM}", config)
        return peer

    async def act(self, peer: NatsPeer) -> None:
        """Look for some messages, and for one while its deletion is on its way."""
        self.law.begun.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.mean):
                await self.law.begun.wait()
        for _ in range(self.chance.randint(1, MAX_LOOKS)):
            if self.law.recent:
                await self.look_for(peer, self.law.recent[-1])
        for known in (self.law.recent, sorted(self.law.subjects)):
            if known:
                await self.look_for(peer, self.chance.choice(known))

    async def look_for(self, peer: NatsPeer, sequence: int) -> None:
        """Read a message that was stored."""
        asked_at = CLOCK.now
        name = await peer.look_for(STREAM, sequence, self.chance)
        if name:
            self.law.found(sequence, name, asked_at)
        elif name is not None:
            self.law.missed(sequence)


class NatsDeleter(NatsLooker):
    """The only publisher to the stream, which deletes, purges, and gives messages little time."""

    def __init__(self, world: World, law: DeletionLaw, name: str, mean: float) -> None:
        super().__init__(world, law, name, mean)
        self._number = 0

    async def act(self, peer: NatsPeer) -> None:
        """Publish, delete or purge."""
        await self.world.pause(self.chance, self.mean / 2)
        kind, known = self.chance.random(), self.law.subjects
        if kind < 0.6 or not known:
            await self._publish(peer)
        elif kind < 0.95 or max(known) == 1:  # A purge below 0 is one of everything.
            newest = max(known)
            near = [one for one in known if one > newest - MAX_MESSAGES // 2]
            await self._delete(peer, self.chance.choice(near))
        else:
            await self._purge(peer, self.chance.choice(SUBJECTS), max(known) - 1)

    async def _publish(self, peer: NatsPeer) -> None:
        self._number += 1
        name, subject = f"{self.name}:{self._number}", self.chance.choice(SUBJECTS)
        lives = self.chance.random() < 0.8
        headers = (
            b"" if lives else b"NATS/1.0\r\nNats-TTL: %ds\r\n\r\n" % self.chance.randint(1, 60)
        )
        answer = read_answer(await peer.ask(subject, value_of(name, self.chance), headers))
        if "seq" in answer and "error" not in answer:
            self.law.stored(answer["seq"], subject, name, lives=lives)
        else:
            await asyncio.sleep(self.chance.uniform(0.1, 2))

    async def _delete(self, peer: NatsPeer, sequence: int) -> None:
        self.law.deleting([sequence])
        answer = await peer.call(f"STREAM.MSG.DELETE.{STREAM}", {"seq": sequence})
        if answer.get("success") or code_of(answer) in NOT_FOUND:
            self.world.history.count("messages deleted")
            self.law.missed(sequence)

    async def _purge(self, peer: NatsPeer, subject: str, before: int) -> None:
        known = self.law.purging(subject, before)
        body = {"filter": subject, "seq": before}
        answer = await peer.call(f"STREAM.PURGE.{STREAM}", body)
        if answer.get("success"):
            self.world.history.count("messages deleted", answer["purged"])
            for sequence in known:
                self.law.missed(sequence)
