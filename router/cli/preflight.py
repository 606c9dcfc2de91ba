"""The preflight of `router check`: what `serve` needs, each part tried and told in one sentence.

Every part is tried, whatever came of those before it. Nothing is changed: ports are bound for a
moment and released, and a folder that is not there is not made.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from router.access.authorizer import requires_authentication
from router.backends import opening
from router.broker import listeners
from router.broker.transport import listening
from router.broker.transport.authentication import check_files
from router.cli import front
from router.errors import RouterError, SettingError
from router.settings import Settings, shown
from router.web.server import bind_address, options, ports

REACH_SECONDS: Final = 5.0
"""Time that a backend, or ZooKeeper, has to answer."""


class CheckOutcome(NamedTuple):
    """What came of one part; `status` is the exit status for it, 0: in order."""

    sentence: str
    status: int = 0


Part = Callable[[Settings], Iterator[CheckOutcome]]


def preflight(settings: Settings, *, runs: bool) -> Iterator[CheckOutcome]:
    """Yield what `serve` would find with these settings; `runs`: a router uses the folder now."""
    yield from _tried(_settings, settings)
    yield from _tried(_folder, settings)
    yield from _tried(_access, settings)
    if runs:
        yield CheckOutcome("server.port: not tried, a router runs on the data folder")
    else:
        yield from _tried(_http_ports, settings)
        yield from _tried(_broker_ports, settings)
    yield from _tried(_backend, settings)
    yield from _tried(_zookeeper, settings)


def _tried(part: Part, settings: Settings) -> Iterator[CheckOutcome]:
    try:
        yield from part(settings)
    except SettingError as error:
        yield CheckOutcome(str(error), os.EX_CONFIG)


def _settings(settings: Settings) -> Iterator[CheckOutcome]:
    """Try what the HTTP server, the broker and the application refuse."""
    options(settings)
    listeners.check(settings)
    _application(settings)
    for setting in ("server.cert", "broker.cert"):
        if file := settings.text(setting):
            yield CheckOutcome(f"{setting}: the certificate {file} and its key load")
    yield CheckOutcome("the settings go together")


def _application(settings: Settings) -> None:
    """Make the application as a worker does, over stores that need no network."""
    from router.app import create_app  # noqa: PLC0415 - no other command waits for Flask
    from router.backends import memory  # noqa: PLC0415 - as above

    node = memory.open_node(settings)
    app = create_app(settings, memory.open_backend("memory", settings, node), node)
    app.extensions["router.close"]()


def _folder(settings: Settings) -> Iterator[CheckOutcome]:
    if opening.scheme(settings) == "memory":
        return
    folder = Path(settings.text("data.dir")).absolute()
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        yield CheckOutcome(f"data.dir = {folder}: {there} is no folder", os.EX_CANTCREAT)
    elif not os.access(there, os.W_OK | os.X_OK):
        yield CheckOutcome(
            f"data.dir = {folder}: this user may not write to {there}", os.EX_CANTCREAT
        )
    elif there == folder:
        yield CheckOutcome(f"data.dir: {folder} can be written")
    else:
        yield CheckOutcome(f"data.dir: {folder} is not there and can be made")


def _access(settings: Settings) -> Iterator[CheckOutcome]:
    check_files(settings, time.monotonic)
    for setting in ("auth.users", "auth.permissions", "auth.aaf"):
        if file := settings.text(setting):
            yield CheckOutcome(f"{setting}: {file} can be read")
    if not requires_authentication(settings):
        yield CheckOutcome("auth.users: there are no users, every client is anonymous")


def _http_ports(settings: Settings) -> Iterator[CheckOutcome]:
    host = settings.text("server.host")
    for port, setting in zip(ports(settings), ("server.port", "server.tls_port"), strict=False):
        try:
            front.reserve(host, port, f"the setting {setting}").close()
        except SettingError as error:
            yield CheckOutcome(f"{setting}: {error}", os.EX_CONFIG)
        else:
            yield CheckOutcome(f"{setting}: {bind_address(host, port)} is free")


def _broker_ports(settings: Settings) -> Iterator[CheckOutcome]:
    for endpoint, address in listeners.addresses(settings):
        setting, text = endpoint.setting, settings.text(endpoint.setting)
        try:
            listening.bind(address).close()
        except listening.ListenError as error:
            yield CheckOutcome(f"{setting}: {error}", os.EX_UNAVAILABLE)
        else:
            yield CheckOutcome(f"{setting}: {text} is free")


def _backend(settings: Settings) -> Iterator[CheckOutcome]:
    """Ask the store that other machines have; an embedded one is checked as data."""
    if opening.scheme(settings) in {"embedded", "memory"}:
        return
    url = shown("backend.url", settings.text("backend.url"))
    # The node is dialled for leases alone, which nothing here asks for.
    with opening.opened(settings) as (_, backend):
        try:
            backend.ready(REACH_SECONDS)
        except SettingError:
            raise
        except RouterError as error:
            reason = str(error) or "it does not answer"
            yield CheckOutcome(f"backend.url = {url}: {reason}", os.EX_UNAVAILABLE)
        else:
            yield CheckOutcome(f"backend.url: {url} answers")


def _zookeeper(settings: Settings) -> Iterator[CheckOutcome]:
    if not (servers := settings.text("zookeeper.servers")):
        return
    from router.coordination.zookeeper.tree import opened  # noqa: PLC0415 - needs kazoo

    try:
        with opened(servers, REACH_SECONDS, settings.text("zookeeper.digest")):
            pass
    except SettingError:
        raise
    except RouterError as error:
        yield CheckOutcome(f"zookeeper.servers = {servers}: {error}", os.EX_UNAVAILABLE)
    else:
        yield CheckOutcome(f"zookeeper.servers: {servers} answers")
