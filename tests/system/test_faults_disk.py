"""Disks that are full, fail or lie: nothing acknowledged is lost, nothing wrong is served."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from router.broker.folder import MARK
from tests.processes import wait_until
from tests.system.stack import Stack, descendants
from tests.system.traffic import (
    accepted,
    expect_kept,
    loaded,
    poll,
    post,
    read_all,
    router,
    started,
    until_accepted,
)

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(120)]

FULL_ROUNDS = int(os.environ.get("SOAK_FULL_DISKS", "1"))
# What is published between two times of need takes space, too.
DISK = (8 + 16 * FULL_ROUNDS) << 20
BRIEF = {
    "publish_timeout": "3s",
    "storage_journal": "1M",
    "storage_segment": "512K",
    "storage_cache": "1M",
}
# What `router broker` is, but for a disk that fails once a file says so.
FAILING_BROKER = """
import errno, os, sys
from router.broker.__main__ import main
sync = os.fdatasync
def failing(descriptor):
    if os.path.exists(sys.argv[1]):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    sync(descriptor)
os.fdatasync = failing
sys.exit(main(["--data", sys.argv[2], "--stay"]))
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A data folder on a file system of few MiB."""
    folder = tmp_path / "data"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    result = subprocess.run(mount, capture_output=True, text=True, check=False)
    if result.returncode:
        pytest.fail(
            "this test mounts a small tmpfs, which needs root: run the tests with sudo"
            f" ({result.stderr.strip()})"
        )
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def free(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


@contextlib.contextmanager
def ballast(folder: Path, leave: int) -> Iterator[None]:
    """Take up the disk's space but for so much while the block lasts."""
    file = folder / "ballast"
    with file.open("wb") as made:
        wait_until(lambda: _taken_up(made.fileno(), free(folder) - leave), 20)
    try:
        yield
    finally:
        file.unlink()


def _taken_up(descriptor: int, size: int) -> bool:
    """Return whether a file got so many bytes: others may have written meanwhile."""
    try:
        os.posix_fallocate(descriptor, 0, max(1, size))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
    return True


def until_refused(stack: Stack, topic: str) -> None:
    """Wait until the broker took note of the space that is left."""
    wait_until(lambda: not accepted(stack, topic, "probe"), 10)


def limit_files(stack: Stack, size: int) -> None:
    """Bound the files that the broker, and each that is started after it, may write."""
    assert stack.process is not None
    bounds = (size, resource.RLIM_INFINITY)
    for pid in [stack.process.pid, *descendants(stack.process.pid)]:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, bounds)


def readiness(stack: Stack) -> tuple[int, int, bytes]:
    """Return the status of /ready, and of /ready?for=publish with its answer."""
    found = [requests.get(f"{stack.url}/ready{query}", timeout=9) for query in ("", "?for=publish")]
    return found[0].status_code, found[1].status_code, found[1].content


def is_marked_full(stack: Stack) -> bool:
    """Return what the metrics say."""
    return "\nrouter_disk_full 1.0\n" in requests.get(f"{stack.url}/metrics", timeout=9).text


def test_a_full_disk_is_shown_whoever_publishes(tmp_path: Path, small_disk: Path) -> None:
    """It is a state of the broker: no request has to fail before it shows."""
    with contextlib.ExitStack() as stopping:
        with ballast(small_disk, leave=4 << 20):
            # It says where it listens with a full disk, too.
            router = started(tmp_path, "--workers", "1", storage_reserve="8M")
            stack = stopping.enter_context(router)
            wait_until(lambda: readiness(stack)[:2] == (503, 503), 20)
            assert b"the disk of the node is full: " in readiness(stack)[2]
            assert b"publishing needs 8,388,608 (storage.reserve)" in readiness(stack)[2]
            assert is_marked_full(stack)
            assert requests.get(f"{stack.url}/ready?for=poll", timeout=9).status_code == 200
            about = requests.get(f"{stack.url}/console/about", timeout=9).text
            assert "the disk of the node is full: " in about
        wait_until(lambda: readiness(stack)[:2] == (200, 200), 20)
        assert not is_marked_full(stack)
    log = [json.loads(line) for line in (tmp_path / "data" / "broker.log").read_text().splitlines()]
    shown = [line for line in log if line["event"].startswith("disk-")]
    assert [line["event"] for line in shown] == ["disk-full", "disk-has-space"]
    assert [line["free_bytes"] < 8 << 20 for line in shown] == [True, False]


def test_publishing_is_refused_and_polling_goes_on_when_space_is_below_the_reserve(
    tmp_path: Path, small_disk: Path
) -> None:
    with started(tmp_path, "--workers", "1", storage_reserve="8M") as stack:
        before = [f"before {n}" for n in range(20)]
        assert post(stack, "t", "\n".join(before)).status == 200
        assert poll(stack, "t/g/c", query="from=earliest&limit=5").json == before[:5]
        with ballast(small_disk, leave=4 << 20):
            until_refused(stack, "t")
            for _ in range(3):
                refused = post(stack, "t", "refused")
                assert (refused.status, refused.json["mrErrorCode"]) == (500, 3002)
                assert refused.json["mrstatus"] == 5002
                assert "full" in refused.json["message"]
            assert post(stack, "new", "refused").json["mrErrorCode"] == 3002
            rest = poll(stack, "t/g/c").json
            assert rest[:15] == before[5:]
            assert set(rest[15:]) <= {"probe"}
            assert poll(stack, "t/g/c").json == []
        until_accepted(stack, "t", "after", 20)
        assert poll(stack, "t/g/c", 5).json == ["after"]
        assert stack.process is not None
        assert stack.process.poll() is None


def test_nothing_acknowledged_is_lost_when_the_disk_is_full(
    tmp_path: Path, small_disk: Path
) -> None:
    with started(tmp_path, "--workers", "1", storage_reserve="0", **BRIEF) as stack:
        stored: list[str] = []
        with loaded(stack, "t", size=20_000) as loads:
            for _ in range(FULL_ROUNDS):
                time.sleep(0.3)
                with ballast(small_disk, leave=2 << 20):
                    wait_until(lambda: free(small_disk) < 64 << 10, 20)
                    # While the broker tries again and again.
                    time.sleep(2)
                assert not (small_disk / MARK).exists(), (small_disk / MARK).read_text()
                until_accepted(stack, "t", f"again {time.monotonic()}", 15)
        stored = read_all(stack, "t")
        expect_kept(loads, stored)
        assert {answer.status for load in loads for answer in load.refused} <= {500, 503, 504}
    log = "\n".join(_said(tmp_path))
    assert "storing failed, the broker ends: " in log
    assert "No space left on device" in log or "database or disk is full" in log
    assert "Traceback" not in log


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_a_start_on_a_full_disk_waits_for_space(
    tmp_path: Path, small_disk: Path, ending: str
) -> None:
    stack = Stack(tmp_path, "--workers", "1", storage_reserve="0", **BRIEF)
    stack.start()
    messages = [f"{number}:{'x' * 10_000}" for number in range(50)]
    for message in messages:
        assert accepted(stack, "t", message)
    if ending == "stop":
        assert stack.stop() == 0
    else:
        stack.kill()
    try:
        with ThreadPoolExecutor() as pool:
            with ballast(small_disk, leave=0):
                ready = pool.submit(stack.start)
                wait_until(lambda: _said(tmp_path)[-1].endswith("starting it again in 0.2 s"), 60)
                assert not ready.done()
            ready.result(20)
        assert not (small_disk / MARK).exists()
        assert read_all(stack, "t") == messages
    finally:
        stack.stop()


def test_an_output_that_a_full_disk_does_not_take_ends_nothing(tmp_path: Path) -> None:
    stack = Stack(tmp_path, "--workers", "1")
    (tmp_path / "serve.log").touch()
    command = [sys.executable, "-m", "router", "serve", "--port", str(stack.port)]
    command += ["--data", str(tmp_path / "data")]
    with Path("/dev/full").open("wb") as full:
        stack.process = subprocess.Popen(command, cwd=tmp_path, stdout=full, stderr=full)
    try:
        stack.wait_ready()
        assert accepted(stack, "t", "before")
        os.kill(stack.broker(), signal.SIGKILL)
        until_accepted(stack, "t", "after", 60)
    finally:
        assert stack.stop() == 0


def test_a_disk_that_becomes_read_only_ends_the_router_with_a_sentence(
    tmp_path: Path, small_disk: Path
) -> None:
    stack = Stack(tmp_path, "--workers", "1", **BRIEF, storage_reserve="0")
    stack.start()
    assert accepted(stack, "t", "before")
    # A mount of the same folder over it: files that are open for writing do not keep it from that.
    subprocess.run(["mount", "--bind", str(small_disk), str(small_disk)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(small_disk)], check=True)
        os.kill(stack.broker(), signal.SIGKILL)
        assert stack.process is not None
        assert stack.process.wait(20) != 0
        assert any("Read-only file system" in line for line in _said(tmp_path))
        assert not any("Traceback" in line for line in _said(tmp_path))
    finally:
        stack.stop()
        subprocess.run(["umount", str(small_disk)], check=True)
    stack.start()
    assert read_all(stack, "t") == ["before"]
    assert stack.stop() == 0


def test_nothing_acknowledged_is_lost_when_files_may_not_grow(tmp_path: Path) -> None:
    with started(tmp_path, "--workers", "1", storage_journal="4M", storage_cache="1M") as stack:
        with loaded(stack, "t", size=10_000) as loads:
            wait_until(lambda: sum(len(load.acknowledged) for load in loads) > 10)
            limit_files(stack, 512 << 10)
            wait_until(lambda: "storing failed" in (tmp_path / "serve.log").read_text())
            time.sleep(2)
            limit_files(stack, resource.RLIM_INFINITY)
            assert not (tmp_path / "data" / MARK).exists()
            until_accepted(stack, "t", "again", 15)
        expect_kept(loads, read_all(stack, "t"))


def test_metadata_that_may_not_grow_leaves_no_mark(tmp_path: Path) -> None:
    with started(tmp_path, "--workers", "1") as stack:
        assert accepted(stack, "t", "before")
        size = max(file.stat().st_size for file in (tmp_path / "data").glob("metadata.db*"))
        limit_files(stack, max(size, 64 << 10))
        made = 0
        while made < 200 and accepted(stack, f"topic-{made}", "x"):
            made += 1
        assert made < 200, "the limit was never met"
        limit_files(stack, resource.RLIM_INFINITY)
        assert not (tmp_path / "data" / MARK).exists(), (tmp_path / "data" / MARK).read_text()
        until_accepted(stack, "t", "after", 15)
        assert read_all(stack, "t") == ["before", "after"]
        for number in range(made):
            assert read_all(stack, f"topic-{number}") == ["x"]


def test_no_broker_is_started_again_when_the_folder_is_marked_read_only(tmp_path: Path) -> None:
    stack = Stack(tmp_path, "--workers", "1")
    stack.start()
    try:
        assert accepted(stack, "t", "before")
        (tmp_path / "data" / MARK).write_text("smoke came out of the disk\n")
        os.kill(stack.broker(), signal.SIGKILL)
        assert stack.process is not None
        assert stack.process.wait(20) == 65
    finally:
        stack.stop()
    said = [line for line in _said(tmp_path) if line.startswith("router: the broker does not")]
    assert len(said) == 1
    assert "router check" in said[0]
    expect_mark_explained_and_repaired(tmp_path, "smoke came out of the disk")
    stack.start()
    assert read_all(stack, "t") == ["before"]
    assert stack.stop() == 0


def _said(folder: Path) -> list[str]:
    return (folder / "serve.log").read_text().splitlines()


def expect_mark_explained_and_repaired(folder: Path, reason: str) -> None:
    found = router(folder, "check", "--changed")
    assert found.returncode == 65
    assert reason in found.stdout
    assert "--repair" in found.stdout
    found = router(folder, "check", "--changed", "--repair")
    assert found.returncode == 0, found.stdout + found.stderr
    assert not (folder / "data" / MARK).exists()
    found = router(folder, "check", "--changed")
    assert found.returncode == 0
    assert "in order" in found.stdout


def test_a_sync_that_fails_ends_the_broker_and_marks_the_folder(tmp_path: Path) -> None:
    flag, data = tmp_path / "fails", tmp_path / "data"
    command = [sys.executable, "-c", FAILING_BROKER, str(flag), str(data)]
    broker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with broker:
        assert broker.stdout is not None
        assert "listens" in broker.stdout.readline()
        assert router(tmp_path, "pub", "t", text="before\n").returncode == 0
        flag.touch()
        lost = router(tmp_path, "pub", "t", text="never acknowledged\n")
        assert lost.returncode != 0
        assert "READ-ONLY" in lost.stderr
        assert "Published" not in lost.stderr
        assert "Traceback" not in lost.stderr
        assert broker.wait(15) == 74
        assert broker.stderr is not None
        said = broker.stderr.read().splitlines()
    assert [line for line in said if "storing failed, the broker ends" in line]
    flag.unlink()
    expect_mark_explained_and_repaired(tmp_path, "Input/output error")
    with started(tmp_path, "--workers", "1") as stack:
        stored = read_all(stack, "t")
    # Whether the write that was not synced is there is open; it was not acknowledged.
    assert stored in (["before"], ["before", "never acknowledged"])


def flip(file: Path, text: bytes, bit: int) -> None:
    """Change one bit of the only place where a text stands in a file."""
    data = bytearray(file.read_bytes())
    assert data.count(text) == 1
    data[data.index(text) + len(text) // 2] ^= 1 << bit
    file.write_bytes(data)


def file_with(folder: Path, pattern: str, text: bytes) -> Path:
    """Return the only file in which a text stands."""
    (found,) = (f for f in folder.glob(pattern) if text in f.read_bytes())
    return found


def range_in(text: str) -> tuple[int, int]:
    """Return the range of bytes that a message names."""
    found = re.search(r"bytes (\d+) to (\d+)", text)
    assert found is not None, text
    return int(found[1]), int(found[2])


def test_a_damaged_segment_is_never_served_and_costs_only_what_is_damaged(tmp_path: Path) -> None:
    messages = [f"message-{number:03d}" for number in range(20)]
    with started(tmp_path, "--workers", "1") as stack:
        for message in messages:
            assert accepted(stack, "t", message)
            assert accepted(stack, "other", message)
    topics = {path.parent.name for path in (tmp_path / "data").glob("ledgers/*/*.seg")}
    assert len(topics) == 2
    segment = file_with(tmp_path / "data", "ledgers/1/*.seg", b"message-007")
    place = segment.read_bytes().index(b"message-007")
    flip(segment, b"message-007", 3)
    with started(tmp_path, "--workers", "1") as stack:
        damaged = {t: _read_until_failure(stack, t) for t in ("t", "other")}
        assert sorted(t for t, (_, failure) in damaged.items() if failure) in (["t"], ["other"])
        hit, whole = ("t", "other") if damaged["t"][1] else ("other", "t")
        assert damaged[whole] == (messages, "")
        served, failure = damaged[hit]
        assert served == messages[:7]
        first, last = range_in(failure)
        assert first <= place < last
        assert last - first < 200
        assert post(stack, hit, "behind").status == 200
    found = router(tmp_path, "check", "--changed")
    assert found.returncode == 65
    assert range_in(found.stdout) == (first, last)
    assert router(tmp_path, "check", "--changed", "--repair").returncode == 0
    with started(tmp_path, "--workers", "1") as stack:
        assert poll(stack, f"{hit}/g/c", 3).json[0] == "message-008"
        assert read_all(stack, hit) == [*messages[:7], *messages[8:], "behind"]
        assert read_all(stack, whole) == messages


def _read_until_failure(stack: Stack, topic: str) -> tuple[list[str], str]:
    """Read a topic to its end, or to what cannot be read: then return what is said of it."""
    found: list[str] = []
    while True:
        answer = poll(stack, f"{topic}/g/c", 0.5)
        if answer.status != 200:
            assert (answer.status, answer.json["mrErrorCode"]) == (500, 3009)
            return found, answer.json["message"]
        if not answer.json:
            return found, ""
        found += answer.json


def test_a_damaged_journal_stops_the_start_and_costs_only_what_is_damaged(tmp_path: Path) -> None:
    messages = [f"message-{number:03d}" for number in range(20)]
    stack = Stack(tmp_path, "--workers", "1")
    stack.start()
    for message in messages:
        assert accepted(stack, "t", message)
        assert accepted(stack, "other", message.replace("message", "another"))
    stack.kill()
    journal = file_with(tmp_path / "data", "journal/*.log", b"message-007")
    place = journal.read_bytes().index(b"message-007")
    flip(journal, b"message-007", 5)
    with pytest.raises(AssertionError, match="router check"):
        stack.start()
    assert stack.process is not None
    assert stack.process.wait(20) == 65
    found = router(tmp_path, "check", "--changed")
    assert found.returncode == 65
    spans = re.findall(r"bytes (\d+) to (\d+)", found.stdout)
    assert spans
    assert all(int(first) <= place < int(last) for first, last in spans)
    assert all(int(last) - int(first) < 400 for first, last in spans)
    assert router(tmp_path, "check", "--changed", "--repair").returncode == 0
    stack.start()
    assert read_all(stack, "t") == [*messages[:7], *messages[8:]]
    assert read_all(stack, "other") == [m.replace("message", "another") for m in messages]
    assert accepted(stack, "t", "behind")
    assert stack.stop() == 0
