"""The pages of streams and their consumers: what they hold, purges, deletions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import structlog
from flask import Response, request

from router.errors import (
    BadNameError,
    BadRequestError,
    NotSupportedError,
    SubscriptionNotFoundError,
)
from router.model import Principal
from router.services.jetstream import management
from router.web.access import Right
from router.web.console import commands
from router.web.console.context import MAX_PAGES, PageContext, PageViews, TablePage, paged, words
from router.web.console.fields import Fields
from router.web.console.pages import CONFIRMED, FAILS, PAGED, action, page
from router.web.console.shown import count
from router.web.openapi.description import text
from router.web.requests import Query, decode

PATH: Final = "/console/streams"
PAGE_STREAMS: Final = 50
MAX_CONSUMERS: Final = 500
"""Consumers on the page of a stream; of more it says how many are left out."""
NOT_MANAGED: Final = "You may not manage this stream's topic."
NOT_READ: Final = "You may not subscribe to this stream's topic."
SECOND: Final = 1_000_000_000
_DURATIONS: Final = ("ack_wait", "duplicate_window", "inactive_threshold", "max_age", "max_expires")
"""Of configurations, in nanoseconds."""
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_OFF: Final = "There are no streams here: "

_log = structlog.get_logger(__name__)


class StreamPageViews(PageViews):
    """The views of `/console/streams`; `enabled`: JetStream is."""

    def __init__(self, context: PageContext, *, enabled: bool) -> None:
        super().__init__(context)
        self._enabled = enabled

    @page(f"GET {PATH}", text("q", "Streams whose name or subjects hold this."), PAGED)
    def stream_list(self) -> Response:
        """Answer the streams that the caller may see, with what they hold."""
        principal, query = self._context.principal(), Query(request.environ)
        search, note = words(query, "q"), ""
        shown: TablePage[dict[str, Any]] = paged(query, [], PAGE_STREAMS)
        try:
            shown = _streams(self._calls(principal).call, query, search.lower())
        except NotSupportedError as error:
            note = f"{_OFF}{error}"
        data = {
            "search": search,
            **shown.data(),
            "streams": shown.rows,
            "note": note,
            "commands": [
                commands.curl(principal, commands.url("jetstream", "api", "STREAM.LIST")),
                commands.router("streams", "ls"),
            ],
        }
        return self._context.pages.answer("streams.html", data)

    @page(f"GET {PATH}/<stream>")
    def stream_page(self, stream: str) -> Response:
        """Answer the page of a stream: its configuration, what it holds, its consumers."""
        principal, stream = self._context.principal(), _stream(stream)
        call, note = self._calls(principal).call, ""
        info = call(f"STREAM.INFO.{stream}", {})
        consumers: list[dict[str, Any]] = []
        try:
            consumers = [_consumer(one) for one in management.consumers(call, stream)]
        except NotSupportedError as error:
            note = str(error)
        data = {
            "stream": stream,
            "topic": management.topic_of_stream(stream),
            "state": _shown(info["state"]),
            "config": _shown(info["config"]),
            "created": info["created"],
            "consumers": consumers[:MAX_CONSUMERS],
            "left_out": max(0, len(consumers) - MAX_CONSUMERS),
            "note": note,
            "no_change": "" if self._may(principal, stream, Right.MANAGE) else NOT_MANAGED,
            "commands": _lines(principal, stream),
        }
        return self._context.pages.answer("stream.html", data)

    @page(f"GET {PATH}/<stream>/consumers/<consumer>", fails=(*FAILS, "subscription-not-found"))
    def consumer_page(self, stream: str, consumer: str) -> Response:
        """Answer the page of a consumer: where it stands, and its configuration."""
        principal, stream = self._context.principal(), _stream(stream)
        consumer = _token(decode(consumer))
        subject = f"CONSUMER.INFO.{stream}.{consumer}"
        try:
            info = self._calls(principal).call(subject, {})
        except NotSupportedError as error:
            raise SubscriptionNotFoundError(str(error)) from error
        places = ("delivered", "ack_floor")
        state = {name: value for name, value in info.items() if name.startswith("num_")}
        for place in places:
            state |= {f"{place}.{name}": value for name, value in info[place].items()}
        data = {
            "stream": stream,
            "consumer": consumer,
            "state": _shown(state),
            "config": _shown(info["config"]),
            "created": info["created"],
            "no_change": "" if self._may(principal, stream, Right.SUBSCRIBE) else NOT_READ,
            "commands": [
                commands.curl(principal, commands.url("jetstream", "api", subject)),
                commands.router("streams", "consumers", stream, consumer),
            ],
        }
        return self._context.pages.answer("consumer.html", data)

    @action(f"POST {PATH}/<stream>/purge", "confirm", optional=("filter",), kinds=CONFIRMED)
    def purge_stream(self, stream: str) -> Response:
        """Delete messages of a stream, when its name is written once more."""
        stream = _stream(stream)
        principal, fields = self._confirmed(stream, stream, Right.MANAGE)
        subject = fields.text("filter", "").strip()
        body = {"filter": subject} if subject else {}
        found = self._calls(principal).call(f"STREAM.PURGE.{stream}", body)
        _log.info("stream-purged", stream=stream, count=found["purged"], user=principal.name)
        options = ["--filter", subject] if subject else []
        data = {
            "stream": stream,
            "purged": found["purged"],
            "commands": [commands.router("streams", "purge", stream, *options)],
        }
        return self._context.pages.done(data, commands.path("console", "streams", stream))

    @action(f"POST {PATH}/<stream>/delete", "confirm", kinds=CONFIRMED)
    def delete_stream(self, stream: str) -> Response:
        """Delete a stream with its topic, when its name is written once more."""
        stream = _stream(stream)
        principal, _ = self._confirmed(stream, stream, Right.MANAGE)
        self._calls(principal).call(f"STREAM.DELETE.{stream}", {})
        _log.info("stream-deleted", stream=stream, user=principal.name)
        lines = [commands.router("streams", "rm", stream)]
        data = {"stream": stream, "deleted": True, "commands": lines}
        return self._context.pages.done(data, PATH)

    @action(f"POST {PATH}/<stream>/consumers/<consumer>/delete", "confirm", kinds=CONFIRMED)
    def delete_consumer(self, stream: str, consumer: str) -> Response:
        """Delete a consumer, when its name is written once more."""
        stream, consumer = _stream(stream), _token(decode(consumer))
        principal, _ = self._confirmed(stream, consumer, Right.SUBSCRIBE)
        subject = f"CONSUMER.DELETE.{stream}.{consumer}"
        self._calls(principal).call(subject, {})
        _log.info("consumer-deleted", stream=stream, consumer=consumer, user=principal.name)
        line = commands.curl(principal, commands.url("jetstream", "api", subject), "-X", "POST")
        data = {"stream": stream, "consumer": consumer, "deleted": True, "commands": [line]}
        return self._context.pages.done(data, commands.path("console", "streams", stream))

    def _calls(self, principal: Principal) -> management.StreamCalls:
        """Return what calls the API; raise NotSupportedError if it is turned off."""
        if not self._enabled:
            raise NotSupportedError("JetStream is turned off by the setting jetstream.enabled.")
        administers = self._context.access.may_administer(principal, request.environ)
        return management.StreamCalls(self._services.jetstream, principal, administers=administers)

    def _confirmed(self, stream: str, name: str, right: Right) -> tuple[Principal, Fields]:
        """Return who sends a form that has a name once more; raise BadRequestError, ForbiddenError.

        The streams check rights once more.
        """
        principal, _ = self._context.authorized(_topic(stream), right)
        fields = Fields(request.environ)
        if fields.text("confirm", "").strip() != name:
            raise BadRequestError(f"confirm: write {name} to do this.")
        return principal, fields

    def _may(self, principal: Principal, stream: str, right: Right) -> bool:
        try:
            topic = self._context.topic_name(_topic(stream))
        except BadNameError:
            return False
        return self._context.may(principal, topic, right)


def _stream(segment: str) -> str:
    """Return the name of a stream, from a path segment; a dot is that of its topic."""
    return _token(management.stream_name(decode(segment)))


def _topic(stream: str) -> str:
    """Return the name of a stream's topic as a path segment."""
    return commands.segment(management.topic_of_stream(stream))


def _token(name: str) -> str:
    """Return a name as a token of a subject; raise BadNameError for what is none."""
    if not name or any(one in " \t\r\n\f.*>" for one in name):
        raise BadNameError("The name of a stream or consumer has no dot, wildcard or space.")
    return name


def _streams(call: management.ApiCall, query: Query, search: str) -> TablePage[dict[str, Any]]:
    """Return the streams of a page; without a search no more is asked for than one answer has."""
    if search:
        found = map(_row, management.streams(call))
        rows = [one for one in found if search in f"{one['name']} {one['subjects']}".lower()]
        return paged(query, rows, PAGE_STREAMS)
    page = max(query.number("page", 1, MAX_PAGES), 1)
    listed, total = management.stream_page(call, (page - 1) * PAGE_STREAMS)
    rows = [_row(one) for one in listed[:PAGE_STREAMS]]
    return TablePage(page, max(1, -(-total // PAGE_STREAMS)), total, rows)


def _row(one: Mapping[str, Any]) -> dict[str, Any]:
    config, state = one["config"], one["state"]
    counts = ("messages", "bytes", "first_seq", "last_seq", "consumer_count")
    return {
        "name": config["name"],
        "subjects": ", ".join(config.get("subjects") or ()),
        "retention": config["retention"],
        **{name: state[name] for name in counts},
    }


def _consumer(one: Mapping[str, Any]) -> dict[str, Any]:
    config = one["config"]
    return {
        "name": one["name"],
        "kind": "push" if config.get("deliver_subject") else "pull",
        "durable": bool(config.get("durable_name")),
        "delivered": one["delivered"]["stream_seq"],
        "acknowledged": one["ack_floor"]["stream_seq"],
        "pending": one["num_pending"],
        "unacknowledged": one["num_ack_pending"],
        "waiting": one["num_waiting"],
    }


def _shown(members: Mapping[str, Any]) -> dict[str, str]:
    """Return members as a page shows them, without those that are empty, or a time that is none."""
    shown = {name: _text(name, value) for name, value in members.items()}
    return {name: text for name, text in shown.items() if text not in {"", management.NO_TIME}}


def _text(name: str, value: Any) -> str:
    if name in _DURATIONS and isinstance(value, int) and value:
        return _duration(value)
    if value == -1 and name.startswith("max_"):
        return "unlimited"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} = {one}" for key, one in value.items())
    if isinstance(value, bool):
        return str(value).lower()
    return count(value) if isinstance(value, int) else str(value)


def _duration(nanoseconds: int) -> str:
    """Return a duration, exactly, in the largest unit that has no fraction."""
    for unit, length in _UNITS:
        if nanoseconds % (length * SECOND) == 0:
            return f"{count(nanoseconds // (length * SECOND))} {unit}"
    return f"{nanoseconds / SECOND:,.9f}".rstrip("0").rstrip(".") + " s"


def _lines(principal: Principal, stream: str) -> list[str]:
    subject = f"STREAM.INFO.{stream}"
    return [
        commands.curl(principal, commands.url("jetstream", "api", subject)),
        commands.router("streams", "info", stream),
        commands.router("streams", "consumers", stream),
        commands.router("streams", "purge", stream),
        commands.router("streams", "rm", stream),
    ]
