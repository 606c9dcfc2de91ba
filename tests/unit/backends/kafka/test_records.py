"""Record batches, against kafka-python's own codec."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence

import crc32c
import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record.util import encode_varint

from router.backends.kafka.records import decode
from router.errors import ReadFailedError
from router.model import Message, Stored
from router.wire.kafka.record_batches import HEADER_BYTES, next_offset
from router.wire.kafka.record_messages import (
    ALL_HEADERS,
    EVENT_TIME,
    REPLICATE_TO,
    SCHEMA_VERSION,
    SEQUENCE,
    as_read,
    read_message,
    weight,
    write_messages,
)
from router.wire.kafka.records import Header, KafkaRecord, varint, write_headers

NOW = 1_700_000_000_000
texts = st.text(st.characters(codec="utf-8"), max_size=5)
keys = st.none() | st.binary(max_size=200)
messages = st.tuples(
    st.binary(max_size=300),
    keys,
    st.dictionaries(texts, texts, max_size=3),
    st.none() | st.integers(0, 2**60),
    st.none(),
    st.none() | st.integers(0, 2**63 - 1),
    st.binary(max_size=9),
    st.just(value=False),
    st.lists(st.sampled_from(["us", "eu", "__local__"]), max_size=2).map(tuple),
).map(lambda parts: Message(*parts)) | keys.map(lambda key: Message(b"", key, null=True))
batches = st.lists(messages, min_size=1, max_size=5)


def stored(data: bytes | bytearray, start: int = 0, **more: object) -> list[Stored]:
    return list(decode(bytes(data), start, -1, **more))  # type: ignore[arg-type]


def kept(*headers: Header) -> str:
    """Return the property that has these headers."""
    return b64encode(write_headers(headers)).decode()


def at(batch: bytearray, offset: int) -> bytes:
    """Return a batch as the broker stores it, at an offset."""
    return offset.to_bytes(8) + batch[8:]


def control(offset: int, producer: int, *, commit: bool) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, True, producer, 0, 0, 1000)
    builder.append(0, NOW, b"\0\0" + int(commit).to_bytes(2), b"", [])
    batch = builder.build()
    batch[22] |= 0x20
    return at(_signed(batch), offset)


def _signed(batch: bytearray) -> bytearray:
    batch[17:21] = crc32c.crc32c(bytes(batch[21:])).to_bytes(4)
    return batch


@pytest.mark.slow
@given(batch=batches)
def test_kafkas_own_reader_reads_what_was_encoded(batch: list[Message]) -> None:
    data = DefaultRecordBatch(write_messages(batch, NOW, (7, 3), 40))
    assert data.validate_crc()
    assert (data.producer_id, data.producer_epoch, data.base_sequence) == (7, 3, 40)
    assert (data.magic, data.is_transactional, data.last_offset_delta) == (2, False, len(batch) - 1)
    for message, record in zip(batch, data, strict=True):
        value = None if message.null else message.value
        assert (record.value, record.key, record.timestamp) == (value, message.key, NOW)
        headers = dict(record.headers)
        for name, number_ in ((EVENT_TIME, message.event_time), (SEQUENCE, message.sequence)):
            if number_ is not None:
                assert headers.pop(name) == b"%d" % number_
        assert headers.pop(SCHEMA_VERSION, b"") == message.schema_version
        assert headers.pop(REPLICATE_TO, b"").decode() == ",".join(message.replicate_to)
        assert {name: text.decode() for name, text in headers.items()} == message.properties


@given(parts=st.lists(batches, max_size=3), skip=st.integers(0, 4))
def test_messages_survive_from_any_offset_on(parts: list[list[Message]], skip: int) -> None:
    data, offset = b"", 100
    for part in parts:
        data += at(write_messages(part, NOW, (7, 3), 0), offset)
        offset += len(part)
    flat = [message for part in parts for message in part]
    found = stored(data, 100 + skip)
    assert [one.message for one in found] == flat[skip:]
    assert [one.position.entry for one in found] == list(range(100 + skip, 100 + len(flat)))
    assert {one.publish_time for one in found} <= {NOW}
    assert next_offset(data, 100) == 100 + len(flat)


own_names = st.sampled_from([ALL_HEADERS, EVENT_TIME, REPLICATE_TO, SCHEMA_VERSION, SEQUENCE])
odd_headers = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"\xff"]) | own_names.map(str.encode),
        st.none() | st.sampled_from([b"", b"5", b"x", b"\xff"]),
    ),
    max_size=4,
)
odd_texts = st.sampled_from(["", "5", "x", "us,eu", "9" * 19]) | odd_headers.map(
    lambda headers: kept(*headers)
)


@given(messages, st.dictionaries(own_names | st.just("a"), odd_texts), odd_headers, st.booleans())
def test_what_is_read_is_known_before_it_is_written(
    message: Message, properties: dict[str, str], headers: list[Header], foreign: bool
) -> None:
    """Of messages that Kafka's clients and publishers of properties made, however odd."""
    message = message._replace(properties={**message.properties, **properties})
    if foreign:
        message = read_message(KafkaRecord(0, 0, b"k", b"v", headers))
    version = message.schema_version
    wanted = as_read(message)
    for one in (message, wanted):
        (found,) = stored(write_messages([one], NOW, (7, 3), 0))
        assert found.message._replace(schema_version=version) == wanted
    if foreign and not any(name.startswith(b"router-") for name, _ in headers):
        assert wanted == message


@given(batch=batches, cut=st.integers(0, 10_000))
def test_a_batch_that_is_cut_short_is_left_for_the_next_fetch(
    batch: list[Message], cut: int
) -> None:
    whole = at(write_messages(batch, NOW, (7, 3), 0), 0)
    data = whole + at(write_messages(batch, NOW, (7, 3), 0), len(batch))[: cut % len(whole)]
    assert [one.message for one in stored(data)] == batch
    assert next_offset(data, 0) == len(batch)


@given(batch=batches, place=st.integers(HEADER_BYTES - 40), bit=st.integers(0, 7))
def test_damage_is_never_served(batch: list[Message], place: int, bit: int) -> None:
    data = bytearray(at(write_messages(batch, NOW, (7, 3), 0), 0))
    data[17 + place % (len(data) - 17)] ^= 1 << bit
    with pytest.raises(ReadFailedError):
        stored(data)


@given(batch=batches, noise=st.binary(min_size=1, max_size=60))
def test_records_that_make_no_sense_are_refused_whatever_their_crc(
    batch: list[Message], noise: bytes
) -> None:
    data = write_messages(batch, NOW, (7, 3), 0)
    data[HEADER_BYTES : HEADER_BYTES + len(noise)] = noise
    data[8:12] = (len(data) - 12).to_bytes(4)
    try:
        found = stored(_signed(data))
    except ReadFailedError:
        return
    assert len(found) == len(batch)


@pytest.mark.parametrize("codec", [1, 3, 4])
def test_compressed_batches_are_read(codec: int) -> None:
    builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 10_000)
    for offset in range(3):
        builder.append(offset, NOW + offset, b"k", b"v" * 500, [("name", b"\xff")])
    found = stored(builder.build())
    assert [one.publish_time for one in found] == [NOW, NOW + 1, NOW + 2]
    assert found[2].message == Message(
        b"v" * 500, b"k", {"name": "\ufffd", ALL_HEADERS: kept((b"name", b"\xff"))}
    )


def test_messages_of_aborted_transactions_are_left_out() -> None:
    def batch(offset: int, producer: int, value: bytes, transactional: bool = True) -> bytes:
        made = write_messages([Message(value)], NOW, (producer, 0), 0, transactional=transactional)
        return at(made, offset)

    data = b"".join(
        (
            batch(0, 1, b"aborted"),
            batch(1, 2, b"committed"),
            control(2, 1, commit=False),
            batch(3, 1, b"again"),
            control(4, 1, commit=True),
            control(5, 2, commit=True),
            batch(6, 1, b"plain", transactional=False),
        )
    )
    found = stored(data, aborted=[(1, 0)])
    assert [one.message.value for one in found] == [b"committed", b"again", b"plain"]
    assert next_offset(data, 0) == 7


@pytest.mark.parametrize("codec", [0, 1, 2, 3])
@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_old_servers_are_read(magic: int, codec: int) -> None:
    if (magic, codec) == (0, 3):
        return  # format 0 has LZ4 frames of its own
    old = old_set(magic, codec)
    data = old + at(write_messages([Message(b"new")], NOW, (7, 3), 0), 3)
    found = stored(data, 1)
    assert [one.message for one in found] == [
        Message(b"", b"k", null=True),
        Message(b"v2" * 50),
        Message(b"new"),
    ]
    assert [one.position.entry for one in found] == [1, 2, 3]
    assert [one.publish_time for one in found[:2]] == ([NOW + 1, NOW + 2] if magic else [0, 0])
    assert next_offset(data, 0) == 4
    for end in range(len(old)):
        assert next_offset(data[:end], 0) <= 3
        assert len(stored(data[:end])) <= 3
    damaged = bytearray(data)
    damaged[len(old) - 1] ^= 1
    with pytest.raises(ReadFailedError, match="CRC"):
        stored(bytes(damaged))
    if codec:
        (big, _) = stored(data, 0, limit=20)
        assert (big.oversized, big.position.entry) == (True, 2)


def old_set(magic: int, codec: int) -> bytes:
    """Return three messages as servers before 0.11 stored them, the last one at the offset 2."""
    builder = LegacyRecordBatchBuilder(magic, codec, 10_000)
    for offset, (key, value) in enumerate(((b"k", b"v"), (b"k", None), (None, b"v2" * 50))):
        builder.append(offset, NOW + offset, key, value)
    data = bytes(builder.build())
    # A client writes the offset 0 on a set that it compressed, and the server the last one.
    return (2).to_bytes(8) + data[8:] if codec else data


@given(value=st.integers(-(2**31), 2**31))
def test_numbers_are_as_kafka_writes_them(value: int) -> None:
    wanted = bytearray()
    encode_varint(value, wanted.append)
    assert varint(value) == bytes(wanted)


@given(batch=batches)
def test_a_batch_weighs_no_more_than_was_reckoned(batch: Sequence[Message]) -> None:
    size = len(write_messages(batch, NOW, (7, 3), 0))
    assert size <= HEADER_BYTES + sum(weight(message) for message in batch)


def test_batch_larger_than_the_limit_is_one_message_of_its_last_offset() -> None:
    builder = DefaultRecordBatchBuilder(2, 1, False, -1, -1, -1, 1 << 20)
    for offset in range(3):
        builder.append(offset, NOW, None, bytes(1_000), [])
    large = at(builder.build(), 5)
    after = at(DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1000).build(), 8)
    big, *_ = found = stored(large + after, 6, limit=3_000)
    assert (big.oversized, big.position.entry, len(found)) == (True, 7, 1)
    assert big.message.value == large[61:]
    assert len(stored(large, 6, limit=4_000)) == 2
