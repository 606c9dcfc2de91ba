"""The broker process from outside: who may start it, where it listens, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from router.access.addresses import BLACKLIST_RECORDS
from router.broker.node.counters import NodeCounters
from router.broker.node.registry import FileRegistry
from router.broker.process import Service
from router.broker.running import own_samples
from router.broker.transport.blacklist import BrokerBlacklist
from router.process import node_socket, supervised
from router.process.resources import Resources
from router.process.systemd import Notifier
from tests.broker.raw import RawClient
from tests.processes import broker_starter, wait_until

DEADLINE = 20.0

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def start(data: Path) -> Iterator[Start]:
    with broker_starter(data) as start:
        yield start


def client(data: Path) -> socket.socket:
    """Return a connection to the broker, waiting for it to start."""
    until = time.monotonic() + DEADLINE
    while True:
        try:
            return node_socket.connect(data, 1)
        except OSError:
            assert time.monotonic() < until, "no broker"
            time.sleep(0.01)


def opened_files(folder: str) -> set[str]:
    """Return what the descriptors in a folder of /proc stand for."""
    found = set()
    for entry in Path(folder).iterdir():
        with contextlib.suppress(OSError):
            found.add(str(entry.readlink()))
    return found


def ended(broker: subprocess.Popen[str]) -> tuple[int, str]:
    """Return exit status and standard error of a broker that ends."""
    _, errors = broker.communicate(timeout=DEADLINE)
    return broker.returncode, errors


def test_broker_listens_privately_and_leaves_nothing_when_told_to_end(
    data: Path, start: Start
) -> None:
    broker = start("--stay", "--pulsar", "127.0.0.1:0")
    client(data).close()
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    assert stat.S_IMODE((data / "broker.sock").stat().st_mode) == 0o600
    assert broker.stdout is not None
    line = broker.stdout.readline()
    assert str(data / "broker.sock") in line
    host, port = line.strip().rpartition("pulsar://")[2].split(":")
    socket.create_connection((host, int(port)), 5).close()
    broker.send_signal(signal.SIGTERM)
    assert ended(broker)[0] == os.EX_OK
    assert not (data / "broker.sock").exists()
    assert '"event": "broker-ends"' in (data / "broker.log").read_text()


@pytest.mark.slow
def test_spawned_broker_leaves_when_its_last_client_left(data: Path, start: Start) -> None:
    broker = start(ROUTER_BROKER_LINGER="4s")
    with client(data):
        time.sleep(4.5)
        assert broker.poll() is None
    assert ended(broker)[0] == os.EX_OK


@pytest.mark.slow
def test_one_wins_and_the_others_leave_quietly_when_many_are_spawned(
    data: Path, start: Start
) -> None:
    brokers = [start() for _ in range(3)]
    with client(data):
        until = time.monotonic() + DEADLINE
        while sum(broker.poll() is None for broker in brokers) > 1:
            assert time.monotonic() < until
            time.sleep(0.02)
        losers = [broker for broker in brokers if broker.poll() is not None]
        assert [ended(broker) for broker in losers] == [(os.EX_OK, "")] * 2


@pytest.mark.slow
def test_broker_that_is_to_stay_waits_for_the_one_that_serves(data: Path, start: Start) -> None:
    first = start("--stay")
    with client(data):
        second = start("--stay", "--pulsar", "127.0.0.1:0")
        wait_until(lambda: str(data / "broker.lock") in opened_files(f"/proc/{second.pid}/fd"))
        assert (data / "broker.lock").read_text() == f"{first.pid}\n"
    first.terminate()
    assert second.stdout is not None
    assert "listens on" in second.stdout.readline()
    assert (data / "broker.lock").read_text() == f"{second.pid}\n"


@pytest.mark.slow
def test_spawned_broker_leaves_when_a_supervisor_takes_the_folder(data: Path, start: Start) -> None:
    broker = start(ROUTER_BROKER_LINGER="1h")
    with client(data), contextlib.closing(supervised.take(data)):
        assert ended(broker)[0] == os.EX_OK
    assert '"reason": "handed_over"' in (data / "broker.log").read_text()


def test_spawned_broker_leaves_a_supervised_folder_alone(data: Path, start: Start) -> None:
    with contextlib.closing(supervised.take(data)):
        assert ended(start()) == (os.EX_OK, "")
    assert not (data / "broker.lock").exists()


def test_broker_tells_systemd_how_it_fares_and_reloads_when_told(
    data: Path, start: Start, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(DEADLINE)
        told = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "40000000"}
        broker = start("--stay", **told)
        assert [systemd.recv(100) for _ in range(2)] == [b"READY=1", b"WATCHDOG=1"]
        client(data).close()
        broker.send_signal(signal.SIGHUP)
        assert systemd.recv(100).startswith(b"RELOADING=1\n")
        assert systemd.recv(100) == b"READY=1"
        client(data).close()
        broker.send_signal(signal.SIGTERM)
        assert systemd.recv(100) == b"STOPPING=1"
        assert ended(broker)[0] == os.EX_OK
    assert '"event": "reloaded"' in (data / "broker.log").read_text()


async def test_broker_reads_the_blacklist_again_when_told_to_reload(tmp_path: Path) -> None:
    registry = await FileRegistry.open(tmp_path)
    blacklist, changed = BrokerBlacklist(registry), asyncio.Event()
    blacklist.watch(changed.set)
    service = Service(Notifier(), blacklist)
    await registry.put(BLACKLIST_RECORDS, "192.0.2.1", b"{}", None)
    os.kill(os.getpid(), signal.SIGHUP)
    await asyncio.wait_for(changed.wait(), DEADLINE)
    assert blacklist.holds("192.0.2.1")
    service.end()
    await registry.close()


def test_broker_that_may_open_no_more_files_still_tells_of_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none_left() -> Resources:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(Resources, "now", none_left)
    counters = NodeCounters(time.monotonic)
    counters.observe(partial(own_samples, "embedded"))
    asyncio.run(counters.refresh())
    assert "\nrouter_build_info{" in counters.render()


def test_broker_that_is_to_stay_serves_a_supervised_folder(data: Path, start: Start) -> None:
    with contextlib.closing(supervised.take(data)):
        start("--stay")
        client(data).close()


@pytest.mark.slow
def test_next_broker_serves_when_the_last_was_killed(data: Path, start: Start) -> None:
    first = start("--stay")
    client(data).close()
    first.kill()
    first.wait(DEADLINE)
    start("--stay")
    client(data).close()


def test_marked_folder_is_not_served(data: Path, start: Start) -> None:
    data.mkdir()
    (data / "READ-ONLY").write_text("fdatasync: Input/output error")
    status, errors = ended(start())
    assert status == os.EX_DATAERR
    assert "fdatasync: Input/output error" in errors
    assert "router check --repair" in errors


@pytest.mark.slow
def test_broker_ends_with_a_sentence_when_the_disk_refuses(
    data: Path, start: Start, free_port: int
) -> None:
    # A file-size limit is the disk's refusal that every user can bring about.
    broker = start("--stay", "--pulsar", f"127.0.0.1:{free_port}")
    client(data).close()
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    raw = RawClient(f"pulsar://127.0.0.1:{free_port}")
    raw.shake_hands()
    raw.producer("t")
    # The broker may end, and close the connection, before all of it was sent; to close it first,
    # with receipts unread, would throw away what the broker did not read yet.
    with contextlib.closing(raw), contextlib.suppress(ConnectionError):
        for number in range(40):
            raw.send_entry(b"x" * 100_000, sequence_id=number)
        while raw.read() is not None:
            pass
    status, errors = ended(broker)
    assert status == os.EX_IOERR, errors
    assert "storing failed" in errors
    assert "File too large" in errors
    assert not (data / "READ-ONLY").exists()
    start("--stay")
    client(data).close()


@pytest.mark.slow
def test_acknowledged_messages_are_served_when_the_broker_was_killed(
    data: Path, start: Start, free_port: int
) -> None:
    listen = ("--stay", "--pulsar", f"127.0.0.1:{free_port}")
    first = start(*listen)
    client(data).close()
    with contextlib.closing(RawClient(f"pulsar://127.0.0.1:{free_port}")) as raw:
        raw.shake_hands()
        raw.producer("t")
        for number in range(3):
            raw.publish(b"%d" % number, sequence_id=number)
    first.kill()
    first.wait(DEADLINE)
    start(*listen)
    client(data).close()
    with contextlib.closing(RawClient(f"pulsar://127.0.0.1:{free_port}")) as raw:
        raw.shake_hands()
        raw.subscribe("t")
        raw.send("FLOW", consumer_id=0, messagePermits=10)
        assert [raw.expect("MESSAGE").message_id.entryId for _ in range(3)] == [0, 1, 2]


def test_damaged_metadata_is_refused_with_a_sentence(data: Path, start: Start) -> None:
    data.mkdir()
    (data / "metadata.db").write_bytes(b"nonsense" * 1000)
    status, errors = ended(start("--stay"))
    assert status == os.EX_DATAERR
    assert "not a database" in errors
    assert "Traceback" not in errors


def test_taken_port_is_refused_with_a_sentence(data: Path, start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        status, errors = ended(start("--stay", "--pulsar", f"127.0.0.1:{port}"))
    assert status == os.EX_UNAVAILABLE
    assert f"cannot listen on 127.0.0.1:{port}" in errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"ROUTER_BROKER_PULSAR": "0.0.0.0:0"}, "loopback"),
        ({"ROUTER_NONSENSE": "1"}, "ROUTER_NONSENSE"),
    ],
)
def test_bad_settings_are_refused_with_a_sentence(
    data: Path, start: Start, settings: dict[str, str], sentence: str
) -> None:
    status, errors = ended(start(**settings))
    assert status == os.EX_CONFIG
    assert sentence in errors
    assert "Traceback" not in errors
    assert not data.exists()
