"""Payloads: what is joined is split again, and damage is noticed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from router.wire.pulsar import (
    Payload,
    ProtocolError,
    broker_entry_prefix,
    join_payload,
    read_broker_entry,
    read_metadata,
    read_sound,
    split_payload,
    verify_checksum,
)
from router.wire.pulsar.pulsar_pb2 import (
    LZ4,
    BrokerEntryMetadata,
    KeyValue,
    MessageMetadata,
)
from router.wire.pulsar.strict import StrictReader

TEXT = st.text(max_size=10)
METADATA = st.builds(
    MessageMetadata,
    producer_name=TEXT,
    sequence_id=st.integers(0, 2**64 - 1),
    publish_time=st.integers(0, 2**64 - 1),
    properties=st.lists(st.builds(KeyValue, key=TEXT, value=TEXT), max_size=3),
    partition_key=st.none() | TEXT,
    compression=st.none() | st.just(LZ4),
    uncompressed_size=st.none() | st.integers(0, 2**32 - 1),
    num_messages_in_batch=st.none() | st.integers(1, 300),
    event_time=st.none() | st.integers(0, 2**64 - 1),
    uuid=st.none() | TEXT,
)
BROKER_ENTRIES = st.none() | st.builds(
    BrokerEntryMetadata,
    broker_timestamp=st.none() | st.integers(0, 2**64 - 1),
    index=st.none() | st.integers(0, 2**64 - 1),
)


def crc32c_by_bits(data: bytes) -> int:
    """CRC32-C by its definition."""
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


@given(metadata=METADATA, body=st.binary(max_size=50), broker_entry=BROKER_ENTRIES)
def test_join_then_split_gives_the_parts(
    metadata: MessageMetadata, body: bytes, broker_entry: BrokerEntryMetadata | None
) -> None:
    payload = join_payload(metadata, body, broker_entry)
    assert split_payload(payload) == Payload(broker_entry, True, metadata, memoryview(body))
    assert split_payload(memoryview(payload)) == Payload(
        broker_entry, True, metadata, memoryview(body)
    )
    assert read_metadata(payload) == metadata
    assert read_broker_entry(payload) == broker_entry
    assert verify_checksum(payload)


@given(metadata=METADATA, body=st.binary(max_size=50))
def test_checksum_is_crc32c_of_all_that_follows(metadata: MessageMetadata, body: bytes) -> None:
    payload = join_payload(metadata, body)
    assert payload[:2] == b"\x0e\x01"
    assert int.from_bytes(payload[2:6]) == crc32c_by_bits(payload[6:])


@given(metadata=METADATA, body=st.binary(max_size=50), broker_entry=BROKER_ENTRIES)
def test_prefix_leaves_a_stored_payload_as_it_is(
    metadata: MessageMetadata, body: bytes, broker_entry: BrokerEntryMetadata | None
) -> None:
    stored = join_payload(metadata, body)
    prefix = b"" if broker_entry is None else broker_entry_prefix(broker_entry)
    assert prefix + stored == join_payload(metadata, body, broker_entry)


@given(metadata=METADATA, body=st.binary(max_size=50))
def test_payload_without_checksum_is_accepted(metadata: MessageMetadata, body: bytes) -> None:
    payload = join_payload(metadata, body)[6:]
    assert split_payload(payload) == Payload(None, None, metadata, memoryview(body))
    assert verify_checksum(payload)


@given(metadata=METADATA, body=st.binary(max_size=50), data=st.data())
def test_flipped_bit_is_noticed(
    metadata: MessageMetadata, body: bytes, data: st.DataObject
) -> None:
    payload = bytearray(join_payload(metadata, body))
    place = data.draw(st.integers(2, len(payload) - 1))
    payload[place] ^= 1 << data.draw(st.integers(0, 7))
    assert not verify_checksum(bytes(payload))


@given(metadata=METADATA, broker_entry=BROKER_ENTRIES)
def test_payload_cut_short_is_refused_or_fails_its_checksum(
    metadata: MessageMetadata, broker_entry: BrokerEntryMetadata | None
) -> None:
    payload = join_payload(metadata, b"body", broker_entry)
    for end in range(len(payload)):
        try:
            parts = split_payload(payload[:end])
        except ProtocolError:
            continue
        assert not parts.checksum_ok


NOISE = st.one_of(
    st.binary(max_size=60),
    st.builds(
        lambda head, size, rest: head + size.to_bytes(4) + b"\x0a\0\x10\1\x18\1" + rest,
        st.sampled_from([b"", b"\x0e\1\0\0\0\0", b"\x0e\2\0\0\0\0", b"\x0e\2\0\0\0\2\x10\1"]),
        st.integers(0, 20),
        st.binary(max_size=20),
    ),
)


@given(noise=NOISE)
def test_noise_is_refused_or_read(noise: bytes) -> None:
    try:
        parts = split_payload(noise)
    except ProtocolError:
        return
    assert noise.endswith(parts.body)
    assert parts.metadata == read_metadata(noise)
    assert parts.broker_entry == read_broker_entry(noise)
    assert verify_checksum(noise) == (parts.checksum_ok is not False)


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x0e\x02\xff\xff\xff\xff" + bytes(20), id="endless broker entry"),
        pytest.param(b"\x0e\x01\0\0\0\0\xff\xff\xff\xff" + bytes(20), id="endless metadata"),
        pytest.param(b"\x0e\x01\0\0\0\0\0\0\0\0body", id="metadata without its fields"),
        pytest.param(b"\x0e\x02\0\0\0\1\x08" + bytes(20), id="broker entry no protobuf"),
    ],
)
def test_split_raises_when_malformed(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        split_payload(payload)


EDITS = st.lists(st.tuples(st.integers(0, 99), st.binary(max_size=3)), max_size=2)
# Heads as clients write them, so that what is behind them decides; fields that are as they should
# be, and fields that are not.
HEAD = b"\x0a\1p\x10\1\x18\1"
HEADS = st.just(HEAD) | st.sampled_from([b"", HEAD[:3], b"\x0a\2\xc3\xa9\x10\1\x18\x80\1"])
FIELDS = st.sampled_from(
    [
        b"\x32\1k",
        b"\x32\1\xff",
        b"\x22\6\x0a\1a\x12\1b",
        b"\x22\6\x0a\1a\x12\1\xff",
        b"\x22\3\x0a\1a",
        b"\x48\x80\1",
        b"\x30\x80\1",
        b"\xd2\1\1u",
    ]
)


def edited(data: bytes, edits: list[tuple[int, bytes]]) -> bytes:
    """Put other bytes in the place of some."""
    for place, piece in edits:
        at = place % (len(data) + 1)
        data = data[:at] + piece + data[at + len(piece) :]
    return data


ENCODED = st.one_of(
    st.builds(lambda metadata, edits: edited(metadata.SerializeToString(), edits), METADATA, EDITS),
    st.builds(
        lambda head, fields, edits: edited(head + b"".join(fields), edits),
        HEADS,
        st.lists(FIELDS, max_size=2),
        EDITS,
    ),
    st.builds(bytes.__add__, HEADS, st.binary(max_size=20)),
)


def judged(read: Callable[[bytes], object], data: bytes) -> object:
    """What is read, or the sentence with which it is refused."""
    try:
        return read(data)
    except ProtocolError as error:
        return str(error)


@given(data=ENCODED)
@settings(max_examples=500)
def test_metadata_is_judged_as_by_looking_at_every_field(data: bytes) -> None:
    expected = judged(StrictReader(MessageMetadata).read, data)
    assert judged(read_metadata, len(data).to_bytes(4) + data + b"body") == expected


@given(metadata=METADATA, body=st.binary(max_size=50) | st.just(b"x" * 5_000))
def test_read_sound_gives_the_metadata_of_what_was_joined(
    metadata: MessageMetadata, body: bytes
) -> None:
    assert read_sound(join_payload(metadata, body)) == metadata


@given(data=ENCODED, broker_entry=BROKER_ENTRIES, edits=EDITS)
@settings(max_examples=300)
def test_read_sound_tells_what_split_payload_tells_or_nothing(
    data: bytes, broker_entry: BrokerEntryMetadata | None, edits: list[tuple[int, bytes]]
) -> None:
    covered = len(data).to_bytes(4) + data + b"body"
    prefix = b"" if broker_entry is None else broker_entry_prefix(broker_entry)
    payload = edited(prefix + b"\x0e\1" + crc32c(covered).to_bytes(4) + covered, edits)
    found, parts = judged(read_sound, payload), judged(split_payload, payload)
    if isinstance(found, MessageMetadata):
        assert isinstance(parts, Payload)
        assert (parts.broker_entry, parts.checksum_ok, parts.metadata) == (None, True, found)
    elif found is not None:
        assert found == parts
        assert verify_checksum(payload)
