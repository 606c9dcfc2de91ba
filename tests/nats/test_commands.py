"""`router streams` against the broker's own streams."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from router.cli import status
from tests.nats.conftest import NatsStack
from tests.system.traffic import ask
from tests.unit.cli.test_commands import run

pytestmark = pytest.mark.slow

STREAM = "command.line"
NAME = "command%2Eline"


@pytest.fixture(autouse=True)
def no_contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No contexts but the test's own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("ROUTER_CONTEXT", raising=False)


def test_a_life_of_a_stream(nats_stack: NatsStack, tmp_path: Path) -> None:
    def printed(*arguments: str) -> str:
        result = run("streams", *arguments, "--server", nats_stack.url)
        assert result.exit_code == 0, result.output
        return result.output

    def config() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(printed("info", STREAM, "--json"))["config"]
        return found

    printed("add", STREAM, "--subjects", "line.*,line", "--max-age", "7d", "--allow-direct")
    assert config()["subjects"] == ["line.*", "line"]
    for subject, text in (("line.a", b"one"), ("line.b", b"two\x1b"), ("line.a", b"three")):
        assert ask(nats_stack, "POST", f"/jetstream/publish/{subject}", text).status == 200

    printed("edit", STREAM, "--max-msgs", "10", "--max-bytes", "1M")
    assert (config()["max_msgs"], config()["max_bytes"]) == (10, 1 << 20)
    assert (config()["max_age"], config()["allow_direct"]) == (7 * 86_400 * 10**9, True)
    kept = tmp_path / "config.json"
    kept.write_text(json.dumps({"description": "from a file", "max_msgs": 5}))
    printed("edit", STREAM, "--file", str(kept), "--max-msgs", "-1")
    assert (config()["description"], config()["max_msgs"]) == ("from a file", -1)

    assert printed("ls", "--subject", "line.x").split()[:3] == [NAME, "line.*,line", "3"]
    shown = printed("get", STREAM, "2").splitlines()
    assert shown[0].split() == ["subject:", "line.b"]
    assert shown[-1] == "two\\x1b"
    assert json.loads(printed("get", STREAM, "--last", "line.a", "--json"))["seq"] == 3
    assert json.loads(printed("get", STREAM, "2", "--next", "line.a", "--json"))["seq"] == 3

    create = {"stream_name": NAME, "config": {"durable_name": "worker", "ack_policy": "explicit"}}
    path = f"/jetstream/api/CONSUMER.CREATE.{NAME.replace('%', '%25')}.worker"
    assert ask(nats_stack, "POST", path, json.dumps(create).encode()).status == 200
    row = printed("consumers", STREAM).splitlines()[1].split()
    assert row == ["worker", "pull", "0", "0", "3", "0", "0"]
    assert "config.durable_name" in printed("consumers", STREAM, "worker")

    assert printed("purge", STREAM, "--filter", "line.a") == f"Deleted 2 messages of {NAME}\n"
    printed("rm", STREAM)
    gone = run("streams", "info", STREAM, "--server", nats_stack.url)
    assert gone.exit_code == status.NOT_FOUND
