"""Ledgers that nothing uses: they are what they would be in use, and take little memory."""

from __future__ import annotations

import shutil
import sqlite3
import tracemalloc
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from router.broker.disk import files as disks
from router.broker.disk import row_sums
from router.broker.entries import ENTRY_FORMATS
from router.broker.storage import (
    PULSAR_FORMAT,
    Ack,
    CommittedPosition,
    Ledger,
    Store,
    StoreError,
    StoreOptions,
    SubscriptionRecord,
)
from router.broker.storage.files import check
from router.broker.topics.gauges import LogGauges
from router.broker.topics.maintenance import Maintenance
from router.broker.topics.topics import TopicOptions, Topics
from router.errors import TopicTerminatedError
from router.model.policies import Policies
from tests.processes import ManualClock
from tests.unit.broker.storage.rig import (
    NOW_MS,
    SMALL,
    clock,
    fill,
    ignore,
    killed,
    one_ledger,
    opened,
    run,
    synced,
)

POLICIES = (
    Policies(),
    Policies(retention_ms=20_000),
    Policies(retention_bytes=400),
    Policies(retention_bytes=0, backlog_bytes=700),
)
OPTIONS = replace(SMALL, dedup_window_ms=40_000, dedup_producers=3)
STEP_MS = 1_000
ROOMY = StoreOptions(reserve=0)

Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            (
                *("append",) * 6,
                *("acknowledge",) * 3,
                "up to",
                "in part",
                "delete",
                "subscribe",
                "commit",
                "reset",
                "terminate",
                "epoch",
                "retain",
                "sync",
            )
        ),
        st.integers(0, len(POLICIES) - 1),
        st.integers(0, 40),
    ),
    max_size=60,
)


class Author:
    """Does the steps of a test on a store, one topic for each of the policies."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.now_ms = NOW_MS
        self.ledgers: list[Ledger] = []

    async def work(self, steps: Iterable[Step]) -> None:
        """Make the topics, and do the steps."""
        for number, policies in enumerate(POLICIES):
            name = f"persistent://public/default/t{number}"
            topic = await self.store.create_topic(name, 0, policies, {"n": str(number)})
            self.ledgers.append(self.store.ledger(topic.ledger_ids[0]))
        for step, place, number in steps:
            self.now_ms += STEP_MS
            await self._do(step, self.ledgers[place], number)
        await synced(self.store)

    async def _do(self, step: str, ledger: Ledger, number: int) -> None:
        store, records = self.store, list(self.store.subscriptions(ledger.id))
        record = records[number % len(records)] if records else None
        match step:
            case "append":
                self._append(ledger, number)
            case "delete":
                last = number + number % 3 if number % 4 else ledger.next_index
                store.delete_messages(ledger, [(min(number, number % 8), last)])
            case "subscribe":
                passive = number % 4 == 0
                properties = {"p": str(number)} if number % 2 else {}
                name = f"g{number % 5}"
                await store.create_subscription(ledger.id, name, -1, properties, passive=passive)
            case "terminate" if number == 7:
                await store.terminate(ledger)
            case "epoch":
                ledger.topic_epoch = number
                await store.save_epoch(ledger)
            case "retain":
                await store.retain(self.now_ms)
            case "sync":
                await synced(store)
            case _ if record is not None:
                await synced(store)
                self._change(step, ledger, record, number)

    def _append(self, ledger: Ledger, number: int) -> None:
        for count in range(1 + number % 3):
            producer = (f"p{number % 5}", number + count) if number % 2 else None
            try:
                ledger.append(
                    b"." * number, PULSAR_FORMAT, 1 + number % 3, self.now_ms, ignore, producer
                )
            except TopicTerminatedError:
                return

    def _change(self, step: str, ledger: Ledger, record: SubscriptionRecord, number: int) -> None:
        entry = number * max(1, ledger.next_entry) // 41
        match step:
            case "acknowledge":
                self.store.acknowledge(record, Ack(entry))
            case "up to":
                self.store.acknowledge(record, Ack(entry, cumulative=True))
            case "in part":
                self.store.acknowledge(record, Ack(entry, ack_set=(1,)))
            case "commit":
                self.store.commit(record, CommittedPosition(number, 1, "note", self.now_ms))
            case "reset":
                self.store.reset(record, entry - 1)


def state(ledger: Ledger, records: Iterable[SubscriptionRecord]) -> dict[str, Any]:
    """Return all that is known of a ledger and of its subscriptions."""
    return {
        "bounds": (ledger.first_entry, ledger.next_entry, ledger.durable_entry),
        "numbers": (ledger.first_number, ledger.next_index, ledger.messages),
        "deleted": list(ledger.deleted_numbers.ranges()),
        "producers": dict(ledger.producers),
        "marks": (ledger.id, ledger.topic_id, ledger.terminated, ledger.topic_epoch),
        "groups": {
            record.id: (
                *(record.name, record.properties, record.created_ms, record.passive),
                *(record.commit, record.cursor.mark_delete, list(record.cursor.ranges())),
                sorted(record.cursor.partials()),
            )
            for record in records
        },
    }


def states(store: Store) -> list[dict[str, Any]]:
    """Return the states of all ledgers, all of them in use from now on."""
    ids = [number for topic in store.topics() for number in topic.ledger_ids]
    return [state(store.ledger(number), store.subscriptions(number)) for number in ids]


def looks(store: Store) -> list[dict[str, Any]]:
    """Return the states of all ledgers without using them."""
    ids = [number for topic in store.topics() for number in topic.ledger_ids]
    return [state(*store.look(number)) for number in ids]


def idle_count(store: Store) -> int:
    return sum(store.idle(number) is not None for t in store.topics() for number in t.ledger_ids)


async def figures(store: Store) -> list[Any]:
    """Return the gauges of topics and groups."""
    samples = await LogGauges(store, 100, ManualClock()).collect()
    return sorted(
        (name, labels, value)
        for name, labels, value in samples
        if name.startswith(("router_log", "router_group", "router_backlog", "router_broker_sub"))
    )


@pytest.mark.no_cover
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@example(steps=[("append", 0, 9), ("delete", 0, 0)], is_killed=False, later=0)
@given(steps=STEPS, is_killed=st.booleans(), later=st.integers(0, 60))
@pytest.mark.slow
def test_a_ledger_is_the_same_idle_and_in_use_whatever_was_done_and_retention_too(
    folder: Path, steps: list[Step], *, is_killed: bool, later: int
) -> None:
    async def work() -> None:
        async with (killed if is_killed else opened)(folder, OPTIONS) as store:
            author = Author(store)
            await author.work(steps)
            before = states(store)
        shutil.copytree(folder / "data", folder / "twin" / "data")
        now_ms = author.now_ms + later * STEP_MS
        if is_killed:
            # What the journal alone has goes to segments at a time that the ledgers in use decide.
            for twin in (folder, folder / "twin"):
                async with opened(twin, OPTIONS) as store:
                    assert looks(store) == before
        async with opened(folder, OPTIONS) as lazy, opened(folder / "twin", OPTIONS) as eager:
            assert idle_count(lazy) == len(POLICIES)
            assert looks(lazy) == looks(eager) == states(eager) == before
            assert await figures(lazy) == await figures(eager)
            for at_ms in (now_ms, now_ms + 90 * STEP_MS):
                await lazy.retain(at_ms)
                await eager.retain(at_ms)
                assert await figures(lazy) == await figures(eager)
                assert looks(lazy) == states(eager)
                assert sizes(lazy) == sizes(eager)
            assert states(lazy) == states(eager)

    for old in folder.iterdir():
        shutil.rmtree(old)
    run(work())


def sizes(store: Store) -> list[tuple[int, int]]:
    """Return the bytes and segments of each ledger."""
    found = (store.look(number)[0] for topic in store.topics() for number in topic.ledger_ids)
    return [(ledger.size_bytes, len(ledger.segments)) for ledger in found]


MANY = 2_000


async def make_many(folder: Path, numbers: Iterable[int]) -> None:
    """Make topics with a message, a producer and a group each."""
    async with opened(folder, ROOMY) as store:
        names = [f"persistent://public/default/orders.region.{n:06d}" for n in numbers]
        topics = [await store.create_topic(name, 0, Policies(), {}) for name in names]
        for number, topic in enumerate(topics):
            (ledger_id,) = topic.ledger_ids
            await store.create_subscription(ledger_id, "group-1", -1, {})
            producer = (f"producer-{number}", number)
            store.ledger(ledger_id).append(b"v", PULSAR_FORMAT, 1, NOW_MS, ignore, producer)
        await synced(store)


class Noted(disks.Disk):
    """A disk that notes the files and folders that are opened and listed."""

    def __init__(self) -> None:
        self.paths: list[Path] = []

    def open(self, path: Path, flags: int) -> int:
        self.paths.append(path)
        return super().open(path, flags)

    def list(self, folder: Path) -> list[str]:
        self.paths.append(folder)
        return super().list(folder)


@pytest.mark.slow
@pytest.mark.no_cover
def test_an_idle_topic_takes_at_most_a_kibibyte_and_no_file_of_it_is_touched(folder: Path) -> None:
    async def measure() -> None:
        disk = Noted()
        tracemalloc.start()
        try:
            began, _ = tracemalloc.get_traced_memory()
            async with opened(folder, ROOMY, disk) as store:
                topics = Topics(store, TopicOptions(), clock, ENTRY_FORMATS)
                for at_ms in (NOW_MS, NOW_MS + 60_000):
                    await store.retain(at_ms)
                    await figures(store)
                await Maintenance(topics).maintain()
                assert idle_count(store) == topics.count == MANY
                taken = tracemalloc.get_traced_memory()[0] - began
        finally:
            tracemalloc.stop()
        assert taken / MANY < 1024
        ledgers = folder / "data" / "ledgers"
        assert not [path for path in disk.paths if ledgers in path.parents]

    # More would be left in the journal by a stop, and in use after the start.
    for half in (range(MANY // 2), range(MANY // 2, MANY)):
        run(make_many(folder, half))
    run(measure())


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE topics SET policies = '{\"retentionms\": 1}'",
        "UPDATE topics SET policies = 5",
        "UPDATE subscriptions SET cursor = 5",
        "UPDATE subscriptions SET committed = 'x'",
        "UPDATE meta SET value = 'x' WHERE key = 'journal'",
        "UPDATE meta SET value = -1 WHERE key = 'journal'",
        "DELETE FROM meta WHERE key = 'boot'",
        "UPDATE segments SET ledger_id = 7",
        "UPDATE subscriptions SET ledger_id = 7",
    ],
)
def test_rows_of_another_kind_are_reported_and_do_not_crash_the_start(
    folder: Path, damage: str
) -> None:
    async def work() -> None:
        async with opened(folder) as store:
            ledger = await one_ledger(store)
            await store.create_subscription(ledger.id, "g", -1, {})
            await fill(store, ledger, [b"one"])

    run(work())
    with closing(sqlite3.connect(folder / "data" / "metadata.db")) as metadata, metadata:
        row_sums.install(metadata)
        assert metadata.execute(damage).rowcount == 1
    for look in (lambda: check(folder / "data"), lambda: run(work())):
        with pytest.raises(StoreError, match="the metadata is damaged"):
            look()


async def test_producers_are_known_by_the_order_of_their_last_entries_after_a_start(
    folder: Path,
) -> None:
    """The metadata has no order, and may have more of them than are remembered."""
    options = replace(SMALL, dedup_producers=2, dedup_window_ms=40_000)
    async with opened(folder, options) as store:
        ledger = await one_ledger(store)
        for number, name in enumerate("cba"):
            at_ms = NOW_MS + number * STEP_MS
            ledger.append(b"v", PULSAR_FORMAT, 1, at_ms, ignore, (name, number))
            await synced(store)
            await store.delete_before(ledger, 0)  # a checkpoint, so that each has a row
    async with opened(folder, options) as store:
        ledger = await one_ledger(store)
        assert [name for name, _ in ledger.producers] == ["b", "a"]


async def test_cursors_of_idle_ledgers_do_not_wait_for_segments_that_are_gone(
    tmp_path: Path,
) -> None:
    """The metadata may have lost segments without knowing yet that no cursor stands before them."""
    async with opened(tmp_path) as store:
        topic = await store.create_topic("persistent://public/default/t", 0, Policies(), {})
        (ledger_id,) = topic.ledger_ids
        await store.create_subscription(ledger_id, "g", -1, {})
        ledger = store.ledger(ledger_id)
        for _ in range(60):
            ledger.append(b"x" * 50, PULSAR_FORMAT, 1, NOW_MS, ignore)
            await synced(store)
    with closing(sqlite3.connect(tmp_path / "data" / "metadata.db")) as metadata, metadata:
        row_sums.install(metadata)
        query = "SELECT first_entry FROM segments ORDER BY first_entry LIMIT 1 OFFSET 2"
        (gone,) = metadata.execute(query).fetchone()
        metadata.execute("DELETE FROM segments WHERE first_entry = ?", (gone,))
    async with opened(tmp_path) as store:
        _ledger, (seen,) = store.look(ledger_id)
        assert store.idle(ledger_id) is not None
        (used,) = store.subscriptions(ledger_id)
        for record in (seen, used):
            assert record.cursor.is_acked(gone)
            assert not record.cursor.is_acked(gone - 1)
