"""Administration of the schemas of topics, as CommandAdmin asks for it."""

from __future__ import annotations

from typing import Final

from router.broker.ledger import TopicRecord
from router.broker.schema_records import Version, from_wire, to_wire
from router.broker.schemas import TopicSchemas
from router.broker.topic_names import parent_of
from router.broker.topics import Topics
from router.errors import TopicNotFoundError
from router.wire.pulsar import pulsar_pb2 as pb

LIST_BYTES: Final = 512 * 1024
"""Of the definitions of a page."""
PAGE: Final = 100


class SchemaAdmin:
    """Answers requests about schemas; where a partition is named, about those of its topic."""

    def __init__(self, topics: Topics, schemas: TopicSchemas) -> None:
        self._topics = topics
        self._schemas = schemas

    async def versions(self, asked: pb.ListSchemas, response: pb.CommandAdminResponse) -> None:
        """Answer a page of a topic's versions since the last deletion."""
        versions = await self._schemas.versions(self._known(asked.topic))
        marks = [number for number, version in enumerate(versions) if version.schema is None]
        size, begin = 0, max(asked.first, marks[-1] + 1 if marks else 0)
        for number in range(begin, len(versions)):
            if size > LIST_BYTES or number - begin >= PAGE:
                response.more = True
                return
            response.schemas.append(_told(number, versions[number]))
            size += response.schemas[-1].ByteSize()

    async def put(self, asked: pb.PutSchema, response: pb.CommandAdminResponse) -> None:
        """Give a topic a schema, which is made if it may be, or try whether it could have it."""
        name, trying = self._topics.parse(asked.topic), asked.try_only
        record = self._record(asked.topic)
        if record is None:
            if trying or self._topics.creation(name) is None:
                raise TopicNotFoundError(f"there is no topic {name}")
            record = await self._topics.create_missing(name)
        schema = from_wire(asked.schema)
        version = await self._schemas.register(record, schema, by_admin=True, try_only=trying)
        response.schemas.add(version=int.from_bytes(version))

    async def delete(self, asked: pb.TopicRef, response: pb.CommandAdminResponse) -> None:
        """Let a topic have no schema from now on; raise SchemaNotFoundError."""
        version = await self._schemas.delete(self._known(asked.topic))
        response.schemas.add(version=int.from_bytes(version))

    def _known(self, text: str) -> TopicRecord:
        record = self._record(text)
        if record is None:
            raise TopicNotFoundError(f"there is no topic {self._topics.parse(text)}")
        return record

    def _record(self, text: str) -> TopicRecord | None:
        """Return the topic of this name, or the one whose partition it names."""
        found = self._topics.find(text)
        parent = parent_of(self._topics.parse(text))
        if found is None and parent is not None:
            found = self._topics.find(str(parent[0]))
            if found is None or parent[1] >= found.partitions:
                raise TopicNotFoundError(f"there is no topic {text}")
        return found


def _told(number: int, version: Version) -> pb.SchemaVersion:
    schema = None if version.schema is None else to_wire(version.schema)
    return pb.SchemaVersion(version=number, schema=schema, created_ms=version.created_ms)
