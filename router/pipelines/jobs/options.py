"""The keys of each kind of job: once, with default and meaning, as the reference prints them."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal, cast

from router.backends import Backend
from router.errors import SettingError
from router.pipelines.declaration import Pipeline
from router.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Value = str | float | bool | tuple[str, ...] | Mapping[str, str]
Shape = Literal["text", "number", "flag", "texts", "texts by name", "time"]

MAX_NUMBER: Final = 1e9
WEEK_HOURS: Final = 168.0
TABLES: Final = ("delta", "parquet")


@dataclass(frozen=True, slots=True)
class JobKey:
    """One key of a job; `default` None: it must be given. `allowed`: one of these, or any."""

    shape: Shape
    default: Value | None
    sentence: str
    allowed: tuple[str, ...] = ()
    least: float = 0.0


_FORMAT: Final = JobKey("text", "delta", "The format of the table, `delta` or `parquet`.", TABLES)

KEYS: Final[Mapping[str, Mapping[str, JobKey]]] = {
    "validate": {
        "schemas": JobKey(
            "texts by name",
            None,
            "The file of the JSON schema for each topic; `*` is for all other topics.",
        ),
    },
    "replay": {
        "archive": JobKey("text", None, "The folder of the table to replay."),
        "format": _FORMAT,
        "topics": JobKey("texts", (), "Only messages of these topics."),
        "to": JobKey(
            "text",
            "{topic}",
            "The topic to publish to; `{topic}`: that of the archived message.",
        ),
        "from": JobKey("time", "", "Only messages published at this time or later."),
        "until": JobKey("time", "", "Only messages published before this time."),
        "rate": JobKey("number", 1000.0, "The most messages a second.", least=0.001),
        "chunk": JobKey(
            "number", 10_000.0, "The number of messages in one transaction or staged file.", least=1
        ),
    },
    "audit": {
        "topics": JobKey("texts", None, "The topics to audit."),
        "archive": JobKey(
            "text", None, "The folder of the table that should contain their messages."
        ),
        "format": _FORMAT,
        "dead_letters": JobKey(
            "texts",
            (),
            "The topics of dead letters; empty: `<topic>.dlq` of each topic, if it exists.",
        ),
        "complete": JobKey("flag", False, "Whether waiting messages, too, make the audit fail."),
        "names": JobKey(
            "number",
            100.0,
            "The largest number of gaps and of repeats that are listed for each partition.",
            least=1,
        ),
    },
    "swap": {
        "table": JobKey("text", None, "The folder of the Delta table."),
        "shadow": JobKey(
            "text", None, "The folder of the Delta table whose rows come in their place."
        ),
        "where": JobKey(
            "text", "", "A condition: only rows for which it holds are replaced; empty: all."
        ),
    },
    "maintain": {
        "table": JobKey(
            "text", "", "The folder of the table to maintain; empty: those of the pipeline's sinks."
        ),
        "format": _FORMAT,
        "target_mb": JobKey(
            "number", 128.0, "The target size of compacted files, in MiB.", least=1
        ),
        "compact": JobKey("flag", True, "Whether small files are merged into large ones."),
        "where": JobKey(
            "text",
            "",
            "Delta: a condition on the columns of partitions, such as `date < '2026-01-01'`: only"
            " these are compacted; empty: all.",
        ),
        "into": JobKey("text", "", "Parquet: the new folder for the compacted table."),
        "vacuum": JobKey(
            "flag", True, "Whether files that the table no longer references are deleted."
        ),
        "retain_hours": JobKey(
            "number",
            WEEK_HOURS,
            "The least age in hours of the files that are deleted; at least 1.",
            least=1,
        ),
    },
}


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The values of one job's keys, all of them."""

    values: Mapping[str, Value]

    def text(self, name: str) -> str:
        """Return a text."""
        return cast("str", self.values[name])

    def number(self, name: str) -> float:
        """Return a number."""
        return cast("float", self.values[name])

    def flag(self, name: str) -> bool:
        """Return whether."""
        return cast("bool", self.values[name])

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list."""
        return cast("tuple[str, ...]", self.values[name])

    def table(self, name: str) -> Mapping[str, str]:
        """Return texts by their names."""
        return cast("Mapping[str, str]", self.values[name])


@dataclass(frozen=True, slots=True)
class JobContext:
    """What a job that runs once is given; `stop` is set when it should end early.

    `backend` is the store of the pipeline's source, opened with `settings`. `say` is told each
    finding, one sentence or line at a time. `wall_ms` is the time of day in ms since 1970.
    """

    pipeline: Pipeline
    spark: SparkSession
    backend: Backend
    settings: Settings
    stop: threading.Event
    notify: Callable[[str], None]
    clock: Callable[[], float]
    wall_ms: Callable[[], int]


def read(kind: str, given: Mapping[str, object]) -> JobOptions:
    """Return all values of a job; raise ValueError with a sentence for what cannot be one."""
    if kind not in KEYS:
        raise ValueError(f"there is no job {kind!r}: known are {', '.join(KEYS)}")
    keys = KEYS[kind]
    for name in given:
        if name not in keys:
            near = difflib.get_close_matches(name, keys, 1, 0)[0]
            raise ValueError(f"{name} is no key of the job {kind}; did you mean {near}?")
    found: dict[str, Value] = {}
    for name, key in keys.items():
        value = given.get(name, key.default)
        if value is None:
            raise ValueError(f"the job {kind} needs {name}: {key.sentence}")
        found[name] = _parsed(name, key, value)
    _together(kind, found)
    return JobOptions(found)


def _parsed(name: str, key: JobKey, value: object) -> Value:
    parsed = _shaped(key.shape, value)
    if parsed is None:
        raise ValueError(f"{name} = {value!r} is no {_SHAPE_NAMES[key.shape]}")
    if key.allowed and parsed not in key.allowed:
        raise ValueError(f"{name} = {value!r}: allowed are {', '.join(key.allowed)}")
    if isinstance(parsed, float) and not key.least <= parsed < MAX_NUMBER:
        raise ValueError(f"{name} = {value!r} is not from {key.least:g} to {MAX_NUMBER:g}")
    if key.default is None and not parsed:
        raise ValueError(f"{name} is empty: {key.sentence}")
    return parsed


_SHAPE_NAMES: Final[Mapping[Shape, str]] = {
    "text": "text",
    "number": "number",
    "flag": "true or false",
    "texts": "list of texts",
    "texts by name": "table of texts",
    "time": "time such as 2026-01-31T00:00:00Z",
}


def _shaped(shape: Shape, value: object) -> Value | None:
    """Return the value in its shape; None where it has another."""
    if shape == "flag":
        return value if isinstance(value, bool) else None
    if shape == "number":
        ok = isinstance(value, int | float) and not isinstance(value, bool)
        return float(cast("float", value)) if ok else None
    if shape == "time":
        return _time(value)
    if shape == "text":
        return value if isinstance(value, str) else None
    return _many(shape, value)


def _many(shape: Shape, value: object) -> Value | None:
    if shape == "texts":
        if isinstance(value, Sequence) and not isinstance(value, str):
            return tuple(value) if all(isinstance(one, str) for one in value) else None
        return None
    if isinstance(value, Mapping) and all(isinstance(one, str) for one in value.values()):
        return dict(value)
    return None


def span_ms(first: str, since: str, last: str, until: str) -> tuple[int, int]:
    """Return the times of two options of a command in ms since 1970, 0 for an empty text.

    `first` and `last` are the names of the options. Raises SettingError for no time, and for a span
    that nothing is in.
    """
    begin, end = _since_epoch_ms(first, since), _since_epoch_ms(last, until)
    if since and until and end <= begin:
        raise SettingError(f"--{last} {until} is not after --{first} {since}: nothing is between")
    return begin, end


def _since_epoch_ms(name: str, text: str) -> int:
    found = _time(text)
    if found is None:
        raise SettingError(f"--{name} {text!r} is no {_SHAPE_NAMES['time']}")
    return round(datetime.fromisoformat(found).timestamp() * 1000) if found else 0


def _time(value: object) -> str | None:
    """Return a time as ISO 8601 in UTC; without an offset it is UTC already."""
    if value == "":
        return ""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if not isinstance(value, datetime):
        return None
    return (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC).isoformat()


def _together(kind: str, found: Mapping[str, Value]) -> None:
    """Raise ValueError for values that do not go together."""
    since, until = (str(found.get(name, "")) for name in ("from", "until"))
    if since and until and datetime.fromisoformat(until) <= datetime.fromisoformat(since):
        raise ValueError("until is not after from: nothing is between")
    if kind != "maintain":
        return
    if found["format"] == "parquet" and found["compact"] and not found["into"]:
        raise ValueError(
            "a Parquet table is compacted into a new folder: give `into`, or set compact = false"
        )
    if found["format"] == "delta" and found["into"]:
        raise ValueError("a Delta table is compacted where it is: leave out `into`")
