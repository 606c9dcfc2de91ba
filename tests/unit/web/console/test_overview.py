"""The first page: a first visit, addresses of clients, charts with axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import BackendUnavailableError
from router.services.activity import Activities
from router.web.console.plots import NICE, Line, ceiling, plot
from router.web.console.shown import count, seconds
from tests.unit.web.applications import Site

BROWSER = {"Accept": "text/html"}
JSON = {"Accept": "application/json"}
FIELDS = (
    *("at", "messages_in", "messages_out", "bytes_in", "lag", "lag_seconds", "disk_free"),
    *("log_bytes", "sync_ms", "pulsar", "kafka", "nats"),
)


class Recorded:
    """A broker that says what it did."""

    def call(self, name: str, **arguments: Any) -> Any:
        assert (name, arguments) == ("activity", {"minutes": 60})
        samples = [[1e12 + 1000 * n, n, 2 * n, *[5.0] * (len(FIELDS) - 3)] for n in range(3)]
        topics = ("persistent://public/default/t", "persistent://other/ns/hidden")
        return {
            "fields": FIELDS,
            "samples": samples,
            "latest": samples[-1],
            "disk_size": 10.0,
            "connections": {"kafka": 2, "nats": 1},
            "polls_waiting": 0.0,
            "topics": [{"topic": topic, "rate": 1.5} for topic in topics],
            "groups": [{"topic": topics[0], "group": "<b>", "lag": 12_345, "seconds": 90.0}],
            "alerts": [{"name": "RouterDiskFull", "severity": "page", "text": "Full."}],
        }


class Silent:
    """A broker that does not answer."""

    def call(self, name: str, **_arguments: Any) -> Any:
        raise BackendUnavailableError(name)


def test_first_visit_says_what_to_do(sites: Callable[..., Site]) -> None:
    site = sites(broker_kafka="0.0.0.0:9092", broker_nats_advertised="nats://h:1")
    page = site.client.get("/console", headers=BROWSER).text
    for text in (
        "Start here",
        "Create topic",
        "kcat -b localhost:9092 -t orders -C",
        "broker.nats",
    ):
        assert text in page
    data = site.client.get("/console", headers=JSON).get_json()
    assert data["first_visit"]
    assert [one["address"] for one in data["clients"]] == [
        "http://localhost",
        "localhost:9092",
        "",
        "",
    ]


def test_page_shows_what_the_broker_recorded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.post("/events/t", "a")
    monkeypatch.setattr(Activities, "recent", lambda _, span: _RECENT(Activities(Recorded()), span))
    data = site.client.get("/console", headers=JSON).get_json()["activity"]
    assert [row["topic"] for row in data["topics"]] == ["t"]
    assert data["groups"][0]["lag"] == 12_345
    page = site.client.get("/console", headers=BROWSER).text
    for text in ("RouterDiskFull", "12,345", "1.5 min", "Messages a second. In: 2, from 0 to 2."):
        assert text in page
    assert "<b></a>" not in page


_RECENT = Activities.recent


def test_page_is_there_when_the_broker_does_not_answer(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Activities, "recent", lambda _, span: _RECENT(Activities(Silent()), span))
    answer = site.client.get("/console", headers=BROWSER)
    assert answer.status_code == 200
    assert "The broker does not say what it does" in answer.text


@given(st.floats(0, 1e15), st.booleans())
def test_scale_ends_with_a_round_number_above_all(largest: float, binary: bool) -> None:
    top = ceiling(largest, binary)
    assert top >= largest * (1 - 1e-9)
    assert top <= max(1.0, largest * 1024 if binary else largest * 2.5 * (1 + 1e-9))
    if not binary and top > 1:
        assert any(f"{top:.0e}"[:1] == f"{nice:.0e}"[:1] for nice in (*NICE, 25.0))


def test_scale_of_bytes_ends_with_a_power_of_1024_where_a_unit_ends() -> None:
    assert [ceiling(1024.0 * kib, binary=True) for kib in (400, 740, 1000)] == [
        500 * 1024.0,
        1024.0**2,
        1024.0**2,
    ]


def test_chart_has_axes_and_words() -> None:
    found = plot("Rate", [Line("In", "one", [0.0, 40.0])], [0.0, 3_600_000.0], lambda v: f"{v:g}")
    assert found["y"] == ["50", "25", "0"]
    assert found["x"] == ["00:00", "00:15", "00:30", "00:45", "01:00"]
    assert found["lines"][0]["points"] == "0.0,120.0 600.0,24.0"
    assert found["text"] == "Rate. In: 40, from 0 to 40."
    empty = plot("Rate", [Line("In", "one", [])], [], str)
    assert (empty["x"], empty["text"]) == ([], "Rate. In: no data yet.")


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 s"), (59, "59 s"), (90, "1.5 min"), (7200, "2 h"), (1e6, "11.6 d")]
)
def test_time_is_in_the_unit_that_suits_it(value: float, text: str) -> None:
    assert (seconds(value), count(1_234_567)) == (text, "1,234,567")
