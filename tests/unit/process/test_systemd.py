"""What systemd is told: read from the socket that it would hand to a service."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.process.systemd import Notifier


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(5)
        yield listener


def test_notifier_says_nothing_when_systemd_does_not_listen() -> None:
    environ = {"PATH": "/bin"}
    notifier = Notifier.take(environ)
    notifier.ready()
    assert not notifier.listened_to
    assert notifier.interval is None
    assert environ == {"PATH": "/bin"}


def test_notifier_sends_each_state(systemd: socket.socket) -> None:
    notifier = Notifier.take({"NOTIFY_SOCKET": systemd.getsockname()})
    notifier.ready()
    notifier.reloading()
    notifier.alive()
    notifier.stopping()
    said = [systemd.recv(100).decode() for _ in range(4)]
    assert [text.splitlines()[0] for text in said] == [
        "READY=1",
        "RELOADING=1",
        "WATCHDOG=1",
        "STOPPING=1",
    ]
    assert int(said[1].partition("MONOTONIC_USEC=")[2]) > 0


def test_notifier_knows_abstract_addresses() -> None:
    name = f"router-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{name}")
        listener.settimeout(5)
        Notifier.take({"NOTIFY_SOCKET": f"@{name}"}).ready()
        assert listener.recv(100) == b"READY=1"


def test_notifier_takes_the_variables_away() -> None:
    environ = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "4000000", "WATCHDOG_PID": str(os.getpid())}
    assert Notifier.take(environ).interval == 1.0
    assert environ == {}


@pytest.mark.parametrize("given", [{"WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "soon"}])
def test_notifier_gives_no_sign_of_life_when_none_is_wanted_of_it(given: dict[str, str]) -> None:
    environ = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "4000000"} | given
    assert Notifier.take(environ).interval is None


def test_notifier_does_not_fail_when_the_socket_is_gone(tmp_path: Path) -> None:
    Notifier.take({"NOTIFY_SOCKET": str(tmp_path / "gone")}).stopping()
