"""Every way to start says where it listens once it does, and has nothing to warn of."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.processes import wait_until
from tests.servers.certificates import Authority
from tests.unit.web.applications import HASHES

pytestmark = pytest.mark.system

SERVES = "Dragoman listens on "
LISTENS = "Broker listens on "
ADMINISTERS = "Administration and lookups: "
SLOW = "not ready yet"
"""What a start on a busy machine says after ten seconds."""


@dataclass(frozen=True)
class Mode:
    """A command with its options; each PORT among the words is a free one, FOLDER the test's."""

    words: str
    announced: tuple[str, ...]
    settings: dict[str, str] = field(default_factory=dict)


USERS = {"ROUTER_AUTH_USERS": "FOLDER/users"}
TLS = "--cert FOLDER/server.pem --key FOLDER/server.key"
MODES = {
    "serve": Mode("serve --port PORT", (f"{SERVES}http://127.0.0.1:",)),
    "serve-users-tls": Mode(f"serve --port PORT {TLS}", (f"{SERVES}https://127.0.0.1:",), USERS),
    "serve-listeners": Mode(
        f"serve --port PORT --tls-port PORT {TLS}"
        " --pulsar 127.0.0.1:PORT --kafka 127.0.0.1:PORT --nats 127.0.0.1:PORT",
        (
            f"{SERVES}http://127.0.0.1:",
            " and https://",
            "Pulsar clients: ",
            "Kafka clients: ",
            "NATS clients: ",
        ),
    ),
    "serve-memory": Mode("serve --port PORT --backend memory", (SERVES,)),
    "broker-listeners": Mode(
        "broker --pulsar 127.0.0.1:PORT --kafka 127.0.0.1:PORT --nats 127.0.0.1:PORT",
        (f"{LISTENS}FOLDER/data/broker.sock", "pulsar://", "kafka://", "nats://"),
    ),
    "broker-http": Mode(
        "broker --http 127.0.0.1:PORT", (LISTENS, f"{ADMINISTERS}http://127.0.0.1:")
    ),
    "broker-http-hosts": Mode(
        "broker --http 127.0.0.1:PORT",
        (LISTENS, ADMINISTERS),
        {"ROUTER_SERVER_HOSTS": "router.example.org"},
    ),
    "broker-http-users-tls": Mode(
        "broker --http 127.0.0.1:PORT",
        (LISTENS, f"{ADMINISTERS}https://127.0.0.1:"),
        USERS
        | {
            "ROUTER_SERVER_CERT": "FOLDER/server.pem",
            "ROUTER_SERVER_KEY": "FOLDER/server.key",
        },
    ),
}


@contextmanager
def started(mode: Mode, folder: Path) -> Iterator[Path]:
    """Give the file of what a command writes, while it runs."""
    words = [str(free_port()) if word == "PORT" else word for word in mode.words.split()]
    words = [word.replace("PORT", str(free_port())) for word in words]
    words = [word.replace("FOLDER", str(folder)) for word in words]
    variables = {name: text.replace("FOLDER", str(folder)) for name, text in mode.settings.items()}
    variables |= {"ROUTER_CONFIG": "", "ROUTER_LOG_FORMAT": "json", "ROUTER_SERVER_WORKERS": "1"}
    output = folder / "output"
    with output.open("wb") as written:
        process = subprocess.Popen(
            [sys.executable, "-m", "router", *words, "--data", str(folder / "data")],
            env=os.environ | variables,
            cwd=folder,
            stdout=written,
            stderr=written,
        )
    try:
        yield output
        assert process.poll() is None
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.parametrize("name", MODES)
def test_a_start_says_where_it_listens_and_warns_of_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "users").write_text(f"anna:{HASHES['argon2']}\n")
    (tmp_path / "users").chmod(0o600)
    certificate = Authority(tmp_path / "authority").issue("server")
    for path, pem in (("server.pem", certificate.cert), ("server.key", certificate.key)):
        (tmp_path / path).write_bytes(pem.read_bytes())
        (tmp_path / path).chmod(0o600)
    mode = MODES[name]
    with started(mode, tmp_path) as output:
        announced = [one.replace("FOLDER", str(tmp_path)) for one in mode.announced]
        wait_until(lambda: all(one in output.read_text() for one in announced))
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    warnings = [line["event"] for line in lines if line["level"] not in {"debug", "info"}]
    assert [event for event in warnings if not event.startswith(SLOW)] == []
    kept = tmp_path / "data" / "broker.log"
    assert not kept.exists() or '"warning"' not in kept.read_text()
