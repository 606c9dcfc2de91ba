"""Downloads of messages."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator

import orjson
import pytest

from router.backends import Batch
from router.model import Message, TopicName
from router.services import scan
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


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("query", "values"),
    [
        ("from=earliest", [f"{n}" for n in range(1_500)]),
        ("", [f"{n}" for n in range(500, 1_500)]),
        ("filter=49", ["49", "149", "249", *(f"{n}" for n in range(349, 1500) if "49" in f"{n}")]),
        ("from=earliest&key=k1", ["1"]),
        ("from=earliest&header=number=7", ["7"]),
        ("from=earliest&path=$=12", ["12"]),
        ("from=1:1499:-1", ["1499"]),
        ("before=@1.2", ["0", "1"]),
        ("from=2100-01-01T00:00Z", []),
    ],
)
def test_stretch_that_matches_is_exported(
    many: Site, query: str, values: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "SILENCE_SECONDS", 0.5)
    answer = many.client.get(f"/console/topics/t/export?{query}")
    assert [orjson.loads(line)["value"] for line in answer.data.splitlines()] == values


@pytest.fixture(scope="module")
def many() -> Iterator[Site]:
    """A site with a topic of 1,500 messages."""
    site = Site({})
    site.client.post("/topics/create", json={"topicName": "t"})
    for n in range(1_500):
        message = Message(b"%d" % n, b"k%d" % n, {"number": str(n)})
        site.backend.publish(Batch(TopicName.parse("t"), -1, [message]), 5)
    yield site
    site.close()


def test_export_is_one_of_the_streams_of_a_worker_until_it_ends(sites: Callable[..., Site]) -> None:
    site = sites(stream_connections="1")
    site.post("/events/t", "a")
    begun = site.client.get("/console/topics/t/export?from=earliest")
    assert site.client.get("/console/topics/t/export").status_code == 429
    begun.close()
    assert site.client.get("/console/topics/t/export").data.count(b"\n") == 1


def test_export_of_a_topic_that_is_deleted_meanwhile_breaks_off(site: Site) -> None:
    site.post("/events/t", "\n".join(f"{n:0500}" for n in range(1_000)))
    answer = site.client.get("/console/topics/t/export?from=earliest")
    pieces = iter(answer.response)
    assert next(pieces)
    site.client.delete("/topics/t")
    with pytest.raises(ConnectionResetError):
        list(pieces)
    answer.close()
    assert site.client.get("/console/topics/t/export?from=earliest").status_code == 404
