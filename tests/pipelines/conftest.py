"""The one Spark session of a test run: two cores, no web page, nothing beyond loopback."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from router.pipelines import connectors, session
from tests.contract.conftest import stop_broker
from tests.pipelines.quick import QUICK, ready, unmeasured

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RESOURCES = {
    "spark.master": "local[2]",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    **QUICK,
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session that all tests share, made as the product makes its own."""
    ready()
    # Every call over the bridge to the JVM is a line otherwise, when a test captures logs.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    with unmeasured():
        started = session.start("tests", RESOURCES, connectors.CONNECTORS)
    yield started
    started.stop()


@pytest.fixture
def user(tmp_path: Path) -> Iterator[Path]:
    """A user's folder, empty at first, whose broker is ended at the end."""
    yield tmp_path
    stop_broker(tmp_path / "data")
