"""The columns in which every source gives its messages, whichever store they come from.

`topic` is the local name in the default namespace and the full name elsewhere; `partition` counts
from 0, and a topic without partitions has one. `position` is `ledger:entry`, with `:index` inside a
batch entry, or Kafka's offset; `index` is the message's number in its partition, null where the
store does not count them. A null value is a message that has none. `schema_version` is the version
of the topic's schema that a message was written with, null for none.

The rows have these columns, or those of Spark's Kafka connector, as the layout says: `offset` is
the index there, `timestamp` the time of publishing, and `headers` are the properties.

Messages are gathered column by column and become Arrow arrays at once: the alternative, a Python
row for each message that Spark turns into columns again, takes six times as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import chain, repeat, starmap
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa
from pyarrow.compute import binary_join_element_wise, run_end_decode

from router.wire.pulsar import Columns
from router.wire.repeated_headers import as_pairs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

T = TypeVar("T")
_PlacedEntry = tuple[Columns, str, int | None, int]
"""An entry, its position, the number of its first message, and how many rows end with it."""

SCHEMA_DDL: Final = (
    "topic STRING, partition INT, position STRING, index BIGINT, key BINARY, value BINARY,"
    " properties MAP<STRING, STRING>, event_time TIMESTAMP, publish_time TIMESTAMP,"
    " schema_version BIGINT"
)
COLUMNS: Final = tuple(column.split()[0] for column in SCHEMA_DDL.split(", ") if column[0] != "S")

KAFKA_DDL: Final = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP,"
    " timestampType INT"
)
HEADERS_DDL: Final = "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
CREATE_TIME: Final = 0
"""Kafka's number for timestamps that publishers give."""

ROW: Final = 64
"""What a row takes besides its value, key and properties, about."""
_PROPERTIES: Final = pa.map_(pa.string(), pa.string())
_LONG: Final = 64
"""Messages of an entry that are worth calls of Arrow's own: a text for each costs as much as all
else here."""
_WITHIN: Final = pa.array(map(str, range(1_000)))
_TIME: Final = pa.timestamp("us", tz="UTC")
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_KAFKA_FIELDS: Final = [
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", _TIME),
    ("timestampType", pa.int32()),
]
ARROW_KAFKA: Final = pa.schema(_KAFKA_FIELDS)
ARROW_KAFKA_HEADERS: Final = pa.schema([*_KAFKA_FIELDS, ("headers", _HEADERS)])
ARROW: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("position", pa.string()),
        ("index", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("properties", _PROPERTIES),
        ("event_time", _TIME),
        ("publish_time", _TIME),
        ("schema_version", pa.int64()),
    ]
)
# Kafka's headers as the router's Kafka backend reads them: the last one of a name counts, our own
# say what a record has no place for. They are bytes that may be no UTF-8; Spark reads leniently.
_LAST_HEADERS: Final = (
    "filter(coalesce(headers, array()), (h, i) -> NOT exists("
    "slice(headers, i + 2, size(headers)), later -> later.key = h.key))"
)
_EVENT_TIME: Final = "router-event-time"
_EVENT_HEADER: Final = (
    f"try_cast(cast(try_element_at(filter(headers, h -> h.key = '{_EVENT_TIME}'), -1).value"
    " AS STRING) AS BIGINT)"
)
_VERSION_BYTES: Final = 8
_VERSION_HEADER: Final = (
    "try_element_at(filter(headers, h -> h.key = 'router-schema-version'), -1).value"
)
# The first millisecond of the year 1, the last one of the year 9999.
_LEAST_MS: Final = -62_135_596_800_000
_MAX_MS: Final = 253_402_300_799_999
_HIDDEN: Final = (
    f"('{_EVENT_TIME}', 'router-sequence', 'router-schema-version', 'router-replicate-to')"
)
KAFKA: Final = (
    "topic",
    "partition",
    "cast(offset AS STRING) AS position",
    "offset AS index",
    "key",
    "value",
    f"map_from_entries(transform(filter({_LAST_HEADERS}, h -> h.key NOT IN {_HIDDEN}),"
    " h -> struct(h.key, coalesce(cast(h.value AS STRING), '')))) AS properties",
    # Anybody may have written the header; a number that no time has would end the query.
    f"timestamp_millis(CASE WHEN {_EVENT_HEADER} BETWEEN {_LEAST_MS} AND {_MAX_MS}"
    f" THEN {_EVENT_HEADER} END) AS event_time",
    "timestamp AS publish_time",
    f"CASE WHEN octet_length({_VERSION_HEADER}) = {_VERSION_BYTES}"
    f" THEN try_cast(conv(hex({_VERSION_HEADER}), 16, 10) AS BIGINT) END AS schema_version",
)


def from_kafka(frame: DataFrame) -> DataFrame:
    """Return the columns of Spark's own Kafka connector, read with headers, as these columns."""
    return frame.selectExpr(*KAFKA)


class Layout(Enum):
    """Which columns rows have."""

    ROUTER = SCHEMA_DDL
    KAFKA = KAFKA_DDL
    KAFKA_WITH_HEADERS = f"{KAFKA_DDL}, {HEADERS_DDL}"


class Gathered:
    """Messages of one partition, gathered until they are taken as one record batch."""

    __slots__ = ("_entries", "_layout", "_partition", "_topic", "rows", "size")

    def __init__(self, topic: str, partition: int, layout: Layout = Layout.ROUTER) -> None:
        self._topic = topic
        self._partition = partition
        self._layout = layout
        self.rows = self.size = 0
        self._entries: list[_PlacedEntry] = []

    def add(self, entry: Columns, place: str, first_index: int | None) -> None:
        """Add the messages of an entry; `first_index` is the number of its first one, if known."""
        count = len(entry.values)
        if not count:
            return
        self.rows += count
        self._entries.append((entry, place, first_index, self.rows))
        self.size += ROW * count + sum(map(len, filter(None, entry.values)))
        self.size += sum(map(len, filter(None, entry.keys)))
        if any(entry.properties):
            pairs = (pair for one in entry.properties for pair in one.items())
            self.size += sum(len(name) + len(text) for name, text in pairs)

    def take(self) -> pa.RecordBatch:
        """Return what was gathered, and begin again."""
        entries, rows = self._entries, self.rows
        key = pa.array(_joined(one.keys for one, *_ in entries), pa.binary())
        value = pa.array(_joined(one.values for one, *_ in entries), pa.binary())
        properties = _joined(one.properties for one, *_ in entries)
        topic = pa.repeat(pa.scalar(self._topic), rows)
        partition = pa.repeat(pa.scalar(self._partition, pa.int32()), rows)
        index = pa.array(_joined(starmap(_indexes, entries)), pa.int64())
        published = _runs([_microseconds(one.publish_time) for one, *_ in entries], entries, _TIME)
        if self._layout is Layout.ROUTER:
            place = _positions(entries)
            event_time = _times(_joined(one.event_times for one, *_ in entries))
            arrays = [topic, partition, place, index, key, value, _maps(properties), event_time]
            versions = [version_number(one.schema_version) for one, *_ in entries]
            arrays += [published, _runs(versions, entries, pa.int64())]
            taken = pa.RecordBatch.from_arrays(arrays, schema=ARROW)
        else:
            kind = pa.repeat(pa.scalar(CREATE_TIME, pa.int32()), rows)
            arrays, schema = [key, value, topic, partition, index, published, kind], ARROW_KAFKA
            if self._layout is Layout.KAFKA_WITH_HEADERS:
                arrays, schema = [*arrays, _headers(properties)], ARROW_KAFKA_HEADERS
            taken = pa.RecordBatch.from_arrays(arrays, schema=schema)
        self._entries = []
        self.rows = self.size = 0
        return taken


def _joined(columns: Iterable[Iterable[T]]) -> list[T]:
    return list(chain.from_iterable(columns))


def _indexes(
    entry: Columns, _place: str, first_index: int | None, _end: int
) -> Iterable[int | None]:
    places = entry.places
    if places[0] < 0 or first_index is None:
        return repeat(first_index, len(places))
    if isinstance(places, range):
        return range(first_index, first_index + len(places))
    return [first_index + within for within in places]


def _positions(entries: Sequence[_PlacedEntry]) -> pa.Array:
    if entries[-1][-1] < _LONG * len(entries):
        return pa.array(_joined(starmap(_places, entries)), pa.string())
    return pa.concat_arrays([_long_positions(*entry) for entry in entries])


def _long_positions(entry: Columns, place: str, first_index: int | None, end: int) -> pa.Array:
    places = entry.places
    if isinstance(places, range) and len(places) <= len(_WITHIN):
        return binary_join_element_wise(place, _WITHIN[: len(places)], ":")
    return pa.array(_places(entry, place, first_index, end), pa.string())


def _places(entry: Columns, place: str, _first: int | None, _end: int) -> Iterable[str]:
    if entry.places[0] < 0:
        return repeat(place, len(entry.places))
    return [f"{place}:{within}" for within in entry.places]


def _runs(values: Sequence[int | None], entries: Sequence[_PlacedEntry], kind: Any) -> pa.Array:
    """Return what is one for all messages of an entry, for each of them."""
    ends = pa.array([end for *_, end in entries], pa.int32())
    return run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, pa.array(values, kind)))


def _microseconds(time_ms: int | None) -> int | None:
    """Return a time in Spark's unit; null: there is none, or Spark cannot hold it."""
    return time_ms * 1000 if time_ms and time_ms <= _MAX_MS else None


def version_number(version: bytes) -> int | None:
    """Return the version of a schema as a number, None: there is none that a topic's schema has."""
    number = int.from_bytes(version) if len(version) == _VERSION_BYTES else None
    return number if number is not None and number < 1 << 63 else None


def version_bytes(number: int) -> bytes:
    """Return the version of a schema as stores have it."""
    return number.to_bytes(_VERSION_BYTES)


def _headers(properties: Sequence[Any]) -> pa.Array:
    """Return properties as Spark's Kafka connector has headers: null for a message without any."""
    rows = [
        [{"key": name, "value": text.encode()} for name, text in as_pairs(one)] or None
        for one in properties
    ]
    return pa.array(rows, _HEADERS)


def _maps(properties: Sequence[Any]) -> pa.Array:
    if not any(properties):
        none, starts = pa.array([], pa.string()), pa.scalar(0, pa.int32())
        return pa.MapArray.from_arrays(pa.repeat(starts, len(properties) + 1), none, none)
    return pa.array([list(one.items()) for one in properties], _PROPERTIES)


def _times(times_ms: Sequence[int | None]) -> pa.Array:
    if not any(times_ms):
        return pa.nulls(len(times_ms), _TIME)
    return pa.array(list(map(_microseconds, times_ms)), _TIME)
