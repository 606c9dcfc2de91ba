"""`router demo` on a router: what it makes, how it ends, that nothing of it stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.cli import demo_run
from router.cli.demo_messages import CUSTOMERS
from router.cli.demo_run import BILLING, DEAD_LETTERS, DEVICES, ORDERS, PACKING, TOPICS
from tests.system.stack import Stack

pytestmark = pytest.mark.system

SECONDS = 60


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A router without users."""
    made = Stack(tmp_path_factory.mktemp("demo"))
    made.start()
    yield made
    made.stop()


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment without contexts."""
    return os.environ | {"XDG_CONFIG_HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"}


def line(stack: Stack, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "router", *arguments, "--server", stack.url]


def run(environ: dict[str, str], stack: Stack, *arguments: str) -> str:
    command = line(stack, *arguments)
    return subprocess.run(
        command, env=environ, capture_output=True, timeout=SECONDS, check=True, text=True
    ).stdout


def test_demo_fills_a_router_and_takes_it_all_away(stack: Stack, environ: dict[str, str]) -> None:
    said = run(environ, stack, "demo", "--for", "1s", "--rate", "40")
    assert said.startswith(f"Console: {stack.url}/console/\n")
    topics = json.loads(run(environ, stack, "topics", "list", "--json"))
    assert {one["name"]: one["partitions"] for one in topics} == {
        topic: 3 if topic == ORDERS else 1 for topic in TOPICS
    }
    groups = json.loads(run(environ, stack, "groups", "list", ORDERS, "--json"))
    assert {one["group"] for one in groups} == {PACKING, BILLING}
    dead_letters = json.loads(run(environ, stack, "dead-letters", "list", "--json"))
    assert [one["topic"] for one in dead_letters] == [DEAD_LETTERS]
    assert dead_letters[0]["waiting"] > 0
    values = json.loads(run(environ, stack, "topics", "latest", demo_run.CUSTOMERS, "--json"))[
        "values"
    ]
    assert {one["key"] for one in values} <= set(CUSTOMERS)
    assert values
    stream = json.loads(run(environ, stack, "streams", "info", DEVICES, "--json"))
    assert stream["config"]["subjects"] == [f"{DEVICES}.>"]
    assert stream["state"]["messages"] > 0
    run(environ, stack, "demo", "--for", "0.1s")  # what is there already is no obstacle
    run(environ, stack, "topics", "create", "demo-mine")
    removed = run(environ, stack, "demo", "--remove")
    assert removed == f"Deleted {', '.join(TOPICS)}\n"
    assert [one["name"] for one in json.loads(run(environ, stack, "topics", "list", "--json"))] == [
        "demo-mine"
    ]
    assert run(environ, stack, "demo", "--remove") == "There is nothing to delete.\n"
    run(environ, stack, "topics", "delete", "demo-mine")


def test_interrupt_ends_the_demo_with_a_summary(stack: Stack, environ: dict[str, str]) -> None:
    with subprocess.Popen(
        line(stack, "demo"), env=environ, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Console: ")
        assert process.stdout.readline().startswith("Publishing ")
        process.send_signal(signal.SIGINT)
        assert process.stdout.read().startswith("Published ")
        assert process.wait(SECONDS) == 0
    run(environ, stack, "demo", "--remove")
