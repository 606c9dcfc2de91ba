"""One connection to a Pulsar broker: frames out in order, answers in to the calls that wait.

Theory of operation. A single reader thread owns the receiving side and everything that is keyed by
a peer's number: it hands answers to waiting calls (by request id, unique on the connection) and
pushes to producers, consumers and claims (by their ids). What it calls must not wait.

Sending needs no thread and holds no lock over I/O: a caller appends its frame and, unless another
caller is writing just then, becomes the writer until the queue is empty. Frames leave in the order
of `send` calls, and those that meet leave in one system call. The alternative, a writer thread,
costs a switch on every request.

A connection dies once: the first error is kept, every waiting call and every handler gets it, and
nothing revives it. `router.pulsar_client.link` opens the next one.

Locks: `_pen` is a turn to write, only ever tried, never waited for. Tables need none: the caller
that takes an item out of a dictionary owns it, and one that puts an item in looks at `error`
afterwards, which is set before the tables are emptied; so each call and handler fails exactly once.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count
from threading import Lock, Thread
from typing import Any, Final, Protocol, TypeVar

from router.errors import BackendTimeoutError, BackendUnavailableError, RouterError
from router.errors.quoting import failure_text
from router.process.build import build_id
from router.pulsar_client.credentials import NO_CREDENTIALS, PulsarCredentials
from router.pulsar_client.refusals import OURS, refusal
from router.pulsar_client.tls import ByteStream
from router.wire import node
from router.wire.pulsar import Frame, ProtocolError, PulsarFrameReader, encode
from router.wire.pulsar import pulsar_pb2 as pb

PROTOCOL: Final = 20
CHUNK_BYTES: Final = 256 * 1024
MAX_SILENCE_SECONDS: Final = 30.0

Key = int | tuple[int, int]
K = TypeVar("K")
V = TypeVar("V")
DEFAULT_MAX_MESSAGE_BYTES: Final = 5 * 1024 * 1024
"""What a broker takes that does not say."""

_ANSWERS: Final = {
    pb.BaseCommand.SUCCESS: "success",
    pb.BaseCommand.PRODUCER_SUCCESS: "producer_success",
    pb.BaseCommand.PARTITIONED_METADATA_RESPONSE: "partitionMetadataResponse",
    pb.BaseCommand.LOOKUP_RESPONSE: "lookupTopicResponse",
    pb.BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE: "getTopicsOfNamespaceResponse",
    pb.BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE: "getLastMessageIdResponse",
    pb.BaseCommand.ACK_RESPONSE: "ackResponse",
    pb.BaseCommand.GET_SCHEMA_RESPONSE: "getSchemaResponse",
    pb.BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE: "getOrCreateSchemaResponse",
    pb.BaseCommand.APPENDS_RESPONSE: "appendsResponse",
}
_PONG = encode(pb.BaseCommand(type=pb.BaseCommand.PONG, pong=pb.CommandPong()))
_PING = encode(pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing()))


class PulsarConnectionLostError(BackendUnavailableError):
    """The connection went away before the answer came."""


class PendingReply:
    """An answer that one caller waits for; cheaper than an Event, and good for one use."""

    __slots__ = ("_error", "_lock", "_value")

    def __init__(self) -> None:
        self._lock = Lock()
        self._lock.acquire()
        self._value: Any = None
        self._error: RouterError | None = None

    def put(self, value: Any) -> None:
        """Give the answer."""
        self._value = value
        self._lock.release()

    def fail(self, error: RouterError) -> None:
        """Give a failure, which the waiting call raises."""
        self._error = error
        self._lock.release()

    def take(self, deadline: float) -> Any:
        """Return the answer; raise the failure, or BackendTimeoutError at the deadline."""
        if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise BackendTimeoutError
        if self._error is not None:
            raise self._error
        return self._value


class Waiting(Protocol):
    """Takes the answer to a request, in the reader's thread; never waits. One of both is called."""

    def put(self, value: Any) -> None:
        """Take the answer."""
        ...

    def fail(self, error: RouterError) -> None:
        """Take a failure instead."""
        ...


class PushHandler(Protocol):
    """Takes what the broker pushes under one consumer or claim id; never waits."""

    def pushed(self, command: Any, payload: bytes) -> None:
        """Take a frame: the body of its command and what follows the command."""
        ...

    def cut(self, error: BackendUnavailableError) -> None:
        """Learn that nothing will come any more."""
        ...


class PulsarConnection:
    """A connection past its handshake."""

    def __init__(
        self,
        peer: ByteStream,
        reader: PulsarFrameReader,
        hello: pb.CommandConnected,
        rest: Sequence[Frame] = (),
        credentials: PulsarCredentials = NO_CREDENTIALS,
    ) -> None:
        self.server_version = hello.server_version
        self.ours = hello.server_version.startswith(OURS)
        self.max_message = hello.max_message_size or DEFAULT_MAX_MESSAGE_BYTES
        self.error: BackendUnavailableError | None = None
        self._peer = peer
        self._credentials = credentials
        self._frames = reader
        self._ids = count(1)
        self._out: deque[bytes] = deque()
        self._pen = Lock()
        self.producers: set[int] = set()
        """Producer ids that the broker has not closed; the caller that opens one adds it."""
        self._waiting: dict[Key, Waiting] = {}
        self._consumers: dict[int, PushHandler] = {}
        self._claims: dict[int, PushHandler] = {}
        peer.settimeout(MAX_SILENCE_SECONDS)
        Thread(target=self._read, args=(rest,), name="pulsar-reader", daemon=True).start()

    def next_id(self) -> int:
        """Return a number that this connection has not used: for requests, producers, consumers."""
        return next(self._ids)

    def call(self, request_id: int, command: pb.BaseCommand, deadline: float) -> Any:
        """Send a request and return the body of its answer; raise what the broker answered.

        Raises LostError, BackendTimeoutError, and the failures of `refusals`.
        """
        return self.take(request_id, self.ask(request_id, encode(command)), deadline)

    def ask(self, key: Key, frame: bytes) -> PendingReply:
        """Send a request without waiting: its id is the key, or producer and sequence of a SEND."""
        reply = PendingReply()
        self.ask_for(key, frame, reply)
        return reply

    def ask_for(self, key: Key, frame: bytes, waiting: Waiting) -> None:
        """Send a request as `ask` does, whose answer is handed to `waiting`; raise LostError."""
        self._add(self._waiting, key, waiting)
        if isinstance(key, tuple) and key[0] not in self.producers:
            # The broker closed it before this call waited.
            self.refuse(key, PulsarConnectionLostError("the broker closed the producer"))
        else:
            self.send(frame)

    def drop(self, key: Key) -> bool:
        """Hand on no answer to this request; return whether it was still to come."""
        return self._waiting.pop(key, None) is not None

    def take(self, key: Key, reply: PendingReply, deadline: float) -> Any:
        """Return the answer to a request; raise as `call` does."""
        try:
            return reply.take(deadline)
        finally:
            self._waiting.pop(key, None)

    def refuse(self, key: Key, error: RouterError) -> None:
        """Fail the call that waits for this answer: it will not come."""
        if reply := self._waiting.pop(key, None):
            reply.fail(error)

    def send(self, frame: bytes) -> None:
        """Send a frame after all that were sent before; death shows in `error` and to handlers."""
        out = self._out
        out.append(frame)
        while out and self._pen.acquire(blocking=False):
            try:
                frame = out.popleft()
                if out:
                    frame = self._joined(frame)
                # Most often all of it goes at once; gevent's `sendall` asks the system for more.
                if (sent := self._peer.send(frame)) < len(frame):
                    self._peer.sendall(frame[sent:])
            except IndexError:
                pass  # another caller wrote it between our look and our turn
            except OSError as error:
                self._stop(
                    PulsarConnectionLostError(
                        f"the broker cannot be written to: {failure_text(error)}"
                    )
                )
                out.clear()
            finally:
                self._pen.release()

    def add_consumer(self, number: int, handler: PushHandler) -> None:
        """Have what is pushed to this consumer id handed to the handler."""
        self._add(self._consumers, number, handler)

    def add_claim(self, number: int, handler: PushHandler) -> None:
        """Have what is pushed to this claim or poll id handed to the handler."""
        self._add(self._claims, number, handler)

    def drop_consumer(self, number: int) -> None:
        """Hand nothing on for this consumer id any more."""
        self._consumers.pop(number, None)

    def drop_claim(self, number: int) -> None:
        """Hand nothing on for this claim or poll id any more."""
        self._claims.pop(number, None)

    def close(self) -> None:
        """End the connection; calls under way fail with LostError."""
        self._stop(PulsarConnectionLostError("the connection was closed"))

    def _joined(self, frame: bytes) -> bytes:
        parts, size = [frame], len(frame)
        while self._out and size < CHUNK_BYTES:
            parts.append(self._out.popleft())
            size += len(parts[-1])
        return b"".join(parts)

    def _add(self, table: dict[K, V], key: K, value: V) -> None:
        table[key] = value
        if self.error is not None and table.pop(key, None) is not None:
            raise self.error

    def _stop(self, error: BackendUnavailableError) -> None:
        """Note the first error and end the stream; the reader then tells everybody."""
        if self.error is None:
            self.error = error
        try:
            self._peer.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the peer was faster

    def _read(self, rest: Sequence[Frame]) -> None:
        error = PulsarConnectionLostError("the broker closed the connection")
        try:
            for command, payload in rest:
                self._handle(command, payload)
            self._read_frames()
        except (OSError, ProtocolError) as failure:
            error = PulsarConnectionLostError(
                f"the connection to the broker failed: {failure_text(failure)}"
            )
        except Exception as failure:  # noqa: BLE001 - the rim of a connection: waiting calls must fail
            error = PulsarConnectionLostError(
                f"the connection to the broker failed: {failure_text(failure)}"
            )
        self._stop(error)
        self._bury()

    def _read_frames(self) -> None:
        receive, frames, pinged = self._peer.recv, self._frames.receive, False
        while True:
            try:
                data = receive(CHUNK_BYTES)
            except TimeoutError:
                if pinged:
                    raise
                pinged = True
                self.send(_PING)
                continue
            if not data:
                return
            pinged = False
            for command, payload in frames(data):
                self._handle(command, payload)

    def _handle(self, command: pb.BaseCommand, payload: bytes) -> None:
        kind = command.type
        if kind == pb.BaseCommand.SEND_RECEIPT:
            receipt = command.send_receipt
            self._answer((receipt.producer_id, receipt.sequence_id), receipt)
        elif kind == pb.BaseCommand.MESSAGE:
            self._push(self._consumers, command.message.consumer_id, command.message, payload)
        elif kind == pb.BaseCommand.EXTENSION:
            self._handle_extension(node.read(command.extension, trusted=True), payload)
        elif kind in _ANSWERS:
            body = getattr(command, _ANSWERS[kind])
            self._answer(body.request_id, body)
        elif kind == pb.BaseCommand.ERROR:
            error = command.error
            self.refuse(error.request_id, refusal(error.error, error.message))
        elif kind == pb.BaseCommand.PING:
            self.send(_PONG)
        else:
            self._handle_rare(command)

    def _handle_rare(self, command: pb.BaseCommand) -> None:
        kind = command.type
        if kind == pb.BaseCommand.SEND_ERROR:
            error = command.send_error
            self.refuse((error.producer_id, error.sequence_id), refusal(error.error, error.message))
        elif kind == pb.BaseCommand.AUTH_CHALLENGE:
            self._show_again()
        elif kind == pb.BaseCommand.CLOSE_PRODUCER:
            self._close_producer(command.close_producer.producer_id)
        elif kind == pb.BaseCommand.CLOSE_CONSUMER:
            self._push(self._consumers, command.close_consumer.consumer_id, command.close_consumer)

    def _handle_extension(self, command: node.NodeCommand, payload: bytes) -> None:
        if command.HasField("polled"):
            self._push(self._claims, command.polled.poll_id, command.polled, payload)
        elif command.HasField("admin_response"):
            self._answer(command.admin_response.request_id, command.admin_response)
        elif command.HasField("claim_update"):
            self._push(self._claims, command.claim_update.claim_id, command.claim_update)

    def _show_again(self) -> None:
        """Send a new token: the one that the connection began with has ended, or will."""
        who = self._credentials
        response = pb.CommandAuthResponse(
            client_version=f"router/{build_id()}",
            response=pb.AuthData(auth_method_name=who.method, auth_data=who.secret()),
            protocol_version=PROTOCOL,
        )
        kind = pb.BaseCommand.AUTH_RESPONSE
        self.send(encode(pb.BaseCommand(type=kind, authResponse=response)))

    def _answer(self, key: Key, body: Any) -> None:
        if reply := self._waiting.pop(key, None):
            reply.put(body)

    def _close_producer(self, number: int) -> None:
        self.producers.discard(number)
        for key in list(self._waiting):
            if isinstance(key, tuple) and key[0] == number:
                self.refuse(key, PulsarConnectionLostError("the broker closed the producer"))

    def _push(
        self, handlers: dict[int, PushHandler], number: int, body: Any, payload: bytes = b""
    ) -> None:
        handler = handlers.get(number)
        if handler is not None:
            handler.pushed(body, payload)

    def _bury(self) -> None:
        self._peer.close()
        error = self.error or PulsarConnectionLostError()
        self._out.clear()
        for reply in _emptied(self._waiting):
            reply.fail(error)
        for table in (self._consumers, self._claims):
            for handler in _emptied(table):
                handler.cut(error)


def _emptied(table: dict[Any, V]) -> Iterator[V]:
    """Take out and give each value; others may take some out at the same time."""
    for key in list(table):
        value = table.pop(key, None)
        if value is not None:
            yield value
