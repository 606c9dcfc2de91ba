"""`router dead-letters` on the store in memory."""

from __future__ import annotations

import json

import pytest

from router.backends import Batch
from router.backends.memory import MemoryBackend
from router.cli import status
from router.model import Message, TopicInfo, TopicName
from router.services.dead_letters import service
from tests.unit.cli.servers import live
from tests.unit.cli.test_commands import backend, run
from tests.unit.web.applications import Site

__all__ = ["backend"]

DEAD = TopicName.parse("orders.dlq")


@pytest.fixture
def dead_letters(backend: MemoryBackend) -> MemoryBackend:
    """A topic with three letters, of which one cannot be requeued."""
    for topic in (DEAD, TopicName.parse("orders")):
        backend.create_topic(TopicInfo(topic), 1)
    for value, name in ((b"1", "orders"), (b"2", "absent"), (b"3\x1b", "orders")):
        notes = {"router-topic": name, "router-error": "bad\x1b[2J"}
        backend.publish(Batch(DEAD, -1, [Message(value, None, notes)]), 1)
    return backend


def ids() -> list[str]:
    lines = run("dead-letters", "show", "orders.dlq", "--json").output.splitlines()
    return [json.loads(line)["id"] for line in lines]


@pytest.mark.usefixtures("dead_letters")
def test_show_is_safe_for_a_terminal() -> None:
    shown = run("dead-letters", "show", "orders.dlq").output
    assert "\x1b" not in shown
    rows = [line.split() for line in shown.splitlines()]
    assert rows[0] == ["POSITION", "FROM", "REASON", "VALUE"]
    assert [row[1:] for row in rows[1:]] == [
        ["orders", "bad\\x1b[2J", "1"],
        ["absent", "bad\\x1b[2J", "2"],
        ["orders", "bad\\x1b[2J", "3\\x1b"],
    ]


def test_requeue_says_what_could_not_be(dead_letters: MemoryBackend) -> None:
    listed = run("dead-letters", "list").output.splitlines()
    assert [line.split() for line in listed] == [
        ["TOPIC", "WAITING", "STORED"],
        ["orders.dlq", "3", "3"],
    ]
    place = ids()[1]
    result = run("dead-letters", "requeue", "orders.dlq", "--all")
    assert result.exit_code == 1
    assert f"{place}  There is no topic absent." in result.output
    assert "2 letters of orders.dlq: requeue, 1 could not be" in result.output
    orders = dead_letters.describe_topic(TopicName.parse("orders"), 1)
    assert orders.partitions[0].messages == 2
    discarded = run("dead-letters", "discard", "orders.dlq", "--position", place, "--json")
    assert json.loads(discarded.output) == {
        "topic": "orders.dlq",
        "done": 1,
        "refused": {},
        "failure": "",
    }
    assert json.loads(run("dead-letters", "list", "--json").output) == [
        {"topic": "orders.dlq", "waiting": 0, "stored": 3}
    ]


def test_many_letters_are_handled_in_bounded_calls(
    backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_BATCH", 2)
    for topic in (DEAD, TopicName.parse("orders")):
        backend.create_topic(TopicInfo(topic), 1)
    messages = [Message(b"%d" % n, None, {"router-topic": "orders"}) for n in range(5)]
    backend.publish(Batch(DEAD, -1, messages), 1)
    assert len(ids()) == 5
    result = run("dead-letters", "requeue", "orders.dlq", "--all")
    assert (result.exit_code, result.output.splitlines()[-1]) == (
        0,
        "5 letters of orders.dlq: requeue",
    )
    assert ids() == []


def test_letters_of_a_router_elsewhere_are_handled_alike() -> None:
    site = Site({})
    try:
        for topic in (DEAD, TopicName.parse("orders")):
            site.backend.create_topic(TopicInfo(topic), 1)
        messages = [Message(b"%d" % n, None, {"router-topic": "orders"}) for n in range(3)]
        site.backend.publish(Batch(DEAD, -1, messages), 1)
        with live(site) as url:
            there = ("--server", url)
            shown = run("dead-letters", "show", "orders.dlq", "--json", *there).output
            places = [json.loads(line)["id"] for line in shown.splitlines()]
            one = run("dead-letters", "discard", "orders.dlq", "--position", places[0], *there)
            assert one.exit_code == 0, one.output
            rest = run("dead-letters", "requeue", "orders.dlq", "--all", *there)
            assert rest.exit_code == 0, rest.output
            listed = run("dead-letters", "list", "--json", *there).output
            assert json.loads(listed) == [{"topic": "orders.dlq", "waiting": 0, "stored": 3}]
            absent = run("dead-letters", "show", "absent", *there)
            assert absent.exit_code == status.NOT_FOUND
        assert site.poll("/events/orders/g/c").get_json() == ["1", "2"]
    finally:
        site.close()


@pytest.mark.parametrize(
    "arguments",
    [
        ("requeue", "orders.dlq"),
        ("requeue", "orders.dlq", "--all", "--position", "1:2:0"),
        ("discard", "orders.dlq", "--position", "first"),
        ("show", "absent"),
    ],
)
@pytest.mark.usefixtures("dead_letters")
def test_what_cannot_be_done_is_a_sentence(arguments: tuple[str, ...]) -> None:
    result = run("dead-letters", *arguments)
    assert result.exit_code != 0
    assert result.output.startswith("Error: ")
    assert len(ids()) == 3
