"""Several topics in one tail."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import Any
from urllib.parse import parse_qs

import orjson
import pytest

from router.backends import Batch
from router.model import Message, TopicInfo, TopicName
from router.web.console import watch
from tests.unit.web.applications import HASHES, Site, header

PAGE = "/console/watch"


@pytest.fixture
def filled(site: Site) -> Site:
    """A site with three topics that match `orders.*`, and one that does not."""
    for number, name in enumerate(("orders.a", "orders.b", "orders.c", "payments")):
        site.backend.create_topic(TopicInfo(TopicName.parse(name), number), 5)
    store(site, "orders.a", "1")
    store(site, "orders.b", "2")
    store(site, "payments", "3")
    return site


def store(site: Site, name: str, value: str) -> None:
    topic = TopicName.parse(name)
    partition = -1 if name in {"orders.a", "plain"} else 0
    site.backend.publish(Batch(topic, partition, [Message(value.encode())]), 5)


def page(site: Site, query: str) -> dict[str, Any]:
    answer = site.client.get(f"{PAGE}?format=json&{query}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.get_json()
    return found


def events(site: Site, address: str) -> Generator[tuple[str, dict[str, Any]]]:
    """Give the id and the data of each event."""
    answer = site.client.get(address, buffered=False)
    assert answer.status_code == 200, answer.text
    try:
        for piece in answer.iter_encoded():
            for event in piece.decode().split("\n\n"):
                lines = dict(line.split(": ", 1) for line in event.split("\n") if ": " in line)
                if "data" in lines:
                    yield lines["id"], orjson.loads(lines["data"])
    finally:
        answer.close()


def test_page_has_the_last_messages_of_the_topics_that_match(filled: Site) -> None:
    found = page(filled, "topics=orders.*")
    assert found["topics"] == ["orders.a", "orders.b", "orders.c"]
    shown = sorted((one["topic"], one["value"]) for one in found["messages"])
    assert shown == [("orders.a", "1"), ("orders.b", "2")]
    found = page(filled, "topics=pay*,orders.a&filter=3")
    assert [one["value"] for one in found["messages"]] == ["3"]
    assert page(filled, "")["topics"] == []
    assert not page(filled, "topics=none*")["stream"]


def test_tail_goes_on_behind_the_page_in_all_topics(filled: Site) -> None:
    found = page(filled, "topics=orders.*")
    for name in ("orders.c", "orders.a", "payments", "orders.b"):
        store(filled, name, f"new {name}")
    reading = events(filled, found["stream"])
    got = dict(next(reading) for _ in range(3))
    assert sorted((one["topic"], one["value"]) for one in got.values()) == [
        ("orders.a", "new orders.a"),
        ("orders.b", "new orders.b"),
        ("orders.c", "new orders.c"),
    ]
    reading.close()
    # A client that comes back with the id of the last event goes on behind it.
    store(filled, "orders.b", "last")
    again = events(filled, f"{PAGE}/stream?topics=orders.*&last_event_id={list(got)[-1]}")
    assert next(again)[1]["value"] == "last"
    again.close()


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("topics=none", 404),
        ("topics=a*b*c*d*e*f", 400),
        ("topics=orders.*&last_event_id=orders.a:x", 400),
        (f"topics={'a' * 251}", 400),
    ],
)
def test_tail_that_cannot_be_is_refused(filled: Site, query: str, status: int) -> None:
    assert filled.client.get(f"{PAGE}/stream?{query}").status_code == status


def test_topics_and_partitions_are_bounded(filled: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MAX_PARTITIONS", 3)
    assert "at most 3 are watched" in page(filled, "topics=orders.*")["note"]
    monkeypatch.setattr(watch, "MAX_TOPICS", 2)
    found = page(filled, "topics=orders.*")
    assert (found["messages"], found["stream"]) == ([], "")
    assert "at most 2 are watched" in found["note"]
    assert filled.client.get(f"{PAGE}/stream?topics=orders.*").status_code == 400


def test_topics_that_one_may_not_read_are_left_out(
    sites: Callable[..., Site], tmp_path: Any
) -> None:
    (tmp_path / "users").write_text(f"anna:{HASHES['argon2']}\n")
    (tmp_path / "permissions").write_text("anna subscribe orders.a\nanna view orders.*\n")
    site = sites(auth_users=str(tmp_path / "users"))
    site.backend.create_topic(TopicInfo(TopicName.parse("orders.a"), 1), 5)
    anna = {"Authorization": header("anna", "secret")}
    found = site.client.get(f"{PAGE}?format=json&topics=*", headers=anna).get_json()
    assert found["topics"] == ["orders.a"]
    assert site.client.get(f"{PAGE}/stream?topics=*").status_code == 401


@pytest.mark.parametrize(
    ("query", "field", "text"),
    [
        ("topics=orders.*&filter=(a", "filter", "Expected"),
        ("topics=" + "a" * 251 + "&filter=b", "topics", "Expected at most 250"),
    ],
)
def test_mistake_is_named_at_its_field_with_all_values_kept(
    filled: Site, query: str, field: str, text: str
) -> None:
    answer = filled.client.get(f"{PAGE}?{query}", headers={"Accept": "text/html"})
    assert answer.status_code == 200
    written = parse_qs(query)
    inputs = {
        name: re.search(rf'<input[^\n]* name="{name}"[^\n]*', answer.text)
        for name in ("topics", "filter")
    }
    for name, found in inputs.items():
        assert found is not None
        assert f'value="{written[name][0]}"' in found[0]
        assert ("aria-invalid" in found[0]) == (name == field)
    assert f'<p id="filter-error" class="bad error">{text}' in answer.text
    assert filled.client.get(f"{PAGE}?format=json&{query}").status_code == 400
