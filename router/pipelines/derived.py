"""Pipelines that commands make from a declared one or a few words: replay, rebuild, maintain."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from router.errors import SettingError
from router.pipelines.declaration import (
    RECORDS,
    JobSpec,
    Pipeline,
    SinkSpec,
    SourceSpec,
)
from router.pipelines.loading import NAME
from router.pipelines.reading import DeclarationOrigin


def replay_of(name: str, archive: str, given: Mapping[str, object]) -> Pipeline:
    """Return the pipeline that replays an archive; `given` are more keys of the job.

    Its checkpoint is the one of its name below the folder of the node's data. Raises SettingError.
    """
    if not NAME.fullmatch(name):
        raise SettingError(f"a pipeline's name is 1 to 100 of a-z 0-9 . _ -, not {name!r}")
    options = {"archive": _whole(archive), **given}
    return Pipeline(
        name=name,
        source=SourceSpec(url=""),
        job=JobSpec("replay", options),
        origin=DeclarationOrigin(Path("command line")),
        description=f"Replays {archive}.",
    )


def maintain_of(pipeline: Pipeline, given: Mapping[str, object]) -> Pipeline:
    """Return the pipeline that maintains the tables of another one, which may run meanwhile.

    `given` are keys of the job.
    """
    return Pipeline(
        name=f"{pipeline.name}.maintain",
        source=replace(pipeline.source, topics=(), pattern=""),
        sinks=tuple(replace(sink, from_step=RECORDS) for sink in pipeline.sinks),
        resources=pipeline.resources,
        job=JobSpec("maintain", given),
        origin=pipeline.origin,
    )


def rebuild_of(pipeline: Pipeline, name: str, since_ms: int, until_ms: int) -> Pipeline:
    """Return the pipeline that writes a Delta table of another one again, beside it.

    It reads what was published from `since_ms` until before `until_ms`, 0: all, to its end. `name`
    is that of the sink, empty: the only one. Its names and places are of this range and this SQL: a
    rebuild that was broken off goes on, another one begins. Dead letters are not sent. Raises
    SettingError.
    """

    def bounded(source: SourceSpec) -> SourceSpec:
        starting = str(since_ms) if since_ms else "earliest"
        return replace(source, starting=starting, since_ms=since_ms, until_ms=until_ms)

    table = _delta_sink(pipeline, name)
    source = bounded(pipeline.source)
    streams = {view: bounded(one) for view, one in pipeline.streams.items()}
    steps = [(step.name, step.sql, step.watermark) for step in pipeline.steps]
    made_of = repr((replace(table, declared=()), source, streams, pipeline.tables, steps))
    suffix = f".rebuild-{hashlib.sha256(made_of.encode()).hexdigest()[:8]}"
    return replace(
        pipeline,
        name=f"{pipeline.name}{suffix}",
        source=source,
        streams=streams,
        sinks=(replace(table, path=f"{table.path.rstrip('/')}{suffix}"),),
        checkpoint=pipeline.checkpoint and f"{pipeline.checkpoint.rstrip('/')}{suffix}",
        bad_records="fail" if pipeline.bad_records == "fail" else "skip",
        dead_letters="",
    )


def swap_of(pipeline: Pipeline, name: str, span: tuple[int, int], where: str) -> Pipeline:
    """Return the pipeline that puts rows of the table that a rebuild of a span wrote in place.

    `where` says which rows of the sink's table they replace, empty: all. Raises SettingError.
    """
    [shadow] = rebuild_of(pipeline, name, *span).sinks
    table = _delta_sink(pipeline, name)
    options = {"table": _whole(table.path), "shadow": _whole(shadow.path), "where": where}
    return replace(
        maintain_of(pipeline, {}), name=f"{pipeline.name}.swap", job=JobSpec("swap", options)
    )


def _delta_sink(pipeline: Pipeline, name: str) -> SinkSpec:
    """Return the sink of a Delta table by its name, empty: the only one; raise SettingError."""
    tables = [one for one in pipeline.sinks if one.kind == "delta" and name in {"", one.name}]
    if len(tables) != 1:
        known = ", ".join(one.name for one in pipeline.sinks if one.kind == "delta") or "none"
        raise SettingError(f"name one sink that is a Delta table of {pipeline.name}: {known}")
    return tables[0]


def _whole(path: str) -> str:
    return path if "://" in path else str(Path(path).absolute())
