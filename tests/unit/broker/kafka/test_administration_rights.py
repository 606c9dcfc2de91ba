"""Who may create, change and delete topics, and whose they are then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from router.access.authorizer import TOPIC_RECORDS, TopicRights
from router.wire.kafka.error_codes import ErrorCode
from tests.unit.broker.kafka.serving import KafkaClient
from tests.unit.broker.kafka.test_fetch import fetched, listed
from tests.unit.broker.kafka.test_produce import batch, produced
from tests.unit.broker.kafka.test_sasl import guarded_server, login
from tests.unit.broker.kafka.test_topic_administration import (
    BROKER,
    SET,
    alter,
    configs,
    create,
    new,
)

REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def deleted(client: KafkaClient, name: str) -> Any:
    answer = await client.ask("DeleteTopics", 5, topic_names=[name], timeout_ms=1_000)
    (result,) = answer.responses
    return result.error_code


async def test_topics_belong_to_who_created_them(tmp_path: Path) -> None:
    async with guarded_server(tmp_path) as server:
        client = server.client()
        await login(client)
        (made,) = (await create(client, new(client, "own.a"))).values()
        assert made.error_code == 0
        name = "persistent://public/default/own.a"
        registry = server.context.broker.registry
        record = await registry.get(TOPIC_RECORDS, name)
        assert record is not None
        assert TopicRights.load(record).owner == "anna"
        assert await deleted(client, "own.a") == 0
        assert await registry.get(TOPIC_RECORDS, name) is None


async def test_administration_needs_the_right_to_manage(tmp_path: Path) -> None:
    async with guarded_server(tmp_path) as server:
        client = server.client()
        await login(client)
        (made,) = (await create(client, new(client, "other"))).values()
        assert made.error_code == REFUSED
        assert await deleted(client, "t") == REFUSED
        assert (await alter(client, "t", ("retention.ms", SET, "1"))).error_code == REFUSED
        grown = client.struct(
            "CreatePartitionsRequest", "CreatePartitionsTopic", name="t", count=3, assignments=None
        )
        (result,) = (await client.ask("CreatePartitions", 3, topics=[grown])).results
        assert result.error_code == REFUSED
        before = client.struct("DeleteRecordsRequest", "DeleteRecordsPartition", offset=-1)
        asked = client.struct(
            "DeleteRecordsRequest", "DeleteRecordsTopic", name="t", partitions=[before]
        )
        (topic,) = (await client.ask("DeleteRecords", 2, topics=[asked])).topics
        assert [one.error_code for one in topic.partitions] == [REFUSED]
        assert (await configs(client, "t")).error_code == 0
        assert (await configs(client, "hidden")).error_code == REFUSED
        refused = await configs(client, "1", BROKER)
        assert refused.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert server.topics.count == 2


@pytest.mark.parametrize("name", ["hidden", "missing"])
async def test_who_may_not_see_a_topic_does_not_learn_whether_it_is_there(
    tmp_path: Path, name: str
) -> None:
    async with guarded_server(tmp_path) as server:
        client = server.client()
        await login(client)
        assert await deleted(client, name) == REFUSED
        assert (await alter(client, name, ("retention.ms", SET, "1"))).error_code == REFUSED
        assert (await configs(client, name)).error_code == REFUSED
        assert (await listed(client, -1, topic=name)).error_code == REFUSED
        assert (await fetched(client, 0, topic=name)).error_code == REFUSED
        assert (await produced(client, batch(), topic=name)).error_code == REFUSED
        for api, version, struct, fields in (
            ("CreatePartitions", 3, "CreatePartitionsTopic", {"name": name, "assignments": None}),
            ("Metadata", 9, "MetadataRequestTopic", {"name": name}),
        ):
            asked = client.struct(f"{api}Request", struct, **fields)
            answer = await client.ask(api, version, topics=[asked])
            (found,) = answer.topics if api == "Metadata" else answer.results
            assert found.error_code == REFUSED
        for api, version, topic, part in (
            ("DeleteRecords", 2, "DeleteRecordsTopic", "DeleteRecordsPartition"),
            ("OffsetForLeaderEpoch", 4, "OffsetForLeaderTopic", "OffsetForLeaderPartition"),
        ):
            parts = [client.struct(f"{api}Request", part)]
            named = {"topic" if version == 4 else "name": name, "partitions": parts}
            asked = client.struct(f"{api}Request", topic, **named)
            (found,) = (await client.ask(api, version, topics=[asked])).topics
            assert [one.error_code for one in found.partitions] == [REFUSED]
