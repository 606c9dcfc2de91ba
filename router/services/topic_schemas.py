"""The schemas of topics, remembered for a few seconds: what messages are written and read by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from router.backends import Backend
from router.clocks.ttl_cache import TTLCache
from router.errors import (
    NotAllowedError,
    NotSupportedError,
    SchemaNotFoundError,
    TopicNotFoundError,
)
from router.model import Schema, SchemaType, TopicName
from router.schemas import check

# A topic that is deleted and created again counts its versions from the start.
CACHED_SECONDS: Final = 5.0
MAX_CACHED: Final = 500


class _SchemaKey(NamedTuple):
    topic: TopicName
    type: SchemaType
    data: bytes
    properties: tuple[tuple[str, str], ...]
    name: str


class TopicSchemas:
    """The schemas of topics; calls may be made from many threads or greenlets."""

    def __init__(self, backend: Backend, timeout: float, clock: Callable[[], float]) -> None:
        self._backend = backend
        self._timeout = timeout
        self._stored: TTLCache[tuple[TopicName, bytes], Schema] = TTLCache(
            self._get, CACHED_SECONDS, MAX_CACHED, clock
        )
        self._versions: TTLCache[_SchemaKey, bytes] = TTLCache(
            self._put, CACHED_SECONDS, MAX_CACHED, clock
        )

    def get(self, topic: TopicName, version: bytes) -> Schema:
        """Return a version of a topic's schema; raise SchemaNotFoundError, TopicNotFoundError."""
        return self._stored.get((topic, version))

    def find(self, topic: TopicName, version: bytes) -> Schema | None:
        """Return a version of a topic's schema, None: there is none."""
        try:
            return self.get(topic, version)
        except (SchemaNotFoundError, TopicNotFoundError):
            return None

    def newest(self, topic: TopicName) -> Schema | None:
        """Return the newest version of a topic's schema, None: it has none."""
        try:
            return self._backend.schemas.get(topic, None, self._timeout)
        except (SchemaNotFoundError, TopicNotFoundError, NotSupportedError, NotAllowedError):
            return None

    def put(self, topic: TopicName, schema: Schema) -> bytes:
        """Return the version of a schema, which is stored if it is new.

        Raises InvalidSchemaError, IncompatibleSchemaError, TopicNotFoundError.
        """
        properties = tuple(sorted(schema.properties.items()))
        given = _SchemaKey(topic, schema.type, schema.data, properties, schema.name)
        return self._versions.get(given)

    def _get(self, key: tuple[TopicName, bytes]) -> Schema:
        topic, version = key
        return self._backend.schemas.get(topic, version, self._timeout)

    def _put(self, given: _SchemaKey) -> bytes:
        schema = Schema(given.type, given.data, dict(given.properties), given.name)
        check(schema)
        return self._backend.schemas.put(given.topic, schema, self._timeout)
