"""Downloads of messages."""

from __future__ import annotations

import csv

import orjson
import pytest

from router.backends import Batch
from router.model import Message, TopicName
from tests.unit.web.applications import Site


def test_messages_that_match_are_a_file_of_ndjson(site: Site) -> None:
    site.post("/events/t", "apple\npear\nPineapple")
    answer = site.client.get("/console/topics/t/export?filter=APPLE")
    assert answer.headers["Content-Disposition"] == 'attachment; filename="t.ndjson"'
    assert (answer.mimetype, answer.headers["X-Content-Type-Options"]) == (
        "application/x-ndjson",
        "nosniff",
    )
    values = [orjson.loads(line)["value"] for line in answer.data.splitlines()]
    assert values == ["apple", "Pineapple"]


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
        ("@SUM", "'@SUM"),
        ("-5.2", "-5.2"),
        ('a,"b"\nc', 'a,"b"\nc'),
        ("+1+cmd", "'+1+cmd"),
    ],
)
def test_no_cell_of_a_csv_is_a_formula(site: Site, value: str, cell: str) -> None:
    site.client.post("/topics/create", json={"topicName": "t"})
    message = Message(value.encode(), value.encode(), {"h": value})
    site.backend.publish(Batch(TopicName.parse("t"), -1, [message]), 5)
    answer = site.client.get("/console/topics/t/export?as=csv")
    assert answer.headers["Content-Disposition"] == 'attachment; filename="t.csv"'
    [names, row] = csv.reader(answer.text.splitlines(keepends=True))
    assert names == ["time", "partition", "position", "key", "value", "headers"]
    assert (row[3], row[4], orjson.loads(row[5])) == (cell, cell, {"h": value})


@pytest.mark.parametrize(("path", "status"), [("t/export?as=exe", 400), ("absent/export", 404)])
def test_file_that_cannot_be_made_says_why(site: Site, path: str, status: int) -> None:
    site.post("/events/t", "a")
    assert site.client.get(f"/console/topics/{path}").status_code == status


def test_page_hides_what_the_filter_leaves_out(site: Site) -> None:
    site.post("/events/t", "apple\npear")
    page = site.client.get("/console/topics/t?tab=messages&filter=app")
    assert page.text.count("<article hidden>") == 1
    assert page.text.count("<article>") == 1
