"""Topics by their ids: in metadata, and where newer versions have ids instead of names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from router.broker.audit import AuditLog
from router.broker.kafka.failures import ErrorCode
from router.broker.kafka.session import sessions
from router.broker.topics.offsets import GroupOffsets
from router.model import TopicName
from tests.unit.broker.kafka.grouping import commit as committed
from tests.unit.broker.kafka.serving import KafkaClient, serving
from tests.unit.broker.kafka.test_fetch import records
from tests.unit.broker.kafka.test_produce import FULL, TOPIC, batch, on_topic, produced

UNKNOWN = b"\1" * 16


async def described(client: KafkaClient, version: int, **topic: Any) -> Any:
    asked = client.struct("MetadataRequest", "MetadataRequestTopic", **topic)
    answer = await client.ask("Metadata", version, topics=[asked])
    return answer.topics[0]


async def id_of(client: KafkaClient) -> bytes:
    return bytes((await described(client, 10, name=TOPIC)).topic_id)


@pytest.mark.parametrize("version", [12, 13])
async def test_a_topic_is_described_by_its_id(tmp_path: Path, version: int) -> None:
    async with on_topic(tmp_path) as (_, client):
        known = await id_of(client)
        assert known != bytes(16)
        found = await described(client, version, name=None, topic_id=known)
        assert (found.error_code, found.name, found.topic_id) == (0, TOPIC, known)
        missing = await described(client, version, name=None, topic_id=UNKNOWN)
        assert (missing.error_code, missing.name) == (ErrorCode.UNKNOWN_TOPIC_ID, None)


async def test_an_id_without_a_name_is_refused_before_names_may_be_null(tmp_path: Path) -> None:
    async with on_topic(tmp_path) as (_, client):
        missing = await described(client, 11, name=None, topic_id=UNKNOWN)
        assert (missing.error_code, missing.name) == (ErrorCode.UNKNOWN_TOPIC_ID, "")


@pytest.mark.parametrize("version", range(13, 19))
async def test_batches_are_stored_and_read_by_the_id(tmp_path: Path, version: int) -> None:
    async with on_topic(tmp_path) as (server, client):
        known = await id_of(client)

        async def sent(topic_id: bytes) -> tuple[int, int]:
            part = client.struct("ProduceRequest", "PartitionProduceData", records=batch(2))
            data = client.struct(
                "ProduceRequest", "TopicProduceData", topic_id=topic_id, partition_data=[part]
            )
            answer = await client.ask("Produce", 13, acks=-1, timeout_ms=1, topic_data=[data])
            assert answer.responses[0].topic_id == topic_id
            found = answer.responses[0].partition_responses[0]
            return found.error_code, found.base_offset

        async def read(topic_id: bytes) -> Any:
            part = client.struct("FetchRequest", "FetchPartition", partition_max_bytes=1 << 20)
            topic = client.struct(
                "FetchRequest", "FetchTopic", topic_id=topic_id, partitions=[part]
            )
            answer = await client.ask(
                "Fetch", version, max_wait_ms=10_000, min_bytes=1, topics=[topic]
            )
            assert answer.responses[0].topic_id == topic_id
            return answer.responses[0].partitions[0]

        assert await sent(known) == (0, 0)
        assert await sent(UNKNOWN) == (ErrorCode.UNKNOWN_TOPIC_ID, -1)
        assert [offset for offset, _ in records(await read(known))] == [0, 1]
        assert (await read(UNKNOWN)).error_code == ErrorCode.UNKNOWN_TOPIC_ID
        await server.topics.delete(TopicName.parse(FULL))
        assert (await read(known)).error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert (await sent(known))[0] == ErrorCode.UNKNOWN_TOPIC_ID


async def test_topics_are_deleted_by_name_or_id(tmp_path: Path) -> None:
    async with on_topic(tmp_path) as (server, client):
        await server.topics.create(TopicName.parse("other"))
        known = await id_of(client)
        asked = [
            client.struct("DeleteTopicsRequest", "DeleteTopicState", **topic)
            for topic in (
                {"name": None, "topic_id": known},
                {"name": "other"},
                {"name": None, "topic_id": UNKNOWN},
            )
        ]
        answer = await client.ask("DeleteTopics", 6, topics=asked, timeout_ms=1_000)
        assert [(one.name, one.error_code) for one in answer.responses] == [
            (TOPIC, 0),
            ("other", 0),
            (None, ErrorCode.UNKNOWN_TOPIC_ID),
        ]
        assert server.topics.count == 0


async def test_an_id_is_kept(tmp_path: Path) -> None:
    async with on_topic(tmp_path) as (_, client):
        assert await id_of(client) == await id_of(client)
        assert (await produced(client, batch())).error_code == 0


async def test_offsets_are_committed_and_fetched_by_the_id(tmp_path: Path) -> None:
    async with on_topic(tmp_path) as (server, _):
        audit = AuditLog(tmp_path, lambda: 1)
        opened = await sessions(replace(server.context.broker, audit=audit))
        server.context = replace(server.context, open_sessions=lambda _: opened)
        client = server.client()
        known = await id_of(client)

        async def committed(topic_id: bytes) -> int:
            part = client.struct(
                "OffsetCommitRequest",
                "OffsetCommitRequestPartition",
                committed_offset=7,
                committed_metadata="",
            )
            topic = client.struct(
                "OffsetCommitRequest",
                "OffsetCommitRequestTopic",
                topic_id=topic_id,
                partitions=[part],
            )
            (found,) = (await client.ask("OffsetCommit", 10, group_id="g", topics=[topic])).topics
            assert found.topic_id == topic_id
            return int(found.partitions[0].error_code)

        async def fetched(*ids: bytes) -> list[tuple[bytes, int, int]]:
            topics = [
                client.struct(
                    "OffsetFetchRequest",
                    "OffsetFetchRequestTopics",
                    topic_id=topic_id,
                    partition_indexes=[0],
                )
                for topic_id in ids
            ]
            group = client.struct(
                "OffsetFetchRequest",
                "OffsetFetchRequestGroup",
                group_id="g",
                topics=topics or None,
            )
            (found,) = (await client.ask("OffsetFetch", 10, groups=[group])).groups
            parts = [(one.topic_id, one.partitions[0]) for one in found.topics]
            return [(topic, part.committed_offset, part.error_code) for topic, part in parts]

        assert await committed(known) == 0
        assert await committed(UNKNOWN) == ErrorCode.UNKNOWN_TOPIC_ID
        unknown = UNKNOWN, -1, ErrorCode.UNKNOWN_TOPIC_ID
        assert await fetched(known, UNKNOWN) == [(known, 7, 0), unknown]
        assert await fetched() == [(known, 7, 0)]
        await audit.written()
        (change,) = await audit.newest(9)
        assert (change["action"], change["target"]) == ("reset-group", TOPIC)


async def test_a_commit_is_not_of_a_topic_that_came_in_the_place_of_the_one_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = TopicName.parse("persistent://public/default/shared")
    commit = GroupOffsets.commit
    async with serving(tmp_path) as server:

        async def replaced(*arguments: Any) -> None:
            await commit(*arguments)
            monkeypatch.undo()
            await server.topics.delete(name)
            await server.topics.create(name, 2)

        await server.topics.create(name, 2)
        client = server.client()
        monkeypatch.setattr(GroupOffsets, "commit", replaced)
        codes = await committed(client, {0: 0, 1: 0}, topic="shared")
        assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await committed(client, {0: 0, 1: 0}, topic="shared") == [0, 0]


async def test_a_group_that_is_missing_is_an_error_of_newer_descriptions(tmp_path: Path) -> None:
    async with on_topic(tmp_path) as (_, client):
        for version in range(7):
            (found,) = (await client.ask("DescribeGroups", version, groups=["none"])).groups
            assert found.group_state == "Dead"
            if version < 6:
                assert found.error_code == 0
                continue
            assert found.error_code == ErrorCode.GROUP_ID_NOT_FOUND
            assert found.error_message == "Group none not found."
