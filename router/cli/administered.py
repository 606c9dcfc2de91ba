"""`router broker --http`: the broker with a small HTTP server for lookups and administration.

The two are children of a supervisor, as in `serve`, and end together: a broker that cannot be
helped takes the HTTP server along. The application is that of `serve` with most of its views left
out, so that who may do what is decided by the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import click

from router import log
from router.access.authorizer import requires_authentication
from router.broker import listeners
from router.broker.transport import listening
from router.cli import front
from router.cli.health import answers, http_address, scheme_of
from router.cli.options import settings_for
from router.cli.serve import await_killed, run_node
from router.errors import SettingError
from router.settings import Settings
from router.web.origins import is_loopback
from router.web.server import bind_address, options

HTTP: Final = "broker.http"
HEALTH: Final = "/admin/v2/brokers/health"
RETRY_SECONDS: Final = 0.05
IDLE_SECONDS: Final = 3600.0


def serve(config: Path | None, flags: Mapping[str, str | None]) -> None:
    """Run until a signal, or until broker or server cannot be helped: exit with its status then."""
    settings = settings_for(config, **flags)
    log.begin("supervisor", settings.text("log.level"), settings.text("log.format"))
    listeners.check(settings)
    address = check(settings)
    in_use = partial(await_killed, settings)
    with front.reserve(address.host, address.port, "--http", in_use) as kept:
        port = kept.getsockname()[1]
        settings = settings_for(config, **dict(flags) | _server(address.host, port))
        options(settings)
        run_node(settings, _announcer(settings), only_admin=True)


def check(settings: Settings) -> listening.ListenAddress:
    """Return where HTTP is served; raise SettingError if unauthenticated clients could use it."""
    address = listening.ListenAddress.parse(settings.text(HTTP), HTTP)
    if not listening.has_log(settings):
        raise SettingError(
            f"{HTTP}: there is nothing to administer, for messages live in"
            f" {listening.remote_url(settings)}"
        )
    if not (
        requires_authentication(settings)
        or settings.flag("auth.insecure")
        or is_loopback(address.host)
    ):
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


def _announcer(settings: Settings) -> Callable[[], float]:
    """Return what says where HTTP is served, as soon as it is."""
    scheme, address = scheme_of(settings), http_address(settings)
    announced = False

    def watch() -> float:
        nonlocal announced
        if announced:
            return IDLE_SECONDS
        announced = answers(address, scheme == "https", HEALTH)
        if announced:
            click.echo(f"Administration and lookups: {scheme}://{bind_address(*address)}")
        return IDLE_SECONDS if announced else RETRY_SECONDS

    return watch
