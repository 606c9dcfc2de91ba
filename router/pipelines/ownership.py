"""Whose checkpoint it is, and of what: a file in it names its pipeline, source, sinks and state.

With the checkpoint of another pipeline, or of another store, a run would take messages for read
that it never saw. A sink that goes on at another place would leave behind what it has written. A
group or join that is another one would go on with the state of the first. All of that is refused
while it can be said in a sentence; what has not begun may change.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from router.pipelines.declaration import DEAD_LETTERS, PLACES, Pipeline, is_local
from router.pipelines.reading import Place
from router.settings import without_password

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OWNER: Final = "pipeline.json"


class CheckpointFolder(Protocol):
    """The folder of a checkpoint."""

    def read(self) -> str:
        """Return the file of this module, empty: there is none."""
        ...

    def write(self, text: str) -> None:
        """Write it."""
        ...

    def begun(self, sink: str) -> bool:
        """Return whether a sink has taken a batch."""
        ...


class _LocalFolder:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self) -> str:
        file = self._folder / OWNER
        return file.read_text("utf-8") if file.is_file() else ""

    def write(self, text: str) -> None:
        (self._folder / OWNER).write_text(text, "utf-8")

    def begun(self, sink: str) -> bool:
        return any(self._folder.glob(f"{sink}/offsets/[0-9]*"))


class _RemoteFolder:
    """A folder on a file system of Spark's."""

    def __init__(self, folder: str, spark: SparkSession) -> None:
        self._jvm: Any = spark.sparkContext._jvm
        self._folder = folder
        self._file = self._path(OWNER)
        self._system = self._file.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())

    def read(self) -> str:
        if not self._system.exists(self._file):
            return ""
        opened = self._system.open(self._file)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(opened, "UTF-8"))
        finally:
            opened.close()

    def write(self, text: str) -> None:
        opened = self._system.create(self._file, True)
        opened.write(bytearray(text, "utf-8"))
        opened.close()

    def begun(self, sink: str) -> bool:
        found = self._system.globStatus(self._path(f"{sink}/offsets/[0-9]*"))
        return bool(found)

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._folder.rstrip('/')}/{name}")


def check_owner(pipeline: Pipeline) -> None:
    """Raise DeclarationError if the checkpoint, a folder of this machine, is of something else.

    The pipeline has its places in full (`run.placed`).
    """
    if is_local(pipeline.checkpoint):
        _check(pipeline, _local(pipeline.checkpoint))


def opened_folder(checkpoint: str, spark: SparkSession) -> CheckpointFolder:
    """Return the folder of a checkpoint, of this machine or on a file system of Spark's."""
    return _local(checkpoint) if is_local(checkpoint) else _RemoteFolder(checkpoint, spark)


def _local(checkpoint: str) -> CheckpointFolder:
    return _LocalFolder(Path(checkpoint.removeprefix("file://")))


def own(pipeline: Pipeline, folder: Path) -> None:
    """Note in a folder of this machine what it is of; raise as `check_owner`."""
    _own(pipeline, _LocalFolder(folder))


def own_remote(pipeline: Pipeline, spark: SparkSession) -> None:
    """Note it in a checkpoint on a file system of Spark's; raise as `check_owner`."""
    _own(pipeline, _RemoteFolder(pipeline.checkpoint, spark))


def _own(pipeline: Pipeline, folder: CheckpointFolder) -> None:
    noted = _check(pipeline, folder)
    sinks = {**noted.get("sinks", {}), **_sinks(pipeline)}
    note = {"pipeline": pipeline.name, "source": _source(pipeline), "sinks": sinks}
    if note != noted:
        folder.write(json.dumps(note, indent=1) + "\n")


def _source(pipeline: Pipeline) -> str:
    url = without_password(pipeline.source.url)
    return pipeline.source.settings.get("data.dir", "") if url.startswith("embedded") else url


def _sinks(pipeline: Pipeline) -> dict[str, dict[str, Any]]:
    """Return where each sink writes, and what state it keeps."""
    from router.pipelines.kept_state import state_of  # noqa: PLC0415 - needs an extra

    found: dict[str, dict[str, Any]] = {
        sink.name: {
            "place": " ".join(
                [sink.kind, *(at for at in map(partial(getattr, sink), PLACES) if at)]
            ),
            "state": state_of(pipeline, sink),
        }
        for sink in pipeline.sinks
    }
    if pipeline.bad_records == "dlq":
        found[DEAD_LETTERS] = {"place": f"topic {pipeline.dead_letters}".rstrip(), "state": []}
    return found


def _check(pipeline: Pipeline, folder: CheckpointFolder) -> dict[str, Any]:
    """Return what is noted; raise DeclarationError for what is declared otherwise."""
    place, file = pipeline.checkpoint.rstrip("/"), f"{pipeline.checkpoint.rstrip('/')}/{OWNER}"
    noted: dict[str, Any] = {}
    try:
        noted |= json.loads(folder.read() or "{}")
        owner = str(noted.get("pipeline", pipeline.name))
    except (ValueError, TypeError):
        owner = ""
    if owner != pipeline.name:
        known = f"the pipeline {owner}" if owner else "another pipeline"
        raise pipeline.origin.error(
            ("checkpoint",),
            f"the checkpoint {place} is that of {known}, so what {pipeline.name} is to read would"
            " count as read. Name another folder. If it is the same pipeline under a new name,"
            f" delete {file}",
        )
    sinks = {name: one for name, one in noted.get("sinks", {}).items() if folder.begun(name)}
    if sinks and noted["source"] != (source := _source(pipeline)):
        raise pipeline.origin.error(
            ("checkpoint",),
            f"the checkpoint {place} has positions of {noted['source']}, and the source is {source}"
            " now. Name another folder. If it is the same store under a new address,"
            f" delete {file}",
        )
    for path, sentence in _changes(pipeline, sinks):
        raise pipeline.origin.error(
            path,
            f"{sentence}. Give the sink another name, under which it begins at source.starting, or"
            f" declare what it was. If you know that it fits, delete {file}",
        )
    return noted


def _changes(pipeline: Pipeline, noted: dict[str, Any]) -> Iterator[tuple[Place, str]]:
    """Yield the table and the sentence of each sink that is another one than it was."""
    paths = {sink.name: sink.declared for sink in pipeline.sinks}
    for name, now in _sinks(pipeline).items():
        was = noted.get(name, now)
        if was["place"] != now["place"]:
            yield (
                paths.get(name, ()),
                f"sink {name} has written to {was['place']}, and is declared for {now['place']}:"
                " what is there would stay behind",
            )
        if was["state"] != now["state"]:
            kept, new = ("; ".join(one["state"]) or "no groups" for one in (was, now))
            yield (
                paths.get(name, ()),
                f"sink {name}: its checkpoint keeps {kept}, which cannot become {new}",
            )
