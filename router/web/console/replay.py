"""The page that replays the messages that a topic's page is about, one bounded batch a request.

The state of a replay is in the form: its id, where the batch begins and ends, and where all of it
ends. A script sends one batch after the other at a bounded rate and keeps the state for a reload;
without script each press of the button is a batch. A form that is sent twice stores nothing twice.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from flask import Response, request

from router.errors import BadRequestError, TopicNotFoundError
from router.errors.quoting import quoted
from router.model import Principal, TopicName, TopicStats
from router.services.replay import MAX_BATCH_MESSAGES, ReplayRange, entries_left
from router.services.scan import Places, StartPosition
from router.web.access import Right
from router.web.console.context import PageViews
from router.web.console.fields import Fields
from router.web.console.filters import NAMES
from router.web.console.masking import HIDE_NOTHING
from router.web.console.message_tab import SHOWN_MESSAGES, ends_of, find_messages
from router.web.console.pages import WHOLE_NUMBER, action, page
from router.web.console.publish_tab import PUBLISH_FAILS
from router.web.console.selection import (
    SELECTION,
    Selection,
    read_places,
    read_selection,
    texts,
    with_positions,
)
from router.web.pulsar_rest import ids
from router.web.requests import Query

MAX_RATE: Final = 1_000
"""Messages a second."""
DEFAULT_RATE: Final = 100
_ID: Final = re.compile(r"[0-9a-f]{32}")


class ReplayViews(PageViews):
    """The views of replays."""

    @page("GET /console/topics/<topic>/replay", *SELECTION)
    def replay(self, topic: str) -> Response:
        """Answer what a replay would begin with, and the form that does it."""
        _, name = self._context.authorized(topic, Right.SUBSCRIBE)
        query = Query(request.environ)
        chosen = self._selection(name, texts(query))
        stats = self._services.topics.described(name)
        starts, ends = self._range(name, stats, chosen)
        state = {
            "id": secrets.token_hex(16),
            "to": "",
            "filters": {one: chosen.given.get(one, "") for one in NAMES},
            "stored": 0,
            "batch": 0,
        }
        data = state | self._next(name, stats, chosen, (starts, ends), MAX_BATCH_MESSAGES)
        return self._context.pages.answer("replay.html", data)

    @action(
        "POST /console/topics/<topic>/replay",
        "to",
        "id",
        "cursor",
        "until",
        "end",
        optional=("most", "stored", *NAMES),
        kinds={
            "id": {"type": "string", "pattern": f"^{_ID.pattern}$"},
            "most": WHOLE_NUMBER,
            "stored": WHOLE_NUMBER,
        },
        fails=(*PUBLISH_FAILS, "read-failed", "incompatible-schema", "invalid-schema"),
    )
    def replay_batch(self, topic: str) -> Response:
        """Replay one batch, and say where the next one ends."""
        principal, name = self._context.authorized(topic, Right.SUBSCRIBE)
        fields = Fields(request.environ)
        target = self._target(principal, fields.text("to").strip())
        number = fields.text("id")
        if not _ID.fullmatch(number):
            raise BadRequestError(f"id: expected 32 hexadecimal digits, not {quoted(number, 40)}.")
        filters = {one: fields.text(one, "") for one in NAMES}
        chosen = self._selection(name, filters)
        cursor, until, end = (
            read_places(one, fields.text(one), chosen.partitions)
            for one in ("cursor", "until", "end")
        )
        limit = min(max(fields.number("most") or MAX_BATCH_MESSAGES, 1), MAX_BATCH_MESSAGES)
        batch = ReplayRange(name, cursor, until)
        copied = self._services.replay.copy(
            batch, target, chosen.chosen.matches, (principal.name, number)
        )
        stats = self._services.topics.described(name)
        data = {
            "id": number,
            "to": target.local,
            "filters": filters,
            "batch": copied,
            "stored": (fields.number("stored") or 0) + copied,
        } | self._next(name, stats, chosen, (until, end), limit)
        return self._context.pages.answer("replay.html", data)

    def _selection(self, name: TopicName, given: Mapping[str, str]) -> Selection:
        now = self._services.histories.now_ms()
        partitions = self._services.reading.partitions(name)
        given = with_positions(given, partitions, partial(self._services.offsets.position, name))
        return read_selection(given, partitions, now)

    def _target(self, principal: Principal, written: str) -> TopicName:
        # A name in a form is as it is: nothing in it is an escape.
        target = self._context.topic_name(written.replace("%", "%25"))
        self._context.access.authorize(principal, target, Right.PUBLISH)
        if not self._services.topics.exists(target):
            raise TopicNotFoundError(f"[{target.local}]")
        return target

    def _range(
        self, name: TopicName, stats: TopicStats, chosen: Selection
    ) -> tuple[Places, Places]:
        """Return where a selection begins and ends: what its page shows, or all from a place on."""
        ends = ends_of(self._services.reading, stats, chosen)
        if chosen.starts is not None:
            return chosen.starts, ends
        found = find_messages(
            self._services.reading, name, stats, (chosen, HIDE_NOTHING), SHOWN_MESSAGES
        )
        return found.begin, ends

    def _next(
        self,
        name: TopicName,
        stats: TopicStats,
        chosen: Selection,
        places: tuple[dict[int, StartPosition], dict[int, StartPosition]],
        limit: int,
    ) -> dict[str, Any]:
        """Return the places of the next batch, for the form, and what is left."""
        starts, ends = places
        until, whole = self._services.replay.next_batch(ReplayRange(name, starts, ends), limit)
        marks = [chosen.marks(places) for places in (starts, until, ends)]
        if None in marks:
            raise BadRequestError(f"A replay has at most {ids.MAX_MARKS} partitions.")
        cursor, upto, end = marks
        return {
            "topic": name.local,
            "cursor": cursor,
            "until": upto,
            "end": end,
            "left": entries_left(stats, starts, ends),
            "done": whole and cursor == upto,
            "stalled": cursor == upto and not whole,
            "rate": DEFAULT_RATE,
            "max_rate": MAX_RATE,
            "max_batch": MAX_BATCH_MESSAGES,
        }
