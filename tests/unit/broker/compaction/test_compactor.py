"""Compaction on request: how far a partition is compacted, and what readers of it get then."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Collection
from pathlib import Path

import pytest

from router.broker.compaction.compactor import ERROR, NOT_RUN, RUNNING, SUCCESS
from router.broker.compaction.indexes import PartitionIndex
from router.broker.compaction.key_index import IndexDamagedError
from router.broker.compaction.table_view import CompactionCalls
from router.broker.consume import Partition
from router.broker.entries import ENTRY_FORMATS
from router.errors import ConflictError
from router.model.policies import Policies
from tests.unit.broker.compaction.log import FORMATS, TOPIC, History, Log, opened

PLAIN = Policies()


async def compacted(log: Log) -> None:
    """Compact the topic, and return when that is over."""
    log.compactor.begin(log.partition)
    async with asyncio.timeout(30):
        while log.compactor.status(log.partition).status == RUNNING:  # noqa: ASYNC110 - a thread works for it
            await asyncio.sleep(0)


async def values(log: Log) -> list[bytes | None]:
    """Return the values that a reader gets that asks for a compacted topic."""
    found = await log.read(await log.compactor.view(log.partition))
    return [record.value for record in found]


@pytest.mark.parametrize("form", FORMATS)
async def test_reader_gets_the_newest_of_each_key_and_then_all(folder: Path, form: int) -> None:
    async with opened(folder, History(), PLAIN) as log:
        await log.publish([(b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (None, b"plain")], form)
        await log.publish([(b"b", None), (b"c", b"4")], form)
        assert log.compactor.status(log.partition).status == NOT_RUN
        assert await values(log) == [b"1", b"2", b"3", b"plain", None, b"4"]
        await compacted(log)
        assert log.compactor.status(log.partition) == (SUCCESS, "")
        await log.publish([(b"a", b"5"), (b"c", None), (None, b"plain")], form)
        assert await values(log) == [b"3", b"4", b"5", None, b"plain"]
        assert len(await log.read()) == 9
        await compacted(log)
        assert await values(log) == [b"5"]


async def test_how_far_a_topic_is_compacted_outlives_a_kill_and_the_index(folder: Path) -> None:
    history = History()
    async with opened(folder, history, PLAIN) as log:
        await log.publish([(b"a", b"1"), (b"a", b"2")])
        await compacted(log)
        await log.publish([(b"a", b"3")])
        log.killed = True
    async with opened(folder, history, PLAIN) as log:
        assert log.compactor.status(log.partition).status == NOT_RUN
        assert await values(log) == [b"2", b"3"]
        await log.indexes.in_thread(log.indexes.drop, log.partition.ledger.id)
    async with opened(folder, history, PLAIN) as log:
        assert await values(log) == [b"2", b"3"]


async def test_view_stays_as_it_was_when_its_reader_came(folder: Path) -> None:
    async with opened(folder, History(), PLAIN) as log:
        await log.publish([(b"a", b"1"), (b"b", b"2")])
        await compacted(log)
        view = await log.compactor.view(log.partition)
        assert await log.compactor.view(log.partition) is view
        await log.publish([(b"a", None)])
        await compacted(log)
        # The reader that has the value of `a` meets the tombstone.
        assert [record.value for record in await log.read(view)] == [b"1", b"2", None]
        assert await values(log) == [b"2"]


async def test_messages_that_retention_removed_are_in_no_view(folder: Path) -> None:
    async with opened(folder, History(), PLAIN) as log:
        await log.publish([(b"a", b"1"), (b"b", b"2")])
        await compacted(log)
        await log.publish([(b"c", b"3")])
        await log.store.delete_before(log.partition.ledger, 1)
        assert await values(log) == [b"2", b"3"]
        await compacted(log)
        assert await values(log) == [b"2", b"3"]


async def test_retention_leaves_the_newest_of_each_key_of_a_compacted_topic(folder: Path) -> None:
    history, policies = History(), Policies(retention_ms=60_000)
    async with opened(folder, history, policies) as log:
        await log.publish([(b"old", b"1"), (None, b"plain"), (b"gone", None)])
        await log.publish([(b"new", b"2"), (b"old", bytes(600))])
        await compacted(log)
        await log.publish([(b"new", bytes(601))])
        await log.flush()
        await retain(log)
        assert len(await log.read()) == 6
        history.now += 61
        # What came since is compacted first: of `new` the newest message stays.
        await retain(log)
        assert [record.value for record in await log.read()] == [bytes(600), bytes(601)]
        assert log.partition.ledger.compacted_number == 6
        await log.publish([(b"old", b"3")])
        await retain(log)
        assert await values(log) == [bytes(600), bytes(601), b"3"]
        log.killed = True
    async with opened(folder, history, policies) as log:
        history.now += 61
        await log.flush()
        await retain(log)
        assert await values(log) == [bytes(601), b"3"]
        assert [record.value for record in await log.read()] == [bytes(601), b"3"]


@pytest.mark.parametrize("requested", [True, False])
async def test_retention_finds_a_compacted_topic_that_nothing_uses(
    folder: Path, *, requested: bool
) -> None:
    history, policies = History(), Policies(retention_ms=60_000)
    async with opened(folder, history, policies) as log:
        await log.publish([(b"a", bytes(600)), (b"a", bytes(601))])
        if requested:
            await compacted(log)
    history.now += 61
    async with opened(folder, history, policies) as log:
        await retain(log)
        assert [record.value for record in await log.read()] == [bytes(601)] * requested


async def test_retention_of_a_compacted_topic_waits_for_its_subscriptions(folder: Path) -> None:
    history, policies = History(), Policies(retention_ms=60_000)
    async with opened(folder, history, policies) as log:
        await log.publish([(b"a", bytes(600)), (b"a", bytes(601))])
        await compacted(log)
        await log.flush()
        subscription = await log.partition.subscribe("s", 0)
        history.now += 61
        await retain(log)
        assert len(await log.read()) == 2
        await subscription.reset_durably(1)
        await retain(log)
        assert len(await log.read()) == 1


async def retain(log: Log) -> None:
    """Do what the maintenance does each minute."""
    await log.store.retain(log.history.now_ms)
    await log.cleaner.clean_all()


async def test_topic_is_compacted_when_more_than_its_threshold_was_stored(folder: Path) -> None:
    history, policies = History(), Policies(compaction_threshold=500)
    async with opened(folder, history, policies) as log:
        await log.publish([(b"a", b"1"), (b"a", b"2")])
        await log.cleaner.clean_all()
        assert log.compactor.status(log.partition).status == NOT_RUN
        await log.publish([(b"a", bytes(500))])
        await log.cleaner.clean_all()
        assert log.compactor.status(log.partition).status == RUNNING
        await log.cleaner.clean_all()  # it is under way
        async with asyncio.timeout(30):
            while not log.partition.ledger.compacted_number:  # noqa: ASYNC110 - a thread works
                await asyncio.sleep(0)
        assert await values(log) == [bytes(500)]
        await log.cleaner.clean_all()
        assert log.compactor.status(log.partition).status == SUCCESS


async def test_compaction_that_is_under_way_is_not_requested_again(folder: Path) -> None:
    async with opened(folder, History(), PLAIN) as log:
        await log.publish([(b"a", b"1")])
        calls = CompactionCalls(log.topics, log.indexes, log.compactor, ENTRY_FORMATS)
        await calls.compact(str(TOPIC))
        assert await calls.compaction(str(TOPIC)) == (RUNNING, "")
        with pytest.raises(ConflictError, match="already running"):
            await calls.compact(str(TOPIC))


@pytest.mark.parametrize("error", [OSError(5, "I/O error"), KeyError("unexpected")])
async def test_compaction_that_fails_says_why(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async with opened(folder, History(), PLAIN) as log:
        await log.publish([(b"a", b"1"), (b"a", b"2")])

        async def fail() -> None:
            raise error

        with monkeypatch.context() as patched:
            patched.setattr(log.index, "catch_up", fail)
            await compacted(log)
        status, last_error = log.compactor.status(log.partition)
        assert status == ERROR
        assert str(error.args[-1]) in last_error
        await compacted(log)
        assert log.compactor.status(log.partition) == (SUCCESS, "")


@pytest.mark.parametrize(
    "error", [OSError(5, "I/O error"), sqlite3.OperationalError(), IndexDamagedError(), KeyError()]
)
async def test_partition_that_cannot_be_cleaned_leaves_the_others_to_the_cleaner(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    policies = Policies(cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
    async with opened(folder, History(), policies) as log:
        bad = await log.topics.create(log.topics.parse("a-first"), 0, policies)
        clean, cleaned = log.cleaner.clean, []

        async def selective(partition: Partition, policies: Policies) -> float:
            cleaned.append(partition.topic_name)
            if partition.topic_name == bad.name:
                raise error
            return await clean(partition, policies)

        monkeypatch.setattr(log.cleaner, "clean", selective)
        for _ in range(2):
            log.topics.partitions(bad)
            await log.publish([(b"a", b"1")])
            await log.cleaner.clean_all()
        assert set(cleaned) == {bad.name, str(TOPIC)}
        found = {name: value for name, _, value in await log.cleaner.collect()}
        assert found["router_compaction_failures_total"] == 2


async def test_index_of_a_topic_that_is_made_while_others_are_removed_stays(folder: Path) -> None:
    async with opened(folder, History()) as log:
        await log.publish([(b"a", b"1")])
        gone = PartitionIndex(log.indexes, log.partition.visible)

        async def close() -> None:
            await log.index.catch_up()  # which is used for the first time now

        gone.close = close  # type: ignore[method-assign]
        log.indexes._indexes[0] = gone
        await log.indexes.keep(())
        assert log.index_file.exists()
        assert await log.index.find(b"a") is not None


async def test_status_of_a_topic_that_is_made_while_indexes_are_removed_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(folder, History(), PLAIN) as log:
        await log.publish([(b"a", b"1")])

        async def keep(_ledger_ids: Collection[int]) -> None:
            monkeypatch.undo()
            log.compactor.begin(log.partition)

        # As if the topic was made after the cleaner had looked at all.
        monkeypatch.setattr(log.topics, "records", tuple)
        monkeypatch.setattr(log.indexes, "keep", keep)
        await log.cleaner.clean_all()
        assert log.compactor.status(log.partition).status in {RUNNING, SUCCESS}
