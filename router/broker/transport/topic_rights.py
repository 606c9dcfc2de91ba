"""The registry with the records of topics in memory, for listeners that must not wait for a disk.

Theory of operation. All writes to the registry of a node with a log go through its broker, so a
copy of the topics' records is right at all times once it is loaded: every write of one passes here,
and is noted before its answer. These writes wait for one another, which costs nothing, because they
are rare. The alternative, asking the registry when a client opens a producer, would have the frames
behind that request wait for a disk.
"""

from __future__ import annotations

import asyncio

from router.access.authorizer import NO_OWNER, TOPIC_RECORDS, TopicRights
from router.model import TopicName
from router.sharing.registry import AsyncRegistry, RegistryRecord, all_records


class TopicRightsRegistry:
    """An AsyncRegistry that has the rights of all topics in memory; `changes` counts theirs."""

    def __init__(self, registry: AsyncRegistry) -> None:
        self._registry = registry
        self._records: dict[str, RegistryRecord] = {}
        self._writing = asyncio.Lock()
        self.changes = 0

    async def load(self) -> None:
        """Read all records of topics; called once, before anything else."""
        records = all_records(self._registry, TOPIC_RECORDS)
        self._records = {record.name: record async for record in records}

    def cached(self, topic: TopicName) -> TopicRights:
        """Return the rights of a topic as they are now."""
        record = self._records.get(str(topic))
        return NO_OWNER if record is None else TopicRights.load(record)

    read = cached

    async def get(self, kind: str, name: str) -> RegistryRecord | None:
        """Return a record, None if there is none."""
        return await self._registry.get(kind, name)

    async def put(self, kind: str, name: str, value: bytes, expected: int | None) -> RegistryRecord:
        """Write a record durably; raise ConflictError unless it has the expected version."""
        if kind != TOPIC_RECORDS:
            return await self._registry.put(kind, name, value, expected)
        async with self._writing:
            record = await self._registry.put(kind, name, value, expected)
            self._records[name] = record
            self.changes += 1
            return record

    async def delete(self, kind: str, name: str) -> bool:
        """Delete a record; return whether there was one."""
        if kind != TOPIC_RECORDS:
            return await self._registry.delete(kind, name)
        async with self._writing:
            deleted = await self._registry.delete(kind, name)
            self._records.pop(name, None)
            self.changes += 1
            return deleted

    async def list(self, kind: str, after: str = "") -> list[RegistryRecord]:
        """Return the next records of a kind after a name, by name; [] after the last."""
        return await self._registry.list(kind, after)
