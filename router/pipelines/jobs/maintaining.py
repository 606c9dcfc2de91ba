"""Looks after a table: small files become large ones, and files that it no longer names go.

Delta has commands for both, which streams that write or read meanwhile do not notice. A folder that
Spark's file sink writes is another matter: its log, `_spark_metadata`, names every file for as long
as there is a stream, so that a file which was compacted in its place would be missed by every
reader. So such a folder is compacted into a new one, and stays as it is; of its files only those go
that the log does not name, which a killed batch leaves behind. Writing to the log instead, as if a
batch had replaced files, would rest on its format, which is Spark's own matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.errors import AnalysisException

from router.errors import ReadFailedError, SettingError
from router.pipelines.declaration import SinkSpec, is_hidden
from router.pipelines.failures import sentence
from router.pipelines.jobs.options import TABLES, WEEK_HOURS, JobOptions, Value

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    # A path, a file system, a file's status: objects of Hadoop, which the JVM lends to Python.
    Hadoop = Any

LOG: Final = "_spark_metadata"
_OPTIMIZE: Final = "spark.databricks.delta.optimize.maxFileSize"
_SMALL: Final = "spark.databricks.delta.optimize.minFileSize"
_CHECK: Final = "spark.databricks.delta.retentionDurationCheck.enabled"
_INFER: Final = "spark.sql.sources.partitionColumnTypeInference.enabled"
# Delta lists a table's files in as many tasks as this allows, 10,000 as Spark comes: on one machine
# that takes minutes for any table, however small.
LISTING: Final = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_TASKS_A_CORE: Final = 4
_HOUR_MS: Final = 3_600_000
# What the log of a folder names is asked for, which has no columns while it names nothing.
_ANY: Final = "ignored INT"
_NO_PARTITION: Final = "DELTA_NON_PARTITION_COLUMN_REFERENCE"


def maintain_sinks(
    spark: SparkSession,
    sinks: Iterable[SinkSpec],
    options: JobOptions,
    now_ms: int,
    notify: Callable[[str], None],
) -> None:
    """Maintain the tables of files that sinks write to, which they may do meanwhile.

    Parquet is vacuumed only: a compacted copy would not be what the sink goes on with. What Spark
    refuses of one table keeps it from no other. Raises SettingError for it at the end. For a
    condition on partitions that a table lacks it does so only where every table lacks them.
    """
    refused: list[str] = []
    compacted = failed = False
    for sink in sinks:
        if sink.kind not in TABLES:
            continue
        if not _HadoopFolder(spark, sink.path).exists():
            notify(f"{sink.path}: not there yet")
            continue
        compact = sink.kind == "delta" and options.flag("compact")
        table: dict[str, Value] = {"table": sink.path, "format": sink.kind, "compact": compact}
        try:
            maintain(spark, JobOptions({**options.values, **table}), now_ms, notify)
            compacted = compacted or compact
        except (AnalysisException, SettingError) as error:
            refused.append(f"{sink.path}: {sentence(error)}")
            failed = failed or _NO_PARTITION not in str(error)
            notify(refused[-1])
    if refused and (failed or not compacted):
        raise SettingError(f"not all tables are maintained: {'; '.join(refused)}")


def maintain(
    spark: SparkSession, options: JobOptions, now_ms: int, notify: Callable[[str], None]
) -> None:
    """Compact and vacuum one table as its options say, telling what was done, a line each."""
    table = options.text("table")
    path = _HadoopFolder(spark, table)
    if options.text("format") == "delta":
        if not path.has("_delta_log"):
            raise SettingError(f"{table} is no Delta table: it has no _delta_log")
        _delta(spark, options, notify)
        return
    if not path.exists():
        raise SettingError(f"{table} does not exist")
    if options.flag("vacuum"):
        before = now_ms - round(options.number("retain_hours") * _HOUR_MS)
        count, size = path.vacuum(before)
        notify(f"{table}: deleted {count} files that its log does not name, {size} bytes")
    if options.flag("compact"):
        # Folders named zip=01234 would be read as the number 1234, and written as that.
        with _changed(spark, {_INFER: "false"}):
            _compact(spark, options, path, notify)


def _delta(spark: SparkSession, options: JobOptions, notify: Callable[[str], None]) -> None:
    from delta.tables import DeltaTable  # noqa: PLC0415 - only where there is a Delta table

    from router.pipelines.sinks.delta import tried  # noqa: PLC0415 - only where there is one

    name = options.text("table")
    table = DeltaTable.forPath(spark, name)
    hours = options.number("retain_hours")
    target = str(round(options.number("target_mb") * (1 << 20)))
    changes = {_OPTIMIZE: target, _SMALL: target}
    if hours < WEEK_HOURS:
        # Delta's own bound is for readers that take longer than the time that files are kept.
        changes[_CHECK] = "false"
    if spark.conf.get(LISTING, None) is None:
        changes[LISTING] = str(_TASKS_A_CORE * spark.sparkContext.defaultParallelism)
    with _changed(spark, changes):
        # First, so that it is done as well where Spark refuses the condition.
        if options.flag("vacuum"):
            table.vacuum(hours)
            notify(f"{name}: deleted files that it has not named for {hours:g} hours")
        if options.flag("compact"):
            chosen = table.optimize()
            if where := options.text("where"):
                chosen = chosen.where(where)
            [row] = tried(chosen.executeCompaction).collect()
            found = row.metrics
            notify(f"{name}: {found.numFilesRemoved} files became {found.numFilesAdded}")


@contextmanager
def _changed(spark: SparkSession, changes: Mapping[str, str]) -> Iterator[None]:
    """Have settings of Spark's otherwise for a while."""
    before = {key: spark.conf.get(key, None) for key in changes}
    try:
        for key, value in changes.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, old in before.items():
            if old is not None:
                spark.conf.set(key, old)
            else:
                spark.conf.unset(key)


def _compact(
    spark: SparkSession, options: JobOptions, path: _HadoopFolder, notify: Callable[[str], None]
) -> None:
    """Write the table into another folder, with as many rows, in as many files as needed."""
    name, into = options.text("table"), options.text("into")
    if _HadoopFolder(spark, into).exists():
        raise SettingError(f"{into} exists already: name a folder that does not")
    source = spark.read.parquet(name)
    rows, size = source.count(), path.size(source.inputFiles())
    files = max(1, round(size / (options.number("target_mb") * (1 << 20))))
    by = path.partition_columns()
    whole = source.repartition(files, *by) if by else source.repartition(files)
    whole.write.partitionBy(*by).parquet(into)
    written = spark.read.parquet(into)
    if (again := written.count()) != rows:
        raise ReadFailedError(f"{into} has {again} rows, and {name} has {rows}: do not use it")
    notify(
        f"{name}: {len(source.inputFiles())} files became {len(written.inputFiles())} in {into}, "
        f"{rows} rows; {name} stays as it is"
    )


class _HadoopFolder:
    """A folder in whatever file system Hadoop finds for its path."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        # The class that Spark Connect shares has neither; a driver of ours has both.
        context = cast("Any", spark.sparkContext)
        self._path: Hadoop = context._jvm.org.apache.hadoop.fs.Path(path)
        self._files: Hadoop = self._path.getFileSystem(context._jsc.hadoopConfiguration())
        self._new: Hadoop = context._jvm.org.apache.hadoop.fs.Path
        self._uri: Hadoop = context._jvm.java.net.URI
        self._text = path

    def exists(self) -> bool:
        return bool(self._files.exists(self._path))

    def has(self, name: str) -> bool:
        return bool(self._files.exists(self._new(self._path, name)))

    def size(self, named: list[str]) -> int:
        """Return the bytes of files, which are named as URIs."""
        statuses = (self._files.getFileStatus(self._new(self._uri(name))) for name in named)
        return sum(int(status.getLen()) for status in statuses)

    def partition_columns(self) -> list[str]:
        """Return the columns that its folders are named by, the outermost first."""
        found: list[str] = []
        folder = self._path
        while names := [one for one in self._files.listStatus(folder) if "=" in _name(one)]:
            found.append(_name(names[0]).partition("=")[0])
            folder = names[0].getPath()
            if not names[0].isDirectory():
                return found[:-1]
        return found

    def vacuum(self, before_ms: int) -> tuple[int, int]:
        """Delete files that the log does not name and are older; return how many, and bytes.

        A folder without a log has no such files: all that is in it is the table.
        """
        if not self.has(LOG):
            return 0, 0
        named = {
            str(self._new(self._uri(name)).toUri().getPath())
            for name in self._spark.read.schema(_ANY).parquet(self._text).inputFiles()
        }
        count = size = 0
        for status in self._walk(self._path):
            path = str(status.getPath().toUri().getPath())
            if path not in named and int(status.getModificationTime()) < before_ms:
                self._files.delete(status.getPath(), False)
                count, size = count + 1, size + int(status.getLen())
        return count, size

    def _walk(self, folder: Hadoop) -> Iterator[Hadoop]:
        """Yield the statuses of all data files below, but not what is the log's or hidden."""
        for status in self._files.listStatus(folder):
            name = _name(status)
            if is_hidden(name):
                continue
            if status.isDirectory():
                yield from self._walk(status.getPath())
            else:
                yield status


def _name(status: Hadoop) -> str:
    return str(status.getPath().getName())
