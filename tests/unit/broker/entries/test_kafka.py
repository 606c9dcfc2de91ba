"""What the format `kafka` says of entries, and entries as messages and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.broker.consume.entry_info import OPAQUE_ENTRY, UnreadableEntryError
from router.broker.consume.membership.hashing import murmur3
from router.broker.entries import (
    ENTRY_FORMATS,
    MAX_JOB_BYTES,
    Transcoder,
    kafka,
    prepared_together,
    pulsar,
)
from router.broker.entries.proving import prove_batch
from router.broker.storage import Entry
from router.model import Message
from router.wire.kafka.errors import OversizedRecordsError
from router.wire.kafka.record_batches import (
    LOG_APPEND_TIME,
    build_batch,
    read_header,
    sign_batch,
)
from router.wire.kafka.record_messages import (
    ALL_HEADERS,
    EVENT_TIME,
    REPLICATE_TO,
    SCHEMA_VERSION,
    SEQUENCE,
)
from router.wire.kafka.records import KafkaRecord, write_record
from router.wire.pulsar import MAX_MESSAGE_SIZE, join_payload, pack, unpack
from router.wire.pulsar import pulsar_pb2 as pb
from tests.wire.kafka.records_of import (
    CODECS,
    NOW,
    READERS,
    batch_of,
    other_records,
    record_lists,
)

STORED = NOW + 77
KEYS = st.none() | st.binary(max_size=40)
TEXT = st.text(max_size=5)
PROPERTIES = st.dictionaries(TEXT, TEXT, max_size=3)
TIMES = st.none() | st.integers(1, 2**63 - 1)
VALUES = st.tuples(st.binary(max_size=40), st.just(value=False)) | st.just((b"", True))
MESSAGES = st.builds(
    lambda value, key, properties, time: Message(
        value[0], key, properties, event_time=time, null=value[1]
    ),
    *(VALUES, KEYS, PROPERTIES, TIMES),
)


def entry(payload: bytes, tag: int = kafka.TAG, messages: int = 0) -> Entry:
    count = messages or ENTRY_FORMATS[tag].describe(payload).messages
    return Entry(0, 99, STORED, tag, count, payload)


def as_pulsar(payload: bytes) -> list[Message]:
    """Return what a Pulsar reader makes of a Kafka entry."""
    made = Transcoder(ENTRY_FORMATS).payload(1, entry(payload), pulsar.TAG)
    found = unpack(made, 1 << 24)
    assert {one.publish_time for one in found} == {STORED}
    return [one.message for one in found]


def as_kafka(payload: bytes, messages: int = 0) -> bytes:
    """Return what a Kafka reader is sent of a Pulsar entry."""
    found = entry(payload, pulsar.TAG, messages)
    return Transcoder(ENTRY_FORMATS).payload(1, found, kafka.TAG)


@given(messages=st.lists(MESSAGES, min_size=1, max_size=5))
def test_messages_of_pulsar_come_back_through_a_batch(messages: list[Message]) -> None:
    batch = as_kafka(pack(messages, "p", 3, 1), len(messages))
    found = as_pulsar(batch)
    # A message without an event time has the time at which it was stored.
    wanted = [one._replace(event_time=one.event_time or STORED) for one in messages]
    assert found == wanted


@pytest.mark.slow
@pytest.mark.parametrize("client", READERS)
@given(messages=st.lists(MESSAGES, min_size=1, max_size=5))
def test_kafka_clients_read_entries_of_pulsar(client: str, messages: list[Message]) -> None:
    batch = as_kafka(pack(messages, "p", 3, 1), len(messages))
    assert read_header(batch).records == len(messages)
    found = other_records(READERS[client], batch)
    assert [one.offset for one in found] == list(range(len(messages)))
    for record, message in zip(found, messages, strict=True):
        assert (record.key, record.value) == (
            message.key,
            None if message.null else message.value,
        )
        headers = {name.decode(): (value or b"").decode() for name, value in record.headers}
        assert headers == message.properties
        assert record.timestamp == (message.event_time or STORED) - NOW


@pytest.mark.slow
@given(records=record_lists(), codec=st.sampled_from(CODECS))
def test_records_are_read_by_pulsar_and_written_again(
    records: list[KafkaRecord], codec: int
) -> None:
    found = as_pulsar(batch_of(records, codec))
    assert [one.key for one in found] == [one.key for one in records]
    assert [None if one.null else one.value for one in found] == [one.value for one in records]
    assert [one.event_time for one in found] == [
        NOW + one.timestamp if NOW + one.timestamp > 0 else None for one in records
    ]
    for one, record in zip(found, records, strict=True):
        assert {name.decode() for name, _ in record.headers} <= set(one.properties)
    again = kafka.from_messages(found, NOW)
    headers = [record.headers for record in other_records(READERS["aiokafka"], again)]
    assert headers == [list(record.headers) for record in records]


@pytest.mark.parametrize(
    ("headers", "properties"),
    [
        ([(b"a", b"1"), (b"b", b"2")], {"a": "1", "b": "2"}),
        ([(b"a", b"1"), (b"a", b"2")], {"a": "2", "router-headers": '[["a","1"],["a","2"]]'}),
        ([(b"a", None)], {"a": ""}),
        ([(b"a", b"\xff")], {"a": "\ufffd"}),
        ([(b"\xff", b"x")], {"\ufffd": "x"}),
        ([(b"", b"")], {"": ""}),
    ],
)
def test_headers_are_properties_as_well_as_properties_can(
    headers: Sequence[tuple[bytes, bytes | None]], properties: Mapping[str, str]
) -> None:
    (found,) = as_pulsar(batch_of([KafkaRecord(0, 0, None, b"v", headers)]))
    shown = {name: value for name, value in found.properties.items() if name != ALL_HEADERS}
    assert shown == properties
    lossless = all(value is not None and value.isascii() for _, value in headers)
    lossless &= all(name.isascii() for name, _ in headers)
    assert (ALL_HEADERS in found.properties) is not lossless


@pytest.mark.parametrize("kept", ["no base64", "AAAA", "BgJhAjE=", ""])
def test_kept_headers_that_are_not_those_of_the_properties_are_left_out(kept: str) -> None:
    batch = kafka.from_messages([Message(b"v", None, {"b": "2", ALL_HEADERS: kept})], STORED)
    (record,) = other_records(READERS["aiokafka"], batch)
    assert record.headers == [(b"b", b"2")]


def test_what_the_router_s_own_producers_say_in_headers_is_no_property() -> None:
    headers = [
        (EVENT_TIME.encode(), b"5"),
        (SEQUENCE.encode(), b"6"),
        (SCHEMA_VERSION.encode(), b"\xff\0"),
        (REPLICATE_TO.encode(), b"us,eu"),
        (b"own", b"1"),
    ]
    (found,) = as_pulsar(batch_of([KafkaRecord(0, 0, None, b"v", headers)]))
    wanted = Message(b"v", None, {"own": "1"}, 5, None, 6, b"\xff\0", replicate_to=("us", "eu"))
    assert found == wanted
    (record,) = other_records(READERS["aiokafka"], kafka.from_messages([found], STORED))
    # The time is the record's, and the number of its sender is no matter of readers.
    assert record.headers == [headers[4], headers[2], headers[3]]
    assert record.timestamp == 5 - NOW


def test_a_time_that_a_broker_gave_is_no_event_time() -> None:
    batch = bytearray(batch_of([KafkaRecord(0, 0, None, b"v", [])]))
    batch[22] |= LOG_APPEND_TIME
    sign_batch(batch)
    assert [one.event_time for one in as_pulsar(bytes(batch))] == [None]


@pytest.mark.parametrize("time", [-(2**62), -NOW, 2**63 - 1 - NOW + 1])
def test_a_time_that_pulsar_cannot_have_is_left_out(time: int) -> None:
    records = [write_record(0, 0, None, b"v"), write_record(1, time, None, b"v")]
    batch = bytes(build_batch(records, NOW, NOW))
    assert [one.event_time for one in kafka.to_messages(batch)] == [NOW, None]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("key", [b"key", b"k" * 300, b"k" * 200_000, b"", b"\xff"])
def test_a_batch_has_the_hash_of_its_first_key(codec: int, key: bytes) -> None:
    records = [KafkaRecord(0, 0, key, b"v" * 50_000, []), KafkaRecord(1, 0, b"other", b"v", [])]
    found = kafka.describe(batch_of(records, codec, producer=(7, 2, 40)))
    assert found.key_hash() == murmur3(key)
    assert (found.messages, found.producer) == (2, ("kafka-7-2", 40))
    assert (found.deliver_at_ms, found.chunk) == (0, None)
    assert ENTRY_FORMATS[kafka.TAG].describe_special(b"") is None


def test_batches_without_keys_have_hashes_of_their_own() -> None:
    batches = [batch_of([KafkaRecord(0, 0, None, b"%d" % n, [])]) for n in range(10)]
    assert len({kafka.describe(batch).key_hash() for batch in batches}) == 10
    assert kafka.describe(batches[0]).producer == ("", 0)
    assert all(0 <= kafka.describe(batch).key_hash() < 1 << 31 for batch in batches)


def test_properties_are_those_of_each_record() -> None:
    records = [KafkaRecord(place, 0, None, b"v", [(b"n", b"%d" % place)]) for place in range(3)]
    found = kafka.describe(batch_of(records, 4))
    assert list(found.properties()) == [{"n": "0"}, {"n": "1"}, {"n": "2"}]


BATCH = batch_of([KafkaRecord(place, 0, b"k", b"v", []) for place in range(3)])


@pytest.mark.parametrize(
    "payload",
    [b"", b"no batch", BATCH[:-1], BATCH[:57] + (9).to_bytes(4) + BATCH[61:], BATCH + b"?"],
)
def test_bytes_that_are_no_batch_are_described_and_not_read(payload: bytes) -> None:
    described = kafka.describe(payload)
    assert described.messages >= 1
    assert described.key_hash() >= 0
    if payload != BATCH + b"?":
        with pytest.raises(UnreadableEntryError, match="no Kafka entry"):
            kafka.to_messages(payload)
    assert kafka.describe(b"?") is OPAQUE_ENTRY


def test_an_entry_with_another_count_than_was_stored_is_not_read() -> None:
    with pytest.raises(UnreadableEntryError, match="holds 3 messages, 2 were stored"):
        Transcoder(ENTRY_FORMATS).payload(1, entry(BATCH, messages=2), pulsar.TAG)


def test_what_only_a_pulsar_consumer_can_read_leaves_its_offsets_empty() -> None:
    def metadata(**fields: Any) -> pb.MessageMetadata:
        return pb.MessageMetadata(producer_name="p", sequence_id=7, publish_time=1, **fields)

    for payload in (
        join_payload(metadata(uuid="u", chunk_id=0, num_chunks_from_msg=2), b"part"),
        join_payload(metadata(encryption_keys=[pb.EncryptionKeys(key="k", value=b"")]), b"?"),
    ):
        with pytest.raises(UnreadableEntryError):
            as_kafka(payload)
    found = READERS["aiokafka"](kafka.empty(3, STORED))
    assert (list(found), found.next_offset) == ([], 3)


@pytest.mark.slow
def test_the_largest_batch_that_is_stored_fits_into_an_entry_of_pulsar() -> None:
    count = kafka.MAX_RECORDS
    size = kafka.MAX_RECORDS_BYTES // count - 13
    records = [KafkaRecord(place, place, b"k", bytes(size), []) for place in range(count)]
    batch = batch_of(records)
    assert len(batch) <= kafka.MAX_RECORDS_BYTES
    assert len(pulsar.from_messages(kafka.to_messages(batch), STORED)) <= MAX_MESSAGE_SIZE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("record", "fits"),
    [
        (KafkaRecord(0, 0, None, b"", [(b"h", b"\xff" * 1_300_000)]), False),
        (KafkaRecord(0, 0, None, b"", [(b"h", b"\xff" * 1_100_000)]), True),
        (KafkaRecord(0, 0, None, b"", [(b"h", b"x" * 4_000_000)]), True),
        (KafkaRecord(0, 0, None, b"", [(b"h", b"x" * 2_400_000)] * 2), False),
        (KafkaRecord(0, 0, b"\xff" * 4_000_000, b"", []), False),
        (KafkaRecord(0, 0, b"\xff" * 3_900_000, b"", []), True),
        (KafkaRecord(0, 0, b"x" * 4_000_000, b"", []), True),
        (KafkaRecord(0, 0, None, b"\xff" * 4_000_000, []), True),
    ],
)
def test_a_batch_that_pulsar_clients_could_not_be_sent_is_refused(
    record: KafkaRecord, fits: bool
) -> None:
    batch = batch_of([record])
    if fits:
        prove_batch(read_header(batch), batch, 8 << 20)
        assert len(pulsar.from_messages(kafka.to_messages(batch), STORED)) <= MAX_MESSAGE_SIZE
    else:
        with pytest.raises(OversizedRecordsError):
            prove_batch(read_header(batch), batch, 8 << 20)


def test_records_whose_numbers_have_gaps_are_not_read() -> None:
    records = [write_record(0, 0, None, b"v"), write_record(2, 0, None, b"v")]
    with pytest.raises(UnreadableEntryError, match="number 2"):
        kafka.to_messages(bytes(build_batch(records, NOW, NOW)))


def test_a_batch_of_messages_says_its_latest_time() -> None:
    messages = [Message(b"v", event_time=time) for time in (5, 9, 7)]
    header = read_header(kafka.from_messages(messages, STORED))
    assert (header.base_timestamp, header.max_timestamp) == (5, 9)


@pytest.mark.parametrize("attributes", [0, 1])
def test_records_that_cannot_be_read_have_a_hash_too(attributes: int) -> None:
    batch = bytes(build_batch([b"\xff" * 20], NOW, NOW, attributes=attributes))
    assert kafka.describe(batch).key_hash() == read_header(batch).crc & 0x7FFFFFFF


def test_a_job_holds_its_first_entry_however_large_it_is() -> None:
    large = entry(bytes(MAX_JOB_BYTES + 1), messages=1)
    assert prepared_together([large, large]) == [large]
