"""What format a folder has, and the formats of entries: one is refused, the other kept as it is."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from router.broker.__main__ import main as broker
from router.broker.storage import StoreError
from router.broker.storage.files import check, repair
from router.broker.storage.metadata import SCHEMA
from router.cli import main
from tests.unit.broker.storage.rig import (
    NOW_MS,
    SMALL,
    clock,
    fill,
    ignore,
    killed,
    one_ledger,
    opened,
    payload,
    read_all,
    run,
    synced,
)

REFUSED = "has format {}, and this release reads and writes format 13 only: use the release"


@pytest.fixture(params=[4, 99], ids=["older", "newer"])
def other(folder: Path, request: pytest.FixtureRequest) -> int:
    """The format of a folder with ten entries that another release left."""

    async def make() -> None:
        async with opened(folder) as store:
            await fill(store, await one_ledger(store), [payload(number) for number in range(10)])

    run(make())
    with closing(sqlite3.connect(folder / "data" / "metadata.db")) as connection:
        connection.execute(f"PRAGMA user_version = {request.param}")
    return int(request.param)


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.suffix in {".seg", ".db"}}


def test_store_refuses_a_folder_of_another_format(folder: Path, other: int) -> None:
    async def work() -> None:
        async with opened(folder):
            pass

    before = content(folder)
    with pytest.raises(StoreError, match=REFUSED.format(other)):
        run(work())
    assert content(folder) == before
    assert not (folder / "data" / "READ-ONLY").exists()


@pytest.mark.parametrize("arguments", [[], ["--repair"]], ids=["check", "repair"])
def test_router_check_refuses_a_folder_of_another_format(
    folder: Path, other: int, arguments: list[str]
) -> None:
    before = content(folder)
    found = CliRunner().invoke(
        main,
        ["check", "--data", str(folder / "data"), *arguments],
        env={"ROUTER_CONFIG": "", "ROUTER_SERVER_PORT": "0"},
    )
    assert found.exit_code == 65
    assert REFUSED.format(other) in found.output
    assert content(folder) == before


def test_broker_refuses_to_start_on_a_folder_of_another_format(
    folder: Path, other: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROUTER_CONFIG", "")
    assert broker(["--data", str(folder / "data")]) == os.EX_DATAERR
    assert REFUSED.format(other) in capfd.readouterr().err
    assert not (folder / "data" / "READ-ONLY").exists()


def test_folder_whose_tables_were_not_made_yet_is_in_order_and_opens(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "metadata.db").touch()
    assert check(folder / "data") == []

    async def work() -> None:
        async with opened(folder) as store:
            await fill(store, await one_ledger(store), [b"first"])

    run(work())
    with closing(sqlite3.connect(folder / "data" / "metadata.db")) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    assert version == SCHEMA.version == 13


def test_format_and_message_count_of_an_entry_are_kept(folder: Path) -> None:
    """In the tail, in the journal after a kill, in segments, and in segments that were mended."""
    formats = [number % 255 + 1 for number in range(300)]
    wanted = [(tag, 1 + tag % 7) for tag in formats]

    async def append() -> None:
        async with killed(folder, SMALL) as store:
            ledger = await one_ledger(store)
            for tag, messages in wanted:
                ledger.append(b"opaque", tag, messages, NOW_MS, ignore)
            await synced(store)
            entries = await read_all(ledger)
            assert [(entry.format, entry.messages) for entry in entries] == wanted

    async def read(missing: int | None = None) -> None:
        async with opened(folder, SMALL) as store:
            ledger = await one_ledger(store)
            entries = {entry.entry_id: entry for entry in await read_all(ledger)}
            for number, (tag, messages) in enumerate(wanted):
                if number == missing:
                    assert number not in entries
                    continue
                entry = entries[number]
                assert (entry.format, entry.messages, entry.payload) == (tag, messages, b"opaque")
                assert entry.index + 1 == sum(count for _tag, count in wanted[: number + 1])

    run(append())
    run(read())
    run(read())
    segment = min((folder / "data" / "ledgers").rglob("*.seg"))
    data = bytearray(segment.read_bytes())
    place = len(data) // 2 - len(data) // 2 % (len(data) // 9)
    data[place + 40] ^= 1
    segment.write_bytes(data)
    (finding,) = [found for found in repair(folder / "data", clock) if found.span is not None]
    assert check(folder / "data") == []
    assert finding.span is not None
    size = finding.span[1] - finding.span[0]
    run(read(missing=finding.span[0] // size))


async def test_a_format_that_is_no_small_number_is_refused(folder: Path) -> None:
    async with opened(folder) as store:
        ledger = await one_ledger(store)
        for tag in (0, -1, 256):
            with pytest.raises(ValueError, match="format"):
                ledger.append(b"", tag, 1, NOW_MS, ignore)
        assert ledger.next_entry == 0
