"""`router demo`: topics, traffic, groups and dead letters on a running router, to look at."""

from __future__ import annotations

import math
from contextlib import closing
from typing import TYPE_CHECKING, Final

import click

from router.cli import contexts, options
from router.settings.parsing import duration

if TYPE_CHECKING:
    from router.cli.remote import RemoteConnection

SERVER: Final = "http://127.0.0.1:3904"
"""Where `router serve` listens without settings."""
MAX_MESSAGES_PER_SECOND: Final = 1_000.0


def _seconds(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> float:
    try:
        return math.inf if text is None else duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command(
    epilog=options.examples(
        "router demo                                    until Ctrl-C",
        "router demo --rate 200 --for 10m",
        "router demo --server https://router:3905 --user anna",
        "router demo --remove",
    )
)
@click.option(
    "--rate",
    type=click.FloatRange(0, MAX_MESSAGES_PER_SECOND, min_open=True),
    default=20.0,
    show_default=True,
    help="Messages a second, all topics together.",
)
@click.option(
    "--for",
    "seconds",
    metavar="DURATION",
    callback=_seconds,
    help="Stop after this time, as 10m.  [default: at Ctrl-C]",
)
@click.option(
    "--seed", type=int, default=1, show_default=True, help="The same seed: the same messages."
)
@click.option("--remove", is_flag=True, help="Delete the topics of the demo with their messages.")
@options.elsewhere
def command(rate: float, seconds: float, seed: int, remove: bool, **given: str | None) -> None:
    """Fill a running router with topics, traffic, groups, dead letters and a stream.

    All names begin with demo-. It uses the HTTP API of the router on this machine, or of the one
    that options or the context in use name.
    """
    from router.cli.remote import RemoteConnection  # noqa: PLC0415 - `--help` does without

    context, _ = options.context_of(None, given)
    with closing(RemoteConnection(context or contexts.Context(SERVER), options.warn)) as there:
        if remove:
            _remove(there)
        else:
            _run(there, rate, seconds, seed)


def _remove(there: RemoteConnection) -> None:
    from router.cli.demo_run import remove  # noqa: PLC0415 - as above

    removed = remove(there)
    click.echo(f"Deleted {', '.join(removed)}" if removed else "There is nothing to delete.")


def _run(there: RemoteConnection, rate: float, seconds: float, seed: int) -> None:
    from router.cli.demo_messages import DemoMessages  # noqa: PLC0415 - as above
    from router.cli.demo_run import Demo  # noqa: PLC0415 - as above

    click.echo(f"Console: {there.context.server}/console/")
    demo = Demo(there, DemoMessages(seed), options.warn)
    try:
        demo.create()
        click.echo(
            f"Publishing {rate:g} messages a second to {', '.join(demo.topics)}."
            " Ctrl-C ends it; `router demo --remove` deletes them."
        )
        demo.run(rate, seconds)
    except KeyboardInterrupt:
        pass
    click.echo(f"Published {demo.published:,} messages, {demo.dead_letters:,} of them dead letters")
