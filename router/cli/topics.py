"""`router topics`: list, create, delete and describe topics."""

from __future__ import annotations

from pathlib import Path

import click

from router.cli.options import examples, settings_for, store
from router.cli.store import Store, opened
from router.model import Policies, TopicStats


@click.group(
    epilog=examples(
        "router topics list",
        "router topics create orders                     not partitioned",
        "router topics create orders --partitions 4",
        "router topics describe persistent://public/default/orders",
        "router topics delete orders --backend pulsar://pulsar:6650?admin=http://pulsar:8080",
    )
)
def command() -> None:
    """Manage topics, on the running broker of the data folder or on one started for it."""


@command.command("list", epilog=examples("router topics list --data /var/lib/router"))
@store
def list_topics(config: Path | None, **flags: str | None) -> None:
    """Print all topics with their number of partitions; 0: not partitioned."""
    with opened(settings_for(config, **flags)) as found:
        topics = found.backend.list_topics(found.timeout)
        names = [found.shown(info.topic) for info in topics]
        width = max(map(len, names), default=0)
        for name, info in zip(names, topics, strict=True):
            click.echo(f"{name:<{width}}  {info.partitions}")


@command.command(epilog=examples("router topics create orders --partitions 4"))
@click.argument("name")
@click.option("--partitions", type=click.IntRange(0), default=0, help="0: not partitioned.")
@store
def create(name: str, partitions: int, config: Path | None, **flags: str | None) -> None:
    """Create a topic; fails when it exists."""
    with opened(settings_for(config, **flags)) as found:
        topic = found.topic(name)
        found.backend.create_topic(topic, partitions, Policies(), {}, found.timeout)
        click.echo(f"Created {topic}")


@command.command(epilog=examples("router topics delete orders"))
@click.argument("name")
@store
def delete(name: str, config: Path | None, **flags: str | None) -> None:
    """Delete a topic with its messages and groups."""
    with opened(settings_for(config, **flags)) as found:
        topic = found.topic(name)
        found.backend.delete_topic(topic, found.timeout)
        click.echo(f"Deleted {topic}")


@command.command(epilog=examples("router topics describe orders"))
@click.argument("name")
@store
def describe(name: str, config: Path | None, **flags: str | None) -> None:
    """Print what a topic holds: partitions, messages, bytes, groups and their backlog."""
    with opened(settings_for(config, **flags)) as found:
        topic = found.topic(name)
        click.echo("\n".join(_described(found, found.backend.describe_topic(topic, found.timeout))))


def _described(found: Store, stats: TopicStats) -> list[str]:
    info = stats.info
    lines = [f"{found.shown(info.topic)} ({info.topic})", f"partitions: {info.partitions}"]
    lines += [f"{key}: {value}" for key, value in sorted(info.properties.items())]
    for part in stats.partitions:
        lines.append(
            f"partition {max(part.partition, 0)}: {part.messages} messages, {part.bytes} bytes,"
            f" entries {part.first_entry} to {part.next_entry - 1} of ledger {part.ledger}"
        )
    for group in stats.subscriptions:
        lines.append(
            f"group {group.name}, partition {max(group.partition, 0)}:"
            f" {group.backlog} messages wait, {group.consumers} consumers"
        )
    return lines
