"""What systemd is told of `serve`: up when it is up, and alive as long as HTTP is answered."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.cli.health import POLL_SECONDS, RETRY_SECONDS, Herald
from router.process.systemd import Notifier
from tests.processes import ManualClock


class World:
    """A service and the systemd that listens to it."""

    def __init__(self, systemd: socket.socket, clock: ManualClock) -> None:
        self.clock = clock
        self.up = False
        self.answers = True
        self._systemd = systemd
        notifier = Notifier(systemd.getsockname(), 30.0)
        self._herald = Herald(notifier, lambda: self.up, lambda: self.answers, clock)

    def watch(self) -> float:
        """Return when the herald is to be called again."""
        return self._herald.watch(lambda: 3600.0)

    def told(self) -> list[bytes]:
        """Return what systemd was told since the last time."""
        found = []
        while True:
            try:
                found.append(self._systemd.recv(100))
            except BlockingIOError:
                return found


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)
        yield World(systemd, ManualClock())


def test_service_is_ready_once_it_is_up(world: World) -> None:
    assert world.watch() == POLL_SECONDS
    assert world.told() == []
    world.up = True
    assert world.watch() == 30.0
    assert world.told() == [b"READY=1", b"WATCHDOG=1"]
    assert world.watch() == 30.0
    assert world.told() == []


def test_a_sign_of_life_follows_an_answer_only(world: World) -> None:
    world.up = True
    world.watch()
    world.told()
    world.answers = False
    world.clock.advance(30)
    assert world.watch() == RETRY_SECONDS
    assert world.told() == []
    world.answers = True
    world.clock.advance(RETRY_SECONDS)
    assert world.watch() == 30.0
    assert world.told() == [b"WATCHDOG=1"]


def test_a_service_whose_broker_starts_again_is_alive(world: World) -> None:
    world.up = True
    world.watch()
    world.told()
    world.up = False
    world.clock.advance(30)
    world.watch()
    assert world.told() == [b"WATCHDOG=1"]


def test_nothing_is_tried_when_systemd_does_not_listen() -> None:
    def never() -> bool:
        raise AssertionError

    assert Herald(Notifier(), never, never).watch(lambda: 7.0) == 7.0
