"""Tables of PostgreSQL: executors stage a batch, one transaction takes it into the table.

Theory of operation. No transaction spans several executors. So each batch goes into a table of its
own first, which Spark's JDBC writer fills in parallel; then the driver notes the number of the
batch and moves the rows, in one transaction. A number that is noted is not applied again, whatever
was killed in between. A repeated task may stage rows twice: they are counted before they move.
Upserts into one table take turns, so that those of several pipelines cannot block each other.

What a database can say before there are rows is asked when a query starts, in a transaction that is
rolled back: does the table exist, do types fit, is there an index for the key, may we write.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StringType

from router.errors import (
    BackendUnavailableError,
    BadRequestError,
    PublishRefusedError,
    ReadFailedError,
    RouterError,
    SettingError,
)
from router.pipelines.declaration import SinkSpec
from router.pipelines.failures import sentence
from router.pipelines.sinks import postgresql
from router.pipelines.sinks.context import QUERY, SinkContext
from router.pipelines.sinks.counting import counted
from router.pipelines.sinks.keyed import check_rows, check_scale, kept, newest, quoted
from router.pipelines.sinks.postgresql import TargetTable
from router.settings import without_password

DRIVER: Final = "org.postgresql.Driver"
# Of these the URL may say otherwise, which goes before. Text fits whatever the database reads from
# text, such as a UUID or JSON. The last two are seconds.
_CONNECTION: Final = {
    "stringtype": "unspecified",
    "reWriteBatchedInserts": "true",
    "tcpKeepAlive": "true",
    "loginTimeout": "30",
    "socketTimeout": "600",
}
_PASSWORDS: Final = frozenset({"password", "sslpassword"})
# Beginnings of SQLSTATE that another declaration, or another table, would change: who may connect,
# no password, no database, what a statement names.
_DECLARED: Final = ("28", "08004", "3D", "42")


def check(frame: DataFrame, sink: SinkSpec, context: SinkContext) -> None:
    """Raise SettingError for a sink that cannot be written."""
    if _has_password(sink.url):
        raise SettingError(
            f"sink {sink.name}: a password does not belong into the url: name a file that has it"
            ' with options = { password_file = "…" }, or have it in ~/.pgpass.'
        )
    check_rows(frame, sink)


def start(frame: DataFrame, sink: SinkSpec, context: SinkContext) -> StreamingQuery:
    """Start writing and return the query.

    Raises SettingError for what the database refuses, BackendUnavailableError if there is none.
    """
    database = JdbcDatabase.of(frame.sparkSession, sink, f"router {context.pipeline}/{sink.name}")
    table = TableSink(sink, context, database)
    table.prove(frame)
    return context.writer(frame, sink).foreachBatch(table.write).start()


def tidy(sink: SinkSpec, context: SinkContext) -> None:
    """Do nothing: a table keeps what it has."""


@dataclass(frozen=True, slots=True)
class JdbcDatabase:
    """Where the table is; `properties` are the driver's, with the password."""

    spark: SparkSession
    url: str
    properties: Mapping[str, str]

    @classmethod
    def of(cls, spark: SparkSession, sink: SinkSpec, name: str) -> JdbcDatabase:
        """Return the database of a sink; raise SettingError if its password cannot be read."""
        given = {"ApplicationName": name, **_CONNECTION}
        if user := sink.options.get("user"):
            given["user"] = user
        if file := sink.options.get("password_file"):
            try:
                given["password"] = Path(file).read_text("utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise SettingError(f"sink {sink.name}: password_file: {error}.") from error
        return cls(spark, sink.url, given)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Open a connection for one transaction, which ends with the block, or is rolled back."""
        jvm: Any = self.spark.sparkContext._jvm
        properties = jvm.java.util.Properties()
        for key, value in self.properties.items():
            properties.setProperty(key, value)
        # Makes a driver that came with spark.jars known to the JVM's own manager of drivers.
        jvm.org.apache.spark.sql.execution.datasources.jdbc.DriverRegistry.register(DRIVER)
        opened = jvm.java.sql.DriverManager.getConnection(self.url, properties)
        try:
            opened.setAutoCommit(False)
            yield Connection(opened)
            opened.commit()
        finally:
            opened.close()

    def append(self, rows: DataFrame, table: str, batch_size: str | None) -> None:
        """Write rows to a table from all executors; a repeated task writes its rows again."""
        writer = rows.write.format("jdbc").mode("append").options(**self.properties)
        if batch_size is not None:
            writer = writer.option("batchsize", batch_size)
        writer.option("url", self.url).option("driver", DRIVER).option("dbtable", table).save()

    def types(self, rows: DataFrame) -> list[str]:
        """Return the types by which Spark hands columns to the database; `unknown`: any text."""
        jvm: Any = self.spark.sparkContext._jvm
        dialect = jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(self.url)
        utils = jvm.org.apache.spark.sql.execution.datasources.jdbc.JdbcUtils
        read = jvm.org.apache.spark.sql.types.DataType.fromJson
        return [
            "unknown"
            if isinstance(field.dataType, StringType)
            else utils.getJdbcType(read(field.dataType.json()), dialect).databaseTypeDefinition()
            for field in rows.schema.fields
        ]


@dataclass(frozen=True, slots=True)
class Connection:
    """One transaction with the database; texts in and out. Raises Py4JJavaError."""

    opened: Any

    def query(self, statement: str, *given: str) -> list[tuple[str, ...]]:
        """Return the rows of a query, which are few."""
        prepared = self._prepared(statement, given)
        found = prepared.executeQuery()
        columns = range(1, found.getMetaData().getColumnCount() + 1)
        rows = []
        while found.next():
            rows.append(tuple(found.getString(column) for column in columns))
        prepared.close()
        return rows

    def run(self, statement: str, *given: str) -> int:
        """Run a statement, and return how many rows it changed."""
        prepared = self._prepared(statement, given)
        prepared.execute()
        changed = int(prepared.getUpdateCount())
        prepared.close()
        return changed

    def _prepared(self, statement: str, given: Sequence[str]) -> Any:
        prepared = self.opened.prepareStatement(statement)
        for place, text in enumerate(given, 1):
            prepared.setString(place, text)
        return prepared


class TableSink:
    """What a query does with each batch: `write`, called by one thread."""

    def __init__(self, sink: SinkSpec, context: SinkContext, database: JdbcDatabase) -> None:
        self._sink = sink
        self._context = context
        self._database = database

    def prove(self, frame: DataFrame) -> None:
        """Have the database judge what will be run, and leave nothing there; see `start`."""
        try:
            with self._database.transaction() as connection:
                self._prove(connection, frame)
                connection.opened.rollback()
        except (Py4JJavaError, PySparkException) as error:
            refused = isinstance(error, PySparkException) or _state(error).startswith(_DECLARED)
            kind = SettingError if refused else BackendUnavailableError
            message = _error_text(error).rstrip(".")
            raise kind(f"sink {self._sink.name}: {self._place()}: {message}.") from error

    def write(self, frame: DataFrame, batch: int) -> None:
        """Write a batch once, in one transaction; raise PublishRefusedError."""
        try:
            self._write(frame, batch)
        except (Py4JJavaError, PySparkException, RouterError) as error:
            refusal = PublishRefusedError(
                f"Pipeline {self._context.pipeline}, sink {self._sink.name} ({self._place()}):"
                f" batch {batch} could not be written: {_error_text(error).rstrip('.')}."
                " Nothing is lost: the next run goes on with it."
            )
            self._context.failed(self._sink.name, refusal)
            raise refusal from error

    def _write(self, frame: DataFrame, batch: int) -> None:
        # The class that Spark Connect shares has no such context; a driver of ours has.
        query = cast("Any", frame.sparkSession.sparkContext).getLocalProperty(QUERY)
        prefix = f"{postgresql.STAGED}{hashlib.sha256(query.encode()).hexdigest()[:16]}_"
        names = kept(frame, self._sink)
        with self._database.transaction() as connection:
            table = self._found(connection, names)
            self._create_batches(connection, table)
            if any(int(last) >= batch for (last,) in connection.query(table.last(), query)):
                return
            # Those of runs that were killed; a task of theirs that writes on finds its table gone.
            for (left,) in connection.query(postgresql.LEFT, prefix):
                connection.run(f"DROP TABLE {left}")
            staged = f"{table.schema}.{prefix}{uuid.uuid4().hex[:8]}"
            connection.run(table.stage(staged, names))
        rows = newest(frame, self._sink) if self._sink.key else frame
        all_names = [*names, *filter(None, [self._sink.deletes])]
        rows = rows.select(*map(quoted, all_names))
        size = self._sink.options.get("batchsize")
        written = counted(rows, lambda seen: self._database.append(seen, staged, size))
        with self._database.transaction() as connection:
            sink = f"{self._context.pipeline}/{self._sink.name}"
            if not connection.run(table.claim(), query, str(batch), sink):
                return
            [(found, lacking)] = connection.query(table.count(staged))
            if int(found) != written:
                raise ReadFailedError(f"executors wrote {written} rows, and {found} are staged")
            if int(lacking):
                raise BadRequestError(
                    f"{lacking} of its rows have NULL in the key ({', '.join(self._sink.key)}),"
                    " which replaces no row: leave them out, or give them a value"
                )
            if self._sink.key:
                connection.query(postgresql.UPSERT_ALONE, table.name)
            for statement in table.apply(staged, names):
                connection.run(statement)
            connection.run(f"DROP TABLE {staged}")

    def _prove(self, connection: Connection, frame: DataFrame) -> None:
        names = kept(frame, self._sink)
        table = self._found(connection, names)
        self._create_batches(connection, table)
        staged = f"{table.schema}.{postgresql.STAGED}{uuid.uuid4().hex}"
        connection.run(table.stage(staged, names))
        rows = frame.select(*map(quoted, names))
        scales = _pairs(connection.query(postgresql.SCALES, self._sink.table))
        for field in rows.schema.fields:
            scale = scales.get(table.columns[field.name.lower()])
            found = None if scale is None else int(scale)
            check_scale(field.name, field.dataType, found, self._sink, self._sink.table)
        connection.run(table.prove(staged, names, self._database.types(rows)))
        connection.run("DEALLOCATE router_proof")
        for statement in table.apply(staged, names):
            connection.query(f"EXPLAIN {statement}")

    def _create_batches(self, connection: Connection, table: TargetTable) -> None:
        connection.query(postgresql.ALONE)
        connection.run(table.create_batches())

    def _found(self, connection: Connection, names: Sequence[str]) -> TargetTable:
        """Return the table as the database knows it; raise SettingError if it does not."""
        sink = self._sink
        found = connection.query(postgresql.FIND, sink.table)
        if not found:
            raise SettingError(f"sink {sink.name}: there is no table {sink.table} at {sink.url}.")
        listed = connection.query(postgresql.COLUMNS, sink.table)
        columns = {name.lower(): self._column(name, _pairs(listed)) for name in names}
        [(schema, local)] = found
        return TargetTable(schema, f"{schema}.{local}", columns, sink.key, sink.order, sink.deletes)

    def _column(self, name: str, listed: Mapping[str, str]) -> str:
        """Return the quoted name of the table's column of a name; raise SettingError.

        `listed` has them all by their names. Spark's names may have another case.
        """
        if name in listed:
            return listed[name]
        found = [one for one in listed if one.lower() == name.lower()]
        if len(found) == 1:
            return listed[found[0]]
        where = f"sink {self._sink.name}: the table {self._sink.table} has"
        if found:
            raise SettingError(f"{where} the columns {' and '.join(found)}, and rows {name!r}.")
        raise SettingError(f"{where} no column {name!r}, only {', '.join(listed)}.")

    def _place(self) -> str:
        return f"{self._sink.table} at {self._sink.url}"


def _pairs(rows: Iterable[Sequence[str]]) -> dict[str, str]:
    pairs: Iterable[Any] = rows
    return dict(pairs)


def _has_password(url: str) -> bool:
    """Return whether a URL of PostgreSQL's driver has a password; names of key files are none."""
    address, _, query = url.partition("?")
    names = (one.partition("=")[0].lower() for one in query.split("&"))
    return without_password(address) != address or not _PASSWORDS.isdisjoint(names)


def _state(error: Exception) -> str:
    """Return the SQLSTATE of what the database says; empty: none."""
    known = getattr(getattr(error, "java_exception", None), "getSQLState", None)
    try:
        return str(known()) if known is not None else ""
    except Exception:  # noqa: BLE001 - an exception of the JVM's that is not the database's
        return ""


def _error_text(error: Exception) -> str:
    """Return what went wrong in one line, without the database's hints and places."""
    if isinstance(error, Py4JJavaError):
        message = str(error.java_exception.getMessage())
        return sentence(message.partition("\n  ")[0])
    return sentence(error)
