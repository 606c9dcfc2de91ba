"""What a test of a pipeline is: messages in batches, and the rows that each sink is to get.

A test is a TOML file. It names a pipeline, and has cases; each has batches of messages, which a
stream reads one after the other, and the rows that are expected at the end.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from router.errors.quoting import nearest
from router.pipelines.declaration import Pipeline
from router.pipelines.finding import named
from router.pipelines.reading import DeclarationError, Table, document

MAX_FILE_BYTES: Final = 64 << 20
FIRST_TIME: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""When the first batch of a case is published, unless it says so; each later one a second later."""
_BETWEEN: Final = timedelta(seconds=1)

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One stream of messages from its beginning, and what comes of it.

    `batches` are rows in the columns of the source, as Spark reads JSON: bytes in base64, times in
    ISO 8601. `expected` has the rows of each sink that is compared; `error` is a part of the
    sentence that the run is to end with, empty: it is to end well. `tables` are the rows of tables
    by their names, None: the tables are those that are declared.
    """

    name: str
    batches: tuple[tuple[Row, ...], ...]
    expected: Mapping[str, tuple[Row, ...]]
    error: str
    tables: Mapping[str, tuple[Row, ...]] | None = None


@dataclass(frozen=True, slots=True)
class TestFile:
    """The cases of one file, and the pipeline that they test."""

    file: Path
    pipeline: Pipeline
    cases: tuple[Case, ...]


def load(file: Path, folder: Path, *, complete: bool = True) -> TestFile:
    """Return the tests of a file; `folder` has the declarations that are named without a path.

    With `complete` each case says what it expects; otherwise a file that is missing has no case.
    Raises DeclarationError with file, line and column.
    """
    try:
        text = file.read_text("utf-8") if complete or file.exists() else ""
    except FileNotFoundError:
        raise DeclarationError(f"there is no test {file}") from None
    except (OSError, ValueError) as error:
        raise DeclarationError(f"{file}: {error}") from error
    top = document(text, file)
    pipeline = _pipeline(top, folder)
    reader = _CaseReader(pipeline, file.parent, complete=complete)
    cases = tuple(reader.read(table) for table in top.tables("case"))
    top.done()
    twice = [name for name, times in Counter(case.name for case in cases).items() if times > 1]
    if twice:
        top.refuse("case", f"two cases are named {twice[0]!r}")
    if not cases and complete:
        top.refuse("case", "a test has at least one case: [[case]]")
    return TestFile(file, pipeline, cases)


def _pipeline(top: Table, folder: Path) -> Pipeline:
    file = top.origin.file
    name = top.text("pipeline", f"../{file.name}")
    pipeline = named(str(file.parent / name) if name.endswith(".toml") else name, folder)
    if not pipeline.sinks:
        top.refuse("pipeline", f"{pipeline.name} is a job without steps and sinks: nothing to test")
    return pipeline


class _CaseReader:
    """Reads the cases of one pipeline; files of records are below `folder`."""

    def __init__(self, pipeline: Pipeline, folder: Path, *, complete: bool) -> None:
        self._pipeline = pipeline
        self._folder = folder
        self._complete = complete

    def read(self, table: Table) -> Case:
        place = table.path[-1]
        name = table.text("name", f"case {int(place) + 1}")
        counts: Counter[tuple[str, int]] = Counter()
        batches = tuple(
            tuple(self._batch(batch, FIRST_TIME + number * _BETWEEN, counts))
            for number, batch in enumerate(table.tables("batch"))
        )
        error = table.text("error")
        expected = self._lines_by_name(table, "expect", "sink", self._pipeline.sink_names())
        tables = [one.name for one in self._pipeline.tables]
        given = self._lines_by_name(table, "tables", "table", tables)
        if self._complete and not expected and not error:
            table.refuse(
                "expect", f"the case {name!r} expects nothing: give rows in [case.expect], or error"
            )
        table.done()
        return Case(name, batches, expected, error, given)

    def _lines_by_name(
        self, table: Table, key: str, what: str, known: Sequence[str]
    ) -> dict[str, tuple[Row, ...]]:
        inner = table.table(key)
        found = {}
        for name in inner.values:
            if name not in known:
                sentence = f"there is no {what} {name!r}{nearest(name, known)}"
                raise inner.origin.key_error((*inner.path, name), sentence)
            found[name] = tuple(_rows(inner, name))
        return found

    def _batch(
        self, table: Table, published: datetime, counts: Counter[tuple[str, int]]
    ) -> list[Row]:
        topics = self._pipeline.source.topics
        topic = table.text("topic", topics[0] if topics else "")
        if not topic:
            table.refuse("topic", "a batch names its topic, for the source has a pattern")
        at = _time(table, "at", published)
        messages: list[dict[str, Any]] = [{"value": line} for line in self._lines(table)]
        messages += [_message(one) for one in table.tables("messages")]
        table.done()
        rows: list[Row] = []
        for message in messages:
            row: dict[str, Any] = {
                "topic": topic,
                "partition": 0,
                "publish_time": at,
                "properties": {},
            } | message
            self._check_topic(table, row["topic"])
            place = (row["topic"], row["partition"])
            row |= {"position": f"0:{counts[place]}", "index": counts[place]}
            row["value"] = _base64(row.get("value"))
            row["key"] = _base64(row.get("key"))
            counts[place] += 1
            rows.append(row)
        return rows

    def _check_topic(self, table: Table, topic: str) -> None:
        sources = self._pipeline.sources().values()
        known = [name for source in sources for name in source.topics]
        if topic not in known and not any(source.pattern for source in sources):
            table.refuse("topic", f"no source reads the topic {topic!r}{nearest(topic, known)}")

    def _lines(self, table: Table) -> list[str]:
        text, name = table.text("records"), table.text("file")
        if name:
            file = self._folder / name
            try:
                if file.stat().st_size > MAX_FILE_BYTES:
                    table.refuse("file", f"{file} has more than {MAX_FILE_BYTES} bytes")
                text += file.read_text("utf-8")
            except (OSError, ValueError) as error:
                table.refuse("file", str(error))
        return [line for line in text.split("\n") if line.strip()]


def _message(table: Table) -> dict[str, Any]:
    """Return the columns that a message gives itself."""
    found: dict[str, Any] = {}
    if table.has("value"):
        found["value"] = table.text("value")
    if coded := table.text("base64"):
        try:
            found["value"] = base64.b64decode(coded, validate=True)
        except binascii.Error as error:
            table.refuse("base64", f"the value is no base64: {error}")
    for name in ("key", "topic"):
        if table.has(name):
            found[name] = table.text(name)
    if table.has("partition"):
        found["partition"] = table.number("partition", 0, 0)
    if table.has("properties"):
        found["properties"] = table.texts("properties")
    for name in ("event_time", "publish_time"):
        if table.has(name):
            found[name] = _time(table, name, FIRST_TIME)
    table.done()
    return found


def _time(table: Table, key: str, default: datetime) -> str:
    """Return a time in ISO 8601; TOML has times of its own, and a text is taken as well."""
    given = table.values.get(key)
    if isinstance(given, datetime) and table.has(key):
        moment = given
    else:
        try:
            moment = datetime.fromisoformat(table.text(key) or default.isoformat())
        except ValueError:
            table.refuse(key, f"{key} is no time such as 2026-01-01T09:30:00Z")
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat()


def _base64(value: str | bytes | None) -> str | None:
    if value is None:
        return None
    return base64.b64encode(value.encode() if isinstance(value, str) else value).decode()


def _rows(table: Table, key: str) -> Sequence[Row]:
    """Return rows that are written as lines of JSON."""
    rows = []
    for number, line in enumerate(table.text(key).split("\n")):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            table.refuse(key, f"row {number} of {key} is no JSON: {error}")
        if not isinstance(row, dict):
            table.refuse(key, f'row {number} of {key} is no object such as {{"id": 1}}')
        rows.append(row)
    return rows
