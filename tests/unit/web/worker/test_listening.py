"""Connections without a request under way: a client that is silent for too long is closed."""

from __future__ import annotations

import socket

from router.web.worker.llhttp import Worker


def test_connections_are_ended_when_they_were_idle_for_too_long() -> None:
    worker = Worker.__new__(Worker)
    old, fresh = socket.socketpair(), socket.socketpair()
    worker.idle = {old[0]: 10.0, fresh[0]: 20.0}
    worker._end_silent(15.0)
    assert list(worker.idle) == [fresh[0]]
    # Its reader finds the end, and can still answer what came before.
    old[0].settimeout(10)
    assert old[0].recv(1) == b""
    old[0].send(b"x")
    assert old[1].recv(1) == b"x"
    fresh[1].send(b"y")
    assert fresh[0].recv(1) == b"y"
    for client in (*old, *fresh):
        client.close()
