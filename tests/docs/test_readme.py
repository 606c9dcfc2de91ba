"""The programs of README's first screen run in a row on one topic, each with its own client."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.console import ROOT, blocks
from tests.pipelines.pages import done
from tests.pipelines.quick import ready
from tests.ports import free_port
from tests.system.stack import Stack
from tests.system.traffic import post

pytestmark = [pytest.mark.system, pytest.mark.slow]

ADDRESSES = {"kafka": "127.0.0.1:9092", "nats": "127.0.0.1:4222", "pulsar": "127.0.0.1:6650"}
# Pulsar's client logs to standard output.
LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} ")
KAFKA, NATS, PULSAR, SPARK = blocks(ROOT / "README.md", "python")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Stack, dict[str, str]]]:
    """A router with the two messages of curl, and which address stands for which of README's."""
    places = {of: f"127.0.0.1:{free_port()}" for of in ADDRESSES}
    stack = Stack(tmp_path, **{f"broker_{name}": place for name, place in places.items()})
    stack.start()
    post(stack, "greetings", "first\nsecond")
    yield stack, {ADDRESSES[name]: place for name, place in places.items()}
    stack.stop()


def run(stack: Stack, program: str, places: dict[str, str]) -> list[str]:
    """Run a program in the folder of a router; return the lines that it prints, without logs."""
    for address, place in places.items():
        program = program.replace(address, place)
    lines = done(stack.folder, sys.executable, "-c", program).splitlines()
    return [line for line in lines if not LOG_LINE.match(line)]


def test_clients_of_three_protocols_share_a_topic(served: tuple[Stack, dict[str, str]]) -> None:
    stack, places = served
    assert run(stack, KAFKA, places) == ["0 first", "1 second", "2 from Kafka"]
    assert run(stack, NATS, places) == ["from NATS"]
    everything = ["first", "second", "from Kafka", "from NATS", "from Pulsar"]
    assert run(stack, PULSAR, places) == everything


@pytest.mark.java
@pytest.mark.timeout(300)
def test_pyspark_reads_the_topic(served: tuple[Stack, dict[str, str]]) -> None:
    ready()
    stack, places = served
    rows = [line.strip("| ") for line in run(stack, SPARK, places) if line.startswith("|")]
    assert rows[1:] == ["first", "second"]
