"""Clients that send all they can: many connections of one event loop, little work a message.

Used where a broker is to be pushed to its limits and a client's own cost would be in the way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, cast
from urllib.parse import urlsplit

from router.model import Message
from router.wire.pulsar import Frame, PulsarFrameReader, command, encode, pack
from router.wire.pulsar import pulsar_pb2 as pb

Heard = Callable[[Frame], None]
_ANSWERS = {
    *("CONNECTED", "PARTITIONED_METADATA_RESPONSE", "LOOKUP_RESPONSE"),
    *("PRODUCER_SUCCESS", "SUCCESS", "ERROR"),
}


class Talker(asyncio.Protocol):
    """One connection: requests are awaited, everything else goes to `heard`."""

    def __init__(self, heard: Heard) -> None:
        self._heard = heard
        self._reader = PulsarFrameReader()
        self._room = asyncio.Event()
        self._room.set()
        self._answers: asyncio.Queue[pb.BaseCommand] = asyncio.Queue()
        self.closed = asyncio.get_running_loop().create_future()

    @classmethod
    async def connect(cls, url: str, heard: Heard) -> Talker:
        """Return a talker past its handshake."""
        where = urlsplit(url)
        loop = asyncio.get_running_loop()
        _, talker = await loop.create_connection(
            lambda: cls(heard), where.hostname or "", where.port or 6650
        )
        await talker.ask("CONNECT", client_version="flood", protocol_version=20)
        return talker

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._room.set()
        if not self.closed.done():
            self.closed.set_result(exc)

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def data_received(self, data: bytes) -> None:
        for frame in self._reader.receive(data):
            kind = frame.command.type
            if kind == pb.BaseCommand.PING:
                self.send("PONG")
            elif pb.BaseCommand.Type.Name(kind) in _ANSWERS:
                self._answers.put_nowait(frame.command)
            else:
                self._heard(frame)

    @property
    def waits(self) -> bool:
        """Whether the other end does not take what was written."""
        return self._transport.get_write_buffer_size() > 0

    def deafen(self) -> None:
        """Read nothing any more."""
        self._transport.pause_reading()

    def send(self, kind: str, payload: bytes = b"", **fields: Any) -> None:
        """Send a command."""
        number: Any = pb.BaseCommand.Type.Value(kind)
        self._transport.write(encode(command(number, **fields), payload))

    async def ask(self, kind: str, **fields: Any) -> pb.BaseCommand:
        """Send a request and return its answer; one at a time."""
        self.send(kind, **fields)
        async with asyncio.timeout(60):
            answer = await self._answers.get()
        assert answer.type != pb.BaseCommand.ERROR, answer
        return answer

    async def look_up(self, topic: str) -> None:
        """Have Apache Pulsar serve a topic; it knows no other before."""
        await self.ask("PARTITIONED_METADATA", topic=topic, request_id=1)
        await self.ask("LOOKUP", topic=topic, request_id=2)

    async def produce(self, topic: str, number: int = 0, **fields: Any) -> None:
        """Open a producer."""
        await self.ask("PRODUCER", topic=topic, producer_id=number, request_id=number, **fields)

    async def subscribe(self, topic: str, number: int = 0, **fields: Any) -> None:
        """Open a consumer."""
        fields = {"subscription": "flood", "subType": 1, "initialPosition": 1} | fields
        await self.ask("SUBSCRIBE", topic=topic, consumer_id=number, request_id=number, **fields)

    async def push(self, frames: Iterable[bytes]) -> None:
        """Write frames as fast as the other end takes them."""
        for frame in frames:
            await self._room.wait()
            self.write(frame)

    def write(self, frame: bytes) -> None:
        """Write a frame, whether there is room or not."""
        self._transport.write(frame)

    def close(self) -> None:
        """End the connection."""
        self._transport.abort()


def entry(values: list[bytes], number: int = 0, sequence_id: int = 0) -> bytes:
    """Return the frame of a SEND: a batch where there are several values."""
    payload = pack([Message(value) for value in values], "flood", sequence_id, 1_000)
    sent = pb.CommandSend(producer_id=number, sequence_id=sequence_id, num_messages=len(values))
    return encode(pb.BaseCommand(type=pb.BaseCommand.SEND, send=sent), payload)
