"""What clients answer to what consumers sent: acknowledgements and answers to flow control.

They come as messages to `$JS.ACK.>` and `$JS.FC.>`, whose subjects name stream and consumer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

import structlog

from router.access.permissions import Right
from router.broker.nats.acks import read_subject
from router.broker.nats.hub import Hub, Request
from router.broker.nats.stream import Stream
from router.broker.nats.streams import Streams
from router.broker.storage import StoreError
from router.errors import RouterError
from router.wire.nats.jetstream.errors import JetStreamError

_FLOW_TOKENS: Final = 5
"""Of `$JS.FC.<stream>.<consumer>.<id>`."""

MAX_KNOWN: Final = 10_000
"""Streams that are remembered by their names."""
MAX_WAITING: Final = 10_000
"""Acknowledgements that wait for their stream; those beyond them are dropped."""

_log = structlog.get_logger(__name__)


class ClientAnswers:
    """Hands the answers of clients to the consumers of the streams."""

    def __init__(self, hub: Hub, streams: Streams) -> None:
        self._hub = hub
        self._streams = streams
        self._known: dict[str, Stream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        hub.serve("$JS.ACK.>", self._acknowledge)
        hub.serve("$JS.FC.>", self._confirm_flow)

    async def close(self) -> None:
        """End what is under way."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    def _acknowledge(self, request: Request) -> None:
        """Serve `$JS.ACK.>`."""
        message = request.message
        ack = read_subject(message.subject)
        if ack is None:
            return
        stream = self._find_stream(ack.stream)
        if stream is None or stream.closed:
            self._hub.no_responders(message)
            return
        if not stream.opened:
            if len(self._tasks) < MAX_WAITING:
                self._start(self._acknowledge_later(request, stream))
            return
        consumer = stream.consumers.get(ack.consumer)
        if consumer is None:
            self._hub.no_responders(message)
        elif request.caller.unrestricted or request.caller.may(stream.topic_name, Right.SUBSCRIBE):
            consumer.acknowledge(ack, message.payload, message.reply)

    async def _acknowledge_later(self, request: Request, stream: Stream) -> None:
        """Open the stream first: the broker was started since the message was delivered."""
        try:
            await stream.open()
        except (JetStreamError, RouterError, StoreError, OSError) as failure:
            _log.warning("nats-stream-not-open", stream=stream.name, reason=str(failure))
        if stream.opened:
            self._acknowledge(request)

    def _confirm_flow(self, request: Request) -> None:
        """Serve `$JS.FC.>`: the answer of a client that has taken what was sent before."""
        subject = request.message.subject
        tokens = subject.split(".")
        if len(tokens) != _FLOW_TOKENS:
            return
        stream = self._find_stream(tokens[2])
        consumer = stream.consumers.get(tokens[3]) if stream is not None else None
        if consumer is not None:
            consumer.confirm_flow(subject)

    def _find_stream(self, name: str) -> Stream | None:
        """Return a stream; which ones were found is remembered, since each answer asks."""
        stream = self._known.get(name)
        if stream is not None and not stream.closed:
            return stream
        try:
            stream = self._streams.find(name)
        except (JetStreamError, RouterError):
            return None
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[name] = stream
        return stream

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
