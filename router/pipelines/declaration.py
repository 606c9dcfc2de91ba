"""What a pipeline is: the values that its declaration, one TOML file, comes down to.

The view that the first step reads is named `records`: the decoded fields of each message beside
what is known of it, in columns that begin with an underscore (`METADATA`). Steps are views by their
own names, and a sink takes the last one unless it names another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import re2

from router.model import SchemaType
from router.pipelines.reading import DeclarationError, DeclarationOrigin, Place

RECORDS: Final = "records"
# The sink that bad records go to when the policy is `dlq`; no declared sink may be named so.
DEAD_LETTERS: Final = "dead-letters"
DEAD_SUFFIX: Final = ".dlq"
METADATA: Final = (
    "_topic",
    "_partition",
    "_position",
    "_index",
    "_key",
    "_value",
    "_properties",
    "_event_time",
    "_publish_time",
    "_schema_version",
)
# The column that partitions are made by where rows have none, from the first time that they have.
DATE: Final = "date"
TIMES: Final = ("event_time", "_event_time", "publish_time", "_publish_time")
TABLE_FORMATS: Final = ("delta", "parquet", "json", "csv", "orc")
FORMATS: Final = ("bytes", "text", "json", "cambria", "avro", "protobuf", "csv")
REGISTERED: Final = {"avro": SchemaType.AVRO, "protobuf": SchemaType.PROTOBUF_NATIVE}
"""Formats whose definitions topics have in the registry, and what those are called there."""
SELF_DESCRIBED: Final = frozenset({"json", *REGISTERED})
"""Formats whose columns come with the topic, if none are declared."""
POLICIES: Final = ("fail", "skip", "dlq")


@dataclass(frozen=True, slots=True)
class Watermark:
    """How late a row may be: older ones than the newest `column` less `delay` may be dropped."""

    column: str
    delay: str


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """Where messages come from, and how they are read.

    `topics` or a `pattern` (RE2, of whole names). `starting` is earliest, latest or a time in ms
    since 1970, for a checkpoint that is new. `max_rows` bounds a batch. `on_loss` is fail or skip:
    what to do when messages went before they were read. `url` and `settings` say which store, the
    latter by the router's own settings, credentials included: they never stand on a command line.
    `schema` is columns as in CREATE TABLE (json, csv; empty: inferred) or a definition in JSON
    (avro, protobuf; empty: the topic's own). `options` are the format's own. `skip_dead`: a pattern
    passes over `<topic>.dlq` where it finds the topic, and would otherwise never come to an end.
    `since_ms` and `until_ms` bound the publish times of the rows, 0: neither does.
    Messages with another `key` (None: any) are no rows, nor are those whose subject of NATS is not
    one of the pattern `subject`.
    """

    url: str = "embedded:"
    topics: tuple[str, ...] = ()
    pattern: str = ""
    format: str = "text"
    schema: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    starting: str = "earliest"
    max_rows: int = 100_000
    on_loss: str = "fail"
    skip_dead: bool = False
    since_ms: int = 0
    until_ms: int = 0
    key: str | None = None
    subject: str = ""
    watermark: Watermark | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A view of a table that steps may join: files at `path`, as Spark reads the `format`.

    `schema` is columns as in CREATE TABLE, empty: those that the table has. `options` are of
    Spark's reader. Each batch has the newest version of a Delta table; of other files it is looked
    which there are every `refresh` seconds, 0: when a run starts.
    """

    name: str
    path: str
    format: str = "delta"
    schema: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    refresh: float = 60.0


@dataclass(frozen=True, slots=True)
class ViewStep:
    """A view: its SQL reads `records` and the steps before; `declared` is the path of its table.

    `checked` false: only Spark itself judges the SQL.
    """

    name: str
    sql: str
    watermark: Watermark | None = None
    declared: Place = ()
    checked: bool = True

    def error(self, origin: DeclarationOrigin, sentence: str, offset: int = 0) -> DeclarationError:
        """Return the error about what stands at an offset of the SQL, in characters."""
        first = len(self.sql) - len(self.sql.lstrip())
        at = min(max(offset, first), len(self.sql))
        return origin.error((*self.declared, "sql"), f"step {self.name}: {sentence}", at)


@dataclass(frozen=True, slots=True)
class SinkSpec:
    """Where rows go: `kind` is one of KINDS.

    A topic takes the column `value` (text or bytes; without one the whole row, as JSON), `key`,
    `properties` and `event_time` where there are such; without a `topic` a column `topic` says
    where each row goes. Files are below `path`, in folders by the columns `partition_by`; a table
    of a database is `table` at `url`. `mode` is Spark's output mode: append, update or complete.
    `options` are the sink's own, and `declared` is the path of its table.
    With a `key`, columns, a row replaces the one of the same key, unless that is newer by the
    column `order`, and takes it away if the column `deletes` is true.
    """

    name: str
    kind: str
    from_step: str = RECORDS
    topic: str = ""
    path: str = ""
    url: str = ""
    table: str = ""
    partition_by: tuple[str, ...] = ()
    mode: str = "append"
    options: Mapping[str, str] = field(default_factory=dict)
    key: tuple[str, ...] = ()
    order: str = ""
    deletes: str = ""
    declared: Place = ()


@dataclass(frozen=True, slots=True)
class SinkKind:
    """What a declaration may say of a kind of sink: its output modes, and the keys of its place.

    `merged` are the modes of a sink with a key, none: the kind has no keys. `messages`: its rows
    are messages. `one_writer`: no other sink may write to its folder. `connectors` are those of
    Spark that it needs. `options` are those that it takes, none: those of Spark's writer. `url` is
    how its URL begins.
    """

    modes: tuple[str, ...]
    merged: tuple[str, ...] = ()
    place: tuple[str, ...] = ("path",)
    messages: bool = False
    one_writer: bool = False
    connectors: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    url: str = ""


KINDS: Final[Mapping[str, SinkKind]] = {
    "topic": SinkKind(
        ("append", "update", "complete"),
        place=("topic",),
        messages=True,
        options=("patience", "remembered", "on_forgotten"),
    ),
    "parquet": SinkKind(("append",), one_writer=True),
    "delta": SinkKind(
        ("append", "complete"), ("append", "update", "complete"), connectors=("delta",)
    ),
    "jdbc": SinkKind(
        ("append",),
        ("append", "update", "complete"),
        place=("url", "table"),
        connectors=("postgresql",),
        options=("user", "password_file", "batchsize"),
        url="jdbc:postgresql:",
    ),
}
PLACES: Final = ("topic", "path", "url", "table")


@dataclass(frozen=True, slots=True)
class Trigger:
    """When a batch begins: as soon as the last is done, `every` so many seconds, or until the end.

    `available_now`: everything that is there now, in bounded batches, and then the run is over.
    """

    every: float = 0.0
    available_now: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """What a run may take: seconds that Spark's workers have to start, and a batch after a signal.

    `bad_share` ends the run when more than this part of a batch is bad (1: never).
    """

    start_seconds: float = 300.0
    stop_seconds: float = 300.0
    bad_share: float = 1.0


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A pipeline that is no stream of steps: `kind` names the job, `options` are its own."""

    kind: str
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One declared pipeline; `origin` is its file, for what is said of it.

    `checkpoint` is a folder: each sink has one of its own below it. `streams` are more sources, by
    the names of their views. `resources` are Spark's own settings. `dead_letters` is the topic of
    the policy `dlq`, empty: `<topic>.dlq` for each topic.
    """

    name: str
    source: SourceSpec
    streams: Mapping[str, SourceSpec] = field(default_factory=dict)
    tables: tuple[TableSpec, ...] = ()
    steps: tuple[ViewStep, ...] = ()
    sinks: tuple[SinkSpec, ...] = ()
    trigger: Trigger = field(default_factory=Trigger)
    checkpoint: str = ""
    limits: Limits = field(default_factory=Limits)
    bad_records: str = "fail"
    dead_letters: str = ""
    resources: Mapping[str, str] = field(default_factory=dict)
    description: str = ""
    job: JobSpec | None = None
    origin: DeclarationOrigin = field(default_factory=DeclarationOrigin)

    def sources(self) -> dict[str, SourceSpec]:
        """Return all sources by the names of their views, the one of RECORDS first."""
        return {RECORDS: self.source, **self.streams}

    def source_path(self, name: str) -> Place:
        """Return the path of the table that declares the source of a view."""
        return ("source",) if name == RECORDS else ("stream", list(self.streams).index(name))

    def sink_names(self) -> list[str]:
        """Return the names of what gets rows: the sinks, and the dead letters if there are any."""
        names = [sink.name for sink in self.sinks]
        return [*names, DEAD_LETTERS] if self.bad_records == "dlq" else names


def is_local(folder: str) -> bool:
    """Tell whether a folder, as a declaration names it, is one of this machine."""
    return "://" not in folder.removeprefix("file://")


def is_hidden(folder: str) -> bool:
    """Tell whether a folder or file of this name within a table is neither read nor in its log."""
    return folder.startswith(".") or (folder.startswith("_") and "=" not in folder)


def compiled_pattern(pattern: str) -> Any:
    """Return an expression of RE2, compiled; raise ValueError with what is wrong with it."""
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        [reason] = error.args
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise ValueError(text) from error
