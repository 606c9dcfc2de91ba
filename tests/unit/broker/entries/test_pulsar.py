"""What the format `pulsar` says of entries, and entries as messages and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.broker.consume.entry_info import OPAQUE_ENTRY, UnreadableEntryError
from router.broker.consume.membership.hashing import murmur3
from router.broker.entries import pulsar
from router.model import Message
from router.wire.pulsar import MAX_MESSAGE_SIZE, join_payload, pack, unpack
from router.wire.pulsar import pulsar_pb2 as pb

KEYS = st.none() | st.binary(max_size=40)
PROPERTIES = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3)


@given(when=st.none() | st.integers(-(2**63), 2**63 - 1), value=st.binary(max_size=40), key=KEYS)
def test_time_of_an_entry_is_found_where_it_has_one(
    when: int | None, value: bytes, key: bytes | None
) -> None:
    payload = pack([Message(value, key=key, deliver_at=when)], "p", 1, 1)
    special = pulsar.describe_special(payload)
    assert (special.deliver_at_ms if special else 0) == (when or 0)
    assert pulsar.describe(payload).deliver_at_ms == (when or 0)


@given(payload=st.binary(max_size=60))
def test_bytes_that_are_no_entry_are_opaque(payload: bytes) -> None:
    special = pulsar.describe_special(payload)
    assert special is None or (special.deliver_at_ms, special.chunk) == (0, None)
    assert pulsar.describe(b"") is OPAQUE_ENTRY


def metadata(**fields: Any) -> pb.MessageMetadata:
    return pb.MessageMetadata(producer_name="p", sequence_id=7, publish_time=1, **fields)


def test_a_chunk_says_which_part_of_which_message_it_is() -> None:
    def chunk(uuid: str, number: int, total: int) -> bytes:
        fields = metadata(uuid=uuid, chunk_id=number, num_chunks_from_msg=total)
        return join_payload(fields, b"part")

    first, last, other = (
        pulsar.describe_special(chunk(uuid, number, 3))
        for uuid, number in (("u", 0), ("u", 2), ("w", 0))
    )
    assert first is not None
    assert last is not None
    assert other is not None
    assert first.chunk is not None
    assert last.chunk is not None
    assert other.chunk is not None
    assert first.chunk[1:] == (0, 3)
    assert last.chunk[1:] == (2, 3)
    assert first.chunk.message == last.chunk.message != other.chunk.message
    assert pulsar.describe(chunk("u", 0, 1)).chunk is None


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"ordering_key": b"o", "partition_key": "k"}, b"o"),
        ({"ordering_key": b"", "partition_key": "k"}, b""),
        ({"partition_key": "grün"}, "grün".encode()),
        ({"partition_key": "/w==", "partition_key_b64_encoded": True}, b"\xff"),
        ({"partition_key": "no base64", "partition_key_b64_encoded": True}, b"no base64"),
        ({"partition_key": "long" * 100}, b"long" * 100),
        ({}, b"p-7"),
    ],
)
def test_key_of_an_entry_is_the_ordering_key_else_the_key_else_its_own(
    fields: dict[str, Any], key: bytes
) -> None:
    assert pulsar.sticky_key(metadata(**fields)) == key
    entry = pulsar.describe(join_payload(metadata(**fields), b"v"))
    assert entry.key_hash() == murmur3(key)
    assert entry.producer == ("p", 7)


@given(all_properties=st.lists(PROPERTIES, min_size=1, max_size=4))
def test_properties_are_those_of_each_message(all_properties: list[Mapping[str, str]]) -> None:
    messages = [Message(b"v", properties=properties) for properties in all_properties]
    for producer in ("p", "router-1"):
        entry = pulsar.describe(pack(messages, producer, 0, 1, pb.LZ4))
        assert list(entry.properties()) == all_properties
        assert entry.messages == len(messages)


MESSAGES = st.tuples(
    st.binary(max_size=20),
    KEYS,
    PROPERTIES,
    st.none() | st.integers(1, 2**63 - 1),
    st.none(),
    st.none() | st.integers(0, 2**63 - 1),
).map(lambda fields: Message(*fields))


@given(messages=st.lists(MESSAGES, min_size=1, max_size=5))
def test_an_entry_made_of_messages_holds_these_messages(messages: list[Message]) -> None:
    payload = pulsar.from_messages(messages, 1_234)
    assert list(pulsar.to_messages(payload)) == messages
    assert {one.publish_time for one in unpack(payload, 1 << 20)} == {1_234}


@pytest.mark.parametrize(
    "payload",
    [
        b"no entry at all",
        pack([Message(b"v")], "p", 0, 1)[:-1] + b"?",
        join_payload(metadata(uuid="u", chunk_id=0, num_chunks_from_msg=2), b"part"),
        join_payload(metadata(encryption_keys=[pb.EncryptionKeys(key="k", value=b"")]), b"secret"),
        join_payload(metadata(num_messages_in_batch=2), b"no batch"),
    ],
)
def test_what_only_its_consumer_can_read_is_no_messages(payload: bytes) -> None:
    with pytest.raises(UnreadableEntryError):
        pulsar.to_messages(payload)


def test_an_entry_that_clients_would_refuse_is_not_made() -> None:
    with pytest.raises(UnreadableEntryError, match="allowed are"):
        pulsar.from_messages([Message(bytes(MAX_MESSAGE_SIZE + 1))], 1)
