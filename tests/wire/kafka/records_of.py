"""Generated records, and what other Kafka clients make of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatch as CompiledBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as CompiledBuilder
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from router.wire.kafka.record_batches import build_batch
from router.wire.kafka.records import KafkaRecord, write_headers, write_record

NOW = 1_700_000_000_000
CODECS = range(5)

_names = st.text(st.characters(codec="utf-8"), max_size=6)
_contents = st.none() | st.binary(max_size=200) | st.sampled_from([b"v" * 70, bytes(9_000)])
_headers = st.lists(
    st.tuples(_names.map(str.encode), st.none() | st.binary(max_size=9)), max_size=3
)
_times = st.integers(-(2**40), 2**40)


@st.composite
def record_lists(draw: st.DrawFn, max_size: int = 6) -> list[KafkaRecord]:
    """Return records of one batch; the first one has its time."""
    bodies = st.lists(st.tuples(_times, _contents, _contents, _headers), min_size=1)
    found = draw(bodies)[:max_size]
    return [
        KafkaRecord(place, time if place else 0, key, value, headers)
        for place, (time, key, value, headers) in enumerate(found)
    ]


def batch_of(records: Sequence[KafkaRecord], codec: int = 0, **fields: Any) -> bytes:
    """Return a batch of these records as this codec writes it."""
    latest = max(record.timestamp for record in records)
    written = [
        write_record(offset, time, key, value, write_headers(headers))
        for offset, time, key, value, headers in records
    ]
    return bytes(build_batch(written, NOW, NOW + latest, codec=codec, **fields))


def other_batch(builder: Any, records: Sequence[KafkaRecord], codec: int = 0) -> bytes:
    """Return a batch of these records as another client's builder writes it."""
    made = builder(2, codec, False, -1, -1, -1, 1 << 24)
    for offset, time, key, value, headers in records:
        named = [(name.decode(), content) for name, content in headers]
        made.append(offset, NOW + time, key, value, named)
    return bytes(made.build())


def other_records(reader: Any, batch: bytes) -> list[KafkaRecord]:
    """Return the records of a batch as another client reads them."""
    found = reader(batch)
    assert found.validate_crc()
    return [
        KafkaRecord(
            one.offset - found.base_offset,
            one.timestamp - NOW,
            one.key,
            one.value,
            [(name.encode(), content) for name, content in one.headers],
        )
        for one in found
    ]


READERS = {"kafka-python": DefaultRecordBatch, "aiokafka": CompiledBatch}
BUILDERS = {"kafka-python": DefaultRecordBatchBuilder, "aiokafka": CompiledBuilder}
OTHER_CODECS = {"kafka-python": (0, 1, 3, 4), "aiokafka": (0, 1, 2, 3, 4)}
"""kafka-python takes snappy from a package that wants a system library."""
