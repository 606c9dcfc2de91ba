"""Charts of the last minutes: on Topics, on a topic's page and on a group's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import unescape
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.services.history import MIN_SAMPLE_INTERVAL_MS, SPAN_MS, Histories, Sample, Series
from router.web.console import charts
from tests.unit.web.applications import Site
from tests.unit.web.console.scripts import Module

JSON = {"Accept": "application/json"}
NOW = 10_000_000


def samples(*held: tuple[int, int]) -> list[Sample]:
    """Return samples ten seconds apart, the last one now."""
    begin = NOW - 10_000 * (len(held) - 1)
    return [Sample(begin + 10_000 * n, *one) for n, one in enumerate(held)]


def test_rate_is_what_came_a_second() -> None:
    found = charts.chart("rate", samples((0, 0), (100, 0), (150, 0), (150, 0)), NOW)
    assert found["text"] == "Messages a second: 0, from 0 to 10 in 15 minutes"
    assert found["latest"] == "0"
    assert [point.split(",")[1] for point in found["points"].split()] == ["0.0", "30.0", "60.0"]
    assert found["points"].split()[-1].startswith("300.0,")


def test_what_retention_took_is_no_rate() -> None:
    found = charts.chart("rate", samples((100, 0), (0, 0), (50, 0)), NOW)
    assert found["text"] == "Messages a second: 5, from 5 to 5 in 15 minutes"


def test_delivered_is_what_came_and_does_not_wait_any_more() -> None:
    found = charts.chart("delivered", samples((0, 0), (100, 40), (100, 0), (100, 90)), NOW)
    assert found["text"] == "Acknowledged a second: 0, from 0 to 6 in 15 minutes"


def test_lag_is_drawn_as_it_is() -> None:
    found = charts.chart("lag", samples((0, 7), (0, 3)), NOW)
    assert found["text"] == "Lag: 3, from 3 to 7 in 15 minutes"


@pytest.mark.parametrize("kind", charts.KINDS)
def test_chart_without_samples_says_so(kind: str) -> None:
    for some in ([], samples((5, 5))):
        found = charts.chart(kind, some, NOW)
        if kind != "lag" or not some:
            assert (found["latest"], found["points"]) == (None, "")
            assert found["text"].endswith("no data yet")


def test_points_stay_within_the_drawing() -> None:
    old = [Sample(NOW - 2 * SPAN_MS, 0, 5), Sample(NOW + 60_000, 9, 2)]
    for kind in charts.KINDS:
        for point in charts.chart(kind, old, NOW)["points"].split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= charts.WIDTH
            assert 0 <= y <= charts.HEIGHT


def test_samples_of_rows_are_thinned_and_end_with_the_last() -> None:
    many = samples(*((n, n) for n in range(100)))
    found = charts.series(many, 30)
    assert len(found) <= 30
    assert found[-1] == list(many[-1])
    assert charts.series(many) == [list(one) for one in many]


@pytest.fixture
def later(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A topic with a group; each look at it comes MIN_SAMPLE_INTERVAL_MS after the last."""
    site.post("/events/t", "a")
    site.poll()
    real, times = Histories.note, count(NOW, MIN_SAMPLE_INTERVAL_MS)

    def note(self: Histories, series: Series, messages: int, lag: int) -> list[Sample]:
        now = next(times)
        self.now_ms = lambda: now
        return real(self, series, messages, lag)

    monkeypatch.setattr(Histories, "note", note)
    return site


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "series"),
    [
        ("/console/topics", "t"),
        ("/console/topics/t", "t"),
        ("/console/topics/t?tab=messages", "t"),
        ("/console/topics/t/groups/g", "g"),
    ],
)
def test_pages_have_charts_with_words_and_samples(later: Site, page: str, series: str) -> None:
    later.client.get(page, headers=JSON)
    later.post("/events/t", "\n".join("x" * 10))
    found = later.client.get(page, headers=JSON).get_json()
    (first, second) = found["histories"][series]
    assert (second[1] - first[1], second[2] - first[2]) == (10, 10)
    assert second[0] - first[0] == MIN_SAMPLE_INTERVAL_MS
    text = later.client.get(page, headers={"Accept": "text/html"}).text
    assert 'role="img" aria-label="' in text
    assert "in 15 minutes" in text
    assert "charts.js" in text
    [given] = re.findall(r'data-samples="([^"]*)"', text)
    assert series in json.loads(unescape(given))
    assert "style=" not in text


@pytest.fixture(scope="module")
def module() -> Iterator[Module]:
    found = Module("samples.js")
    yield found
    found.close()


HELD = st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**6)), max_size=8)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(held=HELD, kind=st.sampled_from(sorted(charts.KINDS)))
def test_script_draws_what_the_router_draws(
    module: Module, held: list[tuple[int, int]], kind: str
) -> None:
    some = samples(*held) if held else []
    mine = charts.chart(kind, some, NOW)
    names = {"kind": kind, "name": mine["name"], "given": charts.series(some), "now": NOW}
    assert module.value("words(name, values(kind, given))", **names) == mine["text"]
    theirs = module.value("points(values(kind, given), now)", **names)
    for one, other in zip(theirs.split(), mine["points"].split(), strict=True):
        for a, b in zip(one.split(","), other.split(","), strict=True):
            assert abs(float(a) - float(b)) < 0.11  # the last digit is rounded otherwise


def test_samples_of_several_workers_are_one_history(module: Module) -> None:
    mine, theirs = [[NOW - 10, 1, 1], [NOW, 3, 1]], [[NOW - 5, 2, 1], [NOW, 3, 1]]
    old = [[NOW - SPAN_MS - 1, 0, 0]]
    names = {"mine": mine + old, "theirs": theirs, "now": NOW}
    found = module.value("merged(mine, theirs, now)", **names)
    assert [sample[1] for sample in found] == [1, 2, 3]
