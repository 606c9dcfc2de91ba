"""Who may be a member of a group, and who may move its offsets."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from router.access.permissions import Right
from router.access.watched import reload_all
from router.broker.kafka import held_groups
from router.broker.kafka.client import KafkaClient as ServedClient
from router.broker.kafka.consumer_group import ConsumerGroup
from router.broker.kafka.consumer_group_values import JOINING, Heartbeat
from router.model import TopicName
from router.wire.kafka.error_codes import ErrorCode
from tests.unit.broker.kafka.grouping import assignment, commit, join, subscription, sync
from tests.unit.broker.kafka.serving import KafkaClient, KafkaServer
from tests.unit.broker.kafka.test_consumer_group_model import Topics
from tests.unit.broker.kafka.test_consumer_groups import beat, describe, enter, numbers
from tests.unit.broker.kafka.test_sasl import guarded_server, login

REFUSED = ErrorCode.GROUP_AUTHORIZATION_FAILED
HIDDEN_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
HIDDEN = "persistent://public/default/hidden"


def reading(client: KafkaClient, *topics: str) -> dict[str, Any]:
    protocol = client.struct(
        "JoinGroupRequest",
        "JoinGroupRequestProtocol",
        name="range",
        metadata=subscription(*topics),
    )
    return {"protocols": [protocol]}


async def test_a_member_needs_the_right_to_read(tmp_path: Path) -> None:
    async with guarded_server(tmp_path) as server:
        writer, reader = server.client(), server.client()
        await login(writer)
        await login(reader, "reader")
        assert (await join(writer, **reading(writer, "t"))).error_code == REFUSED
        assert (await join(reader, **reading(reader, "t", "hidden"))).error_code == REFUSED
        joined = await join(reader, **reading(reader, "t"))
        assert joined.error_code == 0
        # Of a group that reads what a client may not, it learns and changes nothing.
        assert (await join(writer, **reading(writer))).error_code == REFUSED
        member = {"group_id": "g", "member_id": joined.member_id}
        beat = await writer.ask("Heartbeat", 3, generation_id=1, **member)
        assert beat.error_code == REFUSED
        (described,) = (await writer.ask("DescribeGroups", 5, groups=["g"])).groups
        assert (described.error_code, described.members) == (REFUSED, [])
        one = writer.struct("LeaveGroupRequest", "MemberIdentity", member_id=joined.member_id)
        left = await writer.ask("LeaveGroup", 5, group_id="g", members=[one])
        assert left.error_code == REFUSED


async def test_the_rights_of_a_member_are_checked_when_they_or_the_topics_of_its_group_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not with each heartbeat."""
    checked: list[TopicName] = []
    may = ServedClient.may

    def noted(self: ServedClient, topic: TopicName, right: Right) -> bool:
        checked.append(topic)
        return may(self, topic, right)

    async with guarded_server(tmp_path) as server:
        names = [f"t{number}" for number in range(5)]
        for name in names:
            await server.topics.create(TopicName.parse(name))
        granted = "reader t* subscribe\nanna t* subscribe\nanna hidden subscribe"
        grant(tmp_path, granted)
        reader, other = server.client(), server.client()
        await login(reader, "reader")
        await login(other)
        monkeypatch.setattr(ServedClient, "may", noted)

        async def code() -> int:
            checked.clear()
            answer = await beat(reader, "a", 1)
            return int(answer.error_code)

        assert (await enter(reader, "a", *names)).error_code == 0
        assert (await code(), len(checked)) == (0, len(names))
        assert (await code(), len(checked)) == (0, 0)
        grant(tmp_path, "")
        assert await code() == 0
        assert checked
        grant(tmp_path, granted)
        assert (await code(), len(checked)) == (0, len(names))
        assert (await enter(other, "b", "hidden")).error_code == 0
        assert await code() == REFUSED


async def test_a_pattern_stands_for_what_a_member_may_read_by_now(tmp_path: Path) -> None:
    async with guarded_server(tmp_path) as server:
        grant(tmp_path, "reader t subscribe")
        reader = server.client()
        await login(reader, "reader")
        pattern = {"subscribed_topic_names": None, "subscribed_topic_regex": ".*"}
        assert numbers(await enter(reader, "a", **pattern)) == [0]
        grant(tmp_path, "reader * subscribe")
        assert numbers(await beat(reader, "a", 1)) == [0, 0]


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_right_that_is_revoked_takes_its_topic_from_a_pattern(
    tmp_path: Path, *, restarts: bool
) -> None:
    """As with Apache Kafka: its members go on without it, none of them for another's heartbeat."""
    pattern = {"subscribed_topic_names": None, "subscribed_topic_regex": ".*"}

    async def before(server: KafkaServer) -> None:
        grant(tmp_path, "reader * subscribe")
        reader = server.client()
        await login(reader, "reader")
        assert numbers(await enter(reader, "a", **pattern)) == [0, 0]
        assert (await enter(reader, "b", **pattern)).error_code == 0
        if not restarts:
            await after(server)

    async def after(server: KafkaServer) -> None:
        grant(tmp_path, "reader t subscribe\nanna * publish")
        reader, other = server.client(), server.client()
        await login(reader, "reader")
        await login(other)
        assert (await beat(other, "a", -1)).error_code == REFUSED
        assert server.topics.live_members.of(HIDDEN, "g")
        assert (await beat(reader, "a", 1)).error_code == 0
        assert not server.topics.live_members.of(HIDDEN, "g")
        assert (await beat(reader, "b", 2)).error_code == 0
        group = await describe(reader)
        targets = [
            topic for one in group.members for topic in one.target_assignment.topic_partitions
        ]
        assert [one.topic_name for one in targets] == ["t"]
        grant(tmp_path, "reader * subscribe")
        assert (await beat(reader, "a", 1)).error_code == 0
        assert server.topics.live_members.of(HIDDEN, "g")

    async with guarded_server(tmp_path) as server:
        await before(server)
    if restarts:
        async with guarded_server(tmp_path) as server:
            await after(server)


REVOKED = "reader t subscribe\nanna t subscribe"


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_right_that_is_revoked_ends_no_classic_member_that_names_its_topic(
    tmp_path: Path, *, restarts: bool
) -> None:
    """As with Apache Kafka, which asks for it when records are read and offsets committed."""
    ids: list[str] = []

    async def before(server: KafkaServer) -> None:
        grant(tmp_path, "reader * subscribe")
        reader = server.client()
        await login(reader, "reader")
        joined = await join(reader, **reading(reader, "t", "hidden"))
        ids.append(joined.member_id)
        parts = {joined.member_id: assignment("hidden", 0)}
        assert (await sync(reader, joined, parts)).error_code == 0
        if not restarts:
            await after(server)

    async def after(server: KafkaServer) -> None:
        grant(tmp_path, REVOKED)
        reader, other = server.client(), server.client()
        await login(reader, "reader")
        await login(other)
        member: dict[str, Any] = {"group_id": "g", "member_id": ids[0]}
        assert (await reader.ask("Heartbeat", 3, generation_id=1, **member)).error_code == 0
        terms: dict[str, Any] = {"generation_id_or_member_epoch": 1, "member_id": ids[0]}
        assert await commit(reader, {0: 0}, topic="t", **terms) == [0]
        assert await commit(reader, {0: 0}, topic="hidden", **terms) == [HIDDEN_TOPIC]
        again = await join(reader, member_id=ids[0], **reading(reader, "hidden", "t"))
        assert (again.error_code, again.generation_id) == (0, 2)
        assert (await sync(reader, again, {})).error_code == 0
        # Others are refused, and topics that none of its members read.
        assert (await join(other, **reading(other, "t"))).error_code == REFUSED
        refused = await other.ask("Heartbeat", 3, generation_id=2, **member)
        assert refused.error_code == REFUSED
        await server.topics.create(TopicName.parse("other"))
        more = await join(reader, member_id=ids[0], **reading(reader, "hidden", "t", "other"))
        assert more.error_code == REFUSED
        one = reader.struct("LeaveGroupRequest", "MemberIdentity", member_id=ids[0])
        left = await reader.ask("LeaveGroup", 5, group_id="g", members=[one])
        assert (left.error_code, left.members[0].error_code) == (0, 0)
        assert (await join(reader, **reading(reader, "t", "hidden"))).error_code == REFUSED

    async with guarded_server(tmp_path) as server:
        await before(server)
    if restarts:
        async with guarded_server(tmp_path) as server:
            await after(server)


@pytest.mark.parametrize("upgrades", [False, True])
async def test_a_right_that_is_revoked_ends_no_member_of_a_consumer_group(
    tmp_path: Path, *, upgrades: bool
) -> None:
    """As with Apache Kafka, which refuses heartbeats that name the topic; a classic member, too."""

    async with guarded_server(tmp_path) as server:
        grant(tmp_path, "reader * subscribe")
        reader, classic, other = server.client(), server.client(), server.client()
        await login(reader, "reader")
        await login(classic, "reader")
        await login(other)
        terms = reading(classic, "t", "hidden")
        joined = await join(classic, **terms) if upgrades else None
        entered = await enter(reader, "a", "t", "hidden")
        assert entered.error_code == 0
        joined = joined or await join(classic, **terms)
        assert joined.error_code == 0
        grant(tmp_path, REVOKED)
        epoch = entered.member_epoch

        async def code(**fields: Any) -> int:
            nonlocal epoch
            answer = await beat(reader, "a", epoch, **fields)
            epoch = answer.member_epoch or epoch
            return int(answer.error_code)

        async def classic_code(client: KafkaClient) -> int:
            member = {"group_id": "g", "member_id": joined.member_id}
            answer = await client.ask("Heartbeat", 3, generation_id=joined.generation_id, **member)
            return int(answer.error_code)

        assert await code() == 0
        assert await code(subscribed_topic_names=["t", "hidden"]) == HIDDEN_TOPIC
        assert (await beat(other, "a", epoch)).error_code == REFUSED
        assert await code(subscribed_topic_names=["t"]) == 0
        # The classic member alone reads the hidden topic now.
        assert await code() == 0
        assert await classic_code(classic) != REFUSED
        assert await classic_code(other) == REFUSED
        assert (await beat(reader, "a", -1)).error_code == 0
        assert await classic_code(classic) != REFUSED
        assert await classic_code(other) == REFUSED


def test_a_topic_is_checked_once_however_many_members_match_it() -> None:
    topics, checked = Topics(partitions=dict.fromkeys("abc", 1)), Counter[str]()
    group = ConsumerGroup[None](topics)

    def may_read(topic: str) -> bool:
        checked[topic] += 1
        return topic != "b"

    for number, owner in enumerate(["anna", "anna", "anna", "otto", ""]):
        joins = Heartbeat(f"m{number}", JOINING, "", "", topics.match, owner=owner, pattern="abc")
        group.beat(joins, None, 0.0)
    group.revoke("anna", may_read)
    assert checked == Counter("abc")
    matched = ["".join(sorted(member.matched)) for member in group.members.values()]
    assert matched == ["ac", "ac", "ac", "abc", "abc"]


async def test_one_principal_leaves_groups_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is alone has half; the others then have a quarter each."""
    monkeypatch.setattr(held_groups, "MAX_GROUPS", 8)

    async with guarded_server(tmp_path) as server:
        grant(tmp_path, "* t subscribe")
        reader, other = server.client(), server.client()
        await login(reader, "reader")
        await login(other)
        terms = reading(reader, "t")

        async def classic(client: KafkaClient, group: str) -> int:
            return int((await join(client, group_id=group, **terms)).error_code)

        async def new(client: KafkaClient, group: str) -> int:
            return int((await enter(client, "a", "t", group_id=group)).error_code)

        full = ErrorCode.GROUP_MAX_SIZE_REACHED
        assert [await classic(reader, f"r{number}") for number in range(2)] == [0, 0]
        assert [await new(reader, f"r{number}") for number in range(2, 4)] == [0, 0]
        assert [await classic(reader, "r4"), await new(reader, "r4")] == [full, full]
        assert [await new(other, f"o{number}") for number in range(3)] == [0, 0, full]
        assert await new(reader, "o0") == 0  # a group of another principal
        assert (await beat(reader, "a", -1, group_id="r3")).error_code == 0
        assert await new(reader, "r5") == full
        assert (await beat(other, "a", -1, group_id="o1")).error_code == 0
        assert (await beat(reader, "a", -1, group_id="r2")).error_code == 0
        assert await new(reader, "r5") == 0


async def test_one_principal_leaves_memory_of_groups_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members go on; after a restart a group belongs to the principal that is first to come."""
    monkeypatch.setattr(held_groups, "MAX_METADATA_BYTES", 16_000)
    grants, full = "* t subscribe", ErrorCode.GROUP_MAX_SIZE_REACHED

    async def large(client: KafkaClient, group: str, member: str = "a") -> int:
        return int((await enter(client, member * 1_000, "t", group_id=group)).error_code)

    async def going_on(client: KafkaClient, group: str, epoch: int = 1) -> int:
        return int((await beat(client, "a" * 1_000, epoch, group_id=group)).error_code)

    async def before(server: KafkaServer) -> None:
        grant(tmp_path, grants)
        reader = server.client()
        await login(reader, "reader")
        assert [await large(reader, f"r{number}") for number in range(4)] == [0] * 4
        assert await large(reader, "r4") == full
        assert await large(reader, "r0", "b") == full
        joined = await join(reader, group_id="classic", **reading(reader, "t"))
        assert joined.error_code == full

    async def after(server: KafkaServer) -> None:
        grant(tmp_path, grants)
        reader, other = server.client(), server.client()
        await login(reader, "reader")
        await login(other)
        assert [await going_on(reader, f"r{number}") for number in range(4)] == [0] * 4
        assert await large(reader, "r4") == full
        assert [await large(other, f"o{number}") for number in range(3)] == [0, 0, full]
        assert await large(other, "r0", "b") == full  # it counts for the group's principal
        assert [await going_on(reader, f"r{number}", -1) for number in range(3)] == [0] * 3
        assert await large(reader, "r4") == 0

    async with guarded_server(tmp_path) as server:
        await before(server)
    async with guarded_server(tmp_path) as server:
        await after(server)


def grant(folder: Path, rules: str) -> None:
    (folder / "permissions").write_text(rules)
    reload_all()


async def test_offsets_need_the_right_to_read_their_topic(tmp_path: Path) -> None:
    async with guarded_server(tmp_path) as server:
        writer, reader = server.client(), server.client()
        await login(writer)
        await login(reader, "reader")
        denied = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
        assert await commit(writer, {0: 0}, topic="t") == denied
        assert await commit(reader, {0: 0}, topic="hidden") == denied
        assert await commit(reader, {0: 0}, topic="t") == [0]
        asked = writer.struct(
            "OffsetFetchRequest", "OffsetFetchRequestTopic", name="t", partition_indexes=(0,)
        )
        answer = await writer.ask("OffsetFetch", 7, group_id="g", topics=[asked])
        assert answer.topics[0].partitions[0].error_code == denied[0]
        every = await writer.ask("OffsetFetch", 7, group_id="g", topics=None)
        assert every.topics == []
        deleted = await writer.ask("DeleteGroups", 2, groups_names=["g"])
        assert deleted.results[0].error_code == REFUSED
