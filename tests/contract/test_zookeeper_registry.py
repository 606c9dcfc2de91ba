"""The registry in ZooKeeper where it differs from others: several nodes, outages, and its tree."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from router.coordination.zookeeper import ZooKeeperLink, ZookeeperOptions
from router.coordination.zookeeper.registry import ZookeeperRegistry
from router.errors import ConflictError, CoordinationUnavailableError
from router.sharing.registry import RegistryRecord
from tests.servers.proxy import TcpProxy
from tests.servers.zookeeper import Zookeeper

pytestmark = pytest.mark.contract

_numbers = itertools.count(1)

Meddle = Callable[[], Awaitable[object]]


class MeddledLink(ZooKeeperLink):
    """A link on which others are quicker: before the request of that number something is done."""

    asked = 0
    meddle: tuple[int, Meddle] | None = None

    async def ask(self, begin: Callable[[Any], Any]) -> Any:
        self.asked += 1
        if self.meddle is not None and self.asked == self.meddle[0]:
            _, what = self.meddle
            await what()
        return await super().ask(begin)


def chroot() -> str:
    return f"/registry-{next(_numbers)}"


@asynccontextmanager
async def registry(address: str, root: str) -> AsyncIterator[tuple[ZookeeperRegistry, MeddledLink]]:
    link = MeddledLink(ZookeeperOptions.parse(address + root, 4.0), time.monotonic)
    opened = ZookeeperRegistry(link)
    link.start()
    try:
        yield opened, link
    finally:
        await link.close()


@asynccontextmanager
async def two_registries(
    address: str,
) -> AsyncIterator[tuple[ZookeeperRegistry, MeddledLink, ZookeeperRegistry]]:
    """Give two registries of one tree, and the link of the first one."""
    root = chroot()
    async with registry(address, root) as (one, link), registry(address, root) as (two, _):
        yield one, link, two


async def test_nodes_share_their_records(zookeeper: Zookeeper) -> None:
    async with two_registries(zookeeper.address) as (one, _, two):
        written = await one.put("key", "a", b"1", 0)
        assert await two.get("key", "a") == written
        again = await two.put("key", "a", b"2", written.version)
        with pytest.raises(ConflictError):
            await one.put("key", "a", b"3", written.version)
        assert await one.list("key") == [again]


async def test_record_made_anew_meanwhile_is_not_overwritten(zookeeper: Zookeeper) -> None:
    async with two_registries(zookeeper.address) as (one, link, two):
        old = await one.put("key", "a", b"old", 0)

        async def replace() -> None:
            # The new node has been written as often as the old one: never since it was made.
            await two.delete("key", "a")
            await two.put("key", "a", b"new", 0)

        # A write asks for the kind, for the record, and then writes.
        link.meddle = (link.asked + 3, replace)
        with pytest.raises(ConflictError):
            await one.put("key", "a", b"mine", old.version)
        found = await two.get("key", "a")
        assert found is not None
        assert found.value == b"new"


async def test_write_goes_on_when_another_record_is_made_meanwhile(zookeeper: Zookeeper) -> None:
    async with two_registries(zookeeper.address) as (one, link, two):
        old = await one.put("key", "a", b"old", 0)
        link.meddle = (link.asked + 3, lambda: two.put("key", "b", b"", 0))
        assert (await one.put("key", "a", b"mine", old.version)).value == b"mine"


def test_outage_is_an_answer_in_time_and_ends_by_itself(zookeeper: Zookeeper) -> None:
    async def test(proxy: TcpProxy) -> None:
        async with registry(proxy.address, chroot()) as (one, _):
            written = await one.put("key", "a", b"1", 0)
            for outage in (proxy.cut, proxy.stall):
                outage()
                began = time.monotonic()
                with pytest.raises(CoordinationUnavailableError, match=proxy.address):
                    await one.get("key", "a")
                assert time.monotonic() - began < 30
                proxy.heal()
                assert await read_in_the_end(one) == written

    with TcpProxy(zookeeper.address) as proxy:
        asyncio.run(test(proxy))


async def read_in_the_end(registry: ZookeeperRegistry) -> RegistryRecord | None:
    """Read until there is an answer, each time for as long as the registry is patient."""
    for _ in range(9):
        with contextlib.suppress(CoordinationUnavailableError):
            return await registry.get("key", "a")
    return await registry.get("key", "a")
