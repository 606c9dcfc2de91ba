"""The servers that other tests rely on: they serve, keep their data, and die with the tests."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition
from kazoo.client import KazooClient

from tests.processes import wait_until
from tests.servers import maven
from tests.servers.kafka import PASSWORD, USER, Kafka
from tests.servers.proxy import TcpProxy
from tests.servers.zookeeper import Zookeeper

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]


@pytest.fixture
def echo() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        yield listener


@pytest.fixture
def proxy(echo: socket.socket) -> Iterator[TcpProxy]:
    with TcpProxy(f"127.0.0.1:{echo.getsockname()[1]}") as made:
        yield made


def joined(proxy: TcpProxy, echo: socket.socket) -> tuple[socket.socket, socket.socket]:
    client = socket.create_connection(("127.0.0.1", proxy.port), 10)
    server = echo.accept()[0]
    server.settimeout(10)
    return client, server


def test_zookeeper_keeps_its_data_and_sessions_when_killed(
    new_zookeeper: Callable[[], Zookeeper],
) -> None:
    server = new_zookeeper()
    server.start()
    client = KazooClient(server.address, timeout=20)
    client.start(10)
    client.create("/kept", b"value", ephemeral=True)
    server.kill()
    server.start()
    assert client.retry(client.get, "/kept")[0] == b"value"
    client.stop()
    client.close()


def test_kafka_keeps_what_it_acknowledged_when_killed(new_kafka: Callable[[], Kafka]) -> None:
    server = new_kafka()
    proxy = server.proxied()
    server.start()
    assert publish(proxy.address) == 0
    server.kill()
    server.start()
    consumer = KafkaConsumer(bootstrap_servers=server.address, consumer_timeout_ms=10_000)
    consumer.assign([TopicPartition("kept", 0)])
    consumer.seek_to_beginning()
    assert next(consumer).value == b"value"
    consumer.close()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_kafka_admits_who_has_the_password(kafka: Kafka, mechanism: str) -> None:
    login = {"sasl_plain_username": USER, "sasl_plain_password": PASSWORD}
    login |= {"security_protocol": "SASL_SSL", "ssl_cafile": str(kafka.authority.ca)}
    assert publish(kafka.sasl_tls, sasl_mechanism=mechanism, **login) >= 0


def test_kafka_admits_who_has_a_certificate(kafka: Kafka) -> None:
    own = kafka.authority.issue("client")
    files = {"ssl_certfile": str(own.cert), "ssl_keyfile": str(own.key)}
    files |= {"security_protocol": "SSL", "ssl_cafile": str(kafka.authority.ca)}
    assert publish(kafka.tls, **files) >= 0


def publish(address: str, **options: str) -> int:
    """Publish one message and return its offset."""
    producer = KafkaProducer(bootstrap_servers=address, **options)
    try:
        return int(producer.send("kept", b"value").get(20).offset)
    finally:
        producer.close()


def test_a_server_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = (
        "import os, pathlib, signal; from tests.servers.zookeeper import Zookeeper\n"
        f"server = Zookeeper(pathlib.Path({str(tmp_path)!r})); server.launch()\n"
        "print(server.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    status = Path(f"/proc/{int(ended.stdout)}/stat")
    wait_until(lambda: not status.exists() or " Z " in status.read_text())


def test_a_proxy_forwards_both_ways_until_both_ends_close(
    proxy: TcpProxy, echo: socket.socket
) -> None:
    client, server = joined(proxy, echo)
    with client, server:
        big = b"x" * 3_000_000
        client.sendall(b"ask")
        assert server.recv(3) == b"ask"
        client.shutdown(socket.SHUT_WR)
        assert server.recv(1) == b""
        sender = threading.Thread(target=send_and_close, args=(server, big))
        sender.start()
        with client.makefile("rb") as answer:
            assert answer.read() == big
        sender.join(10)


def send_and_close(server: socket.socket, data: bytes) -> None:
    server.sendall(data)
    server.close()


def test_a_cut_proxy_resets_and_refuses_until_it_heals(
    proxy: TcpProxy, echo: socket.socket
) -> None:
    client, server = joined(proxy, echo)
    with client, server:
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
        with pytest.raises(ConnectionResetError):
            server.recv(1)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", proxy.port), 10)
    proxy.heal()
    client, server = joined(proxy, echo)
    with client, server:
        client.sendall(b"ask")
        assert server.recv(3) == b"ask"


def test_a_stalled_proxy_forwards_later_what_it_was_given(
    proxy: TcpProxy, echo: socket.socket
) -> None:
    client, server = joined(proxy, echo)
    with client, server:
        proxy.stall()
        client.sendall(b"ask")
        server.settimeout(0.2)
        with pytest.raises(TimeoutError):
            server.recv(1)
        proxy.heal()
        server.settimeout(10)
        assert server.recv(3) == b"ask"


@pytest.mark.parametrize(
    ("server", "packages"),
    [("maven", ["default-jdk-headless", "kcat", "maven"]), ("chromium", ["chromium"])],
)
def test_a_missing_program_is_said_in_one_sentence(
    tmp_path: Path, server: str, packages: list[str]
) -> None:
    environ = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    command = [sys.executable, "-m", f"tests.servers.{server}"]
    started = time.monotonic()
    done = subprocess.run(command, env=environ, capture_output=True, check=False)
    assert done.returncode == 1
    assert done.stderr.decode().count("\n") == 1
    _, _, named = done.stderr.decode().partition("apt-get install ")
    assert set(packages) <= set(named.split())
    assert time.monotonic() - started < 30


def test_no_half_fetched_jars_are_left_when_maven_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    maven_that_fails = tmp_path / "bin" / "mvn"
    maven_that_fails.write_text(
        '#!/bin/sh\nfor a in "$@"; do case $a in -DoutputDirectory=*) '
        'mkdir -p "${a#*=}"; echo half > "${a#*=}/a.jar";; esac; done\necho no network; exit 1\n'
    )
    maven_that_fails.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}", prepend=":")
    with pytest.raises(maven.MissingServerError, match="no network"):
        maven.classpath("zookeeper")
    assert [path.suffix for path in maven.cache().iterdir()] == [".lock"]
