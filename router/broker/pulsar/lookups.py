"""Finding topics: partition counts, lookups, names of a namespace.

Every lookup is answered with this broker, because it is the only one: at the address that the
client used, unless settings advertise another. Clients are to go through that address in either
case, so that port maps, containers and proxies need nothing else.
"""

from __future__ import annotations

from contextlib import suppress

from router.broker.pulsar.client import Handler, PulsarClient
from router.broker.pulsar.context import LogContext
from router.broker.pulsar.failures import answer, request_failed
from router.broker.pulsar.patterns import Matcher, PatternError, matcher, topics_hash
from router.broker.pulsar.transactions import COORDINATOR_TOPIC
from router.broker.pulsar.watching import MAX_NAMES
from router.broker.topics.non_persistent import is_non_persistent
from router.broker.transport.advertised import NOT_ADVERTISED
from router.errors import BadNameError, NotAllowedError, RouterError, TopicNotFoundError
from router.model import TopicName, check_namespace
from router.wire.pulsar import Frame, command
from router.wire.pulsar import pulsar_pb2 as pb


class PulsarLookups:
    """What one connection asks about topics."""

    def __init__(self, client: PulsarClient, log: LogContext) -> None:
        self._client = client
        self._connection = client.connection
        self._topics = log.topics
        self._advertised = log.advertised

    def handlers(self) -> dict[int, Handler]:
        """Return the commands served here."""
        return {
            pb.BaseCommand.PARTITIONED_METADATA: self.partitions,
            pb.BaseCommand.LOOKUP: self.lookup,
            pb.BaseCommand.GET_TOPICS_OF_NAMESPACE: self.names,
        }

    def partitions(self, frame: Frame) -> None:
        """Answer how many partitions a topic has: 0 also for one that would be created without.

        A missing topic is created here only where settings give new topics partitions: the client
        would take it for one without.
        """
        request = frame.command.partitionMetadata
        try:
            if request.topic.startswith(COORDINATOR_TOPIC):
                self._metadata(request.request_id, 1)
                return
            if is_non_persistent(request.topic):
                self._topics.namespaces.check(TopicName.parse(request.topic))
                self._metadata(request.request_id, 0)
                return
            count = self._count(request)
        except RouterError as failure:
            self._metadata_failed(request.request_id, failure)
            return
        if count is None:
            self._connection.spawn(self._create(request))
        else:
            self._metadata(request.request_id, count)

    def lookup(self, frame: Frame) -> None:
        """Answer that this broker serves the topic, whichever it is."""
        request = frame.command.lookupTopic
        response = command(pb.BaseCommand.LOOKUP_RESPONSE, request_id=request.request_id)
        found = response.lookupTopicResponse
        try:
            self._check(request.topic)
        except RouterError as failure:
            found.response = pb.CommandLookupTopicResponse.Failed
            found.error, found.message = answer(failure)
        else:
            found.response = pb.CommandLookupTopicResponse.Connect
            self._address(found)
            found.authoritative = True
            found.proxy_through_service_url = True
        self._client.send(response)

    def _check(self, topic: str) -> None:
        """Raise the RouterError that tells why a topic is not served here and never will be."""
        if topic.startswith(COORDINATOR_TOPIC):
            return
        if is_non_persistent(topic):
            self._topics.namespaces.check(TopicName.parse(topic))
            return
        try:
            self._topics.check_namespace(topic)
        except BadNameError:
            # Java clients look a pattern up, to watch for topics where it would be served.
            namespace, _, pattern = topic.rpartition("/")
            if not pattern or "://" not in namespace:
                raise
            self._topics.check_namespace(f"{namespace}/any")

    def names(self, frame: Frame) -> None:
        """List the topics of a namespace, each partition by its own name."""
        request = frame.command.getTopicsOfNamespace
        kind = pb.BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE
        response = command(kind, request_id=request.request_id)
        found = response.getTopicsOfNamespaceResponse
        try:
            names = self._names(request, found)
        except RouterError as failure:
            self._client.send(request_failed(request.request_id, failure))
            return
        found.topics_hash = topics_hash(names)
        found.changed = found.topics_hash != request.topics_hash
        if found.changed:
            found.topics.extend(names)
        self._client.send(response)

    def _names(
        self,
        request: pb.CommandGetTopicsOfNamespace,
        response: pb.CommandGetTopicsOfNamespaceResponse,
    ) -> list[str]:
        check_namespace(request.namespace)
        matches: Matcher | None = None
        if request.HasField("topics_pattern"):
            # Clients filter a list themselves that is not filtered here.
            with suppress(PatternError):
                matches = matcher(request.topics_pattern)
                response.filtered = True
        names: list[str] = []
        if request.mode != pb.CommandGetTopicsOfNamespace.NON_PERSISTENT:
            names += self._topics.names(request.namespace, matches)
        if request.mode != pb.CommandGetTopicsOfNamespace.PERSISTENT:
            names += self._topics.non_persistent.names(request.namespace, matches)
        names = self._client.identity.visible(names)
        if sum(map(len, names)) > MAX_NAMES:
            raise NotAllowedError("these are more topics than one answer can name; use a pattern")
        return names

    def _address(self, response: pb.CommandLookupTopicResponse) -> None:
        if self._advertised != NOT_ADVERTISED:
            response.brokerServiceUrl = self._advertised.plain
            response.brokerServiceUrlTls = self._advertised.tls
            return
        host, port = self._connection.local_address or ("localhost", 6650)
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if self._connection.secure:
            response.brokerServiceUrlTls = f"pulsar+ssl://{address}"
        else:
            response.brokerServiceUrl = f"pulsar://{address}"

    def _count(self, request: pb.CommandPartitionedTopicMetadata) -> int | None:
        """Return how many partitions a topic has; None: it has to be made first."""
        record = self._topics.find(request.topic)
        if record is not None:
            return record.partitions
        if self._topics.opened(request.topic) is not None:
            return 0
        name = self._topics.parse(request.topic)
        partitions = self._topics.creation(name)
        if partitions is None or not request.metadata_auto_creation_enabled:
            raise TopicNotFoundError(f"there is no topic {name}")
        return None if partitions else 0

    async def _create(self, request: pb.CommandPartitionedTopicMetadata) -> None:
        try:
            record = await self._topics.create_missing(self._topics.parse(request.topic))
        except RouterError as failure:
            self._metadata_failed(request.request_id, failure)
        else:
            self._metadata(request.request_id, record.partitions)

    def _metadata(self, request_id: int, partitions: int) -> None:
        self._client.send(
            command(
                pb.BaseCommand.PARTITIONED_METADATA_RESPONSE,
                request_id=request_id,
                partitions=partitions,
                response=pb.CommandPartitionedTopicMetadataResponse.Success,
            )
        )

    def _metadata_failed(self, request_id: int, failure: RouterError) -> None:
        number, sentence = answer(failure)
        self._client.send(
            command(
                pb.BaseCommand.PARTITIONED_METADATA_RESPONSE,
                request_id=request_id,
                response=pb.CommandPartitionedTopicMetadataResponse.Failed,
                error=number,
                message=sentence,
            )
        )
