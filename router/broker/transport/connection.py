"""One connection of any protocol: bytes in, frames to the session, what it sends out in bursts.

Theory of operation. Everything of a connection happens on the event loop's thread, inside
`data_received` or a callback of the log. A task exists only for a request that has to wait. Answers
and entries are gathered and leave in one write for each iteration of the loop, so that the receipts
of a commit group cost one system call for each connection.

Four bounds keep a connection small. Entries are handed over only while less than HIGH_WATER_BYTES
wait to be written (`writable`). If more than MAX_UNSENT_BYTES of answers wait, or BUSY_TASKS of the
client's requests are under way, it is not read from, and what it sent is not handled. The session
bounds what is not stored yet (`hold_reading`). The memory budget bounds what has arrived of frames
that are not whole. A frame that breaks the protocol closes this connection and no other.

Frames are handled in turns, because one read brings thousands. A turn ends after MAX_TURN_SECONDS,
and as soon as too much waits to be sent or is under way. The connection then reads nothing more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, cast

import structlog

from router.broker.transport.context import TransportContext
from router.broker.transport.handshakes import Greeting
from router.broker.transport.identity import ConnectionIdentity
from router.broker.transport.memory_budget import MIN_BUDGETED_FRAME_BYTES, high_water
from router.broker.transport.peer import Peer, probe_by_tcp
from router.broker.transport.session import FAREWELL_SECONDS, ProtocolSession
from router.errors import RouterError
from router.wire import ProtocolError

HIGH_WATER_BYTES: Final = 1 << 20
MAX_UNSENT_BYTES: Final = 8 << 20
LARGE_PART_BYTES: Final = 16 << 10
"""Parts of more on average are not joined: to copy them costs more than a vectored write."""
BUSY_TASKS: Final = 500
MAX_TASKS: Final = 1_000
"""More than BUSY_TASKS only for frames that waited for something to be opened."""
PROBE_SECONDS: Final = 5.0
LEASED_PROBE_SECONDS: Final = 0.5
"""If a router that holds the lease of the partition wants the place of the client."""
MAX_TURN_SECONDS: Final = 0.05

_UNSENT: Final = "unsent"
_BUDGET: Final = "memory budget"
_BUSY: Final = "busy"
_TURN: Final = "turn"
_NOT_HANDLED: Final = frozenset({_UNSENT, _BUSY})
_log = structlog.get_logger(__name__)


class ClientConnection(asyncio.Protocol):
    """A client's connection, from accept to close.

    `protocol` is the name of the listener's; `greeting` is what the client was sent before TLS.
    """

    identity: ConnectionIdentity
    session: ProtocolSession
    peer: Peer

    def __init__(
        self,
        context: TransportContext,
        open_session: Callable[[ClientConnection], ProtocolSession],
        members: dict[ClientConnection, None],
        protocol: str,
        greeting: Greeting | None = None,
    ) -> None:
        self.protocol = protocol
        self.closed = False
        self.received_bytes = self.sent_bytes = 0
        self._loop = asyncio.get_running_loop()
        self.connected_at = self.last_read = self._loop.time()
        self._pinged: float | None = None
        self._context = context
        self._open_session = open_session
        self._members, self.greeting = members, greeting
        self._out: list[bytes] = []
        self._out_size = 0
        self._high_water, self._max_unsent = HIGH_WATER_BYTES, MAX_UNSENT_BYTES
        self._unfinished = self._owes_budget = False
        self._flush_due = False
        self._write_paused = False
        self._probes: set[bool] = set()
        self._read_holds: set[str] = set()
        self._writable_waits: dict[Callable[[], None], None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._frames: deque[Any] = deque()  # not handled yet
        self._turn_due = False

    @property
    def origin(self) -> dict[str, str]:
        """Return what lines of the log say of the client: its address, and what it should speak."""
        return {"peer": self.peer.name, "protocol": self.protocol}

    @property
    def secure(self) -> bool:
        """Return whether the client came over TLS."""
        return self._transport.get_extra_info("ssl_object") is not None

    @property
    def local_address(self) -> tuple[str, int] | None:
        """Return where the client reached the broker, None: a unix socket."""
        address = self._transport.get_extra_info("sockname")
        return (address[0], address[1]) if isinstance(address, tuple) else None

    @property
    def max_unsent(self) -> int:
        """Return how many bytes may wait to be sent before the client is not read from."""
        return self._max_unsent

    @property
    def unsent(self) -> int:
        """Return how many bytes wait to be sent, those with the transport included."""
        return self._out_size + self._transport.get_write_buffer_size()

    @property
    def writable(self) -> bool:
        """Return whether entries may be written now."""
        return not self._write_paused and self._out_size < self._high_water

    # What the asyncio transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; over the limit of connections end at once, but for the node's own processes."""
        self._transport = cast("asyncio.Transport", transport)
        others = len(self._context.connections)
        self._high_water = high_water(HIGH_WATER_BYTES, others)
        self._max_unsent = min(MAX_UNSENT_BYTES, 8 * self._high_water)
        self._transport.set_write_buffer_limits(self._high_water, self._high_water // 4)
        self.peer = Peer.from_transport(self._transport)
        self.identity = ConnectionIdentity(self, self.peer, self._context)
        self.session = self._open_session(self)
        if others >= self._context.options.max_connections and not self.peer.trusted:
            self._warn("too-many-connections")
            self._transport.abort()
            return
        self._context.connections.add(self)
        self._members[self] = None
        self.identity.begin()
        if not self.session.keep_alive and not self.peer.trusted:
            sock = self._transport.get_extra_info("socket")
            probe_by_tcp(sock, self._context.options.ping_seconds)

    def data_received(self, data: bytes) -> None:
        """Handle the frames that these bytes complete."""
        self.received_bytes += len(data)
        self.last_read = self._loop.time()
        self._pinged = None
        self.guard(partial(self._receive, data))

    def connection_lost(self, exc: Exception | None) -> None:
        """Release all that the client had."""
        self.closed = True
        self._context.connections.discard(self)
        self._members.pop(self, None)
        self._out.clear()
        self._frames.clear()
        self._writable_waits.clear()
        self._context.memory_budget.release(self)
        self.identity.close()
        self.session.connection_lost()

    def pause_writing(self) -> None:
        """Hand no more entries over."""
        self._write_paused = True

    def resume_writing(self) -> None:
        """Hand entries over again."""
        self._write_paused = False
        self.release_reading(_UNSENT)
        self._wake_writers()

    # What sessions call.

    def write(self, *parts: bytes) -> None:
        """Send a frame, given in pieces, at the end of this loop iteration."""
        if self.closed:
            return
        self._out += parts
        self._out_size += len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def call_soon(self, call: Callable[[], None]) -> None:
        """Call something in the loop's next iteration."""
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
        """Read again, after what has arrived is handled, unless another reason holds reading."""
        if reason not in self._read_holds:
            return
        self._read_holds.remove(reason)
        self._schedule_turn()
        if not self._read_holds and not self.closed:
            self._transport.resume_reading()
            if self._owes_budget:
                self._update_budget(finished=True)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a request that has to wait, also after the close; too many: ProtocolError."""
        if len(self._tasks) >= MAX_TASKS:
            work.close()
            raise ProtocolError("too many requests at once")
        task = self._loop.create_task(self._guard_task(work))
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def probe(self, *, soon: bool = False) -> None:
        """End the connection if no answer comes in time, `soon`: within LEASED_PROBE_SECONDS."""
        self._ping(self._loop.time())
        # A process of this node that ended has closed its socket.
        if self.session.keep_alive and not self.peer.trusted and soon not in self._probes:
            self._probes.add(soon)
            seconds = LEASED_PROBE_SECONDS if soon else PROBE_SECONDS
            self._loop.call_later(seconds, self._end_probe, soon, self.last_read)

    def check_liveness(self, now: float) -> None:
        """Ping a client that is silent for long, and end one that does not answer the ping.

        No answer is expected while the broker itself does not read, unless it waits for the client
        to take what was sent.
        """
        if self._unfinished and self._context.memory_budget.overdue(self):
            self.abort("frame-too-slow")
            return
        interval = self._context.options.ping_seconds
        unread = self._read_holds and _UNSENT not in self._read_holds and not self.closed
        if now - self.last_read < interval and self._pinged is None:
            return
        if unread:
            self.last_read = now
            self._pinged = None
        elif not self.identity.known or self.closed or (self._pinged or now) <= now - interval:
            self.abort("client-silent")
        else:
            self._ping(now)

    def guard(self, work: Callable[[], None]) -> None:
        """Do what a client asked for; the client's mistakes and ours close this connection only."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the boundary of a connection, see `_failed`
            self._failed(error, "connection-failed")

    def abort(self, reason: str) -> None:
        """End the connection at once; if the protocol has a last word for it, when that is sent."""
        _log.info(reason, **self.origin)
        if (farewell := self.session.farewells.get(reason)) and not self.closed:
            self.write(farewell)
            self.close()
            self._loop.call_later(FAREWELL_SECONDS, self._transport.abort)
        else:
            self._transport.abort()

    def refuse(self, reason: str) -> None:
        """Close because the client broke the protocol."""
        self._warn("client-broke-protocol", reason=reason)
        self.close()

    def fail(self, failure: RouterError) -> None:
        """Send the protocol's error and close."""
        self.write(self.session.encode_failure(failure))
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
        while self._tasks or self._turn_due:
            await (asyncio.wait(self._tasks) if self._tasks else asyncio.sleep(0))
            self._flush()

    async def _guard_task(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - the boundary of a connection, see `_failed`
            self._failed(error, "request-failed")

    def _warn(self, event: str, **details: str) -> None:
        """Log a warning about the client, unless there are too many in this second."""
        if (left_out := self._context.broken_lines.admit()) is not None:
            _log.warning(event, **self.origin, **details, **left_out)

    def _failed(self, error: Exception, event: str) -> None:
        """Close for a failure, while it is handled: the broker goes on."""
        if isinstance(error, ProtocolError):
            self.refuse(str(error))
        else:
            _log.exception(event, **self.origin)
            self.close()

    def _receive(self, data: bytes) -> None:
        decoder = self.session.frames
        frames = decoder.receive(data)
        self._frames.extend(frames)
        if _TURN not in self._read_holds:
            self._handle_turn()
        if self._unfinished or decoder.expected_bytes > MIN_BUDGETED_FRAME_BYTES:
            self._update_budget(finished=bool(frames))
        if not self.identity.known and not self.closed:
            self.identity.count_received(len(data))

    def _handle_turn(self) -> None:
        """Handle what has come as far as a turn goes; nothing is read while something is left."""
        frames, handle, time = self._frames, self.session.handle, self._loop.time
        until = time() + MAX_TURN_SECONDS
        while frames and self._may_handle():
            handle(frames.popleft())
            if time() > until:
                self._schedule_turn()
                break
        if self.closed:
            return
        self.session.frames_handled()
        if frames:
            self.hold_reading(_TURN)
        elif self._read_holds:
            self.release_reading(_TURN)

    def _schedule_turn(self) -> None:
        """Have another turn in the loop's next iteration if a frame waits."""
        if self._frames and not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn_due = False
        self.guard(self._handle_turn)

    def _may_handle(self) -> bool:
        """Return whether one more frame may be handled now."""
        if self._out_size > self._max_unsent:
            self.hold_reading(_UNSENT)
        elif len(self._tasks) >= BUSY_TASKS:
            self.hold_reading(_BUSY)
        return not (self.closed or (self._read_holds and self._read_holds & _NOT_HANDLED))

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if len(self._tasks) < BUSY_TASKS:
            self.release_reading(_BUSY)

    def _update_budget(self, *, finished: bool) -> None:
        """Read the rest of a large frame only when the memory budget has space for it.

        The memory of a frame is not free before the disk has time for what came in it.
        """
        budget = self._context.memory_budget
        self._owes_budget = self._unfinished and finished and bool(self._read_holds)
        if self._owes_budget:
            return
        if self._unfinished and finished:
            budget.release(self)
            self._unfinished = False
        expected_bytes = self.session.frames.expected_bytes
        if not self._unfinished and expected_bytes > MIN_BUDGETED_FRAME_BYTES and not self.closed:
            self._unfinished = True
            if not budget.reserve(self, expected_bytes, partial(self.release_reading, _BUDGET)):
                self.hold_reading(_BUDGET)

    def _end_probe(self, soon: bool, before: float) -> None:
        self._probes.discard(soon)
        # A client that takes long over what it was sent, or is not read from, may well be there.
        slow = self._write_paused and not soon
        if not (self.last_read > before or slow or self._read_holds or self.closed):
            self.abort("client-silent")

    def _ping(self, now: float) -> None:
        if self._pinged is None and not self.closed and self.session.keep_alive:
            self._pinged = now
            self.write(self.session.keep_alive)

    def _flush(self) -> None:
        self._flush_due = False
        self.sent_bytes += self._out_size
        out, size, self._out, self._out_size = self._out, self._out_size, [], 0
        if self.closed or not out:
            return
        if size > LARGE_PART_BYTES * len(out):
            self._transport.writelines(out)
        else:
            self._transport.write(b"".join(out))
        if self._transport.get_write_buffer_size() > self._max_unsent:
            self.hold_reading(_UNSENT)
        elif self._read_holds and not self._write_paused:
            # What was too much to keep here is with the system.
            self.release_reading(_UNSENT)
        if self._writable_waits and not self._write_paused:
            self._wake_writers()

    def _wake_writers(self) -> None:
        waits, self._writable_waits = self._writable_waits, {}
        for resume in waits:
            resume()
