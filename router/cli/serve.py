"""`router serve`: the broker and the HTTP server of a node, started together and kept alive."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Final
from urllib.parse import urlsplit

import click

from router import log
from router.access.authorizer import requires_authentication
from router.broker import listeners
from router.cli import broker_child, front
from router.cli.health import Herald, answers, has_broker, http_address, is_up, lives, scheme_of
from router.cli.options import backend, config, data, examples, settings_for, tls, zookeeper
from router.cli.options import listeners as listener_options
from router.cli.supervise import Child, GaveUpError, Supervisor, ignore_hangup
from router.errors import SettingError
from router.process import supervised
from router.process.systemd import Notifier
from router.settings import Settings, without_password
from router.web.server import bind_address, options, workers

RETRY_SECONDS: Final = 0.02
IDLE_SECONDS: Final = 3600.0
SLOW_START_SECONDS: Final = 10.0
MARGIN_SECONDS: Final = 5.0
PROGRAM: Final = "router"
LISTENERS: Final = {
    "pulsar": "Pulsar clients: pulsar://",
    "pulsar_tls": "Pulsar clients over TLS: pulsar+ssl://",
    "kafka": "Kafka clients: bootstrap.servers=",
    "kafka_tls": "Kafka clients over TLS: bootstrap.servers=",
    "nats": "NATS clients: nats://",
    "nats_tls": "NATS clients over TLS: tls://",
}
"""What is said before the address of each listener."""
OWN: Final = "router serve"
"""The origin of settings that the command itself decides."""
REPORT_SECONDS: Final = 30.0
CONNECT_SECONDS: Final = 1.0
"""For all addresses together: meanwhile `serve` heeds no signal."""
MIN_CONNECT_SECONDS: Final = 0.1
# The schemes of stores elsewhere: what they are called, and their port.
_STORES: Final = {
    "kafka": ("Kafka", 9092),
    "pulsar": ("Pulsar", 6650),
    "pulsar+ssl": ("Pulsar", 6651),
}


@click.command(
    epilog=examples(
        "router serve",
        "router serve --port 8080 --data /var/lib/router --workers 4",
        "router serve --pulsar 127.0.0.1:6650            official Pulsar clients may connect too",
        "router serve --kafka 127.0.0.1:9092             Kafka clients may connect too",
        "router serve --nats 127.0.0.1:4222              NATS clients may connect too",
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
@listener_options
@zookeeper
@tls
@click.option(
    "--insecure",
    "auth__insecure",
    flag_value="true",
    help="Serve unauthenticated clients on any address.",
)
def command(config: Path | None, **flags: str | None) -> None:
    """Start the broker and the HTTP server, and keep them running until Ctrl-C or SIGTERM."""
    ignore_hangup()
    settings = settings_for(config, **flags).replaced(OWN, broker__spawn="false")
    log.begin("supervisor", settings.text("log.level"), settings.text("log.format"))
    options(settings)
    # The broker checks it too: this is to refuse before anything starts.
    listeners.check(settings)
    host, more = settings.text("server.host"), settings.number("server.tls_port")
    with ExitStack() as kept:
        in_use = partial(await_killed, settings)
        port = front.reserve(host, settings.number("server.port"), in_use=in_use)
        taken = kept.enter_context(port).getsockname()[1]
        if more:
            kept.enter_context(front.reserve(host, more, "--tls-port", in_use))
        if taken != settings.number("server.port"):
            settings = settings.replaced(OWN, server__port=str(taken))
        serve(settings)


def serve(settings: Settings) -> None:
    """Run until a signal, or until broker or server cannot be helped: then exit with its status."""
    run_node(settings, Announcer(settings, broker_check(settings)).watch)


def run_node(
    settings: Settings, announce: Callable[[], float], *, only_admin: bool = False
) -> None:
    """Keep broker and HTTP server alive until a signal, or exit with the status of who gave up.

    `announce` says once what is up, and returns when to call it again. `only_admin`: the server has
    nothing but Pulsar's administration and lookups.
    """
    ready = broker_check(settings)
    children = [
        Child(
            "the HTTP server",
            run=partial(front.run, settings, ready, only_admin=only_admin),
            judge=front.judge,
            stop_timeout=_stop_seconds(settings),
            reload=front.RELOAD_SIGNAL,
        )
    ]
    # Taken before anything is forked: the children have nothing to tell systemd.
    notifier = Notifier.take(os.environ)
    herald = Herald(notifier, partial(is_up, settings, ready), partial(lives, settings))
    try:
        with ExitStack() as held:
            forked: Callable[[], None] = _keep_nothing
            if has_broker(settings):
                children.insert(0, broker_child.child(settings))
                supervision = broker_child.supervise(settings)
                held.callback(supervision.end)
                forked = supervision.close
            supervisor = Supervisor(children, report, notifier, forked)
            supervisor.run(partial(herald.watch, announce))
    except GaveUpError as error:
        report(str(error))
        raise SystemExit(error.status) from error


def await_killed(settings: Settings) -> float:
    """Return for how many seconds a port may be in use by a router of this folder, and report it.

    The broker and the HTTP server of a router that was killed end in order, which takes a moment.
    """
    former = supervised.killed(Path(settings.text("data.dir")))
    if former is None:
        return 0.0
    timeout = _stop_seconds(settings)
    report(
        f"a port is in use: the former router (process {former}) may still be ending; waiting for"
        f" at most {timeout:g} s"
    )
    return timeout


def _stop_seconds(settings: Settings) -> float:
    return settings.seconds("server.graceful_timeout") + MARGIN_SECONDS


def _keep_nothing() -> None:
    """Give up nothing in a child: without a broker there is no lock."""


def broker_check(settings: Settings) -> Callable[[], bool]:
    """Return what tells, in any of our processes, whether our broker holds the folder."""
    if not has_broker(settings):
        return lambda: True
    return partial(broker_child.started_by, Path(settings.text("data.dir")), os.getpid())


def report(sentence: str) -> None:
    """Print a sentence of the supervisor on standard error."""
    click.echo(f"router: {sentence}", err=True)


class Announcer:
    """Says where the router listens as soon as it accepts requests, once."""

    def __init__(self, settings: Settings, broker_ready: Callable[[], bool]) -> None:
        self._settings = settings
        self._broker_ready = broker_ready
        self._address = http_address(settings)
        self._secure = scheme_of(settings) == "https"
        self._slow_at = time.monotonic() + SLOW_START_SECONDS
        self._store = StoreReport(settings, report, time.monotonic)
        self._announced = False

    def watch(self) -> float:
        """Look whether the router is ready; return when to look again."""
        if self._announced:
            return IDLE_SECONDS
        # A disk that is full keeps from publishing only, and the broker logs it.
        if self._broker_ready() and answers(self._address, self._secure, "/ready?for=poll"):
            self._announced = True
            log.write_output("\n".join([*welcome(self._settings, self._address[0]), ""]))
            return IDLE_SECONDS
        now = time.monotonic()
        if self._store.check():
            self._slow_at = now + SLOW_START_SECONDS
        if now >= self._slow_at:
            self._slow_at = now + SLOW_START_SECONDS
            report("not ready yet; the log of the broker is broker.log in the data folder")
        return RETRY_SECONDS


def _credentials(settings: Settings) -> str:
    """Return the options of curl that carry the credentials."""
    if settings.text("auth.users"):
        return "-u NAME:PASSWORD "
    return "-H 'Authorization: Bearer TOKEN' " if requires_authentication(settings) else ""


def welcome(settings: Settings, host: str) -> list[str]:
    """Return what a user who just started the router wants to read."""
    url = f"{scheme_of(settings)}://{bind_address(host, settings.number('server.port'))}"
    more = settings.number("server.tls_port")
    also = f" and https://{bind_address(host, more)}" if more else ""
    shared, who = settings.text("zookeeper.servers"), _credentials(settings)
    listening = [(text, settings.text(f"broker.{name}")) for name, text in LISTENERS.items()]
    backend, folder = without_password(settings.text("backend.url")), settings.text("data.dir")
    return [
        f"Dragoman listens on {url}{also}",
        f"  backend {backend}, data folder {folder}, {workers(settings)} workers; Ctrl-C stops it",
        *([f"  nodes share ZooKeeper at {shared}"] if shared else []),
        *(f"  {text}{address}" for text, address in listening if address),
        "Try it with a topic that exists:" if "admin=none" in backend else "Try it:",
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


# While the store at the backend's URL takes no connections, `serve` says so. Workers connect to the
# store with the first request, so nothing would be on the screen before it. Until the router is
# ready, `serve` therefore opens a connection to each address of the URL and closes it: at once, and
# every REPORT_SECONDS while none is taken. Credentials and protocol are the workers' part; the
# client of the store is not loaded here, because the process above broker and workers stays small.
class StoreReport:
    """Reports a store that takes no connections, when it is looked for and every REPORT_SECONDS."""

    def __init__(
        self, settings: Settings, report: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._report = report
        self._clock = clock
        self._next = clock()

    def check(self) -> bool:
        """Look if it is time to, and report what is wrong; return whether a report was made."""
        now = self._clock()
        if now < self._next:
            return False
        self._next = now + REPORT_SECONDS
        sentence = unreachable(self._settings)
        if sentence is not None:
            self._report(sentence)
        return sentence is not None


def unreachable(settings: Settings) -> str | None:
    """Return why no address of the store takes connections; None: one does, or it is no server."""
    url = settings.text("backend.url")
    name, port = _STORES.get(url.partition(":")[0], ("", 0))
    if not name:
        return None
    hosts = _hosts(url, port)
    left = max(MIN_CONNECT_SECONDS, CONNECT_SECONDS / len(hosts))
    failures = []
    for host in hosts:
        try:
            with socket.create_connection(host, left):
                return None
        except OSError as error:
            failures.append(f"{host[0]}:{host[1]}: {error.strerror or error}")
    return (
        f"{name} cannot be reached ({'; '.join(failures)}); publishes and polls are refused until"
        " it is there"
    )


def _hosts(url: str, port: int) -> list[tuple[str, int]]:
    found = []
    for host in urlsplit(url).netloc.rpartition("@")[2].split(","):
        try:
            parts = urlsplit(f"//{host}")
            found.append((parts.hostname or "", parts.port or port))
        except ValueError as error:
            raise SettingError(f"{without_password(url)!r}: {error}") from error
    return found
