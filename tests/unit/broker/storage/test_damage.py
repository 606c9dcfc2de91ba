"""Files that were cut or changed: nothing wrong is ever served, and damage is named exactly."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.broker.folder import MARK, hold
from router.broker.storage import DamagedError, Entry, Ledger, StoreError
from router.broker.storage.commit_groups import (
    FILE_SIZE,
    GROUP_HEADER_SIZE,
    CommitGroup,
    read_file_header,
    scan_commit_groups,
)
from router.broker.storage.files import check, repair
from router.broker.storage.offset_index import POINT_SIZE
from router.broker.storage.records import HEAD
from tests.unit.broker.storage.rig import (
    SMALL,
    clock,
    fill,
    killed,
    one_ledger,
    opened,
    payload,
    read_all,
    run,
    synced,
)

pytestmark = [pytest.mark.slow, pytest.mark.no_cover, pytest.mark.timeout(120)]

COUNT = 4
ROUNDS = [b"first", b"2", b"3rd"]


def journal_of(folder: Path) -> Path:
    (path,) = (folder / "data" / "journal").glob("*.log")
    return path


def segments_of(folder: Path) -> list[Path]:
    return sorted((folder / "data" / "ledgers").rglob("*.seg"))


def make_journal(folder: Path) -> list[CommitGroup]:
    """Leave a few entries, each in a round of its own, in a journal; return the rounds."""

    async def work() -> None:
        async with killed(folder) as store:
            await fill(store, await one_ledger(store), ROUNDS, each=True)

    run(work())
    data = journal_of(folder).read_bytes()
    header = read_file_header(data)
    assert header is not None
    rounds = [found for found in scan_commit_groups(data, header) if isinstance(found, CommitGroup)]
    assert len(rounds) == len(ROUNDS)
    return rounds


def make_segment(folder: Path, count: int = COUNT) -> None:
    """Leave one synced segment with a point in its index every few entries."""

    async def work() -> None:
        async with opened(folder, LARGE) as store:
            await fill(store, await one_ledger(store), [payload(n) for n in range(count)])

    run(work())


LARGE = type(SMALL)(segment=1 << 20, journal=1 << 20, cache=1 << 20, reserve=0, index_step=70)


def copies(folder: Path, file: Path) -> Iterator[tuple[int, Path, Path]]:
    """Yield a fresh copy of the data for each byte of a file: its place, the copy, the file."""
    for place in range(file.stat().st_size):
        copy = folder / f"copy-{place}"
        shutil.copytree(folder / "data", copy / "data")
        yield place, copy, copy / file.relative_to(folder)
        shutil.rmtree(copy)


def flip(file: Path, place: int) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 1 << (place % 8)
    file.write_bytes(data)


async def read_around(ledger: Ledger) -> tuple[list[Entry], list[DamagedError]]:
    """Read everything, passing over what is reported as damaged."""
    found: list[Entry] = []
    damage: list[DamagedError] = []
    start = 0
    while start < ledger.durable_entry:
        try:
            entries = await ledger.read(start, 3, 1000)
        except DamagedError as error:
            damage.append(error)
            start = error.last + 1
            continue
        if not entries:
            break
        found += entries
        start = entries[-1].entry_id + 1
    return found, damage


async def recovered(folder: Path) -> list[bytes]:
    async with killed(folder) as store:
        entries = await read_all(await one_ledger(store))
        assert [entry.entry_id for entry in entries] == list(range(len(entries)))
        return [entry.payload for entry in entries]


def test_damage_to_what_recovery_copied_is_no_write_that_was_cut_short(folder: Path) -> None:
    make_journal(folder)

    async def work() -> None:
        assert await recovered(folder) == ROUNDS
        flip(journal_of(folder), FILE_SIZE + GROUP_HEADER_SIZE + 40)
        with pytest.raises(StoreError, match="damaged, bytes"):
            await recovered(folder)

    run(work())


def test_a_journal_cut_at_any_byte_gives_back_the_whole_rounds_before(folder: Path) -> None:
    rounds = make_journal(folder)
    ends = [found.end for found in rounds]

    async def work() -> None:
        for place, copy, file in copies(folder, journal_of(folder)):
            file.write_bytes(file.read_bytes()[:place])
            if place < FILE_SIZE:
                with pytest.raises(StoreError, match="header is not sound"):
                    await recovered(copy)
                continue
            assert await recovered(copy) == ROUNDS[: sum(end <= place for end in ends)]

    run(work())


def test_a_changed_byte_in_a_journal_is_damage_or_a_cut_last_round(folder: Path) -> None:
    rounds = make_journal(folder)

    async def work() -> None:
        for place, copy, file in copies(folder, journal_of(folder)):
            flip(file, place)
            if place >= rounds[-1].start:
                assert await recovered(copy) == ROUNDS[:-1]
                continue
            reported = [f for f in check(copy / "data") if f.serious]
            assert all(f.span is not None and f.span[0] <= place < f.span[1] for f in reported)
            with pytest.raises(StoreError, match="damaged, bytes"):
                await recovered(copy)
            assert (copy / "data" / MARK).exists()
            repair(copy / "data", clock)
            assert [f for f in check(copy / "data") if f.serious] == []
            await expect_all_but(
                copy, [n for n, r in enumerate(rounds) if r.start <= place < r.end]
            )

    run(work())


def make_reused_journal(folder: Path) -> tuple[int, list[CommitGroup]]:
    """Leave a journal file that was written over an older one, with older bytes behind its end.

    Return how many entries there are, each in a round of its own, and the rounds of that file.
    """
    options = type(SMALL)(segment=1 << 20, journal=500, cache=1 << 20, reserve=0)
    count = 0

    async def work() -> None:
        nonlocal count
        async with killed(folder, options) as store:
            ledger = await one_ledger(store)
            while count < 60 or not 300 < store._journal.size < 400:
                await fill(store, ledger, [payload(count)])
                count += 1
                if count < 60:
                    await store._checkpointer.checkpoint()

    run(work())
    data = max((folder / "data" / "journal").glob("*.log")).read_bytes()
    header = read_file_header(data)
    assert header is not None
    assert header.reused
    rounds = list(scan_commit_groups(data, header))
    assert len(rounds) >= 2
    assert all(isinstance(found, CommitGroup) for found in rounds)
    return count, [found for found in rounds if isinstance(found, CommitGroup)]


def test_every_damage_of_a_journal_that_was_written_over_is_told(folder: Path) -> None:
    count, rounds = make_reused_journal(folder)
    newest = max((folder / "data" / "journal").glob("*.log"))
    assert newest.stat().st_size > rounds[-1].end + 2 * GROUP_HEADER_SIZE
    everything = [payload(number) for number in range(count)]

    async def work() -> None:
        assert check(folder / "data") == []
        for place, copy, file in copies(folder, newest):
            flip(file, place)
            found = check(copy / "data")
            if place >= rounds[-1].end + GROUP_HEADER_SIZE:
                # Bytes of the earlier file.
                assert found == []
                assert await recovered(copy) == everything
            elif place >= rounds[-1].start:
                (finding,) = found
                assert "cut short" in finding.sentence
                assert not finding.serious
                lost = place < rounds[-1].end
                assert await recovered(copy) == everything[: count - lost]
            else:
                assert any(finding.serious for finding in found)
                with pytest.raises(StoreError, match="damaged, bytes"):
                    await recovered(copy)

    run(work())


async def expect_all_but(folder: Path, damaged: list[int]) -> None:
    """Only the entry of the round that was hit may be missing, and then it is a hole."""
    async with killed(folder) as store:
        ledger = await one_ledger(store)
        found = {entry.entry_id: entry.payload for entry in await read_all(ledger)}
        missing = [n for n in range(len(ROUNDS)) if n not in found]
        assert found == {n: ROUNDS[n] for n in range(len(ROUNDS)) if n not in missing}
        assert set(missing) <= set(damaged)
        assert [(hole.first, hole.last) for hole in ledger.holes] == [(n, n) for n in missing]
        await fill(store, ledger, [b"more"])
        assert (await read_all(ledger))[-1].entry_id == len(ROUNDS)


def test_a_lost_journal_file_is_damage(folder: Path) -> None:
    make_journal(folder)
    journal_of(folder).unlink()
    with pytest.raises(StoreError, match="the file is missing"):
        run(_expect_nothing(folder))
    assert [f.serious for f in check(folder / "data")] == [True, True]  # the mark, the file
    repair(folder / "data", clock)
    assert check(folder / "data") == []


async def _expect_nothing(folder: Path) -> None:
    assert await recovered(folder) == []


def test_a_journal_published_as_a_message_is_not_taken_for_one(folder: Path) -> None:
    make_journal(folder)
    copied = journal_of(folder).read_bytes()

    async def work() -> None:
        async with killed(folder) as store:
            ledger = await one_ledger(store)
            await fill(store, ledger, [copied])
        file = journal_of(folder)
        file.write_bytes(file.read_bytes()[:-1])
        assert await recovered(folder) == ROUNDS

    run(work())


def test_a_segment_cut_at_any_byte_serves_what_stands_before(folder: Path) -> None:
    make_segment(folder)
    (segment,) = segments_of(folder)
    sizes = [HEAD.size + len(payload(n)) for n in range(COUNT)]
    ends = [sum(sizes[: n + 1]) for n in range(COUNT)]

    async def work() -> None:
        for place, copy, file in copies(folder, segment):
            file.write_bytes(file.read_bytes()[:place])
            whole = sum(end <= place for end in ends)
            async with killed(copy, LARGE) as store:
                ledger = await one_ledger(store)
                found, damage = await read_around(ledger)
                assert [entry.payload for entry in found] == [payload(n) for n in range(whole)]
                assert [(e.first, e.last) for e in damage] == [(whole, COUNT - 1)]
                assert (damage[0].start, damage[0].end) == (sum(sizes[:whole]), sum(sizes))
                # A file that lost bytes is not written to: behind it a new one begins.
                await fill(store, ledger, [b"more"])
                assert (await ledger.read(COUNT, 1, 1))[0].payload == b"more"
            if place % 40 == 0:
                repair(copy / "data", clock)
                await expect_holes(copy, list(range(whole, COUNT)))

    run(work())


async def expect_holes(folder: Path, missing: list[int]) -> None:
    assert [f for f in check(folder / "data") if f.serious] == []
    async with opened(folder, LARGE) as store:
        ledger = await one_ledger(store)
        found = {e.entry_id: e.payload for e in await read_all(ledger) if e.payload != b"more"}
        assert found == {n: payload(n) for n in range(COUNT) if n not in missing}
        assert [n for hole in ledger.holes for n in range(hole.first, hole.last + 1)] == missing


def test_a_changed_byte_in_a_segment_costs_exactly_its_entry(folder: Path) -> None:
    make_segment(folder)
    (segment,) = segments_of(folder)
    ends = [sum(HEAD.size + len(payload(k)) for k in range(n + 1)) for n in range(COUNT)]

    async def work() -> None:
        for place, copy, file in copies(folder, segment):
            hit = sum(end <= place for end in ends)
            flip(file, place)
            async with killed(copy, LARGE) as store:
                found, (error,) = await read_around(await one_ledger(store))
            expected = {n: payload(n) for n in range(COUNT) if n != hit}
            assert {entry.entry_id: entry.payload for entry in found} == expected
            assert (error.first, error.last, error.file) == (hit, hit, file)
            assert (error.start, error.end) == (([0, *ends])[hit], ends[hit])
            (finding,) = check(copy / "data")
            assert (finding.serious, finding.span) == (True, (error.start, error.end))
            if place % 7 == 0:
                assert [f.repaired for f in repair(copy / "data", clock)] == [True]
                await expect_holes(copy, [hit])

    run(work())


def test_a_changed_byte_in_an_index_costs_nothing(folder: Path) -> None:
    make_segment(folder)
    index = segments_of(folder)[0].with_suffix(".idx")
    assert index.stat().st_size >= 2 * POINT_SIZE

    async def work() -> None:
        for place, copy, file in copies(folder, index):
            flip(file, place)
            (finding,) = check(copy / "data")
            assert (finding.serious, finding.file) == (False, file)
            async with killed(copy, LARGE) as store:
                ledger = await one_ledger(store)
                for entry in range(COUNT):
                    (found,) = await ledger.read(entry, 1, 1)
                    assert (found.entry_id, found.payload) == (entry, payload(entry))
            repair(copy / "data", clock)
            assert check(copy / "data") == []

    run(work())


def test_a_record_inside_a_payload_is_never_served_as_an_entry(folder: Path) -> None:
    make_segment(folder, 3)
    (segment,) = segments_of(folder)
    forged = segment.read_bytes()

    async def work() -> None:
        async with opened(folder / "other", LARGE) as store:
            ledger = await one_ledger(store)
            await fill(store, ledger, [b"a", forged + b"tail", b"b", b"c"])
        (file,) = segments_of(folder / "other")
        flip(file, HEAD.size + 1 + 2)  # the length of the entry that carries the forged records
        async with killed(folder / "other", LARGE) as store:
            found, (error,) = await read_around(await one_ledger(store))
        assert [entry.payload for entry in found] == [b"a", b"b", b"c"]
        assert (error.first, error.last) == (1, 1)

    run(work())


def test_a_missing_segment_is_damage_of_all_its_entries(folder: Path) -> None:
    make_segment(folder)
    segments_of(folder)[0].unlink()

    async def work() -> None:
        async with killed(folder, LARGE) as store:
            ledger = await one_ledger(store)
            found, (error,) = await read_around(ledger)
            assert (found, error.first, error.last) == ([], 0, COUNT - 1)
            with pytest.raises(DamagedError):
                await ledger.find_time(1)
        repair(folder / "data", clock)
        await expect_holes(folder, list(range(COUNT)))

    run(work())


def test_cursors_pass_over_what_repair_gave_up(folder: Path) -> None:
    make_segment(folder)

    async def work() -> None:
        async with opened(folder, LARGE) as store:
            ledger = await one_ledger(store)
            await store.create_subscription(ledger.id, "group", -1, {})
        flip(segments_of(folder)[0], 3)
        repair(folder / "data", clock)
        async with opened(folder, LARGE) as store:
            ledger = await one_ledger(store)
            (record,) = store.subscriptions(ledger.id)
            assert record.cursor.mark_delete == 0
            store.reset(record, -1)
            await synced(store)
            assert record.cursor.mark_delete == 0
            late = await store.create_subscription(ledger.id, "late", -1, {})
            assert late.cursor.next_unacked(0) == 1

    run(work())


def test_check_finds_nothing_wrong_with_sound_data(folder: Path) -> None:
    make_segment(folder / "closed")
    make_journal(folder / "killed")
    for part in ("closed", "killed", "empty"):
        assert check(folder / part / "data") == []


def test_check_refuses_a_folder_that_a_broker_holds(folder: Path) -> None:
    make_journal(folder)
    with hold(folder / "data", 0.0):
        for look in (check, lambda path: repair(path, clock)):
            with pytest.raises(StoreError, match="a broker serves"):
                look(folder / "data")


def test_damaged_metadata_is_said_to_need_a_backup(folder: Path) -> None:
    make_journal(folder)
    (folder / "data" / "metadata.db").write_bytes(b"no database" * 1000)
    for look in (check, lambda path: repair(path, clock)):
        with pytest.raises(StoreError, match=r"restore a backup|not a database"):
            look(folder / "data")
    with pytest.raises(StoreError, match="not a database"):
        run(_expect_nothing(folder))
