"""`router groups` on the store in memory."""

from __future__ import annotations

import json

import pytest

from router.backends import Batch, Start
from router.backends.memory import MemoryBackend
from router.cli import status
from router.model import Message, Subscription, TopicInfo, TopicName
from tests.unit.cli.test_commands import backend, run

__all__ = ["backend"]

TOPIC = TopicName.parse("orders")


@pytest.fixture
def orders(backend: MemoryBackend) -> MemoryBackend:
    """A topic of two partitions with three messages, and two groups."""
    backend.create_topic(TopicInfo(TOPIC, 2), 1)
    backend.subscribe(Subscription(TOPIC, "billing"), Start.EARLIEST, 1)
    messages = [Message(b"%d" % number) for number in range(3)]
    backend.publish(Batch(TOPIC, 1, messages), 1)
    backend.subscribe(Subscription(TOPIC, "a group"), Start.LATEST, 1)
    return backend


def table() -> list[list[str]]:
    lines = run("groups", "list", "orders").output.replace("a group", "a-group").splitlines()
    return [line.split() for line in lines]


@pytest.mark.usefixtures("orders")
def test_list_is_a_table_of_what_waits() -> None:
    assert table() == [
        ["GROUP", "PARTITION", "BACKLOG", "CONSUMERS"],
        ["a-group", "0", "0", "0"],
        ["a-group", "1", "0", "0"],
        ["billing", "0", "0", "0"],
        ["billing", "1", "3", "0"],
    ]


@pytest.mark.parametrize("to", ["earliest", "0", "1970-01-01T00:00:00Z"])
@pytest.mark.usefixtures("orders")
def test_reset_moves_a_group(to: str) -> None:
    moved = run("groups", "reset", "orders", "a group", "--to", to)
    assert (moved.exit_code, moved.output.split()[0]) == (0, "Reset")
    assert table()[2] == ["a-group", "1", "3", "0"]
    assert run("groups", "reset", "orders", "a group", "--to", "latest").exit_code == 0
    assert table()[2] == ["a-group", "1", "0", "0"]


def test_reset_to_positions_is_shown_before_it_is_done(orders: MemoryBackend) -> None:
    place = f"{orders.describe_topic(TOPIC, 1).partitions[1].ledger}:0:1"
    asked = ("groups", "reset", "orders", "a group", "--to", place)
    told = run(*asked, "--preview")
    assert told.output == "Lag now: 0. Lag after the reset: between 1 and 3.\n"
    assert table()[2] == ["a-group", "1", "0", "0"]
    assert run(*asked).output.endswith(f"to {place}\n")
    assert table()[2] == ["a-group", "1", "3", "0"]


def test_show_tells_where_a_group_stands(orders: MemoryBackend) -> None:
    ledgers = [one.ledger for one in orders.describe_topic(TOPIC, 1).partitions]
    lines = [
        line.split() for line in run("groups", "show", "orders", "billing").output.splitlines()
    ]
    assert lines == [
        ["CONSUMER", "NODE", "STATE"],
        [],
        ["PARTITION", "BACKLOG", "COMMITTED", "FIRST", "END", "HOLDER"],
        ["0", "0", "-", f"{ledgers[0]}:0:0", f"{ledgers[0]}:0:0", "-"],
        ["1", "3", "-", f"{ledgers[1]}:0:1", f"{ledgers[1]}:1:1", "-"],
    ]
    found = json.loads(run("groups", "show", "orders", "billing", "--json").output)
    assert (found["topic"], found["backlog"], found["members"]) == ("orders", 3, [])


@pytest.mark.usefixtures("orders")
def test_delete_ends_a_group() -> None:
    assert run("groups", "delete", "orders", "billing").exit_code == 0
    assert [row[0] for row in table()] == ["GROUP", "a-group", "a-group"]


@pytest.mark.parametrize(
    ("arguments", "exit_code"),
    [
        (("list", "absent"), status.NOT_FOUND),
        (("reset", "orders", "absent", "--to", "latest"), status.NOT_FOUND),
        (("reset", "orders", "billing", "--to", "yesterday"), status.FAILED),
        (("reset", "orders", "billing", "--to", "1:0:7"), status.FAILED),
        (("show", "orders", "absent"), status.NOT_FOUND),
        (("delete", "orders", "absent"), status.NOT_FOUND),
    ],
)
@pytest.mark.usefixtures("orders")
def test_what_cannot_be_done_is_a_sentence(arguments: tuple[str, ...], exit_code: int) -> None:
    result = run("groups", *arguments)
    assert result.exit_code == exit_code
    assert result.output.startswith("Error: ")
