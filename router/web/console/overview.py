"""The first page: how the router is, and for a first visit what to do."""

from __future__ import annotations

from typing import Any, Final

from flask import Response, request

from router.errors import BadNameError, RouterError
from router.model import Principal, TopicName
from router.services.activity import SPANS, BrokerActivity
from router.settings import Settings
from router.web.access import Right
from router.web.console import commands
from router.web.console.clients import client_lines
from router.web.console.context import PageContext, PageViews
from router.web.console.pages import page
from router.web.console.plots import Line, plot
from router.web.console.shown import count, seconds, size
from router.web.openapi.description import choice
from router.web.requests import Query

MAX_DEAD_LETTER_TOPICS: Final = 20
"""Each is described by the store."""
DEFAULT_SPAN: Final = "1h"
SAMPLE_TOPIC: Final = "orders"
SAMPLE: Final = '{"id": 1, "customer": "anna", "country": "FI"}'


class OverviewViews(PageViews):
    """The view of `/console/`."""

    def __init__(self, context: PageContext, settings: Settings) -> None:
        super().__init__(context)
        self._settings = settings

    @page("GET /console", choice("span", tuple(SPANS), "How far charts go back."))
    def overview(self) -> Response:
        """Answer how the router is: rates, lag, disk, connections, dead letters, alerts."""
        principal, query = self._context.principal(), Query(request.environ)
        span = query.choice("span", tuple(SPANS), DEFAULT_SPAN)
        able = self._services.topics.capabilities()
        visible = [] if able.topics else self._context.visible(principal, self._services.topics)
        dead = self._services.dead_letters.among(visible)
        found, note = self._activity(span)
        data: dict[str, Any] = {
            "topics": len(visible),
            "first_visit": not visible and not able.topics,
            "sample": {"topic": SAMPLE_TOPIC, "message": SAMPLE},
            "may_create": self._may_create(principal),
            "clients": client_lines(self._settings, SAMPLE_TOPIC),
            "span": span,
            "spans": tuple(SPANS),
            "note": able.topics or note,
            "dead_letters": self._services.dead_letters.counted(dead[:MAX_DEAD_LETTER_TOPICS]),
            "activity": None if found is None else self._shown(principal, found),
            "commands": [commands.curl(principal, commands.url("metrics"))],
        }
        return self._context.pages.answer("overview.html", data)

    def _activity(self, span: str) -> tuple[BrokerActivity | None, str]:
        try:
            found = self._services.activities.recent(span)
        except RouterError as error:  # the rest of the page is as true without
            return None, f"The broker does not say what it does: {error}."
        nothing = "Rates are recorded where the router's own broker has the messages."
        return found, "" if found is not None else nothing

    def _may_create(self, principal: Principal) -> bool:
        topic = self._context.topic_name(SAMPLE_TOPIC)
        return self._context.may(principal, topic, Right.CREATE)

    def _shown(self, principal: Principal, found: BrokerActivity) -> dict[str, Any]:
        latest = found.latest
        return {
            "latest": latest,
            "alerts": found.alerts,
            "connections": found.connections,
            "polls_waiting": found.polls_waiting,
            "tiles": _tiles(found),
            "charts": _charts(found),
            "topics": [
                {**row, "topic": name}
                for row in found.topics
                if (name := self._own(principal, row))
            ],
            "groups": [
                {**row, "topic": name}
                for row in found.groups
                if (name := self._own(principal, row))
            ],
        }

    def _own(self, principal: Principal, row: dict[str, Any]) -> str:
        """Return the local name of a row's topic, empty: it is no topic that the caller sees."""
        try:
            topic = TopicName.parse(row["topic"])
            known = self._context.topic_name(topic.local) == topic
        except BadNameError:
            return ""
        return topic.local if known and self._context.may(principal, topic, Right.VIEW) else ""


def _tiles(found: BrokerActivity) -> list[dict[str, str]]:
    """Return what stands above the charts: name, value, and what belongs to it."""
    latest, free = found.latest, found.latest["disk_free"]
    share = (
        f"{free / found.disk_size:.0%} of {size(int(found.disk_size))}" if found.disk_size else ""
    )
    clients = ", ".join(f"{count(n)} {name}" for name, n in sorted(found.connections.items()))
    return [
        {"name": "Messages in", "value": f"{_rate(latest['messages_in'])}/s", "more": ""},
        {"name": "Messages out", "value": f"{_rate(latest['messages_out'])}/s", "more": ""},
        {
            "name": "Lag",
            "value": count(int(latest["lag"])),
            "more": f"oldest {seconds(latest['lag_seconds'])}" if latest["lag"] else "",
        },
        {"name": "Disk free", "value": size(int(free)), "more": share},
        {"name": "Sync", "value": _milliseconds(latest["sync_ms"]), "more": "p99 of the journal"},
        {
            "name": "Connections",
            "value": count(sum(found.connections.values())),
            "more": clients or _polls(int(found.polls_waiting)),
        },
    ]


def _charts(found: BrokerActivity) -> list[dict[str, Any]]:
    series, times = found.series, found.times
    protocols = [
        Line(name, kind, series[field])
        for name, kind, field in (
            ("Pulsar", "one", "pulsar"),
            ("Kafka", "two", "kafka"),
            ("NATS", "three", "nats"),
        )
    ]
    moved = [
        Line("In", "one", series["messages_in"]),
        Line("Out", "two", series["messages_out"]),
    ]
    return [
        plot("Messages a second", moved, times, _rate),
        plot("Lag in messages", [Line("Lag", "lag", series["lag"])], times, _whole),
        plot(
            "Lag in seconds",
            [Line("Oldest message", "lag", series["lag_seconds"])],
            times,
            seconds,
        ),
        plot("Sync of the journal", [Line("p99", "one", series["sync_ms"])], times, _milliseconds),
        plot(
            "Stored",
            [Line("Messages on disk", "two", series["log_bytes"])],
            times,
            lambda value: size(int(value)),
            binary=True,
        ),
        plot("Connections", protocols, times, _whole),
    ]


def _polls(number: int) -> str:
    return f"{count(number)} {'poll waits' if number == 1 else 'polls wait'}"


def _rate(value: float) -> str:
    return count(round(value)) if value >= 100 else f"{value:.1f}".removesuffix(".0")


def _whole(value: float) -> str:
    return count(round(value)) if value == round(value) else f"{value:.1f}"


def _milliseconds(value: float) -> str:
    return f"{_rate(value)} ms"
