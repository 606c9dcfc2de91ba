"""What clients answer to what consumers sent: acknowledgements and answers to flow control.

Plain acknowledgements of a client of the listener come as the runs that its parser found. Others
come as messages to `$JS.ACK.>` and `$JS.FC.>`, whose subjects name stream and consumer, or many in
one request of HTTP, which is answered once when all of them are durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Final

import structlog

from router.access.permissions import Right
from router.broker.nats.consumers.consumer import Consumer
from router.broker.nats.consumers.log import ConsumerLog
from router.broker.nats.protocol.acks import AckSubject, read_ack, read_subject
from router.broker.nats.protocol.authorization import Caller
from router.broker.nats.protocol.failures import FAILURES
from router.broker.nats.protocol.hub import Hub, ServiceRequest
from router.broker.nats.streams.stream import Stream
from router.broker.nats.streams.streams import Streams
from router.broker.storage import StoreError
from router.errors import (
    BackendUnavailableError,
    BadRequestError,
    ConflictError,
    RouterError,
    SubscriptionNotFoundError,
)
from router.wire.nats.jetstream.errors import JetStreamError
from router.wire.nats.message import AckResult
from router.wire.nats.parser import Acknowledgements

_FLOW_TOKENS: Final = 5
"""Of `$JS.FC.<stream>.<consumer>.<id>`."""

_NO_CONSUMER: Final = "the consumer of this token does not exist any more"
_NOT_DELIVERED: Final = (
    "this delivery is not known since the broker was started again: the message is given again"
)

MAX_WAITING: Final = 10_000
"""Acknowledgements that wait for their stream; those beyond them are dropped."""

_log = structlog.get_logger(__name__)


class ClientAnswers:
    """Hands the answers of clients to the consumers of the streams."""

    def __init__(self, hub: Hub, streams: Streams) -> None:
        self._hub = hub
        self._streams = streams
        self._tasks: set[asyncio.Task[None]] = set()
        hub.serve("$JS.ACK.>", self._acknowledge)
        hub.serve("$JS.FC.>", self._confirm_flow)

    async def close(self) -> None:
        """End what is under way."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    async def acknowledge(
        self, caller: Caller, subjects: Sequence[str], payload: bytes
    ) -> AckResult:
        """Take acknowledgements of one kind, in order and up to the first that fails.

        Those that were taken are durable on return.
        """
        kind = read_ack(payload)
        permitted: set[Stream] = set()
        logs: dict[ConsumerLog, None] = {}
        done, failure = 0, None
        try:
            for subject in subjects:
                if (ack := read_subject(subject)) is None:
                    raise BadRequestError("The subject is none of an acknowledgement.")
                stream = await self._opened_stream(ack.stream)
                if stream not in permitted:
                    _authorize(caller, stream)
                    permitted.add(stream)
                consumer = _consumer(stream, ack)
                if not consumer.take(ack, kind):
                    raise ConflictError(_NOT_DELIVERED)
                logs[consumer.log] = None
                done += 1
        except RouterError as error:
            failure = error
        await _durable(logs)
        return AckResult(done, failure)

    async def _opened_stream(self, name: str) -> Stream:
        stream = self._find_stream(name)
        if stream is not None and not stream.opened:
            try:
                await stream.open()
            except FAILURES as failure:
                raise BackendUnavailableError(f"Stream {name} is not open: {failure}") from failure
        if stream is None or stream.closed:
            raise SubscriptionNotFoundError(_NO_CONSUMER)
        return stream

    def acknowledge_run(self, caller: Caller, operation: Acknowledgements) -> bool:
        """Take acknowledgements of a client of the listener; return False if none could be.

        Then they are served one by one, as messages that may be refused.
        """
        stream = self._find_stream(operation.stream)
        if stream is None or stream.closed or not stream.opened:
            return False
        consumer: Consumer | None = stream.consumers.get(operation.consumer)
        if consumer is None:
            return False
        if not (caller.unrestricted or caller.may(stream.topic_name, Right.SUBSCRIBE)):
            return False
        consumer.acknowledge_run(operation.deliveries)
        return True

    def _acknowledge(self, request: ServiceRequest) -> None:
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

    async def _acknowledge_later(self, request: ServiceRequest, stream: Stream) -> None:
        """Open the stream first: the broker was started since the message was delivered."""
        try:
            await stream.open()
        except (JetStreamError, RouterError, StoreError, OSError) as failure:
            _log.warning("nats-stream-not-open", stream=stream.name, reason=str(failure))
        if stream.opened:
            self._acknowledge(request)

    def _confirm_flow(self, request: ServiceRequest) -> None:
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
        try:
            return self._streams.find(name)
        except (JetStreamError, RouterError):
            return None

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _authorize(caller: Caller, stream: Stream) -> None:
    """Raise ForbiddenError without the right to read a stream, or as if there were no stream."""
    if caller.unrestricted:
        return
    if not caller.may(stream.topic_name, Right.VIEW):
        raise SubscriptionNotFoundError(_NO_CONSUMER)
    caller.authorize(stream.topic_name, Right.SUBSCRIBE)


def _consumer(stream: Stream, ack: AckSubject) -> Consumer:
    consumer: Consumer | None = stream.consumers.get(ack.consumer)
    if consumer is None:
        raise SubscriptionNotFoundError(_NO_CONSUMER)
    return consumer


async def _durable(logs: Iterable[ConsumerLog]) -> None:
    """Return when all acknowledgements so far are durable; those of all consumers share a sync."""
    waits = []
    for log in logs:
        waits.append(stored := asyncio.Event())
        log.after(stored.set)
    for stored in waits:
        await stored.wait()
