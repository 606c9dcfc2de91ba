"""`router broker --http`: the broker with a small HTTP server for lookups and administration.

The two are children of a supervisor, as in `serve`, and end together: a broker that cannot be
helped takes the HTTP server along. The application is that of `serve` with most of its views left
out, so that who may do what is decided by the same code.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

import click

from router import log
from router.access.grants import known
from router.broker import listening
from router.cli import broker as broker_command
from router.cli import front
from router.cli.notifying import Herald
from router.cli.options import settings_for
from router.cli.serve import answers, http_address, is_up, lives, scheme_of
from router.cli.supervise import Child, GaveUpError, Supervisor
from router.errors import SettingError
from router.settings import Settings
from router.systemd import Notifier
from router.web.hosts import is_loopback
from router.web.server import bind_address, options

HTTP: Final = "broker.http"
HEALTH: Final = "/admin/v2/brokers/health"
LOOK_AGAIN: Final = 0.05
LOOK_LATER: Final = 3600.0
MARGIN: Final = 5.0


def serve(config: Path | None, flags: Mapping[str, str | None]) -> None:
    """Run until a signal, or until broker or server cannot be helped: exit with its status then."""
    settings = settings_for(config, **flags)
    log.begin("supervisor", settings.text("log.level"), settings.text("log.format"))
    listening.check(settings)
    address = check(settings)
    with front.reserve(address.host, address.port, "--http") as kept:
        port = kept.getsockname()[1]
        _run(settings_for(config, **dict(flags) | _server(address.host, port)))


def check(settings: Settings) -> listening.Address:
    """Return where HTTP is served; raise SettingError where strangers could use it."""
    address = listening.Address.parse(settings.text(HTTP), HTTP)
    if not listening.has_log(settings):
        raise SettingError(
            f"{HTTP}: there is nothing to administer, for messages live in"
            f" {listening.elsewhere(settings)}"
        )
    if not (known(settings) or settings.flag("auth.insecure") or is_loopback(address.host)):
        raise SettingError(
            f"{HTTP} = {settings.text(HTTP)}: there are neither users (auth.users) nor keys of"
            " tokens (auth.token_secret_file, auth.token_public_key), so that everybody could use"
            " it: listen on loopback (127.0.0.1), or set auth.insecure"
        )
    return address


def _server(host: str, port: int) -> dict[str, str | None]:
    """Return the settings of the HTTP server: one worker, which starts no broker, on one port."""
    return {
        "server__host": host,
        "server__port": str(port),
        "server__tls_port": "0",
        "server__workers": "1",
        "broker__spawn": "false",
        "broker__http": bind_address(host, port),
    }


def _run(settings: Settings) -> None:
    options(settings)
    folder = Path(settings.text("data.dir"))
    ready = partial(broker_command.started_by, folder, os.getpid())
    children = [
        broker_command.child(settings),
        Child(
            "the HTTP server",
            run=partial(front.run, settings, ready, only_admin=True),
            judge=front.judge,
            patience=settings.seconds("server.graceful_timeout") + MARGIN,
            reload=front.RELOAD,
        ),
    ]
    # As in `serve`.
    notifier = Notifier.take(os.environ)
    herald = Herald(notifier, partial(is_up, settings, ready), partial(lives, settings))
    try:
        with closing(broker_command.supervise(settings)) as supervision:
            supervisor = Supervisor(children, _report, notifier, supervision.close)
            supervisor.run(partial(herald.watch, _announcer(settings)))
    except GaveUpError as error:
        _report(str(error))
        raise SystemExit(error.status) from error


def _announcer(settings: Settings) -> Callable[[], float]:
    """Return what says where HTTP is served, as soon as it is."""
    scheme, address = scheme_of(settings), http_address(settings)
    announced = False

    def watch() -> float:
        nonlocal announced
        if announced:
            return LOOK_LATER
        announced = answers(address, scheme == "https", HEALTH)
        if announced:
            click.echo(f"Administration and lookups: {scheme}://{bind_address(*address)}")
        return LOOK_LATER if announced else LOOK_AGAIN

    return watch


def _report(sentence: str) -> None:
    click.echo(f"router: {sentence}", err=True)
