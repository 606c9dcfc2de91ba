"""Schemas in the Pulsar protocol: those that clients ask for, and those that they bring."""

from __future__ import annotations

from typing import Final

from router.broker.consume import Partition
from router.broker.pulsar.client import Handler, PulsarClient
from router.broker.pulsar.context import LogContext
from router.broker.pulsar.failures import answer
from router.broker.storage import TopicRecord
from router.broker.topics.non_persistent import is_non_persistent
from router.broker.topics.schemas import BrokerSchemas
from router.broker.topics.topics import Topics
from router.errors import (
    InvalidSchemaError,
    RouterError,
    SchemaNotFoundError,
    TopicNotFoundError,
)
from router.wire.pulsar import Frame, command
from router.wire.pulsar import pulsar_pb2 as pb
from router.wire.pulsar.schemas import from_wire, to_wire

MAX_SIZE: Final = 1 << 16
"""Bytes of a schema as it is sent; what is allowed in it is less."""


class SchemaRequests:
    """What one connection asks about schemas."""

    def __init__(self, client: PulsarClient, log: LogContext) -> None:
        self._client = client
        self._connection = client.connection
        self._topics = log.topics
        self._schemas = log.schemas

    def handlers(self) -> dict[int, Handler]:
        """Return the commands served here."""
        return {
            pb.BaseCommand.GET_SCHEMA: self.get,
            pb.BaseCommand.GET_OR_CREATE_SCHEMA: self.get_or_create,
        }

    def get(self, frame: Frame) -> None:
        """Answer a version of a topic's schema, or the newest one."""
        self._connection.spawn(self._get(frame.command.getSchema))

    def get_or_create(self, frame: Frame) -> None:
        """Answer the version of a schema, which the topic gets if it has not got it."""
        request = frame.command.getOrCreateSchema
        try:
            check_size(request.schema)
        except InvalidSchemaError as failure:
            self._created(request, failure=failure)
        else:
            self._connection.spawn(self._get_or_create(request))

    async def _get(self, request: pb.CommandGetSchema) -> None:
        answered = command(pb.BaseCommand.GET_SCHEMA_RESPONSE, request_id=request.request_id)
        response = answered.getSchemaResponse
        try:
            version = request.schema_version if request.HasField("schema_version") else None
            found = await self._schemas.find(_topic(self._topics, request.topic), version)
        except RouterError as failure:
            response.error_code, response.error_message = answer(failure)
        else:
            response.schema.CopyFrom(to_wire(found))
            response.schema_version = found.version
        self._client.send(answered)

    async def _get_or_create(self, request: pb.CommandGetOrCreateSchema) -> None:
        try:
            topic = _topic(self._topics, request.topic)
            version = await _register(self._schemas, topic, request.schema)
        except RouterError as failure:
            self._created(request, failure=failure)
        else:
            self._created(request, schema_version=version)

    def _created(
        self,
        request: pb.CommandGetOrCreateSchema,
        failure: RouterError | None = None,
        schema_version: bytes | None = None,
    ) -> None:
        number, sentence = (None, None) if failure is None else answer(failure)
        self._client.send(
            command(
                pb.BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE,
                request_id=request.request_id,
                error_code=number,
                error_message=sentence,
                schema_version=schema_version,
            )
        )


def check_size(schema: pb.Schema) -> None:
    """Raise InvalidSchemaError for what is too large to wait in memory until it is checked."""
    # A schema that is not given has no size: its required fields are missing.
    if schema.IsInitialized() and schema.ByteSize() > MAX_SIZE:
        raise InvalidSchemaError(f"a schema of more than {MAX_SIZE} bytes")


async def schema_of_producer(
    schemas: BrokerSchemas, partition: Partition, request: pb.CommandProducer
) -> bytes:
    """Return the version of the schema that a producer brings, empty: it brings none.

    Raises InvalidSchemaError, IncompatibleSchemaError, NotAllowedError, TopicNotFoundError.
    """
    if not request.HasField("schema"):
        return b""
    version = await _register(schemas, partition.topic, request.schema)
    _check_there(partition)
    return version


async def admit_reader(
    schemas: BrokerSchemas, partition: Partition, request: pb.CommandSubscribe
) -> None:
    """Return if a consumer may read a partition by the schema that it brings, if it brings one.

    Raises InvalidSchemaError, IncompatibleSchemaError, NotAllowedError, TopicNotFoundError.
    """
    brought = request.schema.type if request.HasField("schema") else pb.Schema.NoSchema
    if brought in (pb.Schema.NoSchema, pb.Schema.AutoConsume):
        return
    await schemas.admit_reader(partition.topic, from_wire(request.schema), lambda: _idle(partition))
    _check_there(partition)


async def _register(schemas: BrokerSchemas, topic: TopicRecord, schema: pb.Schema) -> bytes:
    if schema.type == pb.Schema.NoSchema:
        schemas.check_without(topic)
        return b""
    return await schemas.register(topic, from_wire(schema))


def _topic(topics: Topics, text: str) -> TopicRecord:
    """Return the topic of this name, or the one whose partition it names."""
    if is_non_persistent(text):
        raise SchemaNotFoundError(f"{text}: topics that are not persistent have no schemas")
    return topics.whole(text)


def _idle(partition: Partition) -> bool:
    """Return whether a partition has no clients, but for readers of any schema, and no entries."""
    ledger = partition.ledger
    return (
        not len(partition.producers)
        and ledger.first_entry == ledger.next_entry
        and all(
            consumer.reads_any
            for subscription in partition.subscriptions.values()
            for consumer in subscription.consumers
        )
    )


def _check_there(partition: Partition) -> None:
    if partition.closed:
        raise TopicNotFoundError("the topic was deleted meanwhile")
