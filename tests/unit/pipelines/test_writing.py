"""What a frame that is written to topics may hold, and the messages that it becomes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from router.errors import SettingError
from router.pipelines.source.options import SourceOptions
from router.pipelines.source.writing import check_columns, messages
from router.pipelines.source_columns import (
    ARROW,
    ARROW_KAFKA,
    ARROW_KAFKA_HEADERS,
    Gathered,
    Layout,
)
from router.wire.pulsar import Columns

OPTIONS = SourceOptions.of_texts({"path": "orders", "checkpointLocation": "checkpoint"})
TEXT, BINARY = StringType(), BinaryType()
TEXTS = MapType(TEXT, TEXT)
HEADERS = ArrayType(StructType([StructField("key", TEXT), StructField("value", BINARY)]))


@pytest.mark.parametrize("schema", [ARROW, ARROW_KAFKA, ARROW_KAFKA_HEADERS])
def test_frame_of_the_source_may_be_written_as_it_is(schema: pa.Schema) -> None:
    check_columns(OPTIONS, from_arrow_schema(schema))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"value": TEXT, "colour": TEXT}, "column colour: a message has"),
        ({"value": IntegerType()}, "column value is int"),
        ({"value": TEXT, "headers": TEXTS}, "column headers is map"),
        ({"key": TEXT}, "needs a column `value`"),
        ({"value": TEXT, "properties": TEXTS, "headers": HEADERS}, "say the same"),
    ],
)
def test_columns_that_no_message_has_are_refused(columns: dict[str, Any], said: str) -> None:
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    with pytest.raises(SettingError, match=said):
        check_columns(OPTIONS, schema)


def rows(*headers: Any) -> pa.RecordBatch:
    """Return rows in the columns of Kafka's connector."""
    told = [
        *([b"k"] * len(headers), [b"v"] * len(headers), ["there"] * len(headers)),
        *([0] * len(headers), [0] * len(headers), [None] * len(headers), [0] * len(headers)),
        headers,
    ]
    arrays = [pa.array(column, f.type) for column, f in zip(told, ARROW_KAFKA_HEADERS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW_KAFKA_HEADERS)


def test_headers_become_properties_which_are_headers_again() -> None:
    headers: list[dict[str, Any]] = [
        {"key": "a", "value": b"1"},
        {"key": "b", "value": None},
        {"key": "a", "value": b"2"},
    ]
    first, second = messages(rows(headers, None), "")
    assert first[0] == "there"
    assert (first[1].value, first[1].key) == (b"v", b"k")
    assert first[1].properties == {"a": "2", "router-headers": '[["a","1"],["a","2"]]'}
    assert second[1].properties == {}
    gathered = Gathered("t", 0, Layout.KAFKA_WITH_HEADERS)
    properties = [one.properties for _, one in (first, second)]
    columns = Columns(range(2), [None, None], [b"", b""], properties, [None, None], 1, 2)
    gathered.add(columns, "1:0", None)
    shown = gathered.take().column("headers").to_pylist()
    assert shown == [[one for one in headers if one["value"] is not None], None]


def test_header_that_is_no_text_is_refused() -> None:
    with pytest.raises(SettingError, match="no UTF-8"):
        list(messages(rows([{"key": "a", "value": b"\xff"}]), ""))


def test_topic_of_the_options_goes_before_that_of_the_row() -> None:
    ((topic, _),) = messages(rows(None), OPTIONS.topic)
    assert topic == "orders"
