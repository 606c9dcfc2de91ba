"""Nodes of a coordination and what they hear, for the tests of coordinators."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from router.coordination import Coordinator, Lease
from router.coordination.opening import SingleNode
from router.coordination.zookeeper import ZookeeperCoordinator, ZooKeeperLink, ZookeeperOptions

PATIENCE = 20.0
SESSION = 4.0
TOPIC = "persistent://public/default/t"
LEASE = Lease(TOPIC, "g", 0)
_chroots = itertools.count(1)


class Heard:
    """What a coordinator told, and what it said of itself at that time."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self.holds: set[Lease] = set()
        self.wanted_by_others: set[Lease] = set()
        self.behind: set[Lease] = set()
        self.ids: dict[str, frozenset[str]] = {}
        self.troubles: list[str | None] = []
        self.told: list[str] = []
        self.notes: list[bytes] = []
        coordinator.listen(self)

    def held(self, lease: Lease, note: bytes = b"") -> None:
        assert lease not in self.holds, "held twice"
        self.notes.append(note)
        self.holds.add(lease)
        self.behind.discard(lease)
        self.told.append("held")

    def lost(self, lease: Lease) -> None:
        self.holds.remove(lease)
        self.wanted_by_others.discard(lease)
        self.told.append("lost")

    def contended(self, lease: Lease) -> None:
        assert lease in self.holds
        self.wanted_by_others.add(lease)

    def queued(self, lease: Lease) -> None:
        assert lease not in self.holds
        self.behind.add(lease)

    def remote_members(self, topic: str, subscription: str, consumers: frozenset[str]) -> None:
        assert topic == TOPIC
        self.ids[subscription] = consumers

    def availability_changed(self) -> None:
        self.troubles.append(self.coordinator.unavailable_reason())

    def release(self, lease: Lease, note: bytes = b"") -> None:
        self.holds.discard(lease)
        self.wanted_by_others.discard(lease)
        self.behind.discard(lease)
        self.coordinator.release(lease, note)


def play(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run an asynchronous test to its end."""
    asyncio.run(asyncio.wait_for(scene(), 3 * PATIENCE))


async def until(true: Callable[[], object], patience: float = PATIENCE) -> None:
    deadline = time.monotonic() + patience
    while not true():
        assert time.monotonic() < deadline, "it did not become true"
        await asyncio.sleep(0.002)


def new_chroot() -> str:
    """Return a chroot that no other test uses, of two levels."""
    return f"/tests/{time.monotonic_ns()}-{next(_chroots)}"


@asynccontextmanager
async def joined(
    *servers: str,
    digest: str = "",
    session: float = SESSION,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[list[Heard]]:
    """Give a node for each of the servers, connected or trying; their names are a, b, c."""
    nodes = []
    for name, where in zip("abcdef", servers, strict=False):
        link = ZooKeeperLink(ZookeeperOptions.parse(where, session, digest), clock)
        nodes.append(Heard(ZookeeperCoordinator(link, f"node-{name}")))
        link.start()
    try:
        yield nodes
    finally:
        await asyncio.gather(*(node.coordinator.close() for node in nodes))


@asynccontextmanager
async def alone() -> AsyncIterator[list[Heard]]:
    """Give a node that is alone."""
    node = Heard(SingleNode())
    yield [node]
    await node.coordinator.close()


async def off_loop(call: Callable[..., Any], *arguments: object) -> Any:
    """Have something that blocks done in a thread."""
    return await asyncio.to_thread(call, *arguments)


def below(server: str, path: str) -> list[str]:
    """Return all paths under a path, as somebody without a digest sees them."""
    client = KazooClient(hosts=server)
    client.start(PATIENCE)
    try:
        return sorted(_walk(client, path)) if client.exists(path) else []
    finally:
        client.stop()
        client.close()


def _walk(client: Any, path: str) -> list[str]:
    found: list[str] = []
    try:
        children = client.get_children(path)
    except NoNodeError:
        return found
    for child in children:
        inner = f"{path}/{child}"
        found += [inner, *_walk(client, inner)]
    return found
