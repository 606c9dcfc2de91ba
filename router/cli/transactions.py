"""`router transactions`: which are open, what one has, and its abort."""

from __future__ import annotations

from typing import Any, Final

import click

from router.cli import connecting, output
from router.cli.connection import StoreConnection
from router.cli.options import examples

HEADER: Final = (
    *("ID", "PRODUCER", "STATE", "AGE", "TIMEOUT", "PARTITIONS", "POSITIONS"),
    "USER",
)
JOINED: Final = ("TOPIC", "PARTITION", "MESSAGES")
COMMITS: Final = ("GROUP", "TOPIC", "PARTITION", "OFFSET")
ACKNOWLEDGED: Final = ("SUBSCRIPTION", "TOPIC", "PARTITION", "ENTRIES", "ALL THROUGH")

id_argument = click.argument("transaction", metavar="ID")


@click.group(
    epilog=examples(
        "router transactions list",
        "router transactions describe kafka:4294967297",
        "router transactions describe orders-0              by the transactional id",
        "router transactions abort kafka:4294967297 --context prod",
    )
)
def command() -> None:
    """See which transactions are open, and abort one that holds readers up."""


@command.command(
    "list", epilog=examples("router transactions list", "router transactions list --json")
)
@connecting.command_there
def list_transactions(there: StoreConnection, *, as_json: bool) -> None:
    """Print the open transactions, the oldest first.

    Messages behind the first one of an open transaction wait in its partition until it ends.
    """
    found = there.transactions()
    rows = [_row(one) for one in found["transactions"]]
    lines = output.table(HEADER, rows)
    if len(rows) < found["count"]:
        lines.append(f"{found['count'] - len(rows)} more")
    output.respond(as_json, found["transactions"], *lines)


@command.command(epilog=examples("router transactions describe kafka:4294967297"))
@id_argument
@connecting.command_there
def describe(there: StoreConnection, transaction: str, *, as_json: bool) -> None:
    """Print the open transaction ID, its partitions, and what it commits and acknowledges.

    ID is as `list` prints it, or the transactional id of its producer.
    """
    found = there.describe_transaction(transaction)
    joined = [(one["topic"], one["partition"], one["messages"]) for one in found["joined"]]
    commits = [
        (one["group"], one["topic"], one["partition"], one["number"]) for one in found["commits"]
    ]
    acknowledged = [
        (
            *(one[field] for field in ("subscription", "topic", "partition", "entries")),
            "-" if one["through"] is None else one["through"],
        )
        for one in found["acknowledged"]
    ]
    output.respond(
        as_json,
        found,
        *output.table(HEADER, [_row(found)]),
        "",
        *output.table(JOINED, joined),
        *(["", *output.table(COMMITS, commits)] if commits else []),
        *(["", *output.table(ACKNOWLEDGED, acknowledged)] if acknowledged else []),
    )


@command.command(epilog=examples("router transactions abort kafka:4294967297"))
@id_argument
@connecting.command_there
def abort(there: StoreConnection, transaction: str, *, as_json: bool) -> None:
    """Abort the open transaction ID: its messages are deleted, and its producer is fenced."""
    found = there.abort_transaction(transaction)
    output.respond(as_json, {**found, "done": "aborted"}, f"Aborted {found['id']}")


def _row(one: dict[str, Any]) -> tuple[object, ...]:
    return (
        one["id"],
        one["producer"] or "-",
        one["state"],
        f"{one['age']:.0f} s",
        f"{one['timeout']:.0f} s",
        one["partitions"],
        one["positions"],
        one["user"] or "-",
    )
