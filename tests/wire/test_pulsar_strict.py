"""Strict reading: complete messages, text that is text, and no more fields than allowed."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given
from hypothesis import strategies as st

from router.wire.pulsar import ProtocolError
from router.wire.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandAck,
    CommandSubscribe,
    KeyValue,
    MessageIdData,
    MessageMetadata,
    Schema,
)
from router.wire.pulsar.strict import SMALL, StrictReader, TextCheck, check_count

METADATA = StrictReader(MessageMetadata)


def count(message: Message) -> int:
    """The fields of a message, at any depth, as protobuf itself counts them."""
    total = 0
    for field, value in message.ListFields():
        for item in value if field.is_repeated else [value]:
            total += 1 + (count(item) if field.message_type else 0)
    return total


IDS = st.recursive(
    st.builds(MessageIdData, ledgerId=st.integers(0, 2**64 - 1), entryId=st.just(1)),
    lambda inner: st.builds(
        MessageIdData,
        ledgerId=st.just(1),
        entryId=st.just(2),
        ack_set=st.lists(st.integers(-5, 5), max_size=3),
        first_chunk_message_id=inner,
    ),
    max_leaves=3,
)
ACKS = st.builds(
    CommandAck,
    consumer_id=st.integers(0, 300),
    ack_type=st.sampled_from([CommandAck.Individual, CommandAck.Cumulative]),
    message_id=st.lists(IDS, max_size=4),
    txnid_least_bits=st.none() | st.integers(0, 9),
)


@given(ack=ACKS)
def test_check_count_agrees_with_protobuf(ack: CommandAck) -> None:
    data = ack.SerializeToString()
    number = count(ack)
    assert check_count(CommandAck.DESCRIPTOR, data, number) == 0
    with pytest.raises(ProtocolError, match="more than"):
        check_count(CommandAck.DESCRIPTOR, data, number - 1)


def test_check_count_passes_fixed_width_fields() -> None:
    data = b"\x0d\1\2\3\4" + b"\x11\1\2\3\4\5\6\7\x08"
    assert check_count(CommandAck.DESCRIPTOR, data, 2) == 0


@given(noise=st.binary(max_size=60))
def test_check_count_ends_when_data_is_noise(noise: bytes) -> None:
    try:
        left = check_count(BaseCommand.DESCRIPTOR, noise, 50)
    except ProtocolError:
        return
    assert 50 - len(noise) <= left <= 50


@given(data=st.binary(max_size=60) | st.builds(lambda a: a.SerializeToString(), ACKS))
def test_check_count_refuses_nothing_that_protobuf_parses(data: bytes) -> None:
    try:
        check_count(CommandAck.DESCRIPTOR, data)
    except ProtocolError as error:
        if "groups" not in str(error):
            with pytest.raises(DecodeError):
                CommandAck.FromString(data)


def test_check_count_raises_when_nested_too_deep() -> None:
    data = b""
    for _ in range(120):
        data = b"\x3a" + _varint(len(data)) + data
    with pytest.raises(ProtocolError, match="deep"):
        check_count(MessageIdData.DESCRIPTOR, data)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


@pytest.mark.parametrize("item", [b"\x22\x00", b"\x22\x04\x0a\x00\x12\x00", b"\x6a\x00"])
def test_read_raises_when_a_large_message_is_all_small_fields(item: bytes) -> None:
    data = b"\x0a\x01p\x10\x01\x18\x01" + item * (2_000_000 // len(item))
    with pytest.raises(ProtocolError, match="more than"):
        METADATA.read(data)


def test_read_takes_a_large_message_of_few_fields() -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=2)
    metadata.properties.add(key="k", value="x" * 10 * SMALL)
    assert METADATA.read(metadata.SerializeToString()) == metadata


@pytest.mark.parametrize(
    "kind", [MessageMetadata, CommandSubscribe, CommandAck], ids=lambda kind: kind.__name__
)
@given(noise=st.binary(max_size=60))
def test_read_gives_complete_messages_or_raises(kind: type[Message], noise: bytes) -> None:
    try:
        message = StrictReader(kind).read(noise)
    except ProtocolError:
        return
    assert message.IsInitialized()
    assert message.SerializeToString().decode("latin-1")


@pytest.mark.parametrize(
    ("field", "data"),
    [
        ("producer_name", b"\x0a\x02\xff\xfe"),
        ("partition_key", b"\x32\x02\xff\xfe"),
        ("uuid", b"\xd2\x01\x02\xff\xfe"),
        ("replicate_to", b"\x3a\x01a\x3a\x02\xff\xfe"),
        ("properties", b"\x22\x07\x0a\x02\xff\xfe\x12\x01v"),
        ("encryption_keys", b"\x6a\x0d\x0a\x01a\x12\x00\x1a\x06\x0a\x01\xff\x12\x01v"),
    ],
)
def test_read_raises_when_text_is_none(field: str, data: bytes) -> None:
    good = MessageMetadata(producer_name="p", sequence_id=1, publish_time=2).SerializeToString()
    assert MessageMetadata.FromString(good + data).ByteSize() > len(good), field
    with pytest.raises(ProtocolError, match="UTF-8"):
        METADATA.read(good + data)


def test_read_raises_when_text_of_an_inner_message_is_none() -> None:
    good = CommandSubscribe(
        topic="t", subscription="s", subType=CommandSubscribe.Shared, consumer_id=1, request_id=2
    )
    good.schema.CopyFrom(Schema(name="abc", schema_data=b"", type=Schema.Json))
    data = good.SerializeToString()
    reader = StrictReader(CommandSubscribe)
    assert reader.read(data) == good
    with pytest.raises(ProtocolError, match="UTF-8"):
        reader.read(data.replace(b"abc", b"a\xffc"))


@given(text=st.text(max_size=10))
def test_read_takes_any_text(text: str) -> None:
    metadata = MessageMetadata(
        producer_name=text, sequence_id=1, publish_time=2, properties=[KeyValue(key=text, value="")]
    )
    assert METADATA.read(metadata.SerializeToString()) == metadata


@pytest.mark.parametrize("name", ["CommandSend", "CommandMessage", "CommandFlow", "CommandPing"])
def test_text_check_is_idle_when_a_command_has_no_text(name: str) -> None:
    assert TextCheck(BaseCommand.DESCRIPTOR.file.message_types_by_name[name]).idle
