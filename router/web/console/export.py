"""Downloads of the messages that a topic's page shows."""

from __future__ import annotations

import csv
import io
import re
from typing import Final

import orjson
from flask import Blueprint, Response, request

from router.model import Stored
from router.services.manage import Topics
from router.services.read import Reading
from router.services.recent import recent
from router.web import bodies
from router.web.access import Right
from router.web.console import shown
from router.web.console.described import FAILS, SIGN_IN
from router.web.console.pages import HEADERS, NO_STORE
from router.web.console.parts import Parts, words
from router.web.openapi.description import TEXT, Reply, choice, operation, text
from router.web.parameters import Query

MOST_EXPORTED: Final = 1_000
KINDS: Final = {"ndjson": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}
COLUMNS: Final = ("time", "partition", "position", "key", "value", "headers")
# What spreadsheets take for a formula, unless it is a number.
_FORMULA: Final = re.compile(r"[=+\-@\t\r]")
_NUMBER: Final = re.compile(r"[+-]?[0-9.]+")


class ExportViews:
    """The view of downloads."""

    def __init__(self, parts: Parts, topics: Topics, reading: Reading) -> None:
        self._parts = parts
        self._topics = topics
        self._reading = reading

    def add(self, routes: Blueprint) -> None:
        """Add the route."""
        routes.get("/console/topics/<topic>/export")(self.export)

    @operation(
        choice("as", KINDS, "Of which type the file is."),
        text("filter", "Messages whose text, key or headers hold these words."),
        answers={
            200: Reply("The file.", {kind.partition(";")[0]: TEXT for kind in KINDS.values()}),
            **SIGN_IN,
        },
        fails=(*FAILS, "read-failed"),
    )
    def export(self, topic: str) -> Response:
        """Answer the last messages of a topic that match the filter, as a file."""
        principal, name = self._parts.principal(), self._parts.topic_name(topic)
        self._parts.access.demand(principal, name, Right.SUBSCRIBE)
        query = Query(request.environ)
        kind, wanted = query.choice("as", tuple(KINDS), "ndjson"), words(query, "filter")
        found = recent(self._reading, self._topics.described(name), MOST_EXPORTED)
        chosen = [stored for stored in found.messages if shown.matches(stored.message, wanted)]
        data = _ndjson(chosen) if kind == "ndjson" else _csv(chosen)
        answer = Response(data, content_type=KINDS[kind], headers=HEADERS | NO_STORE)
        # A topic's name holds nothing that would end the quotes.
        answer.headers["Content-Disposition"] = f'attachment; filename="{name.local}.{kind}"'
        return answer


def _ndjson(messages: list[Stored]) -> bytes:
    lines = (orjson.dumps(bodies.line(stored)) for stored in messages)
    return b"".join(line + b"\n" for line in lines)


def _csv(messages: list[Stored]) -> bytes:
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(COLUMNS)
    for stored in messages:
        message, position = stored.message, stored.position
        table.writerow(
            (
                shown.at(stored.publish_time),
                max(0, position.partition),
                shown.place(position),
                _cell(shown.text(message.key or b"")[0]),
                _cell(shown.text(message.value)[0]),
                orjson.dumps(dict(message.properties)).decode(),
            )
        )
    return text.getvalue().encode()


def _cell(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula."""
    formula = _FORMULA.match(text) and not _NUMBER.fullmatch(text)
    return f"'{text}" if formula else text
