"""Pipelines that run in the tests' own session, on the stores that they are promised for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from router import settings as all_settings
from router.pipelines.declaration import Pipeline
from router.pipelines.lease import PipelineLease
from router.pipelines.loading import parse
from router.pipelines.run import PipelineRun, RunOptions, Stop, check_declared, once, placed
from router.settings import Settings
from tests.contract.conftest import Opened, open_kafka, open_with_node

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STORES = ["embedded", pytest.param("kafka", marks=pytest.mark.java)]
WAIT = 60.0


class Site:
    """A store and a folder, where pipelines run to the end of what is there."""

    def __init__(self, spark: SparkSession, opened: Opened, url: str, folder: Path) -> None:
        self.spark = spark
        self.opened = opened
        self.backend = opened.backend
        self.folder = folder
        self.url = url

    def settings(self) -> Settings:
        """Return the settings of a run."""
        given = {
            name: value.text
            for name, value in self.opened.settings.values.items()
            if value.origin != "default"
        }
        return all_settings.load(None, {}, given | {"backend.url": self.url})

    def declared(self, text: str, name: str = "test") -> Pipeline:
        """Return a pipeline that is declared by a text, with its places below the folder."""
        pipeline = parse(text, self.folder / f"{name}.toml", name)
        sinks = tuple(
            replace(sink, path=str(self.folder / sink.path)) if sink.path else sink
            for sink in pipeline.sinks
        )
        return replace(pipeline, sinks=sinks, checkpoint=str(self.folder / "checkpoints" / name))

    def run(self, text: str, name: str = "test") -> list[str]:
        """Run a pipeline over what is there now; return what its job said."""
        return self.run_pipeline(self.declared(text, name))

    def run_pipeline(self, pipeline: Pipeline) -> list[str]:
        """Run a pipeline as the command does, but in the session that there is."""
        check_declared(pipeline)
        settings = self.settings()
        pipeline = once(placed(pipeline, settings))
        said: list[str] = []
        lease = PipelineLease(self.opened.node, pipeline.name, WAIT)
        lease.acquire()
        try:
            options = RunOptions(notify=said.append)
            one = PipelineRun(pipeline, settings, options, self.backend, lease, Stop())
            with one.recorded():
                if pipeline.job is not None and pipeline.job.kind != "validate":
                    said.append(str(one.once(self.spark)))
                else:
                    one.stream(self.spark)
        finally:
            lease.release()
        return said


@contextmanager
def site(kind: str, request: pytest.FixtureRequest, folder: Path) -> Iterator[Site]:
    """Open a store of a kind, with a folder for what runs on it."""
    spark = request.getfixturevalue("spark")
    with ExitStack() as stack:
        if kind == "kafka":
            address = request.getfixturevalue("kafka").address
            opened = open_kafka(address, folder / "data", stack)
            yield Site(spark, opened, f"kafka://{address}", folder)
        else:
            yield Site(spark, open_with_node(kind, folder / "data", stack), kind, folder)
