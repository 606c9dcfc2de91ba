"""The node's socket: private, found under paths of any length, replaced when stale."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from router.process import node_socket


@pytest.fixture(params=["short", "long"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path if request.param == "short" else tmp_path / ("d" * 120) / ("e" * 120)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def test_client_and_broker_meet_when_the_path_is_short_or_long(folder: Path) -> None:
    with node_socket.listen(folder) as listener, node_socket.connect(folder, 1) as client:
        server, _ = listener.accept()
        with server:
            client.sendall(b"hello")
            assert server.recv(5) == b"hello"


def test_socket_is_private_when_it_listens(folder: Path) -> None:
    with node_socket.listen(folder):
        assert stat.S_IMODE((folder / "broker.sock").stat().st_mode) == 0o600


def test_stale_socket_is_replaced_when_a_broker_starts(folder: Path) -> None:
    node_socket.listen(folder).close()
    with pytest.raises(ConnectionRefusedError):
        node_socket.connect(folder, 1)
    with node_socket.listen(folder), node_socket.connect(folder, 1) as client:
        assert client.getpeername()


def test_connect_fails_when_there_is_no_broker(folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        node_socket.connect(folder, 1)


def test_no_descriptor_stays_open_when_the_socket_was_used(folder: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with node_socket.listen(folder), node_socket.connect(folder, 1):
        pass
    assert len(list(Path("/proc/self/fd").iterdir())) == before
