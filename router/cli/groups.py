"""`router groups`: what waits for each group of a topic; moving groups, ending them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from router.backends import Member
from router.cli.options import examples, settings_for, store
from router.cli.store import Store, opened
from router.model import Subscription
from router.services.group_details import (
    NO_NODE,
    GroupInspection,
    PartitionDetails,
    shown_target,
    written,
)
from router.services.groups import Group, Groups, target

MEMBERS = ("CONSUMER", "NODE", "STATE")
PARTITIONS = ("PARTITION", "BACKLOG", "COMMITTED", "FIRST", "END", "HOLDER")
THIS_NODE = "this node"
HEADER = ("GROUP", "PARTITION", "BACKLOG", "CONSUMERS")


@click.group(
    epilog=examples(
        "router groups list orders",
        "router groups show orders billing",
        "router groups reset orders billing --to earliest",
        "router groups reset orders billing --to 2026-07-31T13:45:00Z",
        "router groups delete orders billing",
    )
)
def command() -> None:
    """See where the groups of a topic stand, move them, end them."""


@command.command("list", epilog=examples("router groups list orders"))
@click.argument("topic")
@store
def list_groups(topic: str, config: Path | None, **flags: str | None) -> None:
    """Print for each group of TOPIC and each partition how many messages wait, and who reads."""
    with opened(settings_for(config, **flags)) as found:
        groups = _groups(found).listed(found.topic(topic))
    _print_table([HEADER, *(row for group in groups for row in _rows(group))])


@command.command(epilog=examples("router groups show orders billing"))
@click.argument("topic")
@click.argument("group")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
@store
def show(topic: str, group: str, as_json: bool, config: Path | None, **flags: str | None) -> None:
    """Print who polls GROUP of TOPIC, and for each partition who holds it and where it stands."""
    with opened(settings_for(config, **flags)) as found:
        inspection = GroupInspection(found.backend, found.node, found.timeout)
        details = inspection.details(Subscription(found.topic(topic), group))
    if as_json:
        click.echo(json.dumps({"topic": topic} | details.as_json(), indent=2))
        return
    for reason in (details.untold, details.members.trouble if details.members else NO_NODE):
        if reason:
            click.echo(reason, err=True)
    _print_table([MEMBERS, *map(_member, details.members.members if details.members else ())])
    click.echo()
    _print_table([PARTITIONS, *map(_partition, details.partitions)])


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
@click.argument("topic")
@click.argument("group")
@click.option(
    "--to",
    required=True,
    metavar="WHERE",
    help="earliest, latest, milliseconds since 1970, a time with its zone, or positions.",
)
@click.option("--preview", is_flag=True, help="Say what the lag would be, and change nothing.")
@store
def reset(
    topic: str, group: str, to: str, preview: bool, config: Path | None, **flags: str | None
) -> None:
    """Have GROUP of TOPIC go on at the beginning, the end, a time, or positions.

    At a time it goes on with the first message since. A position is LEDGER:ENTRY:PARTITION, as
    `router groups show` prints them; several have commas between them, and other partitions stay.
    Polls that wait go on there; what others hold at that moment is not acknowledged any more.
    """
    where = target("--to", to)
    with opened(settings_for(config, **flags)) as found:
        subscription, groups = Subscription(found.topic(topic), group), _groups(found)
        if preview:
            click.echo(groups.preview(subscription, where).sentence())
            return
        groups.reset(subscription, where)
    click.echo(f"Reset {group} of {subscription.topic} to {shown_target(where)}")


@command.command(epilog=examples("router groups delete orders billing"))
@click.argument("topic")
@click.argument("group")
@store
def delete(topic: str, group: str, config: Path | None, **flags: str | None) -> None:
    """Delete GROUP of TOPIC; fails while somebody reads it. A later poll makes it anew."""
    with opened(settings_for(config, **flags)) as found:
        subscription = Subscription(found.topic(topic), group)
        _groups(found).delete(subscription)
    click.echo(f"Deleted {group} of {subscription.topic}")


def _groups(found: Store) -> Groups:
    return Groups(found.backend, found.timeout)


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        name, *numbers = (text.rjust(width) for text, width in zip(row, widths, strict=True))
        click.echo("  ".join([name.strip().ljust(widths[0]), *numbers]))


def _member(one: Member) -> tuple[str, ...]:
    state = "-"
    if one.polling_ms is not None:
        state = f"polling for {one.polling_ms / 1000:.1f} s"
    elif one.idle_ms is not None:
        state = f"idle for {one.idle_ms / 1000:.1f} s"
    return one.consumer, one.node or THIS_NODE, state


def _partition(one: PartitionDetails) -> tuple[str, ...]:
    holder = "-"
    if one.lease is not None and one.lease.node is not None:
        holder = one.lease.consumer or one.lease.node or THIS_NODE
    committed = "-" if one.committed is None else written(one.committed)
    end = written(one.end)
    return str(one.partition), str(one.lag), committed, written(one.first), end, holder


def _rows(group: Group) -> list[tuple[str, ...]]:
    return [
        (group.name, str(max(one.partition, 0)), str(one.backlog), str(one.consumers))
        for one in group.partitions
    ]
