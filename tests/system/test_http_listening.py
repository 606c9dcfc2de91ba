"""gunicorn's own ways to listen, renew workers and log, with the workers that are ours."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.http.corpus import SECOND, get
from tests.ports import free_port
from tests.processes import wait_until
from tests.system.stack import children

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
# What systemd does with a socket of its own: descriptor 3, and the process that it is meant for.
INHERITING = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3);"
    "os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid()));"
    "os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"
)


@pytest.fixture(params=["llhttp", "gthread"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def gunicorn(
    kind: str, folder: Path, *options: str, inherited: socket.socket | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run gunicorn with the example configuration and these options while the block lasts."""
    command = ["-m", "gunicorn", "-c", "config/gunicorn.py", *options, "wsgi:app"]
    environ = os.environ | {
        "ROUTER_SERVER_WORKER_CLASS": kind,
        "ROUTER_BACKEND_URL": "memory",
        "ROUTER_SERVER_PORT": "0",
        "ROUTER_DATA_DIR": str(folder),
    }
    passed: tuple[int, ...] = ()
    if inherited is not None:
        passed = (inherited.fileno(),)
        command = ["-c", INHERITING, str(passed[0]), *command]
    process = subprocess.Popen([sys.executable, *command], env=environ, cwd=ROOT, pass_fds=passed)
    try:
        yield process
    finally:
        process.terminate()
        assert process.wait(60) == 0


def asked(family: socket.AddressFamily, address: object, data: bytes) -> bytes:
    """Return what is answered until the connection ends; nothing where nobody listens yet."""
    with suppress(OSError), socket.socket(family) as client:
        client.settimeout(60)
        client.connect(address)  # type: ignore[arg-type] # of any family
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        return client.makefile("rb").read()
    return b""


def test_a_unix_socket_is_served_by_all_workers_and_through_a_reload(
    kind: str, tmp_path: Path
) -> None:
    path = str(tmp_path / "front.sock")
    with gunicorn(kind, tmp_path, "-b", f"unix:{path}", "-w", "2") as process:
        wait_until(lambda: b"200 OK" in asked(socket.AF_UNIX, path, SECOND), 60)
        answers = asked(socket.AF_UNIX, path, get() * 2)
        assert answers.count(b"HTTP/1.1 200 OK") == 2
        assert b"::0.0.0.0::" in answers, "a client on a unix socket has no address"
        socket_file, old = Path(path).stat().st_ino, set(children(process.pid))
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: not old & set(children(process.pid)), 60)
        assert b"200 OK" in asked(socket.AF_UNIX, path, SECOND)
        assert Path(path).stat().st_ino == socket_file, "a worker put one of its own in its place"
    assert not Path(path).exists()


def test_a_socket_of_systemd_is_served(kind: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as ours:
        address = ours.getsockname()
        with gunicorn(kind, tmp_path, inherited=ours):
            assert b"200 OK" in asked(socket.AF_INET, address, SECOND)


def test_ipv6_is_served(kind: str, tmp_path: Path) -> None:
    port = free_port()
    with gunicorn(kind, tmp_path, "-b", f"[::1]:{port}"):
        address = ("::1", port)
        wait_until(lambda: b"200 OK" in asked(socket.AF_INET6, address, SECOND), 60)
        assert b"::0000:0000:" in asked(socket.AF_INET6, address, get())


def test_workers_are_renewed_and_requests_are_logged(kind: str, tmp_path: Path) -> None:
    path, log = str(tmp_path / "front.sock"), tmp_path / "access"
    options = ("-b", f"unix:{path}", "-w", "1", "--max-requests", "5", "--access-logfile", str(log))
    with gunicorn(kind, tmp_path, *options):
        wait_until(lambda: b"200 OK" in asked(socket.AF_UNIX, path, SECOND), 60)
        line = b"GET /events/first/g HTTP/1.1"
        served = 0
        until = time.monotonic() + 90
        while served < 12:
            # The connection ends with the last request of a worker; the next is a new one's.
            served += asked(socket.AF_UNIX, path, get(b"", line) * 3).count(b"HTTP/1.1 404")
            assert time.monotonic() < until
    lines = log.read_text().splitlines()
    assert sum('"GET /events/first/g HTTP/1.1" 404' in line for line in lines) >= 12


def test_requests_that_do_not_end_are_given_up_when_their_worker_is_renewed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "front.sock")
    options = ("-b", f"unix:{path}", "--graceful-timeout", "1")
    head = b"POST /events/t HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
    head += b"Content-Length: 9\r\n"
    with gunicorn("llhttp", tmp_path, *options) as process, ExitStack() as clients:
        wait_until(lambda: b"200 OK" in asked(socket.AF_UNIX, path, SECOND), 60)
        readers = []
        for _ in range(3):
            client = clients.enter_context(socket.socket(socket.AF_UNIX))
            client.settimeout(60)
            client.connect(path)
            client.sendall(head + b"\r\n")
            readers.append(clients.enter_context(client.makefile("rb")))
            # The worker waits for the body.
            assert readers[-1].readline() == b"HTTP/1.1 100 Continue\r\n"
            assert readers[-1].readline() == b"\r\n"
            client.sendall(b"half")
        old = set(children(process.pid))
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: not old & set(children(process.pid)), 60)
        assert [reader.read() for reader in readers] == [b""] * 3
    logged = capfd.readouterr().err
    assert "3 requests did not end in time" in logged
    assert "Traceback" not in logged


def refused(path: str) -> dict[str, float]:
    """Return how many refusals of each status are in the metrics."""
    asking = get(b"Connection: close\r\n", b"GET /metrics HTTP/1.1")
    shown = re.findall(
        rb'router_http_refused_total{status="(\d+)"} (\S+)', asked(socket.AF_UNIX, path, asking)
    )
    return {status.decode(): float(number) for status, number in shown}


def test_refusals_are_counted_and_logged(kind: str, tmp_path: Path) -> None:
    path, log = str(tmp_path / "front.sock"), tmp_path / "access"
    with gunicorn(kind, tmp_path, "-b", f"unix:{path}", "--access-logfile", str(log)):
        wait_until(lambda: b"200 OK" in asked(socket.AF_UNIX, path, SECOND), 60)
        for line in (b"GET /nameless HTTP/1.1", b"GET /\x1b[2J HTTP/1.1"):
            assert b" 400 " in asked(socket.AF_UNIX, path, line + b"\r\n\r\n")
        large = get(b"X: " + b"y" * 9_000 + b"\r\n", b"GET /large HTTP/1.1")
        assert b" 431 " in asked(socket.AF_UNIX, path, large)
        assert refused(path) == {"400": 2, "431": 1}
    lines = log.read_text()
    assert '"GET /nameless HTTP/1.1" 400 ' in lines
    assert "\x1b" not in lines
    if kind == "llhttp":  # gunicorn's parser keeps nothing of a head that it does not read
        assert '"- - -" 400 -\n' in lines
        assert '"GET /large HTTP/1.1" 431 -\n' in lines
