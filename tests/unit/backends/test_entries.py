"""Entries taken apart, whole or broken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.backends.pulsar.entries import is_oversized, read_entry
from router.errors import ReadFailedError
from router.model import UNDECODED, Message
from router.wire.pulsar import join_payload, pack, split_payload
from router.wire.pulsar import pulsar_pb2 as pb

PLACE = (1, 2)


def metadata(messages: int, **fields: object) -> pb.MessageMetadata:
    return pb.MessageMetadata(
        producer_name="p",
        sequence_id=0,
        publish_time=7,
        num_messages_in_batch=messages,
        **fields,  # type: ignore[arg-type] # the tests name real fields
    )


@given(values=st.lists(st.binary(max_size=9), min_size=1, max_size=9), data=st.data())
def test_a_batch_counts_for_all_its_messages(values: list[bytes], data: st.DataObject) -> None:
    payload = pack([Message(value) for value in values], "p", 0, 7)
    left = data.draw(st.sets(st.integers(0, len(values) - 1), min_size=1))
    ack_set = [sum(1 << index for index in left)] if len(values) > 1 else []
    unpacked, size = read_entry(payload, ack_set, PLACE)
    expected = [values[index] for index in sorted(left)] if ack_set else values
    assert [one.message.value for one in unpacked] == expected
    assert size == len(values)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_entry_come_as_they_are(noise: bytes) -> None:
    try:
        unpacked, size = read_entry(noise, (), PLACE)
    except ReadFailedError:
        return
    assert len(unpacked) >= 1
    if unpacked[0].message.properties.get(UNDECODED) == "entry":
        assert (unpacked[0].message.value, size) == (noise, 1)


@given(body=st.binary(min_size=1, max_size=50), messages=st.integers(1, 100))
def test_a_body_that_is_no_batch_comes_alone_for_all_its_permits(
    body: bytes, messages: int
) -> None:
    kind = pb.CompressionType.Value("ZLIB")
    broken = metadata(messages, compression=kind, uncompressed_size=1 << 20)
    (one,), size = read_entry(join_payload(broken, body), (1,), PLACE)
    assert one.message == Message(body, None, {UNDECODED: "body"})
    assert (one.batch_index, one.publish_time, size) == (-1, 7, messages)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"encryption_keys": [pb.EncryptionKeys(key="k", value=b"v")]}, "encrypted"),
        ({"num_chunks_from_msg": 3, "chunk_id": 1, "uuid": "u"}, "chunk"),
    ],
)
def test_what_only_its_consumer_can_undo_says_so(fields: dict[str, object], why: str) -> None:
    own = {"properties": [pb.KeyValue(key="a", value="b")]}
    payload = join_payload(metadata(5, **fields, **own), b"secret")
    (one,), size = read_entry(payload, (), PLACE)
    assert one.message == Message(b"secret", None, {"a": "b", UNDECODED: why}, sequence=0)
    assert size == 5


def test_a_wrong_checksum_is_a_failure_that_may_pass() -> None:
    payload = bytearray(pack([Message(b"value")], "p", 0, 7))
    payload[-1] ^= 1
    with pytest.raises(ReadFailedError, match="checksum"):
        read_entry(bytes(payload), (), PLACE)


def test_an_entry_larger_than_the_limit_comes_as_it_is_stored() -> None:
    zstd = pb.ZSTD
    payload = pack([Message(bytes(60_000_000))], "router-p", 0, 7, zstd)
    assert len(payload) < 6_000
    unpacked, size = read_entry(payload, (), PLACE, limit=16 << 20)
    assert is_oversized(unpacked)
    body = bytes(split_payload(payload).body)
    assert unpacked[0].message == Message(body, None, {UNDECODED: "oversized"})
    assert (unpacked[0].batch_index, unpacked[0].publish_time, size) == (-1, 7, 1)


def test_an_oversized_batch_counts_for_all_its_permits() -> None:
    zstd = pb.ZSTD
    payload = pack([Message(bytes(1_000))] * 9, "p", 0, 7, zstd)
    unpacked, size = read_entry(payload, (1,), PLACE, limit=9_000)
    assert is_oversized(unpacked)
    assert size == 9
    assert not is_oversized(read_entry(payload, (), PLACE, limit=10_000)[0])


def test_a_message_cannot_pretend_to_be_oversized() -> None:
    payload = pack([Message(b"x", None, {UNDECODED: "oversized"})], "p", 0, 7)
    assert not is_oversized(read_entry(payload, (), PLACE)[0])
