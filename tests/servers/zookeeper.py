"""A real Apache ZooKeeper of one node, on loopback, whose sessions may be as short as a second."""

from __future__ import annotations

import contextlib
import socket

from tests.servers.java import JavaServer

TICK_MS = 200


class Zookeeper(JavaServer):
    """ZooKeeper on one folder; `address` is what clients connect to."""

    NAME = "zookeeper"
    MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

    def ask(self, word: str) -> str:
        """Return the answer to one of its four-letter words: srvr, mntr, cons, dump."""
        with socket.create_connection(("127.0.0.1", self.port), 5) as connection:
            connection.settimeout(5)
            connection.sendall(word.encode())
            answer = b""
            while part := connection.recv(65_536):
                answer += part
        return answer.decode()

    def _properties(self) -> list[str]:
        # a crash of the process loses nothing without fsync; only one of the machine would
        return ["-Dzookeeper.forceSync=no", "-Djava.net.preferIPv4Stack=true"]

    def _arguments(self) -> list[str]:
        (self.folder / "logback.xml").write_text(
            '<configuration><appender name="out" class="ch.qos.logback.core.ConsoleAppender">'
            "<encoder><pattern>%d %-5level %logger{0} %msg%n</pattern></encoder></appender>"
            '<root level="INFO"><appender-ref ref="out"/></root></configuration>\n'
        )
        settings = {
            "dataDir": self.folder / "zookeeper",
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "tickTime": TICK_MS,
            "minSessionTimeout": 2 * TICK_MS,
            "maxSessionTimeout": 60_000,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr,mntr,cons,dump",
        }
        path = self.folder / "zoo.cfg"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return [str(path)]

    def _ready(self) -> bool:
        with contextlib.suppress(OSError):
            return "Mode: standalone" in self.ask("srvr")
        return False
