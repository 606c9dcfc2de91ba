"""Which stretch of a topic's messages a page, an export or a replay is about, as addresses say it.

`from` is where it begins: `earliest`, `latest`, a time, the id of a message
(`ledger:entry:partition`, `:index` behind it in a batch, or PIP 64's base64), which is in one
partition, or marks as server-sent events have them, one for each partition. `before` are marks of
where it ends. Without either it is about the last messages, and what comes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlencode

from router.errors import BadReadOptionError, BadRequestError
from router.model import NOT_PARTITIONED, Position
from router.quoting import quoted
from router.services.groups import moment
from router.services.scan import After, Places, Start, Whence
from router.web.console.filters import NAMES, Filter
from router.web.console.parts import words
from router.web.openapi.description import text
from router.web.parameters import Query
from router.web.pulsar_rest import ids

_EXPECTED: Final = (
    "expected earliest, latest, a time with its zone such as 2026-11-01T00:00Z, milliseconds since"
    " 1970, or a message's id such as 12:345:0"
)


SELECTION: Final = (
    text("filter", "Messages whose value, key or headers hold this text."),
    text("key", "Messages of exactly this key."),
    text("header", "Messages with a header: `name`, or `name=value`."),
    text("path", "Messages whose JSON has something at a path, such as `$.order.total=12`."),
    text("partition", "Messages of one partition."),
    text("from", "Where the stretch begins."),
    text("before", "Marks of where it ends."),
)


@dataclass(frozen=True, slots=True)
class Selection:
    """A stretch of a topic and filters; `starts` and `ends` None: not named.

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

    def query(self, **places: str) -> str:
        """Return the query of an address with the same filters, and other places."""
        kept = {name: self.given[name] for name in (*NAMES, "view") if name in self.given}
        return urlencode({"tab": "messages"} | kept | places)

    def marks(self, places: Mapping[int, Whence]) -> str | None:
        """Return places as a text, None: there are too many of them."""
        if len(self.partitions) > ids.MOST_MARKS:
            return None
        return ids.write_marks([places[partition] for partition in self.partitions])


def texts(query: Query) -> dict[str, str]:
    """Return the parameters of a query that say which messages are meant."""
    return {
        "filter": words(query, "filter"),
        "key": words(query, "key"),
        "header": words(query, "header"),
        "path": words(query, "path"),
        "partition": words(query, "partition"),
        "from": words(query, "from"),
        "before": words(query, "before"),
    }


def read_selection(given: Mapping[str, str], partitions: Sequence[int]) -> Selection:
    """Return what the texts of a request say; raise BadReadOptionError.

    `partitions` are the topic's, as its store numbers them.
    """
    chosen = Filter.read(given)
    start = given.get("from", "").strip()
    end = "" if start else given.get("before", "").strip()
    selected = _selected(partitions, chosen.partition)
    starts: Places | None = None
    if start and start != Start.LATEST.value:
        starts = _read("from", start, partitions, selected)
        if len(starts) < len(selected):
            selected = tuple(starts)
            chosen = replace(chosen, partition=max(0, selected[0]))
    ends = read_places("before", end, selected) if end else None
    if ends and not all(isinstance(e, After | Position | Start) for e in ends.values()):
        raise BadReadOptionError("before: expected marks of messages.")
    said = dict(given) | {"from": start, "before": end}
    if chosen.partition is not None:
        said["partition"] = str(chosen.partition)
    return Selection(
        chosen, selected, starts, ends, {name: one for name, one in said.items() if one}
    )


def _selected(partitions: Sequence[int], wanted: int | None) -> tuple[int, ...]:
    if wanted is None:
        return tuple(partitions)
    if wanted >= len(partitions):
        raise BadReadOptionError(
            f"partition: expected a number below {len(partitions)}, not {wanted}."
        )
    return (partitions[wanted],)


def _read(
    name: str, written: str, partitions: Sequence[int], selected: tuple[int, ...]
) -> dict[int, Whence]:
    """Return the places that a text names, of one partition only if it is a message's."""
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


def read_places(name: str, written: str, selected: tuple[int, ...]) -> dict[int, Whence]:
    """Return places from marks, one for each partition; raise BadReadOptionError."""
    try:
        marks = ids.read_marks(written)
    except BadRequestError as error:
        raise _unreadable(name, written) from error
    if len(marks) != len(selected):
        raise BadReadOptionError(
            f"{name}: expected marks of {len(selected)} partitions, not of {len(marks)}."
        )
    return {p: _placed(mark, p) for p, mark in zip(selected, marks, strict=True)}


def _placed(mark: Whence, partition: int) -> Whence:
    if isinstance(mark, After):
        return After(replace(mark.position, partition=partition))
    return replace(mark, partition=partition) if isinstance(mark, Position) else mark


def _unreadable(name: str, written: str) -> BadReadOptionError:
    return BadReadOptionError(f"{name}: {_EXPECTED}, not {quoted(written, 40)}.")
