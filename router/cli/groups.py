"""`router groups`: what waits for each group of a topic; moving groups, ending them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from router.cli import connecting, output
from router.cli.connection import StoreConnection
from router.cli.options import anywhere, as_json, examples

MEMBERS = ("CONSUMER", "NODE", "STATE")
PARTITIONS = ("PARTITION", "BACKLOG", "COMMITTED", "FIRST", "END", "HOLDER")
THIS_NODE = "this node"
HEADER = ("GROUP", "PARTITION", "BACKLOG", "CONSUMERS")

topic_argument = click.argument("topic", shell_complete=connecting.complete_topics)
group_argument = click.argument("group", shell_complete=connecting.complete_groups)


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
@connecting.command_there
def list_groups(there: StoreConnection, topic: str, *, as_json: bool) -> None:
    """Print for each group of TOPIC and each partition how many messages wait, and who reads."""
    rows = [
        (group.name, max(one.partition, 0), one.backlog, one.consumers)
        for group in there.groups(topic)
        for one in group.partitions
    ]
    names = ("group", "partition", "backlog", "consumers")
    document = [dict(zip(names, row, strict=True)) for row in rows]
    output.respond(as_json, document, *output.table(HEADER, rows))


@command.command(
    epilog=examples("router groups show orders billing", "router groups show orders billing --json")
)
@topic_argument
@group_argument
@connecting.command_there
def show(there: StoreConnection, topic: str, group: str, *, as_json: bool) -> None:
    """Print who polls GROUP of TOPIC, and for each partition who holds it and where it stands."""
    details = there.describe_group(topic, group)
    for reason in (details["untold"], details["trouble"]):
        if reason and not as_json:
            click.echo(reason, err=True)
    members = output.table(MEMBERS, [_member(one) for one in details["members"] or ()])
    partitions = output.table(PARTITIONS, [_partition(one) for one in details["partitions"]])
    output.respond(as_json, {"topic": topic} | details, *members, "", *partitions)


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
    document = {"group": group, "to": shown_target(where)}
    with connecting.connected(given.pop("config"), **given) as there:
        if preview:
            found = there.preview_reset(topic, group, where)
            lags = {"lag": found.lag, "least": found.least, "most": found.most}
            output.respond(as_json, {"topic": topic, **document, "preview": lags}, found.sentence())
            return
        name = there.reset_group(topic, group, where)
    sentence = f"Reset {group} of {name} to {document['to']}"
    output.respond(as_json, {"topic": name, **document}, sentence)


@command.command(epilog=examples("router groups delete orders billing"))
@topic_argument
@group_argument
@connecting.command_there
def delete(there: StoreConnection, topic: str, group: str, *, as_json: bool) -> None:
    """Delete GROUP of TOPIC; fails while it is read. A later poll makes a new one."""
    name = there.delete_group(topic, group)
    document = {"topic": name, "group": group, "done": "deleted"}
    output.respond(as_json, document, f"Deleted {group} of {name}")


def _member(one: Mapping[str, Any]) -> tuple[str, ...]:
    state = one.get("client") or "-"
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
