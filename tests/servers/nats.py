"""A real nats-server with JetStream on loopback, built from its Go module."""

from __future__ import annotations

import contextlib
import socket

from tests.servers.golang import nats_server
from tests.servers.process import ServerProcess


class Nats(ServerProcess):
    """nats-server on one folder, which keeps its streams; clients need no password."""

    NAME = "nats-server"

    @property
    def url(self) -> str:
        """What clients connect to."""
        return f"nats://{self.address}"

    def _command(self) -> list[str]:
        where = ["--addr", "127.0.0.1", "--port", str(self.port)]
        return [str(nats_server()), *where, "--jetstream", "--store_dir", str(self.folder)]

    def _ready(self) -> bool:
        """Return whether its listener greets, which it does when JetStream has started."""
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), 1) as client,
        ):
            return client.recv(4) == b"INFO"
        return False
