"""`router bench` on the store in memory, here and over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.backends import Batch, Receipt
from router.backends.memory import MemoryBackend
from router.cli import load, status
from router.errors import DiskFullError
from tests.unit.cli.servers import live
from tests.unit.cli.test_commands import backend, run
from tests.unit.web.applications import Site

__all__ = ["backend"]

SMALL = ("--messages", "20", "--size", "10", "--json")


@pytest.fixture(autouse=True)
def no_contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No contexts but the test's own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.fixture
def server() -> Iterator[tuple[str, str]]:
    """The options that name an application, served on loopback."""
    site = Site({})
    with live(site) as url:
        yield "--server", url
    site.close()


@pytest.mark.parametrize("kind", ["publish", "subscribe", "latency"])
@pytest.mark.parametrize("clients", ["1", "2"])
@pytest.mark.usefixtures("backend")
def test_a_run_counts_its_messages_and_deletes_its_topic(kind: str, clients: str) -> None:
    result = run("bench", kind, *SMALL, "--clients", clients, "--batch", "7", "--rate", "0")
    assert result.exit_code == 0, result.output
    told = json.loads(result.output)
    assert (told["bench"], told["messages"], told["lost"]) == (kind, 20, 0)
    assert told["latency_ms"]["count"] == sum(b["count"] for b in told["latency_ms"]["buckets"])
    assert told["latency_ms"]["p50"] <= told["latency_ms"]["p99"] <= told["latency_ms"]["max"]
    assert run("topics", "list").output == ""


@pytest.mark.parametrize("kind", ["publish", "subscribe", "latency"])
def test_a_run_over_http_is_the_same(server: tuple[str, str], kind: str) -> None:
    result = run("bench", kind, *SMALL, "--rate", "1000", *server)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["messages"] == 20
    assert run("topics", "list", *server).output == ""


@pytest.mark.usefixtures("backend")
def test_people_are_told_in_tables() -> None:
    lines = run("bench", "publish", "--messages", "20").output.splitlines()
    assert lines[0].startswith("publish: 20 messages in ")
    assert lines[1].split() == ["latency", "min", "mean", "p50", "p90", "p99", "p99.9", "max"]
    assert lines[-1].endswith("#")


def test_the_topic_is_deleted_after_a_failure(
    backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(batch: Batch, timeout: float) -> Receipt:
        raise DiskFullError("The disk is full.")

    monkeypatch.setattr(backend, "publish", full)
    result = run("bench", "publish", "--clients", "2")
    assert (result.exit_code, result.output) == (status.TRY_AGAIN, "Error: The disk is full.\n")
    assert backend.list_topics(1) == []


def test_latency_counts_from_when_a_request_was_due(
    backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One slow request makes those behind it late, and they are counted as late."""
    publish, calls = backend.publish, list[Batch]()
    held = threading.Event()

    def slow(batch: Batch, timeout: float) -> Receipt:
        calls.append(batch)
        if len(calls) == 1:
            held.wait(0.3)
        return publish(batch, timeout)

    monkeypatch.setattr(backend, "publish", slow)
    told = json.loads(run("bench", "publish", *SMALL, "--rate", "100", "--batch", "1").output)[
        "latency_ms"
    ]
    # Due 10 ms apart: without this correction one of twenty would be slow.
    assert told["p50"] >= 50


@pytest.mark.parametrize(
    "options",
    [
        ("--clients", "65"),
        ("--duration", "601"),
        ("--size", "1000001"),
        ("--batch", "5001"),
        ("--messages", "0"),
    ],
)
def test_what_would_be_too_much_is_a_usage_error(options: tuple[str, str]) -> None:
    assert run("bench", "publish", *options).exit_code == status.USAGE


def test_a_plan_has_a_bound_in_bytes() -> None:
    plan = load.LoadPlan(1.0, None, 1_000_000, 1, 1, 0.0)
    assert plan.bound() * plan.size <= load.MAX_BYTES
