"""Lookups by number and by time against a plain list, whatever happened to the files meanwhile."""

from __future__ import annotations

import os
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.broker.disk.files import Disk
from router.broker.storage import PULSAR_FORMAT, Ledger, Store
from router.broker.storage.files import check, repair
from router.broker.storage.offset_index import (
    POINT_SIZE,
    OffsetIndexCache,
    all_points,
    pack_point,
    read_points,
)
from router.broker.storage.records import HEAD
from router.broker.storage.segments import Segment
from router.model.policies import Policies
from tests.unit.broker.storage.rig import (
    SMALL,
    clock,
    ignore,
    killed,
    one_ledger,
    opened,
    payload,
    run,
    synced,
)

OPTIONS = replace(SMALL, segment=400, journal=900, index_step=60, cache=100)
LARGE = replace(SMALL, segment=1 << 20, journal=1 << 20, index_step=90, cache=0)
NEVER_MS = 10**15
EXAMPLES = int(os.environ.get("SOAK_LOOKUP_EXAMPLES", "60"))


@dataclass
class Model:
    """What was appended: the number of messages and the time of each entry."""

    messages: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    first: int = 0

    @property
    def numbers(self) -> list[int]:
        return [0, *accumulate(self.messages)]

    def entry_of_number(self, number: int) -> int:
        return max(self.first, min(len(self.messages), bisect_right(self.numbers, number) - 1))

    def number_before(self, entry: int) -> int:
        return self.numbers[max(self.first, min(len(self.messages), entry))]

    def find_time(self, time_ms: int) -> int:
        later = (e for e in range(self.first, len(self.times)) if self.times[e] >= time_ms)
        return next(later, len(self.times))

    async def check(self, ledger: Ledger, step: int = 1) -> None:
        """Compare all answers; of numbers, entries and times only each so many."""
        numbers, end = self.numbers, len(self.messages)
        assert (ledger.first_entry, ledger.durable_entry) == (self.first, end)
        assert (ledger.first_number, ledger.durable_number) == (numbers[self.first], numbers[end])
        for number in range(0, numbers[end] + 2, step):
            assert await ledger.entry_of_number(number) == self.entry_of_number(number), number
        for entry in range(0, end + 2, step):
            assert await ledger.number_before(entry) == self.number_before(entry), entry
        for time_ms in range(0, 42, 3 * step):
            assert await ledger.find_time(time_ms) == self.find_time(time_ms), time_ms

    async def append(self, store: Store, ledger: Ledger, items: list[tuple[int, int]]) -> None:
        for messages, time_ms in items:
            ledger.append(payload(len(self.messages)), PULSAR_FORMAT, messages, time_ms, ignore)
            self.messages.append(messages)
            self.times.append(time_ms)
        await synced(store)


appends = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 40)), min_size=1, max_size=25)
steps = st.one_of(
    appends,
    st.just("flush"),
    st.integers(0, 900),  # retention: so many bytes are kept
    st.sampled_from(["close", "kill"]),
)


@pytest.mark.slow
@pytest.mark.no_cover
@pytest.mark.timeout(600)
@settings(max_examples=EXAMPLES, deadline=None)
@given(work=st.lists(steps, min_size=2, max_size=8))
def test_lookups_answer_as_a_list_would(work: list[list[tuple[int, int]] | str | int]) -> None:
    async def go(folder: Path) -> None:
        model = Model()
        store = await Store.open(folder / "data", OPTIONS, clock)
        try:
            for step in work:
                ledger = await one_ledger(store)
                if isinstance(step, list):
                    await model.append(store, ledger, step)
                elif step == "flush":
                    await store._checkpointer.checkpoint()
                elif isinstance(step, int):
                    policies = Policies(retention_ms=NEVER_MS, retention_bytes=step)
                    store.resolve(lambda _topic, policies=policies: policies)  # type: ignore[misc]
                    await store._checkpointer.checkpoint()
                    await store.retain(40)
                    assert ledger.first_entry >= model.first
                    model.first = ledger.first_entry
                else:
                    if step == "kill":
                        store.fail(PermissionError(13, "killed"))
                    await store.close()
                    store = await Store.open(folder / "data", OPTIONS, clock)
                await model.check(await one_ledger(store), step=1 + len(model.messages) // 12)
        finally:
            await store.close()
        assert check(folder / "data") == []

    with tempfile.TemporaryDirectory() as folder:
        run(go(Path(folder)))


def test_first_number_outlives_retention_of_everything_and_kills(folder: Path) -> None:
    model = Model()

    async def work() -> None:
        async with killed(folder, OPTIONS) as store:
            ledger = await one_ledger(store)
            await model.append(store, ledger, [(3, 5)] * 20)
            store.resolve(lambda _topic: Policies(retention_ms=NEVER_MS, retention_bytes=0))
            await store._checkpointer.checkpoint()
            await store.retain(40)
            assert (ledger.first_entry, ledger.first_number, ledger.messages) == (20, 60, 0)
        model.first = 20
        for _ in range(2):
            async with killed(folder, OPTIONS) as store:
                await model.check(await one_ledger(store))
        async with killed(folder, OPTIONS) as store:
            await model.append(store, await one_ledger(store), [(2, 7)])
        async with opened(folder, OPTIONS) as store:
            await model.check(await one_ledger(store))

    run(work())


def make(folder: Path, count: int = 40) -> Model:
    """Return what stands in one segment, with an index of several points."""
    model = Model()

    async def work() -> None:
        async with opened(folder, LARGE) as store:
            ledger = await one_ledger(store)
            await model.append(store, ledger, [(1 + n % 3, n) for n in range(count)])

    run(work())
    return model


def files(folder: Path) -> tuple[Path, Path]:
    """Return the only segment and its index."""
    (segment,) = (folder / "data" / "ledgers").rglob("*.seg")
    return segment, segment.with_suffix(".idx")


def each_byte(path: Path, step: int = 1) -> Iterator[int]:
    """Damage one byte after the other."""
    whole = path.read_bytes()
    for place in range(0, len(whole), step):
        data = bytearray(whole)
        data[place] ^= 0x55
        path.write_bytes(data)
        yield place
    path.write_bytes(whole)


async def reopened(folder: Path, look: Callable[[Ledger], object]) -> None:
    """Look at the ledger in a store that has read nothing yet."""
    async with killed(folder, LARGE) as store:
        await look(await one_ledger(store))  # type: ignore[misc]


@pytest.mark.slow
@pytest.mark.no_cover
def test_a_damaged_index_changes_no_answer(folder: Path) -> None:
    model = make(folder)
    _segment, index = files(folder)
    assert index.stat().st_size >= 8 * POINT_SIZE

    async def work() -> None:
        for _place in each_byte(index, step=3):
            await reopened(folder, lambda ledger: model.check(ledger, step=5))
        whole = index.read_bytes()
        for size in (0, 1, POINT_SIZE, POINT_SIZE + 5, len(whole) - 1):
            index.write_bytes(whole[:size])
            await reopened(folder, lambda ledger: model.check(ledger, step=5))
        index.unlink()
        await reopened(folder, lambda ledger: model.check(ledger, step=2))

    run(work())


@pytest.mark.parametrize("field", ["entry", "place", "number"])
@pytest.mark.parametrize("by", [-1, 1, 1_000])
def test_points_that_lie_are_not_believed(folder: Path, field: str, by: int) -> None:
    model = make(folder)
    _segment, index = files(folder)
    points = [point for point in all_points(index.read_bytes()) if point is not None]
    for at in range(len(points)):
        lie = points[at]._replace(**{field: getattr(points[at], field) + by})
        index.write_bytes(
            b"".join(pack_point(*point) for point in [*points[:at], lie, *points[at + 1 :]])
        )

        async def look(ledger: Ledger) -> None:
            for number in range(model.numbers[-1] + 1):
                assert await ledger.entry_of_number(number) == model.entry_of_number(number)
            for entry in range(len(model.messages) + 1):
                assert await ledger.number_before(entry) == model.number_before(entry)

        run(reopened(folder, look))
        # A point behind the segment may be left of a process that was killed.
        if lie.entry < len(model.messages):
            assert any(".idx is not sound" in found.sentence for found in check(folder / "data"))


@pytest.mark.slow
@pytest.mark.no_cover
def test_damage_of_an_entry_hides_no_number(folder: Path) -> None:
    model = make(folder, 24)
    segment, _index = files(folder)

    async def look(ledger: Ledger) -> None:
        for number in range(0, model.numbers[-1] + 2, 2):
            assert await ledger.entry_of_number(number) == model.entry_of_number(number)
        for entry in range(0, len(model.messages) + 2, 2):
            assert await ledger.number_before(entry) == model.number_before(entry)

    async def work() -> None:
        for _place in each_byte(segment, step=5):
            await reopened(folder, look)

    run(work())


def test_numbers_that_damage_hides_are_those_behind_it(folder: Path) -> None:
    model = make(folder)
    segment, _index = files(folder)
    data = bytearray(segment.read_bytes())
    places = [0, *accumulate(HEAD.size + len(payload(n)) for n in range(40))]
    for entry in (10, 11, 12):
        data[places[entry] + HEAD.size] ^= 1
    segment.write_bytes(data)
    numbers = model.numbers

    async def look(ledger: Ledger, inside: int) -> None:
        for entry in (9, 10, 13, 14):
            assert await ledger.number_before(entry) == numbers[entry]
        for entry in (11, 12):
            assert await ledger.number_before(entry) == numbers[13]
        for number in range(numbers[10], numbers[13]):
            assert await ledger.entry_of_number(number) == inside
        for number in (0, numbers[10] - 1, numbers[13], numbers[-1] - 1):
            assert await ledger.entry_of_number(number) == model.entry_of_number(number)

    run(reopened(folder, lambda ledger: look(ledger, inside=10)))
    repair(folder / "data", clock)
    run(reopened(folder, lambda ledger: look(ledger, inside=13)))
    assert check(folder / "data") == []
    segment.unlink()

    async def missing(ledger: Ledger) -> None:
        assert await ledger.entry_of_number(3) == 0
        assert await ledger.number_before(3) == numbers[10]
        assert await ledger.entry_of_number(numbers[13]) == 13

    run(reopened(folder, missing))


def test_repair_makes_an_index_that_has_the_same_points(folder: Path) -> None:
    make(folder, 400)
    _segment, index = files(folder)
    before = read_points(index.read_bytes(), Segment(0, 0, 400, 10**6, 10**6, 0, 0))
    index.write_bytes(b"\0" * 50)
    repair(folder / "data", clock)
    assert check(folder / "data") == []

    # A repair takes the step of the default settings, which is larger.
    async def look(ledger: Ledger) -> None:
        assert await ledger.number_before(200) == sum(1 + n % 3 for n in range(200))

    assert len(before) > 100
    run(reopened(folder, look))


def test_a_segment_that_grew_is_read_with_its_new_points(folder: Path) -> None:
    model = Model()

    async def work() -> None:
        async with opened(folder, LARGE) as store:
            ledger = await one_ledger(store)
            for _ in range(4):
                await model.append(store, ledger, [(2, n) for n in range(15)])
                await store._checkpointer.checkpoint()
                store._context.tails.evict(0)
                assert ledger.cached(len(model.messages) - 1) is None
                await model.check(ledger, step=2)
            assert len(ledger.segments) == 1

    run(work())


def test_indexes_that_are_kept_in_memory_are_bounded(folder: Path) -> None:
    segment = Segment(0, 0, 100, 100, 10_000, 0, 0)
    data = b"".join(pack_point(n, 100 * n, n, n, n) for n in range(1, 10))
    paths = [folder / f"{name}.seg" for name in "abc"]
    for path in paths:
        path.with_suffix(".idx").write_bytes(data)
    reads: list[Path] = []

    class Counting(Disk):
        def open(self, path: Path, flags: int) -> int:
            reads.append(path)
            return super().open(path, flags)

    cache = OffsetIndexCache(Counting(), max_points=20)
    for path in (*paths[:2], *paths[:2], paths[2], paths[1], paths[0]):
        assert len(cache.load(path, segment)) == 10
    assert [path.stem for path in reads] == ["a", "b", "c", "a"]
