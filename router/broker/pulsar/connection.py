"""One connection of a Pulsar client: bytes in, commands to their handlers, frames out in bursts.

Theory of operation. Everything of a connection happens on the event loop's thread, inside
`data_received` or a callback of the log; tasks exist only for requests that must wait (a new topic,
a seek by time). Answers and entries are gathered and leave in one write a turn of the loop, so that
a round's receipts cost one system call for each connection, not one for each message.

Four bounds keep a connection small. Entries are handed over only while less than HIGH_WATER waits
to be written (`writable`). Answers cannot be held back like that, so past UNSENT the client is not
read from until it reads. What producers sent and is not stored yet is bounded in `producing`, and
what has arrived of frames that are not whole in `room`, which also says how many connections share
these bounds. A frame that breaks the protocol closes this connection and nothing else.

Streams, the alternative, cost a task and several turns of the loop for each connection and read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from ipaddress import ip_address
from socket import AF_UNIX, SO_PEERCRED, SOL_SOCKET
from struct import Struct
from typing import Any, Final, cast

import structlog

from router.access.certificates import common_name
from router.broker.pulsar.authentication import Authentication
from router.broker.pulsar.authorisation import guarded
from router.broker.pulsar.context import Context, Handler
from router.broker.pulsar.extension import Extension
from router.broker.pulsar.refusing import refusal_of
from router.broker.pulsar.room import LARGE, high_water
from router.wire.pulsar import MAX_MESSAGE_SIZE, Frame, FrameReader, ProtocolError, encode
from router.wire.pulsar import pulsar_pb2 as pb

PROTOCOL: Final = 21
OURS: Final = "router/"
HIGH_WATER: Final = 1 << 20
UNSENT: Final = 8 << 20
MAX_TASKS: Final = 1_000

# Process, user and group at the other end of a unix socket.
_CREDENTIALS: Final = Struct("3i")

_PING: Final = encode(pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing()))
_PONG: Final = encode(pb.BaseCommand(type=pb.BaseCommand.PONG, pong=pb.CommandPong()))
_UNSENT: Final = "unsent"
_ROOM: Final = "room"
_log = structlog.get_logger(__name__)


class Connection(asyncio.Protocol):
    """A client's connection, from accept to close."""

    def __init__(self, context: Context) -> None:
        self.client = ""
        self.peer = ""
        self.address = ""
        self.local = False
        self.trusted = False
        self.certificate = ""
        self.protocol = 0
        self.wants_broker_entry = False
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self.heard = self._loop.time()
        self._pinged: float | None = None
        self._context = context
        self._frames = FrameReader()
        self._out: list[bytes] = []
        self._out_size = 0
        self._high_water = HIGH_WATER
        self._unfinished = self._owes_room = False
        self._flush_due = False
        self._write_paused = False
        self._read_holds: set[str] = set()
        self._writable_waits: dict[Callable[[], None], None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._traffic = context.messages.traffic(self)
        self.who = Authentication(self, context)
        self._extension = Extension(self, context)
        self._handlers: dict[int, Handler] = {pb.BaseCommand.CONNECT: self._connect}

    @property
    def name(self) -> str:
        """Tell people who this is; one of the router's workers by its process, where known."""
        return f"worker {self.peer}" if self.ours else f"{self.client or 'a client'} at {self.peer}"

    @property
    def service_url(self) -> str:
        """Return where the client reached the broker."""
        address = self._transport.get_extra_info("sockname")
        if not isinstance(address, tuple):
            return "pulsar://localhost:6650"
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        return f"{'pulsar+ssl' if self.secure else 'pulsar'}://{host}:{address[1]}"

    @property
    def secure(self) -> bool:
        """Tell whether the client came over TLS."""
        return self._transport.get_extra_info("ssl_object") is not None

    @property
    def ours(self) -> bool:
        """Tell whether the client is one of the router's own."""
        return self.client.startswith(OURS)

    @property
    def writable(self) -> bool:
        """Tell whether entries may be written now."""
        return not self._write_paused and self._out_size < self._high_water

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; over the limit, end at once."""
        self._transport = cast("asyncio.Transport", transport)
        self._high_water = high_water(HIGH_WATER, len(self._context.connections))
        self._transport.set_write_buffer_limits(self._high_water, self._high_water // 4)
        self.peer, self.address, self.local = _whereabouts(self._transport)
        self.trusted = not self.address
        self.certificate = common_name(lambda: transport.get_extra_info("peercert")) or ""
        if len(self._context.connections) >= self._context.options.connections:
            _log.warning("too-many-connections", peer=self.peer)
            self._transport.abort()
            return
        self._context.connections.add(self)
        self.who.begin()

    def data_received(self, data: bytes) -> None:
        """Handle the commands that these bytes complete."""
        self.heard = self._loop.time()
        self._pinged = None
        try:
            frames = self._frames.receive(data)
            for frame in frames:
                if self.closed:
                    return
                self.handle(frame)
            self._traffic.read()
            if self._unfinished or self._frames.wanted > LARGE:
                self._see_to_room(finished=bool(frames))
            if not self.client:
                self.who.wait(len(data))
        except ProtocolError as error:
            self.refuse(str(error))
        except Exception:  # noqa: BLE001 - the rim of a connection: it closes, the broker goes on
            _log.exception("connection-failed", peer=self.peer)
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give back all that the client had."""
        self.closed = True
        self._context.connections.discard(self)
        self._out.clear()
        self._writable_waits.clear()
        self._context.room.give_back(self)
        self.who.gone()
        self._traffic.gone()
        self._extension.gone()

    def pause_writing(self) -> None:
        """Stop handing entries over."""
        self._write_paused = True

    def resume_writing(self) -> None:
        """Go on handing entries over."""
        self._write_paused = False
        self.release_reading(_UNSENT)
        self._wake_writers()

    # What handlers call.

    def handle(self, frame: Frame) -> None:
        """Handle one command; raise ProtocolError if it must not come now."""
        handler = self._handlers.get(frame.command.type)
        if handler is not None:
            handler(frame)
        elif not self.client:
            raise ProtocolError(
                "the first command must be CONNECT, and the next wait for its answer"
            )
        else:
            self.send(refusal_of(frame.command))

    def add_handlers(self, handlers: Mapping[int, Handler]) -> None:
        """Have these commands handled otherwise from now on."""
        self._handlers.update(handlers)

    def send(self, command: pb.BaseCommand) -> None:
        """Send a command soon."""
        self.write(encode(command))

    def write(self, *parts: bytes) -> None:
        """Send a frame soon, given in pieces."""
        if self.closed:
            return
        self._out.extend(parts)
        self._out_size += sum(map(len, parts))
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def soon(self, call: Callable[[], None]) -> None:
        """Call something back in the loop's next turn."""
        self._loop.call_soon(call)

    def when_writable(self, resume: Callable[[], None]) -> None:
        """Call `resume` once when entries may be written again."""
        self._writable_waits[resume] = None

    def hold_reading(self, reason: str) -> None:
        """Read nothing from the client until this reason is released."""
        if not self._read_holds and not self.closed:
            self._transport.pause_reading()
        self._read_holds.add(reason)

    def release_reading(self, reason: str) -> None:
        """Read again if there is no other reason not to."""
        if reason in self._read_holds:
            self._read_holds.remove(reason)
            if not self._read_holds and not self.closed:
                self._transport.resume_reading()
                if self._owes_room:
                    self._see_to_room(finished=True)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a request that has to wait. It is not cancelled when the client goes."""
        if len(self._tasks) >= MAX_TASKS:
            work.close()
            raise ProtocolError("too many requests at once")
        task = self._loop.create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def probe(self) -> None:
        """Ping the client; `look` closes the connection if it stays silent."""
        self._ping(self._loop.time())

    def look(self, now: float) -> None:
        """Ping a client that is silent for long, and close on one that lets a ping go unanswered.

        While the broker itself does not listen it expects no answer, unless it waits for the client
        to take what was sent.
        """
        if self._unfinished and self._context.room.overdue(self):
            self.abort("frame-too-slow")
            return
        ping = self._context.options.ping
        deaf = self._read_holds - {_UNSENT} and not self.closed
        if now - self.heard < ping and self._pinged is None:
            return
        if deaf:
            self.heard = now
            self._pinged = None
        elif not self.client or self.closed or (self._pinged or now) <= now - ping:
            _log.info("client-silent", peer=self.peer)
            self._transport.abort()
        else:
            self._ping(now)

    def abort(self, reason: str) -> None:
        """Let the client go at once, whatever it was sent."""
        _log.info(reason, peer=self.peer)
        self._transport.abort()

    def refuse(self, reason: str) -> None:
        """Close on a client that broke the protocol."""
        _log.warning("client-broke-protocol", peer=self.peer, reason=reason)
        self.close()

    def close(self) -> None:
        """Close after what was sent so far."""
        if not self.closed:
            self._flush()
            self.closed = True
            self._transport.close()

    async def settled(self) -> None:
        """Wait until the requests under way are answered."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        self._flush()

    def _see_to_room(self, *, finished: bool) -> None:
        """Read the rest of a large frame only when there is room for it.

        Its room is not free before the disk has time for what came in it.
        """
        room = self._context.room
        self._owes_room = self._unfinished and finished and bool(self._read_holds)
        if self._owes_room:
            return
        if self._unfinished and finished:
            room.give_back(self)
            self._unfinished = False
        wanted = self._frames.wanted
        if not self._unfinished and wanted > LARGE and not self.closed:
            self._unfinished = True
            if not room.take(self, wanted, partial(self.release_reading, _ROOM)):
                self.hold_reading(_ROOM)

    def _ping(self, now: float) -> None:
        if self._pinged is None and not self.closed:
            self._pinged = now
            self.write(_PING)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except ProtocolError as error:
            self.refuse(str(error))
        except Exception:  # noqa: BLE001 - the rim of a connection: it closes, the broker goes on
            _log.exception("request-failed", peer=self.peer)
            self.close()

    def _connect(self, frame: Frame) -> None:
        connect = frame.command.connect
        self.protocol = min(max(connect.protocol_version, 0), PROTOCOL)
        # Nothing is served until it is known who this is.
        self._handlers = {}
        self.who.connect(connect, partial(self._welcome, connect))

    def _welcome(self, connect: pb.CommandConnect) -> None:
        self.client = connect.client_version[:200] or "unnamed"
        self.wants_broker_entry = connect.feature_flags.supports_broker_entry_metadata
        self._handlers = {
            pb.BaseCommand.PING: self._pong,
            pb.BaseCommand.PONG: _ignore,
            pb.BaseCommand.AUTH_RESPONSE: self.who.respond,
            **guarded(self._traffic.handlers(), self, self.who, self._context.gate),
            **self._extension.handlers(),
        }
        connected = pb.CommandConnected(
            server_version=self._context.options.server_version,
            protocol_version=self.protocol,
            max_message_size=MAX_MESSAGE_SIZE,
            feature_flags=pb.FeatureFlags(
                supports_broker_entry_metadata=True,
                supports_get_partitioned_metadata_without_auto_creation=True,
                supports_topic_watchers=True,
                supports_topic_watcher_reconcile=True,
            ),
        )
        self.send(pb.BaseCommand(type=pb.BaseCommand.CONNECTED, connected=connected))

    def _pong(self, _frame: Frame) -> None:
        self.write(_PONG)

    def _flush(self) -> None:
        self._flush_due = False
        out, self._out, self._out_size = self._out, [], 0
        if self.closed or not out:
            return
        self._transport.write(b"".join(out))
        if self._transport.get_write_buffer_size() > min(UNSENT, 8 * self._high_water):
            self.hold_reading(_UNSENT)
        if not self._write_paused:
            self._wake_writers()

    def _wake_writers(self) -> None:
        waits, self._writable_waits = self._writable_waits, {}
        for resume in waits:
            resume()


def _whereabouts(transport: asyncio.Transport) -> tuple[str, str, bool]:
    """Return who a client is to people, its address, and whether that is this machine.

    On a unix socket it has no address, and its process is named.
    """
    address = transport.get_extra_info("peername")
    if isinstance(address, tuple):
        host = str(address[0])
        return f"{host}:{address[1]}", host, ip_address(host.partition("%")[0]).is_loopback
    connected = transport.get_extra_info("socket")
    if connected.family != AF_UNIX:
        # It left already, so that nobody can say where it was; what it sent may still be here.
        return "somebody who left", "unknown", False
    credentials = connected.getsockopt(SOL_SOCKET, SO_PEERCRED, _CREDENTIALS.size)
    return f"pid {_CREDENTIALS.unpack(credentials)[0]}", "", True


def _ignore(_frame: Frame) -> None:
    """Take note of nothing."""
