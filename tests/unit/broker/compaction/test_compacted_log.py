"""The law: a compacted log says the last value of each key, whatever happens to it.

To the readers of each dialect, and with compaction on request to those that ask for it.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.broker.compaction.compactor import RUNNING, SUCCESS
from router.broker.compaction.indexes import KeyIndexes
from router.broker.entries import ENTRY_FORMATS, Transcoder
from router.model.policies import Policies
from tests.unit.broker.compaction.log import FORMATS, NOW, SMALL, History, Log, opened, run
from tests.unit.broker.compaction.readers import READERS, by_compacted_reader, by_table_view
from tests.unit.broker.in_memory import IN_MEMORY

DELETE_RETENTION_MS = 60_000
MIN_LAG_MS = 20_000
POLICIES = Policies(
    cleanup_policy="compact",
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=DELETE_RETENTION_MS,
    min_compaction_lag_ms=MIN_LAG_MS,
)

OPTIONS = replace(SMALL, segment=250)
"""Two or three entries make a segment."""

KEY = st.sampled_from([None, b"a", b"b", b"c", b"d", b"\xff"])
VALUE = st.one_of(st.none(), st.binary(min_size=1, max_size=40))
BATCH = st.lists(st.tuples(KEY, VALUE), min_size=1, max_size=4)
PUBLISH = st.tuples(
    st.just("publish"), st.lists(BATCH, min_size=3, max_size=8), st.sampled_from(FORMATS)
)
STEP = st.one_of(
    PUBLISH,
    PUBLISH,
    st.tuples(st.just("clean")),
    st.tuples(st.just("clean")),
    st.tuples(st.just("wait"), st.sampled_from([1, 15, 30, 60])),
    st.tuples(st.just("look")),
    st.tuples(st.just("compact")),
    st.tuples(st.just("lose the index")),
    st.tuples(st.just("restart")),
    st.tuples(st.just("kill")),
    st.tuples(st.just("kill while cleaning"), st.integers(0, 12)),
    st.tuples(st.just("kill while compacting"), st.integers(0, 6)),
)


class KilledError(Exception):
    """The process ended here."""


@contextmanager
def killing(indexes: KeyIndexes, calls: int) -> Iterator[None]:
    """Have the thread of the indexes take so many calls, and then end the process."""
    in_thread, left = indexes.in_thread, calls

    async def counted(work: Callable[..., Any], *arguments: object) -> Any:
        nonlocal left
        if left == 0:
            raise KilledError
        left -= 1
        return await in_thread(work, *arguments)

    indexes.in_thread = counted  # type: ignore[method-assign]
    try:
        yield
    finally:
        indexes.in_thread = in_thread  # type: ignore[method-assign]


def cleanable_end(log: Log) -> int:
    """Return the number before which messages are in closed segments that are old enough."""
    old_ms = log.history.now_ms - MIN_LAG_MS
    end = 0
    for segment in log.partition.ledger.segments[:-1]:
        numbers = range(segment.first_index, segment.next_index)
        if any(log.history.records[number].time_ms > old_ms for number in numbers):
            break
        end = segment.next_index
    return end


class Law:
    """What holds of the log at every moment; `cleaned_ms`: when a tombstone was cleaned first."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.cleaned_ms: dict[int, int] = {}
        self.compacted = 0

    async def check(self, log: Log) -> None:
        """Check what a reader finds, and the index."""
        history = self.history
        found = await log.read()
        published = {record.number: record for record in history.records}
        assert [published[record.number] for record in found] == found, "read as published"
        last = {record.key: record for record in found if record.key is not None}
        newest = history.newest()
        for key, record in newest.items():
            if record.value is not None or record.number not in self.cleaned_ms:
                assert last.get(key) == record, "the newest message of a key is there"
            elif last.get(key) != record:
                assert key not in last, "nothing comes back when its tombstone went"
                cleaned_ms = self.cleaned_ms[record.number]
                assert history.now_ms - cleaned_ms >= DELETE_RETENTION_MS, "tombstones stay"
        left = {record.number for record in found}
        for record in history.records:
            if record.key is None or record.time_ms > history.now_ms - MIN_LAG_MS:
                assert record.number in left, "without a key, or too young to go"

    async def check_index(self, log: Log) -> None:
        values = {}
        for message in await log.index.page(None, 100):
            if not message.tombstone:
                values[message.key] = self.history.records[message.number].value
        assert values == self.history.values()
        for key in (b"a", b"none"):
            one = await log.index.find(key)
            expected = self.history.newest().get(key)
            if expected is None or expected.value is None:
                assert one is None or one.tombstone
            else:
                assert one is not None
                assert one.number == expected.number

    async def check_readers(self, log: Log) -> None:
        """Check what the readers of each dialect get, and what the compacted topic has."""
        transcoder = Transcoder(ENTRY_FORMATS)
        found = [(record.number, record.value or b"") for record in await log.read()]
        for read in READERS:
            assert await read(log, transcoder) == found, read.__name__
        assert await by_table_view(log) == self.history.values()
        compacted = [number for number, _ in await by_compacted_reader(log, transcoder)]
        transcoder.close()
        end, all_numbers = log.partition.ledger.compacted_number, dict(found)
        assert end >= self.compacted, "how far the topic is compacted outlives a kill"
        before = [record for record in self.history.records if record.number < end]
        last = {record.key: record for record in before if record.key is not None}
        kept = {one.number for one in last.values() if one.value is not None}
        # What the cleaner took since has a newer message of its key.
        assert compacted == [n for n in all_numbers if n >= end or n in kept]
        values: dict[bytes, bytes | None] = {}
        for number in compacted:
            record = self.history.records[number]
            if record.key is not None:
                values[record.key] = record.value
        assert {key: v for key, v in values.items() if v is not None} == self.history.values()

    async def compact(self, log: Log) -> None:
        """Compact on request."""
        log.compactor.begin(log.partition)
        while log.compactor.status(log.partition).status == RUNNING:  # noqa: ASYNC110 - a thread works
            await asyncio.sleep(0)
        assert log.compactor.status(log.partition).status == SUCCESS
        self.compacted = log.partition.ledger.compacted_number
        assert self.compacted == len(self.history.records)

    async def clean(self, log: Log) -> None:
        """Clean, and check that of the cleaned part the last message of each key is left."""
        await log.flush()
        end = cleanable_end(log)
        before = await log.read()
        self.note_tombstones(end)
        await log.cleaner.clean_all()
        found = await log.read()
        assert [r for r in found if r.number >= end] == [r for r in before if r.number >= end]
        clean = [r for r in found if r.number < end and r.key is not None]
        published = [r for r in self.history.records if r.number < end and r.key is not None]
        last = {record.key: record for record in published}
        assert len({record.key for record in clean}) == len(clean), "one message of each key"
        assert {record.key: record for record in clean}.items() <= last.items(), "the last one"
        missing = [record for key, record in last.items() if record not in clean]
        assert all(record.value is None for record in missing), "only tombstones went"

    def note_tombstones(self, end: int) -> None:
        """Note those that are cleaned now for the first time."""
        for record in self.history.records:
            if record.number < end and record.value is None:
                self.cleaned_ms.setdefault(record.number, self.history.now_ms)


async def play(folder: Path, steps: list[tuple[Any, ...]]) -> None:
    history = History(NOW)
    law = Law(history)
    left = iter(steps)
    ended: str | None = "restart"
    while ended is not None:
        ended = None
        async with opened(folder, history, POLICIES, options=OPTIONS) as log:
            await law.check(log)
            await law.check_index(log)
            for step, *arguments in left:
                await take(log, law, step, arguments)
                await law.check(log)
                if step in {"restart", "kill", "kill while cleaning", "kill while compacting"}:
                    log.killed, ended = step != "restart", step
                    break
            else:
                log.history.now += 60
                await law.clean(log)
                log.history.now += 60
                await law.clean(log)
                await law.check(log)
                await law.check_index(log)
                await law.check_readers(log)


async def take(log: Log, law: Law, step: str, arguments: list[Any]) -> None:
    """Do what a step says while the log is open."""
    match step:
        case "publish":
            batches, form = arguments
            for batch in batches:
                await log.publish(batch, form)
                log.history.now += 1
        case "wait":
            log.history.now += arguments[0]
        case "clean":
            await law.clean(log)
        case "look":
            await law.check_index(log)
            await law.check_readers(log)
        case "compact":
            await law.compact(log)
        case "kill while compacting":
            with killing(log.indexes, arguments[0]), suppress(AssertionError):
                await law.compact(log)
        case "lose the index":
            await log.indexes.in_thread(log.indexes.drop, log.partition.ledger.id)
            await law.check_index(log)
        case "kill while cleaning":
            await log.flush()
            law.note_tombstones(cleanable_end(log))
            with suppress(KilledError), killing(log.indexes, arguments[0]):
                await log.cleaner.clean_all()


@pytest.mark.slow
@pytest.mark.no_cover
@settings(max_examples=100)
@given(steps=st.lists(STEP, min_size=4, max_size=16))
def test_compacted_log_says_the_last_value_of_each_key(steps: list[tuple[Any, ...]]) -> None:
    in_memory = IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=in_memory) as name:
        run(play(Path(name), steps))
