"""`router topics`: list, create, delete and describe topics."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from router.cli import completing, connection, output
from router.cli.options import anywhere, as_json, examples

if TYPE_CHECKING:
    from router.cli.connection import TopicDetails


@click.group(
    epilog=examples(
        "router topics list",
        "router topics create orders                     not partitioned",
        "router topics create orders --partitions 4 --context prod",
        "router topics describe persistent://public/default/orders",
        "router topics delete orders --backend pulsar://pulsar:6650?admin=http://pulsar:8080",
    )
)
def command() -> None:
    """Manage topics, of a router elsewhere, or on the broker of the data folder."""


@command.command(
    "list",
    epilog=examples(
        "router topics list --data /var/lib/router",
        "router topics list --context prod --json",
    ),
)
@as_json
@anywhere
def list_topics(as_json: bool, config: Path | None, **given: str | None) -> None:
    """Print all topics with their number of partitions; 0: not partitioned."""
    with connection.connected(config, **given) as there:
        found = there.topics()
    if as_json:
        output.emit([{"name": one.name, "partitions": one.partitions} for one in found])
        return
    # What another program reads has no header.
    header = ("TOPIC", "PARTITIONS") if sys.stdout.isatty() else ()
    for line in output.table(header, [(one.name, one.partitions) for one in found]):
        click.echo(line)


@command.command(epilog=examples("router topics create orders --partitions 4"))
@click.argument("name")
@click.option("--partitions", type=click.IntRange(0), default=0, help="0: not partitioned.")
@as_json
@anywhere
def create(
    name: str, partitions: int, as_json: bool, config: Path | None, **given: str | None
) -> None:
    """Create a topic; fails when it exists."""
    with connection.connected(config, **given) as there:
        _told(as_json, "Created", there.create_topic(name, partitions))


@command.command(epilog=examples("router topics delete orders"))
@click.argument("name", shell_complete=completing.topics_of)
@as_json
@anywhere
def delete(name: str, as_json: bool, config: Path | None, **given: str | None) -> None:
    """Delete a topic with its messages and groups."""
    with connection.connected(config, **given) as there:
        _told(as_json, "Deleted", there.delete_topic(name))


@command.command(
    epilog=examples("router topics describe orders", "router topics describe orders --json")
)
@click.argument("name", shell_complete=completing.topics_of)
@as_json
@anywhere
def describe(name: str, as_json: bool, config: Path | None, **given: str | None) -> None:
    """Print what a topic holds: partitions, messages, bytes, groups and their backlog.

    A router elsewhere does not tell of messages and bytes.
    """
    with connection.connected(config, **given) as there:
        found = there.describe_topic(name)
    if as_json:
        output.emit(_document(found))
        return
    for line in _described(found):
        click.echo(line)


def _told(as_json: bool, done: str, topic: str) -> None:
    if as_json:
        output.emit({"topic": topic, "done": done.lower()})
    else:
        click.echo(f"{done} {topic}")


def _document(found: TopicDetails) -> dict[str, Any]:
    parts = (
        None
        if found.parts is None
        else [
            {
                "partition": max(part.partition, 0),
                "messages": part.messages,
                "bytes": part.bytes,
                "ledger": part.ledger,
                "first_entry": part.first_entry,
                "next_entry": part.next_entry,
            }
            for part in found.parts
        ]
    )
    return {
        "name": found.name,
        "full_name": found.full_name,
        "partitions": found.partitions,
        "properties": found.properties,
        "stored": parts,
        "groups": [
            {"name": group.name, "backlog": group.backlog, "consumers": group.consumers}
            for group in found.groups
        ],
    }


def _described(found: TopicDetails) -> Iterator[str]:
    yield f"{found.name} ({found.full_name})"
    yield f"partitions: {found.partitions}"
    for key, value in sorted(found.properties.items()):
        yield f"{key}: {value}"
    for part in found.parts or ():
        yield (
            f"partition {max(part.partition, 0)}: {part.messages} messages, {part.bytes} bytes,"
            f" entries {part.first_entry} to {part.next_entry - 1} of ledger {part.ledger}"
        )
    for group in found.groups:
        for one in group.partitions:
            yield (
                f"group {group.name}, partition {max(one.partition, 0)}:"
                f" {one.backlog} messages wait, {one.consumers} consumers"
            )
