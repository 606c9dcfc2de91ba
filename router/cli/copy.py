"""`router copy`: topics, messages and groups from one store to another."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from router.backends import Start
from router.cli import output
from router.cli.options import as_json as json_option
from router.cli.options import examples
from router.clocks import wall_ms
from router.errors import BadReadOptionError
from router.services.groups import moment
from router.settings import size

if TYPE_CHECKING:
    from router.cli.copy_run import CopyRequest


@click.command(
    epilog=examples(
        "router copy data kafka.cfg --dry-run         what would be copied",
        "router copy data kafka.cfg                   once, with groups and access rights",
        "router copy data kafka.cfg --follow          and go on until Ctrl-C",
        "router copy data kafka.cfg --verify-only --verify=all",
        "router copy kafka://localhost:9092 new-data --topics 'orders*' --since 2026-01-01T00:00Z",
        "router copy pulsar://old:6650 new.cfg --rate 20M",
    )
)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option(
    "--topics",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    help="Only topics of such names (* and ?); may be repeated.  [default: all]",
)
@click.option("--since", metavar="TIME", help="Only messages published then or later.")
@click.option("--groups/--no-groups", default=True, show_default=True, help="Groups' positions.")
@click.option(
    "--access/--no-access",
    default=True,
    show_default=True,
    help="API keys, owners, access lists, blacklist, secrets, if both ends have a registry.",
)
@click.option("--follow", is_flag=True, help="Go on copying what comes, until Ctrl-C.")
@click.option("--until-level", is_flag=True, help="With --follow: end when nothing is behind.")
@click.option("--into-existing", is_flag=True, help="Copy behind messages that the target holds.")
@click.option(
    "--verify",
    type=click.Choice(("sample", "all")),
    is_flag=False,
    flag_value="sample",
    metavar="[=sample|all]",
    help="Compare afterwards what both ends hold: some batches, or all.",
)
@click.option("--verify-only", is_flag=True, help="Compare, and copy nothing.")
@click.option("--rate", metavar="BYTES", default="0", help="Bytes a second at most, such as 20M.")
@click.option(
    "--state",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="What was copied.  [default: in the data folder of TO, else of FROM]",
)
@click.option("--dry-run", is_flag=True, help="Print what would be copied, and copy nothing.")
@json_option
def command(source: str, target: str, as_json: bool, **given: Any) -> None:
    """Copy topics, their messages and groups from FROM to TO, each message once.

    FROM and TO are a configuration file (*.cfg), a data folder, or the URL of a backend:
    kafka://host:port, pulsar://host:port (Apache Pulsar, or the Pulsar listener of a router).
    FROM may also be a NATS server, nats://[user:password@]host:port, whose streams are copied.
    Routers may run on both meanwhile; while nodes serve TO, name their configuration file, not the
    URL of its store, so that both share leases. A copy that ended, in whatever way, goes on where
    it stopped when the same command is run again.

    Exit status 3 says that a comparison found differences.
    """
    from router.cli import copy_run  # noqa: PLC0415 - `--help` does without

    if not source or not target:
        raise click.UsageError("FROM and TO name a store: they cannot be empty.")
    request = _request(copy_run.CopyRequest, given)
    with ExitStack() as stack:
        stop = stack.enter_context(_stopped_by_signals())
        report = copy_run.run(source, target, request, stop)
    if as_json:
        output.emit(report.document())
    else:
        for line in report.lines():
            click.echo(line)
    for sentence in report.failures:
        click.echo(f"Error: {sentence}", err=True)
    raise SystemExit(report.status)


def _request(cls: type[CopyRequest], given: dict[str, Any]) -> CopyRequest:
    """Return what the options ask for; raise UsageError."""
    if given["until_level"] and not given["follow"]:
        raise click.UsageError("--until-level goes with --follow.")
    if given["verify_only"] and (given["follow"] or given["dry_run"]):
        raise click.UsageError("--verify-only copies nothing: it does not go with that option.")
    since = given.pop("since")
    try:
        start = None if since is None else moment("--since", since)
    except BadReadOptionError as error:
        raise click.UsageError(str(error)) from error
    if start is Start.LATEST or (isinstance(start, int) and start > wall_ms()):
        raise click.UsageError("--since is a time: nothing was published later than now.")
    rate = given.pop("rate")
    try:
        bytes_a_second = size(rate)
    except ValueError as error:
        raise click.UsageError(f"--rate: {error}") from error
    return cls(since=start if isinstance(start, int) else None, rate=bytes_a_second, **given)


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """Give what SIGINT and SIGTERM set; a second one ends the process."""
    stop = threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}

    def stopped(number: int, frame: object) -> None:
        stop.set()
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in numbers:
        signal.signal(number, stopped)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
