"""One connection of a Pulsar client: bytes in, commands to their handlers, frames out in bursts.

Theory of operation. Everything of a connection happens on the event loop's thread, inside
`data_received` or a callback of the log; tasks exist only for requests that must wait (a new topic,
a seek by time). Answers and entries are gathered and leave in one write a turn of the loop, so that
a round's receipts cost one system call for each connection, not one for each message.

Four bounds keep a connection small. Entries are handed over only while less than HIGH_WATER waits
to be written (`writable`). Answers cannot be held back like that, so past UNSENT the client is
neither read from until it reads, nor is handled what it sent (`turns`); the same holds while TASKS
of its requests are under way. What producers sent and is not stored yet is bounded in `producing`,
and what has arrived of frames that are not whole in `room`, which also says how many connections
share these bounds. A frame that breaks the protocol closes this connection and nothing else.

Streams, the alternative, cost a task and several turns of the loop for each connection and read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final, cast

import structlog

from router.access.certificates import common_name
from router.broker.pulsar import answers
from router.broker.pulsar.authentication import Authentication
from router.broker.pulsar.authorisation import guarded
from router.broker.pulsar.context import Context, Handler
from router.broker.pulsar.extension import Extension
from router.broker.pulsar.refusing import refusal_of
from router.broker.pulsar.room import LARGE, high_water
from router.broker.pulsar.turns import Turns
from router.broker.pulsar.whereabouts import service_url, whereabouts
from router.wire.pulsar import Frame, FrameReader, ProtocolError, encode
from router.wire.pulsar import pulsar_pb2 as pb

PROTOCOL: Final = 21
OURS: Final = "router/"
HIGH_WATER: Final = 1 << 20
UNSENT: Final = 8 << 20
TASKS: Final = 500
LIVENESS: Final = 5.0
LEASED_LIVENESS: Final = 0.5  # where a router that holds the lease wants the client's place
MAX_TASKS: Final = 1_000
"""More come only of what waited for something to be opened, or for others to leave."""

_PING: Final = encode(pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing()))
_PONG: Final = encode(pb.BaseCommand(type=pb.BaseCommand.PONG, pong=pb.CommandPong()))
_UNSENT: Final = "unsent"
_ROOM: Final = "room"
_BUSY: Final = "busy"
_TURN: Final = "turn"
_TOO_MUCH: Final = frozenset({_UNSENT, _BUSY})
_log = structlog.get_logger(__name__)


class Connection(asyncio.Protocol):
    """A client's connection, from accept to close."""

    def __init__(self, context: Context) -> None:
        self.client = self.peer = self.address = self.certificate = ""
        self.local = self.trusted = self.wants_broker_entry = self.closed = False
        self.protocol = 0
        self._loop = asyncio.get_running_loop()
        self.heard = self._loop.time()
        self._pinged: float | None = None
        self._context = context
        self._frames = FrameReader()
        self._out: list[bytes] = []
        self._out_size = 0
        self._high_water, self._most_unsent = HIGH_WATER, UNSENT
        self._unfinished = self._owes_room = False
        self._flush_due = False
        self._write_paused = False
        self._probes: set[bool] = set()
        self._read_holds: set[str] = set()
        self._writable_waits: dict[Callable[[], None], None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns = Turns(partial(self._rim, self._handle_turn))
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
        return service_url(self._transport, secure=self.secure)

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
        """Begin; over the limit, end at once, but for the node's own processes."""
        self._transport = cast("asyncio.Transport", transport)
        others = len(self._context.connections)
        self._high_water = high_water(HIGH_WATER, others)
        self._most_unsent = min(UNSENT, 8 * self._high_water)
        self._transport.set_write_buffer_limits(self._high_water, self._high_water // 4)
        self.peer, self.address, self.local = whereabouts(self._transport)
        self.trusted = not self.address
        self.certificate = common_name(lambda: transport.get_extra_info("peercert")) or ""
        if others >= self._context.options.connections and not self.trusted:
            _log.warning("too-many-connections", peer=self.peer)
            self._transport.abort()
            return
        self._context.connections.add(self)
        self.who.begin()

    def data_received(self, data: bytes) -> None:
        """Handle the commands that these bytes complete."""
        self.heard = self._loop.time()
        self._pinged = None
        self._rim(partial(self._receive, data))

    def connection_lost(self, exc: Exception | None) -> None:
        """Give back all that the client had."""
        self.closed = True
        self._context.connections.discard(self)
        self._out.clear()
        self._turns.clear()
        self._frames = FrameReader()  # what it held need not wait for the garbage collector
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
        self._out += parts
        self._out_size += len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
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
        """Read again if there is no other reason not to, once what came is handled."""
        if reason not in self._read_holds:
            return
        self._read_holds.remove(reason)
        self._turns.soon()
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
        task.add_done_callback(self._ended)

    def probe(self, *, soon: bool = False) -> None:
        """Ping the client; the connection is closed if it stays silent and has no excuse."""
        self._ping(self._loop.time())
        # A process of this node that is gone has closed its socket.
        if not self.trusted and soon not in self._probes:
            self._probes.add(soon)
            seconds = LEASED_LIVENESS if soon else LIVENESS
            self._loop.call_later(seconds, self._answered, soon, self.heard)

    def look(self, now: float) -> None:
        """Ping a client that is silent for long, and close on one that lets a ping go unanswered.

        While the broker itself does not listen it expects no answer, unless it waits for the client
        to take what was sent.
        """
        if self._unfinished and self._context.room.overdue(self):
            self.abort("frame-too-slow")
            return
        ping = self._context.options.ping
        deaf = self._read_holds and _UNSENT not in self._read_holds and not self.closed
        if now - self.heard < ping and self._pinged is None:
            return
        if deaf:
            self.heard = now
            self._pinged = None
        elif not self.client or self.closed or (self._pinged or now) <= now - ping:
            self.abort("client-silent")
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
        self._flush()
        while self._tasks or self._turns.due:
            await (asyncio.wait(self._tasks) if self._tasks else asyncio.sleep(0))
            self._flush()

    def _rim(self, work: Callable[[], None]) -> None:
        """Do what a client asked for; its mistakes, and ours, close its connection alone."""
        try:
            work()
        except ProtocolError as error:
            self.refuse(str(error))
        except Exception:  # noqa: BLE001 - the rim of a connection: it closes, the broker goes on
            _log.exception("connection-failed", peer=self.peer)
            self.close()

    def _receive(self, data: bytes) -> None:
        frames = self._frames.receive(data)
        self._turns.add(frames)
        if _TURN not in self._read_holds:
            self._handle_turn()
        if self._unfinished or self._frames.wanted > LARGE:
            self._see_to_room(finished=bool(frames))
        if not self.client and not self.closed:
            self.who.wait(len(data))

    def _handle_turn(self) -> None:
        """Handle what has come as far as a turn goes; nothing is read while something is left."""
        self._turns.handle(self.handle, self._may_handle)
        if self.closed:
            return
        self._traffic.read()
        (self.hold_reading if self._turns else self.release_reading)(_TURN)

    def _may_handle(self) -> bool:
        """Tell whether one more command may be handled now."""
        if self._out_size > self._most_unsent:
            self.hold_reading(_UNSENT)
        elif len(self._tasks) >= TASKS:
            self.hold_reading(_BUSY)
        return not (self.closed or (self._read_holds and self._read_holds & _TOO_MUCH))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if len(self._tasks) < TASKS:
            self.release_reading(_BUSY)

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

    def _answered(self, soon: bool, before: float) -> None:
        self._probes.discard(soon)
        # One that takes long over what it was sent, or is not listened to, may well be there.
        slow = self._write_paused and not soon
        if not (self.heard > before or slow or self._read_holds or self.closed):
            self.abort("client-silent")

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
        self._handlers = {}  # nothing is served until it is known who this is
        self.who.connect(connect, partial(self._welcome, connect))

    def _welcome(self, connect: pb.CommandConnect) -> None:
        self.client = connect.client_version[:200] or "unnamed"
        self.wants_broker_entry = connect.feature_flags.supports_broker_entry_metadata
        self._handlers = {
            pb.BaseCommand.PING: self._pong,
            pb.BaseCommand.PONG: lambda _: None,
            pb.BaseCommand.AUTH_RESPONSE: self.who.respond,
            **guarded(self._traffic.handlers(), self, self.who, self._context.gate),
            **self._extension.handlers(),
        }
        version = self._context.options.server_version
        self.send(answers.connected(version, self.protocol, ours=self.ours))

    def _pong(self, _frame: Frame) -> None:
        self.write(_PONG)

    def _flush(self) -> None:
        self._flush_due = False
        out, self._out, self._out_size = self._out, [], 0
        if self.closed or not out:
            return
        self._transport.write(b"".join(out))
        if self._transport.get_write_buffer_size() > self._most_unsent:
            self.hold_reading(_UNSENT)
        elif not self._write_paused:
            # What was too much to keep here is with the system.
            self.release_reading(_UNSENT)
        if not self._write_paused:
            self._wake_writers()

    def _wake_writers(self) -> None:
        waits, self._writable_waits = self._writable_waits, {}
        for resume in waits:
            resume()
