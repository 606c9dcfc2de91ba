"""What nodes believe of their leases while connections break, servers go and time passes."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import SystemZookeeperError

from router.coordination import Lease
from tests.contract.coordinating import (
    LEASE,
    PATIENCE,
    TOPIC,
    Heard,
    joined,
    new_chroot,
    off_loop,
    play,
    until,
)
from tests.servers.proxy import TcpProxy
from tests.servers.zookeeper import Zookeeper

pytestmark = pytest.mark.contract


@pytest.fixture
def where(zookeeper: Zookeeper) -> str:
    """The shared server with a chroot of the test's own."""
    return zookeeper.address + new_chroot()


def test_lease_goes_on_when_its_holder_goes_away(where: str, zookeeper: Zookeeper) -> None:
    async def scene() -> None:
        with TcpProxy(zookeeper.address) as proxy:
            through = where.replace(zookeeper.address, proxy.address)
            async with joined(through, where) as (first, second):
                first.coordinator.join(TOPIC, "g", "c1")
                first.coordinator.acquire(LEASE)
                await until(lambda: first.holds)
                second.coordinator.join(TOPIC, "g", "c2")
                second.coordinator.acquire(LEASE)
                await until(lambda: second.behind and second.ids["g"] == frozenset({"c1"}))
                proxy.cut()
                await until(lambda: not first.holds)
                assert not first.coordinator.is_valid()
                assert first.coordinator.unavailable_reason()
                await until(lambda: second.holds)
                await until(lambda: second.ids["g"] == frozenset())
                proxy.heal()
                # in a new session the first queues anew, and tells of its ids
                await until(lambda: first.behind and second.ids["g"] == frozenset({"c1"}))
                assert first.coordinator.unavailable_reason() is None
                second.release(LEASE)
                await until(lambda: first.holds)

    play(scene)


def test_lease_is_kept_when_a_connection_breaks_for_a_moment(
    where: str, zookeeper: Zookeeper
) -> None:
    async def scene() -> None:
        with TcpProxy(zookeeper.address) as proxy:
            through = where.replace(zookeeper.address, proxy.address)
            async with joined(through, where, session=5) as (first, second):
                first.coordinator.acquire(LEASE)
                await until(lambda: first.holds)
                second.coordinator.acquire(LEASE)
                await until(lambda: second.behind)
                proxy.reset()
                await until(lambda: first.told == ["held", "lost", "held"])
                assert second.told == []
                assert len(first.troubles) == 3, "up, down, up"

    play(scene)


def test_node_that_is_cut_off_silently_is_not_sure_before_another_holds(
    where: str, zookeeper: Zookeeper
) -> None:
    async def scene() -> None:
        with TcpProxy(zookeeper.address) as proxy:
            through = where.replace(zookeeper.address, proxy.address)
            async with joined(through, where) as (first, second):
                first.coordinator.acquire(LEASE)
                await until(lambda: first.holds)
                second.coordinator.acquire(LEASE)
                await until(lambda: second.behind)
                proxy.stall()
                await until(lambda: second.holds)
                # Not as it was before: this process may have stood still in between.
                assert not first.coordinator.is_valid()
                await until(lambda: not first.holds)
                proxy.heal()
                await until(lambda: first.behind)

    play(scene)


def test_node_that_stood_still_is_not_sure_until_it_has_heard_again(where: str) -> None:
    stood = 0.0

    async def scene() -> None:
        nonlocal stood
        async with joined(where, session=10, clock=lambda: time.monotonic() + stood) as (node,):
            node.coordinator.acquire(LEASE)
            await until(lambda: node.holds)
            assert node.coordinator.is_valid()
            stood = 10 * 2 / 3
            assert not node.coordinator.is_valid()
            await until(node.coordinator.is_valid)
            assert node.told == ["held"]

    play(scene)


def test_node_that_is_refused_a_heartbeat_asks_again(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(client: KazooClient, _: str) -> Any:
        answer = client.handler.async_result()
        answer.set_exception(SystemZookeeperError())
        return answer

    async def scene() -> None:
        async with joined(where) as (node,):
            node.coordinator.acquire(LEASE)
            await until(lambda: node.holds)
            with monkeypatch.context() as patched:
                patched.setattr(KazooClient, "sync_async", refused)
                await until(lambda: not node.coordinator.is_valid())
            await until(node.coordinator.is_valid)
            assert node.told == ["held"], "the same session"

    play(scene)


def test_node_ends_soon_when_the_server_does_not_answer(where: str, zookeeper: Zookeeper) -> None:
    async def scene() -> None:
        with TcpProxy(zookeeper.address) as proxy:
            async with joined(where.replace(zookeeper.address, proxy.address)) as (node,):
                node.coordinator.acquire(LEASE)
                await until(lambda: node.holds)
                proxy.stall()
                began = time.monotonic()
                await node.coordinator.close()
                assert time.monotonic() - began < PATIENCE / 2

    play(scene)


def test_leases_and_ids_are_there_again_when_the_server_restarts(
    new_zookeeper: Callable[[], Zookeeper],
) -> None:
    server = new_zookeeper()
    server.start()

    async def scene() -> None:
        async with joined(server.address, server.address, session=10) as (first, second):
            for node, consumer in ((first, "c1"), (second, "c2")):
                node.coordinator.join(TOPIC, "g", consumer)
                node.coordinator.acquire(LEASE)
                await until(lambda n=node: n.holds or n.behind)  # type: ignore[misc] # a default
            await off_loop(server.kill)
            await until(lambda: not first.holds and first.coordinator.unavailable_reason())
            # what is let go while nobody hears it is let go later
            first.release(LEASE)
            second.behind.clear()
            await off_loop(server.start)
            await until(lambda: second.holds)
            first.coordinator.leave(TOPIC, "g", "c1")
            await until(lambda: second.ids["g"] == frozenset())

    play(scene)


def test_node_starts_without_a_server_and_connects_when_there_is_one(
    new_zookeeper: Callable[[], Zookeeper],
) -> None:
    server = new_zookeeper()

    async def scene() -> None:
        async with joined(f"{server.address}/not/there/yet") as (node,):
            node.coordinator.acquire(LEASE)
            node.coordinator.join(TOPIC, "g", "c1")
            assert server.address in (node.coordinator.unavailable_reason() or "")
            node.coordinator.acquire(Lease(TOPIC, "g", 1))
            node.coordinator.release(Lease(TOPIC, "g", 1))
            await off_loop(server.start)
            await until(lambda: node.holds == {LEASE})
            assert node.coordinator.unavailable_reason() is None

    play(scene)


async def _holders(nodes: set[Heard], lease: Lease) -> list[Heard]:
    """Wait for the nodes that are sure of a lease: one whose session is over may not know yet."""
    holders: list[Heard] = []

    def found() -> bool:
        holders[:] = [one for one in nodes if lease in one.holds and one.coordinator.is_valid()]
        return bool(holders)

    await until(found)
    return holders


@asynccontextmanager
async def _shaken(server: Zookeeper, where: str) -> AsyncIterator[tuple[list[Heard], TcpProxy]]:
    with TcpProxy(server.address) as proxy:
        through = where.replace(server.address, proxy.address)
        async with joined(where, through, where, session=0.4) as nodes:
            yield nodes, proxy


@pytest.mark.parametrize("seed", [1, 2])
def test_never_two_nodes_are_sure_of_a_lease_whatever_happens(
    where: str, zookeeper: Zookeeper, seed: int
) -> None:
    leases = [Lease(TOPIC, "g", partition) for partition in range(3)]
    chance = random.Random(seed)

    async def scene() -> None:
        async with _shaken(zookeeper, where) as (nodes, proxy):
            asked = {node: set[Lease]() for node in nodes}
            for step in range(250):
                node, lease = chance.choice(nodes), chance.choice(leases)
                if lease in asked[node]:
                    asked[node].remove(lease)
                    node.release(lease)
                else:
                    asked[node].add(lease)
                    node.coordinator.acquire(lease)
                if step % 100 == 10:
                    chance.choice([proxy.reset, proxy.cut, proxy.stall])()
                if step % 100 == 80:
                    proxy.heal()
                await asyncio.sleep(0.01)
                is_valid = [node for node in nodes if node.coordinator.is_valid()]
                assert all(sum(lease in node.holds for node in is_valid) <= 1 for lease in leases)
            proxy.heal()
            for lease in leases:
                waiting = {node for node in nodes if lease in asked[node]}
                while waiting:
                    holders = await _holders(waiting, lease)
                    assert len(holders) == 1
                    holders[0].release(lease)
                    waiting.remove(holders[0])

    play(scene)
