"""The SQL of a batch for PostgreSQL: how names are quoted, and what a key makes of it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
)

from router.errors import SettingError
from router.pipelines.declaration import SinkSpec
from router.pipelines.sinks.context import SinkContext
from router.pipelines.sinks.jdbc import check
from router.pipelines.sinks.keyed import check_rows, check_scale
from router.pipelines.sinks.postgresql import TargetTable

COLUMNS = {"id": "id", "name": '"Name"', "at": "at"}
TABLE = TargetTable("public", 'public."Or ders"', COLUMNS)


def test_rows_are_inserted_without_a_key() -> None:
    assert TABLE.apply("s1", ["ID", "name"]) == [
        'INSERT INTO public."Or ders" AS t (id, "Name") SELECT id, "Name" FROM s1 AS s'
    ]


def test_key_deletes_first_and_replaces_older_rows_only() -> None:
    table = replace(TABLE, key=("id",), order="at", deletes='go"ne')
    delete, upsert = table.apply("s1", list(COLUMNS))
    assert delete == (
        'DELETE FROM public."Or ders" AS t USING s1 AS s WHERE t.id = s.id'
        ' AND coalesce(s."go""ne", false) AND coalesce(s.at >= t.at, t.at IS NULL)'
    )
    assert upsert.endswith(
        'WHERE NOT coalesce(s."go""ne", false) ON CONFLICT (id) DO UPDATE SET'
        ' "Name" = excluded."Name", at = excluded.at'
        " WHERE coalesce(excluded.at >= t.at, t.at IS NULL)"
    )


def test_row_of_nothing_but_its_key_replaces_nothing() -> None:
    [upsert] = replace(TABLE, key=("id",)).apply("s1", ["id"])
    assert upsert.endswith("WHERE NOT false ON CONFLICT (id) DO NOTHING")


def test_rows_without_a_key_are_counted_by_all_its_columns() -> None:
    assert TABLE.count("s1") == "SELECT count(*), count(*) FILTER (WHERE false) FROM s1"
    lacking = '(WHERE id IS NULL OR "Name" IS NULL)'
    keyed = replace(TABLE, key=("id", "Name"))
    assert keyed.count("s1") == f"SELECT count(*), count(*) FILTER {lacking} FROM s1"


@pytest.mark.parametrize(
    ("url", "refused"),
    [
        ("//h/db", False),
        ("//h/db?sslmode=verify-full&sslkey=/k.pk8&sslcert=/c&passwordCallback=x.Y", False),
        ("//h/db?user=a&password=b", True),
        ("//h/db?PassWord=b", True),
        ("//h/db?sslkey=/k&sslpassword=b", True),
        ("//a:b@h/db", True),
    ],
)
def test_password_is_refused_in_the_url_and_the_name_of_a_key_file_is_not(
    url: str, refused: bool
) -> None:
    sink = SinkSpec("out", "jdbc", url=f"jdbc:postgresql:{url}", table="t")
    frame, context = cast(DataFrame, SimpleNamespace(columns=["id"])), cast(SinkContext, None)
    with (
        pytest.raises(SettingError, match="password does not belong") if refused else nullcontext()
    ):
        check(frame, sink, context)


def test_decimals_of_arrays_are_checked_as_those_of_columns_are() -> None:
    spec = SinkSpec("s", "jdbc", url="jdbc:postgresql:b", table="t")
    kind = ArrayType(ArrayType(DecimalType(9, 3)))
    for scale in (None, 3, 4):
        check_scale("a", kind, scale, spec, "t")
    with pytest.raises(SettingError, match="2 digits behind the point, and its rows have 3"):
        check_scale("a", kind, 2, spec, "t")


@pytest.mark.parametrize("kind", [FloatType(), DoubleType(), ArrayType(DoubleType())])
def test_floating_numbers_are_no_whole_ones(kind: DataType) -> None:
    spec = SinkSpec("s", "jdbc", url="jdbc:postgresql:b", table="t")
    for scale in (None, 2):
        check_scale("a", kind, scale, spec, "t")
    for scale in (0, -2):
        with pytest.raises(SettingError, match="digits behind the point, and its rows are"):
            check_scale("a", kind, scale, spec, "t")


@pytest.mark.parametrize(
    ("columns", "declared", "refused"),
    [
        (["id", "Name"], {}, ""),
        (["id", "ID"], {}, "two columns are called 'id'"),
        (["id", "the name"], {"kind": "delta"}, "no column of Delta is called 'the name'"),
        (["id", "the name"], {"kind": "parquet"}, ""),
        (["id", "Day"], {"kind": "parquet", "partition_by": ("day", "id")}, "leaves no column"),
        (["id", "day"], {"kind": "parquet", "partition_by": ("day",)}, ""),
    ],
)
def test_rows_that_no_table_has_are_refused(
    columns: list[str], declared: dict[str, Any], refused: str
) -> None:
    defaults = SimpleNamespace(get=lambda _, default: default)
    session = SimpleNamespace(conf=defaults, sql=Mock(side_effect=PySparkException("No table.")))
    frame = cast(DataFrame, SimpleNamespace(columns=columns, sparkSession=session))
    with pytest.raises(SettingError, match=refused) if refused else nullcontext():
        check_rows(frame, SinkSpec("s", **{"kind": "jdbc", **declared}))
