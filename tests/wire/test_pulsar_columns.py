"""Batches to columns: whatever `unpack` says of an entry, in columns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.model import Message
from router.wire.pulsar import ProtocolError, join_payload, pack, unpack, unpack_columns
from router.wire.pulsar.pulsar_pb2 import (
    EncryptionKeys,
    MessageMetadata,
    SingleMessageMetadata,
)
from tests.wire.test_pulsar_batches import (
    KINDS,
    LIMIT,
    SOME,
    batch,
    counting,
    metadata,
)


def as_columns(payload: bytes) -> tuple[object, ...]:
    unpacked = unpack(payload, LIMIT)
    messages = [one.message for one in unpacked]
    return (
        [one.batch_index for one in unpacked],
        [message.key for message in messages],
        [None if message.null else message.value for message in messages],
        [message.properties for message in messages],
        [message.event_time for message in messages],
    )


@given(messages=SOME, kind=KINDS)
def test_columns_of_a_batch_are_what_its_messages_say(messages: list[Message], kind: int) -> None:
    payload = pack([*messages, *messages], "somebody", 1, 2, kind)  # type: ignore[arg-type]
    found = unpack_columns(payload, LIMIT)
    assert found is not None
    assert tuple(map(list, found[:5])) == as_columns(payload)
    assert (found.publish_time, found.size) == (2, 2 * len(messages))


@pytest.mark.no_cover
@given(messages=SOME, ack_set=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=2))
def test_columns_leave_out_what_messages_leave_out(
    messages: list[Message], ack_set: list[int]
) -> None:
    payload = pack([*messages, *messages], "somebody", 1, 2)
    found = unpack_columns(payload, LIMIT)
    assert found is not None
    left = found.unacknowledged(ack_set)
    unpacked = unpack(payload, LIMIT, ack_set)
    assert list(left.places) == [one.batch_index for one in unpacked]
    assert list(left.keys) == [one.message.key for one in unpacked]
    assert left.size == found.size


@given(body=st.binary(max_size=60), count=st.integers(0, 5))
def test_columns_of_any_bytes_are_refused_where_messages_are(body: bytes, count: int) -> None:
    payload = join_payload(counting(count), body)
    try:
        expected = as_columns(payload)
    except ProtocolError:
        with pytest.raises(ProtocolError):
            unpack_columns(payload, LIMIT)
    else:
        found = unpack_columns(payload, LIMIT)
        assert found is not None
        assert tuple(map(list, found[:5])) == expected


def test_columns_leave_out_what_compaction_took() -> None:
    gone = SingleMessageMetadata(payload_size=0, compacted_out=True)
    here = SingleMessageMetadata(payload_size=1, partition_key="k")
    payload = join_payload(counting(2), batch((gone, b""), (here, b"v")))
    found = unpack_columns(payload, LIMIT)
    assert found is not None
    assert (found.places, found.keys, found.values, found.size) == ([1], [b"k"], [b"v"], 2)


@pytest.mark.parametrize(
    "told",
    [
        metadata(),
        metadata(num_messages_in_batch=1, encryption_keys=[EncryptionKeys(key="k", value=b"v")]),
        metadata(num_messages_in_batch=1, num_chunks_from_msg=2),
    ],
)
def test_columns_of_what_is_no_batch_are_none(told: MessageMetadata) -> None:
    assert unpack_columns(join_payload(told, b"body"), LIMIT) is None


def test_columns_of_a_damaged_batch_are_none() -> None:
    payload = bytearray(pack([Message(b"one"), Message(b"two")], "p", 1, 2))
    payload[-1] ^= 1
    assert unpack_columns(bytes(payload), LIMIT) is None
