"""Tenants and namespaces over a real registry: what is there, and what topics inherit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from router.broker.entries import ENTRY_FORMATS
from router.broker.node.counters import NodeCounters
from router.broker.node.registry import FileRegistry
from router.broker.storage import PULSAR_FORMAT, Store, StoreOptions
from router.broker.topics.administration import TopicAdmin
from router.broker.topics.calls import AdminCalls, make_call
from router.broker.topics.changes import change_policies, change_properties
from router.broker.topics.maintenance import Maintenance
from router.broker.topics.namespaces import Namespaces
from router.broker.topics.topics import TopicOptions, Topics
from router.errors import (
    BadNameError,
    BadRequestError,
    ConflictError,
    NamespaceNotFoundError,
    NotAllowedError,
    RouterError,
    TopicNotFoundError,
)
from router.model import TopicName
from router.model.administration import SUBSCRIPTION_OWNER, NamespacePolicies, Tenant
from router.model.policies import Policies
from tests.processes import ManualClock

T = TopicName("public", "default", "t")


class NoLeases:
    def forget(self, topic: str, subscription: str | None = None) -> None:
        del topic, subscription


def administration(topics: Topics) -> TopicAdmin:
    return TopicAdmin(topics, NodeCounters(time.monotonic), NoLeases())


@asynccontextmanager
async def opened(folder: Path, *, auto_create: bool = False) -> AsyncIterator[Namespaces]:
    registry = await FileRegistry.open(folder)
    try:
        namespaces = Namespaces(registry, auto_create=auto_create, now_ms=lambda: 7)
        await namespaces.load()
        yield namespaces
    finally:
        await registry.close()


async def test_default_namespace_is_there_and_stays(folder: Path) -> None:
    async with opened(folder) as namespaces:
        assert [namespace.name for namespace in namespaces.namespaces()] == ["public/default"]
        assert [tenant.name for tenant in namespaces.tenants()] == ["public"]
        with pytest.raises(NotAllowedError):
            await namespaces.delete("public/default", lambda: True)
        with pytest.raises(ConflictError):
            await namespaces.delete_tenant("public")


async def test_tenants_and_namespaces_are_there_again_when_the_registry_is_opened_again(
    folder: Path,
) -> None:
    async with opened(folder) as namespaces:
        await namespaces.put_tenant(Tenant("a", ("r",), ("c",)), exists=False)
        await namespaces.create("a/b", NamespacePolicies(retention_ms=5, auto_create=False))
        await namespaces.change("a/b", {"schema_compatibility": "FULL"}, ["auto_create"])
        await namespaces.change("public/default", {"deduplication": True}, [])
        await namespaces.create("a/gone")
        await namespaces.delete("a/gone", lambda: True)
    async with opened(folder) as namespaces:
        assert namespaces.tenants()[0] == Tenant("a", ("r",), ("c",))
        assert [n.name for n in namespaces.namespaces("a")] == ["a/b"]
        assert namespaces.namespace("a/b").created_ms == 7
        assert namespaces.policies("a/b") == NamespacePolicies(
            retention_ms=5, schema_compatibility="FULL"
        )
        assert namespaces.policies("public/default").deduplication


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda n: n.create("public/default"), ConflictError),
        (lambda n: n.create("nobody/b"), NamespaceNotFoundError),
        (lambda n: n.create("public"), BadNameError),
        (lambda n: n.create("public/a/b"), BadNameError),
        (lambda n: n.create("public/" + "x" * 250), BadNameError),
        (lambda n: n.change("public/b", {}, []), NamespaceNotFoundError),
        (lambda n: n.change("public/default", {"retention_ms": -2}, []), BadRequestError),
        (lambda n: n.change("public/default", {"schema_compatibility": "X"}, []), BadRequestError),
        (lambda n: n.change("public/default", {"auto_partitions": 1_001}, []), BadRequestError),
        (lambda n: n.change("public/default", {}, ["colour"]), BadRequestError),
        (lambda n: n.delete("public/default", lambda: False), NotAllowedError),
        (lambda n: n.delete("public/b", lambda: True), NamespaceNotFoundError),
        (lambda n: n.delete_tenant("b"), NamespaceNotFoundError),
        (lambda n: n.put_tenant(Tenant("public"), exists=False), ConflictError),
        (lambda n: n.put_tenant(Tenant("b"), exists=True), NamespaceNotFoundError),
        (lambda n: n.put_tenant(Tenant("b", ("x",) * 101)), BadRequestError),
        (lambda n: n.put_tenant(Tenant("a b")), BadNameError),
    ],
)
async def test_changes_that_must_not_be_are_refused_and_change_nothing(
    folder: Path, change: Callable[[Namespaces], Awaitable[None]], error: type[RouterError]
) -> None:
    async with opened(folder) as namespaces:
        before = (namespaces.tenants(), namespaces.namespaces())
        with pytest.raises(error):
            await change(namespaces)
        assert (namespaces.tenants(), namespaces.namespaces()) == before


async def test_namespace_with_topics_is_not_deleted(folder: Path) -> None:
    async with opened(folder) as namespaces:
        await namespaces.create("public/b")
        with pytest.raises(ConflictError):
            await namespaces.delete("public/b", lambda: False)
        assert namespaces.exists("public/b")


async def test_namespaces_that_are_adopted_stay(folder: Path) -> None:
    async with opened(folder) as namespaces:
        await namespaces.adopt(["old/one", "old/two", "public/default", "old/one"])
    async with opened(folder) as namespaces:
        assert [n.name for n in namespaces.namespaces("old")] == ["old/one", "old/two"]


@pytest.mark.parametrize("auto_create", [True, False])
async def test_missing_namespace_is_made_with_its_first_topic_where_settings_say_so(
    folder: Path, auto_create: bool
) -> None:
    name = TopicName("x", "y", "t")
    async with opened(folder, auto_create=auto_create) as namespaces:
        store = await Store.open(folder / "data", StoreOptions(), lambda: 1_000.0)
        topics = Topics(store, TopicOptions(), lambda: 1_000.0, ENTRY_FORMATS, namespaces)
        try:
            if auto_create:
                await topics.open(str(name), create=True)
                assert namespaces.exists("x/y")
            else:
                for create in (topics.open(str(name), create=True), topics.create(name)):
                    with pytest.raises(NamespaceNotFoundError):
                        await create
                assert not namespaces.exists("x/y")
        finally:
            await store.close()


async def test_namespace_is_back_when_a_topic_came_while_it_was_deleted(folder: Path) -> None:
    name = TopicName("public", "b", "t")
    async with opened(folder) as namespaces:
        await namespaces.create("public/b")
        store = await Store.open(folder / "data", StoreOptions(), lambda: 1_000.0)
        topics = Topics(store, TopicOptions(), lambda: 1_000.0, ENTRY_FORMATS, namespaces)
        creating = asyncio.create_task(topics.create(name))
        await asyncio.sleep(0)
        await namespaces.delete("public/b", lambda: not topics.in_namespace("public/b"))
        await creating
        assert namespaces.exists("public/b")
        await store.close()


@asynccontextmanager
async def opened_topics(folder: Path, clock: ManualClock) -> AsyncIterator[Topics]:
    store = await Store.open(folder, StoreOptions(), clock)
    try:
        yield Topics(store, TopicOptions(), clock, ENTRY_FORMATS)
    finally:
        await store.close()


async def test_policies_are_the_topics_own_else_its_namespaces(folder: Path) -> None:
    async with opened_topics(folder, ManualClock()) as topics:
        record = await topics.create(T, policies=Policies(retention_ms=1, replicas=3))
        await topics.namespaces.change(
            "public/default", {"retention_ms": 2, "backlog_bytes": 5, "deduplication": True}, []
        )
        assert topics.policies(record) == Policies(1, None, 5, True, 3)
        await change_policies(topics, T, {"backlog_bytes": 9}, ["retention_ms"])
        assert topics.policies(topics.known(T)) == Policies(2, None, 9, True, 3)
        with pytest.raises(BadRequestError):
            await change_policies(topics, T, {"auto_create": True}, [])
        with pytest.raises(TopicNotFoundError):
            await change_policies(topics, TopicName("public", "default", "u"), {}, [])


COMPACTED = Policies(
    cleanup_policy="compact", min_compaction_lag_ms=5, min_cleanable_dirty_ratio=0.1
)


async def test_a_topic_is_compacted_from_its_creation_on_or_later(folder: Path) -> None:
    async with opened_topics(folder, ManualClock()) as topics:
        assert (await topics.create(T, policies=COMPACTED)).policies == COMPACTED
        await change_policies(topics, T, {"cleanup_policy": "delete"}, ["min_compaction_lag_ms"])
        found = topics.policies(topics.known(T))
        assert (found.compacts, found.deletes) == (False, True)
        assert (found.min_compaction_lag_ms, found.min_cleanable_dirty_ratio) == (None, 0.1)


@pytest.mark.parametrize(
    "refused",
    [
        {"cleanup_policy": "compress"},
        {"delete_retention_ms": -1},
        {"max_compaction_lag_ms": 0},
        {"max_compaction_lag_ms": 4},
        {"min_cleanable_dirty_ratio": 1.5},
    ],
)
async def test_a_topic_is_not_compacted_in_other_ways(
    folder: Path, refused: dict[str, Any]
) -> None:
    async with opened_topics(folder, ManualClock()) as topics:
        with pytest.raises(BadRequestError):
            await topics.create(T, policies=replace(COMPACTED, **refused))
        await topics.create(T, policies=COMPACTED)
        with pytest.raises(BadRequestError):
            await change_policies(topics, T, refused, [])
        assert topics.policies(topics.known(T)) == COMPACTED


async def test_a_namespace_has_no_policies_that_only_topics_have(folder: Path) -> None:
    async with opened(folder) as namespaces:
        with pytest.raises(BadRequestError):
            await namespaces.change("public/default", {"cleanup_policy": "compact"}, [])


async def test_retention_of_a_namespace_is_kept_from_the_next_look_on(folder: Path) -> None:
    clock = ManualClock(1_000_000.0)

    async def look(topics: Topics) -> int:
        # What is in the journal alone gets a segment at the first look.
        for _ in range(2):
            clock.advance(3_600)
            await topics.store.retain(topics.now_ms())
        return (await topics.open("t", create=False)).ledger.first_entry

    async with opened_topics(folder, clock) as topics:
        await publish(topics, 3)
        assert await look(topics) == 0
        await topics.namespaces.change("public/default", {"retention_ms": 60_000}, [])
        assert await look(topics) == 3
        await topics.namespaces.change("public/default", {}, ["retention_ms"])
        await publish(topics, 3)
        assert await look(topics) == 3


async def publish(topics: Topics, count: int) -> None:
    partition = await topics.open("t", create=True)
    stored = asyncio.Event()
    for _ in range(count):
        partition.ledger.append(b"v", PULSAR_FORMAT, 1, topics.now_ms(), lambda _: stored.set())
    await stored.wait()


async def test_policies_of_a_topic_are_there_again_when_the_store_is_opened_again(
    folder: Path,
) -> None:
    async with opened_topics(folder, ManualClock()) as topics:
        await topics.create(T, 2)
        await change_policies(topics, T, {"retention_bytes": 5}, [])
    async with opened_topics(folder, ManualClock()) as topics:
        assert topics.known(T).policies.retention_bytes == 5


async def test_nothing_is_deleted_when_the_namespace_itself_may_not_be(folder: Path) -> None:
    async with opened_topics(folder, ManualClock(1_000.0)) as topics:
        name = TopicName("public", "default", "t")
        await topics.create(name)
        with pytest.raises(NotAllowedError):
            await administration(topics).delete_namespace("public/default", force=True)
        assert topics.known(name).name == str(name)


async def test_namespace_goes_also_when_somebody_else_deletes_its_topics(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened_topics(folder, ManualClock(1_000.0)) as topics:
        await topics.namespaces.create("public/b")
        for local in ("t", "u"):
            await topics.create(TopicName("public", "b", local))

        admin = administration(topics)
        delete = admin.delete_topic

        async def beaten(name: TopicName) -> None:
            await delete(name)
            await delete(name)

        monkeypatch.setattr(admin, "delete_topic", beaten)
        await admin.delete_namespace("public/b", force=True)
        assert not topics.namespaces.exists("public/b")


async def test_messages_count_as_acknowledged_after_their_time_to_live(folder: Path) -> None:
    clock = ManualClock(1_000_000.0)
    async with opened_topics(folder, clock) as topics:
        await publish(topics, 2)
        partition = await topics.open("t", create=False)
        group, passive = [
            await partition.subscribe(name, 0, passive=name == "passive")
            for name in ("s", "passive")
        ]
        owned = await partition.subscribe("owned", 0, {SUBSCRIPTION_OWNER: "a stream"})
        await topics.namespaces.change("public/default", {"ttl_seconds": 100}, [])
        clock.advance(60)
        await publish(topics, 1)
        await Maintenance(topics).maintain()
        assert group.cursor.mark_delete == -1
        clock.advance(41)
        await Maintenance(topics).maintain()
        assert group.cursor.mark_delete == 1, "two of three are old"
        await change_policies(topics, T, {"ttl_seconds": 10}, [])
        await Maintenance(topics).maintain()
        assert group.cursor.mark_delete == 2, "the topic's own time is shorter"
        assert (passive.cursor.mark_delete, owned.cursor.mark_delete) == (-1, -1)


async def test_properties_of_a_topic_are_there_again_when_the_store_is_opened_again(
    folder: Path,
) -> None:
    async with opened_topics(folder, ManualClock()) as topics:
        await topics.create(T, 2, properties={"a": "1", "b": "2"})
        await change_properties(topics, T, {"c": "3"}, ["a"])
        with pytest.raises(BadRequestError):
            await change_properties(topics, T, {"d": "x" * 5_000}, [])
    async with opened_topics(folder, ManualClock()) as topics:
        assert topics.known(T).properties == {"b": "2", "c": "3"}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("none", b"{}"),
        ("_topics", b"{}"),
        ("__init__", b"{}"),
        ("truncate", b"{}"),
        ("truncate", b"[]"),
        ("truncate", b"not json"),
        ("truncate", b'{"topic":5}'),
        ("truncate", b'{"topic":"t","more":1}'),
        ("message_at", b'{"topic":"t","timestamp_ms":"x"}'),
        ("change_properties", b'{"topic":"t","new":{"a":1},"clear":[]}'),
        ("clear_backlog", b'{"namespace":"public/default","subscription":5}'),
    ],
)
async def test_call_that_there_is_not_is_refused(folder: Path, name: str, arguments: bytes) -> None:
    async with opened_topics(folder, ManualClock()) as topics:
        await topics.create(T)
        with pytest.raises(BadRequestError):
            await make_call(AdminCalls(topics), name, arguments)
