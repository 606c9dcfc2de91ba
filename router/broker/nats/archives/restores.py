"""STREAM.RESTORE: takes the archive of a stream in chunks, and shows the stream when it is whole.

Theory of operation. A restore has a subject of its own, which only its client knows. Each chunk is
a request that is answered when it is stored; an empty one ends the archive, and is answered with
the stream. Until then the topic is one that was only begun: no client of any dialect sees it, and a
failure, a client that stops sending, or the end of the broker removes it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from contextlib import suppress
from dataclasses import replace
from typing import Final

import structlog

from router.broker.nats.archives.builder import StreamBuilder
from router.broker.nats.protocol.api import ApiCall, ApiRoute
from router.broker.nats.protocol.authorization import NatsCaller
from router.broker.nats.protocol.failures import FAILURES, jetstream_error
from router.broker.nats.protocol.hub import Hub, ServiceRequest
from router.broker.nats.protocol.pacing import Tasks
from router.broker.nats.streams.streams import NO_BOUND, Streams
from router.broker.storage import Store, StoreError
from router.errors import DiskFullError, RouterError, TopicExistsError
from router.wire import ProtocolError
from router.wire.nats.archive.reader import ArchiveReader
from router.wire.nats.jetstream.config import StreamConfig
from router.wire.nats.jetstream.errors import ErrorCode, JetStreamError, error
from router.wire.nats.jetstream.replies import ApiReply, Restore, StreamInfo
from router.wire.nats.jetstream.requests import RestoreRequest, StreamConfigRequest
from router.wire.nats.jetstream.stream_rules import MAX_FIRST_SEQUENCE, check_stream_create
from router.wire.nats.message import NatsMessage

MAX_RESTORES: Final = 4
"""Under way; others are refused. Each takes up to about 60 MiB of memory."""
MAX_WAITING_BYTES: Final = 16 << 20
"""Of chunks that are not stored yet; a client waits for the answer to each."""
MAX_MESSAGE_BYTES: Final = 5 << 20
"""Of headers and payload of a message."""
IDLE_SECONDS: Final = 30.0
"""Without a chunk, after which a restore ends."""
_CHUNKS: Final = "$JS.SNAPSHOT.RESTORE."

_log = structlog.get_logger(__name__)


class _RestoreStoppedError(Exception):
    """The client does not keep to the protocol."""


_ENDS: Final[tuple[type[Exception], ...]] = (ProtocolError, _RestoreStoppedError, *FAILURES)
"""What a restore may end with."""


class Restores:
    """The restores under way."""

    def __init__(self, hub: Hub, streams: Streams, store: Store, max_consumers: int) -> None:
        self._hub = hub
        self._streams = streams
        self._store = store
        self._max_consumers = max_consumers
        self._restores: dict[str, _Chunks] = {}
        self._tasks = Tasks()
        hub.serve(f"{_CHUNKS}>", self._take_chunk)

    def apis(self) -> tuple[ApiRoute, ...]:
        """Return the row of the table."""
        return (ApiRoute("STREAM.RESTORE.*", "stream_restore", self.restore),)

    def restore(self, call: ApiCall) -> Restore:
        """Serve STREAM.RESTORE: say where the chunks go."""
        request = RestoreRequest.read(call.body)
        config = replace(request.config, name=request.config.name or call.name)
        config = check_stream_create(call.name, StreamConfigRequest(config))
        self._streams.check_restored(config, call.caller)
        if request.state > MAX_FIRST_SEQUENCE:
            reason = f"first_seq is at most {MAX_FIRST_SEQUENCE}"
            raise error(ErrorCode.STREAM_RESTORE, err=reason)
        if self._store.full:
            raise DiskFullError
        if len(self._tasks) >= MAX_RESTORES:
            raise error(ErrorCode.STREAM_TOO_MANY_REQUESTS)
        token = secrets.token_hex(16)
        chunks = self._restores[token] = _Chunks(call.caller)
        self._tasks.start(self._run(token, chunks, config, request.state))
        return Restore(f"{_CHUNKS}{config.name}.{token}")

    async def close(self) -> None:
        """End the restores under way; what they stored is removed."""
        await self._tasks.close()

    def _take_chunk(self, request: ServiceRequest) -> None:
        """Serve `$JS.SNAPSHOT.RESTORE.>`: stream and token."""
        message = request.message
        tokens = message.subject.removeprefix(_CHUNKS).split(".")
        chunks = self._restores.get(tokens[1]) if len(tokens) == 2 else None
        if chunks is None or chunks.caller.name != request.caller.name:
            self._hub.no_responders(message)
        else:
            chunks.add(message)

    async def _run(self, token: str, chunks: _Chunks, config: StreamConfig, first: int) -> None:
        _log.info("nats-restore-begun", stream=config.name, user=chunks.caller.name)
        try:
            info = await self._build(chunks, config, first)
        except _ENDS as failure:
            _log.warning("nats-restore-failed", stream=config.name, reason=str(failure))
            self._answer(chunks, ApiReply("stream_create", error=_refusal(failure)))
        else:
            _log.info("nats-stream-restored", stream=config.name, messages=info.state.messages)
            self._answer(chunks, ApiReply("stream_create", info))
        finally:
            del self._restores[token]

    async def _build(self, chunks: _Chunks, config: StreamConfig, first: int) -> StreamInfo:
        topic = await self._store.begin_topic(NO_BOUND, max(0, first - 1))
        try:
            ledger = self._store.ledger(topic.ledger_ids[0])
            builder = StreamBuilder(self._store, ledger, config, first, self._max_consumers)
            reader = ArchiveReader(MAX_MESSAGE_BYTES)
            while data := await chunks.next():
                reader.feed(data)
                while (parts := await asyncio.to_thread(reader.take)) is not None:
                    await builder.add(parts)
                self._hub.publish(NatsMessage(chunks.stored()))
            reader.finish()
            await builder.finish()
            stream = await self._streams.finish(topic, config, chunks.caller)
            return await stream.info()
        except BaseException:
            # If the store cannot do it now, its next start does.
            with suppress(RouterError, StoreError):
                await self._store.discard_topic(topic)
            raise

    def _answer(self, chunks: _Chunks, reply: ApiReply) -> None:
        """Answer all chunks that wait."""
        for subject in chunks.close():
            self._hub.publish(NatsMessage(subject, payload=reply.to_bytes()))


def _refusal(failure: Exception) -> JetStreamError:
    if isinstance(failure, TopicExistsError):
        return error(ErrorCode.STREAM_NAME_EXIST_RESTORE)
    if isinstance(failure, JetStreamError | DiskFullError):
        return jetstream_error(failure)
    return error(ErrorCode.STREAM_RESTORE, err=str(failure) or "not permitted")


class _Chunks:
    """The chunks of one restore that are not stored yet."""

    def __init__(self, caller: NatsCaller) -> None:
        self.caller = caller
        self._waiting: deque[NatsMessage] = deque()
        self._size = 0
        self._changed = asyncio.Event()

    def add(self, message: NatsMessage) -> None:
        """Take a chunk; of more than MAX_WAITING_BYTES together none is kept."""
        self._size += len(message.payload)
        if self._size <= MAX_WAITING_BYTES:
            self._waiting.append(message)
        self._changed.set()

    async def next(self) -> bytes:
        """Return the next chunk, b"": there are no more; raise _RestoreStoppedError."""
        while not self._waiting and self._size <= MAX_WAITING_BYTES:
            self._changed.clear()
            try:
                async with asyncio.timeout(IDLE_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                raise _RestoreStoppedError(f"no chunk came for {IDLE_SECONDS:.0f} s") from None
        if self._size > MAX_WAITING_BYTES:
            raise _RestoreStoppedError("more chunks came than were answered")
        if not self._waiting[0].reply:
            raise _RestoreStoppedError("a chunk has no reply subject")
        return self._waiting[0].payload

    def stored(self) -> str:
        """Take note that the chunk is stored; return where it is answered."""
        message = self._waiting.popleft()
        self._size -= len(message.payload)
        return message.reply

    def close(self) -> list[str]:
        """Return where the chunks are answered that wait."""
        return [message.reply for message in self._waiting if message.reply]
