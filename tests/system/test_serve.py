"""`router serve` as its users have it: starts, refuses, survives, stops."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import router as package
from router.broker.folder import LOCK, MARK
from router.process.build import build_id
from tests.ports import free_port
from tests.processes import run_serve, wait_until
from tests.system.stack import Stack, children, command_line
from tests.system.traffic import ask, waiting

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]
PATIENCE = 60.0
"""For what takes a second on a machine that has nothing else to do."""


@contextlib.contextmanager
def started(folder: Path, *flags: str, **settings: str) -> Iterator[Stack]:
    stack = Stack(folder, *flags, **settings)
    stack.start()
    try:
        yield stack
    finally:
        stack.stop()


def publish(stack: Stack, body: bytes) -> int:
    client = http.client.HTTPConnection("127.0.0.1", stack.port, timeout=30)
    with contextlib.closing(client):
        client.request("POST", "/events/t", body, {"Content-Type": "text/plain"})
        return client.getresponse().status


def poll(stack: Stack, query: str) -> tuple[int, list[str]]:
    client = http.client.HTTPConnection("127.0.0.1", stack.port, timeout=30)
    with contextlib.closing(client):
        client.request("GET", f"/events/t/g/c?{query}")
        answer = client.getresponse()
        return answer.status, json.loads(answer.read())


def published(stack: Stack, body: bytes) -> bool:
    """Publish, and take a connection that broke off as a no."""
    try:
        return publish(stack, body) == 200
    except (OSError, http.client.HTTPException):
        return False


def test_serve_says_where_it_listens_and_what_to_try(tmp_path: Path) -> None:
    with started(tmp_path, "--backend", "memory") as stack:
        log = tmp_path / "serve.log"
        wait_until(lambda: "Try it" in log.read_text())
        assert f"listens on http://127.0.0.1:{stack.port}\n" in log.read_text()
        curl = next(line for line in log.read_text().splitlines() if "curl" in line)
        answer = subprocess.run(["bash", "-c", curl], capture_output=True, check=True).stdout
        assert json.loads(answer)["count"] == 1


def test_serve_takes_any_free_port_when_told_port_0(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "router", "serve", "--backend", "memory", "--port", "0"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process, process.stdout:
        port = int(process.stdout.readline().rpartition(":")[2])
        socket.create_connection(("127.0.0.1", port), 5).close()
        process.terminate()


def test_workers_know_where_their_settings_came_from(tmp_path: Path) -> None:
    file = tmp_path / "router.cfg"
    file.write_text("[log]\nlevel = warning\n[auth]\nadmin_secret = hunter2\n")
    with started(tmp_path, "--config", str(file), "--backend", "memory", stream_buffer="2M") as own:
        answer = ask(own, "GET", "/console/settings?format=json")
    found = {row["name"]: (row["value"], row["origin"]) for row in answer.json["settings"]}
    assert found["log.level"] == ("warning", str(file))
    assert found["auth.admin_secret"] == ("***", str(file))
    assert found["stream.buffer"] == ("2M", "variable ROUTER_STREAM_BUFFER")
    assert found["server.port"] == (str(own.port), "command line")
    assert found["broker.spawn"] == ("false", "router serve")
    assert found["retention.time"] == ("7d", "default")


def test_serve_refuses_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        result = run_serve(tmp_path, "--backend", "memory", "--port", port)
    assert result.returncode == 78
    assert f"cannot listen on 127.0.0.1:{port}" in result.stderr


def test_serve_refuses_an_outside_address_when_there_are_no_users(tmp_path: Path) -> None:
    result = run_serve(tmp_path, "--host", "0.0.0.0")
    assert result.returncode == 78
    assert "--insecure" in result.stderr
    assert not (tmp_path / "data").exists()


def test_serve_refuses_an_unknown_setting(tmp_path: Path) -> None:
    result = run_serve(tmp_path, server_prot="1")
    assert result.returncode == 78
    assert "did you mean ROUTER_SERVER_PORT" in result.stderr


def test_serve_refuses_settings_that_only_the_application_understands(tmp_path: Path) -> None:
    result = run_serve(tmp_path, "--backend", "carrier-pigeon", "--port", str(free_port()))
    assert result.returncode == 78
    assert "carrier-pigeon" in result.stderr
    assert "Traceback" not in result.stderr


def test_serve_refuses_a_folder_that_is_marked_read_only(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / MARK).write_text("the disk failed\n")
    result = run_serve(tmp_path, "--port", str(free_port()))
    assert result.returncode == 65
    assert "the disk failed" in result.stderr
    assert "router check" in result.stderr


def test_serve_refuses_a_folder_that_another_router_serves(router: Stack) -> None:
    began = time.monotonic()
    result = run_serve(
        router.folder, "--data", "data", "--port", str(free_port()), broker_linger="0s"
    )
    assert result.returncode == 75
    assert "another" in result.stderr
    assert "listens on http" not in result.stdout
    assert time.monotonic() - began < 30
    assert publish(router, b"still there") == 200


@pytest.mark.parametrize("kind", ["llhttp", "gthread"])
def test_serve_answers_waiting_polls_when_told_to_stop(tmp_path: Path, kind: str) -> None:
    answers: list[tuple[int, list[str]]] = []
    settings = {"server_worker_class": kind, "server_graceful_timeout": "50s"}
    with started(tmp_path, "--workers", "1", **settings) as stack:
        assert publish(stack, b"first") == 200
        assert poll(stack, "from=earliest") == (200, ["first"])
        poller = threading.Thread(target=lambda: answers.append(poll(stack, "timeout=60000")))
        poller.start()
        wait_until(lambda: waiting(stack) == 1, PATIENCE)
        began = time.monotonic()
        assert stack.stop() == 0
        poller.join(10)
        assert answers == [(200, [])]
        assert time.monotonic() - began < 40, "it waited for the polls instead of answering them"


@pytest.mark.parametrize("kind", ["llhttp", "gthread"])
def test_serve_answers_in_json_what_is_no_request(tmp_path: Path, kind: str) -> None:
    with (
        started(tmp_path, "--backend", "memory", server_worker_class=kind) as stack,
        socket.create_connection(("127.0.0.1", stack.port), 5) as client,
    ):
        client.sendall(b"GARBAGE\r\n\r\n")
        head, _, body = client.makefile("rb").read().partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert json.loads(body)["httpStatusCode"] == 400


def test_serve_does_not_wait_for_idle_connections_when_told_to_stop(tmp_path: Path) -> None:
    settings = {"server_graceful_timeout": "50s"}
    with started(tmp_path, "--backend", "memory", **settings) as stack:
        client = http.client.HTTPConnection("127.0.0.1", stack.port, timeout=30)
        with contextlib.closing(client):
            client.request("GET", "/health")
            client.getresponse().read()
            began = time.monotonic()
            assert stack.stop() == 0
            assert time.monotonic() - began < 40


def test_serve_gives_up_requests_that_do_not_end_when_told_to_stop(tmp_path: Path) -> None:
    settings = {"server_graceful_timeout": "1s"}
    with (
        started(tmp_path, "--backend", "memory", **settings) as stack,
        socket.create_connection(("127.0.0.1", stack.port), 5) as client,
    ):
        head = b"POST /events/t HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
        client.sendall(head + b"Content-Length: 9\r\n\r\n")
        assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"half")
        began = time.monotonic()
        assert stack.stop() == 0
        assert 0.9 < time.monotonic() - began < 30, "it waited for the rest of the body"


def test_serve_stops_everything_when_it_is_interrupted(router: Stack) -> None:
    assert router.process is not None
    pids = [*children(router.process.pid), *router.workers()]
    router.process.send_signal(signal.SIGINT)
    assert router.process.wait(20) == 0
    wait_until(lambda: not any(command_line(pid) for pid in pids))


def test_serve_keeps_what_was_acknowledged_when_the_broker_is_killed(router: Stack) -> None:
    assert publish(router, b"before") == 200
    broker = router.broker()
    os.kill(broker, signal.SIGKILL)
    assert publish(router, b"after") == 200
    assert poll(router, "from=earliest&timeout=5000") == (200, ["before", "after"])
    assert router.broker() != broker


@pytest.mark.parametrize("kind", ["llhttp", "gthread"])
def test_serve_reloads_on_a_hangup_and_serves_on(tmp_path: Path, kind: str) -> None:
    answers: list[tuple[int, list[str]]] = []
    with started(tmp_path, "--workers", "2", server_worker_class=kind) as stack:
        assert publish(stack, b"first") == 200
        assert poll(stack, "from=earliest") == (200, ["first"])
        before = [stack.broker(), *stack.workers()]
        poller = threading.Thread(target=lambda: answers.append(poll(stack, "timeout=60000")))
        poller.start()
        wait_until(lambda: waiting(stack) == 1, PATIENCE)
        assert stack.process is not None
        stack.process.send_signal(signal.SIGHUP)
        log = tmp_path / "serve.log"
        wait_until(lambda: log.read_text().count('"event": "reloaded"') == 3, PATIENCE)
        assert publish(stack, b"second") == 200
        poller.join(PATIENCE)
        assert answers == [(200, ["second"])]
        assert [stack.broker(), *stack.workers()] == before


def test_serve_tells_systemd_when_it_is_up_and_when_it_stops(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(PATIENCE)
        environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000000"}
        process = subprocess.Popen(
            [sys.executable, "-m", "router", "serve", "--port", "0", "--workers", "1"],
            cwd=tmp_path,
            env=os.environ | environ,
            stdout=subprocess.DEVNULL,
        )
        with process:
            assert systemd.recv(100) == b"READY=1"
            assert (tmp_path / "data" / "broker.sock").exists()
            assert systemd.recv(100) == b"WATCHDOG=1"
            process.terminate()
            assert systemd.recv(100) == b"STOPPING=1"
            assert process.wait(PATIENCE) == 0
            systemd.setblocking(False)
            with pytest.raises(BlockingIOError):
                systemd.recv(100)


def test_serve_starts_the_server_again_when_it_is_killed(router: Stack) -> None:
    assert router.process is not None
    broker = router.broker()
    master = next(pid for pid in children(router.process.pid) if pid != broker)
    os.kill(master, signal.SIGKILL)
    wait_until(lambda: not command_line(master))
    wait_until(lambda: published(router, b"again"))
    assert router.broker() == broker


def test_serve_finds_the_folder_free_when_its_supervisor_was_killed(router: Stack) -> None:
    assert router.process is not None
    assert publish(router, b"before") == 200
    left = children(router.process.pid)
    router.process.kill()
    router.process.wait()
    wait_until(lambda: not any(command_line(pid) for pid in left), PATIENCE)
    router.start()
    assert poll(router, "from=earliest&timeout=5000") == (200, ["before"])


def listening(port: int) -> socket.socket:
    """Return a socket that listens on a port, as soon as processes that were killed have ended."""
    taken: list[socket.socket] = []

    def take() -> bool:
        with contextlib.suppress(OSError):
            taken.append(socket.create_server(("127.0.0.1", port)))
        return bool(taken)

    wait_until(take, PATIENCE)
    return taken[0]


def test_serve_waits_for_the_port_of_a_router_that_was_killed(tmp_path: Path) -> None:
    """The test has the port in place of processes that end: how long these take is theirs."""
    with started(tmp_path, server_graceful_timeout="5m") as stack:
        stack.kill()
        port, log = listening(stack.port), tmp_path / "serve.log"

        def leave() -> None:
            with port:
                wait_until(lambda: b"the former router" in log.read_bytes(), PATIENCE)

        leaving = threading.Thread(target=leave)
        leaving.start()
        stack.start()
        leaving.join()
        assert publish(stack, b"again") == 200


def test_serve_gets_the_folder_from_the_broker_of_a_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "router", "topics", "create", "t", "--data", "data"]
    environ = os.environ | {"ROUTER_BROKER_LINGER": "1h"}
    subprocess.run(command, cwd=tmp_path, env=environ, check=True, capture_output=True)
    lingering = (tmp_path / "data" / LOCK).read_text()
    with started(tmp_path) as stack:
        assert (tmp_path / "data" / LOCK).read_text() != lingering
        assert publish(stack, b"hello") == 200


def test_serve_keeps_its_broker_when_a_command_of_another_build_comes(
    router: Stack, tmp_path: Path
) -> None:
    broker = router.broker()
    other = tmp_path / "other"
    shutil.copytree(Path(package.__file__).parent, other / "router")
    with (other / "router" / "__init__.py").open("a") as text:
        text.write("# another build\n")
    program = "from router.process.build import build_id; print(build_id())"
    said = [
        subprocess.run(
            [sys.executable, "-P", *arguments],
            cwd=router.folder,
            env=os.environ | {"PYTHONPATH": str(other)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for arguments in (
            ["-c", program],
            ["-m", "router", "topics", "create", "u", "--data", "data"],
        )
    ]
    assert said[0].strip() != build_id()
    assert "u" in said[1]
    assert router.broker() == broker


def test_gunicorn_serves_the_application_with_the_example_configuration(
    tmp_path: Path, free_port: int
) -> None:
    root = Path(__file__).parent.parent.parent
    process = subprocess.Popen(
        [sys.executable, "-m", "gunicorn", "-c", str(root / "config" / "gunicorn.py"), "wsgi:app"],
        cwd=root,
        env=os.environ
        | {
            "ROUTER_BACKEND_URL": "memory",
            "ROUTER_SERVER_PORT": str(free_port),
            "ROUTER_DATA_DIR": str(tmp_path),
        },
    )
    stack = Stack(tmp_path)
    stack.process, stack.port = process, free_port
    stack.wait_ready()
    assert publish(stack, b"hello") == 200
    assert stack.stop() == 0


@pytest.mark.slow
def test_wheel_serves_from_any_folder(tmp_path: Path) -> None:
    root = Path(__file__).parent.parent.parent
    wheels, site, home = tmp_path / "wheels", tmp_path / "site", tmp_path / "home"
    home.mkdir()
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns(".*", "build", "*.egg-info", "data", "_build", "__pycache__")
    shutil.copytree(root, source, ignore=ignored)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    options = ["--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "wheel", *options, "--wheel-dir", wheels, source], check=True)
    wheel = next(wheels.glob("*.whl"))
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "-t", site, wheel], check=True)
    (home / "router").mkdir()  # a folder that happens to have our name
    assert (site / "bin" / "router").exists()
    process = subprocess.Popen(
        [sys.executable, site / "bin" / "router", "serve", "--port", "0"],
        cwd=home,
        env=os.environ | {"PYTHONPATH": str(site)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process, process.stdout:
        lines = iter(process.stdout.readline, "")
        port = int(next(line for line in lines if "listens on http" in line).rpartition(":")[2])
        stack = Stack(tmp_path)
        stack.port = port
        assert publish(stack, b"hello") == 200
        process.terminate()
        assert process.wait(PATIENCE) == 0
    listed = subprocess.run(
        [sys.executable, site / "bin" / "router", "topics", "list"],
        cwd=home,
        env=os.environ | {"PYTHONPATH": str(site), "ROUTER_BROKER_LINGER": "0s"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert listed.stdout.split() == ["t", "0"]
