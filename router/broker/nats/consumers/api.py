"""The API of consumers: CONSUMER.CREATE, INFO, NAMES, LIST, DELETE, PAUSE and others."""

from __future__ import annotations

from router.access.permissions import Right
from router.broker.nats.consumers.consumer import JetStreamConsumer
from router.broker.nats.consumers.consumers import JetStreamConsumers
from router.broker.nats.protocol.api import ApiCall, ApiRoute
from router.broker.nats.streams.stream import Stream
from router.broker.nats.streams.streams import Streams
from router.wire.nats.jetstream.consumer_rules import (
    addressed_consumer,
    checked_consumer,
    is_group_name,
)
from router.wire.nats.jetstream.errors import ErrorCode, error
from router.wire.nats.jetstream.replies import (
    MAX_INFOS,
    MAX_NAMES,
    ConsumerInfo,
    ListPage,
    PagedReply,
    Paused,
    Success,
    Unpinned,
)
from router.wire.nats.jetstream.requests import (
    ConsumerCreateRequest,
    ConsumerPageRequest,
    PauseRequest,
    UnpinRequest,
    require_empty,
)


def apis(streams: Streams, consumers: JetStreamConsumers) -> tuple[ApiRoute, ...]:
    """Return the rows of the table."""
    calls = ConsumerApi(streams, consumers)
    return (
        ApiRoute("CONSUMER.CREATE.*", "consumer_create", calls.create),
        ApiRoute("CONSUMER.CREATE.*.*", "consumer_create", calls.create),
        ApiRoute("CONSUMER.CREATE.*.*.>", "consumer_create", calls.create),
        ApiRoute("CONSUMER.DURABLE.CREATE.*.*", "consumer_create", calls.create_durable),
        ApiRoute("CONSUMER.INFO.*.*", "consumer_info", calls.info),
        ApiRoute("CONSUMER.NAMES.*", "consumer_names", calls.names),
        ApiRoute("CONSUMER.LIST.*", "consumer_list", calls.list),
        ApiRoute("CONSUMER.DELETE.*.*", "consumer_delete", calls.delete),
        ApiRoute("CONSUMER.PAUSE.*.*", "consumer_pause", calls.pause),
        ApiRoute("CONSUMER.RESET.*.*", "consumer_reset", calls.reset),
        ApiRoute("CONSUMER.UNPIN.*.*", "consumer_unpin", calls.unpin),
    )


class ConsumerApi:
    """The handlers; they raise JetStreamError, RouterError and StoreError."""

    def __init__(self, streams: Streams, consumers: JetStreamConsumers) -> None:
        self._streams = streams
        self._consumers = consumers

    async def create(self, call: ApiCall) -> ConsumerInfo:
        """Serve CONSUMER.CREATE, in its three forms."""
        return await self._create(call, "CONSUMER.CREATE")

    async def create_durable(self, call: ApiCall) -> ConsumerInfo:
        """Serve CONSUMER.DURABLE.CREATE."""
        return await self._create(call, "CONSUMER.DURABLE.CREATE")

    async def info(self, call: ApiCall) -> ConsumerInfo:
        """Serve CONSUMER.INFO."""
        require_empty(call.body)
        consumer = await self._find(call, Right.VIEW)
        await consumer.stream.settle()
        return consumer.info()

    async def names(self, call: ApiCall) -> ListPage:
        """Serve CONSUMER.NAMES."""
        offset = ConsumerPageRequest.read(call.body).offset
        stream = await self._stream(call, Right.VIEW)
        names = sorted(stream.consumers)
        page = PagedReply.of(len(names), offset, MAX_NAMES)
        return ListPage("consumers", page.part(names), page)

    async def list(self, call: ApiCall) -> ListPage:
        """Serve CONSUMER.LIST."""
        offset = ConsumerPageRequest.read(call.body).offset
        stream = await self._stream(call, Right.VIEW)
        await stream.settle()
        names = sorted(stream.consumers)
        page = PagedReply.of(len(names), offset, MAX_INFOS)
        shown = [stream.consumers[name].info() for name in page.part(names)]
        return ListPage("consumers", shown, page)

    async def delete(self, call: ApiCall) -> Success:
        """Serve CONSUMER.DELETE."""
        require_empty(call.body)
        await self._consumers.delete(await self._find(call, Right.SUBSCRIBE))
        return Success()

    async def pause(self, call: ApiCall) -> Paused:
        """Serve CONSUMER.PAUSE."""
        until_ns = PauseRequest.read(call.body).pause_until
        consumer = await self._find(call, Right.SUBSCRIBE)
        await self._consumers.pause(consumer, until_ns)
        return Paused(consumer.config.pause_until, consumer.paused_ns)

    async def reset(self, call: ApiCall) -> None:
        """Refuse CONSUMER.RESET."""
        await self._find(call, Right.SUBSCRIBE)
        raise error(ErrorCode.CONSUMER_INVALID_RESET, err="resets are not supported")

    async def unpin(self, call: ApiCall) -> Unpinned:
        """Serve CONSUMER.UNPIN."""
        group = UnpinRequest.read(call.body).group
        if not is_group_name(group):
            raise error(ErrorCode.CONSUMER_INVALID_GROUP_NAME)
        consumer = await self._find(call, Right.SUBSCRIBE)
        if group not in consumer.config.priority_groups:
            raise error(ErrorCode.CONSUMER_INVALID_PRIORITY_GROUP)
        consumer.unpin()
        return Unpinned()

    async def _create(self, call: ApiCall, form: str) -> ConsumerInfo:
        request = ConsumerCreateRequest.read(call.body)
        config = addressed_consumer(f"{form}.{'.'.join(call.names)}", request)
        stream = await self._stream(call, Right.SUBSCRIBE)
        config = checked_consumer(config, stream.config, pedantic=request.pedantic)
        consumer = await self._consumers.create(stream, config, request.action)
        return consumer.info()

    async def _stream(self, call: ApiCall, right: Right) -> Stream:
        """Return the stream that a call names; raise JetStreamError 10059 if it is hidden."""
        stream = await self._streams.open(call.name)
        if not call.caller.may(stream.topic_name, Right.VIEW):
            raise error(ErrorCode.STREAM_NOT_FOUND)
        call.caller.authorize(stream.topic_name, right)
        return stream

    async def _find(self, call: ApiCall, right: Right) -> JetStreamConsumer:
        stream = await self._stream(call, right)
        return self._consumers.find(stream, call.names[1])
