"""A real Apache Kafka (KRaft) on loopback: one node, behind proxies or secured, or three brokers.

Its folder is a copy of one that Kafka's own tool formatted: once for each version, since that is
one more start of a JVM. With a meta.properties written by hand it comes up as well, but with
features of the first KRaft releases (transactions of version 0, for one), which is not what
operators run. The quorum is a static one: the voters of a dynamic one, addresses included, would
be part of the formatted folder. What `secure` and `proxied` add are further listeners of the same
server, since a listener names one address to its clients.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from kafka import KafkaConsumer, TopicPartition

from tests.ports import free_port
from tests.servers import maven
from tests.servers.certificates import Authority
from tests.servers.java import JavaServer
from tests.servers.proxy import TcpProxy

USER = "router"
PASSWORD = "router-secret"
CLUSTER = "cm91dGVyLXRlc3RzLTAwMQ"
FORMAT_SECONDS = 60.0
SHOWN_SECONDS = 10.0
QUICK = {
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.num.partitions": 4,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
    "group.consumer.min.heartbeat.interval.ms": 300,
    "group.consumer.heartbeat.interval.ms": 300,
    "log.retention.check.interval.ms": 1000,
    "controller.quorum.election.timeout.ms": 200,
    "controller.quorum.election.backoff.max.ms": 200,
    "broker.heartbeat.interval.ms": 300,
    "broker.session.timeout.ms": 3000,
    "num.network.threads": 2,
    "num.io.threads": 4,
    "log.cleaner.dedupe.buffer.size": 2_097_152,
}


class Kafka(JavaServer):
    """Kafka on one folder; `address` is the plain listener, which needs no password.

    With `secure`, three listeners more, for USER with PASSWORD (PLAIN and SCRAM-SHA-256) or with a
    certificate of `authority`: `sasl`, `sasl_tls` and `tls`.
    """

    NAME = "kafka"
    HEAP = "384m"
    MAIN = "kafka.Kafka"

    def __init__(
        self, folder: Path, *, secure: bool = False, controller: Kafka | None = None, node: int = 1
    ) -> None:
        super().__init__(folder)
        self._node = node
        self._controller = controller or self
        self._copies = 1
        self._said = 0
        self._protocols = {"PLAIN": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}
        self._listeners = {"PLAIN": self.address, "CONTROLLER": f"127.0.0.1:{free_port()}"}
        self._advertised = {"PLAIN": self.address}
        self._proxies: list[TcpProxy] = []
        self._secure: dict[str, object] = {}
        if secure:
            self.sasl = self._listen("SASL", "SASL_PLAINTEXT")
            self.sasl_tls = self._listen("SASLTLS", "SASL_SSL")
            self.tls = self._listen("TLS", "SSL")
            self.authority = Authority(self.folder / "authority")
            self._secure = self._secrets()

    @classmethod
    def cluster(cls, folder: Path) -> list[Kafka]:
        """Return three brokers that keep three copies; the first is the controller too."""
        first = cls(folder / "1")
        found = [first, *(cls(folder / str(n), controller=first, node=n) for n in (2, 3))]
        for broker in found:
            broker._copies = len(found)
        return found

    def launch(self) -> None:
        """Start and do not wait."""
        # what it said before its last end says nothing about this start
        self._said = self.log.stat().st_size if self.log.exists() else 0
        super().launch()

    def proxied(self) -> TcpProxy:
        """Return a proxy whose clients stay behind it: Kafka names the proxy's address to them.

        To be called before the start; the proxy ends with `close`.
        """
        assert self._process is None, "proxies are made before Kafka starts"
        name = f"PROXY{len(self._proxies)}"
        proxy = TcpProxy(self._listen(name, "PLAINTEXT"))
        self._advertised[name] = proxy.address
        self._proxies.append(proxy)
        return proxy

    def restart_killed(self, topic: str, seconds: float = 90.0) -> None:
        """Kill -9 and start again; once more while it holds up readers of a topic for good.

        Killed between its answer to a commit and the markers, Kafka 4 takes the partitions for
        deleted if they have no leader yet when it starts ("likely deleted already and hence can be
        skipped"), and writes no markers until its next start. What it has committed may also be
        held back until more is stored, so this is for topics with traffic.
        """
        until = time.monotonic() + seconds
        while True:
            self.kill()
            self.start()
            if self._shows_more(topic):
                return
            assert time.monotonic() < until, f"what is committed in {topic} is not shown"

    def _shows_more(self, topic: str) -> bool:
        """Return whether readers of committed messages come to what is stored, or go on."""
        stored = self.ends(topic, committed=False)
        first, until = self.ends(topic), time.monotonic() + SHOWN_SECONDS
        while time.monotonic() < until:
            now = self.ends(topic)
            if all(now[n] >= min(stored[n], first[n] + 1) for n in stored):
                return True
            time.sleep(0.2)
        return False

    def ends(self, topic: str, *, committed: bool = True) -> dict[int, int]:
        """Return the next offset of each partition; empty while there is no such topic."""
        consumer = KafkaConsumer(
            bootstrap_servers=self.address,
            enable_auto_commit=False,
            isolation_level="read_committed" if committed else "read_uncommitted",
        )
        with contextlib.closing(consumer):
            numbers = consumer.partitions_for_topic(topic) or ()
            found = consumer.end_offsets([TopicPartition(topic, n) for n in numbers])
        return {place.partition: offset for place, offset in found.items()}

    def close(self) -> None:
        """Stop it, and its proxies."""
        self.stop()
        while self._proxies:
            self._proxies.pop().close()

    def run(self, main: str, *arguments: str, seconds: float = 60.0) -> str:
        """Run one of Kafka's own tools, a class name and its arguments; return what it prints."""
        java, *rest = self._java(main, *arguments)
        done = subprocess.run(
            [java, "-Dlevel=WARN", *rest],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, (done.stdout + done.stderr).decode(errors="replace")
        return done.stdout.decode(errors="replace")

    def _listen(self, name: str, protocol: str) -> str:
        self._protocols[name] = protocol
        self._listeners[name] = self._advertised[name] = f"127.0.0.1:{free_port()}"
        return self._listeners[name]

    def _secrets(self) -> dict[str, object]:
        """Return the settings of the secure listeners."""
        own = self.authority.issue("kafka")
        store = self.folder / "keystore.pem"
        store.write_text(own.key.read_text() + own.cert.read_text())
        plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        found: dict[str, object] = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": store,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.authority.ca,
            "listener.name.tls.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        }
        for name in ("sasl", "sasltls"):
            found[f"listener.name.{name}.plain.sasl.jaas.config"] = (
                f'{plain} user_{USER}="{PASSWORD}";'
            )
            found[f"listener.name.{name}.scram-sha-256.sasl.jaas.config"] = scram
        return found

    def _settings(self) -> dict[str, object]:
        alone = self._controller is self
        copies = {name: self._copies for name in QUICK if name.endswith("replication.factor")}
        return {
            "process.roles": "broker,controller" if alone else "broker",
            "node.id": self._node,
            "controller.quorum.voters": f"1@{self._controller._listeners['CONTROLLER']}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAIN",
            "listeners": _pairs(
                {n: at for n, at in self._listeners.items() if alone or n != "CONTROLLER"}, "://"
            ),
            "advertised.listeners": _pairs(self._advertised, "://"),
            "listener.security.protocol.map": _pairs(self._protocols, ":"),
            "log.dirs": self.folder / "logs",
            **QUICK,
            **copies,
            **self._secure,
        }

    def _properties(self) -> list[str]:
        return [f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"]

    def _arguments(self) -> list[str]:
        (self.folder / "log4j2.properties").write_text(
            "appender.out.type=Console\nappender.out.name=out\nappender.out.target=SYSTEM_ERR\n"
            "appender.out.layout.type=PatternLayout\nappender.out.layout.pattern=%d %p %c{1} %m%n\n"
            "rootLogger.level=${sys:level:-INFO}\nrootLogger.appenderRef.out.ref=out\n"
        )
        path = self.folder / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in self._settings().items()))
        if not (self.folder / "logs").exists():
            self._format(path)
        return [str(path)]

    def _format(self, path: Path) -> None:
        """Copy the formatted folder, which is made if this version of Kafka has none yet."""
        users = f"SCRAM-SHA-256=[name={USER},password={PASSWORD}]"
        options: tuple[str, ...] = ("format", "--cluster-id", CLUSTER)
        if self._controller is self:
            options += ("--add-scram", users)
        made: tuple[object, ...] = (maven.PINS["kafka"], options)
        if self._controller is not self:
            made += (self._node,)  # the folder holds its number
        version = hashlib.sha256(repr(made).encode()).hexdigest()[:16]
        formatted = maven.cache() / f"kafka-formatted-{version}"
        if not formatted.is_dir():
            with maven.locked(maven.cache() / "kafka-formatted.lock"):
                if not formatted.is_dir():
                    self._make_formatted(formatted, path.read_text(), options)
        shutil.copytree(formatted, self.folder / "logs")

    def _make_formatted(self, folder: Path, config: str, options: tuple[str, ...]) -> None:
        """Have Kafka's own tool format a folder, which is there when it is whole."""
        with tempfile.TemporaryDirectory(prefix="kafka-", dir=folder.parent) as scratch:
            logs = Path(scratch) / "logs"
            path = Path(scratch) / "server.properties"
            path.write_text(config.replace(f"log.dirs={self.folder / 'logs'}", f"log.dirs={logs}"))
            self.run(
                "kafka.tools.StorageTool", *options, "--config", str(path), seconds=FORMAT_SECONDS
            )
            logs.rename(folder)

    def _ready(self) -> bool:
        """Whether it said that it started, which it does last, and its listener is open."""
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), 1),
        ):
            return b"Kafka Server started" in self.log.read_bytes()[self._said :]
        return False


def _pairs(values: dict[str, str], between: str) -> str:
    return ",".join(f"{name}{between}{value}" for name, value in values.items())
