"""Formats on Spark: each message is a row or a bad record, and never both."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from router.backends.memory import open_backend, open_node
from router.errors import SettingError
from router.pipelines.declaration import Pipeline, SourceSpec
from router.pipelines.formats import dead_letters, decode
from router.pipelines.schemas import SCHEMA_FILE, resolved
from router.pipelines.source_columns import SCHEMA_DDL
from router.settings import load
from router.wire.cambria import framed
from tests.unit.pipelines.test_decoding import DEFINITION, avro

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.timeout(300), pytest.mark.java, pytest.mark.slow]

TIME = datetime(2026, 1, 1, tzinfo=UTC)
RECORD = {"a": 1, "b": None, "c": ["\xff"], "d": {"k": 1.5}, "u": {"int": 3}, "in": {"x": 2}}
TABLE = "id BIGINT, name STRING"
# format, schema, good messages, bad messages with a part of the sentence
CASES: list[tuple[str, str, list[bytes | None], list[tuple[bytes | None, str]]]] = [
    ("bytes", "", [b"", b"\xff", None], []),
    ("text", "", [b"", "é".encode()], [(b"\xff", "not UTF-8"), (None, "no value")]),
    (
        "json",
        f"{TABLE}, `in` STRUCT<x: INT>",
        [b'{"id":1,"name":"a"}', b' {"id":2}\n', b"{}", b'{"id":3,"more":[1]}', b'{"id":null}'],
        [
            (b'{"id":"x"}', "the field id does not fit BIGINT"),
            (b'{"id":1,"name":2,"in":7}', "the field in does not fit STRUCT<x: INT>"),
            (b'{"in":{"x":"y"}}', "does not fit"),
            (b'{"name":"id","id":1.5}', "the field id does not fit BIGINT"),
            (b'{"id":99999999999999999999}', "does not fit"),
            (b'{"id":1', "not one JSON object"),
            (b'{"id":1} junk', "not one JSON object"),
            (b'{"id":1}{"id":2}', "not one JSON object"),
            (b'{"id":1},{"id":2}', "not one JSON object"),
            (b'{"id":NaN}', "not one JSON object"),
            (b'[{"id":1}]', "no JSON object"),
            (b"null", "no JSON object"),
            (b"", "no JSON object"),
            (b"\xff\xfe", "not UTF-8"),
            (None, "no value"),
        ],
    ),
    (
        "csv",
        TABLE,
        [b"1,a", b"2,b\r\n", b'3,"a,b"', b","],
        [
            (b"x,a", "does not fit"),
            (b"1", "does not fit"),
            (b"1,a,b", "does not fit"),
            (b"1,a\n2,b", "one line"),
            (b"", "empty"),
            (b"\xff", "not UTF-8"),
            (None, "no value"),
        ],
    ),
    (
        "cambria",
        "",
        [framed([]), b"1.2.kab\n", b"0.1.x"],
        [(b"1.2.k", "End of stream"), (b"0.1.\xff", "not UTF-8"), (None, "no value")],
    ),
    (
        "avro",
        DEFINITION,
        [avro(RECORD)],
        [(avro(RECORD) + b"x", "behind the value"), (avro(RECORD)[:-1], "end"), (None, "no value")],
    ),
]


def rows(spark: SparkSession, values: list[bytes | None]) -> DataFrame:
    """Return messages of one partition, numbered."""
    found: list[tuple[Any, ...]] = [
        (
            "t",
            0,
            f"1:{n}",
            n,
            b"k",
            None if v is None else bytearray(v),
            {"p": "q"},
            None,
            TIME,
            None,
        )
        for n, v in enumerate(values)
    ]
    return spark.createDataFrame(found, SCHEMA_DDL)


@pytest.mark.parametrize(("form", "schema", "good", "bad"), CASES, ids=[c[0] for c in CASES])
def test_every_message_is_good_or_bad(
    spark: SparkSession,
    form: str,
    schema: str,
    good: list[bytes | None],
    bad: list[tuple[bytes | None, str]],
) -> None:
    values = [*good, *(value for value, _ in bad)]
    spec = SourceSpec(topics=("t",), format=form, schema=schema)
    fine, wrong = decode(rows(spark, values), spec)
    # A message of cambria without records is good, and no row.
    numbers = {row["_index"] for row in fine.select("_index").collect()}
    assert numbers == {n for n, v in enumerate(good) if form != "cambria" or v}
    found = {row["index"]: row for row in wrong.collect()}
    assert sorted(found) == list(range(len(good), len(values)))
    for number, (value, words) in enumerate(bad, len(good)):
        row = found[number]
        assert words in row["error"]
        assert (None if row["value"] is None else bytes(row["value"])) == value
        assert (row["topic"], row["partition"], row["position"]) == ("t", 0, f"1:{number}")


def test_fields_and_what_is_known_of_a_message_are_columns(spark: SparkSession) -> None:
    fine, _ = decode(rows(spark, [b"1.2.kab\n0.1.x"]), SourceSpec(format="cambria"))
    assert [(row["key"], row["value"]) for row in fine.collect()] == [("k", "ab"), (None, "x")]
    fine, _ = decode(rows(spark, [avro(RECORD)]), SourceSpec(format="avro", schema=DEFINITION))
    row = fine.collect()[0]
    assert (row["a"], row["b"], row["c"], row["d"], row["u"]) == (
        1,
        None,
        [bytearray(b"\xff")],
        {"k": 1.5},
        '{"int":3}',
    )
    assert row["in"]["x"] == 2
    assert (row["_topic"], row["_position"], row["_properties"]) == ("t", "1:0", {"p": "q"})


def test_policy_fail_ends_with_the_first_bad_record(spark: SparkSession) -> None:
    from pyspark.errors import PySparkException  # noqa: PLC0415

    from router.pipelines.failures import sentence  # noqa: PLC0415

    spec = SourceSpec(format="json", schema=TABLE)
    fine, _ = decode(rows(spark, [b"{}", b"junk"]), spec, fail=True)
    with pytest.raises(PySparkException) as caught:
        fine.collect()
    assert sentence(caught.value) == (
        "bad record in topic t, partition 0, position 1:1: the value is no JSON object"
    )


def test_dead_letter_keeps_the_bytes_and_says_what_is_wrong(spark: SparkSession) -> None:
    _, bad = decode(rows(spark, [b"\xff"]), SourceSpec(format="text"))
    row = dead_letters(bad, "", "p1").collect()[0]
    assert (row["topic"], bytes(row["key"]), bytes(row["value"])) == ("t.dlq", b"k", b"\xff")
    assert row["properties"] == {
        "p": "q",
        "router-error": "the value is not UTF-8",
        "router-topic": "t",
        "router-partition": "0",
        "router-position": "1:0",
        "router-publish-time": "1767225600000",
        "router-pipeline": "p1",
    }
    assert dead_letters(bad, "graves", "p1").collect()[0]["topic"] == "graves"


def test_columns_are_inferred_once_and_kept(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from router.pipelines import source  # noqa: PLC0415

    values: list[bytes | None] = [b'{"id":1,"in":{"x":"a"}}', b"junk", None]
    monkeypatch.setattr(source, "frame", lambda *_given: rows(spark, values))
    settings = load(None, {}, {"backend.url": "memory"})
    node = open_node(settings)
    backend = open_backend("memory", settings, node)
    pipeline = Pipeline("p", SourceSpec(topics=("t",), format="json"))

    def schema() -> str:
        return resolved(spark, pipeline, tmp_path, backend, settings)["records"].schema

    assert schema() == "`id` bigint, `in` struct<`x`: string>"
    values[:] = [b'{"other":1}']
    assert schema() == "`id` bigint, `in` struct<`x`: string>"
    (tmp_path / SCHEMA_FILE).unlink()
    assert schema() == "`other` bigint"
    (tmp_path / SCHEMA_FILE).unlink()
    values[:] = [b"junk"]
    with pytest.raises(SettingError, match=r"declare the columns in source\.schema"):
        schema()
    assert not (tmp_path / SCHEMA_FILE).exists()
    backend.close()
    node.close()
