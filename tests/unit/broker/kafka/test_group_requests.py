"""Groups by frames: joins, syncs, heartbeats and offsets of every version, and who is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from router.broker.consume import ClientConsumer, StartPosition, SubscriptionType
from router.broker.consume.membership.leases import ClaimRequest, ClaimUpdate
from router.broker.storage import Ack
from router.broker.topics.groups import TopicSubscriptions
from router.errors import SubscriptionBusyError
from router.wire.kafka.error_codes import ErrorCode
from tests.unit.broker.consume.dispatch.bench import Notes
from tests.unit.broker.kafka.grouping import (
    TOPIC,
    alone,
    assignment,
    commit,
    fetch,
    join,
    joining,
    run,
    subscription,
    sync,
)
from tests.unit.broker.kafka.serving import KafkaClient, KafkaServer


class Worker:
    """A worker that polls over HTTP."""

    name = "worker"

    def claim_updated(self, claim_id: int, update: ClaimUpdate) -> None:
        """Take the update of a claim."""


@pytest.mark.parametrize("version", range(10))
def test_a_member_joins_syncs_beats_and_leaves(tmp_path: Path, version: int) -> None:
    async def test(server: KafkaServer) -> None:
        client = server.client()
        joined = await join(client, version)
        assert (joined.error_code, joined.generation_id) == (0, 1)
        assert joined.leader == joined.member_id
        assert [member.metadata for member in joined.members] == [subscription("orders")]
        synced = await sync(client, joined, {joined.member_id: b"mine"}, min(version, 5))
        assert (synced.error_code, synced.assignment) == (0, b"mine")
        # Of version 0 the answers are smaller than the smallest request that a reader takes.
        beats = min(max(version, 1), 4)
        of_group = {"group_id": "g", "member_id": joined.member_id}
        beat = await client.ask("Heartbeat", beats, generation_id=1, **of_group)
        assert beat.error_code == 0
        stale = await client.ask("Heartbeat", beats, generation_id=7, **of_group)
        assert stale.error_code == ErrorCode.ILLEGAL_GENERATION
        if version < 3:
            left = await client.ask("LeaveGroup", max(version, 1), **of_group)
        else:
            one = client.struct("LeaveGroupRequest", "MemberIdentity", member_id=joined.member_id)
            left = await client.ask("LeaveGroup", min(version, 5), group_id="g", members=[one])
            assert [member.error_code for member in left.members] == [0]
        assert left.error_code == 0
        gone = await client.ask("Heartbeat", beats, generation_id=1, **of_group)
        assert gone.error_code == ErrorCode.UNKNOWN_MEMBER_ID

    run(tmp_path, test)


def test_two_members_share_the_group(tmp_path: Path) -> None:
    async def test(server: KafkaServer) -> None:
        first, second = server.client(), server.client()
        one = await alone(first)
        two = asyncio.create_task(join(second))
        async with asyncio.timeout(20):
            while (await beating(first, one)) != ErrorCode.REBALANCE_IN_PROGRESS:
                await asyncio.wait([two], timeout=0.001)
        again = await join(first, member=one.member_id)
        followed = await two
        assert {m.member_id for m in again.members} == {one.member_id, followed.member_id}
        waiting = asyncio.create_task(sync(second, followed))
        await asyncio.sleep(0)
        given = {
            one.member_id: assignment("orders", 0),
            followed.member_id: assignment("orders", 1),
        }
        assert (await sync(first, again, given)).assignment == given[one.member_id]
        assert (await waiting).assignment == given[followed.member_id]
        live = server.topics.live_members.of(str(TOPIC), "g")
        assert {member.id: set(member.partitions) for member in live} == {
            one.member_id: {0},
            followed.member_id: {1},
        }

    async def beating(client: KafkaClient, joined: Any) -> int:
        answer = await client.ask(
            "Heartbeat", 3, group_id="g", generation_id=1, member_id=joined.member_id
        )
        return int(answer.error_code)

    run(tmp_path, test)


def test_a_join_whose_connection_closes_is_dropped(tmp_path: Path) -> None:
    async def test(server: KafkaServer) -> None:
        first, second = server.client(), server.client()
        await alone(first)
        joining(second, 0)
        second.leave()
        session: Any = second.connection.session
        group = session.context.coordinator.find("g")
        assert group is not None
        assert len(group.members) == 1
        assert not session.on_close

    run(tmp_path, test)


@pytest.mark.parametrize("version", range(2, 9))
def test_offsets_are_committed_and_fetched(tmp_path: Path, version: int) -> None:
    async def test(server: KafkaServer) -> None:
        client = server.client()
        assert await fetch(client, max(1, version - 1)) == {0: (-1, ""), 1: (-1, "")}
        assert await commit(client, {0: 7, 1: 0}, version, "note") == [0, 0]
        for asked in (version - 1, version):
            assert await fetch(client, asked) == {0: (7, "note"), 1: (0, "note")}

    run(tmp_path, test)


def test_all_offsets_of_a_group_are_fetched(tmp_path: Path) -> None:
    async def test(server: KafkaServer) -> None:
        client = server.client()
        await commit(client, {1: 3})
        answer = await client.ask("OffsetFetch", 7, group_id="g", topics=None)
        found = {t.name: [p.partition_index for p in t.partitions] for t in answer.topics}
        assert found == {"orders": [1]}
        other = await client.ask("OffsetFetch", 7, group_id="other", topics=None)
        assert other.topics == []

    run(tmp_path, test)


def test_a_commit_that_is_not_allowed_is_refused(tmp_path: Path) -> None:
    async def test(server: KafkaServer) -> None:
        client = server.client()
        assert await commit(client, {2: 0}) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await commit(client, {0: 0}, topic="no") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await commit(client, {0: -5}) == [ErrorCode.OFFSET_OUT_OF_RANGE]
        too_long = await commit(client, {0: 0}, metadata="x" * 4_097)
        assert too_long == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
        assert await commit(client, {0: 0}, group_id="") == [ErrorCode.INVALID_GROUP_ID]
        stale: dict[str, Any] = {"generation_id_or_member_epoch": 3, "member_id": "x"}
        assert await commit(client, {0: 0}, **stale) == [ErrorCode.ILLEGAL_GENERATION]
        joined = await alone(client)
        assert await commit(client, {0: 1}) == [ErrorCode.UNKNOWN_MEMBER_ID]
        own: dict[str, Any] = {"generation_id_or_member_epoch": 1, "member_id": joined.member_id}
        assert await commit(client, {0: 1}, **own) == [0]

    run(tmp_path, test)


def test_polls_and_commits_move_one_position(tmp_path: Path) -> None:
    async def test(server: KafkaServer) -> None:
        client = server.client()
        await TopicSubscriptions(server.topics).subscribe(TOPIC, "g", StartPosition(earliest=True))
        assert await fetch(client) == {0: (0, ""), 1: (0, "")}
        partition = server.topics.pieces(TOPIC)[0]
        record = partition.subscriptions["g"].record
        assert record is not None
        server.store.acknowledge(record, Ack(1, cumulative=True))
        assert (await fetch(client))[0] == (4, "")
        assert await commit(client, {0: 9}) == [0]
        cursor = partition.subscriptions["g"].cursor
        assert (cursor.mark_delete, cursor.ack_set(4)) == (3, [0b10])
        assert await commit(client, {0: 2}) == [0]
        assert partition.subscriptions["g"].cursor.mark_delete == 0

    run(tmp_path, test)


def test_a_group_that_is_polled_admits_no_member(tmp_path: Path) -> None:
    async def test(server: KafkaServer) -> None:
        client, worker = server.client(), Worker()
        leases = server.context.broker.leases
        leases.claim(worker, 1, ClaimRequest(str(TOPIC), "g", "c1", 2))
        assert (await join(client)).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert await commit(client, {0: 1}) == [ErrorCode.UNKNOWN_MEMBER_ID]
        deleted = await client.ask("DeleteGroups", 2, groups_names=["g"])
        assert deleted.results[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND
        other = await join(client, group_id="other")
        assert other.error_code == 0

    run(tmp_path, test)


def test_a_group_with_members_takes_no_consumers(tmp_path: Path) -> None:
    async def test(server: KafkaServer) -> None:
        client = server.client()
        joined = await alone(client)
        partition = server.topics.pieces(TOPIC)[0]
        found = await partition.subscribe("g", 0)
        consumer: Any = ClientConsumer(Notes(), 1, "c")
        with pytest.raises(SubscriptionBusyError):
            found.attach(consumer, SubscriptionType.EXCLUSIVE)
        one = client.struct("LeaveGroupRequest", "MemberIdentity", member_id=joined.member_id)
        await client.ask("LeaveGroup", 5, group_id="g", members=[one])
        found.attach(consumer, SubscriptionType.EXCLUSIVE)
        assert (await join(client)).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    run(tmp_path, test)


def test_groups_are_described_listed_and_deleted(tmp_path: Path) -> None:
    async def test(server: KafkaServer) -> None:
        client = server.client()
        joined = await alone(client)
        await commit(client, {0: 1}, group_id="stored")
        answer = await client.ask("DescribeGroups", 5, groups=["g", "stored", "none"])
        states = {one.group_id: one.group_state for one in answer.groups}
        assert states == {"g": "Stable", "stored": "Empty", "none": "Dead"}
        (member,) = answer.groups[0].members
        assert (member.member_id, member.client_id) == (joined.member_id, "test")
        assert member.member_assignment == assignment("orders", 0, 1)
        listed = await client.ask("ListGroups", 5)
        assert [(one.group_id, one.group_state) for one in listed.groups] == [
            ("g", "Stable"),
            ("stored", "Empty"),
        ]
        empty = await client.ask("ListGroups", 4, states_filter=["Empty"])
        assert [one.group_id for one in empty.groups] == ["stored"]
        deleted = await client.ask("DeleteGroups", 2, groups_names=["g", "stored", "none"])
        assert [one.error_code for one in deleted.results] == [
            ErrorCode.NON_EMPTY_GROUP,
            ErrorCode.NONE,
            ErrorCode.GROUP_ID_NOT_FOUND,
        ]
        assert await fetch(client, group="stored") == {0: (-1, ""), 1: (-1, "")}

    run(tmp_path, test)


def test_offsets_of_partitions_are_deleted(tmp_path: Path) -> None:
    async def test(server: KafkaServer) -> None:
        client = server.client()
        assert (await delete(client)).error_code == ErrorCode.GROUP_ID_NOT_FOUND
        await commit(client, {0: 1, 1: 2})
        assert (await delete(client)).topics[0].partitions[0].error_code == 0
        assert await fetch(client) == {0: (-1, ""), 1: (2, "")}
        await alone(client)
        (refused,) = (await delete(client)).topics[0].partitions
        assert refused.error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC

    async def delete(client: KafkaClient) -> Any:
        one = client.struct(
            "OffsetDeleteRequest", "OffsetDeleteRequestPartition", partition_index=0
        )
        topic = client.struct(
            "OffsetDeleteRequest", "OffsetDeleteRequestTopic", name="orders", partitions=[one]
        )
        return await client.ask("OffsetDelete", 0, group_id="g", topics=[topic])

    run(tmp_path, test)


def test_the_form_of_group_ids_leads_to_groups(tmp_path: Path) -> None:
    async def test(server: KafkaServer) -> None:
        client = server.client()
        assert await commit(client, {0: 4}, group_id="billing--orders") == [0]
        assert await commit(client, {0: 6}, group_id="billing") == [0]
        subscriptions = server.topics.pieces(TOPIC)[0].subscriptions
        assert set(subscriptions) == {"billing", "kafka:billing"}
        listed = await client.ask("ListGroups", 0)
        assert {one.group_id for one in listed.groups} == {"billing", "billing--orders"}

    run(tmp_path, test, ROUTER_KAFKA_GROUP="{group}--{topic}")


@pytest.mark.parametrize("form", ["{group}", "{group}--{topic}", "{topic}.{group}"])
def test_no_two_ids_share_a_position(tmp_path: Path, form: str) -> None:
    prefixed = form.replace("{group}", "kafka:a").replace("{topic}", "orders")
    odd = form.replace("{topic}", "orders").replace("{group}", "{topic}")
    ids = ["a", "kafka:a", "kafka:kafka:a", prefixed, odd, "orders", "{group}", "a/%\n\u00fc"]

    async def test(server: KafkaServer) -> None:
        client = server.client()
        for one in ids:
            assert await commit(client, {0: 4}, group_id=one) == [0]
        assert len(server.topics.pieces(TOPIC)[0].subscriptions) == len(set(ids))
        listed = await client.ask("ListGroups", 0)
        assert {one.group_id for one in listed.groups} == set(ids)
        described = await client.ask("DescribeGroups", 0, groups=ids)
        assert {one.group_state for one in described.groups} == {"Empty"}
        await client.ask("DeleteGroups", 0, groups_names=["a", "orders"])
        left = {one.group_id for one in (await client.ask("ListGroups", 0)).groups}
        assert left == set(ids) - {"a", "orders"}

    run(tmp_path, test, ROUTER_KAFKA_GROUP=form)


@pytest.mark.parametrize("version", range(5))
def test_the_broker_coordinates_groups_and_transactions(tmp_path: Path, version: int) -> None:
    async def test(server: KafkaServer) -> None:
        client = server.client()
        named = {"coordinator_keys": ["g"]} if version >= 4 else {"key": "g"}
        answer = await client.ask("FindCoordinator", version, **named)
        found = answer.coordinators[0] if version >= 4 else answer
        assert (found.error_code, found.node_id, found.host) == (0, 1, "127.0.0.1")
        if version:
            answer = await client.ask("FindCoordinator", version, key_type=1, **named)
            found = answer.coordinators[0] if version >= 4 else answer
            assert (found.error_code, found.node_id) == (0, 1)
            refused = await client.ask("FindCoordinator", version, key_type=2, **named)
            found = refused.coordinators[0] if version >= 4 else refused
            assert found.error_code == ErrorCode.INVALID_REQUEST

    run(tmp_path, test)
