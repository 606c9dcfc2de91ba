"""The audit of changes: in order, bounded, searchable, and readable after a crash."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from router.broker.audit import FILE, MAX_TEXT, OLDER, AuditLog

NOW = 1_790_000_000_000


async def filled(folder: Path, count: int, max_bytes: int) -> AuditLog:
    audit = AuditLog(folder, lambda: NOW, max_bytes)
    for number in range(count):
        audit.add("delete-topic", f"t{number}", "anna", "192.0.2.1:5", "kafka", partitions=number)
        if number % 3 == 0:
            await audit.written()
    await audit.written()
    return audit


async def test_changes_come_back_newest_first_and_by_what_they_hold(tmp_path: Path) -> None:
    audit = await filled(tmp_path, 5, 1 << 20)
    audit.add("create-topic", "Orders", "", "", "http", to="x" * 2 * MAX_TEXT)
    first, *rest = await audit.newest(4)
    assert first == {
        "at": NOW,
        "user": "",
        "from": "",
        "protocol": "http",
        "action": "create-topic",
        "target": "Orders",
        "details": {"to": "x" * MAX_TEXT},
    }
    assert [one["target"] for one in rest] == ["t4", "t3", "t2"]
    assert [one["target"] for one in await audit.newest(9, "orders")] == ["Orders"]
    assert [one["target"] for one in await audit.newest(9, "partitions=3")] == ["t3"]


async def test_what_json_cannot_hold_is_replaced(tmp_path: Path) -> None:
    audit = await filled(tmp_path, 0, 1 << 20)
    audit.add("change-key", "a\ud800b", "", "", "http", limit=1 << 80)
    (one,) = await audit.newest(9)
    assert (one["target"], one["details"]) == ("a?b", {"limit": str(1 << 80)})


async def test_files_are_bounded_and_hold_the_newest(tmp_path: Path) -> None:
    audit = await filled(tmp_path, 60, 2_000)
    sizes = [(tmp_path / name).stat().st_size for name in (FILE, OLDER)]
    assert max(sizes) <= 2_000
    found = [one["target"] for one in await audit.newest(100)]
    assert found == [f"t{n}" for n in range(59, 59 - len(found), -1)]
    assert len(found) > 10


async def test_torn_line_is_left_out_and_the_next_one_is_not(tmp_path: Path) -> None:
    await filled(tmp_path, 2, 1 << 20)
    path = tmp_path / FILE
    path.write_bytes(path.read_bytes()[:-9])
    audit = await filled(tmp_path, 1, 1 << 20)
    assert [one["target"] for one in await audit.newest(9)] == ["t0", "t0"]
    assert json.loads(path.read_bytes().splitlines()[-1])["target"] == "t0"


async def test_disk_that_refuses_does_not_stop_the_broker(tmp_path: Path) -> None:
    audit = await filled(tmp_path / "absent", 2, 1 << 20)
    assert await audit.newest(9) == []
    (tmp_path / "absent").mkdir()
    audit.add("create-topic", "t", "", "", "http")
    assert len(await audit.newest(9)) == 1


async def test_change_that_a_full_disk_took_a_part_of_is_in_the_log_and_tears_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, parts = os.write, [30, 0]

    def fill(descriptor: int, data: bytes) -> int:
        if not data.endswith(b"}\n"):
            return written(descriptor, data)
        if not (part := parts.pop(0)):
            raise OSError(errno.ENOSPC, "no space")
        return written(descriptor, data[:part])

    audit = await filled(tmp_path, 1, 1 << 20)
    with monkeypatch.context() as patched, capture_logs() as logs:
        patched.setattr(os, "write", fill)
        audit.add("create-topic", "lost", "", "", "http")
        await audit.written()
    assert [one["event"] for one in logs] == ["audit-not-written"]
    assert "lost" in logs[0]["lines"]
    audit.add("create-topic", "next", "", "", "http")
    assert [one["target"] for one in await audit.newest(9)] == ["next", "t0"]


def test_change_that_is_written_in_pieces_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: written(descriptor, data[:30]))
    asyncio.run(filled(tmp_path, 3, 1 << 20))
    found = [json.loads(line) for line in (tmp_path / FILE).read_bytes().split()]
    assert [one["target"] for one in found] == ["t0", "t1", "t2"]
