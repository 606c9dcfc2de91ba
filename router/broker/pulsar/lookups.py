"""Finding topics: partition counts, lookups, names of a namespace, schemas (there are none).

Every lookup is answered with this broker, reached the way the client came, for it is the only one.
Schemas are not kept: a client that brings one is served, and finds none. Refusing it would shut out
clients that use schemas among themselves, whose messages are whole without the broker knowing them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.broker.pulsar.failures import answer
from router.errors import RouterError, TopicNotFoundError
from router.model import NOT_PARTITIONED, TopicInfo
from router.wire.pulsar import Frame
from router.wire.pulsar import pulsar_pb2 as pb

if TYPE_CHECKING:
    from router.broker.pulsar.connection import Connection
    from router.broker.pulsar.context import Handler
    from router.broker.pulsar.log import LogMessages


class Lookups:
    """What one connection asks about topics."""

    def __init__(self, connection: Connection, messages: LogMessages) -> None:
        self._connection = connection
        self._topics = messages.topics

    def handlers(self) -> dict[int, Handler]:
        """Return the commands served here."""
        return {
            pb.BaseCommand.PARTITIONED_METADATA: self.partitions,
            pb.BaseCommand.LOOKUP: self.lookup,
            pb.BaseCommand.GET_TOPICS_OF_NAMESPACE: self.names,
            pb.BaseCommand.GET_SCHEMA: self.schema,
        }

    def partitions(self, frame: Frame) -> None:
        """Say how many partitions a topic has: 0 also for one that would be created without.

        A missing topic is created here only where settings give new topics partitions: the client
        would take it for one without.
        """
        asked = frame.command.partitionMetadata
        try:
            count = self._count(asked)
        except RouterError as failure:
            self._metadata_failed(asked.request_id, failure)
            return
        if count is None:
            self._connection.spawn(self._create(asked))
        else:
            self._metadata(asked.request_id, count)

    def lookup(self, frame: Frame) -> None:
        """Say that this broker serves the topic, whichever it is."""
        asked = frame.command.lookupTopic
        response = pb.CommandLookupTopicResponse(request_id=asked.request_id)
        try:
            self._topics.parse(asked.topic)
        except RouterError as failure:
            response.response = pb.CommandLookupTopicResponse.Failed
            response.error, response.message = answer(failure)
        else:
            # The client is to come the way that it came: ports may be mapped, names may differ.
            response.response = pb.CommandLookupTopicResponse.Connect
            response.brokerServiceUrl = self._connection.service_url
            response.authoritative = True
            response.proxy_through_service_url = True
        self._connection.send(
            pb.BaseCommand(type=pb.BaseCommand.LOOKUP_RESPONSE, lookupTopicResponse=response)
        )

    def names(self, frame: Frame) -> None:
        """List the topics of a namespace, each partition by its own name."""
        asked = frame.command.getTopicsOfNamespace
        tenant, _, namespace = asked.namespace.partition("/")
        response = pb.CommandGetTopicsOfNamespaceResponse(
            request_id=asked.request_id,
            topics=[
                name
                for info in self._topics.list(tenant, namespace)
                if asked.mode != pb.CommandGetTopicsOfNamespace.NON_PERSISTENT
                for name in _names(info)
            ],
        )
        self._connection.send(
            pb.BaseCommand(
                type=pb.BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE,
                getTopicsOfNamespaceResponse=response,
            )
        )

    def schema(self, frame: Frame) -> None:
        """Say that the topic has no schema."""
        asked = frame.command.getSchema
        response = pb.CommandGetSchemaResponse(
            request_id=asked.request_id,
            error_code=pb.TopicNotFound,
            error_message="Topic not found or no-schema",
        )
        self._connection.send(
            pb.BaseCommand(type=pb.BaseCommand.GET_SCHEMA_RESPONSE, getSchemaResponse=response)
        )

    def _count(self, asked: pb.CommandPartitionedTopicMetadata) -> int | None:
        record = self._topics.find(asked.topic)
        if record is not None:
            return record.partitions
        if self._topics.opened(asked.topic) is not None:
            return 0
        options = self._topics.options
        if not (options.auto_create and asked.metadata_auto_creation_enabled):
            raise TopicNotFoundError(f"there is no topic {self._topics.parse(asked.topic)}")
        return None if options.auto_partitions else 0

    async def _create(self, asked: pb.CommandPartitionedTopicMetadata) -> None:
        try:
            record = await self._topics.create_missing(self._topics.parse(asked.topic))
        except RouterError as failure:
            self._metadata_failed(asked.request_id, failure)
        else:
            self._metadata(asked.request_id, record.partitions)

    def _metadata(self, request_id: int, partitions: int) -> None:
        self._send_metadata(
            pb.CommandPartitionedTopicMetadataResponse(
                request_id=request_id,
                partitions=partitions,
                response=pb.CommandPartitionedTopicMetadataResponse.Success,
            )
        )

    def _metadata_failed(self, request_id: int, failure: RouterError) -> None:
        number, sentence = answer(failure)
        self._send_metadata(
            pb.CommandPartitionedTopicMetadataResponse(
                request_id=request_id,
                response=pb.CommandPartitionedTopicMetadataResponse.Failed,
                error=number,
                message=sentence,
            )
        )

    def _send_metadata(self, response: pb.CommandPartitionedTopicMetadataResponse) -> None:
        self._connection.send(
            pb.BaseCommand(
                type=pb.BaseCommand.PARTITIONED_METADATA_RESPONSE,
                partitionMetadataResponse=response,
            )
        )


def _names(info: TopicInfo) -> list[str]:
    indexes = range(info.partitions) or (NOT_PARTITIONED,)
    return [str(info.topic.partition(index)) for index in indexes]
