"""`router groups`: what waits for each group of a topic; moving groups, ending them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from router.cli import completing, connection, output
from router.cli.options import anywhere, as_json, examples

MEMBERS = ("CONSUMER", "NODE", "STATE")
PARTITIONS = ("PARTITION", "BACKLOG", "COMMITTED", "FIRST", "END", "HOLDER")
THIS_NODE = "this node"
HEADER = ("GROUP", "PARTITION", "BACKLOG", "CONSUMERS")

topic_argument = click.argument("topic", shell_complete=completing.topics_of)
group_argument = click.argument("group", shell_complete=completing.groups_of)


@click.group(
    epilog=examples(
        "router groups list orders",
        "router groups show orders billing",
        "router groups reset orders billing --to earliest --context prod",
        "router groups reset orders billing --to 2026-07-31T13:45:00Z",
        "router groups delete orders billing",
    )
)
def command() -> None:
    """See where the groups of a topic stand, move them, end them."""


@command.command(
    "list", epilog=examples("router groups list orders", "router groups list orders --json")
)
@topic_argument
@as_json
@anywhere
def list_groups(topic: str, as_json: bool, config: Path | None, **given: str | None) -> None:
    """Print for each group of TOPIC and each partition how many messages wait, and who reads."""
    with connection.connected(config, **given) as there:
        groups = there.groups(topic)
    rows = [
        (group.name, max(one.partition, 0), one.backlog, one.consumers)
        for group in groups
        for one in group.partitions
    ]
    if as_json:
        names = ("group", "partition", "backlog", "consumers")
        output.emit([dict(zip(names, row, strict=True)) for row in rows])
        return
    for line in output.table(HEADER, rows):
        click.echo(line)


@command.command(
    epilog=examples("router groups show orders billing", "router groups show orders billing --json")
)
@topic_argument
@group_argument
@as_json
@anywhere
def show(topic: str, group: str, as_json: bool, config: Path | None, **given: str | None) -> None:
    """Print who polls GROUP of TOPIC, and for each partition who holds it and where it stands."""
    with connection.connected(config, **given) as there:
        details = there.describe_group(topic, group)
    if as_json:
        output.emit({"topic": topic} | details)
        return
    for reason in (details["untold"], details["trouble"]):
        if reason:
            click.echo(reason, err=True)
    for line in output.table(MEMBERS, [_member(one) for one in details["members"] or ()]):
        click.echo(line)
    click.echo()
    for line in output.table(PARTITIONS, [_partition(one) for one in details["partitions"]]):
        click.echo(line)


@command.command(
    epilog=examples(
        "router groups reset orders billing --to earliest",
        "router groups reset orders billing --to latest",
        "router groups reset orders billing --to 2026-07-31T13:45:00+02:00",
        "router groups reset orders billing --to 1785505500000",
        "router groups reset orders billing --to 5:17:0,6:3:1     partitions 0 and 1 alone",
        "router groups reset orders billing --to latest --preview",
    )
)
@topic_argument
@group_argument
@click.option(
    "--to",
    required=True,
    metavar="WHERE",
    help="earliest, latest, milliseconds since 1970, a time with its zone, or positions.",
)
@click.option("--preview", is_flag=True, help="Say what the lag would be, and change nothing.")
@as_json
@anywhere
def reset(topic: str, group: str, to: str, preview: bool, as_json: bool, **given: Any) -> None:
    """Have GROUP of TOPIC go on at the beginning, the end, a time, or positions.

    At a time it goes on with the first message since. A position is LEDGER:ENTRY:PARTITION, as
    `router groups show` prints them; several have commas between them, and other partitions stay.
    Polls that wait go on there; what others hold at that moment is not acknowledged any more.
    """
    from router.services.group_details import shown_target  # noqa: PLC0415 - `--help` does without
    from router.services.groups import target  # noqa: PLC0415 - as above

    where = target("--to", to)
    told = {"group": group, "to": shown_target(where)}
    with connection.connected(given.pop("config"), **given) as there:
        if preview:
            found = there.preview_reset(topic, group, where)
            lags = {"lag": found.lag, "least": found.least, "most": found.most}
            _told(as_json, {"topic": topic, **told, "preview": lags}, found.sentence())
            return
        name = there.reset_group(topic, group, where)
    _told(as_json, {"topic": name, **told}, f"Reset {group} of {name} to {told['to']}")


@command.command(epilog=examples("router groups delete orders billing"))
@topic_argument
@group_argument
@as_json
@anywhere
def delete(topic: str, group: str, as_json: bool, config: Path | None, **given: str | None) -> None:
    """Delete GROUP of TOPIC; fails while it is read. A later poll makes a new one."""
    with connection.connected(config, **given) as there:
        name = there.delete_group(topic, group)
    told = {"topic": name, "group": group, "done": "deleted"}
    _told(as_json, told, f"Deleted {group} of {name}")


def _told(as_json: bool, document: Mapping[str, Any], sentence: str) -> None:
    if as_json:
        output.emit(document)
    else:
        click.echo(sentence)


def _member(one: Mapping[str, Any]) -> tuple[str, ...]:
    state = "-"
    if one["polling_ms"] is not None:
        state = f"polling for {one['polling_ms'] / 1000:.1f} s"
    elif one["idle_ms"] is not None:
        state = f"idle for {one['idle_ms'] / 1000:.1f} s"
    return one["consumer"], one["node"] or THIS_NODE, state


def _partition(one: Mapping[str, Any]) -> tuple[object, ...]:
    holder, lease = "-", one["holder"]
    if lease is not None and lease["node"] is not None:
        holder = lease["consumer"] or lease["node"] or THIS_NODE
    committed = one["committed"] or "-"
    return one["partition"], one["backlog"], committed, one["first"], one["end"], holder
