"""`router check`: the settings in force, what `serve` needs, and the state of the stored data."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from router.broker.storage import StoreError
from router.broker.storage.files import InspectionFinding, check, repair
from router.cli import output
from router.cli.options import anywhere, as_json, context_of, examples, settings_for, tls, zookeeper
from router.cli.preflight import CheckOutcome, preflight
from router.cli.status import status_of
from router.errors import RouterError
from router.process import node_socket, supervised
from router.settings import DEFAULT, Settings, shown

if TYPE_CHECKING:
    from router.cli.contexts import Context
    from router.cli.http_client import HttpClient, HttpResponse

CHECK_SECONDS: Final = 10.0
"""Time that a router elsewhere has for each answer."""


@click.command(
    epilog=examples(
        "router check                                   settings in force, data in ./data",
        "router check --changed",
        "router check --config /etc/router/router.cfg --data /var/lib/router",
        "router check --data /var/lib/router --repair   after a look at the disk",
        "router check --context prod --json",
    )
)
@click.option("--changed", is_flag=True, help="Leave out settings that have their default.")
@click.option(
    "--repair", "mend", is_flag=True, help="Give up damaged ranges and take READ-ONLY away."
)
@as_json
@zookeeper
@tls
@anywhere
def command(
    changed: bool, mend: bool, as_json: bool, config: Path | None, **given: str | None
) -> None:
    """Print the settings in force and where each came from, try what `serve` needs, and read data.

    It tries the data folder, users, permissions, TLS, ports, the backend and ZooKeeper, and reads
    all stored data. Secrets are shown as ***. Exit status 78 says that a setting is wrong, 73 that
    the data folder cannot be used, 69 that something cannot be reached or listened on, 65 that data
    is damaged or the folder is marked READ-ONLY, 75 that a broker serves the folder, so that
    nothing can be repaired.

    With --context or --server it tries that router instead: whether it answers, is ready, and knows
    the user.
    """
    context, flags = context_of(config, given)
    report = CheckReport(as_json=as_json)
    if context is not None:
        if mend or changed:
            raise click.UsageError("--repair and --changed are for the data folder.")
        report.end(report.tried(_remote(context)))
    settings = settings_for(config, **flags)
    report.settings(settings, changed=changed)
    folder = Path(settings.text("data.dir"))
    runs = served(folder)
    status = 0 if mend else report.tried(preflight(settings, runs=runs))
    report.end(status or stored(report, folder, mend=mend, runs=runs))


class CheckReport:
    """What is found: lines as it comes, or one JSON document at the end."""

    def __init__(self, *, as_json: bool = False) -> None:
        self._as_json = as_json
        self._document: dict[str, Any] = {"settings": [], "checks": []}

    def settings(self, settings: Settings, *, changed: bool) -> None:
        """Report the settings in force."""
        if not self._as_json:
            for line in listed(settings, changed=changed):
                click.echo(line)
            return
        self._document["settings"] = [
            {"name": name, "value": text, "origin": origin}
            for name, text, origin in _values(settings, changed=changed)
        ]

    def tried(self, outcomes: Iterable[CheckOutcome]) -> int:
        """Report each outcome; return the exit status of the first that is not in order."""
        status = 0
        for outcome in outcomes:
            wrong = bool(outcome.status)
            self.add(f"{'Error' if wrong else 'ok'}: {outcome.sentence}", outcome, wrong=wrong)
            status = status or outcome.status
        return status

    def add(self, line: str, outcome: CheckOutcome, *, wrong: bool = False) -> None:
        """Report an outcome, for people by a line."""
        if self._as_json:
            self._document["checks"].append(
                {"ok": not outcome.status, "sentence": outcome.sentence, "status": outcome.status}
            )
        else:
            click.echo(line, err=wrong)

    def end(self, status: int) -> NoReturn:
        """End the command with this status."""
        if self._as_json:
            output.emit(self._document | {"status": status})
        raise SystemExit(status)


def stored(report: CheckReport, folder: Path, *, mend: bool, runs: bool) -> int:
    """Check what the folder stores, or mend it; return the exit status."""
    if runs:
        sentence = f"{folder}: a broker serves it; what is stored is checked when it is stopped"
        status = os.EX_TEMPFAIL if mend else 0
        report.add(sentence, CheckOutcome(sentence, status))
        return status
    try:
        findings = repair(folder, time.time) if mend else check(folder)  # noqa: TID251 - its clock
    except StoreError as error:
        report.add(f"Error: {error}", CheckOutcome(str(error), os.EX_DATAERR), wrong=True)
        return os.EX_DATAERR
    return report_findings(folder, findings, report)


def listed(settings: Settings, *, changed: bool) -> list[str]:
    """Return a line for each setting: name, text (secrets are ***) and origin."""
    found = _values(settings, changed=changed)
    width = max((len(name) for name, *_ in found), default=0)
    wide = max((len(text) for _, text, _ in found), default=0)
    return [f"{name:<{width}}  {text:<{wide}}  {origin}" for name, text, origin in found]


def _values(settings: Settings, *, changed: bool) -> list[tuple[str, str, str]]:
    return [
        (name, shown(name, value.text), value.origin)
        for name, value in settings.values.items()
        if not changed or value.origin != DEFAULT
    ]


def served(folder: Path) -> bool:
    """Return whether a broker answers there, or a supervisor is about to have one."""
    return supervised.holder(folder) is not None or node_socket.answers(folder)


def report_findings(
    folder: Path, findings: list[InspectionFinding], report: CheckReport | None = None
) -> int:
    """Report what was found; return the exit status."""
    report = report or CheckReport()
    left = [finding for finding in findings if finding.serious and not finding.repaired]
    for finding in findings:
        sentence = f"{folder}: {finding.sentence}{' (repaired)' if finding.repaired else ''}"
        report.add(sentence, CheckOutcome(sentence, os.EX_DATAERR if finding in left else 0))
    if left:
        sentence = f"{folder}: damaged; `router check --data {folder} --repair` gives that up"
        if not all(finding.repairable for finding in left):
            sentence += (
                ", but for what cannot be read: first copy that file elsewhere with zeros in place "
                "of those sectors (`dd conv=noerror,sync bs=4096`), and put the copy in its place"
            )
        report.add(sentence, CheckOutcome(sentence, os.EX_DATAERR))
        return os.EX_DATAERR
    report.add(f"{folder}: in order", CheckOutcome(f"{folder}: in order"))
    return 0


def _remote(context: Context) -> Iterator[CheckOutcome]:
    """Yield what came of each check of a router elsewhere, of the first alone if it is silent."""
    from router.cli.http_client import HttpClient  # noqa: PLC0415 - no other check needs it

    with closing(HttpClient(context, deadline=CHECK_SECONDS)) as client:
        began = time.monotonic()
        found, answered = _request_outcome(client, "/health", lambda _: "HTTP is answered")
        took = round((time.monotonic() - began) * 1000)
        yield CheckOutcome(f"{found.sentence} ({context.server}, {took} ms)", found.status)
        if not answered:
            return
        for path, tell in (
            ("/ready", lambda _: "publishes and polls are served"),
            ("/topics", lambda answer: _known(context, answer)),
        ):
            yield _request_outcome(client, path, tell)[0]


def _request_outcome(
    client: HttpClient, path: str, tell: Callable[[HttpResponse], str]
) -> tuple[CheckOutcome, bool]:
    try:
        return CheckOutcome(tell(client.get(path))), True
    except RouterError as error:
        return CheckOutcome(f"{path}: {error}", status_of(error)), False


def _known(context: Context, answer: HttpResponse) -> str:
    who = context.user or ("the token" if context.token or context.token_file else "anonymous")
    return f"as {who}: {len(answer.json()['topics'])} topics can be seen"
