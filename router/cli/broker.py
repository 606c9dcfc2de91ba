"""`router broker`: the node's broker alone."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click

from router.broker import listeners
from router.cli import broker_child
from router.cli.options import broker_certificate, config, data, examples, http, settings_for
from router.cli.options import listeners as listener_options
from router.cli.supervise import ignore_hangup
from router.settings import readable_secrets


@click.command(
    epilog=examples(
        "router broker --data /var/lib/router",
        "router broker --data /var/lib/router --pulsar 127.0.0.1:6650",
        "router broker --pulsar 127.0.0.1:6650 --http 127.0.0.1:8080",
        "                    with lookups and administration for http://127.0.0.1:8080",
        "router broker --tls 0.0.0.0:6651 --cert cert.pem --key key.pem",
        "                    with users (auth.users) or a key of tokens (`router token --help`)",
    )
)
@data
@listener_options
@broker_certificate
@http
@config
def command(config: Path | None, **flags: str | None) -> None:
    """Run the broker of a data folder until it is stopped, without the HTTP of `serve`.

    Commands and web workers that use the same folder find it through its socket.
    """
    ignore_hangup()
    settings = settings_for(config, **flags)
    if settings.text("broker.http"):
        # Only who wants it waits for the HTTP server to be imported.
        from router.cli import administered  # noqa: PLC0415

        administered.serve(config, flags)
        return
    # The broker checks it too: this is to refuse before the folder is made.
    listeners.check(settings)
    for sentence in readable_secrets(settings):
        click.echo(f"router: {sentence}", err=True)
    with closing(broker_child.supervise(settings)) as supervision:
        supervision.outlive_exec()
        broker_child.run(settings)
