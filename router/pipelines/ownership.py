"""Whose checkpoint it is: a file in it has the name of its pipeline.

With the checkpoint of another pipeline a run would find that pipeline's offsets, take all messages
for read, and deliver nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from router.pipelines.declaration import Pipeline, is_local
from router.pipelines.reading import DeclarationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OWNER: Final = "pipeline.json"


def check_owner(pipeline: Pipeline) -> None:
    """Raise DeclarationError if the checkpoint, a folder of this machine, is another pipeline's."""
    if pipeline.checkpoint and is_local(pipeline.checkpoint):
        file = Path(pipeline.checkpoint.removeprefix("file://")) / OWNER
        _check(pipeline, file.read_text("utf-8") if file.is_file() else "")


def own(pipeline: Pipeline, folder: Path) -> None:
    """Note that a folder of this machine has the state of the pipeline; raise as `check_owner`."""
    check_owner(pipeline)
    file = folder / OWNER
    if not file.is_file():
        file.write_text(_note(pipeline), "utf-8")


def own_remote(pipeline: Pipeline, spark: SparkSession) -> None:
    """Note the pipeline in a checkpoint on a file system of Spark's; raise as `check_owner`."""
    jvm: Any = spark.sparkContext._jvm
    path = jvm.org.apache.hadoop.fs.Path(f"{pipeline.checkpoint.rstrip('/')}/{OWNER}")
    system = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
    if system.exists(path):
        file = system.open(path)
        try:
            found = jvm.org.apache.commons.io.IOUtils.toString(file, "UTF-8")
        finally:
            file.close()
        _check(pipeline, found)
    else:
        file = system.create(path, False)
        file.write(bytearray(_note(pipeline), "utf-8"))
        file.close()


def _note(pipeline: Pipeline) -> str:
    return json.dumps({"pipeline": pipeline.name}) + "\n"


def _check(pipeline: Pipeline, note: str) -> None:
    if not note or note == _note(pipeline):
        return
    try:
        owner = f"the pipeline {json.loads(note)['pipeline']}"
    except (ValueError, KeyError, TypeError):
        owner = "another pipeline"
    folder = pipeline.checkpoint.rstrip("/")
    raise DeclarationError(
        f"{pipeline.file}:{pipeline.lines.get(('checkpoint',), 1)}: the checkpoint {folder} is that"
        f" of {owner}, so what {pipeline.name} is to read would count as read. Name another folder."
        f" If it is the same pipeline under a new name, delete {folder}/{OWNER}"
    )
