"""Clients that take or give next to nothing: they lose their connection, others lose nothing."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.processes import wait_until
from tests.system.stack import Stack
from tests.system.traffic import (
    PATIENCE,
    Wire,
    allow_files,
    get,
    poll,
    post,
    publishing,
    read_all,
    started,
    waiting,
)

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(180)]

SLOW = int(os.environ.get("SOAK_SLOW_CONNECTIONS", "200"))
POLLS = int(os.environ.get("SOAK_SLOW_POLLS", "150"))
POSTS = int(os.environ.get("SOAK_SLOW_POSTS", "400"))
BIG = 500_000
PARTS = 24
CROWD = int(os.environ.get("SOAK_CROWD_POLLS", "300"))
GROUPS = 500
"""A topic has at most 1,000 groups."""


@pytest.mark.parametrize("kind", ["llhttp", "gthread"])
def test_what_a_reader_does_not_take_goes_to_another(tmp_path: Path, kind: str) -> None:
    settings = {"server_worker_class": kind, "server_write_timeout": "5s", "consume_idle": "300ms"}
    messages = [f"{number:03d}" + "z" * BIG for number in range(PARTS)]
    with started(tmp_path, "--workers", "1", **settings) as stack:
        for message in messages:
            assert post(stack, "large", message).status == 200
        with Wire(stack, receive_buffer=4096) as reader:
            reader.poll("large/g/reader", 20)
            assert reader.reader.peek(1), "the answer is on its way"
            # The group has one partition: the reader's until its connection is given up.
            found = poll(stack, "large/g/other", 30)
            assert (found.status, found.json) == (200, messages)
            with pytest.raises(ConnectionResetError):
                reader.answer()
        assert poll(stack, "large/g/reader").json == []
    assert "Traceback" not in (tmp_path / "serve.log").read_text()


class ConnectionLimiter:
    """Connections that hold one of three things each: half a head, half a body, nothing."""

    def __init__(self, stack: Stack, clients: ExitStack, number: int) -> None:
        self.wires = [clients.enter_context(Wire(stack)) for _ in range(number)]
        self.rest = [b"", b"", b""]
        wholes = (get("/health"), publishing("slow", b"slow"), get("/health"))
        for at, wire in enumerate(self.wires):
            whole = wholes[at % 3]
            begun = (12, len(whole) - 3, 0)[at % 3]
            wire.send(whole[:begun])
            self.rest[at % 3] = whole[begun:]

    def trickle(self) -> None:
        """Send one byte of what is missing of each head and body."""
        for kind in (0, 1):
            byte, self.rest[kind] = self.rest[kind][:1], self.rest[kind][1:]
            for wire in self.wires[kind::3]:
                wire.send(byte)

    def finish(self) -> None:
        """Send the rest of all, and have all answered."""
        for at, wire in enumerate(self.wires):
            wire.send(self.rest[at % 3])
        assert {wire.answer().status for wire in self.wires} == {200}


def publish(stack: Stack, numbers: range) -> list[float]:
    """Publish these numbers over one connection; return the milliseconds that each took."""
    took = []
    with Wire(stack) as wire:
        for number in numbers:
            began = time.monotonic()
            wire.send(publishing("fast", b"%d" % number))
            assert wire.answer().status == 200
            took.append((time.monotonic() - began) * 1000)
    return took


@contextlib.contextmanager
def polling(stack: Stack, clients: ExitStack) -> Iterator[None]:
    """Have POLLS polls wait while the block lasts, and all of them woken behind it."""
    topics = [f"wait{first}" for first in range(0, POLLS, GROUPS)]
    for topic in topics:
        assert post(stack, topic, "start").status == 200
    polls = [clients.enter_context(Wire(stack)) for _ in range(POLLS)]
    for number, client in enumerate(polls):
        client.poll(f"{topics[number // GROUPS]}/g{number}/c", 170, "from=latest")
    wait_until(lambda: waiting(stack) == POLLS, 90)
    yield
    assert waiting(stack) == POLLS
    for topic in topics:
        assert post(stack, topic, "wake").status == 200
    assert [client.answer().json for client in polls] == [["wake"]] * POLLS


def test_publishing_goes_on_among_slow_connections_and_waiting_polls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """gthread is left out: each of these would have one of its 256 threads."""
    allow_files(2 * (SLOW + POLLS) + 500)
    settings = {"server_head_timeout": "5m"}
    settings |= {"consume_max_timeout": "5m", "server_connections_per_address": "0"}
    each = POSTS // 8
    with started(tmp_path, "--workers", "2", **settings) as stack, ExitStack() as clients:
        with polling(stack, clients):
            crowd = ConnectionLimiter(stack, clients, SLOW)
            with ThreadPoolExecutor(8) as pool:
                parts = [range(first, first + each) for first in range(0, 8 * each, each)]
                sent = [pool.submit(publish, stack, part) for part in parts]
                crowd.trickle()
                took = sorted(ms for one in sent for ms in one.result(PATIENCE + POSTS))
                crowd.trickle()
        crowd.finish()
        assert sorted(read_all(stack, "fast"), key=int) == [str(n) for n in range(8 * each)]
        assert len(read_all(stack, "slow")) == len(crowd.wires[1::3])
    with capsys.disabled():
        p50, p99 = took[len(took) // 2], took[len(took) * 99 // 100]
        sys.stdout.write(
            f"\n{len(took)} POSTs among {SLOW} slow connections and {POLLS} polls:"
            f" p50 {p50:.1f} ms, p99 {p99:.1f} ms\n"
        )


class Mixed:
    """Polls that wait, each of a group of its own, whose clients do one of five things."""

    def __init__(self, stack: Stack, clients: ExitStack) -> None:
        self.stack = stack
        self.wires = [clients.enter_context(Wire(stack)) for _ in range(CROWD)]
        for number, wire in enumerate(self.wires):
            wire.poll(self.path(number), 100, "from=latest")
        wait_until(lambda: waiting(stack) == CROWD, PATIENCE)

    @staticmethod
    def path(number: int) -> str:
        """Return what a client polls."""
        return f"mixed/g{number}/c"

    def of(self, *kinds: int) -> list[int]:
        """Return the numbers of the clients of these kinds."""
        return [number for number in range(CROWD) if number % 5 in kinds]

    def part(self) -> None:
        """Have those of kind 0 stay, 1 close, 2 reset; 3 and 4 ask for more early, 4 close then."""
        for number in self.of(3, 4):
            self.wires[number].poll(self.path(number), 0)
        for number in self.of(1, 4):
            self.wires[number].close()
        for number in self.of(2):
            self.wires[number].reset()


def test_each_who_stays_has_each_message_once_when_others_vanish_or_ask_early(
    tmp_path: Path,
) -> None:
    """gthread is left out: each of these would have one of its 256 threads."""
    allow_files(2 * CROWD + 500)
    settings = {"consume_max_timeout": "5m"}
    settings |= {"server_connections_per_address": "0"}
    with started(tmp_path, "--backend", "memory", **settings) as stack, ExitStack() as clients:
        assert post(stack, "mixed", "start").status == 200
        mixed = Mixed(stack, clients)
        mixed.part()
        stayed = mixed.of(0, 3)
        wait_until(lambda: waiting(stack) == len(stayed), PATIENCE)
        # Nobody has to wait for a client that is gone: its id's next poll has the partition.
        for number in mixed.of(1, 2, 4)[::10]:
            answer = poll(stack, mixed.path(number))
            assert (answer.status, answer.json) == (200, [])
        assert post(stack, "mixed", "first").status == 200
        assert [mixed.wires[n].answer().json for n in stayed] == [["first"]] * len(stayed)
        assert [mixed.wires[n].answer().json for n in mixed.of(3)] == [[]] * len(mixed.of(3))
        wait_until(lambda: waiting(stack) == 0, PATIENCE)
        assert post(stack, "mixed", "second").status == 200
        for number in stayed:
            mixed.wires[number].poll(mixed.path(number), 20)
        assert [mixed.wires[n].answer().json for n in stayed] == [["second"]] * len(stayed)
        gone = [poll(stack, mixed.path(number)).json for number in mixed.of(1, 2, 4)]
        assert gone == [["first", "second"]] * len(gone)
    assert "Traceback" not in (tmp_path / "serve.log").read_text()
