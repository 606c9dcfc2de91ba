"""Rows of a stream in tables of a real PostgreSQL: once, by key, and what it refuses, in words."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from router import settings as all_settings
from router.backends import memory
from router.errors import BackendUnavailableError, SettingError
from router.pipelines.declaration import SinkSpec
from router.pipelines.sinks import start_sink
from router.pipelines.sinks.jdbc import JdbcDatabase
from router.pipelines.sinks.postgresql import SCALES, UPSERT_ALONE
from tests.pipelines.sinking import Sinking, Stream
from tests.processes import wait_until
from tests.servers.postgresql import USER, Postgresql

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def server() -> Iterator[Postgresql]:
    """A PostgreSQL of this file."""
    found = Postgresql()
    try:
        found.start()
        yield found
    finally:
        found.close()


@pytest.fixture
def postgresql(server: Postgresql) -> Iterator[Postgresql]:
    """It, without tables."""
    yield server
    server.run("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")


@pytest.fixture
def sinking(folder: Path) -> Iterator[Sinking]:
    """Sinks beside a store in this process."""
    settings = all_settings.load(None, {}, {"data.dir": str(folder), "backend.url": "memory:"})
    backend = memory.open_backend("memory:", settings, None)
    yield Sinking(folder, backend, settings)
    backend.close()


@pytest.fixture
def stream(spark: SparkSession, folder: Path) -> Stream:
    """A stream of files, none at first."""
    return Stream(spark, folder / "in")


def sink(postgresql: Postgresql, **declared: object) -> SinkSpec:
    options = {"user": USER, "password_file": str(postgresql.password_file)}
    spec = SinkSpec("out", "jdbc", url=postgresql.url, options=options)
    return replace(spec, **declared)  # type: ignore[arg-type]


def test_table_has_each_row_once_when_the_commit_of_a_batch_is_lost(
    postgresql: Postgresql, sinking: Sinking, stream: Stream
) -> None:
    postgresql.run(
        'CREATE TABLE "Or ders" (id BIGINT, "Name" VARCHAR, at TIMESTAMPTZ, data JSONB, m NUMERIC)'
    )
    stream.add([(1, "a"), (2, "b")])
    stream.add([(3, "c")])
    target = sink(postgresql, table='"Or ders"')

    def run() -> None:
        rows = "id, name, timestamp_seconds(id) AS at, concat('[', id, ']') AS data"
        decimal = "CAST(id AS DECIMAL(9, 2)) AS m"
        sinking.run(stream.frame().selectExpr(*rows.split(", ", 3), decimal), target)

    run()
    sinking.lose_commit()
    stream.add([(4, "d")])
    run()
    found = postgresql.run('SELECT id, "Name", data, m FROM "Or ders" ORDER BY id')
    assert found == [[f"{n}", name, f"[{n}]", f"{n}.00"] for n, name in enumerate("abcd", 1)]
    assert postgresql.run("SELECT batch, sink FROM router_batches") == [["2", "p/out"]]
    assert postgresql.run(r"SELECT 1 FROM pg_class WHERE relname LIKE 'router\_staged%'") == []


def test_row_of_a_key_is_replaced_by_a_newer_one_and_deleted(
    postgresql: Postgresql, sinking: Sinking, stream: Stream
) -> None:
    postgresql.run("CREATE TABLE changes (name TEXT PRIMARY KEY, number BIGINT)")
    target = sink(postgresql, table="changes", key=("name",), order="number", deletes="gone")

    def run() -> None:
        rows = stream.frame().selectExpr("nullif(id, 7) AS number", "name", "id % 10 = 0 AS gone")
        sinking.run(rows, target)

    stream.add([(2, "a"), (1, "a"), (3, "b"), (4, "c"), (10, "d")])
    stream.add([(1, "b"), (20, "c"), (5, "a")])
    run()
    assert postgresql.run("SELECT * FROM changes ORDER BY 1") == [["a", "5"], ["b", "3"]]
    sinking.lose_commit()
    postgresql.run("DELETE FROM changes WHERE name = 'a'")
    # A row that has no number is older than one that has.
    stream.add([(6, "e"), (7, "b")])
    run()
    # Had the lost batch been merged again, there were an `a`.
    assert postgresql.run("SELECT * FROM changes ORDER BY 1") == [["b", "3"], ["e", "6"]]


@pytest.mark.parametrize(
    ("declared", "refused", "sentence"),
    [
        ({"table": "orders"}, SettingError, "there is no table orders at jdbc:postgresql:"),
        ({"table": "other"}, SettingError, "has no column 'id', only name"),
        ({"table": "flags"}, SettingError, '"id" is of type boolean but expression is of type big'),
        ({"table": "cased"}, SettingError, "cased has the columns Id and ID, and rows 'id'"),
        ({"table": "plain", "key": ("id",)}, SettingError, "no unique or exclusion constraint"),
        ({"table": "plain", "options": {"user": USER}}, SettingError, "no password was provided"),
        (
            {"table": "plain", "options": {"user": "anna", "password_file": "PASSWORD"}},
            SettingError,
            'password authentication failed for user "anna"',
        ),
        ({"options": {"password_file": "/nowhere"}}, SettingError, "No such file"),
        (
            {"url": "jdbc:postgresql://127.0.0.1:1/x"},
            BackendUnavailableError,
            "Connection to 127.0.0.1:1 refused",
        ),
    ],
)
def test_sink_says_what_the_database_refuses_before_it_starts(
    postgresql: Postgresql,
    sinking: Sinking,
    stream: Stream,
    declared: dict[str, object],
    refused: type[Exception],
    sentence: str,
) -> None:
    postgresql.run("CREATE TABLE other (name TEXT)", "CREATE TABLE flags (id BOOLEAN, name TEXT)")
    postgresql.run("CREATE TABLE plain (id BIGINT, name TEXT)")
    postgresql.run('CREATE TABLE cased ("Id" BIGINT, "ID" BIGINT, name TEXT)')
    options = declared.get("options")
    if isinstance(options, dict) and options.get("password_file") == "PASSWORD":
        declared = {"options": {**options, "password_file": str(postgresql.password_file)}}
    with pytest.raises(refused, match=sentence):
        start_sink(stream.frame(), sink(postgresql, **declared), sinking.context)
    assert postgresql.run("SELECT 1 FROM pg_class WHERE relname LIKE 'router%'") == []


def test_batch_that_the_database_refuses_leaves_nothing_and_goes_on_when_it_fits(
    postgresql: Postgresql, sinking: Sinking, stream: Stream
) -> None:
    postgresql.run("CREATE TABLE small (id SMALLINT, name VARCHAR(1))")
    stream.add([(1, "a"), (2, "long")])
    with pytest.raises(PySparkException):
        sinking.run(stream.frame(), sink(postgresql, table="small"))
    [told] = sinking.told
    assert "sink out (small at jdbc:postgresql:" in told
    assert "batch 0 could not be written: ERROR: value too long for type character" in told
    assert postgresql.run("SELECT count(*) FROM small") == [["0"]]
    postgresql.run("ALTER TABLE small ALTER COLUMN name TYPE TEXT")
    sinking.run(stream.frame(), sink(postgresql, table="small"))
    assert postgresql.run("SELECT id, name FROM small ORDER BY 1") == [["1", "a"], ["2", "long"]]
    left = postgresql.run("SELECT relname FROM pg_class WHERE relname LIKE 'router%' ORDER BY 1")
    assert left == [["router_batches"], ["router_batches_pkey"]]


def test_rows_that_a_repeated_task_staged_twice_are_not_taken(
    postgresql: Postgresql, sinking: Sinking, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgresql.run("CREATE TABLE twice (id BIGINT, name TEXT)")
    stream.add([(1, "a"), (2, "b")])
    append = JdbcDatabase.append

    def again(database: JdbcDatabase, rows: DataFrame, table: str, size: str | None) -> None:
        append(database, rows, table, size)
        postgresql.run(f"INSERT INTO {table} SELECT * FROM {table} WHERE id = 1")

    with monkeypatch.context() as patched:
        patched.setattr(JdbcDatabase, "append", again)
        with pytest.raises(PySparkException):
            sinking.run(stream.frame(), sink(postgresql, table="twice"))
    assert "executors wrote 2 rows, and 3 are staged" in sinking.told[0]
    sinking.run(stream.frame(), sink(postgresql, table="twice"))
    assert postgresql.run("SELECT id FROM twice ORDER BY 1") == [["1"], ["2"]]


@pytest.mark.parametrize(
    ("kept", "cast", "refused"),
    [
        ("NUMERIC(9, 2)", "DECIMAL(9, 2)", ""),
        ("NUMERIC(9, 2)", "DECIMAL(9, 3)", r"2 digits behind the point, .* 3 \(decimal\(9,3\)\)"),
        ("NUMERIC(9, -2)", "DECIMAL(9, 0)", "-2 digits behind the point"),
        ("NUMERIC", "DECIMAL(38, 18)", ""),
        ("INT", "DECIMAL(9, 2)", "0 digits behind the point"),
        ("BIGINT", "DECIMAL(9, 0)", ""),
        ("MONEY", "DECIMAL(9, 2)", ""),
        ("MONEY", "DECIMAL(9, 3)", "2 digits behind the point, and its rows have 3"),
        ("INT", "DOUBLE", "0 digits behind the point, and its rows are double"),
        ("NUMERIC(9, 2)", "DOUBLE", ""),
        ("total", "DECIMAL(9, 2)", ""),
        ("total", "DECIMAL(9, 3)", "2 digits behind the point"),
    ],
)
def test_numbers_that_the_database_would_round_are_refused(
    postgresql: Postgresql, sinking: Sinking, stream: Stream, kept: str, cast: str, refused: str
) -> None:
    postgresql.run("CREATE DOMAIN amount AS NUMERIC(9, 2)", "CREATE DOMAIN total AS amount")
    postgresql.run(f"CREATE TABLE amounts (id {kept})")
    rows = stream.frame().selectExpr(f"CAST(id AS {cast}) AS id")
    target = sink(postgresql, table="amounts")
    with pytest.raises(SettingError, match=refused) if refused else nullcontext():
        start_sink(rows, target, sinking.context).stop()


def test_scales_of_domains_and_arrays_are_those_of_the_types_beneath(
    postgresql: Postgresql,
) -> None:
    postgresql.run("CREATE DOMAIN amount AS NUMERIC(9, 2)", "CREATE DOMAIN total AS amount")
    postgresql.run("CREATE DOMAIN count AS INT", "CREATE DOMAIN free AS NUMERIC")
    postgresql.run('CREATE TABLE t (a amount, "B" total, c count, d free, e TEXT, f NUMERIC(9, 3))')
    postgresql.run(
        "CREATE TABLE arrays (a NUMERIC(9, 3)[], b INT[][], c NUMERIC[], d TEXT[], e NAME, f POINT,"
        " g MONEY[])"
    )
    found = postgresql.run(SCALES.replace("?", "'t'"))
    assert sorted(found) == [['"B"', "2"], ["a", "2"], ["c", "0"], ["f", "3"]]
    found = postgresql.run(SCALES.replace("?", "'arrays'"))
    assert sorted(found) == [["a", "3"], ["b", "0"], ["g", "2"]]


def test_column_of_the_same_case_is_taken_where_names_differ_in_nothing_else(
    postgresql: Postgresql, sinking: Sinking, stream: Stream
) -> None:
    postgresql.run('CREATE TABLE cases ("ID" BIGINT, id BIGINT PRIMARY KEY, "Name" TEXT)')
    stream.add([(1, "a")])
    sinking.run(stream.frame(), sink(postgresql, table="cases", key=("id",)))
    assert postgresql.run('SELECT "ID" IS NULL, id, "Name" FROM cases') == [["t", "1", "a"]]


def test_row_without_a_key_ends_the_batch_before_anything_is_merged(
    postgresql: Postgresql, sinking: Sinking, stream: Stream
) -> None:
    postgresql.run("CREATE TABLE named (id BIGINT, name TEXT UNIQUE)")
    stream.add([(1, "a"), (2, "b"), (3, "c")])
    rows = stream.frame().selectExpr("id", "nullif(name, 'b') AS name")
    with pytest.raises(PySparkException):
        sinking.run(rows, sink(postgresql, table="named", key=("name",)))
    assert "1 of its rows have NULL in the key (name)" in sinking.told[0]
    assert postgresql.run("SELECT count(*) FROM named") == [["0"]]


def test_upserts_of_several_pipelines_into_a_table_take_turns(
    postgresql: Postgresql,
    sinking: Sinking,
    stream: Stream,
    spark: SparkSession,
) -> None:
    postgresql.run("CREATE TABLE turns (id BIGINT PRIMARY KEY, name TEXT)")
    postgresql.run("INSERT INTO turns VALUES (1, 'old'), (2, 'old')")
    target = sink(postgresql, table="turns", key=("id",))
    stream.add([(1, "new"), (2, "new")])
    other = JdbcDatabase.of(spark, target, "another pipeline")
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    with ThreadPoolExecutor(1) as pool:
        with other.transaction() as connection:
            connection.query(UPSERT_ALONE, "public.turns")
            connection.run("UPDATE turns SET name = 'other' WHERE id = 2")
            running = pool.submit(sinking.run, stream.frame(), target)
            wait_until(lambda: postgresql.run(waiting) != [["0"]], 240)
            # The first row had been locked by the other pipeline, which waits for the second one.
            connection.run("UPDATE turns SET name = 'other' WHERE id = 1")
        running.result(240)
    assert postgresql.run("SELECT * FROM turns ORDER BY 1") == [["1", "new"], ["2", "new"]]
