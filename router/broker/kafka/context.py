"""What all Kafka connections of a broker share: its topics, its codec, and who the broker is."""

from __future__ import annotations

import base64
import uuid
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from router.broker.consume import Partition
from router.broker.context import BrokerContext
from router.broker.entries.kafka import MAX_RECORDS, MAX_RECORDS_BYTES
from router.broker.kafka.coordinator import GroupCoordinator
from router.broker.kafka.spec import KAFKA
from router.broker.kafka.topic_catalog import read_topic_id, topic_id
from router.broker.storage import TopicRecord
from router.broker.topics.topics import Topics
from router.broker.transport.connection import ClientConnection
from router.errors import ConflictError, TopicNotFoundError
from router.kafka.definitions import definition_texts
from router.model import TopicName
from router.sharing.registry import NEW
from router.wire.kafka.engine import Messages

NODE_ID: Final = 1
"""The broker's number in its cluster of one."""
LEADER_EPOCH: Final = 0
"""The only epoch of every partition: the leader never changes."""
_MAX_ROW: Final = 1 << 63
_CLUSTER_RECORDS: Final = "kafka"
_CLUSTER_ID: Final = "cluster-id"


@dataclass(frozen=True, slots=True)
class RecordLimits:
    """What a batch may have that is stored: bytes, records, and bytes of records decompressed."""

    batch_bytes: int
    records: int = MAX_RECORDS
    records_bytes: int = MAX_RECORDS_BYTES


class KafkaContext:
    """The log of a broker as the Kafka APIs use it.

    `versions` are the first and last version of each API in ApiVersions, and
    `fetched_partitions` is how many the fetch sessions of all connections have.
    """

    def __init__(self, broker: BrokerContext, topics: Topics) -> None:
        self.broker = broker
        self.topics = topics
        if broker.transactions is None:
            raise ValueError("a log has transactions")
        self.producers = broker.transactions
        self.coordinator = GroupCoordinator(broker, topics)
        self.messages = Messages(definition_texts())
        self.versions: dict[int, tuple[int, int]] = {}
        self.limits = RecordLimits(broker.settings.number("broker.kafka_max_batch"))
        self.workers = broker.transcoder.workers
        self.transcoder = broker.transcoder
        self._advertised = KAFKA.addresses(broker.settings)
        self._cluster_id = ""
        self.fetched_partitions = 0
        self._names = 0

    async def cluster_id(self) -> str:
        """Return the name of the cluster, which it keeps for good."""
        if not self._cluster_id:
            registry = self.broker.registry
            record = await registry.get(_CLUSTER_RECORDS, _CLUSTER_ID)
            if record is None:
                made = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=")
                try:
                    record = await registry.put(_CLUSTER_RECORDS, _CLUSTER_ID, made, NEW)
                except ConflictError:
                    # Another client asked at the same time.
                    return await self.cluster_id()
            self._cluster_id = record.value.decode("ascii")
        return self._cluster_id

    def new_name(self, kind: str) -> str:
        """Return a name that no producer ever had, over restarts too."""
        self._names += 1
        return f"{kind}-{self.topics.store.boot}-{self._names}"

    def topic_id(self, record: TopicRecord) -> bytes:
        """Return the id of a topic, which no other topic has, not even a later one of its name."""
        return topic_id(record)

    def kafka_name(self, record: TopicRecord) -> str:
        """Return the name by which Kafka clients know a topic."""
        return self.topics.kafka_names.of(TopicName.parse(record.name))

    def find_topic(self, topic: str | bytes) -> TopicRecord | None:
        """Return the topic with a Kafka name or an id, None: there is none."""
        if isinstance(topic, str):
            return self.topics.find_kafka(topic)
        created_ms, number = read_topic_id(topic)
        record = self.topics.store.topic(number) if number < _MAX_ROW else None
        return record if record is not None and record.created_ms == created_ms else None

    def partition(self, record: TopicRecord, index: int) -> Partition:
        """Return a partition of a topic; raise TopicNotFoundError if it has none of this number.

        A later topic of the same name is another one.
        """
        partition = None
        if 0 <= index < max(1, record.partitions):
            name = TopicName.parse(record.name)
            full = name.partition(index) if record.partitions else name
            partition = self.topics.opened(str(full))
        if partition is None or _identity(partition.topic) != _identity(record):
            raise TopicNotFoundError(f"there is no partition {index} of {record.name}")
        return partition

    def address(self, connection: ClientConnection) -> tuple[str, int]:
        """Return the host and port under which a client reaches the broker."""
        url = self._advertised.tls if connection.secure else self._advertised.plain
        if url:
            parts = urlsplit(url)
            return parts.hostname or "", parts.port or 0
        return connection.local_address or ("", 0)


def _identity(record: TopicRecord) -> tuple[int, int]:
    return record.id, record.created_ms
