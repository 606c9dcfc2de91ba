"""What the broker holds for a backup, and until when; what backups share with one another."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from router.broker.backup import BackupError, Manifest, Repository, copying
from router.broker.backup.copying import FileCopier
from router.broker.backup.repository import MANIFEST, note
from router.broker.backup.restoring import STARTS_LEFT_OUT, restore
from router.broker.disk.files import Disk
from router.broker.folder import BACKUP
from router.broker.node.registry import FileRegistry
from router.broker.storage import PULSAR_FORMAT, Ledger, Store
from router.errors import ConflictError
from router.model.policies import Policies
from tests.unit.broker.backup import rig
from tests.unit.broker.backup.rig import (
    Local,
    back_up,
    filled,
    problems,
    restored,
    served,
    taken,
)
from tests.unit.broker.storage.rig import (
    NOW_MS,
    SMALL,
    TOPIC,
    fill,
    ignore,
    one_ledger,
    payload,
    read_all,
    run,
    until,
)

pytestmark = pytest.mark.timeout(60)


async def payloads(folder: Path) -> list[bytes]:
    """Return what a folder holds that is not deleted."""
    async with served(folder) as (store, _):
        return await left(await one_ledger(store))


async def left(ledger: Ledger) -> list[bytes]:
    deleted = ledger.deleted_numbers
    return [entry.payload for entry in await read_all(ledger) if not deleted.contains(entry.index)]


def segments(folder: Path) -> set[str]:
    return {path.name for path in (folder / "ledgers").rglob("*.seg")}


async def delete_all(store: Store) -> None:
    """Delete all messages, and with them all segments."""
    ledger = await one_ledger(store)
    await store.delete_before(ledger, ledger.next_index)


async def test_removed_segments_stay_until_the_backup_ends(folder: Path) -> None:
    async with served(folder) as (store, backups):
        await filled(store, 60)
        cut = await backups.begin("one")
        before = segments(folder)
        await delete_all(store)
        assert len(before) > 3
        assert segments(folder) == before
        with pytest.raises(ConflictError, match="another backup"):
            await backups.begin("two")
        with pytest.raises(ConflictError, match="does not hold"):
            await backups.end("two", cut.id)
        await backups.end("one", cut.id)
        assert not segments(folder)
        assert not (folder / BACKUP).exists()
        with pytest.raises(ConflictError, match="does not hold"):
            await backups.end("one", cut.id)


def test_what_a_backup_needs_stays_when_its_ledger_is_first_written_again(folder: Path) -> None:
    """Then the writer removes the files that it does not know."""

    async def begin() -> None:
        async with served(folder) as (store, _backups):
            await filled(store, 60)

    async def work() -> None:
        async with served(folder) as (store, backups):
            cut = await backups.begin("one")
            before = segments(folder)
            await delete_all(store)
            await filled(store, 60)
            await store.retain(NOW_MS)
            assert before < segments(folder)
            await backups.end("one", cut.id)
            assert not before & segments(folder)

    run(begin())
    run(work())


def test_subject_indexes_are_those_of_before_the_cut(folder: Path) -> None:
    """One that is written later counts messages that the backup does not have."""
    data, target = folder / "data", folder / "backups"

    def change(_size: int) -> None:
        for number in (1, 3):
            new = data / "subjects" / f"{number}.new"
            new.write_bytes(b"later")
            new.replace(new.with_suffix(".idx"))
        (data / "subjects" / "2.idx").unlink(missing_ok=True)

    async def work() -> Manifest:
        async with served(data) as (store, backups):
            await filled(store, 20)
            (data / "subjects").mkdir()
            for number in (1, 2):
                (data / "subjects" / f"{number}.idx").write_bytes(b"earlier")
            (data / "subjects" / "4.new").write_bytes(b"unfinished")
            source = Local(backups)
            return await asyncio.to_thread(back_up, data, target, source, progress=change)

    manifest = asyncio.run(work())
    assert problems(target, manifest) == []
    place = restored(target, manifest, folder / "restored") / "subjects"
    found = {path.name: path.read_bytes() for path in place.iterdir()}
    assert found == {"1.idx": b"earlier", "2.idx": b"earlier"}


def test_the_time_of_the_newest_backup_is_a_metric(folder: Path) -> None:
    async def work(*expected: float, back_up: bool) -> None:
        async with served(folder) as (_store, backups):
            assert [sample[2] for sample in await backups.collect()] == [*expected]
            cut = await backups.begin("one")
            assert [sample[2] for sample in await backups.collect()] == [*expected]
            if back_up:
                await backups.end("one", cut.id)
                expected = (NOW_MS / 1000,)
            assert [sample[2] for sample in await backups.collect()] == [*expected]

    run(work(back_up=False))
    run(work(back_up=True))
    run(work(NOW_MS / 1000, back_up=False))


async def test_a_backup_ends_with_its_client_and_when_the_disk_is_full(folder: Path) -> None:
    async with served(folder) as (store, backups):
        await filled(store, 60)
        await backups.begin("one")
        await delete_all(store)
        backups.gone("two")
        assert len(segments(folder)) > 3
        backups.gone("one")
        cut = await backups.begin("two")  # once the other one has ended
        assert not segments(folder)
        store.full = True
        for listener in tuple(store.pressure):
            listener()
        with pytest.raises(ConflictError, match="needs the space"):
            await backups.end("two", cut.id)
        await until(lambda: not (folder / BACKUP).exists())


async def test_what_a_killed_broker_held_goes_with_the_next_start(folder: Path) -> None:
    (folder / BACKUP).mkdir()
    (folder / BACKUP / "metadata.db").touch()
    async with served(folder):
        assert not (folder / BACKUP).exists()


def test_only_what_was_added_is_copied_again(folder: Path) -> None:
    data, target = folder / "data", folder / "backups"
    first = taken(data, target, 60)
    inodes = {path: path.stat().st_mtime_ns for path in target.rglob("*.seg")}
    second = taken(data, target, 3)
    assert problems(target, first) == problems(target, second) == []
    changed = [path for path, time_ns in inodes.items() if path.stat().st_mtime_ns != time_ns]
    assert len(changed) <= 1 < len(inodes)
    assert {file.path for file in first.segments} <= {file.path for file in second.segments}
    assert Repository(target).prune(1) == [first.id]
    assert problems(target, second) == []


def test_segments_that_were_written_again_meanwhile_are_copied_beside_those_before(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, target = folder / "data", folder / "backups"
    monkeypatch.setattr(rig, "SMALL", replace(SMALL, reclaim_bytes=1))

    async def work() -> tuple[Manifest, Manifest, list[bytes]]:
        async with served(data) as (store, backups):
            await filled(store, 60)
            source = Local(backups)
            first = await asyncio.to_thread(back_up, data, target, source)
            ledger = await one_ledger(store)
            store.delete_messages(ledger, [(n, n + 1) for n in range(0, 60, 3)])
            cut = await backups.begin("held")
            assert await store.reclaim(ledger) > 0
            held = {path.name for path in (data / "ledgers").rglob("*.seg")}
            assert f"{0:020d}.seg" in held
            assert f"{0:020d}-1.seg" in held
            await backups.end("held", cut.id)
            names = {path.name for path in (data / "ledgers").rglob("*.seg")}
            assert f"{0:020d}.seg" not in names
            second = await asyncio.to_thread(back_up, data, target, source)
            return first, second, await left(ledger)

    first, second, kept = asyncio.run(work())
    assert first.history == second.history
    assert problems(target, first) == problems(target, second) == []
    again = restored(target, second, folder / "again")
    assert asyncio.run(payloads(again)) == kept
    before = restored(target, first, folder / "before")
    assert len(asyncio.run(payloads(before))) == 60


def test_a_backup_that_lost_its_manifest_is_named_and_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was cut short, or whose removal was, is none of these."""
    data, target = folder / "data", folder / "backups"
    first, second = taken(data, target, 20), taken(data, target, 3)
    repository = Repository(target)
    assert repository.lost() == []
    (repository.folder_of(second.id) / MANIFEST).unlink()
    assert repository.lost() == [second.id]
    with pytest.raises(BackupError, match=f"backup {second.id} lost its manifest.json") as lost:
        repository.load(second.id)
    assert lost.value.status == 65
    assert repository.load().id == first.id
    third = taken(data, target, 3)
    assert repository.lost() == [second.id]
    assert repository.folder_of(second.id).exists()

    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(repository, "_remove_tree", killed)
    with pytest.raises(KeyboardInterrupt):
        repository.prune(1)
    assert (repository.ids(), repository.lost()) == ([third.id], [second.id])
    taken(data, target, 3)
    assert repository.all_ids()[:2] == [second.id, third.id]


def test_a_restored_folder_shares_nothing_with_what_it_was(folder: Path) -> None:
    """Entries get the same numbers as others that were backed up before."""
    data, target = folder / "data", folder / "backups"
    first = taken(data, target, 20)
    second = taken(data, target, 20)
    again = restored(target, first, folder / "again")
    third = taken(again, target, 40)
    assert (first.history, third.history != first.history) == (second.history, True)
    for manifest in (first, second, third):
        assert problems(target, manifest) == []


def test_what_another_history_copied_says_nothing(folder: Path) -> None:
    """Its segments have the same names and sizes, and other bytes."""
    data, target = folder / "data", folder / "backups"
    first = taken(data, target, 5)
    later = taken(data, target, 40)
    again = restored(target, first, folder / "again")

    async def append() -> None:
        async with served(again) as (store, _backups):
            ledger = await one_ledger(store)
            payloads = [payload(ledger.next_entry + n)[::-1] for n in range(40)]
            await fill(store, ledger, payloads, each=True)

    run(append())
    other = taken(again, target)
    assert {file[:2] for file in later.segments} & {file[:2] for file in other.segments}
    notes = target / "backups" / "20200101T000000.000Z" / "copied.ndjson"
    notes.parent.mkdir()
    notes.write_bytes(b"".join(note(later.history, file) for file in later.segments))
    newest = taken(again, target, 3)
    for manifest in (first, later, other, newest):
        assert problems(target, manifest) == []


def test_ids_that_count_starts_do_not_come_back(folder: Path) -> None:
    """Producers of the folder that was backed up may have been given some since."""
    data, target = folder / "data", folder / "backups"
    place = restored(target, taken(data, target, 5), folder / "again")

    async def work() -> None:
        async with served(place) as (store, _backups):
            assert store.boot > STARTS_LEFT_OUT
        registry = await FileRegistry.open(place)
        assert await registry.next_boot() > STARTS_LEFT_OUT
        await registry.close()

    run(work())


def test_a_folder_that_was_put_back_by_other_means_is_refused(folder: Path) -> None:
    data, target = folder / "data", folder / "backups"

    async def publish_one(size: int) -> None:
        async with served(data) as (store, _backups):
            ledger = await one_ledger(store)
            ledger.append(bytes([size]) * size, PULSAR_FORMAT, 1, NOW_MS, ignore)
            await store.cuts.begin(lambda: None)
            await store.cuts.end()

    taken(data, target, 2)
    shutil.copytree(data, folder / "copy")
    run(publish_one(40))
    taken(data, target)
    shutil.rmtree(data)
    shutil.copytree(folder / "copy", data)
    run(publish_one(41))
    with pytest.raises(BackupError, match="other means") as refused:
        taken(data, target)
    assert refused.value.status == 73


def test_a_file_that_the_copy_lost_is_copied_again(folder: Path) -> None:
    data, target = folder / "data", folder / "backups"
    first = taken(data, target, 60)
    lost, cut, *_ = sorted(target.rglob("*.seg"))
    lost.unlink()
    cut.write_bytes(cut.read_bytes()[:-1])
    second = taken(data, target)
    assert problems(target, first) == problems(target, second) == []


def test_a_segment_that_the_data_folder_lost_is_named(folder: Path) -> None:
    data, target = folder / "data", folder / "backups"
    taken(data, folder / "other", 60)
    lost = min((data / "ledgers").rglob("*.seg"))
    lost.unlink()
    manifest = taken(data, target)
    (name,) = manifest.missing
    assert name.endswith(lost.name)
    assert any(name in sentence for sentence in problems(target, manifest))


def test_restore_names_damage_and_refuses_data(folder: Path) -> None:
    data, target, place = folder / "data", folder / "backups", folder / "restored"
    manifest = taken(data, target, 60)
    damaged = max(target.rglob("*.seg"))
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    disk = Disk()
    with pytest.raises(BackupError, match=f"{damaged} is damaged") as refused:
        restore(Repository(target), manifest, place, FileCopier(disk), disk)
    assert refused.value.status == 65
    with pytest.raises(BackupError, match="is not empty"):
        restore(Repository(target), manifest, data, FileCopier(disk), disk)
    content[-1] ^= 1
    damaged.write_bytes(content)
    restored(target, manifest, place)


def test_restore_refuses_a_folder_with_files_of_others_but_no_root_of_a_disk(folder: Path) -> None:
    data, target, place = folder / "data", folder / "backups", folder / "mounted"
    manifest, disk = taken(data, target, 3), Disk()
    (place / "lost+found").mkdir(parents=True)
    (place / "notes.txt").write_text("of another")
    for _ in range(2):  # a refusal leaves nothing that another try would take for its own
        with pytest.raises(BackupError, match=r"is not empty \(notes.txt\)") as refused:
            restore(Repository(target), manifest, place, FileCopier(disk), disk)
        assert refused.value.status == 73
    (place / "notes.txt").unlink()
    restored(target, manifest, place)


def test_a_backup_whose_folder_is_replaced_meanwhile_is_not_complete(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a disk that is unmounted: what was copied before is not in the folder of its name."""
    monkeypatch.setattr(copying, "MIN_FILES_FOR_SYNC_ALL", 0)  # as where there are many
    data, target, away = folder / "data", folder / "backups", folder / "away"

    class Unmounted(Disk):
        """The segments of the second ledger are copied into another folder."""

        def make_folder(self, path: Path) -> bool:
            copied = {one.parent for one in target.rglob("*.seg")}
            if copied and path not in copied and not away.exists():
                target.rename(away)
                target.mkdir()
            return super().make_folder(path)

    async def work() -> None:
        async with served(data) as (store, backups):
            topic = await store.create_topic(TOPIC, 3, Policies(), {})
            for number in topic.ledger_ids:
                await fill(store, store.ledger(number), [payload(0)])
            source, disk = Local(backups), Unmounted()
            with pytest.raises(BackupError, match=r"moved or unmounted"):
                await asyncio.to_thread(back_up, data, target, source, disk=disk)

    asyncio.run(work())
    assert Repository(target).ids() == []
