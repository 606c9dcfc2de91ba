"""The schemas of topics, by commands of the Pulsar protocol."""

from __future__ import annotations

import time
from typing import Any

from router.backends.pulsar.routes import Routes, at_broker
from router.backends.pulsar.subscribing import count_partitions
from router.errors import SchemaNotFoundError, TopicNotFoundError
from router.model import Schema, SchemaType, TopicName
from router.pulsar_client.connection import PulsarConnection
from router.pulsar_client.refusals import refusal
from router.wire.pulsar import pulsar_pb2 as pb


class PulsarSchemas:
    """The schemas of topics; see `Schemas`. A partitioned topic has them, not its partitions."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes

    def get(self, topic: TopicName, version: bytes | None, timeout: float) -> Schema:
        """Return a version, None: the newest one; see the protocol."""
        deadline = time.monotonic() + timeout
        command = pb.CommandGetSchema(request_id=0, topic=str(topic), schema_version=version)
        try:
            answer = self._ask(
                pb.BaseCommand(type=pb.BaseCommand.GET_SCHEMA, getSchema=command), deadline
            )
        except TopicNotFoundError:
            # Apache Pulsar says the same of a topic that is not there and of one without schemas.
            count_partitions(self._routes.service, topic, deadline)
            raise SchemaNotFoundError(f"topic {topic.local} has no such schema") from None
        found = answer.schema
        return Schema(
            SchemaType(found.type),
            found.schema_data,
            {pair.key: pair.value for pair in found.properties},
            found.name,
            answer.schema_version,
        )

    def put(self, topic: TopicName, schema: Schema, timeout: float) -> bytes:
        """Return the version of an equal schema, or of this one; see the protocol."""
        # Avro takes long to import, and most clients put no schemas.
        from router.schemas import check  # noqa: PLC0415

        deadline = time.monotonic() + timeout
        check(schema)  # the broker answers as if it were not compatible
        # Whoever asks for a schema of a topic that is not there makes it: that is not meant. Apache
        # Pulsar asks the topic itself, which a partitioned one is not; its partitions share one.
        partitions = count_partitions(self._routes.service, topic, deadline)
        owner = topic.partition(0) if partitions else topic
        given = pb.Schema(
            name=schema.name,
            schema_data=schema.data,
            type=pb.Schema.Type.Name(schema.type),
            properties=[pb.KeyValue(key=k, value=v) for k, v in schema.properties.items()],
        )
        command = pb.CommandGetOrCreateSchema(request_id=0, topic=str(owner), schema=given)
        answer = self._ask(
            pb.BaseCommand(type=pb.BaseCommand.GET_OR_CREATE_SCHEMA, getOrCreateSchema=command),
            deadline,
        )
        version: bytes = answer.schema_version
        return version

    def _ask(self, command: pb.BaseCommand, deadline: float) -> Any:
        """Ask the broker that has the topic; raise what it answers."""
        get = command.type == pb.BaseCommand.GET_SCHEMA
        body: Any = command.getSchema if get else command.getOrCreateSchema

        def ask(connection: PulsarConnection) -> Any:
            body.request_id = connection.next_id()
            answer = connection.call(body.request_id, command, deadline)
            if answer.HasField("error_code"):
                raise refusal(answer.error_code, answer.error_message)
            return answer

        return at_broker(self._routes, body.topic, ask, deadline)
