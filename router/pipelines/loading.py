"""A declaration's file becomes a Pipeline, or one sentence that begins with FILE:LINE:COLUMN.

Only the file is read: whether topics exist and SQL fits is said by `checks`. Neither needs Spark or
Java, so that a pipeline may be checked where it will never run.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from router.errors.quoting import nearest
from router.pipelines.declaration import (
    DEAD_LETTERS,
    FORMATS,
    KINDS,
    PLACES,
    POLICIES,
    RECORDS,
    SELF_DESCRIBED,
    TABLE_FORMATS,
    JobSpec,
    Limits,
    Pipeline,
    SinkSpec,
    SourceSpec,
    TableSpec,
    Trigger,
    ViewStep,
    Watermark,
    compiled_pattern,
)
from router.pipelines.reading import (
    DeclarationError,
    Place,
    Table,
    document,
)
from router.settings import BY_NAME, without_password
from router.wire.nats.subjects import is_valid

NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_VIEW: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")
_MAX_FILE_BYTES: Final = 1 << 20


def load(file: Path, name: str) -> Pipeline:
    """Read one declaration; raise DeclarationError."""
    try:
        raw = file.read_bytes()[: _MAX_FILE_BYTES + 1]
        text = raw.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise DeclarationError(f"{file}:1: {error}") from error
    if len(raw) > _MAX_FILE_BYTES:
        raise DeclarationError(f"{file}:1: a declaration has at most {_MAX_FILE_BYTES} bytes")
    return parse(text, file, name)


def parse(text: str, file: Path, name: str) -> Pipeline:
    """Read a declaration's text; `file` is for sentences about it."""
    top = document(text, file)
    if not NAME.fullmatch(name):
        top.origin.refuse((), f"a pipeline's name is 1 to 100 of a-z 0-9 . _ -, not {name!r}")
    return _pipeline(top, name)


def _pipeline(top: Table, name: str) -> Pipeline:
    job = _job(top)
    source = _source(top.table("source"), needed=job is None)
    streams = _streams(top, source)
    tables = _tables(top, [RECORDS, *streams])
    steps = _steps(top, [*streams, *(table.name for table in tables)])
    sinks = _sinks(top, [*streams, RECORDS, *(step.name for step in steps)])
    if not sinks and job is None:
        top.refuse("sink", "a pipeline has at least one sink: [[sink]]")
    bad_records, dead_letters = (
        top.choice("bad_records", POLICIES, "fail"),
        top.text("dead_letters"),
    )
    skip_dead = bad_records == "dlq" and not dead_letters
    pipeline = Pipeline(
        name=name,
        source=replace(source, skip_dead=skip_dead),
        streams={name: replace(one, skip_dead=skip_dead) for name, one in streams.items()},
        tables=tables,
        steps=steps,
        sinks=sinks,
        trigger=_trigger(top),
        checkpoint=top.text("checkpoint"),
        limits=_limits(top),
        bad_records=bad_records,
        dead_letters=dead_letters,
        resources=_resources(top),
        description=top.text("description"),
        job=job,
        origin=top.origin,
    )
    if pipeline.dead_letters and pipeline.bad_records != "dlq":
        top.refuse("dead_letters", 'dead_letters is for bad_records = "dlq" only')
    top.done()
    return pipeline


def _streams(top: Table, source: SourceSpec) -> dict[str, SourceSpec]:
    """Return the sources beside `source`, which are in the same store, by their names."""
    found: dict[str, SourceSpec] = {}
    for table in top.tables("stream"):
        name = _view(table, "a stream", [RECORDS, *found])
        stream = _source(table, needed=True, beside=source)
        found[name] = stream
    return found


def _tables(top: Table, views: Sequence[str]) -> tuple[TableSpec, ...]:
    found: list[TableSpec] = []
    for table in top.tables("table"):
        spec = TableSpec(
            name=_view(table, "a table", [*views, *(one.name for one in found)]),
            path=table.text("path"),
            format=table.choice("format", TABLE_FORMATS, "delta"),
            schema=table.text("schema").rstrip(),
            options=table.texts("options"),
            refresh=table.seconds("refresh", 60.0),
        )
        if not spec.path:
            table.refuse("path", f"the table {spec.name!r} has no path")
        table.done()
        found.append(spec)
    return tuple(found)


def _view(table: Table, what: str, views: Sequence[str]) -> str:
    """Return the name of a view that is no other one's."""
    name = table.text("name")
    if not _VIEW.fullmatch(name):
        table.refuse("name", f"{what}'s name is a view's: a letter, letters and _, not {name!r}")
    if name.lower() in {view.lower() for view in views}:
        table.refuse("name", f"there is another view {name!r} already")
    return name


def _source(table: Table, *, needed: bool, beside: SourceSpec | None = None) -> SourceSpec:
    """Return a source; those `beside` the first one have its store."""
    source = SourceSpec(
        url=table.text("url") if beside is None else beside.url,
        topics=table.words("topics"),
        pattern=table.text("pattern"),
        format=table.choice("format", FORMATS, "text"),
        schema=table.text("schema").rstrip(),
        options=table.texts("options"),
        starting=_starting(table),
        max_rows=table.number("max_rows", 100_000, 1),
        on_loss=table.choice("on_loss", ("fail", "skip"), "fail"),
        key=table.text("key") if table.has("key") else None,
        subject=table.text("subject"),
        watermark=_watermark(table),
        settings=_settings(table) if beside is None else beside.settings,
    )
    table.done()
    _check_source(table, source, needed=needed)
    return source


def _check_source(table: Table, source: SourceSpec, *, needed: bool) -> None:
    topics, form = source.topics, source.format
    if needed and bool(topics) == bool(source.pattern):
        table.refuse("topics", "a source has either topics or a pattern")
    try:
        compiled_pattern(source.pattern)
    except ValueError as error:
        table.refuse("pattern", f"source.pattern = {source.pattern!r}: {error}")
    if len(set(topics)) != len(topics):
        table.refuse("topics", "source.topics names a topic twice")
    if source.subject and not is_valid(source.subject):
        table.refuse("subject", f"{source.subject!r} is no subject of NATS, such as orders.*.new")
    if source.schema and form not in {"csv", *SELF_DESCRIBED}:
        table.refuse("schema", f"the format {form} has no schema of its own")
    if form == "csv" and not source.schema:
        table.refuse("format", "the format csv needs source.schema: its columns")


def _starting(table: Table) -> str:
    """Return earliest, latest, or ms since 1970, which may be written as a number."""
    if table.has("starting") and isinstance(table.values.get("starting"), int):
        return str(table.number("starting", 0, 0))
    word = table.text("starting", "earliest")
    if word not in {"earliest", "latest"} and not re.fullmatch(r"\d{1,15}", word):
        known = "earliest, latest or milliseconds since 1970"
        near = nearest(word, ("earliest", "latest"))
        table.refuse("starting", f"source.starting = {word!r} is none of {known}{near}")
    return word


def _watermark(table: Table) -> Watermark | None:
    if not table.has("watermark"):
        return None
    inner = table.table("watermark")
    column, delay = inner.text("column"), inner.text("delay")
    if not column or not re.fullmatch(r"\d{1,9} [a-z]+", delay):
        table.refuse("watermark", 'a watermark is { column = "NAME", delay = "10 minutes" }')
    inner.done()
    return Watermark(column, delay)


def _settings(table: Table) -> dict[str, str]:
    given = table.texts("settings")
    for name in given:
        if name not in BY_NAME:
            path: Place = (*table.path, "settings", name)
            near = nearest(name, BY_NAME)
            raise table.origin.key_error(path, f"the router has no setting {name!r}{near}")
    return given


def _steps(top: Table, views: Sequence[str]) -> tuple[ViewStep, ...]:
    steps: list[ViewStep] = []
    for table in top.tables("step"):
        name = _view(table, "a step", [RECORDS, *views, *(step.name for step in steps)])
        sql = table.text("sql")
        if not sql.strip():
            table.refuse("sql", f"the step {name!r} has no sql")
        checked = table.flag("checked", default=True)
        steps.append(ViewStep(name, sql, _watermark(table), table.path, checked))
        table.done()
    return tuple(steps)


def _sinks(top: Table, views: Sequence[str]) -> tuple[SinkSpec, ...]:
    sinks: list[SinkSpec] = []
    for table in top.tables("sink"):
        sink = _sink(table, views)
        if sink.name in {DEAD_LETTERS, *(other.name for other in sinks)}:
            table.refuse("name", f"there is another sink {sink.name!r} already")
        if any(_collide(sink, other) for other in sinks):
            # Spark numbers the batches of a Parquet table, and drops a number that comes again.
            table.refuse("path", f"sink {sink.name!r}: another sink writes to {sink.path} already")
        sinks.append(sink)
    return tuple(sinks)


def _collide(one: SinkSpec, other: SinkSpec) -> bool:
    """Return whether two sinks write to one folder, which one of them has to have alone."""
    folders = {posixpath.normpath(sink.path.removeprefix("file://")) for sink in (one, other)}
    return (
        bool(one.path)
        and len(folders) == 1
        and any(KINDS[sink.kind].one_writer for sink in (one, other))
    )


def _sink(table: Table, views: Sequence[str]) -> SinkSpec:
    kind = table.choice("kind", tuple(KINDS), "")
    key = table.words("key")
    if key and not KINDS[kind].merged:
        known = ", ".join(name for name, one in KINDS.items() if one.merged)
        table.refuse("key", f"a sink with a key is of the kind {known}, not {kind}")
    sink = SinkSpec(
        name=table.text("name", kind),
        kind=kind,
        from_step=table.text("from", views[-1]),
        topic=table.text("topic"),
        path=table.text("path"),
        url=table.text("url"),
        table=table.text("table"),
        partition_by=table.words("partition_by"),
        mode=table.choice("mode", KINDS[kind].merged if key else KINDS[kind].modes, "append"),
        options=table.texts("options"),
        key=key,
        order=table.text("order"),
        deletes=table.text("deletes"),
        declared=table.path,
    )
    table.done()
    for name in ("order", "deletes"):
        if table.has(name) and not key:
            table.refuse(name, f"sink.{name} is for a sink with a key")
    _check_sink(table, sink, views)
    return sink


def _check_sink(table: Table, sink: SinkSpec, views: Sequence[str]) -> None:
    if not NAME.fullmatch(sink.name):
        table.refuse("name", f"a sink's name is 1 to 100 of a-z 0-9 . _ -, not {sink.name!r}")
    if sink.from_step not in views:
        near = nearest(sink.from_step, views)
        table.refuse("from", f"sink {sink.name!r}: there is no step {sink.from_step!r}{near}")
    kind = KINDS[sink.kind]
    for key in PLACES:
        given = bool(getattr(sink, key))
        if given and key not in kind.place:
            table.refuse(key, f"sink {sink.name!r}: a sink of kind {sink.kind} has no {key}")
        if not given and key in kind.place and not kind.messages:
            table.refuse(key, f"sink {sink.name!r}: a sink of kind {sink.kind} needs {key}")
    if not sink.url.startswith(kind.url):
        url = without_password(sink.url)
        table.refuse("url", f"sink {sink.name!r}: the url {url} does not begin with {kind.url}")
    for option in sink.options if kind.options else ():
        if option not in kind.options:
            near = nearest(option, kind.options)
            sentence = f"a sink of kind {sink.kind} has no option {option!r}{near}"
            table.refuse("options", f"sink {sink.name!r}: {sentence}")
    if sink.partition_by and kind.place != ("path",):
        table.refuse("partition_by", f"a sink of kind {sink.kind} is no folder of files")


def _trigger(top: Table) -> Trigger:
    table = top.table("trigger")
    trigger = Trigger(table.seconds("every", 0.0), table.flag("available_now"))
    if trigger.every and trigger.available_now:
        table.refuse("every", "a trigger is either every or available_now")
    table.done()
    return trigger


def _limits(top: Table) -> Limits:
    table = top.table("limits")
    usual = Limits()
    limits = Limits(
        table.seconds("start", usual.start_seconds),
        table.seconds("stop", usual.stop_seconds),
        table.share("bad_share", usual.bad_share),
    )
    table.done()
    return limits


def _resources(top: Table) -> dict[str, str]:
    given = top.texts("resources")
    for key in given:
        if not key.startswith("spark."):
            sentence = f"resources are Spark's own settings, which begin with spark., not {key!r}"
            raise top.origin.key_error(("resources", key), sentence)
    return given


def _job(top: Table) -> JobSpec | None:
    if not top.has("job"):
        return None
    table = top.table("job")
    kind = table.text("kind")
    if not kind:
        table.refuse("kind", "a job has a kind")
    options: dict[str, Any] = table.rest()
    return JobSpec(kind, options)


__all__ = ["NAME", "DeclarationError", "load", "parse"]
