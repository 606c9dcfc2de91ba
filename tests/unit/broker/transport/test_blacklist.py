"""The list of addresses that the broker serves nothing: as the registry has it, or had it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from router.access.addresses import BLACKLIST_RECORDS
from router.broker.node.registry import FileRegistry
from router.broker.transport import blacklist as module
from router.broker.transport.blacklist import BrokerBlacklist
from router.errors import BackendUnavailableError
from router.sharing.registry import RegistryRecord

Test = Callable[[FileRegistry, BrokerBlacklist], Awaitable[None]]


def run(folder: Path, test: Test) -> None:
    async def all_of_it() -> None:
        registry = await FileRegistry.open(folder)
        listed = BrokerBlacklist(registry)
        try:
            await test(registry, listed)
        finally:
            listed.stop()
            await registry.close()

    asyncio.run(all_of_it())


def test_list_is_as_the_registry_has_it(folder: Path) -> None:
    async def test(registry: FileRegistry, listed: BrokerBlacklist) -> None:
        changes: list[bool] = []
        listed.watch(lambda: changes.append(listed.holds("10.1.2.3")))
        await listed.refresh()
        assert not listed.holds("10.1.2.3")
        await registry.put(BLACKLIST_RECORDS, "10.0.0.0/8", b"", None)
        await registry.put(BLACKLIST_RECORDS, "2001:db8::1", b"", None)
        await registry.put("key", "192.0.2.1", b"", None)
        await listed.refresh()
        for address, held in (
            ("10.1.2.3", True),
            ("::ffff:10.1.2.3", True),
            ("2001:db8::1", True),
            ("192.0.2.1", False),
            ("", False),
        ):
            assert listed.holds(address) is held
        await listed.refresh()
        assert await registry.delete(BLACKLIST_RECORDS, "10.0.0.0/8")
        await listed.refresh()
        assert not listed.holds("10.1.2.3")
        assert changes == [True, False], "told once of each change"

    run(folder, test)


def test_list_is_read_again_and_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLACKLIST_INTERVAL_SECONDS", 0.001)

    async def test(registry: FileRegistry, listed: BrokerBlacklist) -> None:
        changed = asyncio.Event()
        listed.watch(changed.set)
        await listed.start()
        await registry.put(BLACKLIST_RECORDS, "10.0.0.1", b"", None)
        await asyncio.wait_for(changed.wait(), 10)
        assert listed.holds("10.0.0.1")

    run(folder, test)


class _Failing:
    """A registry that answers once."""

    def __init__(self) -> None:
        self.asked = 0

    async def list(self, kind: str, after: str = "") -> list[RegistryRecord]:
        self.asked += 1
        if self.asked > 2:
            raise BackendUnavailableError
        return [] if after else [RegistryRecord("10.0.0.1", b"", 1)]


async def test_list_stays_while_the_registry_does_not_answer() -> None:
    registry = _Failing()
    listed = BrokerBlacklist(registry)  # type: ignore[arg-type] # it is read and nothing else
    for _ in range(3):
        await listed.refresh()
    assert registry.asked == 4
    assert listed.holds("10.0.0.1")
