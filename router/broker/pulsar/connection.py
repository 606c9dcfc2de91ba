"""One connection of a Pulsar client: bytes in, commands to their handlers, frames out in bursts.

Theory of operation. Everything of a connection happens on the event loop's thread, inside
`data_received` or a callback of the log; tasks exist only for requests that must wait (a new topic,
a seek by time). Answers and entries are gathered and leave in one write a turn of the loop, so that
a round's receipts cost one system call for each connection, not one for each message.

Three bounds keep a connection small. Entries are handed over only while less than HIGH_WATER waits
to be written (`writable`). Answers cannot be held back like that, so past UNSENT the client is not
read from until it reads. And what producers sent and is not stored yet is bounded in
`producing`. A frame that breaks the protocol closes this connection and nothing else.

Streams, the alternative, cost a task and several turns of the loop for each connection and read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from ipaddress import ip_address
from socket import SO_PEERCRED, SOL_SOCKET
from struct import Struct
from typing import Any, Final, cast

import structlog

from router.broker.pulsar.context import Context, Handler
from router.broker.pulsar.extension import Extension
from router.broker.pulsar.refusing import refusal_of
from router.wire.pulsar import MAX_MESSAGE_SIZE, Frame, FrameReader, ProtocolError, encode
from router.wire.pulsar import pulsar_pb2 as pb

PROTOCOL: Final = 21
OURS: Final = "router/"
HIGH_WATER: Final = 1 << 20
LOW_WATER: Final = 1 << 18
UNSENT: Final = 8 << 20
MAX_TASKS: Final = 1_000

# Process, user and group at the other end of a unix socket.
_CREDENTIALS: Final = Struct("3i")

_PING: Final = encode(pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing()))
_PONG: Final = encode(pb.BaseCommand(type=pb.BaseCommand.PONG, pong=pb.CommandPong()))
_UNSENT: Final = "unsent"
_log = structlog.get_logger(__name__)


class Connection(asyncio.Protocol):
    """A client's connection, from accept to close."""

    def __init__(self, context: Context) -> None:
        self.client = ""
        self.peer = ""
        self.local = False
        self.wants_broker_entry = False
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self.heard = self._loop.time()
        self._pinged: float | None = None
        self._context = context
        self._frames = FrameReader()
        self._out: list[bytes] = []
        self._out_size = 0
        self._flush_due = False
        self._write_paused = False
        self._read_holds: set[str] = set()
        self._writable_waits: dict[Callable[[], None], None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._traffic = context.messages.traffic(self)
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
        return f"pulsar://{host}:{address[1]}"

    @property
    def ours(self) -> bool:
        """Tell whether the client is one of the router's own."""
        return self.client.startswith(OURS)

    @property
    def writable(self) -> bool:
        """Tell whether entries may be written now."""
        return not self._write_paused and self._out_size < HIGH_WATER

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; over the limit, end at once."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(HIGH_WATER, LOW_WATER)
        self.peer, self.local = _whereabouts(self._transport)
        if len(self._context.connections) >= self._context.options.connections:
            _log.warning("too-many-connections", peer=self.peer)
            self._transport.abort()
            return
        self._context.connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Handle the commands that these bytes complete."""
        self.heard = self._loop.time()
        self._pinged = None
        try:
            for frame in self._frames.receive(data):
                if self.closed:
                    return
                self.handle(frame)
            self._traffic.read()
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
            raise ProtocolError("the first command must be CONNECT")
        else:
            self.send(refusal_of(frame.command))

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
        self.client = connect.client_version[:200] or "unnamed"
        self.wants_broker_entry = connect.feature_flags.supports_broker_entry_metadata
        self._handlers = {
            pb.BaseCommand.PING: self._pong,
            pb.BaseCommand.PONG: _ignore,
            pb.BaseCommand.AUTH_RESPONSE: _ignore,
            **self._traffic.handlers(),
            **self._extension.handlers(),
        }
        connected = pb.CommandConnected(
            server_version=self._context.options.server_version,
            protocol_version=min(max(connect.protocol_version, 0), PROTOCOL),
            max_message_size=MAX_MESSAGE_SIZE,
            feature_flags=pb.FeatureFlags(
                supports_broker_entry_metadata=True,
                supports_get_partitioned_metadata_without_auto_creation=True,
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
        if self._transport.get_write_buffer_size() > UNSENT:
            self.hold_reading(_UNSENT)
        if not self._write_paused:
            self._wake_writers()

    def _wake_writers(self) -> None:
        waits, self._writable_waits = self._writable_waits, {}
        for resume in waits:
            resume()


def _whereabouts(transport: asyncio.Transport) -> tuple[str, bool]:
    """Return where a client is, as people are told it, and whether that is this machine."""
    address = transport.get_extra_info("peername")
    if isinstance(address, tuple):
        return f"{address[0]}:{address[1]}", ip_address(address[0]).is_loopback
    connected = transport.get_extra_info("socket")
    credentials = connected.getsockopt(SOL_SOCKET, SO_PEERCRED, _CREDENTIALS.size)
    return f"pid {_CREDENTIALS.unpack(credentials)[0]}", True


def _ignore(_frame: Frame) -> None:
    """Take note of nothing."""
