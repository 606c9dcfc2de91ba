"""Pipelines that commands make from a declared one or a few words: replay, rebuild, maintain."""

from __future__ import annotations

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
        file=Path("command line"),
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
        file=pipeline.file,
        lines=pipeline.lines,
    )


def rebuild_of(pipeline: Pipeline, name: str, since_ms: int, until_ms: int) -> Pipeline:
    """Return the pipeline that writes a Delta table of another one again, beside it.

    It reads what was published from `since_ms` until before `until_ms`, 0: all, to its end. `name`
    is that of the sink, empty: the only one. Dead letters are not sent. Raises SettingError.
    """
    table = rebuilt(pipeline, name)

    def bounded(source: SourceSpec) -> SourceSpec:
        starting = str(since_ms) if since_ms else "earliest"
        return replace(source, starting=starting, since_ms=since_ms, until_ms=until_ms)

    return replace(
        pipeline,
        name=f"{pipeline.name}.rebuild",
        source=bounded(pipeline.source),
        streams={view: bounded(one) for view, one in pipeline.streams.items()},
        sinks=(replace(table, path=shadow(table)),),
        checkpoint=pipeline.checkpoint and f"{pipeline.checkpoint.rstrip('/')}.rebuild",
        bad_records="fail" if pipeline.bad_records == "fail" else "skip",
        dead_letters="",
    )


def swap_of(pipeline: Pipeline, name: str, where: str) -> Pipeline:
    """Return the pipeline that puts rows of a rebuilt table in place of those of the sink's."""
    table = rebuilt(pipeline, name)
    options = {"table": _whole(table.path), "shadow": _whole(shadow(table)), "where": where}
    return replace(
        maintain_of(pipeline, {}), name=f"{pipeline.name}.swap", job=JobSpec("swap", options)
    )


def rebuilt(pipeline: Pipeline, name: str) -> SinkSpec:
    """Return the sink of a Delta table by its name, empty: the only one; raise SettingError."""
    tables = [one for one in pipeline.sinks if one.kind == "delta" and name in {"", one.name}]
    if len(tables) != 1:
        known = ", ".join(one.name for one in pipeline.sinks if one.kind == "delta") or "none"
        raise SettingError(f"name one sink that is a Delta table of {pipeline.name}: {known}")
    return tables[0]


def shadow(sink: SinkSpec) -> str:
    """Return the folder of a table that is written beside that of a sink."""
    return f"{sink.path.rstrip('/')}.rebuild"


def _whole(path: str) -> str:
    return path if "://" in path else str(Path(path).absolute())
