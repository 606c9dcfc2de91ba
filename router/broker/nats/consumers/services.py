"""What clients send to consumers: requests for messages, acknowledgements, flow control.

They are services of the hub, whose subjects name stream and consumer: NEXT_PREFIX, `$JS.ACK.` and
`$JS.FC.`. Nothing is waited for if the stream is open, so that those of one client are taken in
their order. Plain acknowledgements of a client of the listener come as the runs that its parser
found, and those of HTTP many in one request, which is answered once when all are durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

import structlog

from router.access.permissions import Right
from router.broker.nats.consumers.consumer import JetStreamConsumer
from router.broker.nats.consumers.log import ConsumerLog
from router.broker.nats.protocol.acks import AckSubject, read_ack, read_subject
from router.broker.nats.protocol.api import JetStreamApi
from router.broker.nats.protocol.authorization import NatsCaller
from router.broker.nats.protocol.failures import FAILURES
from router.broker.nats.protocol.hub import Hub, Service, ServiceRequest
from router.broker.nats.protocol.pacing import Tasks
from router.broker.nats.streams.stream import Stream
from router.broker.nats.streams.streams import Streams
from router.errors import (
    BackendUnavailableError,
    BadRequestError,
    ConflictError,
    RouterError,
    SubscriptionNotFoundError,
)
from router.wire.nats.message import AckResult
from router.wire.nats.parser import AckBatch

NEXT_PREFIX: Final = "$JS.API.CONSUMER.MSG.NEXT."
_NEXT_TOKENS: Final = 7
"""Of `$JS.API.CONSUMER.MSG.NEXT.<stream>.<consumer>`."""
_FLOW_TOKENS: Final = 5
"""Of `$JS.FC.<stream>.<consumer>.<id>`."""

_NO_CONSUMER: Final = "the consumer of this token does not exist any more"
_NOT_DELIVERED: Final = (
    "this delivery is not known since the broker was started again: the message is given again"
)

MAX_WAITING: Final = 10_000
"""Messages that wait for their stream to open; those beyond them are dropped."""

_log = structlog.get_logger(__name__)


class ConsumerServices:
    """Hands what clients send to the consumers of the streams; `api` counts requests as calls."""

    def __init__(self, hub: Hub, streams: Streams, api: JetStreamApi) -> None:
        self._hub = hub
        self._streams = streams
        self._api = api
        self._tasks = Tasks()
        hub.serve("$JS.ACK.>", self._acknowledge)
        hub.serve("$JS.FC.>", self._confirm_flow)

    async def close(self) -> None:
        """End what is under way."""
        await self._tasks.close()

    async def acknowledge(
        self, caller: NatsCaller, subjects: Sequence[str], payload: bytes
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
        stream = self._streams.get(name)
        if stream is not None and not stream.opened:
            try:
                await stream.open()
            except FAILURES as failure:
                raise BackendUnavailableError(f"Stream {name} is not open: {failure}") from failure
        if stream is None or stream.closed:
            raise SubscriptionNotFoundError(_NO_CONSUMER)
        return stream

    def acknowledge_run(self, caller: NatsCaller, operation: AckBatch) -> bool:
        """Take acknowledgements of a client of the listener; return False if none could be.

        Then they are served one by one, as messages that may be refused.
        """
        stream = self._streams.get(operation.stream)
        if stream is None or stream.closed or not stream.opened:
            return False
        consumer: JetStreamConsumer | None = stream.consumers.get(operation.consumer)
        if consumer is None or not caller.may(stream.topic_name, Right.SUBSCRIBE):
            return False
        consumer.acknowledge_run(operation.deliveries)
        return True

    def request(self, request: ServiceRequest) -> None:
        """Serve NEXT_PREFIX: messages and statuses go to the reply subject."""
        message = request.message
        tokens = message.subject.split(".")
        if len(tokens) != _NEXT_TOKENS:
            return
        consumer = self._consumer(tokens[5], tokens[6], request, self.request)
        if consumer is None:
            return
        self._api.total += 1
        if not request.caller.may(consumer.stream.topic_name, Right.SUBSCRIBE):
            self._hub.no_responders(message)
        elif message.reply:
            consumer.request(message.reply, message.payload)

    def _acknowledge(self, request: ServiceRequest) -> None:
        """Serve `$JS.ACK.>`."""
        message = request.message
        ack = read_subject(message.subject)
        if ack is None:
            return
        consumer = self._consumer(ack.stream, ack.consumer, request, self._acknowledge)
        if consumer is not None and request.caller.may(consumer.stream.topic_name, Right.SUBSCRIBE):
            consumer.acknowledge(ack, message.payload, message.reply)

    def _confirm_flow(self, request: ServiceRequest) -> None:
        """Serve `$JS.FC.>`: the answer of a client that has taken what was sent before."""
        subject = request.message.subject
        tokens = subject.split(".")
        if len(tokens) != _FLOW_TOKENS:
            return
        stream = self._streams.get(tokens[2])
        consumer = stream.consumers.get(tokens[3]) if stream is not None else None
        if consumer is not None:
            consumer.confirm_flow(subject)

    def _consumer(
        self, stream_name: str, name: str, request: ServiceRequest, serve: Service
    ) -> JetStreamConsumer | None:
        """Return the consumer that a message is for.

        None: there is none, which the message is answered with, or the stream is not open since
        the broker was started: `serve` is called when it is. If it cannot be opened, the answer is
        as if there were none, which has clients try again.
        """
        stream = self._streams.get(stream_name)
        if stream is not None and not stream.closed:
            if not stream.opened:
                if len(self._tasks) < MAX_WAITING:
                    self._tasks.start(self._serve_opened(stream, request, serve))
                return None
            consumer: JetStreamConsumer | None = stream.consumers.get(name)
            if consumer is not None:
                return consumer
        self._hub.no_responders(request.message)
        return None

    async def _serve_opened(self, stream: Stream, request: ServiceRequest, serve: Service) -> None:
        try:
            await stream.open()
        except FAILURES as failure:
            _log.warning("nats-stream-not-open", stream=stream.name, reason=str(failure))
        if stream.opened:
            serve(request)
        else:
            self._hub.no_responders(request.message)


def _authorize(caller: NatsCaller, stream: Stream) -> None:
    """Raise ForbiddenError without the right to read a stream, or as if there were no stream."""
    if not caller.may(stream.topic_name, Right.VIEW):
        raise SubscriptionNotFoundError(_NO_CONSUMER)
    caller.authorize(stream.topic_name, Right.SUBSCRIBE)


def _consumer(stream: Stream, ack: AckSubject) -> JetStreamConsumer:
    consumer: JetStreamConsumer | None = stream.consumers.get(ack.consumer)
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
