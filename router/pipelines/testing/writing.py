"""A file of tests is written: what came as what is expected, or a topic's messages as a case."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import tomlkit
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from router.errors import SettingError
from router.pipelines.declaration import Pipeline
from router.pipelines.failures import sentence
from router.pipelines.source import frame
from router.pipelines.testing.cases import Row
from router.pipelines.testing.comparing import CaseResult, line

_LITERAL: Final = "'''"
_TEXTS: Final = ("topic", "event_time", "publish_time")


def update(file: Path, number: int, result: CaseResult) -> None:
    """Write what came of a case in the place of what it expected; comments stay. Raises OSError."""
    document = tomlkit.parse(file.read_text("utf-8"))
    cases: Any = document["case"]
    case = cases[number]
    case.pop("error", None)
    if result.error:
        case.pop("expect", None)
        case.add("error", result.error)
    else:
        expect = case.setdefault("expect", tomlkit.table())
        for sink, rows in result.came.items():
            expect[sink] = _rows(rows)
    file.write_text(tomlkit.dumps(document), "utf-8")


def add_case(file: Path, name: str, messages: Sequence[Row]) -> None:
    """Add a case of one batch to a file of tests, which is created if need be. Raises OSError."""
    document = tomlkit.parse(file.read_text("utf-8")) if file.exists() else tomlkit.document()
    lines = tomlkit.array().multiline(True)
    for message in messages:
        inline = tomlkit.inline_table()
        inline.update(_message(message))
        lines.append(inline)
    batch = tomlkit.table()
    batch.add("messages", lines)
    case = tomlkit.table()
    case.add("name", name)
    case.add("batch", tomlkit.aot())
    batches: Any = case["batch"]
    batches.append(batch)
    if "case" not in document:
        document.add("case", tomlkit.aot())
    cases: Any = document["case"]
    cases.append(case)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(tomlkit.dumps(document), "utf-8")


def sample(spark: SparkSession, pipeline: Pipeline, topic: str, limit: int) -> list[Row]:
    """Return the first messages of a topic, as the source reads them. Raises SettingError."""
    source = replace(pipeline.source, topics=(topic,), pattern="", starting="earliest")
    try:
        rows = frame(spark, source, False).orderBy("publish_time", "partition", "index")
        rows = rows.limit(limit).select(f.to_json(f.struct(*rows.columns)).alias("row"))
        found = [json.loads(row["row"]) for row in rows.collect()]
    except PySparkException as error:
        raise SettingError(f"the topic {topic} cannot be read: {sentence(error)}") from error
    if not found:
        raise SettingError(f"the topic {topic} has no messages")
    return found


def _message(row: Row) -> dict[str, Any]:
    found: dict[str, Any] = {name: row[name] for name in _TEXTS if row.get(name)}
    if row.get("partition"):
        found["partition"] = row["partition"]
    if row.get("properties"):
        found["properties"] = dict(row["properties"])
    if "key" in row:
        found["key"] = base64.b64decode(row["key"]).decode(errors="replace")
    if "value" in row:
        value = base64.b64decode(row["value"])
        try:
            found["value"] = value.decode()
        except UnicodeDecodeError:
            found["base64"] = row["value"]
    return found


def _rows(rows: Sequence[Row]) -> Any:
    """Return rows as the lines of a text, which is quoted so that JSON stands as it is."""
    text = "".join(f"{one}\n" for one in sorted(map(line, rows)))
    if _LITERAL in text or "\x7f" in text:
        return tomlkit.string(text, multiline=True)
    # A line break behind the opening quotes is no part of the text; only the parser leaves it.
    return tomlkit.parse(f"rows = {_LITERAL}\n{text}{_LITERAL}")["rows"]
