"""The broker and the HTTP server as children of `serve`: which end is worth a restart."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from router.broker.folder import LOCK, MARK
from router.cli import broker_child, front
from router.cli.supervise import Exit, GaveUpError
from router.errors import SettingError
from router.settings import load


@pytest.mark.parametrize("status", [-signal.SIGKILL, 0, 1, os.EX_IOERR, os.EX_TEMPFAIL])
def test_broker_is_started_again_after(tmp_path: Path, status: int) -> None:
    broker_child.judge(Exit(status, 1.0, 1), tmp_path)


@pytest.mark.parametrize("status", [-signal.SIGKILL, os.EX_IOERR, os.EX_TEMPFAIL])
def test_broker_is_started_again_however_often_after(tmp_path: Path, status: int) -> None:
    broker_child.judge(Exit(status, 0.1, 1_000), tmp_path)


@pytest.mark.parametrize("status", [os.EX_DATAERR, os.EX_CONFIG, os.EX_CANTCREAT, os.EX_USAGE])
def test_broker_is_given_up_after(tmp_path: Path, status: int) -> None:
    with pytest.raises(GaveUpError, match="router check --data") as given_up:
        broker_child.judge(Exit(status, 0.1, 1), tmp_path)
    assert given_up.value.status >= os.EX_USAGE


def test_broker_is_given_up_when_the_folder_is_marked(tmp_path: Path) -> None:
    (tmp_path / MARK).write_text("the disk failed")
    with pytest.raises(GaveUpError) as given_up:
        broker_child.judge(Exit(os.EX_IOERR, 100.0, 0), tmp_path)
    assert given_up.value.status == os.EX_IOERR


def test_broker_is_given_up_when_it_dies_again_and_again(tmp_path: Path) -> None:
    with pytest.raises(GaveUpError, match="exit status 1"):
        broker_child.judge(Exit(1, 0.1, broker_child.MAX_EARLY_DEATHS), tmp_path)


def test_started_by_knows_whose_child_holds_the_folder(tmp_path: Path) -> None:
    lock = tmp_path / LOCK
    assert not broker_child.started_by(tmp_path, os.getppid())
    lock.write_text("not a number\n")
    assert not broker_child.started_by(tmp_path, os.getppid())
    lock.write_text(f"{os.getpid()}\n")
    assert broker_child.started_by(tmp_path, os.getppid())
    assert not broker_child.started_by(tmp_path, os.getpid())


@pytest.mark.parametrize("end", [Exit(-signal.SIGKILL, 0.1, 9), Exit(1, 0.1, 1), Exit(0, 1, 1)])
def test_server_is_started_again_after(end: Exit) -> None:
    front.judge(end)


@pytest.mark.parametrize("end", [Exit(3, 0.1, 1), Exit(4, 99, 0), Exit(1, 0.1, 3)])
def test_server_is_given_up_after(end: Exit) -> None:
    with pytest.raises(GaveUpError, match="cannot start"):
        front.judge(end)


def test_reserve_keeps_the_port_for_those_who_share_it(free_port: int) -> None:
    with front.reserve("127.0.0.1", free_port), socket.socket() as worker:
        worker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        worker.bind(("127.0.0.1", free_port))
        worker.listen()
        socket.create_connection(("127.0.0.1", free_port), 1).close()


def test_reserve_refuses_a_port_that_another_router_has(free_port: int) -> None:
    with (
        front.reserve("127.0.0.1", free_port),
        pytest.raises(SettingError, match="another router"),
    ):
        front.reserve("127.0.0.1", free_port)


def test_reserve_waits_for_a_router_that_is_ending(free_port: int) -> None:
    former = front.reserve("127.0.0.1", free_port)
    timeouts = iter([60.0])

    def in_use() -> float:
        former.close()
        return next(timeouts)

    front.reserve("127.0.0.1", free_port, in_use=in_use).close()
    assert not list(timeouts)


def test_reserve_waits_only_so_long(free_port: int) -> None:
    with (
        front.reserve("127.0.0.1", free_port),
        pytest.raises(SettingError, match="another router"),
    ):
        front.reserve("127.0.0.1", free_port, in_use=lambda: 0.05)


def test_reserve_finds_a_free_port_when_asked_for_any() -> None:
    with front.reserve("127.0.0.1", 0) as kept:
        assert kept.getsockname()[1] > 0


def test_reserve_refuses_a_host_that_is_none() -> None:
    with pytest.raises(SettingError, match=r"server\.host"):
        front.reserve("no such host", 1)


def test_reserve_refuses_a_port_that_is_none() -> None:
    with pytest.raises(SettingError, match="--tls-port 65536"):
        front.reserve("127.0.0.1", 65_536, "--tls-port")


def test_broker_is_told_its_settings_where_other_users_do_not_see_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []

    def execute(path: str, arguments: list[str], variables: dict[str, str]) -> None:
        told.extend([path, arguments])
        assert variables["ROUTER_KAFKA_PASSWORD"] == "hunter2"
        raise SystemExit(0)

    monkeypatch.setattr(os, "execve", execute)
    flags = {"kafka.password": "hunter2", "data.dir": str(tmp_path)}
    with pytest.raises(SystemExit):
        broker_child.run(load(None, {}, flags))
    assert str(tmp_path) in str(told)
    assert "hunter2" not in str(told)
