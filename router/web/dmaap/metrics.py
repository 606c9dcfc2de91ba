"""The DMaaP Message Router's `/metrics` in JSON: the original's names over the node's counters.

Totals are those of all workers of the node, whichever answers. Rates are worked out from the totals
between reads: each worker keeps the totals that it answered before, so a rate is an average
since the oldest of its own reads within the rate's time, and 0 when there was none. A thread that
samples the broker for the few who still read this would cost every node something all the time.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from flask import Response

from router.errors import PathNotFoundError
from router.node import Node
from router.web import forms
from router.web.health import MetricsOwner
from router.web.openapi.description import STORE, answers_json, operation, shape

RECEIVED: Final = "router_published_messages_total"
SENT: Final = "router_delivered_messages_total"
CLAIMS: Final = "router_broker_grants_total"
MAX_READS: Final = 1_000
MINUTE: Final = 60.0
RATES: Final = (
    ("Instant", "1 min", MINUTE),
    ("Short", "10 mins", 10 * MINUTE),
    ("Long", "1 hr", 60 * MINUTE),
)
_LINE: Final = re.compile(r"(?P<name>[a-z_]+)(?:\{.*\})? (?P<value>[-+.0-9eEinfNa]+)")

Figures = dict[str, dict[str, str]]


_FIGURES: Final = {"type": "object", "additionalProperties": shape({"summary": str, "raw": str})}


class MetricViews:
    """The figures of `/metrics` for those who ask for JSON, and the view of one of them."""

    def __init__(
        self,
        node: Node,
        owner: MetricsOwner,
        version: str,
        timeout: float,
        monotonic: Callable[[], float],
        wall_ms: Callable[[], int],
    ) -> None:
        self._node = node
        self._owner = owner
        self._version = version
        self._timeout = timeout
        self._monotonic = monotonic
        self._began = monotonic()
        self._began_wall = wall_ms() // 1000
        self._reads: deque[tuple[float, float, float]] = deque(maxlen=MAX_READS)

    def all(self) -> Response:
        """Answer all figures."""
        return _fresh(self._figures())

    @operation(
        "GET /metrics/<name>",
        answers=answers_json(_FIGURES, "The figure."),
        fails=(*STORE, "path-not-found"),
        public=True,
    )
    def one(self, name: str) -> Response:
        """Answer one figure by its name."""
        figures = self._figures()
        if name not in figures:
            raise PathNotFoundError(f"No metric named [{name[:80]}].")
        return _fresh({name: figures[name]})

    def _figures(self) -> Figures:
        self._owner.push()
        found = totals(self._node.metrics(self._timeout))
        received, sent = found.get(RECEIVED, 0.0), found.get(SENT, 0.0)
        now = self._monotonic()
        began = datetime.fromtimestamp(self._began_wall, UTC).strftime("%Y-%m-%dT%H:%M:%SUTC")
        figures = {
            "version": {"summary": f"Version {self._version}", "raw": f"Version {self._version}"},
            "startTime": _figure(self._began_wall, f"Start Time (epoch); {began}"),
            "upTime": _figure(int(now - self._began), "seconds since start"),
        }
        for kind, total, index in (("recv", received, 1), ("send", sent, 2)):
            words = "received" if kind == "recv" else "sent"
            figures[f"{kind}TotalEvents"] = _figure(total, f"Total events {words} since start")
            for name, shown, seconds in RATES:
                rate = self._rate(now, seconds, index, total)
                figures[f"{kind}Eps{name}"] = _figure(rate, f"{kind} eps ({shown})")
        # No consumer outlives its poll, so there is nothing to hit, miss or time out.
        for name, shown in (("Miss", "Misses"), ("Hit", "Hits")):
            figures[f"kafkaConsumerCache{name}"] = _figure(0, f"Kafka Consumer Cache {shown}")
        figures["kafkaConsumerClaims"] = _figure(found.get(CLAIMS, 0), "Kafka Consumers Claimed")
        figures["kafkaConsumerTimeouts"] = _figure(0, "Kafka Consumers Timedout")
        figures["fanOut"] = _figure(sent / received if received else 0.0, "sends per recv")
        self._reads.append((now, received, sent))
        return figures

    def _rate(self, now: float, seconds: float, index: int, total: float) -> float:
        """Return the events a second since the oldest read within this time."""
        for read in self._reads:
            if now - seconds <= read[0] < now:
                # Counters start again with the node's broker.
                return max(0.0, total - read[index]) / (now - read[0])
        return 0.0


def totals(text: str) -> dict[str, float]:
    """Add up the samples of each name in Prometheus' text format, whatever their labels."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if match := _LINE.fullmatch(line):
            found[match["name"]] = found.get(match["name"], 0.0) + float(match["value"])
    return found


def _figure(value: float, words: str) -> dict[str, str]:
    raw = str(int(value)) if value == int(value) else f"{value:.3f}"
    return {"summary": f"{raw} {words}", "raw": raw}


def _fresh(figures: Figures) -> Response:
    answer = forms.answer(figures)
    answer.headers["Cache-Control"] = "no-store, no-cache, must-revalidate"
    return answer
