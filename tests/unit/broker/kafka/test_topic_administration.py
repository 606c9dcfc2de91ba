"""Topics are created, grown, changed and deleted by Kafka clients, as they may."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from router.access.authorizer import TOPIC_RECORDS, TopicRights
from router.broker.kafka.context import NODE_ID
from router.broker.kafka.failures import ErrorCode
from router.broker.storage import KAFKA_FORMAT
from router.model import TopicName
from router.model.policies import Policies
from tests.unit.broker.kafka.serving import KafkaClient, serving

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)


def new(client: KafkaClient, name: str, partitions: int = 1, **fields: Any) -> Any:
    configs = [
        client.struct("CreateTopicsRequest", "CreatableTopicConfig", name=key, value=value)
        for key, value in fields.pop("configs", {}).items()
    ]
    fields = {"replication_factor": 1} | fields
    return client.struct(
        "CreateTopicsRequest",
        "CreatableTopic",
        name=name,
        num_partitions=partitions,
        configs=configs,
        **fields,
    )


async def create(client: KafkaClient, *topics: Any, version: int = 7, **fields: Any) -> Any:
    fields = {"timeout_ms": 10_000} | fields
    answer = await client.ask("CreateTopics", version, topics=list(topics), **fields)
    return {topic.name: topic for topic in answer.topics}


async def alter(client: KafkaClient, topic: str, *configs: tuple[str, int, str | None]) -> Any:
    """Alter configs one by one: name, operation, value."""
    name = "IncrementalAlterConfigsRequest"
    structs = [
        client.struct(name, "AlterableConfig", name=key, config_operation=operation, value=value)
        for key, operation, value in configs
    ]
    resource = client.struct(
        name, "AlterConfigsResource", resource_type=TOPIC, resource_name=topic, configs=structs
    )
    answer = await client.ask("IncrementalAlterConfigs", 1, resources=[resource])
    (result,) = answer.responses
    return result


async def configs(client: KafkaClient, name: str, kind: int = TOPIC, **fields: Any) -> Any:
    request = "DescribeConfigsRequest"
    keys = fields.pop("configuration_keys", None)
    resource = client.struct(
        request,
        "DescribeConfigsResource",
        resource_type=kind,
        resource_name=name,
        configuration_keys=keys,
    )
    answer = await client.ask("DescribeConfigs", 4, resources=[resource], **fields)
    (result,) = answer.results
    return result


@pytest.mark.parametrize("version", range(2, 8))
async def test_topics_are_created_with_partitions_and_policies(
    tmp_path: Path, version: int
) -> None:
    async with serving(tmp_path) as server:
        client = server.client()
        wanted = {"retention.ms": "1000", "retention.bytes": "-1", "cleanup.policy": "delete"}
        asked = new(client, "a.b", 3, configs=wanted)
        found = await create(client, asked, new(client, "one"), version=version)
        assert [topic.error_code for topic in found.values()] == [0, 0]
        record = server.topics.find("a.b")
        assert record is not None
        assert (record.partitions, record.policies) == (
            3,
            Policies(1_000, -1, cleanup_policy="delete"),
        )
        if version >= 5:
            assert (found["a.b"].num_partitions, found["a.b"].replication_factor) == (3, 1)
            values = {config.name: config.value for config in found["a.b"].configs}
            assert values["retention.ms"] == "1000"


REFUSED: list[tuple[dict[str, Any], ErrorCode]] = [
    ({"name": "a b"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ({"name": "x-partition-0"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ({"name": "there"}, ErrorCode.TOPIC_ALREADY_EXISTS),
    ({"partitions": 0}, ErrorCode.INVALID_PARTITIONS),
    ({"partitions": -2}, ErrorCode.INVALID_PARTITIONS),
    ({"partitions": 1_001}, ErrorCode.INVALID_PARTITIONS),
    ({"replication_factor": 2}, ErrorCode.INVALID_REPLICATION_FACTOR),
    ({"configs": {"cleanup.policy": "compress"}}, ErrorCode.INVALID_CONFIG),
    ({"configs": {"cleanup.policy": ""}}, ErrorCode.INVALID_CONFIG),
    ({"configs": {"min.insync.replicas": "2"}}, ErrorCode.INVALID_CONFIG),
    ({"configs": {"compression.type": "lz4"}}, ErrorCode.INVALID_CONFIG),
    ({"configs": {"message.timestamp.type": "LogAppendTime"}}, ErrorCode.INVALID_CONFIG),
    ({"configs": {"remote.storage.enable": "true"}}, ErrorCode.INVALID_CONFIG),
    ({"configs": {"max.message.bytes": "999999999"}}, ErrorCode.INVALID_CONFIG),
    ({"configs": {"segment.bytes": "13"}}, ErrorCode.INVALID_CONFIG),
    ({"configs": {"preallocate": "yes"}}, ErrorCode.INVALID_CONFIG),
    ({"configs": {"min.cleanable.dirty.ratio": "1.1"}}, ErrorCode.INVALID_CONFIG),
    (
        {"configs": {"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"}},
        ErrorCode.INVALID_CONFIG,
    ),
    ({"configs": {"retention.ms": "-2"}}, ErrorCode.INVALID_CONFIG),
    ({"configs": {"retention.ms": "1" * 30}}, ErrorCode.INVALID_CONFIG),
    ({"configs": {"retention.ms": "soon"}}, ErrorCode.INVALID_CONFIG),
    ({"configs": {"no.such": "1"}}, ErrorCode.INVALID_CONFIG),
]


@pytest.mark.parametrize("validate_only", [False, True])
async def test_topics_that_cannot_be_are_refused(tmp_path: Path, validate_only: bool) -> None:
    async with serving(tmp_path) as server:
        client = server.client()
        await server.topics.create(TopicName.parse("persistent://public/default/there"))
        for changes, code in REFUSED:
            asked = new(client, **({"name": "x"} | changes))
            (result,) = (await create(client, asked, validate_only=validate_only)).values()
            assert result.error_code == code, changes
            assert result.error_message
        assert server.topics.count == 1


async def test_a_topic_that_is_only_validated_is_not_created(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        client = server.client()
        (result,) = (await create(client, new(client, "x"), validate_only=True)).values()
        assert (result.error_code, result.num_partitions) == (0, 1)
        assert server.topics.count == 0


async def test_replicas_are_at_the_broker(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        client = server.client()

        def assigned(name: str, *brokers: tuple[int, ...], **fields: Any) -> Any:
            request, struct = "CreateTopicsRequest", "CreatableReplicaAssignment"
            places = [
                client.struct(request, struct, partition_index=index, broker_ids=ids)
                for index, ids in enumerate(brokers)
            ]
            fields = {"partitions": -1, "replication_factor": -1} | fields
            return new(client, name, assignments=places, **fields)

        found = await create(
            client,
            assigned("good", (NODE_ID,), (NODE_ID,)),
            assigned("bad", (NODE_ID + 1,)),
            assigned("both", (NODE_ID,), partitions=1),
        )
        assert [topic.error_code for topic in found.values()] == [
            0,
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            ErrorCode.INVALID_REQUEST,
        ]
        assert found["good"].num_partitions == 2


async def test_a_topic_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        client = server.client()
        (result,) = (await create(client, new(client, "x"), new(client, "x", 2))).values()
        assert result.error_code == ErrorCode.INVALID_REQUEST
        assert server.topics.count == 0


async def test_a_new_topic_has_no_owner_of_an_earlier_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        client, name = server.client(), "persistent://public/default/x"
        registry = server.context.broker.registry
        await registry.put(TOPIC_RECORDS, name, TopicRights("earlier").dump(), None)
        await create(client, new(client, "x"))
        assert await registry.get(TOPIC_RECORDS, name) is None


@pytest.mark.parametrize("version", range(1, 6))
async def test_topics_are_deleted_with_their_records(tmp_path: Path, version: int) -> None:
    async with serving(tmp_path) as server:
        client, name = server.client(), "persistent://public/default/x"
        await create(client, new(client, "x", 2))
        registry = server.context.broker.registry
        await registry.put(TOPIC_RECORDS, name, TopicRights("o").dump(), None)
        answer = await client.ask(
            "DeleteTopics", version, topic_names=["x", "missing"], timeout_ms=1_000
        )
        found = {result.name: result.error_code for result in answer.responses}
        assert found == {"x": 0, "missing": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert server.topics.count == 0
        assert await registry.get(TOPIC_RECORDS, name) is None


@pytest.mark.parametrize("version", range(4))
async def test_topics_get_more_partitions(tmp_path: Path, version: int) -> None:
    async with serving(tmp_path) as server:
        client = server.client()
        await server.topics.create(TopicName.parse("persistent://public/default/plain"))
        await create(client, new(client, "x", 1))
        request, struct = "CreatePartitionsRequest", "CreatePartitionsTopic"

        async def grow(name: str, count: int, **fields: Any) -> int:
            asked = client.struct(request, struct, name=name, count=count, assignments=None)
            answer = await client.ask("CreatePartitions", version, topics=[asked], **fields)
            (result,) = answer.results
            return int(result.error_code)

        assert await grow("x", 3, validate_only=True) == 0
        assert await grow("x", 1) == ErrorCode.INVALID_PARTITIONS
        assert await grow("x", 3) == 0
        assert await grow("x", 3) == ErrorCode.INVALID_PARTITIONS
        assert await grow("x", 9_999) == ErrorCode.INVALID_PARTITIONS
        assert await grow("plain", 3) == ErrorCode.INVALID_PARTITIONS
        assert await grow("missing", 3) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        record = server.topics.find("x")
        assert record is not None
        assert record.partitions == 3


async def test_configs_of_a_topic_are_described_and_altered(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        client = server.client()
        await create(client, new(client, "x"))
        before = {c.name: c for c in (await configs(client, "x")).configs}
        assert before["retention.ms"].value == str(7 * 86_400_000)
        read_only = {name for name, config in before.items() if config.read_only}
        assert read_only == {
            *("compression.type", "message.timestamp.type", "min.insync.replicas"),
            "remote.storage.enable",
        }
        assert (await alter(client, "x", ("retention.ms", SET, "60000"))).error_code == 0
        (changed,) = (await configs(client, "x", configuration_keys=["retention.ms"])).configs
        assert (changed.value, changed.config_source) == ("60000", 1)
        assert (await alter(client, "x", ("retention.ms", DELETE, None))).error_code == 0
        (again,) = (await configs(client, "x", configuration_keys=["retention.ms"])).configs
        assert again.value == before["retention.ms"].value


COMPACTED = {
    "cleanup.policy": "compact,delete",
    "delete.retention.ms": "0",
    "max.compaction.lag.ms": str(2**63 - 1),
    "min.cleanable.dirty.ratio": "0.01",
    "min.compaction.lag.ms": "60000",
}
KEPT = {
    "compression.zstd.level": "-131072",
    "file.delete.delay.ms": "1",
    "flush.messages": "1",
    "flush.ms": "0",
    "index.interval.bytes": "0",
    "max.message.bytes": "1000",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "preallocate": "true",
    "segment.bytes": "52428800",
    "segment.index.bytes": "4",
    "segment.jitter.ms": "7",
    "segment.ms": "600000",
    "unclean.leader.election.enable": "true",
}
OWN = {
    "compression.type": "producer",
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "1",
    "remote.storage.enable": "false",
}


async def described(client: KafkaClient, name: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the configs that a topic has of its own, and all others."""
    found = (await configs(client, name)).configs
    own, others = (
        {c.name: c.value for c in found if (c.config_source == 1) is is_own}
        for is_own in (True, False)
    )
    return own, others


async def test_configs_are_kept_and_described_from_the_creation_on_or_later(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        client = server.client()
        found = await create(client, new(client, "x", configs=COMPACTED | KEPT | OWN))
        assert found["x"].error_code == 0, found["x"].error_message
        own, others = await described(client, "x")
        assert own == COMPACTED | KEPT
        assert others.items() >= OWN.items()
        record = server.topics.find("x")
        assert record is not None
        assert record.policies == Policies(
            cleanup_policy="compact,delete",
            delete_retention_ms=0,
            min_compaction_lag_ms=60_000,
            max_compaction_lag_ms=2**63 - 1,
            min_cleanable_dirty_ratio=0.01,
        )
        await create(client, new(client, "y"))
        changes = [(name, SET, value) for name, value in (COMPACTED | KEPT | OWN).items()]
        assert (await alter(client, "y", *changes)).error_code == 0
        assert await described(client, "y") == (own, others)
        assert (await alter(client, "y", *[(n, DELETE, None) for n, *_ in changes])).error_code == 0
        own, others = await described(client, "y")
        assert own == {}
        assert (others["cleanup.policy"], others["delete.retention.ms"]) == ("delete", "86400000")


async def test_cleanup_policies_are_added_and_taken_away(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        client = server.client()
        await create(client, new(client, "x"))
        for operation, value, expected in (
            (APPEND, "compact", "delete,compact"),
            (SUBTRACT, "delete", "compact"),
            (APPEND, "compact", "compact"),
        ):
            result = await alter(client, "x", ("cleanup.policy", operation, value))
            assert result.error_code == 0
            assert (await described(client, "x"))[0] == {"cleanup.policy": expected}


async def test_configs_that_mean_nothing_here_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        client = server.client()
        await create(client, new(client, "x"))
        for change in (
            ("cleanup.policy", SET, "compress"),
            ("cleanup.policy", SUBTRACT, "delete"),
            ("retention.ms", APPEND, "1"),
            ("min.insync.replicas", SET, "2"),
            ("retention.ms", SET, None),
            ("retention.ms", SET, "x"),
            ("unknown", DELETE, None),
        ):
            result = await alter(client, "x", ("retention.bytes", SET, "5"), change)
            assert result.error_code == ErrorCode.INVALID_CONFIG, change
            assert change[0] in result.error_message
        record = server.topics.find("x")
        assert record is not None
        assert record.policies == Policies()


async def test_altering_all_configs_gives_the_others_their_defaults(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        client, request = server.client(), "AlterConfigsRequest"
        await create(client, new(client, "x", configs={"retention.ms": "5"}))
        config = client.struct(request, "AlterableConfig", name="retention.bytes", value="7")
        resource = client.struct(
            request,
            "AlterConfigsResource",
            resource_type=TOPIC,
            resource_name="x",
            configs=[config],
        )
        for only, expected in ((True, Policies(5)), (False, Policies(None, 7))):
            answer = await client.ask("AlterConfigs", 2, resources=[resource], validate_only=only)
            assert [result.error_code for result in answer.responses] == [0]
            record = server.topics.find("x")
            assert record is not None
            assert record.policies == expected


async def test_configs_of_the_broker_are_read_only(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        client = server.client()
        found = await configs(client, str(NODE_ID), BROKER, include_documentation=True)
        assert {"num.partitions", "log.retention.ms"} <= {config.name for config in found.configs}
        assert all(config.read_only and config.documentation for config in found.configs)
        other = await configs(client, "2", BROKER)
        assert other.error_code == ErrorCode.INVALID_REQUEST
        missing = await configs(client, "missing")
        assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", [0, 1])
async def test_the_cluster_has_one_broker(tmp_path: Path, version: int) -> None:
    async with serving(tmp_path) as server:
        answer = await server.client().ask("DescribeCluster", version)
        (broker,) = answer.brokers
        assert (broker.broker_id, broker.host, broker.port) == (NODE_ID, "127.0.0.1", 2)
        assert (answer.controller_id, len(answer.cluster_id)) == (NODE_ID, 22)
        if version:
            refused = await server.client().ask("DescribeCluster", version, endpoint_type=2)
            assert refused.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE


@pytest.mark.parametrize("version", range(3))
async def test_records_before_an_offset_are_deleted(tmp_path: Path, version: int) -> None:
    async with serving(tmp_path) as server:
        client, request = server.client(), "DeleteRecordsRequest"
        await create(client, new(client, "x"))
        record = server.topics.find("x")
        assert record is not None
        (partition,) = server.topics.partitions(record)
        for _ in range(5):
            partition.ledger.append(b"entry", KAFKA_FORMAT, 2, 1, lambda _: None)
        await server.synced()

        async def delete(name: str, offset: int, index: int = 0) -> tuple[int, int]:
            asked = client.struct(
                request, "DeleteRecordsPartition", partition_index=index, offset=offset
            )
            topic = client.struct(request, "DeleteRecordsTopic", name=name, partitions=[asked])
            answer = await client.ask("DeleteRecords", version, topics=[topic], timeout_ms=1_000)
            ((result,),) = [topic.partitions for topic in answer.topics]
            return result.error_code, result.low_watermark

        assert await delete("missing", -1) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
        assert await delete("x", -1, index=1) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
        assert await delete("x", 11) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
        assert await delete("x", -2) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
        await alter(client, "x", ("cleanup.policy", SET, "compact"))
        assert await delete("x", 5) == (ErrorCode.POLICY_VIOLATION, -1)
        await alter(client, "x", ("cleanup.policy", SET, "compact,delete"))
        assert await delete("x", 5) == (0, 5)
        assert await delete("x", 4) == (0, 5)
        assert partition.ledger.messages == 5
        assert await delete("x", -1) == (0, 10)
        assert partition.ledger.messages == 0
        partition.ledger.append(b"entry", KAFKA_FORMAT, 3, 1, lambda _: None)
        await server.synced()
        assert (partition.ledger.first_number, partition.ledger.durable_number) == (10, 13)
        assert await delete("x", 13) == (0, 13)
