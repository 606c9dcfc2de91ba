"""Counting in one process, and adding up what several counted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from router.metrics import Metrics, Sample, Timings, fits, render
from router.metrics.families import FAMILIES
from router.process.resources import Resources

HISTOGRAM = "router_http_request_seconds"


def parsed(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.slow
@given(st.lists(st.lists(st.floats(0, 100), max_size=8), max_size=4))
def test_histograms_of_workers_add_up_when_rendered(observed: list[list[float]]) -> None:
    samples: list[Sample] = []
    for worker in observed:
        metrics = Metrics()
        for value in worker:
            metrics.observe(HISTOGRAM, value, route="events")
        samples += metrics.drain().counters
    shown = parsed(render(samples))
    values = [value for worker in observed for value in worker]
    if not values:
        assert (f"{HISTOGRAM}_count", (("route", "events"),)) not in shown
        return
    assert shown[f"{HISTOGRAM}_count", (("route", "events"),)] == len(values)
    assert shown[f"{HISTOGRAM}_sum", (("route", "events"),)] == pytest.approx(sum(values))
    for edge, text in ((0.001, "0.001"), (1.0, "1.0"), (60.0, "60.0"), (1e9, "+Inf")):
        key = (f"{HISTOGRAM}_bucket", (("le", text), ("route", "events")))
        assert shown[key] == sum(value <= edge for value in values)


def test_drain_returns_growth_when_called_again() -> None:
    metrics = Metrics()
    metrics.inc("router_published_messages_total", 3)
    assert metrics.drain().counters == [("router_published_messages_total", (), 3)]
    metrics.inc("router_published_messages_total")
    assert metrics.drain().counters == [("router_published_messages_total", (), 1)]
    assert metrics.drain().counters == []


def test_nothing_is_lost_when_a_drain_is_given_back() -> None:
    metrics = Metrics()
    metrics.inc("router_polls_total", outcome="empty")
    drained = metrics.drain()
    metrics.inc("router_polls_total", outcome="empty")
    metrics.give_back(drained.counters)
    assert metrics.drain().counters == [("router_polls_total", (("outcome", "empty"),), 2)]


def test_gauges_stay_when_drained() -> None:
    metrics = Metrics()
    metrics.gauge("router_polls_waiting", 2)
    metrics.drain()
    metrics.gauge("router_polls_waiting", -1)
    assert metrics.drain().gauges == [("router_polls_waiting", (), 1)]


def test_every_count_counts_when_threads_race() -> None:
    metrics = Metrics()

    def work(_: int) -> None:
        for _ in range(2000):
            metrics.inc("router_published_messages_total")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert metrics.drain().counters == [("router_published_messages_total", (), 8000)]


@pytest.mark.parametrize(
    ("name", "labels", "error"),
    [
        ("router_nonsense_total", {}, KeyError),
        ("router_polls_waiting", {}, ValueError),
        ("router_polls_total", {}, ValueError),
        ("router_polls_total", {"outcome": "empty", "topic": "t"}, ValueError),
    ],
)
def test_inc_refuses_when_the_table_has_no_such_counter(
    name: str, labels: dict[str, str], error: type[Exception]
) -> None:
    with pytest.raises(error):
        Metrics().inc(name, 1, **labels)


@pytest.mark.parametrize(
    "sample",
    [
        ("router_nonsense_total", (), 1.0),
        (HISTOGRAM, (("route", "a"),), 1.0),
        (f"{HISTOGRAM}_bucket", (("route", "a"),), 1.0),
        ("router_polls_total", (("topic", "t"),), 1.0),
        ("router_polls_total_count", (("outcome", "empty"),), 1.0),
    ],
)
def test_samples_of_another_build_are_left_out_when_rendered(sample: Sample) -> None:
    assert not fits(sample)
    assert render([sample]) == render([])


def test_counters_without_labels_show_zero_when_nothing_was_counted() -> None:
    shown = parsed(render([]))
    assert shown["router_published_messages_total", ()] == 0


def test_names_follow_the_conventions_of_prometheus() -> None:
    for family in FAMILIES:
        assert family.name.startswith("router_")
        assert family.name.endswith("_total") == (family.kind == "counter")
        assert bool(family.buckets) == (family.kind == "histogram")
        assert family.sentence.endswith(".")


@pytest.mark.slow
@given(st.lists(st.floats(0, 100), max_size=8))
def test_timings_are_a_histogram_of_all_times(observed: list[float]) -> None:
    timings, metrics = Timings("router_broker_sync_seconds"), Metrics()
    for value in observed:
        timings.observe(value)
        metrics.observe("router_broker_sync_seconds", value)
    shown, expected = parsed(render(timings.samples())), parsed(render(metrics.drain().counters))
    for key, value in expected.items():
        assert shown[key] == pytest.approx(value)


def test_gauges_of_what_does_not_apply_are_left_out() -> None:
    shown = render([])
    assert "\nrouter_polls_waiting 0.0\n" in shown
    assert "\nrouter_disk_free_bytes " not in shown


def test_resources_are_those_of_this_process() -> None:
    before = Resources.now()
    with Path("/dev/null").open("rb"):
        assert Resources.now().open_fds == before.open_fds + 1
    assert before.max_fds >= before.open_fds > 0
    assert before.resident_bytes > 1 << 20
    assert Resources.now().cpu_seconds >= before.cpu_seconds > 0
    assert all(fits((name, (("process", "worker"),), value)) for name, value in before.gauges())
