"""Groups over a restart of the broker: what is stored, when, and what a restart makes of it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from router.broker.disk import row_sums
from router.broker.kafka.consumer_group_records import CONSUMER_VERSION, ConsumerGroupRecord
from router.broker.kafka.consumer_group_values import ConsumerMember
from router.broker.kafka.coordinator import GroupCoordinator
from router.broker.kafka.group_records import CLASSIC_VERSION, GroupRecord, opened, sealed
from router.broker.kafka.group_values import KafkaMember
from router.broker.node.registry import FILE
from router.errors import BackendUnavailableError
from router.settings import load
from router.sharing.registry import GROUP_RECORDS, MAX_VALUE_BYTES, RegistryRecord
from router.wire.kafka.error_codes import ErrorCode
from tests.unit.broker.kafka.grouping import (
    NO_DELAY,
    TOPIC,
    alone,
    assignment,
    commit,
    join,
    joining,
    run,
    sync,
)
from tests.unit.broker.kafka.serving import KafkaClient, KafkaServer, with_server

SETTINGS = load(None, NO_DELAY)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
members = st.builds(
    KafkaMember[Any],
    text,
    st.none() | text,
    text,
    text,
    st.floats(0, 1e6),
    st.floats(0, 1e6),
    st.lists(st.tuples(text, st.binary(max_size=5)), max_size=3).map(tuple),
    st.just(0.0),
    st.binary(max_size=5),
    answered=st.just(True),
    owner=text,
)
records = st.builds(
    GroupRecord,
    st.integers(0, 2**31 - 1),
    text,
    text,
    text,
    st.lists(members, max_size=4).map(tuple),
)


@given(records)
def test_a_record_is_read_as_it_was_written(record: GroupRecord) -> None:
    loaded = GroupRecord.load(record.dump())
    assert replace(loaded, members=()) == replace(record, members=())
    assert list(map(repr, loaded.members)) == list(map(repr, record.members))


@given(records, st.data())
def test_a_damaged_record_is_refused(record: GroupRecord, data: st.DataObject) -> None:
    value = bytearray(record.dump())
    value[data.draw(st.integers(0, len(value) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ValueError):  # noqa: PT011 - the sentence depends on the place
        GroupRecord.load(bytes(value))


@given(records, st.data())
def test_a_record_that_is_cut_short_is_refused(record: GroupRecord, data: st.DataObject) -> None:
    value = record.dump()
    with pytest.raises(ValueError):  # noqa: PT011 - the sentence depends on the place
        GroupRecord.load(value[: data.draw(st.integers(0, len(value) - 1))])


def test_a_member_whose_record_names_no_principal_may_be_of_any() -> None:
    """As earlier versions wrote them."""
    member = ConsumerMember("a", None, "client", "host", pattern="t.*", owner="anna")
    record = ConsumerGroupRecord(1, 1, {}, (member,))
    assert ConsumerGroupRecord.load(record.dump()).members[0].owner == "anna"
    *head, members = orjson.loads(opened(CONSUMER_VERSION, record.dump()))
    earlier = sealed(CONSUMER_VERSION, orjson.dumps([*head, [members[0][:-1]]]))
    (loaded,) = ConsumerGroupRecord.load(earlier).members
    assert (loaded.id, loaded.pattern, loaded.owner) == ("a", "t.*", "")


def test_a_classic_member_whose_record_names_no_principal_is_loaded() -> None:
    """As earlier versions wrote them."""
    member = KafkaMember[Any]("a", None, "c", "h", 45.0, 60.0, (), 0.0, b"data", owner="anna")
    body = opened(CLASSIC_VERSION, GroupRecord(1, "consumer", "range", "a", (member,)).dump())
    size = int.from_bytes(body[:4])
    *head, (fields,), sizes = orjson.loads(body[4 : 4 + size])
    earlier = orjson.dumps([*head, [fields[:-1]], sizes])
    body = len(earlier).to_bytes(4) + earlier + body[4 + size :]
    (loaded,) = GroupRecord.load(sealed(CLASSIC_VERSION, body)).members
    assert (loaded.id, loaded.assignment, loaded.owner) == ("a", b"data", "")


def test_what_members_have_in_common_is_stored_once() -> None:
    def size(count: int) -> int:
        found = tuple(
            KafkaMember[Any](
                f"{n:036}", None, "c", "h", 45.0, 60.0, (("range", bytes(8_000)),), 0.0
            )
            for n in range(count)
        )
        return len(GroupRecord(1, "consumer", "range", "", found).dump())

    assert size(1_000) - size(1) < 1_000 * 100


def again(folder: Path, test: Callable[[KafkaServer], Awaitable[None]], **options: Any) -> None:
    """Run a test against the next broker of a folder."""
    with_server(folder, test, settings=SETTINGS, **options)


async def beat(client: KafkaClient, joined: Any, **fields: Any) -> int:
    answer = await client.ask(
        "Heartbeat",
        3,
        **{"group_id": "g", "generation_id": joined.generation_id, "member_id": joined.member_id}
        | fields,
    )
    return int(answer.error_code)


async def described(client: KafkaClient) -> Any:
    (group,) = (await client.ask("DescribeGroups", 5, groups=["g"])).groups
    return group


def stored(folder: Path) -> dict[str, bytes]:
    with closing(sqlite3.connect(folder / "data" / FILE)) as connection:
        query = "SELECT name, value FROM records WHERE kind = ?"
        return dict(connection.execute(query, (GROUP_RECORDS,)))


def coordinator_of(client: KafkaClient) -> GroupCoordinator:
    session: Any = client.connection.session
    found: GroupCoordinator = session.context.coordinator
    return found


def test_members_go_on_after_a_restart_of_the_broker(tmp_path: Path) -> None:
    found: list[Any] = []

    async def before(server: KafkaServer) -> None:
        client = server.client()
        found.append(await alone(client))
        found.append(await described(client))

    async def after(server: KafkaServer) -> None:
        joined, group = found
        client = server.client()
        assert await described(client) == group
        assert server.topics.live_members.readers(str(TOPIC), "g", 0) == 1
        assert await beat(client, joined) == ErrorCode.NONE
        assert await beat(client, joined, generation_id=2) == ErrorCode.ILLEGAL_GENERATION
        named = {"member_id": joined.member_id, "generation_id_or_member_epoch": 1}
        assert await commit(client, {0: 3}, **named) == [ErrorCode.NONE]
        assert await commit(client, {0: 3}) == [ErrorCode.UNKNOWN_MEMBER_ID]
        assert (await sync(client, joined)).assignment == assignment("orders", 0, 1)

    run(tmp_path, before)
    again(tmp_path, after)
    again(tmp_path, after)


def test_members_that_do_not_come_back_are_removed_after_their_session(tmp_path: Path) -> None:
    found: list[Any] = []

    async def before(server: KafkaServer) -> None:
        found.append(await alone(server.client(), session_timeout_ms=1_000))

    async def after(server: KafkaServer) -> None:
        client = server.client()
        assert await beat(client, found[0]) == ErrorCode.NONE
        async with asyncio.timeout(20):
            while coordinator_of(client).ids():  # noqa: ASYNC110 - the broker's timer tells no test
                await asyncio.sleep(0.05)
        assert await beat(client, found[0]) == ErrorCode.UNKNOWN_MEMBER_ID
        assert not server.topics.live_members.of(str(TOPIC), "g")
        await gone(client)

    run(tmp_path, before)
    again(tmp_path, after)
    assert stored(tmp_path) == {}


async def gone(client: KafkaClient) -> None:
    """Wait until what the coordinator began to store is stored."""
    await asyncio.gather(*coordinator_of(client)._held._tasks)


def test_a_rebalance_under_way_is_forgotten_and_begins_again(tmp_path: Path) -> None:
    """As at Apache Kafka: the last completed generation holds until its members join again."""
    found: list[Any] = []

    async def before(server: KafkaServer) -> None:
        first, second = server.client(), server.client()
        joined = await alone(first)
        joining(second, 2)
        assert await beat(first, joined) == ErrorCode.REBALANCE_IN_PROGRESS
        joining(first, 2, joined.member_id)
        found.extend((joined, await first.receive(), await second.receive()))

    async def after(server: KafkaServer) -> None:
        old, leader, other = found
        assert (leader.generation_id, other.generation_id) == (2, 2)
        client, second = server.client(), server.client()
        assert await beat(client, old) == ErrorCode.NONE
        assert await beat(client, leader) == ErrorCode.ILLEGAL_GENERATION
        assert await beat(client, other) == ErrorCode.UNKNOWN_MEMBER_ID
        joining(second, 2)
        assert await beat(client, old) == ErrorCode.REBALANCE_IN_PROGRESS
        joining(client, 2, old.member_id)
        both = await client.receive(), await second.receive()
        assert [(one.error_code, one.generation_id) for one in both] == [(0, 2), (0, 2)]

    run(tmp_path, before)
    again(tmp_path, after)


def test_a_group_that_was_emptied_is_empty_after_a_restart(tmp_path: Path) -> None:
    async def before(server: KafkaServer) -> None:
        client = server.client()
        joined = await alone(client)
        assert list(stored(tmp_path)) == ["g"]
        named = {"member_id": joined.member_id, "generation_id_or_member_epoch": 1}
        assert await commit(client, {0: 3}, **named) == [ErrorCode.NONE]
        await client.ask("LeaveGroup", 2, group_id="g", member_id=joined.member_id)
        await gone(client)

    async def after(server: KafkaServer) -> None:
        client = server.client()
        assert (await described(client)).group_state == "Empty"
        assert coordinator_of(client).ids() == []
        assert (await client.ask("DeleteGroups", 2, groups_names=["g"])).results[0].error_code == 0
        assert (await alone(client)).generation_id == 1

    run(tmp_path, before)
    assert stored(tmp_path) == {}
    again(tmp_path, after)


def test_a_static_member_has_its_new_id_after_a_restart(tmp_path: Path) -> None:
    found: list[Any] = []

    async def before(server: KafkaServer) -> None:
        first = await alone(server.client(), group_instance_id="i")
        replaced = await join(server.client(), group_instance_id="i")
        assert replaced.error_code == 0
        found.extend((first, replaced))

    async def after(server: KafkaServer) -> None:
        client = server.client()
        named = {"group_instance_id": "i"}
        assert await beat(client, found[1], **named) == ErrorCode.NONE
        assert await beat(client, found[0], **named) == ErrorCode.FENCED_INSTANCE_ID

    run(tmp_path, before)
    again(tmp_path, after)


def test_a_group_is_stored_that_is_larger_than_other_records(tmp_path: Path) -> None:
    async def test(server: KafkaServer) -> None:
        client = server.client()
        joined = await join(client)
        given = {joined.member_id: bytes(2 * MAX_VALUE_BYTES)}
        assert (await sync(client, joined, given)).error_code == ErrorCode.NONE

    run(tmp_path, test)
    assert len(stored(tmp_path)["g"]) > 2 * MAX_VALUE_BYTES


class SlowRegistry:
    """A registry whose writes wait, in their order, until the test lets them go or fail."""

    def __init__(self, registry: Any) -> None:
        self._registry = registry
        self.let_go = asyncio.Event()
        self.began = asyncio.Event()
        self.failure: Exception | None = None

    async def put(self, kind: str, name: str, value: bytes, expected: int | None) -> RegistryRecord:
        self.began.set()
        await self.let_go.wait()
        if self.failure is not None:
            raise self.failure
        record: RegistryRecord = await self._registry.put(kind, name, value, expected)
        return record

    async def delete(self, kind: str, name: str) -> bool:
        await self.let_go.wait()
        return bool(await self._registry.delete(kind, name))


def slowed(client: KafkaClient) -> SlowRegistry:
    records: Any = coordinator_of(client)._held
    records._registry = SlowRegistry(records._registry)
    slow: SlowRegistry = records._registry
    return slow


def test_an_assignment_is_answered_when_it_is_on_disk(tmp_path: Path) -> None:
    async def test(server: KafkaServer) -> None:
        client = server.client()
        joined = await join(client)
        slow = slowed(client)
        given = {joined.member_id: b"mine"}
        answer = asyncio.create_task(sync(client, joined, given))
        await slow.began.wait()
        assert stored(tmp_path) == {}
        assert not client.take()
        slow.let_go.set()
        assert (await answer).assignment == b"mine"
        assert list(stored(tmp_path)) == ["g"]

    run(tmp_path, test)


def test_members_join_again_when_their_group_cannot_be_stored(tmp_path: Path) -> None:
    async def test(server: KafkaServer) -> None:
        client = server.client()
        joined = await join(client)
        slow = slowed(client)
        slow.let_go.set()
        slow.failure = BackendUnavailableError("no space")
        with capture_logs() as logs:
            answer = await sync(client, joined, {joined.member_id: b"mine"})
        assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert answer.assignment == b""
        assert [one["event"] for one in logs] == ["kafka-group-not-stored"]
        assert (await sync(client, joined)).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        slow.failure = None
        assert (await sync(client, joined)).assignment == b"mine"
        assert list(stored(tmp_path)) == ["g"]

    run(tmp_path, test)


def test_a_member_that_leaves_while_its_group_is_stored_does_not_come_back(tmp_path: Path) -> None:
    async def test(server: KafkaServer) -> None:
        client, other = server.client(), server.client()
        joined = await join(client)
        slow = slowed(client)
        answer = asyncio.create_task(sync(client, joined, {joined.member_id: b"mine"}))
        await slow.began.wait()
        await other.ask("LeaveGroup", 2, group_id="g", member_id=joined.member_id)
        slow.let_go.set()
        await answer
        await gone(client)

    run(tmp_path, test)
    assert stored(tmp_path) == {}


def test_a_damaged_record_is_reported_and_its_group_starts_empty(tmp_path: Path) -> None:
    async def before(server: KafkaServer) -> None:
        await alone(server.client())

    async def after(server: KafkaServer) -> None:
        client = server.client()
        assert coordinator_of(client).ids() == []
        assert (await alone(client)).generation_id == 1

    run(tmp_path, before)
    with closing(sqlite3.connect(tmp_path / "data" / FILE)) as connection:
        row_sums.install(connection)
        connection.execute("UPDATE records SET value = substr(value, 1, 20)")
        connection.commit()
    with capture_logs() as logs:
        again(tmp_path, after)
    (event,) = [one for one in logs if one["event"] == "kafka-group-damaged"]
    assert (event["group"], event["log_level"]) == ("g", "warning")


def test_a_broker_that_ends_removes_no_member(tmp_path: Path) -> None:
    """Neither for the connections that it closes nor for heartbeats that it does not read."""

    async def before(server: KafkaServer) -> None:
        client, other = server.client(), server.client()
        joined = await alone(client, session_timeout_ms=1_000)
        joining(other, 2)
        assert await beat(client, joined) == ErrorCode.REBALANCE_IN_PROGRESS
        server.context.broker.ending.set()
        client.leave()
        other.leave()
        held: Any = coordinator_of(client)._held.by_id["g"]
        assert held.timer is not None
        held.timer.cancel()
        held.group._join_deadline = 0.0
        coordinator_of(client)._held._fire(held)
        await gone(client)

    run(tmp_path, before)
    assert list(stored(tmp_path)) == ["g"]
