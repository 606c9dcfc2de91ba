"""What a checkpoint keeps of its source: an undeclared schema, and the moment of the first run.

JSON is looked at: a bounded sample of what is there now. The definition of Avro or Protobuf is the
newest of the topic's own. Either is written into the checkpoint before the first batch, so that a
restart reads the same columns whatever came since. To take a new one, delete the file, or declare
it.

Several readings of one source that begin at the latest message begin at one moment. Each sink reads
the source by itself, and their queries start one after the other. If each took what is latest when
it starts, a bad record that came between would be in neither table nor dead letters. So `latest`
becomes the time of the pipeline's first run, which its checkpoint keeps: also for a sink that a
killed run had not come to, and for one that is declared later.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

from pyspark.sql import SparkSession

from router.backends import Backend
from router.errors import RouterError, SchemaNotFoundError, SettingError
from router.pipelines.declaration import (
    RECORDS,
    REGISTERED,
    SELF_DESCRIBED,
    Pipeline,
    SourceSpec,
)
from router.pipelines.declared_columns import columns
from router.pipelines.sinks.staging import StagingDisk
from router.settings import Settings

SCHEMA_FILE: Final = "schema.json"
MOMENT_FILE: Final = "starting.json"
MAX_SAMPLE_MESSAGES: Final = 1_000
MAX_SAMPLE_BYTES: Final = 64 * 1024


def resolved(
    spark: SparkSession, pipeline: Pipeline, folder: Path, backend: Backend, settings: Settings
) -> dict[str, SourceSpec]:
    """Return the sources with the schemas that they need; `folder` keeps those that were found.

    Raises SettingError where there is none to be found.
    """
    return {
        name: _resolved(spark, source, folder / schema_file(name), backend, settings)
        for name, source in pipeline.sources().items()
    }


def schema_file(view: str) -> str:
    """Return the name of the file that keeps the schema of the source of a view."""
    return SCHEMA_FILE if view == RECORDS else f"schema-{view}.json"


def _resolved(
    spark: SparkSession, source: SourceSpec, file: Path, backend: Backend, settings: Settings
) -> SourceSpec:
    if source.schema or source.format not in SELF_DESCRIBED:
        return source
    if not file.exists():
        if source.format == "json":
            schema = _inferred(spark, source)
        else:
            schema = _registered(source, backend, settings)
        _keep(file, source.format, schema)
    found = replace(source, schema=_kept(file, source.format))
    try:
        columns(found)
    except ValueError as error:
        raise SettingError(f"{file}: {error}") from error
    return found


def _inferred(spark: SparkSession, source: SourceSpec) -> str:
    """Return the columns of a sample of messages."""
    from router.pipelines.source import frame  # noqa: PLC0415 - needs an extra

    rows = frame(spark, replace(source, starting="earliest"), False)
    text = "cast(value AS STRING)"
    sample = (
        rows.where(f"octet_length(value) <= {MAX_SAMPLE_BYTES} AND is_valid_utf8({text})")
        .selectExpr(f"{text} AS value")
        .limit(MAX_SAMPLE_MESSAGES)
    )
    return sampled_columns(spark, [cast(str, row.value) for row in sample.collect()])


def sampled_columns(spark: SparkSession, texts: Sequence[str]) -> str:
    """Return the columns of JSON objects; raise SettingError where there are none."""
    if not texts:
        raise SettingError(
            "there is no message yet to infer columns from: declare them in source.schema"
        )
    context: Any = spark.sparkContext
    found = spark.read.json(context.parallelize(texts, 1), mode="DROPMALFORMED")
    if not found.schema.fields:
        raise SettingError(
            f"none of the first {len(texts)} messages is a JSON object with fields: declare the"
            " columns in source.schema"
        )
    # A field that was never null yet may be so tomorrow: columns of a sample are nullable.
    return ", ".join(f"{_name(f.name)} {_type(f.dataType)}" for f in found.schema.fields)


def _type(kind: Any) -> str:
    """Return a type as a declaration has it; JSON's names may be anything, so all are quoted."""
    if kind.typeName() == "struct":
        fields = ", ".join(f"{_name(f.name)}: {_type(f.dataType)}" for f in kind.fields)
        return f"struct<{fields}>"
    if kind.typeName() == "array":
        return f"array<{_type(kind.elementType)}>"
    return str(kind.simpleString())


def _name(name: str) -> str:
    return "`{}`".format(name.replace("`", "``"))


def _registered(source: SourceSpec, backend: Backend, settings: Settings) -> str:
    """Return the definition that all topics of the source have."""
    needed = REGISTERED[source.format]
    found: dict[str, str] = {}
    timeout = settings.seconds("backend.timeout")
    for topic in source.topics:
        try:
            schema = backend.schemas.get(settings.topic(topic), None, timeout)
        except SchemaNotFoundError as error:
            raise SettingError(f"the topic {topic} has no schema: declare source.schema") from error
        except RouterError as error:
            raise SettingError(f"the schema of {topic} is not to be had: {error}") from error
        if schema.type is not needed:
            raise SettingError(f"the schema of {topic} is {schema.type.name}, not {needed.name}")
        found[topic] = schema.data.decode()
    if len(set(found.values())) != 1:
        raise SettingError(
            f"the topics of a source of {source.format} have one schema between them: declare"
            " source.schema"
        )
    return next(iter(found.values()))


def _keep(file: Path, form: str, schema: str) -> None:
    """Write the schema durably before anything is read by it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    StagingDisk().write(file, json.dumps({"format": form, "schema": schema}, indent=1).encode())


def _kept(file: Path, form: str) -> str:
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SettingError(f"{file}: {error}") from error
    if not isinstance(found, dict) or found.get("format") != form:
        raise SettingError(f"{file} is of another format than {form}: delete it, or the checkpoint")
    return str(found.get("schema", ""))


def together(
    pipeline: Pipeline, sources: Mapping[str, SourceSpec], folder: Path, now_ms: int
) -> dict[str, SourceSpec]:
    """Return sources that begin alike for all sinks; `folder` keeps the time.

    `now_ms` is the time of day in ms since 1970. Raises SettingError.
    """
    readings = len(pipeline.sinks) + (pipeline.bad_records == "dlq")
    if readings < 2 or not any(one.starting == "latest" for one in sources.values()):
        return dict(sources)
    file = folder / MOMENT_FILE
    try:
        moment = int(json.loads(file.read_bytes())["ms"])
    except FileNotFoundError:
        moment = now_ms
        folder.mkdir(parents=True, exist_ok=True)
        StagingDisk().write(file, json.dumps({"ms": moment}).encode())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingError(f"{file} does not tell where the pipeline began: {error}.") from error
    return {
        name: replace(one, starting=str(moment)) if one.starting == "latest" else one
        for name, one in sources.items()
    }
