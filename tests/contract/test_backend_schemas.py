"""What every backend promises of the schemas of topics."""

from __future__ import annotations

import pytest

from router.errors import (
    IncompatibleSchemaError,
    InvalidSchemaError,
    SchemaNotFoundError,
    TopicNotFoundError,
)
from router.model import Schema, SchemaType, TopicInfo
from tests.contract.conftest import WAIT, Opened

pytestmark = pytest.mark.contract


def record(*fields: str, default: bool = True) -> Schema:
    """Return an Avro schema of a record of numbers."""
    tail = ', "default": 0' if default else ""
    named = ", ".join(f'{{"name": "{field}", "type": "int"{tail}}}' for field in fields)
    data = f'{{"type": "record", "name": "R", "fields": [{named}]}}'
    return Schema(SchemaType.AVRO, data.encode(), {"owner": "me"})


def test_schemas_come_back_by_version_and_the_newest_without(opened: Opened) -> None:
    topic = opened.new_topic()
    schemas = opened.backend.schemas
    first = schemas.put(topic, record("a"), WAIT)
    second = schemas.put(topic, record("a", "b"), WAIT)
    assert (first, second) == (bytes(8), bytes(7) + b"\1")
    for version, expected in ((first, record("a")), (None, record("a", "b"))):
        found = schemas.get(topic, version, WAIT)
        assert (found.type, found.data, dict(found.properties)) == (
            expected.type,
            expected.data,
            dict(expected.properties),
        )
        assert found.version == (version or second)


def test_an_equal_schema_is_stored_once(opened: Opened) -> None:
    topic = opened.new_topic()
    schemas = opened.backend.schemas
    version = schemas.put(topic, record("a"), WAIT)
    schemas.put(topic, record("a", "b"), WAIT)
    assert schemas.put(topic, record("a"), WAIT) == version
    assert schemas.get(topic, None, WAIT).version == bytes(7) + b"\1"


def test_what_does_not_go_together_is_refused_and_not_stored(opened: Opened) -> None:
    topic = opened.new_topic()
    schemas = opened.backend.schemas
    version = schemas.put(topic, record("a"), WAIT)
    for refused in (record("b", default=False), Schema(SchemaType.STRING)):
        with pytest.raises(IncompatibleSchemaError):
            schemas.put(topic, refused, WAIT)
    with pytest.raises(InvalidSchemaError):
        schemas.put(topic, Schema(SchemaType.AVRO, b'{"type": "no such type"}'), WAIT)
    assert schemas.get(topic, None, WAIT).version == version


def test_schemas_of_nothing_are_not_found(opened: Opened) -> None:
    topic, nowhere = opened.new_topic(), opened.new_name()
    schemas = opened.backend.schemas
    for version in (None, bytes(8)):
        with pytest.raises(SchemaNotFoundError):
            schemas.get(topic, version, WAIT)
        with pytest.raises(TopicNotFoundError):
            schemas.get(nowhere, version, WAIT)
    with pytest.raises(TopicNotFoundError):
        schemas.put(nowhere, record("a"), WAIT)
    assert not opened.is_there(nowhere)
    schemas.put(topic, record("a"), WAIT)
    with pytest.raises(SchemaNotFoundError):
        schemas.get(topic, bytes(7) + b"\7", WAIT)


def test_topics_have_schemas_of_their_own_which_go_with_them(opened: Opened) -> None:
    first, second = opened.new_topic(), opened.new_topic(partitions=2)
    schemas = opened.backend.schemas
    for topic, schema in ((first, record("a")), (second, Schema(SchemaType.STRING))):
        assert schemas.put(topic, schema, WAIT) == bytes(8)
        assert schemas.get(topic, None, WAIT).type is schema.type
    opened.backend.delete_topic(first, WAIT)
    opened.backend.create_topic(TopicInfo(first), WAIT)
    with pytest.raises(SchemaNotFoundError):
        schemas.get(first, None, WAIT)
    assert schemas.put(first, Schema(SchemaType.INT32), WAIT) == bytes(8)
