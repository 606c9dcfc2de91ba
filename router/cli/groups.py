"""`router groups`: what waits for each group of a topic; moving groups, ending them."""

from __future__ import annotations

from pathlib import Path

import click

from router.backends import Start
from router.cli.options import examples, settings_for, store
from router.cli.store import Store, opened
from router.model import Subscription
from router.services.groups import Group, Groups, moment

HEADER = ("GROUP", "PARTITION", "BACKLOG", "CONSUMERS")


@click.group(
    epilog=examples(
        "router groups list orders",
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
    rows = [HEADER, *(row for group in groups for row in _rows(group))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    for row in rows:
        name, *numbers = (text.rjust(width) for text, width in zip(row, widths, strict=True))
        click.echo("  ".join([name.strip().ljust(widths[0]), *numbers]))


@command.command(
    epilog=examples(
        "router groups reset orders billing --to earliest",
        "router groups reset orders billing --to latest",
        "router groups reset orders billing --to 2026-07-31T13:45:00+02:00",
        "router groups reset orders billing --to 1785505500000",
    )
)
@click.argument("topic")
@click.argument("group")
@click.option(
    "--to",
    required=True,
    metavar="WHERE",
    help="earliest, latest, milliseconds since 1970, or a time with its zone.",
)
@store
def reset(topic: str, group: str, to: str, config: Path | None, **flags: str | None) -> None:
    """Have GROUP of TOPIC go on at the beginning, the end, or the first message since a time.

    Polls that wait go on there; what others hold at that moment is not acknowledged any more.
    """
    where = moment("--to", to)
    with opened(settings_for(config, **flags)) as found:
        subscription = Subscription(found.topic(topic), group)
        _groups(found).reset(subscription, where)
    told = where.value if isinstance(where, Start) else where
    click.echo(f"Reset {group} of {subscription.topic} to {told}")


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


def _rows(group: Group) -> list[tuple[str, ...]]:
    return [
        (group.name, str(max(one.partition, 0)), str(one.backlog), str(one.consumers))
        for one in group.partitions
    ]
