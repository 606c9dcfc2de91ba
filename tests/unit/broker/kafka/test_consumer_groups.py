"""Consumer groups (KIP-848) by requests: heartbeats, descriptions, offsets, rights, restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from router.broker.consume import ClientConsumer, SubscriptionType
from router.broker.kafka.consumer_metadata import assigned_partitions
from router.model import TopicName
from router.settings import load
from router.wire.kafka.error_codes import ErrorCode
from tests.unit.broker.consume.dispatch.bench import Notes
from tests.unit.broker.kafka.grouping import NO_DELAY, TOPIC, alone, commit, fetch, join, run, sync
from tests.unit.broker.kafka.serving import KafkaClient, KafkaServer, with_server
from tests.unit.broker.kafka.test_sasl import guarded_server, login

MORE = TopicName.parse("persistent://public/default/more")


async def beat(client: KafkaClient, member: str, epoch: int, **fields: Any) -> Any:
    given: dict[str, Any] = {"group_id": "g", "member_id": member, "member_epoch": epoch}
    if "owned" in fields:
        (numbers, topic) = fields.pop("owned")
        one = client.struct(
            "ConsumerGroupHeartbeatRequest", "TopicPartitions", topic_id=topic, partitions=numbers
        )
        fields["topic_partitions"] = [one] if numbers else []
    return await client.ask("ConsumerGroupHeartbeat", 1, **given | fields)


async def enter(client: KafkaClient, member: str, *topics: str, **fields: Any) -> Any:
    """Join the group."""
    given: dict[str, Any] = {
        "rebalance_timeout_ms": 60_000,
        "topic_partitions": [],
        "subscribed_topic_names": list(topics or ("orders",)),
    }
    return await beat(client, member, 0, **given | fields)


def numbers(answer: Any) -> list[int] | None:
    """Return the partitions that an answer assigns, None: it assigns none anew."""
    if answer.assignment is None:
        return None
    return sorted(n for one in answer.assignment.topic_partitions for n in one.partitions)


async def describe(client: KafkaClient, group: str = "g") -> Any:
    answer = await client.ask(
        "ConsumerGroupDescribe", 1, group_ids=[group], include_authorized_operations=False
    )
    return answer.groups[0]


def test_members_share_partitions_and_give_them_up_first(tmp_path: Path) -> None:
    async def test(server: KafkaServer) -> None:
        first, second = server.client(), server.client()
        joined = await enter(first, "a")
        assert (joined.error_code, joined.member_epoch, numbers(joined)) == (0, 1, [0, 1])
        topic = joined.assignment.topic_partitions[0].topic_id
        other = await enter(second, "b")
        assert (other.error_code, other.member_epoch, numbers(other)) == (0, 2, [])
        assert (await describe(first)).group_state == "Reconciling"
        told = await beat(first, "a", 1, owned=([0, 1], topic))
        assert told.member_epoch == 1
        (kept,) = numbers(told) or []
        waiting = await beat(second, "b", 2)
        assert numbers(waiting) is None
        revoked = await beat(first, "a", 1, owned=([kept], topic))
        assert (revoked.member_epoch, numbers(revoked)) == (2, None)
        assert numbers(await beat(second, "b", 2)) == [1 - kept]
        group = await describe(first)
        assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Stable", 2, 2)
        assert (group.assignor_name, len(group.members)) == ("uniform", 2)
        shown = group.members[0].assignment.topic_partitions[0]
        assert (shown.topic_name, list(shown.partitions)) == ("orders", [kept])
        live = server.topics.live_members.of(str(TOPIC), "g")
        assert {one.id: set(one.partitions) for one in live} == {"a": {kept}, "b": {1 - kept}}
        left = await beat(second, "b", -1)
        assert (left.error_code, left.member_epoch) == (0, -1)
        assert numbers(await beat(first, "a", 2)) == [0, 1]

    run(tmp_path, test)


def test_a_group_without_members_is_forgotten(tmp_path: Path) -> None:
    async def test(server: KafkaServer) -> None:
        client = server.client()
        await enter(client, "a")
        await beat(client, "a", -1)
        assert (await describe(client)).error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert not server.topics.live_members.of(str(TOPIC), "g")
        assert (await beat(client, "a", 1)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert (await alone(client)).error_code == 0

    run(tmp_path, test)


def test_members_follow_the_partitions_of_their_topics(tmp_path: Path) -> None:
    async def test(server: KafkaServer) -> None:
        client = server.client()
        joined = await enter(client, "a", "orders", "more")
        assert numbers(joined) == [0, 1]
        await server.topics.create(MORE, 1)
        more = await beat(client, "a", 1)
        assert (more.member_epoch, numbers(more)) == (2, [0, 0, 1])

    run(tmp_path, test)


def test_a_pattern_stands_for_topics_that_come_later(tmp_path: Path) -> None:
    async def test(server: KafkaServer) -> None:
        client = server.client()
        refused = await enter(client, "a", subscribed_topic_regex="(")
        assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
        pattern = {"subscribed_topic_names": None, "subscribed_topic_regex": "o.*|mo.e"}
        assert numbers(await enter(client, "a", **pattern)) == [0, 1]
        await server.topics.create(MORE, 1)
        await server.topics.create(TopicName.parse("persistent://public/default/mo"), 1)
        assert numbers(await beat(client, "a", 1)) == [0, 0, 1]
        assert (await describe(client)).members[0].subscribed_topic_regex == "o.*|mo.e"

    run(tmp_path, test)


def test_topics_that_others_read_as_the_group_are_refused_by_name_and_left_out_of_patterns(
    tmp_path: Path,
) -> None:
    async def test(server: KafkaServer) -> None:
        client = server.client()
        await server.topics.create(MORE, 1)
        consumer: Any = ClientConsumer(Notes(), 1, "c")
        read = await server.topics.pieces(TOPIC)[0].subscribe("g", 0)
        read.attach(consumer, SubscriptionType.EXCLUSIVE)
        refused = await enter(client, "a", "orders", "more")
        assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert "another protocol" in refused.error_message
        pattern = {"subscribed_topic_names": [], "subscribed_topic_regex": "orders|more"}
        joined = await enter(client, "a", **pattern)
        assert (joined.error_code, numbers(joined)) == (0, [0])

    run(tmp_path, test)


def test_a_topic_that_comes_later_and_that_others_read_as_the_group_refuses_its_members(
    tmp_path: Path,
) -> None:
    async def test(server: KafkaServer) -> None:
        client = server.client()
        joined = await enter(client, "a", "orders", "more")
        await server.topics.create(MORE, 1)
        consumer: Any = ClientConsumer(Notes(), 1, "c")
        read = await server.topics.pieces(MORE)[0].subscribe("g", 0)
        read.attach(consumer, SubscriptionType.EXCLUSIVE)
        for _ in range(2):
            refused = await beat(client, "a", joined.member_epoch)
            assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert (await beat(client, "a", -1)).error_code == 0

    run(tmp_path, test)


def test_offsets_are_committed_and_fetched_by_the_epoch_of_a_member(tmp_path: Path) -> None:
    async def test(server: KafkaServer) -> None:
        client = server.client()
        await enter(client, "a")
        for member, epoch, version, error in (
            ("a", 1, 9, 0),
            ("a", 2, 9, ErrorCode.STALE_MEMBER_EPOCH),
            ("a", 2, 8, ErrorCode.UNSUPPORTED_VERSION),
            ("b", 1, 9, ErrorCode.UNKNOWN_MEMBER_ID),
            ("", -1, 9, ErrorCode.UNKNOWN_MEMBER_ID),
        ):
            named: dict[str, Any] = {
                "member_id": member,
                "generation_id_or_member_epoch": epoch,
            }
            assert await commit(client, {0: 3}, version, **named) == [error]
        assert (await fetch(client, 9))[0] == (3, "")
        for member, epoch, error in (
            ("a", 1, 0),
            ("a", 2, ErrorCode.STALE_MEMBER_EPOCH),
            ("b", 1, ErrorCode.UNKNOWN_MEMBER_ID),
        ):
            one = client.struct(
                "OffsetFetchRequest",
                "OffsetFetchRequestGroup",
                group_id="g",
                member_id=member,
                member_epoch=epoch,
                topics=[],
            )
            answer = await client.ask("OffsetFetch", 9, groups=[one])
            assert answer.groups[0].error_code == error

    run(tmp_path, test)


def test_a_member_goes_on_after_a_restart_of_the_broker(tmp_path: Path) -> None:
    async def before(server: KafkaServer) -> None:
        first, second = server.client(), server.client()
        await enter(first, "a")
        await enter(second, "b", server_assignor="range")

    async def after(server: KafkaServer) -> None:
        client = server.client()
        group = await describe(client)
        assert [(one.member_id, one.member_epoch) for one in group.members] == [("a", 1), ("b", 2)]
        told = await beat(client, "a", 1)
        assert numbers(told) == [0]
        assert {one.id for one in server.topics.live_members.of(str(TOPIC), "g")} == {"a", "b"}

    run(tmp_path, before)
    with_server(tmp_path, after, settings=load(None, NO_DELAY))


def test_a_consumer_group_is_listed_by_its_type(tmp_path: Path) -> None:
    async def test(server: KafkaServer) -> None:
        client = server.client()
        assert (await enter(client, "a")).error_code == 0
        (listed,) = (await client.ask("ListGroups", 5)).groups
        assert (listed.group_type, listed.group_state) == ("consumer", "Stable")
        assert (await client.ask("ListGroups", 5, types_filter=["Classic"])).groups == []
        (shown,) = (await client.ask("DescribeGroups", 5, groups=["g"])).groups
        assert shown.group_state == "Dead"
        results = (await client.ask("DeleteGroups", 2, groups_names=["g"])).results
        assert results[0].error_code == ErrorCode.NON_EMPTY_GROUP

    run(tmp_path, test)


def test_a_classic_group_is_taken_over_and_given_back(tmp_path: Path) -> None:
    async def test(server: KafkaServer) -> None:
        classic, client = server.client(), server.client()
        joined = await alone(classic)
        named = {"group_id": "g", "member_id": joined.member_id}
        assert (await describe(client)).error_message == "Group g is not a consumer group."
        entered = await enter(client, "a")
        assert (entered.error_code, entered.member_epoch, numbers(entered)) == (0, 2, [])
        told = await classic.ask("Heartbeat", 4, generation_id=1, **named)
        assert told.error_code == ErrorCode.REBALANCE_IN_PROGRESS
        joined = await join(classic, 9, member=joined.member_id)
        assert (joined.error_code, joined.generation_id, joined.leader) == (0, 2, "")
        (mine,) = assigned_partitions((await sync(classic, joined)).assignment)["orders"]
        assert numbers(await beat(client, "a", 2)) == [1 - mine]
        assert sorted(one.member_type for one in (await describe(client)).members) == [0, 1]
        at = {"member_id": joined.member_id, "generation_id_or_member_epoch": 2}
        assert await commit(classic, {mine: 3}, **at) == [0]
        at["generation_id_or_member_epoch"] = 1
        assert await commit(classic, {mine: 3}, **at) == [ErrorCode.ILLEGAL_GENERATION]
        assert (await beat(client, "a", -1)).error_code == 0
        told = await classic.ask("Heartbeat", 4, generation_id=2, **named)
        assert told.error_code == ErrorCode.REBALANCE_IN_PROGRESS
        joined = await join(classic, member=joined.member_id)
        assert (joined.generation_id, joined.leader) == (3, joined.member_id)
        (listed,) = (await client.ask("ListGroups", 5)).groups
        assert listed.group_type == "classic"

    run(tmp_path, test)


def test_a_refused_member_does_not_disturb_a_classic_group(tmp_path: Path) -> None:
    async def test(server: KafkaServer) -> None:
        classic, client = server.client(), server.client()
        joined = await alone(classic)
        refused = await enter(client, "a", subscribed_topic_regex="(")
        assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
        named = {"group_id": "g", "member_id": joined.member_id, "generation_id": 1}
        assert (await classic.ask("Heartbeat", 4, **named)).error_code == 0

    run(tmp_path, test)


def test_members_of_both_protocols_go_on_after_a_restart(tmp_path: Path) -> None:
    found: list[Any] = []

    async def before(server: KafkaServer) -> None:
        client, classic = server.client(), server.client()
        await enter(client, "a")
        joined = await join(classic, 9)
        assert (joined.error_code, joined.generation_id) == (0, 2)
        found.append(joined)

    async def after(server: KafkaServer) -> None:
        client, classic = server.client(), server.client()
        assert len(numbers(await beat(client, "a", 1)) or []) == 1
        told = await sync(classic, found[0])
        assert (told.error_code, assigned_partitions(told.assignment)) == (0, {})

    run(tmp_path, before)
    with_server(tmp_path, after, settings=load(None, NO_DELAY))


async def test_a_member_of_a_consumer_group_needs_the_right_to_read(tmp_path: Path) -> None:
    async with guarded_server(tmp_path) as server:
        writer, reader = server.client(), server.client()
        await login(writer)
        await login(reader, "reader")
        refused = await enter(writer, "a", "t")
        assert refused.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        every = {"subscribed_topic_names": None, "subscribed_topic_regex": ".*"}
        assert numbers(await enter(writer, "w", group_id="w", **every)) == []
        joined = await enter(reader, "a", **every)
        assert joined.error_code == 0
        assert [
            one.topic_name
            for one in (await describe(reader)).members[0].assignment.topic_partitions
        ] == ["t"]
        assert (await beat(writer, "a", 1)).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        shown = await describe(writer)
        assert (shown.error_code, shown.members) == (ErrorCode.GROUP_AUTHORIZATION_FAILED, [])
