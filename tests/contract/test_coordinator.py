"""What every coordinator promises, and what only several nodes can show, on a real ZooKeeper."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from router.coordination import Lease, RemoteGroup
from router.coordination.zookeeper import ZookeeperOptions, coordinator
from router.coordination.zookeeper.inspection import release, show
from router.errors import CoordinationUnavailableError, SettingError
from tests.contract.coordinating import (
    LEASE,
    PATIENCE,
    SESSION,
    TOPIC,
    Heard,
    alone,
    below,
    joined,
    new_chroot,
    off_loop,
    play,
    until,
)
from tests.servers.zookeeper import Zookeeper

pytestmark = pytest.mark.contract

Opening = Callable[[], AbstractAsyncContextManager[list[Heard]]]


@pytest.fixture(params=["single", "zookeeper"])
def opening(request: pytest.FixtureRequest) -> Opening:
    if request.param == "single":
        return alone
    server: Zookeeper = request.getfixturevalue("zookeeper")
    return lambda: joined(server.address + new_chroot())


@pytest.fixture
def where(zookeeper: Zookeeper) -> str:
    """The shared server with a chroot of the test's own."""
    return zookeeper.address + new_chroot()


@asynccontextmanager
async def two_in_line(where: str) -> AsyncIterator[tuple[Heard, Heard]]:
    """Give two nodes: the first one holds the lease, the second one queues for it."""
    async with joined(where, where) as (first, second):
        first.coordinator.acquire(LEASE)
        await until(lambda: first.holds)
        second.coordinator.acquire(LEASE)
        yield first, second


def test_lease_that_nobody_else_wants_is_held(opening: Opening) -> None:
    async def scene() -> None:
        async with opening() as (node,):
            node.coordinator.acquire(LEASE)
            await until(lambda: LEASE in node.holds)
            assert node.coordinator.holder(LEASE) is None
            assert node.coordinator.is_valid()
            assert node.coordinator.unavailable_reason() is None

    play(scene)


def test_lease_let_go_is_held_again_when_it_is_asked_for_again(opening: Opening) -> None:
    async def scene() -> None:
        async with opening() as (node,):
            for _ in range(5):
                node.coordinator.acquire(LEASE)
                node.release(LEASE)
            node.coordinator.acquire(LEASE)
            await until(lambda: LEASE in node.holds)
            node.release(LEASE)
            node.coordinator.release(LEASE)
            assert not node.wanted_by_others

    play(scene)


def test_leases_are_apart(opening: Opening) -> None:
    leases = [
        Lease(topic, group, partition)
        for topic in (TOPIC, "..", "a/b@c-0000000001", "")
        for group in ("g", ".", "ü/ %2F")
        for partition in (-1, 0)
    ]

    async def scene() -> None:
        async with opening() as (node,):
            for lease in leases:
                node.coordinator.acquire(lease)
            await until(lambda: node.holds == set(leases))
            assert not node.wanted_by_others

    play(scene)


def test_ids_may_come_and_go_in_any_order(opening: Opening) -> None:
    async def scene() -> None:
        async with opening() as (node,):
            node.coordinator.leave(TOPIC, "g", "nobody")
            for _ in range(3):
                node.coordinator.join(TOPIC, "g", "c1")
                node.coordinator.join(TOPIC, "g", "c1")
                node.coordinator.leave(TOPIC, "g", "c1")
            await asyncio.sleep(0.05)
            assert not any(node.ids.values())

    play(scene)


def test_lease_is_held_by_one_and_handed_over_when_it_is_let_go(where: str) -> None:
    async def scene() -> None:
        async with joined(where, where, where) as nodes:
            for node in nodes:
                node.coordinator.acquire(LEASE)
            for left in (3, 2, 1):
                await until(lambda: any(node.holds for node in nodes))
                (holder,) = [node for node in nodes if node.holds]
                await until(lambda left=left: sum(bool(n.behind) for n in nodes) == left - 1)  # type: ignore[misc] # a default
                await until(lambda h=holder, left=left: bool(h.wanted_by_others) == (left > 1))  # type: ignore[misc] # a default
                holder.release(LEASE)
            await until(lambda: not any(node.behind for node in nodes))

    play(scene)


def test_holder_is_named_to_who_waits(where: str) -> None:
    async def scene() -> None:
        async with two_in_line(where) as (first, second):
            await until(lambda: second.behind)
            assert second.coordinator.holder(LEASE) == "node-a"
            assert first.coordinator.holder(LEASE) is None

    play(scene)


def test_node_that_queues_again_waits_behind_the_other(where: str) -> None:
    async def scene() -> None:
        async with two_in_line(where) as (first, second):
            await until(lambda: first.wanted_by_others)
            for giver, taker in [(first, second), (second, first)] * 3:
                await until(lambda g=giver: g.wanted_by_others)  # type: ignore[misc] # a default
                giver.release(LEASE)
                giver.coordinator.acquire(LEASE)
                await until(lambda t=taker: t.holds)  # type: ignore[misc] # a default
                assert not giver.holds

    play(scene)


def test_note_of_a_holder_is_handed_to_the_next_and_to_nobody_else(where: str) -> None:
    async def scene() -> None:
        async with two_in_line(where) as (first, second):
            await until(lambda: second.behind)
            first.release(LEASE, b"read up to here")
            first.coordinator.acquire(LEASE)
            await until(lambda: second.holds and first.behind)
            second.release(LEASE)
            await until(lambda: first.holds)
            assert (first.notes, second.notes) == ([b"", b""], [b"read up to here"])

    play(scene)


def test_waiting_node_that_gives_up_is_not_waited_for(where: str) -> None:
    async def scene() -> None:
        async with joined(where, where, where) as (first, second, third):
            for node in (first, second, third):
                node.coordinator.acquire(LEASE)
                await until(lambda n=node: n.holds or n.behind)  # type: ignore[misc] # a default
            second.release(LEASE)
            first.release(LEASE)
            await until(lambda: third.holds)

    play(scene)


def test_ids_are_seen_by_the_others_and_vanish_when_they_leave(where: str) -> None:
    ids = ["c1", "c2", "a/b@c~d", ".."]

    async def scene() -> None:
        async with joined(where, where) as (first, second):
            second.coordinator.join(TOPIC, "g", "own")
            for consumer in ids:
                first.coordinator.join(TOPIC, "g", consumer)
            await until(lambda: second.ids.get("g") == frozenset(ids))
            first.coordinator.leave(TOPIC, "g", "c1")
            await until(lambda: second.ids["g"] == frozenset(ids[1:]))
            await until(lambda: first.ids["g"] == frozenset({"own"}))
            # who comes back to a group is told again who is there
            second.ids.clear()
            second.coordinator.leave(TOPIC, "g", "own")
            second.coordinator.join(TOPIC, "g", "own")
            await until(lambda: second.ids.get("g") == frozenset(ids[1:]))

    play(scene)


def test_a_group_is_looked_at_from_any_node(where: str) -> None:
    lease = Lease(TOPIC, "g", 3)

    async def scene() -> None:
        async with joined(where, where, where) as (first, second, third):
            assert await third.coordinator.remote_group(TOPIC, "g") == RemoteGroup()
            first.coordinator.join(TOPIC, "g", "a/b@c")
            first.coordinator.acquire(lease)
            await until(lambda: first.holds)
            second.coordinator.acquire(lease)
            await until(lambda: second.behind)
            seen = await third.coordinator.remote_group(TOPIC, "g")
            while not seen.members:
                seen = await third.coordinator.remote_group(TOPIC, "g")
            assert seen == RemoteGroup((("a/b@c", "node-a"),), {3: ("node-a", "node-b")})
            mine = await first.coordinator.remote_group(TOPIC, "g")
            assert mine == RemoteGroup((), {3: ("", "node-b")})

    play(scene)


def test_nothing_is_left_in_the_tree_when_everything_was_let_go(
    where: str, zookeeper: Zookeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "SWEEP_SECONDS", 0.05)
    leases = [Lease(TOPIC, group, partition) for group in "gh" for partition in range(3)]
    path = where.removeprefix(zookeeper.address)

    async def scene() -> None:
        async with joined(where, where) as nodes:
            for node in nodes:
                for lease in leases:
                    node.coordinator.acquire(lease)
                node.coordinator.join(TOPIC, "g", "c")
            await until(lambda: set().union(*(n.holds for n in nodes)) == set(leases))
            for node in nodes:
                for lease in leases:
                    node.release(lease)
                node.coordinator.leave(TOPIC, "g", "c")
            tree = ["/router", "/router/ids", "/router/leases"]
            deadline = time.monotonic() + PATIENCE
            while time.monotonic() < deadline:
                if await off_loop(below, zookeeper.address, path) == [path + p for p in tree]:
                    return
                await asyncio.sleep(0.01)
            pytest.fail(str(await off_loop(below, zookeeper.address, path)))

    play(scene)


def test_session_is_as_long_as_the_server_grants(where: str) -> None:
    async def scene() -> None:
        async with joined(where, session=0.01) as (node,):
            await until(node.coordinator.is_valid)
            link = node.coordinator._link  # type: ignore[attr-defined] # ours
            assert link._granted == pytest.approx(0.4)

    play(scene)


def test_lease_taken_by_an_operator_goes_to_the_next(where: str) -> None:
    async def scene() -> None:
        async with joined(where, where) as (first, second):
            first.coordinator.join(TOPIC, "g", "c1")
            first.coordinator.acquire(LEASE)
            await until(lambda: first.holds)
            assert await off_loop(release, where, "", TOPIC, "g", None, PATIENCE) == 1
            await until(lambda: first.told == ["held", "lost", "held"])
            second.coordinator.acquire(LEASE)
            await until(lambda: second.behind)
            (view,) = await off_loop(show, where, "", PATIENCE)
            assert (view.topic, view.group, view.ids) == (TOPIC, "g", {"c1": ("node-a",)})
            (partition,) = view.partitions
            assert (partition.holder, partition.waiting) == ("node-a", ("node-b",))
            assert await off_loop(release, where, "", TOPIC, "g", 0, PATIENCE) == 1
            await until(lambda: second.holds and first.behind)
            assert await off_loop(release, where, "", TOPIC, "g", 7, PATIENCE) == 0

    play(scene)


def test_nodes_with_a_digest_are_not_for_others(where: str, zookeeper: Zookeeper) -> None:
    async def scene() -> None:
        async with joined(where, digest="router:secret") as (node,):
            node.coordinator.acquire(LEASE)
            await until(lambda: node.holds)
            assert len(await off_loop(show, where, "router:secret", PATIENCE)) == 1
            with pytest.raises(CoordinationUnavailableError, match="cannot be read"):
                await off_loop(show, where, "router:guess", PATIENCE)
            async with joined(where, digest="router:guess") as (stranger,):
                stranger.coordinator.acquire(LEASE)
                await until(lambda: "refuses" in (stranger.coordinator.unavailable_reason() or ""))
                assert not stranger.holds

    play(scene)


@pytest.mark.parametrize(
    ("servers", "digest"),
    [("", ""), ("host:port", ""), ("a:1,,b:2", ""), ("a:1//x", ""), ("a:1", "user")],
)
def test_options_are_refused_with_a_sentence(servers: str, digest: str) -> None:
    with pytest.raises(SettingError, match="expected"):
        ZookeeperOptions.parse(servers, SESSION, digest)


def test_options_have_the_chroot_apart() -> None:
    options = ZookeeperOptions.parse("[::1]:2181,zk.example.org/a/b/", SESSION)
    assert (options.servers, options.chroot) == ("[::1]:2181,zk.example.org", "/a/b")
