"""What a frame that is written to topics may hold, and the messages that it becomes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from router.errors import SettingError
from router.pipelines.rows import ARROW_KAFKA_HEADERS, Layout
from router.pipelines.source.options import Options
from router.pipelines.source.writing import check_columns, messages

OPTIONS = Options.of_texts({"path": "orders", "checkpointLocation": "/tmp/checkpoint"})  # noqa: S108


@pytest.mark.parametrize("layout", Layout)
def test_frame_of_the_source_may_be_written_as_it_is(layout: Layout) -> None:
    check_columns(OPTIONS, StructType.fromDDL(layout.value))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("value STRING, colour STRING", "column colour: a message has"),
        ("value INT", "column value is int"),
        ("value STRING, headers MAP<STRING, STRING>", "column headers is map"),
        ("key STRING", "needs a column `value`"),
        (
            "value STRING, properties MAP<STRING, STRING>,"
            " headers ARRAY<STRUCT<key: STRING, value: BINARY>>",
            "say the same",
        ),
    ],
)
def test_columns_that_no_message_has_are_refused(columns: str, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        check_columns(OPTIONS, StructType.fromDDL(columns))


def rows(*headers: Any) -> pa.RecordBatch:
    """Return rows in the columns of Kafka's connector."""
    told = [
        *([b"k"] * len(headers), [b"v"] * len(headers), ["there"] * len(headers)),
        *([0] * len(headers), [0] * len(headers), [None] * len(headers), [0] * len(headers)),
        headers,
    ]
    arrays = [pa.array(column, f.type) for column, f in zip(told, ARROW_KAFKA_HEADERS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW_KAFKA_HEADERS)


def test_headers_become_properties_of_which_the_last_counts() -> None:
    headers = [
        {"key": "a", "value": b"1"},
        {"key": "b", "value": None},
        {"key": "a", "value": b"2"},
    ]
    first, second = messages(rows(headers, None), "")
    assert first[0] == "there"
    assert (first[1].value, first[1].key) == (b"v", b"k")
    assert first[1].properties == {"a": "2"}
    assert second[1].properties == {}


def test_header_that_is_no_text_is_refused() -> None:
    with pytest.raises(SettingError, match="no UTF-8"):
        list(messages(rows([{"key": "a", "value": b"\xff"}]), ""))


def test_topic_of_the_options_goes_before_that_of_the_row() -> None:
    ((topic, _),) = messages(rows(None), OPTIONS.topic)
    assert topic == "orders"
