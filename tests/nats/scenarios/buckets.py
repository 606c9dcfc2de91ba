"""Key-value buckets and object stores, which clients build from streams."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from nats.js.api import KeyValueConfig
from nats.js.errors import APIError
from nats.js.kv import KeyValue
from nats.js.object_store import ObjectStore

from tests.nats.scenarios import shows
from tests.nats.users import CALL_SECONDS, User, listed, raised, until, watched


@contextlib.asynccontextmanager
async def _bucket(user: User, **config: Any) -> AsyncIterator[KeyValue]:
    made = await user.js.create_key_value(KeyValueConfig(bucket=user.name, **config))
    try:
        yield made
    finally:
        await user.js.delete_key_value(user.name)


@contextlib.asynccontextmanager
async def _store(user: User) -> AsyncIterator[ObjectStore]:
    made = await user.js.create_object_store(user.name)
    try:
        yield made
    finally:
        await user.js.delete_object_store(user.name)


@shows([1, ["v1", 1], 2, ["v2", 2], "KeyNotFoundError", ["v1", 1]])
async def values_of_keys(user: User) -> Any:
    async with _bucket(user, history=5) as bucket:
        found: list[Any] = [await bucket.put("a.b", b"v1")]
        entry = await bucket.get("a.b")
        found += [[(entry.value or b"").decode(), entry.revision], await bucket.put("a.b", b"v2")]
        entry = await bucket.get("a.b")
        found += [[(entry.value or b"").decode(), entry.revision], await raised(bucket.get("none"))]
        entry = await bucket.get("a.b", revision=1)
        found += [[(entry.value or b"").decode(), entry.revision]]
        return found


@shows([1, "KeyWrongLastSequenceError", 2, "KeyWrongLastSequenceError", "KeyNotFoundError", 4])
async def revisions(user: User) -> Any:
    async with _bucket(user, history=5) as bucket:
        found: list[Any] = [await bucket.create("k", b"1"), await raised(bucket.create("k", b"2"))]
        found.append(await bucket.update("k", b"2", last=1))
        found.append(await raised(bucket.update("k", b"3", last=1)))
        await bucket.delete("k")
        found.append(await raised(bucket.get("k")))
        return [*found, await bucket.create("k", b"again")]


@shows(
    [[["v1", None], ["v2", None], [None, "DEL"], ["v3", None]], [[None, "PURGE"]], ["a", "b"], 2]
)
async def history(user: User) -> Any:
    async with _bucket(user, history=10) as bucket:
        await bucket.put("k", b"v1")
        await bucket.put("k", b"v2")
        await bucket.delete("k")
        await bucket.put("k", b"v3")

        async def seen() -> list[Any]:
            entries = await listed(lambda: bucket.history("k"))
            return [[one.value.decode() if one.value else None, one.operation] for one in entries]

        found: list[Any] = [await seen()]
        await bucket.purge("k")
        found.append(await seen())
        await bucket.put("b", b"1")
        await bucket.put("a", b"1")
        found.append(sorted(await listed(bucket.keys)))
        status = await bucket.status()
        return [*found, status.values - 1]


@shows([["old", "1"], None, ["new", "2"], ["old", "DEL"], ["x.y", "3"], None, ["x.z", "4"]])
async def watching_keys(user: User) -> Any:
    def shown(entry: Any) -> Any:
        return entry and [entry.key, entry.operation or entry.value.decode()]

    async with _bucket(user) as bucket:
        await bucket.put("old", b"1")
        watcher, first = await watched(bucket.watchall)
        found = [first, await watcher.updates(CALL_SECONDS)]
        await bucket.put("new", b"2")
        await bucket.delete("old")
        found += [await watcher.updates(CALL_SECONDS) for _ in range(2)]
        await watcher.stop()
        await bucket.put("x.y", b"3")
        part, first = await watched(lambda: bucket.watch("x.*"))
        found += [first, await part.updates(CALL_SECONDS)]
        await bucket.put("x.z", b"4")
        await bucket.put("y.z", b"5")
        found.append(await part.updates(CALL_SECONDS))
        await part.stop()
        return [shown(one) for one in found]


@shows([2, "KeyNotFoundError"])
async def keys_that_expire(user: User) -> Any:
    async with _bucket(user, ttl=0.4) as bucket:
        await bucket.put("k", b"1")
        revision = await bucket.put("k", b"2")

        async def gone() -> bool:
            return bool(await raised(bucket.get("k")) != "ok")

        await until(gone)
        return [revision, await raised(bucket.get("k"))]


@shows(["KeyNotFoundError", 2, "again", [10165, 10165]])
async def keys_with_a_time_to_live(user: User) -> Any:
    async with _bucket(user) as bucket:
        subject = f"$KV.{user.name}.k"
        config = (await user.js.stream_info("KV_" + user.name)).config
        config.allow_msg_ttl = True
        await user.js.update_stream(config)
        await user.js.publish(subject, b"1", headers={"Nats-TTL": "1s"})

        async def gone() -> bool:
            return bool(await raised(bucket.get("k")) != "ok")

        await until(gone)
        found: list[Any] = [await raised(bucket.get("k"))]
        found.append(await bucket.create("k", b"again"))
        found.append(((await bucket.get("k")).value or b"").decode())
        codes = []
        for ttl in ("1ms", "soon"):
            try:
                await user.js.publish(subject, b"2", headers={"Nats-TTL": ttl})
            except APIError as refusal:
                codes.append(refusal.err_code)
        return [*found, codes]


@shows(
    [
        1.0,
        [["k", None, 1], ["k", "PURGE", 2]],
        [3, "again"],
        ["k", "PURGE", 4],
        [0, 4],
    ]
)
async def keys_that_leave_markers(user: User) -> Any:
    """A watcher sees that a key's time is over; a marker, and what a client purged, leave none."""

    def shown(entry: Any) -> Any:
        return [entry.key, entry.operation, entry.revision]

    async with _bucket(user, history=5, limit_marker_ttl=1) as bucket:
        found: list[Any] = [(await bucket.status()).marker_ttl]
        watcher: Any = await bucket.watchall()
        assert await watcher.updates(CALL_SECONDS) is None  # there is nothing yet
        await bucket.create("k", b"1", msg_ttl=1)
        found.append([shown(await watcher.updates(CALL_SECONDS)) for _ in range(2)])
        revision = await bucket.put("k", b"again")
        found.append([revision, ((await bucket.get("k")).value or b"").decode()])
        await watcher.updates(CALL_SECONDS)
        await bucket.purge("k", msg_ttl=1)
        found.append(shown(await watcher.updates(CALL_SECONDS)))
        await watcher.stop()

        async def gone() -> bool:
            return bool((await user.js.stream_info("KV_" + user.name)).state.messages == 0)

        await until(gone)
        state = (await user.js.stream_info("KV_" + user.name)).state
        return [*found, [state.messages, state.last_seq]]


@shows(
    [300_000, 3, True, ["small", "large"], "ObjectNotFoundError", ["small"], "BucketNotFoundError"]
)
async def objects(user: User) -> Any:
    body = bytes(range(250)) * 1_200
    async with _store(user) as store:
        made = await store.put("large", body)
        await store.put("small", b"hello")
        found = await store.get("large")
        names = [one.name for one in await listed(store.list)]
        await store.delete("large")
        missing = await raised(store.get("large"))
        rest = await listed(lambda: store.list(ignore_deletes=True))
        left = [one.name for one in rest]
        result = [made.size, made.chunks, found.data == body, sorted(names, reverse=True)]
    return [*result, missing, left, await raised(user.js.object_store("none-" + user.name))]


@shows([None, ["a", False], ["b", False], ["a", True]])
async def watching_objects(user: User) -> Any:
    async with _store(user) as store:
        watcher: Any = await store.watch()
        found = [await watcher.updates(CALL_SECONDS)]
        await store.put("a", b"1")
        await store.put("b", b"2")
        await store.delete("a")
        found += [await watcher.updates(CALL_SECONDS) for _ in range(3)]
        await watcher.stop()
        return [one and [one.name, bool(one.deleted)] for one in found]


@shows(20)
async def writers_of_one_key(user: User) -> Any:
    """Two writers count by compare and set: no increment is lost."""
    async with _bucket(user) as bucket:
        await bucket.create("n", b"0")

        async def count() -> None:
            done = 0
            while done < 10:
                entry = await bucket.get("n")
                number = int(entry.value or b"0") + 1
                if await raised(bucket.update("n", b"%d" % number, entry.revision)) == "ok":
                    done += 1

        await asyncio.gather(count(), count())
        return int((await bucket.get("n")).value or b"0")
