"""Clients of a stream that is deleted and made again under its name, and what more must hold of it.

No answer names the stream that it is of. Between two deletions there is one at most, so that what
was asked and answered between them is of that. A message is sent once, so that its name says more:
it is in one stream at most, at one sequence. An id of a message is given again to another when the
stream is gone that knew it.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from tests.simulation.history import GroupPartition, History
from tests.simulation.nats_clients import NatsPeer, Puller, code_of, make_stream, read_answer
from tests.simulation.protocols import Client, Numbered, value_of
from tests.simulation.renewals import GROUP, LATE_SECONDS, RenewalLaw, Renewer
from tests.simulation.seeded import CLOCK
from tests.simulation.workers import World

STREAM: Final = "R"
NO_STREAM: Final = 10059
NO_CONSUMER: Final = 10014
MAX_LOOKS: Final = 12


class StreamLaw(RenewalLaw):
    """What is known of the streams of the name, which are numbered as they are deleted."""

    def __init__(self, history: History) -> None:
        super().__init__(history, f"nats:{STREAM}")
        self.number = 0
        self.sent: dict[str, float] = {}
        """Messages that may be there, and after which time none of them is stored any more."""
        self.names: dict[int, str] = {}
        """Messages of the stream of now, by their sequences."""
        self._sequences: dict[str, int] = {}
        self._confirmed: dict[str, float] = {}

    def deleted(self) -> None:
        super().deleted()
        self.number += 1
        self.names.clear()
        self.sent = {name: at for name, at in self.sent.items() if at >= self.sent_at}

    def stored(self, sequence: int, name: str, sent_at: float) -> None:
        """Note an acknowledged publish."""
        self.found(sequence, name, sent_at)
        if self.unchanged_since(sent_at):
            self.published(self.number, name, sent_at)

    def found(self, sequence: int, name: str, asked_at: float) -> None:
        """Check and note a message in an answer to what was asked at a time."""
        self.scanned({name}, asked_at)
        if self._sequences.setdefault(name, sequence) != sequence:
            text = f"{name} at {sequence} and {self._sequences[name]}"
            self._history.violation("a duplicate", text)
        if self.unchanged_since(asked_at):
            self.counted(sequence, asked_at)
            if (known := self.names.setdefault(sequence, name)) != name:
                text = f"{STREAM}: {sequence} is {name}, before {known}"
                self._history.violation("an entry changed", text)

    def missed(self, sequence: int, asked_at: float) -> None:
        """Note that a message was not found, which was known when it was asked for."""
        if self.unchanged_since(asked_at):
            text = f"{STREAM}: {self.names[sequence]} at {sequence}"
            self._history.violation("acknowledged and not delivered", text)

    def counted(self, number: int, asked_at: float) -> None:
        """Check a number of messages, or a sequence, of an answer."""
        if self.unchanged_since(asked_at) and number > len(self.sent):
            text = f"{STREAM}: {number} of {len(self.sent)}"
            self._history.violation("a deleted message came back", text)

    def delivered(self, name: str, sequence: int, asked_at: float) -> None:
        """Check and note a message that came to the consumer."""
        self.found(sequence, name, asked_at)
        if self._confirmed.get(name, asked_at) < asked_at:
            self._history.violation("an acknowledged message came again", f"{STREAM}: {name}")
        group = GroupPartition(self._log(self.number), GROUP)
        self._history.progress(group).received.add(name)

    def confirmed(self, name: str) -> None:
        """Note that the broker has answered the acknowledgement of a message."""
        self._confirmed.setdefault(name, CLOCK.now)


class StreamRenewer(Renewer):
    """Deletes the stream by its protocol or another, now and then purged before."""

    law: StreamLaw
    pauses = 3.0

    async def opened(self) -> NatsPeer:
        return await NatsPeer.open(self.world)

    async def make(self, peer: NatsPeer) -> bool:
        return await make_stream(peer, STREAM)

    async def delete(self, peer: NatsPeer) -> bool:
        if self.chance.random() < 0.2:
            answer = await peer.call(f"STREAM.PURGE.{STREAM}")
            if answer.get("purged", 0) > len(self.law.sent):
                self.world.history.violation("a deleted message came back", repr(answer))
        if self.chance.random() < 0.4:
            return await self.delete_by_kafka(STREAM)
        answer = await peer.call(f"STREAM.DELETE.{STREAM}")
        return bool(answer.get("success")) or code_of(answer) == NO_STREAM


class StreamPublisher(Numbered):
    """Publishes under ids, those of messages that are deleted again."""

    def __init__(self, world: World, law: StreamLaw, name: str, mean: float) -> None:
        super().__init__(world, name, mean)
        self.law = law
        self._ids: dict[str, float] = {}
        self._is_done = False

    @property
    def has_work(self) -> bool:
        """Return whether nothing was stored yet since it is quiet."""
        return not self._is_done

    async def work(self) -> None:
        peer = await NatsPeer.open(self.world)
        while not self._is_done:
            await self.pause()
            await self._act(peer)
        peer.stream.close()

    async def _act(self, peer: NatsPeer) -> None:
        """Publish, and now and then another message under the same id, which is not stored."""
        message_id, at, is_quiet = self._next_id(), CLOCK.now, self.world.is_quiet
        answer, history = await self._publish(peer, message_id), self.world.history
        if answer.get("duplicate"):
            history.violation("a new message was taken for a duplicate", f"{STREAM}: {message_id}")
        elif "error" in answer or not answer:
            await make_stream(peer, STREAM)
        elif is_quiet:
            self._is_done = True
        elif self.chance.random() < 0.2:
            again = await self._publish(peer, message_id)
            is_stored = "seq" in again and again != {**answer, "duplicate": True}
            if is_stored and "error" not in again and self.law.unchanged_since(at):
                history.violation("a duplicate", f"{STREAM}: {message_id}: {answer} and {again}")

    def _next_id(self) -> str:
        """Return an id that no stream of now knows."""
        gone = [one for one, at in self._ids.items() if self.law.is_gone(at, CLOCK.now)]
        is_old = gone and self.chance.random() < 0.7
        return self.chance.choice(gone) if is_old else f"{self.name}-{len(self._ids)}"

    async def _publish(self, peer: NatsPeer, message_id: str) -> dict[str, Any]:
        """Return the answer."""
        (name,), sent, at = self.next_messages(1), self.law.sent, CLOCK.now
        self._ids[message_id] = sent[name] = at + LATE_SECONDS
        headers = f"NATS/1.0\r\nNats-Msg-Id: {message_id}\r\n\r\n".encode()
        subject = f"{STREAM.lower()}.{self.name}"
        answer = read_answer(await peer.ask(subject, value_of(name, self.chance), headers))
        self._ids[message_id] = self.law.sent[name] = CLOCK.now
        if "seq" in answer and not answer.keys() & {"duplicate", "error"}:
            self.law.stored(answer["seq"], name, at)
        return answer


class StreamPuller(Puller):
    """The only client of a consumer, which is not there in a new stream until it makes it."""

    stream = STREAM

    def __init__(self, world: World, law: StreamLaw, name: str, mean: float) -> None:
        super().__init__(world, name, mean)
        self.law = law
        self._made_at = self._there_at = float("-inf")
        """When the last request to make it was over, and after when it was there."""

    async def make(self, peer: NatsPeer) -> bool:
        """Make what is not there, on a new connection too: what was made before may not be gone."""
        at, law, history = CLOCK.now, self.law, self.world.history
        answer = await peer.call(f"CONSUMER.INFO.{STREAM}.{self.name}")
        if "config" in answer:
            if law.is_gone(self._made_at, at):
                history.violation("a new topic has a group of the old one", repr(answer))
            for place in (answer["delivered"], answer["ack_floor"]):
                law.counted(place["stream_seq"], at)
            law.counted(answer["num_pending"] + answer["num_ack_pending"], at)
            self._there_at = max(self._there_at, at)
            return True
        if code_of(answer) not in {NO_STREAM, NO_CONSUMER}:
            return False
        if law.unchanged_since(self._there_at):
            history.violation("a topic forgot a position", repr(answer))
        at, late = CLOCK.now, self._made_at
        self._made_at = at + LATE_SECONDS
        is_made = await super().make(peer)
        self._made_at = max(late, CLOCK.now)
        if is_made:
            self._there_at = at
        return is_made

    async def pull(self, peer: NatsPeer) -> list[tuple[str, str]]:
        await self.make(peer)
        return await super().pull(peer)

    async def acknowledge(self, peer: NatsPeer, reply: str, message: str) -> None:
        if not await peer.ask(reply, b"+ACK"):
            self.law.confirmed(message)

    def delivered(self, message: str, sequence: int, asked_at: float) -> None:
        self.law.delivered(message, sequence, asked_at)


class StreamLooker(Client):
    """Reads what the stream says of itself, and messages of it one by one."""

    def __init__(self, world: World, law: StreamLaw, name: str, mean: float) -> None:
        super().__init__(world, name, mean)
        self.law = law

    async def work(self) -> None:
        peer = await NatsPeer.open(self.world)
        while True:
            await self.pause()
            await self._check_state(peer)
            highest = max(self.law.names, default=0) + 1
            for _ in range(MAX_LOOKS):
                await self._look_for(peer, self.chance.randint(1, highest))

    async def _check_state(self, peer: NatsPeer) -> None:
        at, law, known = CLOCK.now, self.law, len(self.law.names)
        answer = await peer.call(f"STREAM.INFO.{STREAM}", {"subjects_filter": ">"})
        state = answer.get("state", {"messages": 0, "first_seq": 0, "last_seq": 0})
        if (not answer or "error" in answer) and code_of(answer) != NO_STREAM:
            await asyncio.sleep(self.chance.uniform(0.1, 2))
            return
        self.empty_in_quiet += self.world.is_quiet
        for number in (state["last_seq"], sum(state.get("subjects", {}).values())):
            law.counted(number, at)
        if law.unchanged_since(at):
            if state["first_seq"] > 1 or state["messages"] != state["last_seq"]:
                self.world.history.violation("the beginning is missing", repr(answer))
            if state["messages"] < known:
                text = f"{known} of {STREAM}: {answer}"
                self.world.history.violation("acknowledged and not delivered", text)

    async def _look_for(self, peer: NatsPeer, sequence: int) -> None:
        """Read a message, which may be known."""
        at, is_known = CLOCK.now, sequence in self.law.names
        name = await peer.look_for(STREAM, sequence, self.chance)
        if name:
            self.law.found(sequence, name, at)
        elif name is not None and is_known:
            self.law.missed(sequence, at)
