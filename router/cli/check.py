"""`router check`: the settings in force, what `serve` needs, and the state of the stored data."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

import click

from router import node_socket, supervised
from router.broker.ledger.check import Finding, check, repair
from router.broker.ledger.faults import StoreError
from router.cli.options import backend, config, data, examples, settings_for, tls, zookeeper
from router.cli.preflight import Outcome, preflight
from router.settings import DEFAULT, Settings, shown


@click.command(
    epilog=examples(
        "router check                                   settings in force, data in ./data",
        "router check --changed",
        "router check --config /etc/router/router.cfg --data /var/lib/router",
        "router check --data /var/lib/router --repair   after a look at the disk",
    )
)
@click.option("--changed", is_flag=True, help="Leave out settings that have their default.")
@click.option(
    "--repair", "mend", is_flag=True, help="Give up damaged ranges and take READ-ONLY away."
)
@data
@backend
@zookeeper
@tls
@config
def command(changed: bool, mend: bool, config: Path | None, **flags: str | None) -> None:
    """Print the settings in force and where each came from, try what `serve` needs, and read data.

    It tries the data folder, users, permissions, TLS, ports, the backend and ZooKeeper, and reads
    all stored data. Secrets are shown as ***. Exit status 78 says that a setting is wrong, 73 that
    the data folder cannot be used, 69 that something cannot be reached or listened on, 65 that data
    is damaged or the folder is marked READ-ONLY, 75 that a broker serves the folder, so that
    nothing can be repaired.
    """
    settings = settings_for(config, **flags)
    for line in listed(settings, changed=changed):
        click.echo(line)
    folder = Path(settings.text("data.dir"))
    runs = served(folder)
    status = 0 if mend else tried(preflight(settings, runs=runs))
    raise SystemExit(status or stored(folder, mend=mend, runs=runs))


def tried(outcomes: Iterable[Outcome]) -> int:
    """Print each outcome; return the exit status of the first that is not in order."""
    status = 0
    for outcome in outcomes:
        wrong = bool(outcome.status)
        click.echo(f"{'Error' if wrong else 'ok'}: {outcome.sentence}", err=wrong)
        status = status or outcome.status
    return status


def stored(folder: Path, *, mend: bool, runs: bool) -> int:
    """Check what the folder stores, or mend it; return the exit status."""
    if runs:
        click.echo(f"{folder}: a broker serves it; what is stored is checked when it is stopped")
        return os.EX_TEMPFAIL if mend else 0
    try:
        findings = repair(folder, time.time) if mend else check(folder)  # noqa: TID251 - its clock
    except StoreError as error:
        click.echo(f"Error: {error}", err=True)
        return os.EX_DATAERR
    return told(folder, findings)


def listed(settings: Settings, *, changed: bool) -> list[str]:
    """Return a line for each setting: name, text (secrets are ***) and origin."""
    found = [
        (name, shown(name, value.text), value.origin)
        for name, value in settings.values.items()
        if not changed or value.origin != DEFAULT
    ]
    width = max((len(name) for name, *_ in found), default=0)
    wide = max((len(text) for _, text, _ in found), default=0)
    return [f"{name:<{width}}  {text:<{wide}}  {origin}" for name, text, origin in found]


def served(folder: Path) -> bool:
    """Return whether a broker answers there, or a supervisor is about to have one."""
    return supervised.holder(folder) is not None or node_socket.answers(folder)


def told(folder: Path, findings: list[Finding]) -> int:
    """Print what was found; return the exit status."""
    for finding in findings:
        click.echo(f"{folder}: {finding.sentence}{' (repaired)' if finding.repaired else ''}")
    if any(finding.serious and not finding.repaired for finding in findings):
        click.echo(f"{folder}: damaged; `router check --data {folder} --repair` gives that up")
        return os.EX_DATAERR
    click.echo(f"{folder}: in order")
    return 0
