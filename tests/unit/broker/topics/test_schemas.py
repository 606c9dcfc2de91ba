"""The registry of schemas: what it keeps, forgets, and does when the disk fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from router.broker.node.registry import FileRegistry
from router.broker.storage import TopicRecord
from router.broker.topics import schemas as module
from router.broker.topics.schema_records import KIND
from router.broker.topics.schemas import BrokerSchemas, SchemaPolicy
from router.errors import (
    BackendUnavailableError,
    IncompatibleSchemaError,
    NotAllowedError,
    SchemaNotFoundError,
)
from router.model import Schema, SchemaType
from router.model.policies import Policies
from router.schemas import Strategy
from router.sharing.registry import RegistryRecord

NOW = 1_700_000_000_000


def topic(number: int = 1) -> TopicRecord:
    return TopicRecord(number, f"persistent://t/n/x{number}", 0, Policies(), {}, 0, (number,))


def record(*names: str) -> Schema:
    fields = [{"name": name, "type": "int", "default": 0} for name in names]
    definition = {"type": "record", "name": "R", "fields": fields}
    return Schema(SchemaType.AVRO, json.dumps(definition).encode(), {"p": "v"}, "mine")


def number(version: int) -> bytes:
    return version.to_bytes(8)


@dataclass
class MemoryRecords:
    """A registry in memory that counts its reads, and fails when it is told to."""

    found: dict[str, bytes] = field(default_factory=dict)
    reads: int = 0
    failing: bool = False
    unreadable: int = 0

    async def get(self, kind: str, name: str) -> RegistryRecord | None:
        self.reads += 1
        await asyncio.sleep(0)
        if self.unreadable:
            self.unreadable -= 1
            raise BackendUnavailableError
        return RegistryRecord(name, self.found[name], 1) if name in self.found else None

    async def put(self, kind: str, name: str, value: bytes, expected: int | None) -> RegistryRecord:
        assert (kind, expected) == (KIND, 0)
        assert name not in self.found
        await asyncio.sleep(0)
        self.found[name] = value
        if self.failing:
            raise BackendUnavailableError  # it is written, and nobody knows
        return RegistryRecord(name, value, 1)

    async def delete(self, kind: str, name: str) -> bool:
        return self.found.pop(name, None) is not None

    async def list(self, kind: str, after: str = "") -> list[RegistryRecord]:
        return [RegistryRecord(n, v, 1) for n, v in sorted(self.found.items()) if n > after][:2]


def made(records: MemoryRecords | None = None, **policy: Any) -> BrokerSchemas:
    return BrokerSchemas(records, lambda _: SchemaPolicy(**policy), lambda: NOW)


def test_versions_are_there_when_the_folder_is_opened_again(folder: Path) -> None:
    async def opened(test: Callable[[BrokerSchemas], Awaitable[None]]) -> None:
        registry = await FileRegistry.open(folder)
        try:
            found = BrokerSchemas(registry, now_ms=lambda: NOW)
            await found.load()
            await test(found)
        finally:
            await registry.close()

    async def write(found: BrokerSchemas) -> None:
        for version in range(12):
            names = [f"f{n}" for n in range(version)]
            assert await found.register(topic(), record(*names)) == number(version)
        await found.register(topic(2), record("other"))
        await found.delete(topic(2))

    async def read(found: BrokerSchemas) -> None:
        assert found.has(topic())
        assert not found.has(topic(2))
        assert not found.has(topic(3))
        versions = await found.versions(topic())
        assert len(versions) == 12
        assert versions[1] == (record("f0"), NOW)
        newest = await found.find(topic())
        assert (newest.name, newest.version) == ("t/n/x1", number(11))
        assert await found.register(topic(), record("f0")) == number(1)

    asyncio.run(opened(write))
    asyncio.run(opened(read))


async def test_schema_that_many_bring_at_once_is_stored_once() -> None:
    records = MemoryRecords()
    found = made(records)
    versions = await asyncio.gather(
        *(found.register(topic(), record("a")) for _ in range(20)),
        *(found.register(topic(2), record("a")) for _ in range(20)),
    )
    assert set(versions) == {number(0)}
    assert len(records.found) == 2


async def test_deleted_schemas_are_not_compared_with_but_found_by_version() -> None:
    found = made(MemoryRecords(), strategy=Strategy.ALWAYS_INCOMPATIBLE)
    with pytest.raises(SchemaNotFoundError):
        await found.delete(topic())
    await found.register(topic(), record("a"))
    assert await found.delete(topic()) == number(1)
    with pytest.raises(SchemaNotFoundError):
        await found.find(topic())
    assert (await found.find(topic(), number(0))).data == record("a").data
    assert await found.register(topic(), Schema(SchemaType.STRING)) == number(2)
    assert await found.register(topic(), Schema(SchemaType.STRING)) == number(2)


async def test_write_of_unknown_outcome_is_looked_up_before_the_next() -> None:
    records = MemoryRecords(failing=True)
    found = made(records)
    with pytest.raises(BackendUnavailableError):
        await found.register(topic(), record("a"))
    records.failing = False
    assert await found.register(topic(), record("b")) == number(1)
    assert await found.register(topic(), record("a")) == number(0)


async def test_schema_that_could_not_be_read_is_not_taken_for_none() -> None:
    records = MemoryRecords()
    await made(records).register(topic(), record("a"))
    found = made(records)
    await found.load()
    records.unreadable = 1
    first, second = await asyncio.gather(
        found.find(topic()), found.find(topic()), return_exceptions=True
    )
    assert isinstance(first, BackendUnavailableError)
    assert isinstance(second, Schema)
    assert second.data == record("a").data


async def test_reader_is_compared_with_what_could_not_be_read_at_first() -> None:
    records = MemoryRecords()
    found = made(records)
    await found.register(topic(), record("a"))
    records.failing = True
    with pytest.raises(BackendUnavailableError):
        await found.register(topic(), record("a", "b"))
    records.unreadable = 1
    with pytest.raises(BackendUnavailableError):
        await found.find(topic())
    other = Schema(SchemaType.STRING, b"", {}, "other")
    with pytest.raises(IncompatibleSchemaError):
        await found.admit_reader(topic(), other, lambda: False)


async def test_topics_of_the_past_are_forgotten_when_it_is_sure() -> None:
    records = MemoryRecords()
    found = made(records)
    for each in (1, 2):
        await found.register(topic(each), record("a"))
        await found.register(topic(each), record())
    await found.sweep([1])
    assert len(records.found) == 4
    await found.sweep([1])
    assert len(records.found) == 2
    assert found.has(topic(1))
    assert not found.has(topic(2))
    again = made(records)
    await again.load()
    assert again.has(topic(1))
    assert len(await again.versions(topic(1))) == 2


async def test_those_used_last_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CACHED_BYTES", 2_500)
    records = MemoryRecords()
    found = made(records)
    for each in (1, 2, 3):
        await found.register(topic(each), record("a"))
    reads = records.reads
    await found.versions(topic(3))
    await found.versions(topic(2))
    assert records.reads == reads
    await found.versions(topic(1))
    assert records.reads == reads + 2


async def test_topic_takes_as_many_schemas_as_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_VERSIONS", 2)
    found = made()
    await found.register(topic(), record("a"))
    await found.register(topic(), record())
    with pytest.raises(NotAllowedError):
        await found.register(topic(), record("b"))
    assert await found.register(topic(), record("a")) == number(0)


async def test_largest_schema_fits_into_a_record(folder: Path) -> None:
    registry = await FileRegistry.open(folder)
    try:
        names = {f"{n:03}": "" for n in range(270)}
        largest = Schema(SchemaType.PROTOBUF_NATIVE, b"x" * 60_000, names)
        assert await BrokerSchemas(registry).register(topic(), largest) == number(0)
    finally:
        await registry.close()


async def test_without_updates_only_known_schemas_are_taken() -> None:
    found = made(auto_update=False)
    with pytest.raises(IncompatibleSchemaError):
        await found.register(topic(), record("a"))


async def test_sweeping_goes_on_after_a_failure() -> None:
    calls = asyncio.Queue[None]()

    def alive() -> list[int]:
        calls.put_nowait(None)
        raise BackendUnavailableError

    sweeping = asyncio.create_task(made().run_sweeps(alive, every=0.001))
    for _ in range(2):
        await asyncio.wait_for(calls.get(), 10)
    sweeping.cancel()
