"""Raw clients of NATS: a publisher into a stream, and consumers of it, which pull or are pushed."""

from __future__ import annotations

import asyncio
import json
from abc import abstractmethod
from base64 import b64decode
from random import Random
from typing import Any, Final

from tests.simulation.history import GroupPartition, PartitionName, Place, name_of
from tests.simulation.network import Stream
from tests.simulation.protocols import Client, Numbered, value_of
from tests.simulation.seeded import CLOCK
from tests.simulation.workers import ANSWER_SECONDS, GoneError, World


class NatsPeer:
    """A connection of NATS, with an inbox."""

    def __init__(self, stream: Stream, boot: int) -> None:
        self.stream, self.boot = stream, boot
        self._data = bytearray()
        self._prefix = f"_INBOX.{stream.link.number}"
        self._inboxes = 0

    @classmethod
    async def open(cls, world: World) -> NatsPeer:
        try:
            stream = await world.network.connect(world.loop, "nats")
        except ConnectionRefusedError as error:
            raise GoneError from error
        peer = cls(stream, world.history.boot)
        options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
        stream.write(
            f"CONNECT {json.dumps(options)}\r\nSUB {peer._prefix}.> 1\r\nPING\r\n".encode()
        )
        while await peer._line() != "PONG":
            pass
        return peer

    async def _fill(self, seconds: float) -> None:
        try:
            data = await self.stream.read(seconds)
        except TimeoutError:
            self.stream.close()
            raise GoneError from None
        if not data:
            self.stream.close()
            raise GoneError
        self._data += data

    async def _line(self, seconds: float = ANSWER_SECONDS) -> str:
        while b"\r\n" not in self._data:
            await self._fill(seconds)
        line, _, rest = bytes(self._data).partition(b"\r\n")
        self._data = bytearray(rest)
        return line.decode()

    def subscribe(self, subject: str) -> None:
        """Receive what is published to a subject."""
        self.stream.write(f"SUB {subject} 2\r\n".encode())

    def publish(self, subject: str, payload: bytes, headers: bytes = b"") -> str:
        """Publish with an inbox of its own as reply, and return that."""
        self._inboxes += 1
        inbox = f"{self._prefix}.{self._inboxes}"
        verb = f"HPUB {subject} {inbox} {len(headers)}" if headers else f"PUB {subject} {inbox}"
        body = headers + payload
        self.stream.write(f"{verb} {len(body)}\r\n".encode() + body + b"\r\n")
        return inbox

    async def message(self) -> tuple[str, str, bytes, bytes]:
        """Return subject, reply, headers and payload of the next message; raise GoneError."""
        while True:
            line = await self._line()
            words = line.split(" ")
            if words[0] == "PING":
                self.stream.write(b"PONG\r\n")
            elif words[0] in {"MSG", "HMSG"}:
                headed = words[0] == "HMSG"
                size, split = int(words[-1]), int(words[-2]) if headed else 0
                while len(self._data) < size + 2:
                    await self._fill(ANSWER_SECONDS)
                body = bytes(self._data[:size])
                del self._data[: size + 2]
                reply = words[3] if len(words) == 5 + headed else ""
                return words[1], reply, body[:split], body[split:]

    async def ask(self, subject: str, payload: bytes, headers: bytes = b"") -> bytes:
        """Return the payload of the answer to a request."""
        inbox = self.publish(subject, payload, headers)
        while True:
            to, _, found, answer = await self.message()
            if to == inbox:
                return answer or found

    async def call(self, subject: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the answer to a call of the API, empty: there is no such service."""
        data = b"" if body is None else json.dumps(body).encode()
        return read_answer(await self.ask(f"$JS.API.{subject}", data))

    async def look_for(self, stream: str, sequence: int, chance: Random) -> str | None:
        """Return the name of a message of a stream, empty: it is not there, None: a refusal."""
        if chance.random() < 0.5:
            request = json.dumps({"seq": sequence}).encode()
            found = await self.ask(f"$JS.API.DIRECT.GET.{stream}", request)
            if found.startswith(b"NATS/1.0 "):
                return "" if found.startswith(b"NATS/1.0 404") else None
            return name_of(found)
        answer = await self.call(f"STREAM.MSG.GET.{stream}", {"seq": sequence})
        if "message" in answer:
            return name_of(b64decode(answer["message"].get("data", "")))
        return "" if code_of(answer) in NOT_FOUND else None


def read_answer(found: bytes) -> dict[str, Any]:
    """Return an answer that is JSON, or an empty one."""
    return dict(json.loads(found)) if found.startswith(b"{") else {}


def code_of(answer: dict[str, Any]) -> int:
    """Return the code of a refusal, 0: it is none."""
    return int(answer.get("error", {}).get("err_code", 0))


NOT_FOUND: Final = frozenset({10037, 10043})
"""There is no such message."""
STREAM: Final = "S"
HOUR_NS: Final = 3600 * 10**9


async def make_stream(peer: NatsPeer, name: str = STREAM) -> bool:
    """Make a stream of its name's subjects, if it is not there; return whether it is."""
    config = {
        "name": name,
        "subjects": [f"{name.lower()}.>"],
        "duplicate_window": 2 * HOUR_NS,
        "allow_direct": True,
    }
    return "config" in await peer.call(f"STREAM.CREATE.{name}", config)


class NatsPublisher(Numbered):
    """Publishes into a stream, each message under an id until it is acknowledged."""

    def __init__(self, world: World, name: str, mean: float) -> None:
        super().__init__(world, name, mean)
        self._log = PartitionName(f"nats:{STREAM}", 0)

    async def work(self) -> None:
        peer = await NatsPeer.open(self.world)
        await make_stream(peer)
        while not self.world.is_quiet or self.sent:
            if not self.sent:
                await self.pause()
                self.next_messages(1)
            (name,), at = self.sent, CLOCK.now
            headers = f"NATS/1.0\r\nNats-Msg-Id: {name}\r\n\r\n".encode()
            found = await peer.ask("s.a", value_of(name, self.chance), headers)
            answer = json.loads(found) if found.startswith(b"{") else {"error": found}
            if "error" not in answer:
                self.world.history.published(self._log, [name], at)
                self.sent = []
            else:
                self.world.history.count("NATS publish refused")
                await asyncio.sleep(self.chance.uniform(0.1, 2))
        peer.stream.close()


class Puller(Client):
    """Pulls from a durable consumer, and acknowledges each message by a request."""

    stream: str

    async def work(self) -> None:
        peer = await NatsPeer.open(self.world)
        await self.make(peer)
        while True:
            found = await self.pull(peer)
            quiet = self.world.is_quiet
            self.empty_in_quiet = self.empty_in_quiet + 1 if quiet and not found else 0
            for reply, message in found:
                if quiet or self.chance.random() < 0.8:
                    await self.acknowledge(peer, reply, message)
            await self.pause()

    async def make(self, peer: NatsPeer) -> bool:
        """Make the stream and the consumer if they are not there; return whether it is."""
        await make_stream(peer, self.stream)
        config = {"durable_name": self.name, "ack_policy": "explicit", "ack_wait": 10 * 10**9}
        body = {"stream_name": self.stream, "config": config}
        answer = await peer.call(f"CONSUMER.CREATE.{self.stream}.{self.name}", body)
        return "config" in answer

    @abstractmethod
    async def acknowledge(self, peer: NatsPeer, reply: str, message: str) -> None:
        """Acknowledge a message."""

    @abstractmethod
    def delivered(self, message: str, sequence: int, asked_at: float) -> None:
        """Check and note a message that was asked for at a time."""

    async def pull(self, peer: NatsPeer) -> list[tuple[str, str]]:
        """Return the messages of a pull, with where each is acknowledged."""
        asked_at, found = CLOCK.now, []
        # Longer than messages that were not acknowledged are held back.
        body = {"batch": self.chance.randint(1, 20), "expires": 12 * 10**9}
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{self.name}"
        inbox = peer.publish(subject, json.dumps(body).encode())
        for _ in range(body["batch"]):
            while True:
                to, reply, headers, payload = await peer.message()
                if to == inbox or to.startswith(f"{self.stream.lower()}."):
                    break
            if headers.startswith(b"NATS/1.0 ") or not reply:
                break
            message = name_of(payload)
            self.delivered(message, int(reply.split(".")[5]), asked_at)
            found.append((reply, message))
        return found


class NatsPuller(Puller):
    """Pulls from the stream of all NATS clients."""

    stream = STREAM

    def __init__(self, world: World, name: str, mean: float) -> None:
        super().__init__(world, name, mean)
        self._group = GroupPartition(PartitionName(f"nats:{STREAM}", 0), name)
        world.history.progress(self._group)

    async def acknowledge(self, peer: NatsPeer, reply: str, message: str) -> None:
        self.world.history.acknowledging_one(self._group, message)
        await peer.ask(reply, b"+ACK")
        self.world.history.confirmed_one(self._group, message)

    def delivered(self, message: str, sequence: int, asked_at: float) -> None:
        self.world.history.delivered_one(self._group, Place(sequence - 1), message, asked_at)


class NatsPushed(Client):
    """A durable consumer that pushes to a subject, with heartbeats and flow control."""

    def __init__(self, world: World, name: str, mean: float) -> None:
        super().__init__(world, name, mean)
        self._group = GroupPartition(PartitionName(f"nats:{STREAM}", 0), f"nats-{name}")
        world.history.progress(self._group).starts_at_zero = True

    async def work(self) -> None:
        peer, history = await NatsPeer.open(self.world), self.world.history
        await make_stream(peer)
        subject = f"pushed.{self.name}"
        config = {
            "durable_name": self.name,
            "deliver_subject": subject,
            "ack_policy": "explicit",
            "ack_wait": 10 * 10**9,
            "idle_heartbeat": 5 * 10**9,
            "flow_control": True,
        }
        body = json.dumps({"stream_name": STREAM, "config": config}).encode()
        await peer.ask(f"$JS.API.CONSUMER.CREATE.{STREAM}.{self.name}", body)
        peer.subscribe(subject)
        acks: dict[str, str] = {}
        self.empty_in_quiet = 0
        while True:
            to, reply, headers, payload = await peer.message()
            if to in acks:
                history.confirmed_one(self._group, acks.pop(to))
            elif headers.startswith(b"NATS/1.0 100"):
                if reply:
                    peer.publish(reply, b"")
                self.empty_in_quiet = self.empty_in_quiet + 1 if self.world.is_quiet else 0
            elif reply:
                self.empty_in_quiet = 0
                message, sequence = name_of(payload), int(reply.split(".")[5])
                asked_at = CLOCK.now if peer.stream.is_open else 0.0
                history.delivered_one(self._group, Place(sequence - 1), message, asked_at)
                if self.world.is_quiet or self.chance.random() < 0.9:
                    history.acknowledging_one(self._group, message)
                    acks[peer.publish(reply, b"+ACK")] = message
                if self.chance.random() < 0.005:
                    peer.stream.close()
                    raise GoneError
