"""The gthread worker: who may have one of its threads, and for how long."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
from gunicorn.config import Config
from gunicorn.workers import gthread

from router.web.thread_worker import SILENCE_SECONDS, ThreadWorker


def test_the_fallback_needs_no_gevent() -> None:
    code = "import sys, router.web.thread_worker; sys.exit('gevent' in sys.modules)"
    # What measures coverage would import it.
    environ = {name: text for name, text in os.environ.items() if "COVERAGE" not in name}
    assert subprocess.run([sys.executable, "-c", code], env=environ, check=False).returncode == 0


@pytest.mark.parametrize("tls", [False, True])
def test_connection_that_says_nothing_has_no_thread(
    monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    waits: list[float] = []

    class Silent(gthread.TConn):  # type: ignore[misc] # gunicorn has no type hints
        """A connection that notes how long a thread waits for it."""

        def wait_for_data(self, timeout: float) -> bool:
            waits.append(timeout)
            return False

    worker = ThreadWorker.__new__(ThreadWorker)
    if tls:
        monkeypatch.setattr(worker, "tls", object())
    left, right = socket.socketpair()
    with left, right:
        conn = Silent(Config(), left, ("127.0.0.1", 1), ("127.0.0.1", 2))
        assert worker.handle(conn) is gthread._DEFER
    assert waits == [SILENCE_SECONDS]
