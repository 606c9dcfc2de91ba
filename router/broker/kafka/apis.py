"""The table of the APIs that the Kafka listener serves; what is not here is not advertised."""

from __future__ import annotations

from typing import Final

from router.broker.kafka.alter_configs import ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS
from router.broker.kafka.api_versions import API_VERSIONS
from router.broker.kafka.client import KafkaApi
from router.broker.kafka.cluster_administration import APIS as CLUSTER_ADMINISTRATION
from router.broker.kafka.consumer_groups import (
    CONSUMER_GROUP_DESCRIBE,
    CONSUMER_GROUP_HEARTBEAT,
)
from router.broker.kafka.create_partitions import CREATE_PARTITIONS
from router.broker.kafka.create_topics import CREATE_TOPICS
from router.broker.kafka.delete_records import DELETE_RECORDS
from router.broker.kafka.delete_topics import DELETE_TOPICS
from router.broker.kafka.describe_cluster import DESCRIBE_CLUSTER
from router.broker.kafka.describe_configs import DESCRIBE_CONFIGS, LIST_CONFIG_RESOURCES
from router.broker.kafka.describe_log_dirs import DESCRIBE_LOG_DIRS
from router.broker.kafka.describe_producers import DESCRIBE_PRODUCERS
from router.broker.kafka.describe_scram_credentials import DESCRIBE_USER_SCRAM_CREDENTIALS
from router.broker.kafka.describe_topic_partitions import DESCRIBE_TOPIC_PARTITIONS
from router.broker.kafka.fetch import FETCH
from router.broker.kafka.find_coordinator import FIND_COORDINATOR
from router.broker.kafka.group_administration import DELETE_GROUPS, DESCRIBE_GROUPS, LIST_GROUPS
from router.broker.kafka.group_membership import HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP
from router.broker.kafka.group_offsets import OFFSET_COMMIT, OFFSET_DELETE, OFFSET_FETCH
from router.broker.kafka.init_producer_id import INIT_PRODUCER_ID
from router.broker.kafka.list_offsets import LIST_OFFSETS
from router.broker.kafka.metadata import METADATA
from router.broker.kafka.offset_for_leader_epoch import OFFSET_FOR_LEADER_EPOCH
from router.broker.kafka.produce import PRODUCE
from router.broker.kafka.sasl import SASL_AUTHENTICATE, SASL_HANDSHAKE
from router.broker.kafka.transaction_markers import WRITE_TXN_MARKERS
from router.broker.kafka.transactions import APIS as TRANSACTIONS

APIS: Final[tuple[KafkaApi, ...]] = (
    PRODUCE,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    FIND_COORDINATOR,
    JOIN_GROUP,
    HEARTBEAT,
    LEAVE_GROUP,
    SYNC_GROUP,
    DESCRIBE_GROUPS,
    LIST_GROUPS,
    CONSUMER_GROUP_HEARTBEAT,
    CONSUMER_GROUP_DESCRIBE,
    SASL_HANDSHAKE,
    API_VERSIONS,
    INIT_PRODUCER_ID,
    OFFSET_FOR_LEADER_EPOCH,
    SASL_AUTHENTICATE,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DELETE_RECORDS,
    DESCRIBE_CONFIGS,
    ALTER_CONFIGS,
    CREATE_PARTITIONS,
    INCREMENTAL_ALTER_CONFIGS,
    DESCRIBE_CLUSTER,
    DELETE_GROUPS,
    OFFSET_DELETE,
    DESCRIBE_LOG_DIRS,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    DESCRIBE_PRODUCERS,
    LIST_CONFIG_RESOURCES,
    DESCRIBE_TOPIC_PARTITIONS,
    *CLUSTER_ADMINISTRATION,
    *TRANSACTIONS,
    WRITE_TXN_MARKERS,
)
