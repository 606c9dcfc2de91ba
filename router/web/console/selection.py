"""Which range of a topic's messages a page, an export or a replay is about, as addresses say it.

`from` is where it begins: `earliest`, `latest`, a time, how long ago, the id of a message
(`ledger:entry:partition`, `:index` behind it in a batch, or PIP 64's base64) or Kafka's partition
and offset (`partition:offset`), which are in one partition, or marks as server-sent events have
them, one for each partition. `before` is where it ends, in the same words. Without either it is
about the last messages, and what comes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlencode

from router.errors import BadReadOptionError, BadRequestError, NotSupportedError
from router.errors.quoting import quoted
from router.model import NOT_PARTITIONED, Position
from router.services.groups import moment
from router.services.position_texts import write_position
from router.services.read import placed
from router.services.scan import Places, Start, StartPosition
from router.web.console.context import words
from router.web.console.filters import NAMES, Filter
from router.web.openapi.description import text
from router.web.pulsar_rest import ids
from router.web.requests import Query

_EXPECTED: Final = (
    "expected earliest, latest, how long ago such as 15m, a time with its zone such as"
    " 2026-11-01T00:00Z, milliseconds since 1970, a message's id such as 12:345:0, or partition and"
    " offset such as 2:1500"
)
_AGO: Final = re.compile(r"([0-9]{1,6})(s|m|h|d)")
_OFFSET: Final = re.compile(r"([0-9]{1,9}):([0-9]{1,18})")
_UNITS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


SELECTION: Final = (
    text("filter", "Messages that this is true of: a text, `key:`, `header:`, JSON paths."),
    text("key", "Messages of exactly this key."),
    text("header", "Messages with a header: `name`, or `name=value`."),
    text("path", "Messages whose JSON has something at a path, such as `$.order.total=12`."),
    text("partition", "Messages of one partition."),
    text("from", "Where the range begins."),
    text("before", "Where it ends."),
)


@dataclass(frozen=True, slots=True)
class Selection:
    """A range of a topic and filters; `starts` and `ends` None: not named.

    `given` are the parameters that say so, without those that are empty.
    """

    chosen: Filter
    partitions: tuple[int, ...]
    starts: Places | None
    ends: Places | None
    given: Mapping[str, str]

    @property
    def live(self) -> bool:
        """Return whether it is about the last messages, and what comes."""
        return self.starts is None and self.ends is None

    @property
    def filters(self) -> bool:
        """Return whether it leaves out messages by what they hold."""
        return any(name in self.given for name in NAMES)

    def query(self, **places: str) -> str:
        """Return the query of an address with the same filters, and other places."""
        kept = {name: self.given[name] for name in (*NAMES, "view") if name in self.given}
        return urlencode({"tab": "messages"} | kept | places)

    def marks(self, places: Mapping[int, StartPosition]) -> str | None:
        """Return places as a text, None: there are too many of them."""
        if len(self.partitions) > ids.MAX_MARKS:
            return None
        return ids.write_marks([places[partition] for partition in self.partitions])


def with_positions(
    given: Mapping[str, str], partitions: Sequence[int], position: Callable[[int, int], Position]
) -> dict[str, str]:
    """Return the texts of a request with ids in the place of `partition:offset`.

    `position` returns that of an offset in a partition. Raises BadReadOptionError.
    """
    found = dict(given)
    for name in ("from", "before"):
        offset = _OFFSET.fullmatch(given.get(name, "").strip())
        if offset is None:
            continue
        number = int(offset[1])
        if number >= len(partitions):
            raise BadReadOptionError(f"{name}: the topic has no partition {number}.")
        try:
            place = position(partitions[number], int(offset[2]))
        except NotSupportedError as error:
            raise BadReadOptionError(f"{name}: {error}.") from error
        found[name] = write_position(place, with_index=True)
    return found


def texts(query: Query) -> dict[str, str]:
    """Return the parameters of a query that say which messages are meant."""
    return {name: words(query, name) for name in (*NAMES, "from", "before")}


def read_selection(given: Mapping[str, str], partitions: Sequence[int], now_ms: int) -> Selection:
    """Return what the texts of a request say; raise BadReadOptionError.

    `partitions` are the topic's, as its store numbers them; `15m` is so long before `now_ms`.
    """
    chosen = Filter.read(given)
    start = given.get("from", "").strip()
    end = given.get("before", "").strip()
    if start and ("@" in end or "." in end):
        end = ""  # the place of a page that was turned to
    selected = _selected(partitions, chosen.partition)
    starts: Places | None = None
    if start and start != Start.LATEST.value:
        starts = _read("from", start, (partitions, selected), now_ms)
    ends: Places | None = None
    if end:
        ends = _read("before", end, (partitions, selected), now_ms)
        if ("@" in end or "." in end) and any(isinstance(one, int) for one in ends.values()):
            raise BadReadOptionError("before: expected marks of messages.")
    for places in (starts, ends):
        if places is not None and len(places) < len(selected):
            selected = tuple(places)
            chosen = replace(chosen, partition=max(0, selected[0]))
    parameters = dict(given) | {"from": start, "before": end}
    if chosen.partition is not None:
        parameters["partition"] = str(chosen.partition)
    return Selection(
        chosen, selected, starts, ends, {name: one for name, one in parameters.items() if one}
    )


def _selected(partitions: Sequence[int], expected: int | None) -> tuple[int, ...]:
    if expected is None:
        return tuple(partitions)
    if expected >= len(partitions):
        raise BadReadOptionError(
            f"partition: expected a number below {len(partitions)}, not {expected}."
        )
    return (partitions[expected],)


def _read(
    name: str, written: str, of: tuple[Sequence[int], tuple[int, ...]], now_ms: int
) -> dict[int, StartPosition]:
    """Return the places that a text names, of one partition only if it is a message's."""
    partitions, selected = of
    if ago := _AGO.fullmatch(written):
        return dict.fromkeys(selected, max(0, now_ms - int(ago[1]) * _UNITS[ago[2]]))
    try:
        return dict.fromkeys(selected, moment(name, written))
    except BadReadOptionError:
        pass
    if "." in written or "@" in written:
        return read_places(name, written, selected)
    try:
        position = ids.read(written)
    except BadRequestError as error:
        raise _unreadable(name, written) from error
    if position.partition == NOT_PARTITIONED and len(selected) == 1:
        position = replace(position, partition=selected[0])
    if len(partitions) == 1 and position.partition in {0, NOT_PARTITIONED}:
        position = replace(position, partition=partitions[0])
    if position.partition not in selected:
        raise BadReadOptionError(
            f"{name}: expected a message of a partition that is shown, not {quoted(written, 40)}."
        )
    return {position.partition: position}


def read_places(name: str, written: str, selected: tuple[int, ...]) -> dict[int, StartPosition]:
    """Return places from marks, one for each partition; raise BadReadOptionError."""
    try:
        marks = ids.read_marks(written)
    except BadRequestError as error:
        raise _unreadable(name, written) from error
    if len(marks) != len(selected):
        raise BadReadOptionError(
            f"{name}: expected marks of {len(selected)} partitions, not of {len(marks)}."
        )
    return {p: placed(mark, p) for p, mark in zip(selected, marks, strict=True)}


def _unreadable(name: str, written: str) -> BadReadOptionError:
    return BadReadOptionError(f"{name}: {_EXPECTED}, not {quoted(written, 40)}.")
