"""Whose topics are, as the registry has it: kept at hand, for listeners that must not wait for it.

Theory of operation. All that changes the registry of a node with a log goes through its broker, so
that a copy of the topics' records is right at all times once it is loaded: every write of one is
done through here, and noted before its answer. Writes of topics' records stand in one line for
that, which costs nothing, for they are rare. The alternative, asking the registry when somebody
opens a producer, would have the frames behind that request wait for a disk.
"""

from __future__ import annotations

import asyncio

from router.access.owners import KIND, NOBODY, TopicRights
from router.coordination import Record, Registry
from router.model import TopicName


class Owners:
    """A Registry (router.coordination) that knows what is written down about topics."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._records: dict[str, Record] = {}
        self._line = asyncio.Lock()

    async def load(self) -> None:
        """Read what there is; called once, before anything else."""
        after = ""
        while page := await self._registry.list(KIND, after):
            self._records.update((record.name, record) for record in page)
            after = page[-1].name

    def rights(self, topic: TopicName) -> TopicRights:
        """Return what is written down about a topic."""
        record = self._records.get(str(topic))
        return NOBODY if record is None else TopicRights.load(record)

    async def get(self, kind: str, name: str) -> Record | None:
        """Return a record, None: there is none."""
        return await self._registry.get(kind, name)

    async def put(self, kind: str, name: str, value: bytes, expected: int | None) -> Record:
        """Write a record durably; raise ConflictError unless it has the expected version."""
        if kind != KIND:
            return await self._registry.put(kind, name, value, expected)
        async with self._line:
            record = await self._registry.put(kind, name, value, expected)
            self._records[name] = record
            return record

    async def delete(self, kind: str, name: str) -> bool:
        """Delete a record; return whether there was one."""
        if kind != KIND:
            return await self._registry.delete(kind, name)
        async with self._line:
            deleted = await self._registry.delete(kind, name)
            self._records.pop(name, None)
            return deleted

    async def list(self, kind: str, after: str = "") -> list[Record]:
        """Return the next records of a kind behind a name, by name; none: there are no more."""
        return await self._registry.list(kind, after)
