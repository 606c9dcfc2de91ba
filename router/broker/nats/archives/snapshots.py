"""STREAM.SNAPSHOT: sends the archive of a stream to a subject, as fast as its client takes it.

Theory of operation. The archive has the form of nats-server 2.15, compressed piece by piece. Chunks
are numbered in their reply subjects, and each answer lets another one be sent; an empty message
with a status ends them. Messages that are stored meanwhile are not part of it, and those that are
deleted meanwhile may be missing.

Clients subscribe to the subject when they have the reply. Those whose inbox has wildcards receive
it before, without a reader, so a subscription to the very subject is waited for.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Final

import structlog

from router.access.permissions import Right
from router.broker.nats.consumers.state import ConsumerState
from router.broker.nats.protocol.api import ApiCall, ApiRoute
from router.broker.nats.protocol.failures import FAILURES
from router.broker.nats.protocol.hub import Hub, ServiceRequest
from router.broker.nats.protocol.pacing import Tasks
from router.broker.nats.streams.stream import Stream
from router.broker.nats.streams.streams import Streams
from router.wire.nats.archive.entries import write_consumer, write_end, write_messages, write_start
from router.wire.nats.archive.parts import ArchivedMessage, ConsumerPosition
from router.wire.nats.archive.s2 import compress
from router.wire.nats.headers import status
from router.wire.nats.jetstream.errors import ErrorCode, error
from router.wire.nats.jetstream.replies import StreamSnapshot, StreamState
from router.wire.nats.jetstream.requests import SnapshotRequest
from router.wire.nats.message import NatsMessage
from router.wire.nats.subjects import is_literal

MAX_SNAPSHOTS: Final = 16
"""Under way; others are refused."""
SUBSCRIBE_SECONDS: Final = 2.0
"""What a client has to subscribe; then others may have interest in the subject."""
ACK_SECONDS: Final = 30.0
"""Without an answer of the client, after which a snapshot ends."""
CHUNK_BYTES: Final = 128 << 10
WINDOW_BYTES: Final = 8 << 20
MIN_BYTES: Final = 1 << 10
MAX_CHUNK_BYTES: Final = 1 << 20
PIECE_BYTES: Final = 512 << 10
"""What is compressed at once, about."""
_ACKS: Final = "$JS.SNAPSHOT.ACK."
_NO_CONTENT: Final = 204
_TIMEOUT: Final = 408
_FAILED: Final = 500

_log = structlog.get_logger(__name__)


class Snapshots:
    """The snapshots under way; `max_pending` returns how many bytes may wait for a client."""

    def __init__(
        self, hub: Hub, streams: Streams, now_ns: Callable[[], int], max_pending: Callable[[], int]
    ) -> None:
        self._hub = hub
        self._streams = streams
        self._now_ns = now_ns
        self._max_pending = max_pending
        self._senders: dict[str, _Sender] = {}
        self._tasks = Tasks()
        hub.serve(f"{_ACKS}>", self._acknowledged)

    def apis(self) -> tuple[ApiRoute, ...]:
        """Return the row of the table."""
        return (ApiRoute("STREAM.SNAPSHOT.*", "stream_snapshot", self.snapshot),)

    async def snapshot(self, call: ApiCall) -> StreamSnapshot:
        """Serve STREAM.SNAPSHOT: the archive follows the reply."""
        stream = self._streams.find(call.name)
        if not call.caller.may(stream.topic_name, Right.VIEW):
            raise error(ErrorCode.STREAM_NOT_FOUND)
        call.caller.authorize(stream.topic_name, Right.SUBSCRIBE)
        request = SnapshotRequest.read(call.body)
        if not is_literal(request.deliver_subject):
            raise error(ErrorCode.SNAPSHOT_DELIVER_SUBJECT_INVALID)
        if len(self._tasks) >= MAX_SNAPSHOTS:
            raise error(ErrorCode.STREAM_TOO_MANY_REQUESTS)
        await self._streams.open(call.name)
        await stream.settle()
        state = await stream.state()
        if request.jsck and (unreadable := await _count_unreadable(stream, state)):
            raise error(ErrorCode.STREAM_SNAPSHOT, err=f"{unreadable} messages cannot be read")
        self._begin(stream, state, request)
        return StreamSnapshot(stream.config, state)

    async def close(self) -> None:
        """End the snapshots under way."""
        await self._tasks.close()

    def _begin(self, stream: Stream, state: StreamState, request: SnapshotRequest) -> None:
        # Both as the client has them, unless that is more than may wait for it.
        limit = self._max_pending() // 2
        chunk = _clamped(request.chunk_size or CHUNK_BYTES, min(MAX_CHUNK_BYTES, limit))
        window = _clamped(request.window_size or WINDOW_BYTES, min(WINDOW_BYTES, limit))
        token = secrets.token_hex(16)
        self._senders[token] = _Sender(
            self._hub, request.deliver_subject, f"{_ACKS}{stream.name}.{token}", chunk, window
        )
        pieces = _archive(stream, state, self._now_ns(), consumers=not request.no_consumers)
        self._tasks.start(self._send(stream.name, token, pieces))

    async def _send(self, name: str, token: str, pieces: AsyncIterator[bytes]) -> None:
        sender = self._senders[token]
        _log.info("nats-snapshot-begun", stream=name)
        try:
            await sender.send(pieces)
        except _SnapshotStoppedError as stopped:
            _log.warning("nats-snapshot-ended", stream=name, reason=str(stopped))
            sender.end(_TIMEOUT, str(stopped))
        except FAILURES as failure:
            _log.warning("nats-snapshot-ended", stream=name, reason=str(failure))
            sender.end(_FAILED, "the stream cannot be read")
        else:
            _log.info("nats-snapshot-sent", stream=name, bytes=sender.sent_bytes)
            sender.end(_NO_CONTENT)
        finally:
            del self._senders[token]

    def _acknowledged(self, request: ServiceRequest) -> None:
        """Serve `$JS.SNAPSHOT.ACK.>`: stream, token, size and number of a chunk."""
        tokens = request.message.subject.removeprefix(_ACKS).split(".")
        sender = self._senders.get(tokens[1]) if len(tokens) > 1 else None
        if sender is not None:
            sender.acknowledged()


class _SnapshotStoppedError(Exception):
    """The client takes no more."""


class _Sender:
    """Sends chunks to one client."""

    def __init__(self, hub: Hub, subject: str, acks: str, chunk: int, window: int) -> None:
        self._hub = hub
        self._subject = subject
        self._acks = acks
        self._chunk = chunk
        self._free = max(1, window // chunk)
        self._number = self.sent_bytes = 0
        self._changed = asyncio.Event()

    def acknowledged(self) -> None:
        """Take note that the client took a chunk."""
        self._free += 1
        self._changed.set()

    async def send(self, pieces: AsyncIterator[bytes]) -> None:
        """Send all pieces in chunks; raise _SnapshotStoppedError if the client takes no more."""
        hub, subject = self._hub, self._subject
        cancel = hub.watch(subject, lambda _: self._changed.set(), exact=True)
        waiting = bytearray()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(SUBSCRIBE_SECONDS):
                    while not hub.interested(subject, exact=True):
                        await self._change()
            self._check_interest()
            async for piece in pieces:
                waiting += piece
                while len(waiting) >= self._chunk:
                    await self._room()
                    self._publish(bytes(waiting[: self._chunk]))
                    del waiting[: self._chunk]
            if waiting:
                await self._room()
                self._publish(bytes(waiting))
        finally:
            cancel()

    def end(self, code: int, text: str = "") -> None:
        """Send the message that ends the archive."""
        self._hub.publish(NatsMessage(self._subject, headers=status(code, text)))

    def _check_interest(self) -> None:
        if not self._hub.interested(self._subject):
            raise _SnapshotStoppedError("No Interest")

    def _publish(self, chunk: bytes) -> None:
        self._free -= 1
        self._number += 1
        self.sent_bytes += len(chunk)
        reply = f"{self._acks}.{len(chunk)}.{self._number}"
        self._hub.publish(NatsMessage(self._subject, reply, payload=chunk))

    async def _room(self) -> None:
        """Return when a chunk may be sent; raise _SnapshotStoppedError if the client takes none."""
        self._check_interest()
        while not self._free:
            try:
                async with asyncio.timeout(ACK_SECONDS):
                    await self._change()
            except TimeoutError:
                raise _SnapshotStoppedError("No Flow Response") from None
            self._check_interest()

    async def _change(self) -> None:
        """Return when a chunk was answered, or interest came or went."""
        self._changed.clear()
        await self._changed.wait()


async def _archive(
    stream: Stream, state: StreamState, now_ns: int, *, consumers: bool
) -> AsyncIterator[bytes]:
    """Yield the archive of a stream in pieces that are compressed."""
    durable = [
        consumer for consumer in stream.consumers.values() if consumers and consumer.log.durable
    ]
    members = {**state.to_json(), "consumer_count": len(durable)}
    parts = [write_start(members, now_ns)]
    parts += (
        write_consumer(one.name, one.config.to_json(), _position(one.state, now_ns), now_ns)
        for one in durable
    )
    size = sum(map(len, parts))
    async for messages in stream.log.scan(max(1, state.first_seq), state.last_seq):
        found = (
            ArchivedMessage(m.sequence, m.subject, m.headers, m.payload, m.time_ns)
            for m in messages
        )
        parts.append(write_messages(found))
        size += len(parts[-1])
        if size >= PIECE_BYTES:
            yield await asyncio.to_thread(compress, b"".join(parts))
            parts, size = [], 0
    parts.append(write_end())
    yield await asyncio.to_thread(compress, b"".join(parts))


def _position(state: ConsumerState, now_ns: int) -> ConsumerPosition:
    """Return where a consumer stands; what waits for its delivery counts as delivered long ago."""
    pending, redelivered = {}, {}
    for sequence, number, count, deadline_ns in state.deliveries():
        wait_ns = state.rules.wait(count)
        pending[sequence] = number, max(0, (deadline_ns or now_ns) - wait_ns)
        if count > 1:
            redelivered[sequence] = count - 1
    delivered, floor = state.delivered, state.floor
    return ConsumerPosition(
        (delivered.consumer, delivered.stream), (floor.consumer, floor.stream), pending, redelivered
    )


async def _count_unreadable(stream: Stream, state: StreamState) -> int:
    """Return how many messages that are not deleted cannot be read."""
    previous, missing = state.first_seq - 1, 0
    async for messages in stream.log.scan(max(1, state.first_seq), state.last_seq):
        for message in messages:
            if message.sequence > previous + 1:
                missing += _count_live(stream, previous + 1, message.sequence - 1)
            previous = message.sequence
    return missing + _count_live(stream, previous + 1, state.last_seq)


def _count_live(stream: Stream, first: int, last: int) -> int:
    """Return how many sequences between two, ends included, are not deleted."""
    return stream.visible.count(max(first - 1, stream.ledger.first_number), last)


def _clamped(size: int, limit: int) -> int:
    return min(max(size, MIN_BYTES), limit)
