"""Topics as Metadata shows and creates them, with the names that Kafka clients know."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from router.broker.kafka.context import LEADER_EPOCH, NODE_ID
from router.broker.kafka.failures import ErrorCode
from router.model import TopicName
from router.settings import load
from tests.unit.broker.kafka.serving import KafkaClient, serving


async def described(client: KafkaClient, *names: str, version: int = 9, **fields: Any) -> Any:
    wanted = [client.struct("MetadataRequest", "MetadataRequestTopic", name=n) for n in names]
    return await client.ask("Metadata", version, topics=wanted, **fields)


@pytest.mark.parametrize("version", range(14))
async def test_all_topics_are_listed_by_their_kafka_names(tmp_path: Path, version: int) -> None:
    async with serving(tmp_path) as server:
        client = server.client()
        await server.topics.create(TopicName.parse("persistent://public/default/a.b.c"), 3)
        await server.topics.create(TopicName.parse("persistent://t/n/x"))
        answer = await client.ask("Metadata", version, topics=[] if version == 0 else None)
        found = {topic.name: topic for topic in answer.topics}
        assert {name: len(topic.partitions) for name, topic in found.items()} == {
            "a.b.c": 3,
            "t.n.x": 1,
        }
        partition = found["a.b.c"].partitions[2]
        assert (partition.partition_index, partition.leader_id) == (2, NODE_ID)
        assert (partition.replica_nodes, partition.isr_nodes) == ((NODE_ID,), (NODE_ID,))
        assert partition.leader_epoch == (LEADER_EPOCH if version >= 7 else -1)
        (broker,) = answer.brokers
        assert (broker.node_id, broker.host, broker.port) == (NODE_ID, "127.0.0.1", 2)


async def test_no_topics_are_none(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await server.topics.create(TopicName.parse("a"))
        assert (await described(server.client())).topics == []


async def test_a_topic_is_created_by_being_asked_for(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        client = server.client()
        missing = await described(client, "new", allow_auto_topic_creation=False)
        assert missing.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        made = await described(client, "new", "new", allow_auto_topic_creation=True)
        assert [(topic.error_code, topic.name) for topic in made.topics] == [(0, "new")]
        assert server.topics.find("persistent://public/default/new") is not None
        old = await described(client, "old", version=1)
        assert old.topics[0].error_code == 0


async def test_the_policy_of_creation_holds(tmp_path: Path) -> None:
    async with serving(
        tmp_path, settings=load(None, {"ROUTER_TOPICS_AUTO_CREATE": "false"})
    ) as server:
        answer = await described(server.client(), "new", allow_auto_topic_creation=True)
        assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("name", ["", "a/b", "ä", "x" * 250, "a-partition-0", "persistent://a/b/c"])
async def test_a_bad_name_is_refused(tmp_path: Path, name: str) -> None:
    async with serving(tmp_path) as server:
        answer = await described(server.client(), name, allow_auto_topic_creation=True)
        assert answer.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert answer.topics[0].name == name


def test_the_cluster_keeps_its_name(tmp_path: Path) -> None:
    async def cluster_id() -> str:
        async with serving(tmp_path) as server:
            answers = [server.client().ask("Metadata", 9, topics=None) for _ in range(3)]
            (found,) = {answer.cluster_id for answer in await asyncio.gather(*answers)}
            return str(found)

    first = asyncio.run(cluster_id())
    assert len(first) == 22
    assert asyncio.run(cluster_id()) == first


async def test_clients_are_sent_to_the_advertised_address(tmp_path: Path) -> None:

    settings = load(None, {"ROUTER_BROKER_KAFKA_ADVERTISED": "kafka://kafka.example:9000"})
    async with serving(tmp_path, settings=settings) as server:
        (broker,) = (await described(server.client())).brokers
        assert (broker.host, broker.port) == ("kafka.example", 9_000)
