"""Writing with an end: a client that takes nothing, or next to nothing, is given up."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from router.web.worker import stream


def test_write_sends_all_to_a_reader_that_comes_late() -> None:
    ours, theirs = socket.socketpair()
    data = bytes(range(256)) * 8_192
    found = bytearray()

    def read() -> None:
        while part := theirs.recv(10_000):
            found.extend(part)

    with ours, theirs:
        ours.settimeout(20)
        reader = threading.Thread(target=read)
        reader.start()
        stream.write(ours, data)
        ours.shutdown(socket.SHUT_WR)
        reader.join(20)
    assert found == data


def test_write_gives_up_a_client_that_takes_nothing() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(0.05)
        with pytest.raises(TimeoutError):
            stream.write(ours, bytes(8 << 20))


class Dawdler:
    """A socket that takes one byte at a time."""

    def send(self, data: bytes) -> int:
        time.sleep(0.001)
        return min(1, len(data))

    def gettimeout(self) -> float:
        return 0.01


def test_write_gives_up_a_client_that_takes_next_to_nothing() -> None:
    with pytest.raises(TimeoutError):
        stream.write(Dawdler(), bytes(2_000))


def test_linger_lets_the_client_send_on_and_read_its_answer() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(20)
        ours.sendall(b"no")
        parting = threading.Thread(target=stream.linger, args=(ours,))
        parting.start()
        theirs.sendall(bytes(1 << 20))
        assert theirs.recv(10) == b"no"
        assert theirs.recv(10) == b""
        theirs.shutdown(socket.SHUT_WR)
        parting.join(20)
        assert not parting.is_alive()


def test_linger_ends_when_the_client_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "LINGER_SECONDS", 0.1)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stream.linger(ours)
        assert ours.recv(1) == b""


def test_take_gives_what_came_ahead_first_and_no_more_than_asked() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"abcdef")
        taken = stream.BufferedSocket(ours)
        assert taken.more()
        assert (taken.take(4), taken.take(9)) == (b"abcd", b"ef")
        theirs.sendall(b"gh")
        assert taken.take(1) == b"g"
