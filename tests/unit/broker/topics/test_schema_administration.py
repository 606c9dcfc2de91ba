"""Administration of schemas over a real store, without a connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.broker.entries import ENTRY_FORMATS, Transcoder
from router.broker.node.counters import NodeCounters
from router.broker.node.rpc import topics as rpc_topics
from router.broker.node.rpc.topics import TopicRequests
from router.broker.storage import Store, StoreOptions
from router.broker.topics.administration import TopicAdmin
from router.broker.topics.schemas import BrokerSchemas, SchemaPolicy
from router.broker.topics.topics import TopicOptions, Topics
from router.errors import IncompatibleSchemaError, SchemaNotFoundError, TopicNotFoundError
from router.model import TopicName
from router.schemas import Strategy
from router.wire.node import node_pb2 as npb
from router.wire.pulsar import pulsar_pb2 as pb
from router.wire.pulsar.schemas import from_wire
from tests.unit.broker.topics.test_administration import answered

T = "persistent://public/default/t"
KINDS = [pb.Schema.String, pb.Schema.Int32, pb.Schema.Int64, pb.Schema.Double]


class Direct:
    """The administration of one store, whose clients bring no new schemas."""

    def __init__(self, folder: Path, options: TopicOptions) -> None:
        self.runner = asyncio.Runner()
        self.store = self.runner.run(Store.open(folder, StoreOptions(), lambda: 1_000.0))
        self.topics = Topics(self.store, options, lambda: 1_000.0, ENTRY_FORMATS)
        policy = SchemaPolicy(Strategy.ALWAYS_COMPATIBLE, auto_update=False)
        self.schemas = BrokerSchemas(policy=lambda _: policy)
        admin = TopicAdmin(self.topics, NodeCounters(time.monotonic), self, self.schemas)
        self.admin = TopicRequests(admin, Transcoder(ENTRY_FORMATS))

    def forget(self, topic: str, subscription: str | None = None) -> None:
        """Nothing is left for a next poll here."""

    def put(self, topic: str, kind: pb.Schema.Type, *, try_only: bool = False) -> int:
        schema = pb.Schema(name="s", schema_data=b"", type=kind)
        response = npb.CommandAdminResponse(request_id=1)
        asked = npb.PutSchema(topic=topic, schema=schema, try_only=try_only)
        self.runner.run(answered(self.admin, npb.CommandAdmin(put_schema=asked), response))
        return response.schemas[0].version

    def listed(self, topic: str) -> list[tuple[int, int]]:
        """Return version and type of all versions, asked for page by page."""
        found: list[tuple[int, int]] = []
        asked, more = npb.ListSchemas(topic=topic), True
        while more:
            response = npb.CommandAdminResponse(request_id=1)
            self.runner.run(answered(self.admin, npb.CommandAdmin(list_schemas=asked), response))
            found += [(one.version, one.schema.type) for one in response.schemas]
            if more := response.more:
                asked.first = found[-1][0] + 1
        return found

    def delete(self, topic: str) -> int:
        response = npb.CommandAdminResponse(request_id=1)
        asked = npb.CommandAdmin(delete_schema=npb.TopicRef(topic=topic))
        self.runner.run(answered(self.admin, asked, response))
        return response.schemas[0].version

    def close(self) -> None:
        self.runner.run(self.store.close())
        self.runner.close()


@pytest.fixture
def direct(folder: Path) -> Iterator[Direct]:
    found = Direct(folder, TopicOptions())
    yield found
    found.close()


@pytest.mark.parametrize("page", [1, 2, 3, 100])
def test_versions_are_listed_whatever_a_page_holds(
    direct: Direct, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(rpc_topics, "MAX_SCHEMAS", page)
    versions = [direct.put(T, kind) for kind in KINDS]
    assert direct.listed(T) == list(zip(versions, KINDS, strict=True))


def test_large_definitions_make_small_pages(
    direct: Direct, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc_topics, "MAX_SCHEMAS_BYTES", 1)
    assert len([direct.put(T, kind) for kind in KINDS]) == len(direct.listed(T))


def test_versions_before_a_deletion_are_listed_no_more(direct: Direct) -> None:
    direct.put(T, KINDS[0])
    assert direct.delete(T) == 1
    assert direct.listed(T) == []
    with pytest.raises(SchemaNotFoundError):
        direct.delete(T)
    assert direct.put(T, KINDS[0]) == 2
    assert direct.listed(T) == [(2, KINDS[0])]


def test_trying_stores_nothing(direct: Direct) -> None:
    direct.put(T, KINDS[0])
    assert direct.put(T, KINDS[1], try_only=True) == 1
    assert direct.listed(T) == [(0, KINDS[0])]
    with pytest.raises(TopicNotFoundError):
        direct.put(f"{T}-else", KINDS[0], try_only=True)
    assert direct.topics.count == 1


def test_partitions_have_the_schemas_of_their_topic(direct: Direct) -> None:
    direct.runner.run(direct.topics.create(TopicName.parse(T), 2))
    direct.put(f"{T}-partition-1", KINDS[0])
    assert direct.listed(T) == direct.listed(f"{T}-partition-0") == [(0, KINDS[0])]
    with pytest.raises(TopicNotFoundError):
        direct.listed(f"{T}-partition-2")


def test_clients_bring_none_where_administrators_do(direct: Direct) -> None:
    direct.put(T, KINDS[0])
    record = direct.topics.known(TopicName.parse(T))
    schema = from_wire(pb.Schema(name="s", schema_data=b"", type=KINDS[1]))
    with pytest.raises(IncompatibleSchemaError):
        direct.runner.run(direct.schemas.register(record, schema))


def test_topic_that_nobody_may_make_gets_no_schema(folder: Path) -> None:
    direct = Direct(folder, TopicOptions(auto_create=False))
    with pytest.raises(TopicNotFoundError):
        direct.put(T, KINDS[0])
    direct.close()
