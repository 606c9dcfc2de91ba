"""The checkpoint of an index is a shortcut: without it the log gives the same index."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import replace
from errno import EIO
from pathlib import Path

import pytest

from router.broker.consume.visible import Visible
from router.broker.nats.streams.log import index_checkpoint
from router.broker.nats.streams.log.indexing import Indexer
from router.broker.storage import Entry, Hole
from tests.unit.broker.nats.streaming import Anyone, Rig, check_index, streaming


async def fill(rig: Rig) -> None:
    stream = await rig.create("S", "s.>")
    for place in range(30):
        rig.send(f"s.{place % 7}", b"v" * place)
    rig.publisher.flush()
    await rig.append_foreign(stream, "s.1", "", "elsewhere")
    found = await stream.read(20)
    assert found is not None
    stream.log.delete_messages([found])
    await stream.settle()


def saved(folder: Path) -> Path:
    (file,) = (folder / "data" / index_checkpoint.FOLDER).iterdir()
    return file


def test_a_clean_end_leaves_a_checkpoint_that_the_next_start_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with streaming(tmp_path) as rig:
            await fill(rig)
        taken: list[int] = []
        take = Indexer._take

        def note(self: Indexer, entry: Entry) -> None:
            taken.append(entry.entry_id)
            take(self, entry)

        monkeypatch.setattr(Indexer, "_take", note)
        async with streaming(tmp_path) as rig:
            stream = await rig.streams.open("S")
            assert not taken
            await rig.append_foreign(stream, "s.2")
            await check_index(stream)
            assert taken == [2]

    asyncio.run(run())


def test_a_checkpoint_from_before_a_crash_is_gone_on_from(tmp_path: Path) -> None:
    async def run() -> None:
        async with streaming(tmp_path) as rig:
            await fill(rig)
        async with streaming(tmp_path, killed=True) as rig:
            stream = await rig.streams.open("S")
            await rig.publish("s.9")
            await rig.append_foreign(stream, "s.0")
        async with streaming(tmp_path, killed=True) as rig:
            stream = await rig.streams.open("S")
            await check_index(stream)
            found = await stream.read(3)
            assert found is not None
            stream.log.delete_messages([found])
            await stream.settle()
            await rig.store.synced()
        async with streaming(tmp_path) as rig:
            await check_index(await rig.streams.open("S"))

    asyncio.run(run())


def test_a_damaged_checkpoint_is_never_believed(tmp_path: Path) -> None:
    async def run() -> None:
        async with streaming(tmp_path) as rig:
            await fill(rig)
            ledger = (await rig.streams.open("S")).ledger
            key = index_checkpoint._key("s.S\ns.>")
        data = saved(tmp_path).read_bytes()
        assert index_checkpoint.load(data, Visible(ledger), key) is not None
        assert index_checkpoint.load(data, Visible(ledger), key + 1) is None
        for place in range(len(data)):
            broken = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
            assert index_checkpoint.load(broken, Visible(ledger), key) is None
            assert index_checkpoint.load(data[:place], Visible(ledger), key) is None
        for broken in (b"", data[:-1], b"x" * len(data)):
            saved(tmp_path).write_bytes(broken)
            async with streaming(tmp_path) as rig:
                await check_index(await rig.streams.open("S"))

    asyncio.run(run())


def test_without_a_checkpoint_that_can_be_read_the_log_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_path: Path) -> bytes:
        raise OSError(EIO, "Input/output error")

    async def run() -> None:
        async with streaming(tmp_path) as rig:
            await fill(rig)
        monkeypatch.setattr(index_checkpoint, "_read", fail)
        async with streaming(tmp_path) as rig:
            await check_index(await rig.streams.open("S"))

    asyncio.run(run())


def test_a_checkpoint_that_goes_beyond_the_log_is_not_believed_later(tmp_path: Path) -> None:
    """A power cut in relaxed mode, or a repair, took entries; others have their numbers now."""

    async def run() -> None:
        async with streaming(tmp_path) as rig:
            await rig.create("S", "s.>")
            await rig.publish("s.kept")
        shutil.copytree(tmp_path, tmp_path / "before")
        async with streaming(tmp_path) as rig:
            await rig.publish("s.lost")
        file = saved(tmp_path).read_bytes()
        saved(tmp_path / "before").write_bytes(file)
        for subject in ("s.a", "s.b"):
            async with streaming(tmp_path / "before", killed=True) as rig:
                await check_index(await rig.streams.open("S"))
                await rig.publish(subject)

    asyncio.run(run())


def test_a_checkpoint_from_before_a_repair_is_not_believed(tmp_path: Path) -> None:
    async def run() -> None:
        async with streaming(tmp_path) as rig:
            await fill(rig)
            ledger = (await rig.streams.open("S")).ledger
            key = index_checkpoint._key("s.S\ns.>")
        data = saved(tmp_path).read_bytes()
        assert index_checkpoint.load(data, Visible(ledger), key) is not None
        ledger.holes.append(Hole(0, 0, "damage"))
        assert index_checkpoint.load(data, Visible(ledger), key) is None

    asyncio.run(run())


def test_a_stream_of_other_subjects_counts_foreign_messages_again(tmp_path: Path) -> None:
    async def run() -> None:
        async with streaming(tmp_path) as rig:
            await fill(rig)
            stream = await rig.streams.open("S")
            counts = (
                {k: v.count for k, v in stream.log.index.subjects.items()}
                if stream.log.index
                else {}
            )
            assert counts["s.S"] == 2
            config = replace(stream.config, subjects=("s.>", "elsewhere"))
            await rig.streams.update(config, Anyone(), pedantic=False)
            await check_index(stream)
            assert stream.log.index is not None
            assert stream.log.index.subjects["elsewhere"].count == 1

    asyncio.run(run())


def test_an_index_that_is_begun_again_while_the_log_is_read_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with streaming(tmp_path) as rig:
            stream = await rig.create("S", "s")
            indexer, prepared = stream.log.indexer, stream.log.reader.prepared
            assert indexer is not None
            await rig.publish("s")
            places: list[int] = []

            async def prepare(entries: Sequence[Entry]) -> None:
                places.append(indexer.position)
                if len(places) == 1:
                    indexer.restart()
                await prepared(entries)

            monkeypatch.setattr(stream.log.reader, "prepared", prepare)
            for _ in range(3):
                await rig.append_foreign(stream, "s", value=bytes(20_000))
            await check_index(stream)
            assert places[0] > places[1] == 0

    asyncio.run(run())
