"""Groups with very many positions: syncs are shared, and others are served between the steps."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from router.broker.consume import ClientConsumer, Partition, StartPosition, SubscriptionType
from router.broker.disk.files import Disk
from router.broker.kafka.coordinator import GroupCoordinator
from router.broker.topics import steps
from router.broker.topics.changes import terminate
from router.broker.topics.groups import TopicSubscriptions
from router.broker.topics.offsets import GroupOffsets
from router.errors import SubscriptionBusyError, SubscriptionLimitError
from router.model import TopicName
from router.settings import load
from router.wire.kafka.error_codes import ErrorCode
from tests.unit.broker.consume.dispatch.bench import Notes
from tests.unit.broker.kafka.grouping import NO_DELAY, TOPIC, alone, commit
from tests.unit.broker.kafka.serving import KafkaClient, KafkaServer, serving
from tests.unit.broker.kafka.test_transactions import producers_of
from tests.unit.broker.kafka.transacting import TransactionalClient

PARTITIONS = 10
STEP = 4
STEPS = 3
OFFSETS = dict.fromkeys(range(PARTITIONS), 0)


class CountingDisk(Disk):
    """A disk that counts the commits of databases."""

    commits = 0

    def commit(self, connection: sqlite3.Connection) -> None:
        self.commits += 1
        super().commit(connection)


@asynccontextmanager
async def in_small_steps(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[KafkaServer, KafkaClient, CountingDisk]]:
    monkeypatch.setattr(steps, "PARTS_IN_STEP", STEP)
    disk = CountingDisk()
    async with serving(folder, disk=disk, settings=load(None, NO_DELAY)) as server:
        await server.topics.create(TOPIC, PARTITIONS)
        yield server, server.client(), disk


def positions(server: KafkaServer) -> int:
    """Return how many partitions have a committed position of the group."""
    found = (one.subscriptions.get("g") for one in server.topics.pieces(TOPIC))
    records = (one.record for one in found if one is not None)
    return sum(record is not None and record.commit is not None for record in records)


async def most_in_a_turn(work: Awaitable[Any], count: Callable[[], int]) -> int:
    """Return by how much a count changed at most in a turn of the event loop, until work ends."""
    task, counts = asyncio.ensure_future(work), [count()]
    while not task.done():
        await asyncio.sleep(0)
        counts.append(count())
    await task
    return max(abs(after - before) for before, after in pairwise(counts))


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the topics of which it is looked whether other protocols read them, from now on."""
    topics, is_read = [], GroupCoordinator.is_read

    def counting(self: GroupCoordinator, record: Any, name: str) -> bool:
        topics.append(record.name)
        return is_read(self, record, name)

    monkeypatch.setattr(GroupCoordinator, "is_read", counting)
    return topics


async def delete_group(client: KafkaClient, code: int = 0) -> None:
    answer = await client.ask("DeleteGroups", 2, groups_names=["g"])
    assert [one.error_code for one in answer.results] == [code]


async def delete_offsets(client: KafkaClient) -> None:
    name = "OffsetDeleteRequest"
    parts = [
        client.struct(name, f"{name}Partition", partition_index=number)
        for number in range(PARTITIONS)
    ]
    topic = client.struct(name, f"{name}Topic", name="orders", partitions=parts)
    answer = await client.ask("OffsetDelete", 0, group_id="g", topics=[topic])
    assert {one.error_code for one in answer.topics[0].partitions} == {0}


async def test_cursors_of_a_new_group_are_made_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_small_steps(tmp_path, monkeypatch) as (server, client, disk):
        before = disk.commits
        most = await most_in_a_turn(commit(client, OFFSETS), lambda: positions(server))
        assert (positions(server), most) == (PARTITIONS, STEP)
        # The first of a step does not wait for the others.
        assert disk.commits - before <= 2 * STEPS


@pytest.mark.parametrize(("delete", "looks"), [(delete_group, 1 + STEPS), (delete_offsets, STEPS)])
async def test_positions_are_deleted_side_by_side(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    delete: Callable[[KafkaClient], Awaitable[None]],
    looks: int,
) -> None:
    async with in_small_steps(tmp_path, monkeypatch) as (server, client, disk):
        assert set(await commit(client, OFFSETS)) == {0}
        looked, before = counted(monkeypatch), disk.commits
        most = await most_in_a_turn(delete(client), lambda: positions(server))
        assert positions(server) == 0
        assert most <= STEP
        assert disk.commits - before <= 2 * STEPS
        assert len(looked) == looks


async def test_what_is_done_to_all_partitions_is_done_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_small_steps(tmp_path, monkeypatch) as (server, _, disk):
        groups = TopicSubscriptions(server.topics)
        for work in (
            lambda: groups.subscribe(TOPIC, "g", StartPosition()),
            lambda: groups.unsubscribe(TOPIC, "g"),
            lambda: terminate(server.topics, TOPIC),
        ):
            before = disk.commits
            await work()
            assert disk.commits - before <= 2 * STEPS


async def test_a_topic_that_is_deleted_meanwhile_takes_its_positions_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = TopicName.parse("persistent://public/default/second")
    async with in_small_steps(tmp_path, monkeypatch) as (server, client, _):
        monkeypatch.setattr(steps, "PARTS_IN_STEP", 1)
        await server.topics.create(second, 1)
        for topic in ("orders", "second"):
            assert await commit(client, {0: 0}, topic=topic) == [0]
        once_done(monkeypatch, "delete", lambda: server.topics.delete(second))
        await delete_group(client)
        assert positions(server) == 0


async def test_a_member_that_leaves_meanwhile_commits_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_small_steps(tmp_path, monkeypatch) as (server, client, _):
        joined, other = await alone(client), server.client()
        leaving = {"group_id": "g", "member_id": joined.member_id}
        once_done(monkeypatch, "commit", lambda: other.ask("LeaveGroup", 1, **leaving))
        of_member = {"member_id": joined.member_id, "generation_id_or_member_epoch": 1}
        codes = await commit(client, OFFSETS, **of_member)
        refused = [ErrorCode.ILLEGAL_GENERATION] * (PARTITIONS - STEP)
        assert codes == [0] * STEP + refused


async def test_a_member_that_leaves_meanwhile_has_no_position_in_a_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_small_steps(tmp_path, monkeypatch) as (server, client, _):
        assert set(await commit(client, OFFSETS)) == {0}
        joined, other = await alone(client), server.client()
        producer, of_member = await in_transaction(client), member_fields(joined)
        found: list[int] = []

        async def leave() -> None:
            await other.ask("LeaveGroup", 1, group_id="g", member_id=joined.member_id)
            found.extend(await stable_offsets(other))

        once_done(monkeypatch, "open", leave)
        codes = await producer.commit_offsets("g", OFFSETS, "orders", **of_member)
        assert set(codes) == {ErrorCode.ILLEGAL_GENERATION}
        assert set(found) == set(await stable_offsets(other)) == {0}
        (transaction,) = producers_of(server).transactions.open
        assert not transaction.positions


async def test_a_transaction_takes_all_positions_of_a_request_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_small_steps(tmp_path, monkeypatch) as (server, client, _):
        joined = await alone(client)
        producer, of_member = await in_transaction(client), member_fields(joined)
        (transaction,) = producers_of(server).transactions.open
        work = producer.commit_offsets("g", OFFSETS, "orders", **of_member)
        most = await most_in_a_turn(work, lambda: len(transaction.positions))
        assert (most, len(transaction.positions)) == (PARTITIONS, PARTITIONS)
        unstable = await stable_offsets(server.client())
        assert unstable == [ErrorCode.UNSTABLE_OFFSET_COMMIT] * PARTITIONS


async def in_transaction(client: KafkaClient) -> TransactionalClient:
    """Return a producer with a transaction that will commit positions of the group."""
    producer = TransactionalClient(client)
    assert await producer.init() == 0
    assert await producer.add_offsets("g") == 0
    return producer


def member_fields(joined: Any) -> dict[str, Any]:
    return {"member_id": joined.member_id, "generation_id": joined.generation_id}


async def stable_offsets(client: KafkaClient) -> list[int]:
    """Return the codes of the partitions where only offsets that are decided are asked for."""
    topic = client.struct(
        "OffsetFetchRequest",
        "OffsetFetchRequestTopic",
        name="orders",
        partition_indexes=list(OFFSETS),
    )
    answer = await client.ask("OffsetFetch", 7, group_id="g", topics=[topic], require_stable=True)
    return [part.error_code for part in answer.topics[0].partitions]


async def test_a_group_that_gets_a_member_meanwhile_keeps_what_it_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_small_steps(tmp_path, monkeypatch) as (server, client, _):
        assert set(await commit(client, OFFSETS)) == {0}
        other = server.client()

        async def join() -> None:
            joined = await alone(other)
            of_member = {"member_id": joined.member_id, "generation_id_or_member_epoch": 1}
            assert await commit(other, {PARTITIONS - 1: 0}, **of_member) == [0]

        once_done(monkeypatch, "delete", join)
        await delete_group(client, ErrorCode.NON_EMPTY_GROUP)
        assert positions(server) == PARTITIONS - STEP


async def test_a_group_that_gets_a_consumer_meanwhile_keeps_its_positions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_small_steps(tmp_path, monkeypatch) as (server, client, _):
        assert set(await commit(client, OFFSETS)) == {0}

        async def come() -> None:
            attach(server, PARTITIONS - 1)

        once_done(monkeypatch, "delete", come)
        await delete_group(client, ErrorCode.NON_EMPTY_GROUP)
        assert positions(server) == PARTITIONS - STEP


@pytest.mark.parametrize("by_member", [True, False])
async def test_a_subscription_that_is_read_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, by_member: bool
) -> None:
    async with in_small_steps(tmp_path, monkeypatch) as (server, client, _):
        assert set(await commit(client, OFFSETS)) == {0}

        async def come() -> None:
            if by_member:
                await alone(client)
            else:
                attach(server, PARTITIONS - 1)

        once_done(monkeypatch, "delete", come, of=Partition)
        with pytest.raises(SubscriptionBusyError):
            await TopicSubscriptions(server.topics).unsubscribe(TOPIC, "g")
        assert positions(server) == PARTITIONS - STEP


def attach(server: KafkaServer, index: int) -> None:
    """Have a consumer of another protocol read a partition as the group."""
    consumer: Any = ClientConsumer(Notes(), 1, "c")
    found = server.topics.pieces(TOPIC)[index].subscriptions["g"]
    found.attach(consumer, SubscriptionType.EXCLUSIVE)


async def test_a_position_without_a_cursor_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = GroupOffsets.open

    async def full(*_: Any) -> None:
        monkeypatch.setattr(GroupOffsets, "open", make)
        raise SubscriptionLimitError("full")

    async with in_small_steps(tmp_path, monkeypatch) as (server, client, _):
        monkeypatch.setattr(GroupOffsets, "open", full)
        codes = await commit(client, {0: 0, 1: 0})
        assert [bool(code) for code in codes] == [True, False]
        assert positions(server) == 1


def once_done(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    follow: Callable[[], Awaitable[Any]],
    of: type = GroupOffsets,
) -> None:
    """Have something done once after a call of a method, which waits for it."""
    method, left = getattr(of, name), [follow]

    async def followed(*arguments: Any) -> Any:
        result = await method(*arguments)
        while left:
            await left.pop()()
        return result

    monkeypatch.setattr(of, name, followed)
