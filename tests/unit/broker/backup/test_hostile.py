"""A folder of backups that others write into, two commands at once, and a broker that is killed."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from router.broker.backup import BackupError, Manifest, Repository
from router.broker.backup.copying import FileCopier
from router.broker.backup.restoring import restore
from router.broker.backup.taking import Work, take
from router.broker.disk.files import Disk
from router.broker.folder import BACKUP
from router.broker.storage import Store
from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    ConflictError,
    RouterError,
)
from router.model.administration import BackupCut
from router.model.policies import Policies
from tests.unit.broker.backup.rig import (
    NOW,
    Local,
    back_up,
    filled,
    problems,
    restored,
    served,
    taken,
)
from tests.unit.broker.storage.rig import SMALL, clock, fill, payload, read_all

pytestmark = pytest.mark.timeout(60)


def segments(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in (folder / "ledgers").rglob("*.*")}


def test_no_backup_is_removed_while_another_one_is_taken(folder: Path) -> None:
    """What it copied already is named by no manifest yet."""
    data, target = folder / "data", folder / "backups"
    first = taken(data, target, 20)
    second = taken(data, target, 20)
    repository = Repository(target)
    with repository.writing():
        started = repository.segments_of(second.history) / "77" / f"{0:020d}.seg"
        started.parent.mkdir()
        started.touch()
        with pytest.raises(BackupError, match="another command") as refused:
            repository.prune(1)
    assert refused.value.status == 75
    assert started.exists()
    assert repository.ids() == [first.id, second.id]
    assert repository.prune(1) == [first.id]
    assert not started.exists()
    assert problems(target, second) == []


class SmallDisk(Disk):
    """A disk that is nearly full."""

    def free(self, folder: Path) -> int:
        return 100


def test_a_backup_on_the_disk_of_the_broker_leaves_it_its_reserve(folder: Path) -> None:
    """Else publishing would end, and what was copied by then would stay."""
    data, target = folder / "data", folder / "backups"

    async def work(free: int, reserve: int) -> None:
        class Measured(Disk):
            def free(self, folder: Path) -> int:
                return free

        async with served(data) as (_store, backups):
            repository = Repository(target, Measured())
            work = Work(data, repository, FileCopier(repository.disk), lambda _total: None, reserve)
            await asyncio.to_thread(take, work, Local(backups), NOW)
            shutil.rmtree(target)

    held = taken(data, target, 30)
    size = sum(file.size for file in held.segments if file.path.endswith(".seg"))
    shutil.rmtree(target)
    asyncio.run(work(size, 0))
    asyncio.run(work(size + 1000, 1000))
    for free, reserve in ((size - 1, 0), (size + 999, 1000), (999, 1000)):
        with pytest.raises(BackupError, match=f"has {max(0, free - reserve)} bytes free"):
            asyncio.run(work(free, reserve))


def test_what_does_not_fit_is_not_begun(folder: Path) -> None:
    """What a backup that was cut short had copied would keep the disk full."""
    data, target = folder / "data", folder / "backups"
    with pytest.raises(BackupError, match="has 100 bytes free") as refused:
        taken(data, target, 30, SmallDisk())
    assert refused.value.status == 73
    assert not [*target.rglob("*.seg")]
    assert problems(target, taken(data, target, 0)) == []


def changed(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest.update({name: value})


def renamed(kind: str, name: Any, size: Any = 1) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest[kind].append([name, size, 0])


@pytest.mark.parametrize(
    "tamper",
    [
        renamed("files", "../../secret"),
        renamed("files", "/etc/passwd"),
        renamed("files", "journal/../../secret"),
        renamed("files", "READ-ONLY"),
        renamed("files", "notes.txt"),
        renamed("files", "subjects/a\0b.idx"),
        renamed("files", "registry.db\n"),
        renamed("segments", "../../x"),
        renamed("segments", "1/00000000000000000000.seg/x"),
        renamed("segments", "one/00000000000000000000.seg"),
        renamed("segments", "1/00000000000000000000.seg", -1),
        renamed("segments", "1/00000000000000000000.seg", float("inf")),
        renamed("segments", "1/00000000000000000000.seg", "many"),
        renamed("segments", None),
        changed("history", "../../../elsewhere"),
        changed("history", 7),
        changed("id", "../another"),
        changed("metadata", []),
        changed("copied", "much"),
        changed("missing", [7]),
        changed("files", 7),
        changed("unknown", 7),
        changed("origin", 7),
        lambda manifest: manifest["files"].clear(),
    ],
)
def test_a_manifest_names_files_of_its_backup_only(
    folder: Path, tamper: Callable[[dict[str, Any]], None]
) -> None:
    data, target, place = folder / "data", folder / "backups", folder / "restored"
    manifest = taken(data, target, 3)
    repository, disk = Repository(target), Disk()
    path = repository.folder_of(manifest.id) / "manifest.json"
    document = json.loads(path.read_bytes())
    tamper(document)
    path.write_text(json.dumps(document))
    with pytest.raises(BackupError, match="not the manifest") as refused:
        restore(repository, repository.load(), place, FileCopier(disk), disk)
    assert refused.value.status == 65
    assert not place.exists()


@pytest.mark.parametrize("content", [b"", b"7", b"[]", b"{}", b"[" * 100_000, b"\xff\xfe", b"null"])
def test_what_is_no_manifest_is_named(folder: Path, content: bytes) -> None:
    path = folder / "manifest.json"
    with pytest.raises(BackupError, match="not the manifest"):
        Manifest.load(content, path)


def test_nothing_is_removed_that_no_backup_put_there(folder: Path) -> None:
    data, target = folder / "data", folder / "backups"
    taken(data, target, 20)
    last = taken(data, target, 20)
    (history,) = (target / "segments").iterdir()
    others = folder / "others"
    kept = [
        others / "7" / f"{0:020d}.seg",
        others / "notes.txt",
        target / "backups" / "notes" / "notes.txt",
        target / "segments" / "notes" / "7" / f"{0:020d}.seg",
        history / "notes" / f"{0:020d}.seg",
        history / "7" / "notes.txt",
    ]
    for path in kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (target / "backups" / "20200101T000000.000Z").symlink_to(others)
    (target / "backups" / "latest").symlink_to(last.id)
    (target / "segments" / "0123456789abcdef").symlink_to(others)
    (history / "9").symlink_to(others / "7")
    repository = Repository(target)
    assert repository.load().id == last.id
    newest = taken(data, target, 3)
    assert len(repository.prune(1)) == 2
    assert all(path.exists() for path in kept)
    assert (repository.ids(), problems(target, newest)) == ([newest.id], [])


@pytest.mark.parametrize(
    "line", ["7", "[]", '["{history}"]', '["{history}", "{path}", "7", 7]', "\0\0", "{path}"]
)
def test_what_is_no_note_of_a_backup_that_was_cut_short_is_passed_over(
    folder: Path, line: str
) -> None:
    data, target = folder / "data", folder / "backups"
    first = taken(data, target, 30)
    place = target / "backups" / "20261231T000000.000Z"
    place.mkdir()
    text = line.replace("{history}", first.history).replace("{path}", first.segments[0].path)
    (place / "copied.ndjson").write_text(f"{text}\n")
    second = taken(data, target, 3)
    assert second.id > place.name
    assert problems(target, first) == problems(target, second) == []
    assert not place.exists()


def test_one_folder_holds_the_backups_of_one_router(folder: Path) -> None:
    """`--keep` would remove those of the other one, and the newest be that of either."""
    data, other, target = folder / "data", folder / "other", folder / "backups"
    taken(data, target, 3)
    with pytest.raises(BackupError, match="another data folder") as refused:
        taken(other, target, 3)
    assert refused.value.status == 73
    assert problems(target, taken(data, target, 3)) == []
    # The same router, on another machine.
    again = restored(target, Repository(target).load(), folder / "again")
    assert problems(target, taken(again, target, 3)) == []


def test_a_backup_that_the_broker_gave_up_is_to_be_taken_again(folder: Path) -> None:
    data, target = folder / "data", folder / "backups"

    async def work() -> None:
        async with served(data) as (store, backups):
            await filled(store, 20)
            source = Local(backups)

            def give_up(_size: int) -> None:
                source.gone()
                while (data / BACKUP).exists():
                    time.sleep(0.001)

            await asyncio.to_thread(back_up, data, target, source, progress=give_up)

    with pytest.raises(BackupError, match="cut short") as refused:
        asyncio.run(work())
    assert refused.value.status == 75


def test_a_journal_that_is_gone_was_let_go(folder: Path) -> None:
    data, target = folder / "data", folder / "backups"

    async def work() -> None:
        async with served(data) as (store, backups):
            await filled(store, 20)

            def let_go(_size: int) -> None:
                shutil.rmtree(data / "journal", ignore_errors=True)

            await asyncio.to_thread(back_up, data, target, Local(backups), progress=let_go)

    with pytest.raises(BackupError, match="the broker let it go") as refused:
        asyncio.run(work())
    assert refused.value.status == 75


@pytest.mark.parametrize(
    "failure",
    [ConflictError("given up"), BackendUnavailableError("gone"), BackendTimeoutError("late")],
)
def test_a_backup_that_was_not_held_to_its_end_does_not_count(
    folder: Path, failure: RouterError
) -> None:
    """The broker may have removed what was not copied yet."""
    data, target = folder / "data", folder / "backups"

    class Lost(Local):
        def end(self, cut: BackupCut) -> None:
            raise failure

    async def work() -> None:
        async with served(data) as (store, backups):
            await filled(store, 20)
            await asyncio.to_thread(back_up, data, target, Lost(backups))

    with pytest.raises(BackupError, match="cut short") as refused:
        asyncio.run(work())
    assert refused.value.status == 75
    assert Repository(target).ids() == []


def test_what_a_killed_broker_kept_for_a_backup_goes_with_the_next_start(folder: Path) -> None:
    """Of ledgers that nothing uses afterwards, too."""

    async def kill() -> set[str]:
        async with served(folder) as (store, backups):
            made = []
            for name, count in (("kept", 20), ("emptied", 60)):
                topic = await store.create_topic(
                    f"persistent://public/default/{name}", 0, Policies(), {}
                )
                made.append(store.ledger(topic.ledger_ids[0]))
                await fill(store, made[-1], [payload(n) for n in range(count)], each=True)
            await backups.begin("one")
            await store.delete_before(made[1], made[1].next_index)
            left = segments(folder)
            store.fail(PermissionError(13, "killed"))
            return left

    async def start() -> set[str]:
        store = await Store.open(folder, SMALL, clock)
        kept, emptied = (store.ledger(topic.ledger_ids[0]) for topic in store.topics())
        assert [entry.payload for entry in await read_all(kept)] == [payload(n) for n in range(20)]
        assert await read_all(emptied) == []
        await store.close()
        return {path.parent.name for path in (folder / "ledgers").rglob("*.*")}

    before = asyncio.run(kill())
    assert len({path for path in before if "/2/" in path}) > 5
    assert asyncio.run(start()) == {"1"}
