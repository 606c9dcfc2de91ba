"""Log lines: one form for ours and those of libraries, bounded on disk, without secrets."""

from __future__ import annotations

import json
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from router import log
from tests.processes import ManualClock


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_lines_are_json_on_stderr_and_in_the_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log.configure("info", "json", file=tmp_path / "broker.log")
    structlog.get_logger().info("started", topics=3)
    logging.getLogger("asyncio").warning("slow %s", "callback")
    own, foreign = lines(tmp_path / "broker.log")
    assert (own["event"], own["topics"], own["level"]) == ("started", 3, "info")
    assert (foreign["event"], foreign["level"]) == ("slow callback", "warning")
    assert own["timestamp"].endswith("Z")
    shown = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [line["event"] for line in shown] == ["started", "slow callback"]


def test_lines_are_text_when_the_setting_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    log.configure("info", "text")
    structlog.get_logger().info("started", topics=3)
    assert "level='info' event='started' topics=3" in capfd.readouterr().err


def test_lines_below_the_level_are_not_written(capfd: pytest.CaptureFixture[str]) -> None:
    log.configure("warning", "json")
    structlog.get_logger().info("quiet")
    logging.getLogger("x").info("quiet")
    structlog.get_logger().warning("loud")
    assert json.loads(capfd.readouterr().err)["event"] == "loud"


def test_stderr_is_left_alone_when_only_the_file_is_wanted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log.configure("info", "json", file=tmp_path / "broker.log", stderr=False)
    structlog.get_logger().error("failed")
    assert capfd.readouterr().err == ""
    assert [line["event"] for line in lines(tmp_path / "broker.log")] == ["failed"]


def test_secrets_are_blanked_when_logged(capfd: pytest.CaptureFixture[str]) -> None:
    log.configure("info", "json")
    structlog.get_logger().info(
        "request",
        password="hunter2",
        auth_data=b"hunter2",
        headers="Host: h, Authorization: Basic aHVudGVyMjpodW50ZXIy, Accept: */*",
    )
    logging.getLogger("library").warning("sent Bearer hunter2hunter2")
    written = capfd.readouterr().err
    assert "hunter2" not in written
    assert "aHVudGVyMjpodW50ZXIy" not in written
    assert "Accept: */*" in written


def test_traceback_is_in_the_line_when_an_error_is_logged(
    capfd: pytest.CaptureFixture[str],
) -> None:
    log.configure("info", "json")
    try:
        json.loads("broken")
    except ValueError:
        structlog.get_logger().exception("unexpected")
    (line,) = capfd.readouterr().err.splitlines()
    assert "JSONDecodeError: Expecting value" in json.loads(line)["exception"]


def test_a_line_that_a_full_disk_does_not_take_is_left_out(
    capfd: pytest.CaptureFixture[str],
) -> None:
    log.configure("info", "json", file=Path("/dev/full"))
    structlog.get_logger().info("started")
    (shown,) = capfd.readouterr().err.splitlines()
    assert json.loads(shown)["event"] == "started"


def test_file_is_private_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "FILE_BYTES", 2000)
    log.configure("info", "json", file=tmp_path / "broker.log", stderr=False)
    for number in range(200):
        structlog.get_logger().info("line", number=number)
    files = list(tmp_path.iterdir())
    assert len(files) == 1 + log.FILES_KEPT
    assert all(file.stat().st_size <= 2000 for file in files)
    assert stat.S_IMODE((tmp_path / "broker.log").stat().st_mode) == 0o600


def test_lines_name_process_and_request(capfd: pytest.CaptureFixture[str]) -> None:
    log.configure("info", "json", process="broker")
    token = log.request_id.set("r1")
    logging.getLogger("library").warning("during")
    log.request_id.reset(token)
    structlog.get_logger().info("after")
    during, after = (json.loads(line) for line in capfd.readouterr().err.splitlines())
    assert (during["process"], during["pid"], during["request_id"]) == ("broker", os.getpid(), "r1")
    assert (after["process"], after["pid"], after["request_id"]) == ("broker", os.getpid(), None)


CAPTURED = """
import sys, threading, warnings
from router import log
from tests.processes import ManualClock
log.begin("supervisor", "error", "json")
print("said", "twice", flush=True)
sys.stderr.write("router: one\\n  two\\n")
sys.stderr.write("in ")
sys.stderr.write("pieces\\n")
warnings.warn("old")
def fail(): raise ValueError("in a thread")
thread = threading.Thread(target=fail)
thread.start()
thread.join()
raise ValueError("at the end")
"""


def test_all_that_a_process_writes_is_json_when_captured() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", CAPTURED],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ""
    written = [json.loads(line) for line in done.stderr.splitlines()]
    assert {line["process"] for line in written} == {"supervisor"}
    events = [line["event"] for line in written]
    assert events[:3] == ["said twice", "one\n  two", "in pieces"]
    assert "ValueError: in a thread" in written[-2]["exception"]
    assert "ValueError: at the end" in written[-1]["exception"]
    assert done.returncode == 1


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_process_that_serves_may_have_no_standard_output(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `router serve >&-`, whose supervisor flushes the stream before it forks."""
    monkeypatch.setattr(log, "capture", lambda: None)
    monkeypatch.setattr(sys, "stdout", None)
    log.begin("supervisor", "error", form)
    with sys.stdout as replaced:
        print("lost", file=replaced, flush=True)


def test_limit_counts_what_it_leaves_out(clock: ManualClock) -> None:
    limit = log.LineLimit(clock)
    admitted = [limit.admit() for _ in range(log.MAX_REFUSAL_LINES_PER_SECOND + 3)]
    assert admitted[:-3] == [{}] * log.MAX_REFUSAL_LINES_PER_SECOND
    assert admitted[-3:] == [None] * 3
    clock.advance(1)
    assert limit.admit() == {"left_out": 3}
    assert limit.admit() == {}


class CountingHandler(logging.Handler):
    """Keeps what it is given."""

    def __init__(self, found: log.RepetitionFilter) -> None:
        super().__init__()
        self.messages: list[Any] = []
        self.addFilter(found)

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.msg)


def test_equal_warnings_are_bounded_and_counted(tmp_path: Path) -> None:
    """As of a probe that is refused several times a second, for ever."""
    clock = ManualClock()
    repeated = log.RepetitionFilter(clock)
    handlers = [CountingHandler(repeated) for _ in range(2)]
    log.configure("info", "json", stderr=False)
    logging.getLogger().handlers[:] = handlers
    for number in range(1_000):
        log.request_id.set(f"r{number}")
        structlog.get_logger().warning("refused", address="127.0.0.1")
        logging.getLogger("asyncio").error("slow %s", "callback")
        structlog.get_logger().info("stored")
    structlog.get_logger().warning("refused", address="127.0.0.2")
    clock.now += log.EQUAL_LINES_SECONDS
    structlog.get_logger().warning("refused", address="127.0.0.1")
    logging.getLogger("asyncio").error("slow %s", "callback")
    most = log.MAX_EQUAL_LINES
    for handler in handlers:
        ours = [message for message in handler.messages if isinstance(message, dict)]
        foreign = [message for message in handler.messages if not isinstance(message, dict)]
        assert sum(one["event"] == "stored" for one in ours) == 1_000
        refused = [one for one in ours if one["event"] == "refused"]
        assert len(refused) == most + 2
        assert [one["left_out"] for one in refused if "left_out" in one] == [1_000 - most]
        assert refused[-1]["left_out"] == 1_000 - most
        assert len(foreign) == most + 1
        assert foreign[-1] == f"slow callback (left out: {1_000 - most})"


def test_warnings_that_differ_take_a_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "MAX_DIFFERENT_LINES", 3)
    found = log.RepetitionFilter(ManualClock())
    record = logging.LogRecord("x", logging.WARNING, "f", 1, "%d", (0,), None)
    for number in range(100):
        assert found.filter(logging.makeLogRecord(record.__dict__ | {"args": (number,)}))
    assert len(found._repetitions) == 3


def test_every_log_bounds_equal_warnings(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log.configure("info", "json", file=tmp_path / "broker.log")
    for _ in range(100):
        structlog.get_logger().warning("again")
    assert len(lines(tmp_path / "broker.log")) == log.MAX_EQUAL_LINES
    assert len(capfd.readouterr().err.splitlines()) == log.MAX_EQUAL_LINES
