"""Records as bytes: numbers, headers, and what is refused."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.util import encode_varint

from router.wire.kafka.errors import InvalidRecordsError
from router.wire.kafka.records import (
    NO_HEADERS,
    KafkaRecord,
    check_records,
    first_key,
    read_headers,
    read_records,
    read_varint,
    varint,
    write_headers,
    write_record,
)

RECORD = write_record(0, 5, b"key", b"value", write_headers([(b"n", b"v"), (b"m", None)]))


@given(value=st.integers(-(2**63), 2**63 - 1), before=st.binary(max_size=3))
def test_numbers_come_back(value: int, before: bytes) -> None:
    data = before + varint(value)
    assert read_varint(data, len(before)) == (value, len(data))


@given(value=st.integers(-(2**31), 2**31 - 1))
def test_numbers_are_as_kafka_writes_them(value: int) -> None:
    wanted = bytearray()
    encode_varint(value, wanted.append)
    assert varint(value) == bytes(wanted)


def test_a_number_without_an_end_is_refused() -> None:
    for data in (b"\x80" * 11 + b"\1", b"\xff" * 10_000):
        with pytest.raises(ValueError, match="ten bytes"):
            read_varint(data, 0)


def test_records_that_end_early_are_refused_at_every_byte() -> None:
    data = RECORD * 3
    assert (
        list(read_records(data, 3))
        == [KafkaRecord(0, 5, b"key", b"value", [(b"n", b"v"), (b"m", None)])] * 3
    )
    for end in range(len(data)):
        with pytest.raises(InvalidRecordsError):
            list(read_records(data[:end], 3))
        for count in (0, 1, 2, 4):
            if end != count * len(RECORD):
                with pytest.raises(InvalidRecordsError):
                    list(read_records(data[:end], count))


@given(data=st.binary(max_size=60), count=st.integers(0, 2**31 - 1))
def test_any_bytes_are_records_or_refused(data: bytes, count: int) -> None:
    try:
        found = list(read_records(data, count))
    except InvalidRecordsError:
        return
    assert len(found) == count


@given(data=st.data())
def test_a_changed_byte_never_makes_a_record_longer_than_its_data(data: st.DataObject) -> None:
    changed = bytearray(RECORD * 2)
    changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        for record in read_records(bytes(changed), 2):
            size = len(record.key or b"") + len(record.value or b"")
            size += sum(len(name) + len(value or b"") for name, value in record.headers)
            assert size < len(changed)
    except InvalidRecordsError:
        return


@pytest.mark.parametrize(
    "body",
    [
        b"\0\0\0\1\1" + varint(2**40),  # headers without end
        b"\0\0\0\1\1" + varint(-1),
        b"\0\0\0\1" + varint(2**40) + b"v",  # a value without end
        b"\0\0\0" + varint(2**62) + b"k",
        b"\0\0\0\1\1" + varint(1) + varint(-1) + b"\1",  # a header without a name
        b"\0\0\0\1\1" + varint(1) + varint(9) + b"n",
        b"\0\0\0\1\1\0\0",  # more than its fields
        b"",
    ],
)
def test_hostile_lengths_and_counts_are_refused_at_once(body: bytes) -> None:
    data = varint(len(body)) + body
    start = time.process_time()
    with pytest.raises(InvalidRecordsError):
        list(read_records(data + RECORD, 2))
    with pytest.raises(InvalidRecordsError):
        list(read_records(data, 1))
    assert time.process_time() - start < 1


def test_a_record_that_says_it_is_longer_than_its_batch_is_not_handed_out() -> None:
    headers = varint(1) + varint(1) + b"n" + varint(50) + b"short"
    body = b"\0\0\0\1\1" + headers
    data = varint(len(body) + 45) + body
    found: list[KafkaRecord] = []
    with pytest.raises(InvalidRecordsError):
        found += read_records(data, 1)
    assert found == []


def test_offsets_have_to_be_dense() -> None:
    records = [write_record(place, 0, None, b"v") for place in range(300)]
    check_records(b"".join(records), 300)
    for wrong in ([0, 2], [1], [0, 0], [1, 0]):
        data = b"".join(records[place] for place in wrong)
        with pytest.raises(InvalidRecordsError, match="says that it has the number"):
            check_records(data, len(wrong))


LONG = b"v" * 300
NEGATIVE = {
    "short": bytes([RECORD[0] | 1]) + RECORD[1:],
    "long": bytes([write_record(0, 0, None, LONG)[0] | 1]) + write_record(0, 0, None, LONG)[1:],
}
ODD_NUMBERS = {
    **{f"negative-{name}": data for name, data in NEGATIVE.items()},
    "timestamp": b"\0" + varint(1 << 64) + b"\0\1\1\0",
    "key": b"\0\0\0\x82\x80\x80\x80\x80\0k\1\0",
    "value": b"\0\0\0\1\x82\x80\x80\x80\x80\0v\0",
    "headers": b"\0\0\0\1\1\x82\x80\x80\x80\x80\0\2h\1",
    "header": b"\0\0\0\1\1\2\x82\x80\x80\x80\x80\0h\1",
    "length": b"\x8c\x80\x80\x80\x80\0\0\0\0\1\1\0",
}


@pytest.mark.parametrize("name", ODD_NUMBERS)
def test_numbers_that_no_reader_of_java_takes_are_refused(name: str) -> None:
    data = ODD_NUMBERS[name]
    if name in {"timestamp", "key", "value", "headers", "header"}:
        data = varint(len(data)) + data
    with pytest.raises(InvalidRecordsError):
        check_records(data, 1)


@given(data=st.data())
def test_what_is_stored_can_be_read(data: st.DataObject) -> None:
    made = bytearray(b"".join((RECORD, write_record(1, 300, None, LONG))))
    for _ in range(data.draw(st.integers(0, 3))):
        made[data.draw(st.integers(0, len(made) - 1))] = data.draw(st.integers(0, 255))
    with suppress(InvalidRecordsError):
        check_records(bytes(made), 2)
        assert [record.offset for record in read_records(bytes(made), 2)] == [0, 1]


def test_headers_come_back_as_they_were() -> None:
    headers = [(b"", b""), (b"a", None), (b"a", b"\xff"), (b"\xff", b"x" * 200)]
    data = write_headers(headers)
    assert read_headers(data, 0, len(data)) == headers
    assert read_headers(b"\0", 0, 1) == []
    (record,) = read_records(write_record(0, 0, None, None), 1)
    assert record == (0, 0, None, None, NO_HEADERS)


@given(key=st.none() | st.binary(max_size=300), time_delta=st.integers(-(2**62), 2**62))
def test_the_first_key_is_found_in_as_much_as_holds_it(key: bytes | None, time_delta: int) -> None:
    data = write_record(0, time_delta, key, b"value" * 9)
    end = data.index(b"value")
    assert first_key(data[:end]) == key
    if key:
        with pytest.raises(InvalidRecordsError):
            first_key(data[: data.index(b"value") - 3])
