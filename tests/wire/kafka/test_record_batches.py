"""Record batches beside the builders and readers of kafka-python and aiokafka (in C)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.wire.kafka.errors import (
    CorruptRecordsError,
    InvalidRecordsError,
    OldRecordFormatError,
    OversizedRecordsError,
    RecordsError,
    UnknownCompressionError,
)
from router.wire.kafka.record_batches import (
    CONTROL,
    HEADER_BYTES,
    NO_PRODUCER,
    PREFIX_BYTES,
    TRANSACTIONAL,
    AbortedTransactions,
    BatchHeader,
    build_batch,
    check_batch,
    empty_batch,
    next_offset,
    open_batch,
    read_header,
    sign_batch,
    verify_records,
)
from router.wire.kafka.records import KafkaRecord, read_records, write_record
from tests.wire.kafka.batches import batch_prefix, split_batches
from tests.wire.kafka.records_of import (
    BUILDERS,
    CODECS,
    NOW,
    OTHER_CODECS,
    READERS,
    batch_of,
    other_batch,
    other_records,
    record_lists,
)

LIMIT = 1 << 20
ONE = [KafkaRecord(0, 0, b"k", b"v", [])]
THREE = [KafkaRecord(place, place, b"key", b"value" * 9, [(b"h", None)]) for place in range(3)]
Change = Callable[[bytearray], None]


def opened(batch: bytes) -> list[KafkaRecord]:
    header = check_batch(batch)
    assert header.size == len(batch)
    return list(read_records(open_batch(header, batch, LIMIT), header.records))


def patched(batch: bytes, at: int, data: bytes) -> bytes:
    """Return a batch with other bytes at a place, and the CRC of these."""
    changed = bytearray(batch)
    changed[at : at + len(data)] = data
    sign_batch(changed)
    return bytes(changed)


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
@given(records=record_lists())
def test_records_survive_each_compression(codec: int, records: list[KafkaRecord]) -> None:
    assert opened(batch_of(records, codec)) == [
        record._replace(headers=record.headers or ()) for record in records
    ]


@pytest.mark.slow
@pytest.mark.parametrize("client", READERS)
@given(records=record_lists(), data=st.data())
def test_other_clients_read_what_is_written(
    client: str, records: list[KafkaRecord], data: st.DataObject
) -> None:
    codec = data.draw(st.sampled_from(OTHER_CODECS[client]))
    assert other_records(READERS[client], batch_of(records, codec)) == records


@pytest.mark.slow
@pytest.mark.parametrize("builder", BUILDERS.values(), ids=BUILDERS.keys())
@given(records=record_lists())
def test_bytes_are_those_of_other_clients(builder: Any, records: list[KafkaRecord]) -> None:
    assert batch_of(records, leader_epoch=0) == patched_epoch(other_batch(builder, records))


def patched_epoch(batch: bytes) -> bytes:
    return batch[:12] + bytes(4) + batch[16:]


@pytest.mark.slow
@pytest.mark.parametrize("client", BUILDERS)
@given(records=record_lists(), data=st.data())
def test_what_other_clients_write_is_read(
    client: str, records: list[KafkaRecord], data: st.DataObject
) -> None:
    codec = data.draw(st.sampled_from(OTHER_CODECS[client]))
    found = opened(other_batch(BUILDERS[client], records, codec))
    assert [record._replace(headers=list(record.headers)) for record in found] == records


def test_the_header_has_what_the_producer_says() -> None:
    batch = batch_of(THREE, 4, producer=(9, 3, 40), attributes=TRANSACTIONAL)
    header = check_batch(b"before" + batch, 6)
    assert header.size == len(batch)
    assert (header.codec, header.records, header.last_offset, header.magic) == (4, 3, 2, 2)
    assert header[9:12] == (9, 3, 40)
    assert (header.is_transactional, header.is_control, header.has_append_time) == (
        True,
        False,
        False,
    )
    assert (header.base_timestamp, header.max_timestamp) == (NOW, NOW + 2)
    assert read_header(batch_of(ONE))[9:12] == NO_PRODUCER


@pytest.mark.parametrize(
    ("client", "codec"), [(client, codec) for client in READERS for codec in OTHER_CODECS[client]]
)
def test_a_broker_gives_a_batch_its_place_without_a_new_crc(client: str, codec: int) -> None:
    batch = batch_of(THREE, codec)
    placed = batch_prefix(read_header(batch), 1 << 40, 17) + batch[PREFIX_BYTES:]
    header = check_batch(placed)
    assert (header.base_offset, header.leader_epoch) == (1 << 40, 17)
    found: Any = READERS[client](placed)
    assert found.validate_crc()
    assert [one.offset for one in found] == [(1 << 40) + place for place in range(3)]


def test_batches_of_a_fetch_are_told_apart_and_a_last_one_may_be_cut() -> None:
    batches = [batch_of(THREE), batch_of(ONE, 1, base_offset=3), batch_of(THREE, base_offset=4)]
    data = b"".join(batches)
    for end in range(len(data) + 1):
        whole = [one for one in (1, 2, 3) if sum(map(len, batches[:one])) <= end]
        found = list(split_batches(data[:end]))
        assert [bytes(batch) for _, batch in found] == batches[: len(whole)]
        assert next_offset(data[:end], 100) == [100, 3, 4, 7][len(whole)]


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_that_ends_early_is_refused_at_every_byte(codec: int) -> None:
    batch = batch_of(THREE, codec)
    for end in range(len(batch)):
        with pytest.raises(CorruptRecordsError):
            check_batch(batch[:end])
    for end in range(HEADER_BYTES, len(batch)):
        shortened = bytearray(batch[:end])
        shortened[8:12] = (end - 12).to_bytes(4)
        sign_batch(shortened)
        header = check_batch(shortened)
        with pytest.raises(RecordsError):
            verify_records(header, shortened, LIMIT)


@pytest.mark.slow
@given(records=record_lists(3), place=st.integers(0, 1 << 20), bit=st.integers(0, 7))
def test_a_changed_bit_is_found(records: list[KafkaRecord], place: int, bit: int) -> None:
    batch = bytearray(batch_of(records))
    batch[16 + place % (len(batch) - 16)] ^= 1 << bit
    with pytest.raises(RecordsError):
        check_batch(batch)


@pytest.mark.parametrize(
    ("batch", "error", "code"),
    [
        (patched(batch_of(ONE), 8, (1 << 30).to_bytes(4)), CorruptRecordsError, 2),
        (patched(batch_of(ONE), 8, (-1 & 0xFFFFFFFF).to_bytes(4)), CorruptRecordsError, 2),
        (patched(batch_of(ONE), 8, bytes(4)), CorruptRecordsError, 2),
        (patched(batch_of(ONE), 16, b"\3"), CorruptRecordsError, 2),
        (patched(batch_of(ONE), 16, b"\1"), OldRecordFormatError, 87),
        (patched(batch_of(ONE), 16, b"\0"), OldRecordFormatError, 87),
        (bytes(16) + b"\1" + bytes(9), OldRecordFormatError, 87),
        (patched(batch_of(ONE), 22, b"\5"), UnknownCompressionError, 76),
        (patched(batch_of(ONE), 23, (5).to_bytes(4)), InvalidRecordsError, 87),
        (patched(batch_of(THREE), 57, (2).to_bytes(4)), InvalidRecordsError, 87),
        (empty_batch(1, NOW), InvalidRecordsError, 87),
        (patched(batch_of(ONE), 23, b"\xff" * 4), InvalidRecordsError, 87),
    ],
)
def test_a_header_that_makes_no_sense_is_refused_by_its_cause(
    batch: bytes, error: type[RecordsError], code: int
) -> None:
    with pytest.raises(error) as found:
        check_batch(batch)
    assert found.value.error_code == code


def claims(batch: bytes, count: int) -> bytes:
    """Return a batch that says it has so many records."""
    return patched(patched(batch, 57, count.to_bytes(4)), 23, (count - 1).to_bytes(4))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("count", [1, 2, 4, 1 << 30, (1 << 31) - 1])
def test_a_count_that_the_records_do_not_have_is_refused(codec: int, count: int) -> None:
    batch = claims(batch_of(THREE, codec), count)
    header = check_batch(batch)
    with pytest.raises(InvalidRecordsError):
        verify_records(header, batch, LIMIT)


def test_offsets_that_are_not_dense_are_refused() -> None:
    written = [write_record(place, 0, None, b"v") for place in (0, 2)]
    batch = build_batch(written, NOW, NOW)
    header = check_batch(batch)
    with pytest.raises(InvalidRecordsError, match="record 1 says that it has the number 2"):
        verify_records(header, batch, LIMIT)


@given(noise=st.binary(min_size=1, max_size=80), at=st.integers(0, 60))
def test_records_that_make_no_sense_are_refused_or_as_many_as_the_batch_says(
    noise: bytes, at: int
) -> None:
    batch = bytearray(batch_of(THREE))
    batch[HEADER_BYTES + at : HEADER_BYTES + at + len(noise)] = noise
    batch[8:12] = (len(batch) - 12).to_bytes(4)
    sign_batch(batch)
    header = check_batch(batch)
    try:
        verify_records(header, batch, LIMIT)
    except InvalidRecordsError:
        return
    assert len(opened(bytes(batch))) == 3


@pytest.mark.parametrize("codec", CODECS)
def test_records_above_the_limit_are_refused(codec: int) -> None:
    batch = batch_of([KafkaRecord(0, 0, None, bytes(10_000), [])], codec)
    header = check_batch(batch)
    size = len(open_batch(header, batch, 20_000))
    assert len(open_batch(header, batch, size)) == size
    with pytest.raises(OversizedRecordsError) as found:
        open_batch(header, batch, size - 1)
    assert found.value.error_code == 10


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS.keys())
def test_other_clients_find_nothing_in_an_empty_batch_and_go_on_behind_it(reader: Any) -> None:
    batch = empty_batch(7, NOW)
    header = read_header(batch)
    assert (header.records, header.last_offset) == (0, 6)
    assert other_records(reader, batch) == []
    found = reader(batch)
    assert found.next_offset == 7


def test_batches_of_aborted_transactions_are_hidden_up_to_their_end() -> None:
    def header(offset: int, producer: int, attributes: int = TRANSACTIONAL) -> BatchHeader:
        batch = batch_of(ONE, base_offset=offset, producer=(producer, 0, 0), attributes=attributes)
        return read_header(batch)

    end = TRANSACTIONAL | CONTROL
    transactions = AbortedTransactions([(1, 6), (1, 0)])
    found = [
        transactions.hides(header(*one))
        for one in (
            (0, 1),
            (1, 2),
            (2, 1, end),
            (3, 1),
            (4, 1, end),
            (5, 1, 0),
            (6, 1),
            (7, 2),
            (8, 1, end),
        )
    ]
    assert found == [True, False, True, False, True, False, True, False, True]
