"""A network in memory: connections whose bytes arrive late, in pieces, or not at all.

Each direction of a connection is a queue of bytes. What is at its head arrives after a delay, cut
at any byte. Between connections nothing is in order. A connection may be reset after any byte, or
fall silent: what is sent then is gone, and neither end is told. A partition holds what is sent
until it ends, as TCP does.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from random import Random
from typing import Any

from tests.simulation.loop import ProcessLoop
from tests.simulation.seeded import CLOCK

DELAY_SECONDS = (0.00005, 0.003)
SLOW_DELAY_SECONDS = 0.25
SLOW_ODDS = 0.02
SPLIT_ODDS = 0.05
KEEP_ALIVE_SECONDS = 60.0


class FakeSocket:
    """A listening or connected socket, as far as the broker looks at it."""

    def __init__(self, name: str, port: int = 0) -> None:
        self.name = name
        self.family = socket.AF_INET if port else socket.AF_UNIX
        self.port = port
        self.is_kept_alive = False

    def getsockname(self) -> tuple[str, int]:
        return ("127.0.0.1", self.port)

    def setsockopt(self, level: int, option: int, _value: int) -> None:
        if (level, option) == (socket.SOL_SOCKET, socket.SO_KEEPALIVE):
            self.is_kept_alive = True

    def getsockopt(self, _level: int, _option: int, size: int) -> bytes:
        return bytes(size)

    def close(self) -> None:
        """Nothing is held."""


class Direction:
    """The bytes from one end of a link to the other."""

    def __init__(self, link: Link, name: str) -> None:
        self.link, self.name = link, name
        self.data = bytearray()
        self.lost = bytearray()
        self.has_ended = False
        self.is_paused = False
        self.receive: Callable[[bytes], None] = lambda _data: None
        self.drained: Callable[[], None] = lambda: None
        self._is_scheduled = False
        self._count = 0

    def send(self, data: bytes) -> None:
        if self.link.is_lost:
            self.lost += data
        elif not self.has_ended:
            self.data += data
            self._schedule()

    def end(self) -> None:
        """Have the other end read the end of the stream behind what was sent."""
        if not self.has_ended:
            self.has_ended = True
            self._schedule()

    def resume(self) -> None:
        if self.is_paused:
            self.is_paused = False
            if self.data or self.has_ended:
                self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            link = self.link
            random = link.chance.random
            delay = DELAY_SECONDS[0] + (DELAY_SECONDS[1] - DELAY_SECONDS[0]) * random()
            if random() < SLOW_ODDS:
                delay += SLOW_DELAY_SECONDS * random()
            link.network.loop.call_at(max(CLOCK.now + delay, link.held_until), self._arrive)

    def _arrive(self) -> None:
        self._is_scheduled = False
        link = self.link
        if link.is_lost or self.is_paused:
            return
        if link.held_until > CLOCK.now:
            self._schedule()
            return
        size = len(self.data)
        if size > 1 and link.chance.random() < SPLIT_ODDS:
            size = link.chance.randint(1, size - 1)
        if link.cut_in and size >= link.cut_in:
            size, link.cut_in = link.cut_in - 1, -1
        elif link.cut_in > 0:
            link.cut_in -= size
        if size:
            chunk = bytes(self.data[:size])
            del self.data[:size]
            link.network.note(link.number, self.name, chunk)
            self.receive(chunk)
            self.drained()
        if link.cut_in < 0:
            link.reset()
        elif self.data:
            self._schedule()
        elif self.has_ended:
            self.receive(b"")


class Link:
    """A connection between a client and the broker."""

    def __init__(self, network: Network, number: int, listener: FakeSocket) -> None:
        self.network, self.number = network, number
        self.chance = Random(f"{network.seed}:link:{number}")
        self.is_lost = False
        self.held_until = 0.0
        self.cut_in = 0
        """The connection is reset before it has carried so many bytes more; 0: never."""
        self.up, self.down = Direction(self, ">"), Direction(self, "<")
        self.socket = FakeSocket(listener.name, listener.port)
        self.server: ServerTransport | None = None
        self.client: Stream | None = None

    def reset(self) -> None:
        """Break the connection; both ends are told, each in its time."""
        if self.is_lost:
            return
        self.is_lost = True
        self.network.links.pop(self.number, None)
        loop = self.network.loop
        for end in (self.server, self.client):
            if end is not None:
                loop.call_later(self.chance.uniform(*DELAY_SECONDS), end.lost)

    def silence(self) -> None:
        """Carry nothing any more and tell neither end; keep-alive probes find out, if there are."""
        if not self.is_lost:
            self.is_lost = True
            self.network.links.pop(self.number, None)
            if self.socket.is_kept_alive and self.server is not None:
                self.network.loop.call_later(KEEP_ALIVE_SECONDS, self.server.lost)


class ServerTransport(asyncio.Transport):
    """The broker's end of a link."""

    def __init__(self, link: Link, loop: ProcessLoop, protocol: Any) -> None:
        super().__init__()
        self._link, self._loop, self._protocol = link, loop, protocol
        self._high, self._low = 64 << 10, 16 << 10
        self._is_closing = self._is_lost = self._writing_paused = False
        link.up.receive = self._received
        link.down.drained = self._drained

    @property
    def is_open(self) -> bool:
        """Return whether the broker, which runs, has neither closed nor lost it."""
        return not (self._is_closing or self._is_lost or self._loop.is_dead)

    def _received(self, data: bytes) -> None:
        self._loop.call_soon(self._deliver, data)

    def _deliver(self, data: bytes) -> None:
        if self._is_lost or self._is_closing:
            return
        if data:
            self._protocol.data_received(data)
        else:
            self._is_closing = True
            self._link.down.end()
            self._lose(None)

    def lost(self) -> None:
        """Learn that the connection broke."""
        self._loop.call_soon(self._lose, ConnectionResetError())

    def _lose(self, error: Exception | None) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._link.network.links.pop(self._link.number, None)
            self._protocol.connection_lost(error)

    def _drained(self) -> None:
        waiting = len(self._link.down.data)
        if self._writing_paused and waiting <= self._low:
            self._writing_paused = False
            self._loop.call_soon(self._resume_writing)
        if self._is_closing and not waiting:
            self._loop.call_soon(self._lose, None)

    def _resume_writing(self) -> None:
        if not self._is_lost:
            self._protocol.resume_writing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        sock = self._link.socket
        if name == "socket":
            return sock
        if name == "peername":
            return ("127.0.0.1", 40_000 + self._link.number) if sock.port else ""
        if name == "sockname":
            return sock.getsockname() if sock.port else sock.name
        return default

    def write(self, data: Any) -> None:
        if self._is_lost or self._is_closing:
            return
        self._link.down.send(bytes(data))
        if len(self._link.down.data) > self._high and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return len(self._link.down.data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = self._high if high is None else high
        self._low = self._high // 4 if low is None else low

    def pause_reading(self) -> None:
        self._link.up.is_paused = True

    def resume_reading(self) -> None:
        self._link.up.resume()

    def is_closing(self) -> bool:
        return self._is_closing or self._is_lost

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._link.down.end()
            if not self._link.down.data or self._link.is_lost:
                self._loop.call_soon(self._lose, None)

    def abort(self) -> None:
        self._is_closing = True
        self._link.reset()
        self._loop.call_soon(self._lose, None)


class Stream:
    """The client's end of a link."""

    def __init__(self, link: Link, loop: ProcessLoop) -> None:
        self.link, self._loop = link, loop
        self._data = bytearray()
        self._has_ended = False
        self._waiter: asyncio.Future[None] | None = None
        link.down.receive = self._received

    @property
    def is_open(self) -> bool:
        """Return whether the broker sees the connection open."""
        server = self.link.server
        return server is not None and server.is_open

    @property
    def unread(self) -> bytes:
        """Return what the broker has sent and was not read, also what never arrives."""
        down = self.link.down
        return bytes(self._data + down.data + down.lost)

    def write(self, data: bytes) -> None:
        self.link.up.send(data)

    async def read(self, seconds: float) -> bytes:
        """Return what came, b"" at the end; raise TimeoutError if nothing comes in time."""
        if not self._data and not self._has_ended:
            self._waiter = self._loop.create_future()
            timer = self._loop.call_later(seconds, self._time_out, self._waiter)
            await self._waiter
            timer.cancel()
        data = bytes(self._data)
        self._data.clear()
        return data

    def close(self) -> None:
        """Close as the client's system does when its process ends, or as TCP's reset does."""
        self.link.up.end()
        self._has_ended = True
        self._wake()

    def lost(self) -> None:
        """Learn that the connection broke."""
        self._loop.call_soon(self._end)

    def _received(self, data: bytes) -> None:
        self._data += data
        self._has_ended = self._has_ended or not data
        self._loop.call_soon(self._wake)

    def _end(self) -> None:
        self._has_ended = True
        self._wake()

    def _wake(self) -> None:
        if self._data or self._has_ended:
            waiter, self._waiter = self._waiter, None
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    @staticmethod
    def _time_out(waiter: asyncio.Future[None]) -> None:
        if not waiter.done():
            waiter.set_exception(TimeoutError())


class Network:
    """All links, and what listens."""

    def __init__(
        self, seed: str, loop: ProcessLoop, note: Callable[[int, str, bytes], None]
    ) -> None:
        self.seed, self.loop, self.note = seed, loop, note
        self.links: dict[int, Link] = {}
        self._listeners: dict[str, tuple[ProcessLoop, Any, FakeSocket]] = {}
        self._numbers = 0

    def listen(self, loop: ProcessLoop, factory: Any, sock: FakeSocket) -> Listening:
        """Serve a socket from now on."""
        self._listeners[sock.name] = (loop, factory, sock)
        return Listening(self, sock.name)

    def stop_listening(self, name: str | None = None) -> None:
        """Refuse connections; None: to all sockets."""
        if name is None:
            self._listeners.clear()
        else:
            self._listeners.pop(name, None)

    async def connect(self, loop: ProcessLoop, name: str) -> Stream:
        """Return a connection to a socket; raise ConnectionRefusedError."""
        self._numbers += 1
        number = self._numbers
        chance = Random(f"{self.seed}:connect:{number}")
        await asyncio.sleep(chance.uniform(*DELAY_SECONDS))
        found = self._listeners.get(name)
        if found is None or found[0].is_dead:
            raise ConnectionRefusedError(name)
        server_loop, factory, sock = found
        link = self.links[number] = Link(self, number, sock)
        stream = link.client = Stream(link, loop)
        server_loop.call_soon(self._accept, link, server_loop, factory)
        return stream

    def _accept(self, link: Link, loop: ProcessLoop, factory: Any) -> None:
        protocol = factory()
        link.server = ServerTransport(link, loop, protocol)
        protocol.connection_made(link.server)

    def machine_went(self, chance: Random, name: str | None = None) -> None:
        """Break the links to a socket because the broker is gone; None: those to all sockets.

        Clients learn of it sooner or later.
        """
        self.stop_listening(name)
        for link in list(self.links.values()):
            if name not in {None, link.socket.name}:
                continue
            link.server = None
            self.loop.call_later(chance.choice((0.0, 0.001, chance.uniform(0, 5))), link.reset)


class Listening:
    """What listens, as an asyncio server is closed."""

    def __init__(self, network: Network, name: str) -> None:
        self._network, self._name = network, name

    def close(self) -> None:
        self._network.stop_listening(self._name)
