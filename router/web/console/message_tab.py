"""The tab Messages of a topic's page: the last messages, or those around a place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from flask import request

from router.errors import BadReadOptionError
from router.model import Principal, TopicName, TopicStats
from router.services.message_details import headers_of
from router.services.message_offsets import MessageOffsets
from router.services.pages import MessagePage, after, before, first_since
from router.services.position_texts import write_position
from router.services.read import TopicReader
from router.services.scan import After, Places, ScanBounds, Start, StartPosition, beginning, end_of
from router.web import bodies
from router.web.access import Right
from router.web.console import commands, shown
from router.web.console.context import PageContext
from router.web.console.masking import REASON, Mask, VisibleMessage
from router.web.console.pages import base, wants_problem
from router.web.console.selection import Selection, read_selection, texts, with_positions
from router.web.pulsar_rest import ids
from router.web.requests import Query

VIEWS: Final = ("text", "tree", "hex")
SHOWN_MESSAGES: Final = 50
"""Messages of one page."""
SHOWN_CHARACTERS: Final = 20_000
"""Of one message; the rest is left out, and how much that is is said."""
MAX_PREVIEW: Final = 400
"""Characters of a value in a line of the table."""
NOT_AVAILABLE: Final = "This store does not say what a topic holds."
BLIND_BOUNDS: Final = ScanBounds(20_000, 16 * 1024 * 1024, 1.0)
"""Of a store that does not say where a topic ends: what comes in a second is shown."""


class MessageTab:
    """What the tab shows."""

    def __init__(
        self,
        context: PageContext,
        reading: TopicReader,
        offsets: MessageOffsets,
        now_ms: Callable[[], int],
    ) -> None:
        self._context = context
        self._offsets = offsets
        self._reading = reading
        self._now_ms = now_ms

    def data(
        self, principal: Principal, name: TopicName, stats: TopicStats | None, query: Query
    ) -> dict[str, Any]:
        """Return the data of the page."""
        view = query.choice("view", VIEWS, VIEWS[0])
        partitions = self._reading.partitions(name)
        given = texts(query) | {"view": view}
        may_read = self._context.may(principal, name, Right.BROWSE)
        try:
            position = partial(self._offsets.position, name)
            given = with_positions(given, partitions, position)
            chosen = read_selection(given, partitions, self._now_ms())
        except BadReadOptionError as error:
            if wants_problem(request.environ):
                raise
            return _empty(given, partitions, view) | {"error": error_of(error)}
        data = _empty(chosen.given, partitions, view) | {
            "live": chosen.live,
            "latest": "?" + chosen.query(),
            "newest_first": chosen.starts is None,
        }
        if not may_read:
            return data | {"note": "You may not read this topic."}
        mask = self._context.mask(principal, name, stats)
        found = find_messages(self._reading, name, stats, (chosen, mask), SHOWN_MESSAGES)
        data["messages"] = [line_of(mask.shown(stored), view) for stored in found.messages]
        data["masked"] = REASON if mask.hides else ""
        data["note"] = _note(found, chosen, known=stats is not None)
        data["empty"] = "" if found.messages else _emptiness(found, chosen)
        data["commands"] = _commands(principal, name, chosen)
        links = _links(chosen, found, known=stats is not None)
        data |= links | {"search": _search(found, chosen, stats, links)}
        if chosen.live:
            data |= self._live(name, partitions, found, data["note"])
        return data

    def _live(
        self, name: TopicName, partitions: list[int], found: MessagePage, note: str
    ) -> dict[str, str]:
        """Return where live messages come from: behind those that the page has."""
        if len(partitions) > ids.MAX_MARKS:
            return {"note": f"A live tail has at most {ids.MAX_MARKS} partitions. {note}".strip()}
        places = beginning(partitions, Start.LATEST) | found.end
        mark = quote(ids.write_marks([places[partition] for partition in partitions]), safe="")
        path = commands.path("console", "topics", name.local, "stream")
        return {"stream": f"{base()}{path}?last_event_id={mark}"}


def error_of(error: BadReadOptionError) -> dict[str, str]:
    """Return the `field` that cannot be read, and a `text` for it."""
    field, _, text = str(error).partition(": ")
    return {"field": field, "text": text[:1].upper() + text[1:]}


def _empty(given: Mapping[str, str], partitions: list[int], view: str) -> dict[str, Any]:
    """Return the data of a page without messages."""
    before = given.get("before", "")
    return {
        "view": view,
        "views": VIEWS,
        "selection": {one: given.get(one, "") for one in _GIVEN},
        "is_turned": "@" in before or "." in before,
        "partitions": len(partitions),
        "live": False,
        "messages": [],
        "stream": "",
        "older": "",
        "newer": "",
        "latest": "?tab=messages",
        "newest_first": True,
        "note": "",
        "empty": "",
        "search": None,
        "error": None,
        "masked": "",
        "commands": [],
    }


def _search(
    found: MessagePage, chosen: Selection, stats: TopicStats | None, links: Mapping[str, str]
) -> dict[str, Any] | None:
    """Return how far a search is, None: nothing is searched for, or its end is not known.

    `total` is None where it is not about whole partitions; `next` is "" at its end.
    """
    if stats is None or not chosen.filters:
        return None
    kept = [part.messages for part in stats.partitions if part.partition in chosen.partitions]
    whole = chosen.live or set((chosen.starts or {}).values()) == {Start.EARLIEST}
    forward = chosen.starts is not None
    return {
        "checked": found.looked,
        "total": max(found.looked, sum(kept)) if whole and chosen.ends is None else None,
        "found": len(found.messages),
        "next": ("" if found.whole else links["newer"]) if forward else links["older"],
    }


_GIVEN: Final = ("filter", "key", "header", "path", "partition", "from", "before")


def find_messages(
    reading: TopicReader,
    name: TopicName,
    stats: TopicStats | None,
    of: tuple[Selection, Mask],
    limit: int,
) -> MessagePage:
    """Return what a selection is about, at most so many messages; raise what reading raises.

    Its filters are evaluated on messages as a mask shows them.
    """
    chosen, mask = of
    matches = mask.matching(chosen.chosen.matches)
    if stats is None:
        if chosen.starts is None:
            none = beginning(chosen.partitions, Start.LATEST)
            return MessagePage((), none, none, 0, whole=True)
        return after(reading, name, (chosen.starts, {}), limit, matches, BLIND_BOUNDS)
    ends = ends_of(reading, stats, chosen)
    if chosen.starts is not None:
        return after(reading, name, (chosen.starts, ends), limit, matches)
    return before(reading, stats, ends, limit, matches)


def ends_of(reading: TopicReader, stats: TopicStats, chosen: Selection) -> Places:
    """Return where the partitions end that a selection is about: as it says, or now."""
    now = end_of(stats)
    ends = {p: now.get(p, Start.EARLIEST) for p in chosen.partitions}
    if chosen.ends is None:
        return ends
    times = [end for end in chosen.ends.values() if isinstance(end, int)]
    return first_since(reading, stats.info.topic, ends, times[0]) if times else chosen.ends


def _links(chosen: Selection, found: MessagePage, *, known: bool) -> dict[str, str]:
    links = {"older": "", "newer": ""}
    forward = chosen.starts is not None
    back = _begin(found) if forward else found.begin
    if known and (forward or not found.whole) and _has_earlier(back) and (m := chosen.marks(back)):
        links["older"] = "?" + chosen.query(before=m)
    if not chosen.live and (mark := chosen.marks(found.end)):
        kept = {} if chosen.ends is None else {"before": chosen.given["before"]}
        links["newer"] = "?" + chosen.query(**{"from": mark}, **kept)
    return links


def _begin(found: MessagePage) -> Places:
    """Return where a page begins that was found from a place on."""
    begin = dict(found.begin)
    for stored in reversed(found.messages):
        begin[stored.position.partition] = stored.position
    # A time is no place to go back from; where nothing came since, the end is.
    return {p: found.end[p] if isinstance(place, int) else place for p, place in begin.items()}


def _has_earlier(places: Places) -> bool:
    """Return whether there may be messages before places."""
    return any(not isinstance(place, Start) for place in places.values()) and not any(
        isinstance(place, int) for place in places.values()
    )


def _note(found: MessagePage, chosen: Selection, *, known: bool) -> str:
    if not known and chosen.live:
        return f"{NOT_AVAILABLE} Messages that come are shown."
    if not known and chosen.ends is not None:
        return NOT_AVAILABLE
    if found.whole or len(found.messages) >= SHOWN_MESSAGES:
        return ""
    further = "Newer" if chosen.starts is not None else "Older"
    return f"{found.looked:,} messages were checked; {further} goes on."


def _emptiness(found: MessagePage, chosen: Selection) -> str:
    """Return the sentence that stands where messages would be."""
    checked = f"{found.looked:,} messages were checked"
    if chosen.filters:
        return f"No message matches: {checked}."
    return "There are no messages yet." if chosen.live else "There are no messages here."


def masked_line(one: VisibleMessage) -> dict[str, Any]:
    """Return a masked message as an event of a stream has it, with the size of its value."""
    return {"bytes": one.bytes} | bodies.line(one.stored)


def line_of(one: VisibleMessage, view: str) -> dict[str, Any]:
    """Return a message as a page shows it, by the view `text`, `tree` or `hex`.

    Bytes that are no UTF-8 are in hexadecimal; the value of a message without one is None.
    """
    stored = one.stored
    message, position = stored.message, stored.position
    value, plain = shown.text(message.value)
    key, key_is_text = shown.text(message.key or b"")
    return {
        "key": None if message.key is None else key,
        "value": None if message.null else value[:SHOWN_CHARACTERS],
        "left_out": max(0, len(value) - SHOWN_CHARACTERS),
        "text": plain,
        "bytes": one.bytes,
        "size": one.size,
        "key_is_text": key_is_text,
        "time": shown.at(stored.publish_time),
        "iso": shown.at(stored.publish_time).replace(" ", "T"),
        "preview": "" if message.null else value[:MAX_PREVIEW],
        "partition": max(0, position.partition),
        "position": shown.place(position),
        "place": write_position(position, with_index=True),
        "id": ids.write_colons(position),
        "headers": dict(message.properties),
        "shown_headers": [list(pair) for pair in headers_of(message).pairs],
        "dump": shown.hexdump(message.value) if view == "hex" else "",
        "tree": shown.tree(value) if view == "tree" and plain else None,
    }


def _commands(principal: Principal, name: TopicName, chosen: Selection) -> list[str]:
    """Return the lines that read the same messages, without the filters."""
    start = chosen.given.get("from", "")
    events = commands.url("events", name.local) + "?stream"
    places = list((chosen.starts or {}).values())
    if not places:
        return [
            commands.curl(principal, events, "-N"),
            commands.router("sub", name.local),
        ]
    if isinstance(places[0], int | Start) and len(set(map(str, places))) == 1:
        url = f"{events}&from={commands.segment(start)}"
        return [
            commands.curl(principal, url, "-N"),
            commands.router("sub", name.local, "--from", start),
        ]
    if len(places) == 1:
        url = position_url(name, chosen.partitions[0], places[0], SHOWN_MESSAGES)
        return [commands.curl(principal, url)]
    mark = commands.segment(chosen.marks(chosen.starts or {}) or "")
    return [commands.curl(principal, f"{events}&last_event_id={mark}", "-N")]


def position_url(name: TopicName, partition: int, place: StartPosition, limit: int) -> str:
    """Return PIP 64's address of the messages of a partition from a place on."""
    names = name.tenant, name.namespace, name.local
    path = commands.url("topics", *names, "partitions", str(max(0, partition)), "messages")
    if isinstance(place, After):
        return f"{path}?after={ids.write_colons(place.position)}"
    word = ids.write_colons(place) if not isinstance(place, Start | int) else ids.write_mark(place)
    return f"{path}?start={word.removeprefix('@')}&max_messages={limit}"
