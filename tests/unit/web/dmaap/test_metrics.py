"""The original's figures, over the counters of all workers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.backends.memory import MemoryNode
from router.metrics import Metrics, render
from router.web.dmaap.metrics import MetricViews, totals
from router.web.health import MetricsOwner
from router.web.media import wants_json
from tests.processes import ManualClock
from tests.unit.web.applications import Site

JSON = {"Accept": "application/json"}
NAMES = {
    "version", "startTime", "upTime", "recvTotalEvents", "recvEpsInstant", "recvEpsShort",
    "recvEpsLong", "sendTotalEvents", "sendEpsInstant", "sendEpsShort", "sendEpsLong",
    "kafkaConsumerCacheMiss", "kafkaConsumerCacheHit", "kafkaConsumerClaims",
    "kafkaConsumerTimeouts", "fanOut",
}  # fmt: skip


def test_figures_have_the_originals_names_and_shape(site: Site) -> None:
    answer = site.client.get("/metrics", headers=JSON)
    figures = answer.get_json()
    assert set(figures) == NAMES
    assert answer.headers["Cache-Control"].startswith("no-store")
    for name, figure in figures.items():
        assert set(figure) == {"summary", "raw"}
        assert figure["raw"] in figure["summary"]
        one = site.client.get(f"/metrics/{name}").get_json()
        assert set(one) == {name}
        assert set(one[name]) == {"summary", "raw"}


def test_totals_are_those_of_all_workers(site: Site) -> None:
    other = site.worker()
    site.post("/events/t", "a\nb")
    other.post("/events/t", data="c", content_type="text/plain")
    assert len(site.poll().get_json()) == 3
    other.get("/metrics")  # what it counted is on its way within a second, and now at once
    for client in (site.client, other):
        figures = client.get("/metrics", headers=JSON).get_json()
        assert figures["recvTotalEvents"]["raw"] == "3"
        assert figures["sendTotalEvents"]["raw"] == "3"
        assert figures["fanOut"] == {"summary": "1 sends per recv", "raw": "1"}


def test_unknown_figure_is_not_found(site: Site) -> None:
    answer = site.client.get("/metrics/nothing")
    body = answer.get_json()
    assert (answer.status_code, body["mrErrorCode"], body["mrstatus"]) == (404, 3001, 6013)
    assert "No metric named [nothing]." in body["message"]


def test_rates_are_averages_between_looks(site: Site, clock: ManualClock) -> None:
    metrics, node = Metrics(), MemoryNode()
    owner = MetricsOwner(metrics, node, 1)
    views = MetricViews(node, owner, "1", 1, clock, lambda: 1_000_000)

    def figures() -> dict[str, str]:
        with site.app.test_request_context():
            shown = views.all().get_json()
        return {name: figure["raw"] for name, figure in shown.items()}

    first = figures()
    assert (first["recvEpsInstant"], first["startTime"], first["upTime"]) == ("0", "1000", "0")
    metrics.inc("router_published_messages_total", 300)
    metrics.inc("router_delivered_messages_total", 150)
    clock.advance(30)
    second = figures()
    assert [second[f"recvEps{name}"] for name in ("Instant", "Short", "Long")] == ["10"] * 3
    assert (second["sendEpsInstant"], second["fanOut"], second["upTime"]) == ("5", "0.500", "30")
    clock.advance(50)
    third = figures()
    assert (third["recvEpsInstant"], third["recvEpsShort"]) == ("0", "3.750")
    clock.advance(7_200)
    assert figures()["recvEpsLong"] == "0"


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        (None, False),
        ("*/*", False),
        ("application/json", True),
        ("Application/JSON; q=0.9, */*;q=0.1", True),
        ("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*", False),
        ("text/plain, application/json", False),
    ],
)
def test_json_is_answered_to_who_asks_for_it(accept: str | None, wanted: bool) -> None:
    assert wants_json(accept) is wanted


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["bad-json", 'quo"te} 7', "line\nbreak", "back\\slash", "{}"]),
            st.integers(0, 10**9),
        )
    )
)
def test_totals_add_up_whatever_the_labels(counted: list[tuple[str, int]]) -> None:
    name = "router_publish_refused_total"
    found = totals(render((name, (("code", code),), float(n)) for code, n in counted))
    assert found.get(name, 0.0) == sum(n for _, n in counted)
    assert found["router_published_messages_total"] == 0


def test_transactions_are_not_kept(site: Site) -> None:
    for path in ("/transaction", "/transaction/28122015552391"):
        answer = site.client.get(path)
        assert (answer.status_code, answer.data) == (204, b"")


def test_publish_in_a_transaction_tells_its_id(site: Site) -> None:
    answer = site.post("/events/transaction/t", "a\nb")
    body = answer.get_json()
    assert (answer.status_code, body["count"]) == (200, 2)
    assert body["transactionId"] == answer.headers["transactionId"] + "::2"
    assert body["transactionId"].count("::") == 4
    assert site.poll().get_json() == ["a", "b"]
    again = [
        site.post("/events/transaction/t", "x", headers={"Idempotency-Key": "k"}) for _ in "ab"
    ]
    assert [a.headers.get("Idempotency-Replayed") for a in again] == [None, "true"]
    assert again[0].get_json()["transactionId"] != again[1].get_json()["transactionId"]
    # A topic of that name has its groups all the same.
    site.post("/events/transaction", "x")
    assert site.poll("/events/transaction/g/c").get_json() == ["x"]
