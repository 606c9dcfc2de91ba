"""What consoles, exporters and Kafka's own tools ask of a cluster: true answers and clear refusals.

The expected values were compared with Apache Kafka 4.3.1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from router.access.scram import ITERATIONS
from router.broker.kafka.context import NODE_ID
from router.broker.kafka.failures import ErrorCode
from router.model import TopicName
from tests.unit.broker.kafka.serving import KafkaClient, serving
from tests.unit.broker.kafka.test_produce import batch, produced
from tests.unit.broker.kafka.test_sasl import guarded_server, login
from tests.unit.broker.kafka.test_topic_administration import create, new
from tests.unit.broker.kafka.transacting import TransactionalClient

NOT_LOCAL = ("192.0.2.1", 1)
MISSING = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
FORBIDDEN = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def pages(client: KafkaClient, limit: int, *names: str) -> list[list[tuple[str, list[int]]]]:
    """Return the pages of a description: topics with the numbers of partitions."""
    found, cursor = [], None
    topics = [
        client.struct("DescribeTopicPartitionsRequest", "TopicRequest", name=n) for n in names
    ]
    while True:
        answer = await client.ask(
            "DescribeTopicPartitions",
            0,
            topics=topics,
            response_partition_limit=limit,
            cursor=cursor,
        )
        found.append(
            [(topic.name, [p.partition_index for p in topic.partitions]) for topic in answer.topics]
        )
        if answer.next_cursor is None:
            return found
        cursor = client.struct(
            "DescribeTopicPartitionsRequest",
            "Cursor",
            topic_name=answer.next_cursor.topic_name,
            partition_index=answer.next_cursor.partition_index,
        )


async def test_partitions_are_described_in_pages(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        client = server.client()
        await create(client, new(client, "b", 3), new(client, "a"), new(client, "c", 2))
        assert await pages(client, 2) == [
            [("a", [0]), ("b", [0])],
            [("b", [1, 2])],
            [("c", [0, 1])],
        ]
        assert await pages(client, 2_000, "c", "missing", "a") == [
            [("a", [0]), ("c", [0, 1]), ("missing", [])]
        ]
        assert len(await pages(client, 0, "c")) == 2
        topics = [client.struct("DescribeTopicPartitionsRequest", "TopicRequest", name="b")]
        (topic,) = (await client.ask("DescribeTopicPartitions", 0, topics=topics)).topics
        assert (topic.error_code, topic.topic_id) != (0, bytes(16))
        (first, *_) = topic.partitions
        assert (first.leader_id, first.leader_epoch) == (NODE_ID, 0)
        assert [*first.replica_nodes] == [*first.isr_nodes] == [NODE_ID]
        assert [*first.offline_replicas] == []
        (topic,) = (
            await client.ask(
                "DescribeTopicPartitions",
                0,
                topics=[client.struct("DescribeTopicPartitionsRequest", "TopicRequest", name="no")],
            )
        ).topics
        assert topic.error_code == MISSING


@pytest.mark.parametrize("version", range(1, 5))
async def test_sizes_of_partitions_are_described(tmp_path: Path, version: int) -> None:
    async with serving(tmp_path) as server:
        client, request = server.client(), "DescribeLogDirsRequest"
        await create(client, new(client, "t", 2), new(client, "u"))
        await produced(client, batch(3))

        async def sizes(topics: Any) -> dict[tuple[str, int], int]:
            answer = await client.ask("DescribeLogDirs", version, topics=topics)
            (folder,) = answer.results
            assert (answer.error_code, folder.error_code) == (0, 0)
            assert folder.log_dir == str(tmp_path / "data")
            if version >= 4:
                assert 0 < folder.usable_bytes < folder.total_bytes
            return {
                (topic.name, partition.partition_index): partition.partition_size
                for topic in folder.topics
                for partition in topic.partitions
            }

        found = await sizes(None)
        assert found.keys() == {("t", 0), ("t", 1), ("u", 0)}
        assert found["t", 0] >= len(batch(3))
        assert found["t", 1] == found["u", 0] == 0
        named = [
            client.struct(request, "DescribableLogDirTopic", topic=name, partitions=[0, 9])
            for name in ("t", "missing")
        ]
        assert await sizes(named) == {("t", 0): found["t", 0]}
        assert await sizes([]) == {}
        stranger = server.client(NOT_LOCAL)
        refused = await stranger.ask("DescribeLogDirs", version, topics=None)
        assert [*refused.results] == []
        if version >= 3:
            assert refused.error_code == FORBIDDEN


async def test_acls_are_neither_shown_nor_taken(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        client = server.client()
        shown = await client.ask("DescribeAcls", 3, operation=1, permission_type=1)
        creations = [client.struct("CreateAclsRequest", "AclCreation", resource_type=2)]
        (created,) = (await client.ask("CreateAcls", 3, creations=creations)).results
        filters = [client.struct("DeleteAclsRequest", "DeleteAclsFilter", resource_type_filter=2)]
        (deleted,) = (await client.ask("DeleteAcls", 3, filters=filters)).filter_results
        for found in (shown, created, deleted):
            assert found.error_code == ErrorCode.SECURITY_DISABLED
            assert "permissions of its own" in found.error_message


@pytest.mark.parametrize("version", [0, 1])
async def test_there_are_no_quotas(tmp_path: Path, version: int) -> None:
    async with serving(tmp_path) as server:
        client, name = server.client(), "DescribeClientQuotasRequest"
        for kind, code in (("user", 0), ("shoe size", ErrorCode.UNSUPPORTED_VERSION)):
            component = client.struct(name, "ComponentData", entity_type=kind, match_type=2)
            answer = await client.ask("DescribeClientQuotas", version, components=[component])
            assert answer.error_code == code
            assert [*(answer.entries or ())] == []


@pytest.mark.parametrize("version", range(3))
async def test_the_only_broker_stays_the_leader(tmp_path: Path, version: int) -> None:
    async with serving(tmp_path) as server:
        client, name = server.client(), "ElectLeadersRequest"
        await create(client, new(client, "t", 2))
        topics = [
            client.struct(name, "TopicPartitions", topic=topic, partitions=[1, 9])
            for topic in ("t", "missing")
        ]
        answer = await client.ask("ElectLeaders", version, topic_partitions=topics)
        codes = {
            (topic.topic, partition.partition_id): partition.error_code
            for topic in answer.replica_election_results
            for partition in topic.partition_result
        }
        assert codes == {
            ("t", 1): ErrorCode.ELECTION_NOT_NEEDED,
            ("t", 9): MISSING,
            ("missing", 1): MISSING,
            ("missing", 9): MISSING,
        }
        every = await client.ask("ElectLeaders", version, topic_partitions=None)
        assert [*every.replica_election_results] == []
        moved = await client.ask("ListPartitionReassignments", 0, topics=None)
        assert (moved.error_code, [*moved.topics]) == (0, [])


async def test_a_state_and_a_transactional_id_that_are_not_known_are_named(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        client = server.client()
        for version in range(2):
            answer = await client.ask("ListTransactions", version, state_filters=["Dead", "Alive"])
            assert (answer.error_code, [*answer.transaction_states]) == (0, [])
            assert [*answer.unknown_state_filters] == ["Alive"]
        described = await client.ask("DescribeTransactions", 0, transactional_ids=["x"])
        (found,) = described.transaction_states
        assert found.transactional_id == "x"
        assert found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


async def test_idempotent_producers_are_described(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        client = server.client()
        await server.topics.create(TopicName.parse("persistent://public/default/t"))
        await produced(client, batch(2))
        for producer, epoch, sequences in ((7, 1, (0, 3, 6)), (6, 0, (0,))):
            for first in sequences:
                sent = batch(3, producer=(producer, epoch, first))
                assert (await produced(client, sent)).error_code == 0
        topics = [
            client.struct(
                "DescribeProducersRequest", "TopicRequest", name=n, partition_indexes=[0, 9]
            )
            for n in ("t", "missing")
        ]
        answer = await client.ask("DescribeProducers", 0, topics=topics)
        (here, beyond), missing = (topic.partitions for topic in answer.topics)
        assert [found.error_code for found in (here, beyond, *missing)] == [0, *3 * [MISSING]]
        shown = [
            (found.producer_id, found.producer_epoch, found.last_sequence)
            for found in here.active_producers
        ]
        assert shown == [(6, 0, 2), (7, 1, 8)]
        assert {found.last_timestamp for found in here.active_producers} == {1_700_000_000_000}
        assert {found.current_txn_start_offset for found in here.active_producers} == {-1}


async def test_what_costs_more_than_its_name_is_answered_once(tmp_path: Path) -> None:
    """Producers of a partition, parts of a transaction, positions of a group, configs."""
    async with serving(tmp_path) as server:
        client = server.client()
        await server.topics.create(TopicName.parse("persistent://public/default/t"))
        producer = TransactionalClient(client, "p")
        assert await producer.init() == 0
        described = await client.ask("DescribeTransactions", 0, transactional_ids=["p"] * 9)
        assert [one.transactional_id for one in described.transaction_states] == ["p"]
        topic = client.struct(
            "DescribeProducersRequest", "TopicRequest", name="t", partition_indexes=[0, 9, 0]
        )
        (found,) = (await client.ask("DescribeProducers", 0, topics=[topic] * 9)).topics
        assert [one.partition_index for one in found.partitions] == [0, 9]
        group = client.struct("OffsetFetchRequest", "OffsetFetchRequestGroup", group_id="g")
        group.topics = None
        fetched = await client.ask("OffsetFetch", 8, groups=[group] * 9)
        assert [one.group_id for one in fetched.groups] == ["g"]
        names = ["t", "other"]
        groups = [of_topic(client, name) for name in names]
        fetched = await client.ask("OffsetFetch", 8, groups=groups)
        assert [one.topics[0].name for one in fetched.groups] == names
        configs = client.struct(
            "DescribeConfigsRequest", "DescribeConfigsResource", resource_type=2, resource_name="t"
        )
        configs.configuration_keys = None
        found = (await client.ask("DescribeConfigs", 4, resources=[configs] * 9)).results
        assert [one.resource_name for one in found] == ["t"]


def of_topic(client: KafkaClient, topic: str) -> Any:
    """Return what asks for a position of the group g on one topic."""
    group = client.struct("OffsetFetchRequest", "OffsetFetchRequestGroup", group_id="g")
    group.topics = [
        client.struct(
            "OffsetFetchRequest", "OffsetFetchRequestTopics", name=topic, partition_indexes=[0]
        )
    ]
    return group


async def test_resources_with_configs_are_listed(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        client = server.client()
        await create(client, new(client, "t"))

        async def listed(version: int, *types: int) -> tuple[int, list[tuple[int, str]]]:
            how = {"resource_types": list(types)} if version else {}
            answer = await client.ask("ListConfigResources", version, **how)
            found = [(one.resource_type, one.resource_name) for one in answer.config_resources]
            return answer.error_code, found

        assert await listed(0) == (0, [])
        assert await listed(1) == (0, [(2, "t"), (4, str(NODE_ID))])
        assert await listed(1, 2) == (0, [(2, "t")])
        assert await listed(1, 16) == (0, [])
        assert await listed(1, 77) == (ErrorCode.UNSUPPORTED_VERSION, [])


async def test_users_of_scram_are_described_to_administrators(tmp_path: Path) -> None:
    async with guarded_server(tmp_path) as server:

        async def described(user: str, *names: str) -> Any:
            client = server.client(NOT_LOCAL)
            await login(client, user)
            struct = "DescribeUserScramCredentialsRequest"
            users = [client.struct(struct, "UserName", name=name) for name in names]
            return await client.ask("DescribeUserScramCredentials", 0, users=users or None)

        assert (await described("anna")).error_code == FORBIDDEN
        (found,) = (await described("root")).results
        assert found.user == "root"
        assert {(i.mechanism, i.iterations) for i in found.credential_infos} == {
            (1, ITERATIONS),
            (2, ITERATIONS),
        }
        results = (await described("root", "anna", "root", "no", "no")).results
        assert {result.user: result.error_code for result in results} == {
            "anna": ErrorCode.RESOURCE_NOT_FOUND,
            "root": 0,
            "no": ErrorCode.DUPLICATE_RESOURCE,
        }


async def test_topics_that_a_client_may_not_see_are_not_described(tmp_path: Path) -> None:
    async with guarded_server(tmp_path) as server:
        client = server.client(NOT_LOCAL)
        await login(client)
        assert await pages(client, 10) == [[("t", [0])]]
        assert await pages(client, 10, "hidden") == [[("hidden", [])]]
        listed = (await client.ask("ListConfigResources", 1, resource_types=[2])).config_resources
        assert [one.resource_name for one in listed] == ["t"]


async def test_a_cluster_without_users_has_none_of_scram(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        answer = await server.client().ask("DescribeUserScramCredentials", 0, users=None)
        assert (answer.error_code, [*answer.results]) == (0, [])
