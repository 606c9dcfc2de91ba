"""`router serve`: the broker and the HTTP server of a node, started together and kept alive."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Final

import click

from router import log, node_socket
from router.access.grants import known
from router.backends.opening import scheme
from router.broker import listening
from router.cli import broker as broker_command
from router.cli import front
from router.cli.notifying import Herald
from router.cli.options import (
    backend,
    config,
    data,
    examples,
    pulsar,
    pulsar_tls,
    settings_for,
    tls,
    zookeeper,
)
from router.cli.reachable import StoreReport
from router.cli.supervise import Child, GaveUpError, Supervisor, ignore_hangup
from router.settings import Settings, without_password
from router.systemd import Notifier
from router.web.server import bind_address, options, workers

LOOK_AGAIN: Final = 0.02
LOOK_LATER: Final = 3600.0
SLOW_START: Final = 10.0
MARGIN: Final = 5.0
PROGRAM: Final = "router"
OWN: Final = "router serve"
"""The origin of settings that the command itself decides."""
ANY: Final = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}  # noqa: S104 - what to dial instead


@click.command(
    epilog=examples(
        "router serve",
        "router serve --port 8080 --data /var/lib/router --workers 4",
        "router serve --pulsar 127.0.0.1:6650            official Pulsar clients may connect too",
        "router serve --backend pulsar://pulsar:6650     messages live in Apache Pulsar",
        "router serve --backend kafka://k1:9092,k2:9092 --zookeeper zk1:2181,zk2:2181/router",
        "                                                as many nodes as you like share them",
        "router serve --cert cert.pem --key key.pem      HTTPS on port 3904",
        "router serve --cert cert.pem --key key.pem --tls-port 3905",
        "                                                HTTP on 3904, HTTPS on 3905",
        "router serve --cert cert.pem --key key.pem --tls 127.0.0.1:6651",
        "                                                Pulsar clients over TLS too",
        "router serve --host 0.0.0.0 --config /etc/router/router.cfg",
    )
)
@click.option("--host", "server__host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", "server__port", metavar="N", help="Port; 0: any free.  [default: 3904]")
@data
@backend
@click.option(
    "--workers", "server__workers", metavar="N", help="Workers.  [default: one per usable CPU]"
)
@config
@pulsar
@pulsar_tls
@zookeeper
@tls
@click.option(
    "--insecure",
    "auth__insecure",
    flag_value="true",
    help="Serve strangers: no users, any address.",
)
def command(config: Path | None, **flags: str | None) -> None:
    """Start the broker and the HTTP server, and keep them running until Ctrl-C or SIGTERM."""
    ignore_hangup()
    settings = settings_for(config, **flags).replaced(OWN, broker__spawn="false")
    log.begin("supervisor", settings.text("log.level"), settings.text("log.format"))
    options(settings)
    # The broker checks it too: this is to refuse before anything starts.
    listening.check(settings)
    host, more = settings.text("server.host"), settings.number("server.tls_port")
    with ExitStack() as kept:
        port = kept.enter_context(front.reserve(host, settings.number("server.port")))
        taken = port.getsockname()[1]
        if more:
            kept.enter_context(front.reserve(host, more, "--tls-port"))
        if taken != settings.number("server.port"):
            settings = settings.replaced(OWN, server__port=str(taken))
        serve(settings)


def serve(settings: Settings) -> None:
    """Run until a signal, or until broker or server cannot be helped: then exit with its status."""
    ready = _broker_check(settings)
    children = [
        Child(
            "the HTTP server",
            run=partial(front.run, settings, ready),
            judge=front.judge,
            patience=settings.seconds("server.graceful_timeout") + MARGIN,
            reload=front.RELOAD,
        )
    ]
    if _has_broker(settings):
        children.insert(0, broker_command.child(settings))
    # Taken before anything is forked: the children have nothing to tell systemd.
    notifier = Notifier.take(os.environ)
    announcer = Announcer(settings, ready)
    herald = Herald(notifier, partial(is_up, settings, ready), partial(lives, settings))
    try:
        with _supervision(settings) as forked:
            supervisor = Supervisor(children, _report, notifier, forked)
            supervisor.run(partial(herald.watch, announcer.watch))
    except GaveUpError as error:
        _report(str(error))
        raise SystemExit(error.status) from error


@contextmanager
def _supervision(settings: Settings) -> Iterator[Callable[[], None]]:
    """Hold the lock of the data folder, if there is a broker; give what lets go of it."""
    if not _has_broker(settings):
        yield lambda: None
        return
    with closing(broker_command.supervise(settings)) as supervision:
        yield supervision.close


def _has_broker(settings: Settings) -> bool:
    return scheme(settings) != "memory"


def _broker_check(settings: Settings) -> Callable[[], bool]:
    """Return what tells, in any of our processes, whether our broker holds the folder."""
    if not _has_broker(settings):
        return lambda: True
    return partial(broker_command.started_by, Path(settings.text("data.dir")), os.getpid())


def _report(sentence: str) -> None:
    click.echo(f"router: {sentence}", err=True)


class Announcer:
    """Says where the router listens as soon as it accepts requests, once."""

    def __init__(self, settings: Settings, broker_ready: Callable[[], bool]) -> None:
        self._settings = settings
        self._broker_ready = broker_ready
        self._address = http_address(settings)
        self._secure = scheme_of(settings) == "https"
        self._slow_at = time.monotonic() + SLOW_START
        self._store = StoreReport(settings, _report, time.monotonic)
        self._announced = False

    def watch(self) -> float:
        """Look whether the router is ready; return when to look again."""
        if self._announced:
            return LOOK_LATER
        if self._broker_ready() and answers(self._address, self._secure):
            self._announced = True
            click.echo("\n".join(welcome(self._settings, self._address[0])))
            return LOOK_LATER
        now = time.monotonic()
        if self._store.look():
            self._slow_at = now + SLOW_START
        if now >= self._slow_at:
            self._slow_at = now + SLOW_START
            _report("not ready yet; the log of the broker is broker.log in the data folder")
        return LOOK_AGAIN


def is_up(settings: Settings, broker_ready: Callable[[], bool]) -> bool:
    """Return whether our broker has opened its store, and HTTP is answered, whatever the answer."""
    if _has_broker(settings) and not (
        broker_ready() and node_socket.answers(Path(settings.text("data.dir")))
    ):
        return False
    return lives(settings)


def lives(settings: Settings) -> bool:
    """Return whether HTTP is answered, whatever the answer."""
    secure = scheme_of(settings) == "https"
    return bool(http_status(http_address(settings), secure, "/health"))


def http_address(settings: Settings) -> tuple[str, int]:
    """Return where the HTTP server of these settings is dialled."""
    host = settings.text("server.host")
    return ANY.get(host, host), settings.number("server.port")


def answers(address: tuple[str, int], secure: bool, path: str = "/ready") -> bool:
    """Return whether HTTP is answered there, and the broker behind it answers too."""
    return http_status(address, secure, path) == b"200"


def http_status(address: tuple[str, int], secure: bool, path: str) -> bytes:
    """Return the status that a GET of the path is answered with, empty: there is no answer."""
    request = f"GET {path} HTTP/1.1\r\nHost: router\r\nConnection: close\r\n\r\n".encode()
    try:
        with socket.create_connection(address, timeout=1) as plain:
            client = _unverified().wrap_socket(plain) if secure else plain
            with client:
                client.sendall(request)
                return b"".join(client.recv(64).split(b" ")[1:2])
    except OSError:
        return b""


def _unverified() -> ssl.SSLContext:
    """Return a context that takes any certificate: whether somebody answers is all that counts."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def scheme_of(settings: Settings) -> str:
    """Return what is spoken on server.port."""
    alone = settings.text("server.cert") and not settings.number("server.tls_port")
    return "https" if alone else "http"


def _credentials(settings: Settings) -> str:
    """Return the options of curl by which somebody says who they are."""
    if settings.text("auth.users"):
        return "-u NAME:PASSWORD "
    return "-H 'Authorization: Bearer TOKEN' " if known(settings) else ""


def welcome(settings: Settings, host: str) -> list[str]:
    """Return what a user who just started the router wants to read."""
    url = f"{scheme_of(settings)}://{bind_address(host, settings.number('server.port'))}"
    more = settings.number("server.tls_port")
    also = f" and https://{bind_address(host, more)}" if more else ""
    pulsar, shared = settings.text("broker.pulsar"), settings.text("zookeeper.servers")
    secure, who = settings.text("broker.pulsar_tls"), _credentials(settings)
    backend, folder = without_password(settings.text("backend.url")), settings.text("data.dir")
    return [
        f"Message router listens on {url}{also}",
        f"  backend {backend}, data folder {folder}, {workers(settings)} workers; Ctrl-C stops it",
        *([f"  nodes share ZooKeeper at {shared}"] if shared else []),
        *([f"  Pulsar clients: pulsar://{pulsar}"] if pulsar else []),
        *([f"  Pulsar clients over TLS: pulsar+ssl://{secure}"] if secure else []),
        "Try it:",
        f"  curl {who}-H 'Content-Type: text/plain' -d 'hello' {url}/events/greetings",
        f"  curl {who}'{url}/events/greetings/g1/c1?from=earliest&timeout=1000'",
        *_on_the_path(Path(sys.argv[0])),
    ]


def _on_the_path(program: Path) -> list[str]:
    """Return how a shell finds this very `router`, where it finds none or another one."""
    if program.name != PROGRAM:
        return []
    own, found = program.absolute(), shutil.which(PROGRAM)
    if found is not None and Path(found).resolve() == own.resolve():
        return []
    return ["Its commands in another terminal:", f"  export PATH={quote(str(own.parent))}:$PATH"]
