"""`router topics`: list, create, delete and describe topics, and read compacted ones by key."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import click

from router.cli import connecting, output
from router.cli.connection import StoreConnection, TopicDetails
from router.cli.options import examples
from router.model.policies import CLEANUP_POLICIES, MAX_LATEST


@click.group(
    epilog=examples(
        "router topics list",
        "router topics create orders                     not partitioned",
        "router topics create orders --partitions 4 --context prod",
        "router topics describe persistent://public/default/orders",
        "router topics latest prices tea",
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
        "router topics list --internal --backend kafka://kafka:9092",
    ),
)
@click.option("--internal", is_flag=True, help="List the internal topics of the store as well.")
@connecting.command_there
def list_topics(there: StoreConnection, *, internal: bool, as_json: bool) -> None:
    """Print all topics with their number of partitions; 0: not partitioned."""
    found = there.topics(internal=internal)
    # What another program reads has no header.
    header = ("TOPIC", "PARTITIONS", "") if output.for_people() else ()
    rows = [(one.name, one.partitions, "internal" if one.internal else "") for one in found]
    output.respond(as_json, [asdict(one) for one in found], *output.table(header, rows))


@command.command(
    epilog=examples(
        "router topics create orders --partitions 4",
        "router topics create prices --cleanup-policy compact",
    )
)
@click.argument("name")
@click.option("--partitions", type=click.IntRange(0), default=0, help="0: not partitioned.")
@click.option(
    "--cleanup-policy",
    "cleanup",
    type=click.Choice(CLEANUP_POLICIES[:3]),
    help="compact: the newest message of each key stays, whatever its age.",
)
@connecting.command_there
def create(
    there: StoreConnection, name: str, partitions: int, cleanup: str | None, *, as_json: bool
) -> None:
    """Create a topic; fails when it exists."""
    output.report(as_json, "Created", "topic", there.create_topic(name, partitions, cleanup))


@command.command(epilog=examples("router topics delete orders"))
@click.argument("name", shell_complete=connecting.complete_topics)
@connecting.command_there
def delete(there: StoreConnection, name: str, *, as_json: bool) -> None:
    """Delete a topic with its messages and groups."""
    output.report(as_json, "Deleted", "topic", there.delete_topic(name))


@command.command(
    epilog=examples("router topics describe orders", "router topics describe orders --json")
)
@click.argument("name", shell_complete=connecting.complete_topics)
@connecting.command_there
def describe(there: StoreConnection, name: str, *, as_json: bool) -> None:
    """Print what a topic holds: partitions, messages, bytes, groups and their backlog.

    A router elsewhere does not tell of messages and bytes.
    """
    found = there.describe_topic(name)
    output.respond(as_json, _document(found), *_described(found))


@command.command(
    epilog=examples(
        "router topics latest prices",
        "router topics latest prices tea",
        "router topics latest prices dGVh --base64 --json",
    )
)
@click.argument("name", metavar="TOPIC", shell_complete=connecting.complete_topics)
@click.argument("key", required=False)
@click.option("--base64", "encoded", is_flag=True, help="KEY is in base64.")
@click.option(
    "--limit",
    type=click.IntRange(1, MAX_LATEST),
    default=100,
    show_default=True,
    help="At most so many keys.",
)
@click.option("--after", help="Go on with the keys behind those of an earlier list: its `next`.")
@connecting.command_there
def latest(
    there: StoreConnection,
    name: str,
    key: str | None,
    limit: int,
    after: str | None,
    *,
    encoded: bool,
    as_json: bool,
) -> None:
    """Print the newest value of KEY, or of each key, of a compacted topic."""
    if key is not None:
        found = there.latest_value(name, _key(key, encoded=encoded))
        output.respond(as_json, found, _shown(found, "value"))
        return
    page = there.latest_values(name, after, limit)
    rows = [(_shown(one, "key"), _shown(one, "value")) for one in page["values"]]
    header = ("KEY", "VALUE") if output.for_people() else ()
    output.respond(as_json, page, *output.table(header, rows))
    if page["next"] is not None and not as_json:
        click.echo(f"There are more: --after {page['next']}", err=True)


def _key(text: str, *, encoded: bool) -> bytes:
    if not encoded:
        return text.encode("utf-8", "surrogateescape")
    try:
        return b64decode(text, validate=True)
    except ValueError as error:
        raise click.BadParameter("it is not in base64", param_hint="KEY") from error


def _shown(message: Mapping[str, Any], member: str) -> str:
    """Return a key or a value on one line: JSON as it is, what is no text in base64."""
    found = message.get(member, message.get(f"{member}_base64"))
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


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
