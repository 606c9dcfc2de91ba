"""The schemas of the memory backend's topics."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from router.errors import SchemaNotFoundError
from router.model import Schema, TopicName
from router.schemas import Strategy, place

if TYPE_CHECKING:
    from router.backends.memory.store import MemoryBackend


class MemorySchemas:
    """The schemas of topics; see `Schemas`."""

    def __init__(self, backend: MemoryBackend, strategy: Strategy) -> None:
        self._backend = backend
        self._strategy = strategy

    def get(self, topic: TopicName, version: bytes | None, timeout: float) -> Schema:
        """Return a version, None: the newest one; see the protocol."""
        del timeout
        with self._backend.lock:
            schemas = self._backend.topic(topic).schemas
            found = [s for s in schemas if version is None or s.version == version]
        if not found:
            raise SchemaNotFoundError(f"topic {topic.local} has no such schema")
        return found[-1]

    def put(self, topic: TopicName, schema: Schema, timeout: float) -> bytes:
        """Return the version of an equal schema, or of this one; see the protocol."""
        del timeout
        with self._backend.lock:
            schemas = self._backend.topic(topic).schemas
            at = place(schemas, schema, self._strategy)
            if at == len(schemas):
                schemas.append(replace(schema, version=at.to_bytes(8)))
            return schemas[at].version
