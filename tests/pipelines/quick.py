"""Spark for short runs: no web page, nothing that pays only in the long run, nothing measured."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from router.pipelines import connectors, session

_MEASURED: Final = ("COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START")

QUICK: Final = {
    "spark.ui.enabled": "false",
    # Delta's state is small.
    "spark.databricks.delta.snapshotPartitions": "2",
}


def ready() -> None:
    """Have all there that is installed once: the connectors, and the archive of Spark's classes."""
    connectors.install(print)
    assert session.install(print)


@contextmanager
def unmeasured() -> Iterator[None]:
    """Have processes that are started meanwhile, and theirs, not measured for coverage.

    That doubles what each of Spark's many Python processes costs to start; those of the tests of
    `router pipeline run` are measured.
    """
    asked = {name: os.environ.pop(name, "") for name in _MEASURED}
    try:
        yield
    finally:
        os.environ |= {name: text for name, text in asked.items() if text}
