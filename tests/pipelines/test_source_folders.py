"""Which folder a source or a write is about, and who starts a broker there."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from router.errors import BackendUnavailableError, SettingError
from router.pipelines.declaration import Pipeline, SourceSpec
from router.pipelines.ownership import own_remote
from router.pipelines.reading import DeclarationError
from router.pipelines.source.batch_reader import RouterBatchReader
from router.pipelines.source.options import SourceOptions
from router.pipelines.source.reading import batches
from router.pipelines.source.router_source import RouterSource
from router.pipelines.source.streams import RouterStreamReader
from router.pipelines.source.writing import BatchWriter, Written, publish
from tests.contract.conftest import stop_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SCHEMA = StructType([StructField("value", BinaryType())])


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The driver's folder, which is the working directory."""
    folder = tmp_path / "driver"
    folder.mkdir()
    monkeypatch.chdir(folder)
    yield folder
    stop_broker(folder / "data")


def test_what_executors_write_by_default_is_in_the_driver_s_folder(
    driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = pickle.dumps(RouterSource({"topic": "t"}).writer(SCHEMA, overwrite=False))
    reader = RouterBatchReader(SourceOptions.of_texts({"topics": "t"}).of_reading())
    executor = tmp_path / "executor"
    executor.mkdir()
    monkeypatch.chdir(executor)
    rows = pa.RecordBatch.from_pydict({"value": [b"%d" % number for number in range(100)]})
    assert pickle.loads(writer).write(iter([rows])).messages == 100
    read = [one for part in reader.partitions() for one in reader.read(part)]
    assert sum(one.num_rows for one in read) == 100
    assert (driver / "data").is_dir()
    assert list(executor.iterdir()) == []


def test_reading_and_tasks_start_no_broker_and_make_no_folder(driver: Path) -> None:
    options = SourceOptions.of_texts({"topics": "t", "topic": "t"})
    reads: list[Callable[[], object]] = [
        RouterBatchReader(options.of_reading()).partitions,
        RouterStreamReader(options.of_reading()).initialOffset,
        lambda: list(batches(options.of_reading(), ())),
        lambda: publish(options.attached(), iter(())),
    ]
    for read in reads:
        with pytest.raises(BackendUnavailableError, match=f"no router runs .*{driver}/data"):
            read()
        assert list(driver.iterdir()) == []


def test_tasks_that_do_not_meet_the_broker_of_the_driver_end_with_a_sentence(driver: Path) -> None:
    def write() -> int:
        written = writer.write(iter([pa.RecordBatch.from_pydict({"value": [b"one"]})]))
        return written.messages if isinstance(written, Written) else 0

    def read() -> int:
        return sum(one.num_rows for one in reader.read(parts[0]))

    writer = RouterSource({"topic": "t"}).writer(SCHEMA, overwrite=False)
    assert isinstance(writer, BatchWriter)
    assert write() == 1
    reader = RouterBatchReader(SourceOptions.of_texts({"topics": "t"}).of_reading())
    parts = reader.partitions()
    # A broker that was restarted is the same one.
    stop_broker(driver / "data")
    RouterSource({"topic": "t"}).writer(SCHEMA, overwrite=False)
    assert read() == write() == 1
    stop_broker(driver / "data")
    (driver / "data").rename(driver / "elsewhere")
    for task in read, write:
        with pytest.raises(BackendUnavailableError, match=r"no data\. .*--pulsar .*pulsar://HOST"):
            task()
    RouterSource({"topic": "t"}).writer(SCHEMA, overwrite=False)
    for task in read, write:
        with pytest.raises(SettingError, match=r"another router on the machine .*--pulsar"):
            task()


def test_write_that_would_replace_a_topic_is_refused(driver: Path) -> None:
    with pytest.raises(SettingError, match='mode\\("append"\\)'):
        RouterSource({"topic": "t"}).writer(SCHEMA, overwrite=True)
    assert list(driver.iterdir()) == []


def test_streams_are_refused_where_spark_has_not_what_they_need(
    driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "router.pipelines.source.streams", raising=False)
    monkeypatch.delattr("router.pipelines.source.streams", raising=False)
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    for stream in (
        lambda: RouterSource({"topics": "t"}).streamReader(SCHEMA),
        lambda: RouterSource({"topic": "t"}).streamWriter(SCHEMA, overwrite=False),
    ):
        with pytest.raises(SettingError, match=r"streams of topics need Spark 4\.2 or later"):
            stream()
    assert list(driver.iterdir()) == []


def test_a_part_of_the_router_that_streams_lack_is_named_and_not_spark(
    driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "router.pipelines.source.streams", raising=False)
    monkeypatch.delattr("router.pipelines.source.streams", raising=False)
    monkeypatch.setitem(sys.modules, "router.pipelines.source.planning", None)
    with pytest.raises(ModuleNotFoundError, match=r"router\.pipelines\.source\.planning"):
        RouterSource({"topics": "t"}).streamReader(SCHEMA)


@pytest.mark.java
def test_checkpoint_on_a_file_system_of_spark_belongs_to_one_pipeline(
    spark: SparkSession, tmp_path: Path
) -> None:
    mine, other = (
        Pipeline(name, SourceSpec(), checkpoint=f"file:{tmp_path}/new")
        for name in ("mine", "other")
    )
    own_remote(mine, spark)
    own_remote(mine, spark)
    with pytest.raises(DeclarationError, match="that of the pipeline mine"):
        own_remote(other, spark)
