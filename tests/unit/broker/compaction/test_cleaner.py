"""What the cleaner deletes, and when; the law over all histories is in test_compacted_log."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest.mock import patch

import pytest

from router.broker.compaction.cleaner import CleanerPace, Dirt, measure, ranges
from router.broker.compaction.compactor import NOT_RUN
from router.broker.storage import KAFKA_FORMAT, StoreError, Undecided
from router.broker.topics.changes import change_policies
from router.broker.topics.maintenance import Maintenance
from router.model.policies import Policies
from tests.unit.broker.compaction.log import FORMATS, TOPIC, History, Log, opened

EAGER = Policies(cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
DAY = 86_400.0


async def fill(log: Log, count: int, form: int = KAFKA_FORMAT, keys: int = 3) -> None:
    """Append messages of so many keys, one an entry, and close their segments but the last."""
    for number in range(count):
        await log.publish([(b"k%d" % (number % keys), b"v%d" % number)], form)
    await log.flush()


@pytest.mark.parametrize("form", FORMATS)
async def test_newest_message_of_each_key_stays_of_the_closed_segments(
    folder: Path, form: int
) -> None:
    history = History()
    async with opened(folder, history, EAGER) as log:
        await fill(log, 60, form)
        end = log.closed_end
        assert 20 < end < 60
        await log.cleaner.clean_all()
        left = [record.number for record in await log.read()]
        assert left == [*range(end - 3, end), *range(end, 60)]


async def test_messages_without_a_key_stay(folder: Path) -> None:
    history = History()
    async with opened(folder, history, EAGER) as log:
        for number in range(40):
            await log.publish([(None, b"plain"), (b"k", b"%d" % number)])
        await log.flush()
        await log.cleaner.clean_all()
        plain = [r.number for r in await log.read() if r.key is None]
        assert plain == list(range(0, 80, 2))


async def test_topic_that_is_not_compacted_is_left_alone(folder: Path) -> None:
    async with opened(folder, History(), Policies()) as log:
        await fill(log, 60)
        await log.cleaner.clean_all()
        assert len(await log.read()) == 60
        assert not log.index_file.exists()


async def test_tombstone_goes_when_its_time_since_cleaning_is_over(folder: Path) -> None:
    history = History()
    policies = Policies(
        cleanup_policy="compact", min_cleanable_dirty_ratio=0.0, delete_retention_ms=60_000
    )
    async with opened(folder, history, policies) as log:
        await log.publish([(b"gone", b"v"), (b"gone", None)])
        history.now += DAY  # its age when it is cleaned first does not count
        await fill(log, 60)
        await log.cleaner.clean_all()
        assert [r.value for r in await log.read() if r.key == b"gone"] == [None]
        history.now += 59
        await log.cleaner.clean_all()
        assert [r.value for r in await log.read() if r.key == b"gone"] == [None]
        history.now += 1
        await log.cleaner.clean_all()
        assert [r for r in await log.read() if r.key == b"gone"] == []


async def test_messages_are_kept_until_they_have_the_least_age(folder: Path) -> None:
    history = History()
    policies = Policies(
        cleanup_policy="compact", min_cleanable_dirty_ratio=0.0, min_compaction_lag_ms=60_000
    )
    async with opened(folder, history, policies) as log:
        await fill(log, 30)
        history.now += 30
        await fill(log, 30)
        await log.cleaner.clean_all()
        assert len(await log.read()) == 60
        history.now += 30
        await log.cleaner.clean_all()
        left = [record.number for record in await log.read()]
        assert set(range(30, 60)) <= set(left)
        assert len(left) < 40


async def test_log_is_cleaned_when_enough_of_it_is_dirty_or_it_is_late(folder: Path) -> None:
    history = History()
    policies = Policies(cleanup_policy="compact", max_compaction_lag_ms=3_600_000)
    async with opened(folder, history, policies) as log:
        await fill(log, 60)
        await log.cleaner.clean_all()
        cleaned = len(await log.read())
        assert cleaned < 60
        await fill(log, 6, keys=100)  # of other keys, so that the clean part grows
        for _ in range(4):
            await fill(log, 60, keys=1_000)
            await log.cleaner.clean_all()
        before = len(await log.read())
        await fill(log, 30, keys=10)
        await log.cleaner.clean_all()
        assert len(await log.read()) == before + 30
        history.now += 3_601
        await log.cleaner.clean_all()
        assert len(await log.read()) < before + 30


@pytest.mark.parametrize(
    ("dirt", "policies", "due"),
    [
        (Dirt(0, 0.0, None), EAGER, False),
        (Dirt(10, 0.5, 0), Policies(cleanup_policy="compact"), False),
        (Dirt(10, 0.51, 0), Policies(cleanup_policy="compact"), True),
        (Dirt(10, 0.1, 99), Policies(max_compaction_lag_ms=1), True),
        (Dirt(10, 0.1, 100), Policies(max_compaction_lag_ms=1), False),
    ],
)
def test_cleaning_is_due(dirt: Dirt, policies: Policies, due: bool) -> None:
    assert dirt.is_due(policies, 100) is due


async def test_nothing_may_be_cleaned_of_the_segment_that_is_written_on(folder: Path) -> None:
    async with opened(folder, History(), EAGER) as log:
        await fill(log, 2, keys=1)
        assert measure(log.partition.visible, 0, 0, log.history.now_ms) == Dirt(0, 0.0, None)
        await log.cleaner.clean_all()
        assert len(await log.read()) == 2


def test_numbers_as_ranges() -> None:
    assert list(ranges([0, 1, 2, 5, 7, 8])) == [(0, 2), (5, 5), (7, 8)]
    assert list(ranges([])) == []


async def test_metrics_count_what_was_cleaned(folder: Path) -> None:
    async with opened(folder, History(), EAGER) as log:
        await fill(log, 60)
        await log.cleaner.clean_all()
        found = {name: value for name, _, value in await log.cleaner.collect()}
        gone = 60 - len(await log.read())
        assert found["router_compaction_cleaned_messages_total"] == gone > 0
        assert found["router_compaction_max_dirty_ratio"] == 1.0
        assert found["router_compaction_last_run_time_seconds"] == log.history.now


async def test_index_of_a_deleted_topic_is_removed(folder: Path) -> None:
    async with opened(folder, History(), EAGER) as log:
        await fill(log, 60)
        await log.cleaner.clean_all()
        path = log.index_file
        assert path.exists()
        await log.topics.delete(log.topics.parse("prices"))
        await log.cleaner.clean_all()
        assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("in_use", [False, True])
async def test_topic_that_is_made_again_meanwhile_is_not_cleaned_by_the_former_policies(
    folder: Path, in_use: bool
) -> None:
    async with opened(folder, History(), EAGER) as log:
        await fill(log, 60)
        topics, former = log.topics, log.topics.records()
        await topics.delete(TOPIC)
        await topics.create(TOPIC)
        if in_use:
            await fill(log, 60)
        with patch.object(topics, "records", lambda: former):
            await log.cleaner.clean_all()
        assert len(await log.read()) == 60 * in_use


@pytest.mark.parametrize("policies", [EAGER, Policies(compaction_threshold=1)])
async def test_topic_whose_policies_change_meanwhile_is_left_for_the_next_time(
    folder: Path, policies: Policies
) -> None:
    async with opened(folder, History(), policies) as log:
        await fill(log, 60)
        topics, former = log.topics, log.topics.records()
        await change_policies(topics, TOPIC, {}, ["cleanup_policy", "compaction_threshold"])
        with patch.object(topics, "records", lambda: former):
            await log.cleaner.clean_all()
        assert len(await log.read()) == 60
        assert log.compactor.status(log.partition).status == NOT_RUN


async def test_pauses_are_in_proportion_to_the_work_while_others_publish(folder: Path) -> None:
    now = 100.0
    async with opened(folder, History(), EAGER) as log:
        pace = CleanerPace(log.store, lambda: now)
        now += 0.01
        assert pace.seconds() == 0
        await log.publish([(b"k", b"v")])
        assert pace.seconds() == pytest.approx(0.09)
        now += 10
        assert pace.seconds() == 1.0
        pace.discount()
        assert pace.seconds() == 0


async def test_maintenance_has_compacted_topics_cleaned(folder: Path) -> None:
    async with opened(folder, History(), EAGER) as log:
        await fill(log, 60)
        cleaning = asyncio.create_task(log.cleaner.run())
        await Maintenance(log.topics, log.cleaner.wake).maintain()
        async with asyncio.timeout(30):
            while len(await log.read()) == 60:  # noqa: ASYNC110 - a thread works for it
                await asyncio.sleep(0.01)
        cleaning.cancel()
        await asyncio.wait((cleaning,))


async def test_nothing_begins_once_the_indexes_are_closed(folder: Path) -> None:
    async with opened(folder, History(), EAGER) as log:
        await fill(log, 60)
        index = log.index
        await log.indexes.close()
        with pytest.raises(StoreError):
            await index.catch_up()
        with pytest.raises(StoreError):
            await log.cleaner.clean_all()


async def test_what_an_open_transaction_holds_back_is_cleaned_when_it_is_decided(
    folder: Path,
) -> None:
    async with opened(folder, History(), EAGER) as log:
        await fill(log, 30)
        ledger = log.partition.ledger
        ledger.undecided = Undecided(ledger.next_entry, ledger.next_index)
        await fill(log, 30)
        await log.cleaner.clean_all()
        ledger.undecided = None
        assert len(await log.read()) > 30
        await log.cleaner.clean_all()
        end = log.closed_end
        assert end > 40
        assert [one.number for one in await log.read()] == [*range(end - 3, 60)]
