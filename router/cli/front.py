"""The HTTP server of `serve`: gunicorn, started as a child of the supervisor, with our settings."""

from __future__ import annotations

import errno
import importlib
import math
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any, Final, NoReturn

import click

from router.cli.supervise import Exit, GaveUpError, meaning
from router.errors import RouterError, SettingError
from router.process.collecting import keep_loaded
from router.settings import Settings, environment
from router.web.server import bind_address, options

POLL_SECONDS: Final = 0.01
MAX_PORT: Final = 65_535
MAX_EARLY_DEATHS: Final = 3
RELOAD_SIGNAL: Final = signal.SIGUSR1
"""gunicorn hands this signal on to its workers; SIGHUP would have it replace them."""
# gunicorn's own exit statuses: a worker did not start, the application could not be loaded.
BOOT_ERROR: Final = 3
LOAD_ERROR: Final = 4
# Imported once, while the broker opens its store, and not again by each worker: most of what a
# worker would load. None of these keeps an unpatched lock or thread over a wait; the rest must come
# after gevent has patched the worker.
PRELOADED: Final = (
    "flask",
    "orjson",
    "passlib.context",
    "router.services.manage",
    "router.web.pulsar_rest",
    "router.wire.nats.jetstream.replies",
    "router.wire.pulsar",
)


def reserve(
    host: str, port: int, option: str = "--port", in_use: Callable[[], float] = lambda: 0.0
) -> socket.socket:
    """Return a socket that keeps the port ours for as long as it is open, without listening on it.

    Workers bind with SO_REUSEPORT, so that a second router on the same port would start without a
    word and take half of the connections: whether the port is free is asked without that option.
    `in_use` is called if another process has it, and returns for how many seconds to wait.
    Raises SettingError if it is still in use then. Port 0 becomes a free one.
    """
    if port > MAX_PORT:
        raise SettingError(f"{option} {port}: the highest port is {MAX_PORT}")
    family, kind, _, _, address = _resolve(host, port)
    until = math.inf
    while True:
        try:
            return _bind(family, kind, address)
        except OSError as error:
            if until == math.inf and error.errno == errno.EADDRINUSE:
                until = time.monotonic() + in_use()
            if time.monotonic() < until < math.inf:
                time.sleep(POLL_SECONDS)
                continue
            raise SettingError(
                f"cannot listen on {bind_address(host, port)}: {error.strerror}; is another router"
                f" running there? Choose another port with {option}"
            ) from error


def _bind(family: socket.AddressFamily, kind: socket.SocketKind, address: Any) -> socket.socket:
    """Return a socket that keeps an address; raise OSError if another process has it."""
    kept = socket.socket(family, kind)
    try:
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            address = probe.getsockname()
        # Without SO_REUSEADDR, so that the next router's probe fails before this one listens.
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept.bind(address)
    except OSError:
        kept.close()
        raise
    return kept


def _resolve(host: str, port: int) -> Any:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise SettingError(f"server.host = {host!r}: {error.strerror}") from error


def run(settings: Settings, ready: Callable[[], bool], *, only_admin: bool = False) -> NoReturn:
    """Serve until told to stop; the workers load the application with these settings.

    `only_admin`: they serve Pulsar's administration and lookups and nothing else.

    No worker starts before `ready`: a broker that some command started leaves the folder to the
    one that the supervisor starts, and a worker that has a connection to the first would lose it
    at once.
    """
    from gunicorn.app.base import BaseApplication  # noqa: PLC0415 - half the start-up time of serve
    from gunicorn.errors import HaltServer  # noqa: PLC0415 - the same

    from router import log  # noqa: PLC0415 - only this child writes log lines

    class Application(BaseApplication):  # type: ignore[misc] # gunicorn has no type hints
        """What gunicorn asks for its settings and for the WSGI application."""

        def load_config(self) -> None:
            for name, value in options(settings).items():
                self.cfg.set(name, value)

        def load(self) -> Any:
            from router.app import create_app  # noqa: PLC0415 - after gevent patched the worker

            try:
                return create_app(only_admin=only_admin)
            except RouterError as error:
                click.echo(f"router: {error}", err=True)
                raise SystemExit(LOAD_ERROR) from error

    os.environ.update(environment(settings))
    for module in PRELOADED:
        importlib.import_module(module)
    keep_loaded()
    log.begin("http", settings.text("log.level"), settings.text("log.format"))
    application = Application()
    while not ready():
        time.sleep(POLL_SECONDS)
    try:
        application.run()
    except HaltServer as halt:
        # A second worker that cannot start, while gunicorn is stopping because of the first.
        raise SystemExit(halt.exit_status) from halt
    raise SystemExit(0)


def judge(end: Exit) -> None:
    """Let a server that was killed start again; give up on one that cannot start."""
    if end.status == LOAD_ERROR:
        raise GaveUpError("the HTTP server cannot start with these settings", os.EX_CONFIG)
    if end.status == BOOT_ERROR or (end.status > 0 and end.early_deaths >= MAX_EARLY_DEATHS):
        raise GaveUpError(f"the HTTP server cannot start ({meaning(end.status)})", os.EX_SOFTWARE)
