"""What the processes of `serve` write: with log.format=json nothing that is no JSON object."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.processes import wait_until
from tests.system.stack import Stack
from tests.unit.web.applications import HASHES, header


def published(stack: Stack, password: str) -> tuple[int, str]:
    """Publish as anna; return the status and the transaction id of the answer."""
    asked = urllib.request.Request(f"{stack.url}/events/t", b"a")
    asked.add_header("Authorization", header("anna", password))
    asked.add_header("Content-Type", "text/plain")
    try:
        with urllib.request.urlopen(asked) as answer:
            return answer.status, answer.headers["transactionId"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["transactionId"]


def lines(stack: Stack) -> list[dict[str, Any]]:
    """Return the lines that were written so far; fail for one that is no JSON object."""
    whole, _, _ = (stack.folder / "serve.log").read_text().rpartition("\n")
    found = [json.loads(line) for line in whole.splitlines()]
    assert all(isinstance(line, dict) for line in found)
    return found


@pytest.mark.system
@pytest.mark.parametrize("form", ["json", "common"])
def test_every_line_of_every_process_is_json(tmp_path: Path, form: str) -> None:
    (tmp_path / "users").write_text(f"anna:{HASHES['argon2']}\n")
    (tmp_path / "users").chmod(0o600)
    stack = Stack(
        tmp_path,
        "--workers",
        "1",
        log_format="json",
        log_access=form,
        auth_users=str(tmp_path / "users"),
    )
    stack.start()
    try:
        stored, refused = published(stack, "secret"), published(stack, "wrong")
        assert (stored[0], refused[0]) == (200, 401)
        os.kill(stack.broker(), signal.SIGKILL)
        wait_until(lambda: any("SIGKILL" in line["event"] for line in lines(stack)))
        # gunicorn's arbiter says that its worker is gone, which comes after it in the list.
        os.kill(stack.workers()[-1], signal.SIGKILL)
        wait_until(lambda: any("was sent SIGKILL" in line["event"] for line in lines(stack)))
        stack.wait_ready()
    finally:
        stack.stop()
    found = lines(stack)
    assert all(
        {"pid", "process", "request_id", "timestamp", "level"} <= set(line) for line in found
    )
    assert {line["process"] for line in found} >= {"supervisor", "http", "worker", "broker"}
    assert any("Dragoman listens on" in line["event"] for line in found)
    (failed,) = (line for line in found if line["event"] == "login-refused")
    assert (failed["address"], failed["request_id"]) == ("127.0.0.1", refused[1])
    (access,) = (line for line in found if line["request_id"] == stored[1])
    if form == "json":
        assert (access["user"], access["status"], access["path"]) == ("anna", 200, "/events/t")
    else:
        assert '"POST /events/t HTTP/1.1" 200' in access["event"]


@pytest.mark.system
def test_access_log_has_plain_lines_where_people_read_it(tmp_path: Path) -> None:
    stack = Stack(tmp_path, "--workers", "1", log_format="text", log_access="common")
    stack.start()
    try:
        asked = urllib.request.Request(f"{stack.url}/health")
        with urllib.request.urlopen(asked) as answer:
            assert answer.status == 200
        log = stack.folder / "serve.log"
        wait_until(lambda: '"GET /health HTTP/1.1" 200 15\n' in log.read_text())
        wait_until(lambda: "\nTry it:\n" in log.read_text())
    finally:
        stack.stop()
