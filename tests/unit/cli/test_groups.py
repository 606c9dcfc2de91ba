"""`router groups` on the store in memory."""

from __future__ import annotations

import pytest

from router.backends import Batch, Start
from router.backends.memory import MemoryBackend
from router.model import Message, Policies, Subscription, TopicName
from tests.unit.cli.test_commands import backend, run

__all__ = ["backend"]

TOPIC = TopicName.parse("orders")


@pytest.fixture
def orders(backend: MemoryBackend) -> MemoryBackend:
    """A topic of two partitions with three messages, and two groups."""
    backend.create_topic(TOPIC, 2, Policies(), {}, 1)
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


@pytest.mark.usefixtures("orders")
def test_delete_ends_a_group() -> None:
    assert run("groups", "delete", "orders", "billing").exit_code == 0
    assert [row[0] for row in table()] == ["GROUP", "a-group", "a-group"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("list", "absent"),
        ("reset", "orders", "absent", "--to", "latest"),
        ("reset", "orders", "billing", "--to", "yesterday"),
        ("delete", "orders", "absent"),
    ],
)
@pytest.mark.usefixtures("orders")
def test_what_cannot_be_done_is_a_sentence(arguments: tuple[str, ...]) -> None:
    result = run("groups", *arguments)
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
