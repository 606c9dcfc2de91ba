"""Batches: what is packed is unpacked, by hand and by protobuf alike, and nothing else is."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.model import Message
from router.wire.pulsar import (
    MAX_BATCH,
    OURS,
    ProtocolError,
    compress,
    is_batch,
    join_payload,
    pack,
    read_metadata,
    split_payload,
    unpack,
    verify_checksum,
)
from router.wire.pulsar.batches import read_batch, write_batch, write_single
from router.wire.pulsar.pulsar_pb2 import (
    LZ4,
    NONE,
    SNAPPY,
    ZLIB,
    ZSTD,
    CompressionType,
    EncryptionKeys,
    MessageMetadata,
    SingleMessageMetadata,
)

KINDS = st.sampled_from([NONE, LZ4, ZLIB, ZSTD, SNAPPY])
TEXT = st.text(max_size=8)
KEYS = st.one_of(
    st.none(),
    st.text(max_size=8).map(str.encode),
    st.binary(max_size=8),
    st.integers(120, 140).map(lambda size: b"k" * size),
)
VALUES = st.binary(max_size=20) | st.sampled_from([bytes(127), bytes(128), bytes(20_000)])
PLAIN = st.tuples(VALUES, KEYS).map(lambda parts: Message(*parts))
MESSAGES = PLAIN | st.tuples(
    VALUES,
    KEYS,
    st.dictionaries(TEXT, TEXT, max_size=3),
    st.none() | st.integers(0, 2**64 - 1),
).map(lambda parts: Message(*parts))
NUMBERED = st.tuples(VALUES, KEYS, st.integers(0, 2**64 - 1)).map(
    lambda parts: Message(parts[0], parts[1], sequence=parts[2])
) | KEYS.map(lambda key: Message(b"", key, null=True))
SOME = st.lists(MESSAGES | NUMBERED, min_size=1, max_size=6)
LIMIT = 1_000_000


def metadata(**fields: object) -> MessageMetadata:
    built = MessageMetadata(producer_name="p", sequence_id=1, publish_time=2)
    built.MergeFrom(MessageMetadata(**fields))  # type: ignore[arg-type]
    return built


def counting(messages: int) -> MessageMetadata:
    return metadata(num_messages_in_batch=messages)


def batch(*singles: tuple[SingleMessageMetadata, bytes]) -> bytes:
    """A batch's body, by its definition."""
    heads = [(single.SerializeToString(), value) for single, value in singles]
    return b"".join(len(head).to_bytes(4) + head + value for head, value in heads)


def by_protobuf(messages: list[Message]) -> bytes:
    return b"".join(write_single(message) + message.value for message in messages)


@given(
    messages=SOME,
    kind=KINDS,
    sequence=st.integers(0, 2**64 - 1),
    publish=st.integers(0, 2**63),
    producer=st.sampled_from(["router-1", "idempotency:1"]),
    header=st.tuples(st.none() | st.integers(0, 2**63 - 1), st.sampled_from([b"", bytes(8)])),
)
def test_pack_then_unpack_gives_the_messages(
    messages: list[Message],
    kind: CompressionType,
    sequence: int,
    publish: int,
    producer: str,
    header: tuple[int | None, bytes],
) -> None:
    messages = [
        message._replace(deliver_at=header[0], schema_version=header[1]) for message in messages
    ]
    payload = pack(messages, producer, sequence, publish, kind)
    unpacked = unpack(payload, LIMIT)
    assert [one.message for one in unpacked] == messages
    assert {one.publish_time for one in unpacked} == {publish}
    assert not any(one.opaque for one in unpacked)
    places = list(range(len(messages))) if is_batch(messages, producer) else [-1]
    assert [one.batch_index for one in unpacked] == places
    assert unpack(memoryview(payload), LIMIT) == unpacked


@given(messages=SOME, kind=KINDS)
def test_pack_says_in_metadata_what_a_broker_needs(
    messages: list[Message], kind: CompressionType
) -> None:
    payload = pack(messages, "router-1", 7, 8, kind)
    assert verify_checksum(payload)
    header = read_metadata(payload)
    assert (header.producer_name, header.sequence_id, header.publish_time) == ("router-1", 7, 8)
    assert header.num_messages_in_batch == len(messages)
    assert header.HasField("num_messages_in_batch") == is_batch(messages, "router-1")
    assert header.compression == kind
    assert header.HasField("partition_key") == (messages[0].key is not None)


@given(messages=st.lists(MESSAGES | NUMBERED, max_size=6))
def test_write_batch_writes_what_protobuf_writes(messages: list[Message]) -> None:
    assert b"".join(write_batch(messages)) == by_protobuf(messages)


@given(messages=SOME)
def test_read_batch_reads_what_protobuf_writes(messages: list[Message]) -> None:
    body = by_protobuf(messages)
    for _ in "first by protobuf, then from what was met before":
        unpacked = read_batch(body, counting(len(messages)))
        assert [one.message for one in unpacked] == messages
        assert [(type(one.message), one.batch_index) for one in unpacked] == [
            (Message, index) for index in range(len(messages))
        ]


@given(
    size=st.integers(0, 40),
    key=st.none() | st.binary(max_size=6),
    tail=st.binary(max_size=8),
    learn=st.booleans(),
)
def test_read_batch_reads_odd_heads_as_protobuf_does(
    size: int, key: bytes | None, tail: bytes, *, learn: bool
) -> None:
    if learn:
        read_batch(batch((SingleMessageMetadata(payload_size=size), bytes(size))), counting(1))
    key_field = b"" if key is None else b"\x12" + bytes([len(key)]) + key
    head = key_field + SingleMessageMetadata(payload_size=size).SerializeToString() + tail
    body = len(head).to_bytes(4) + head + bytes(40)
    try:
        unpacked = read_batch(body[: len(body) - 40 + size], counting(1))
    except ProtocolError:
        return
    single = SingleMessageMetadata.FromString(head)
    assert isinstance(single.partition_key, str)
    assert single.payload_size == size
    if not single.compacted_out:
        (one,) = unpacked
        assert one.message.value == bytes(size)
        assert (one.message.key is None) == (
            single.null_partition_key or not single.HasField("partition_key")
        )


@given(messages=st.lists(MESSAGES, min_size=2, max_size=6), data=st.data())
def test_unpack_leaves_out_what_is_acknowledged(
    messages: list[Message], data: st.DataObject
) -> None:
    unacked = data.draw(st.sets(st.integers(0, len(messages) - 1)))
    ack_set = [sum(1 << index for index in unacked)]
    left = unpack(pack(messages, "p", 1, 2), LIMIT, ack_set)
    assert [one.batch_index for one in left] == sorted(unacked)
    assert [one.message for one in left] == [messages[index] for index in sorted(unacked)]


def test_unpack_takes_ack_sets_of_several_signed_words() -> None:
    messages = [Message(b"%d" % index) for index in range(130)]
    left = unpack(pack(messages, "p", 1, 2), LIMIT, [-(2**63), 1, 2])
    assert [one.batch_index for one in left] == [63, 64, 129]


@pytest.mark.parametrize(
    ("ack_set", "left"),
    [
        ([0b101], [0, 2]),
        ([0, 1], [64]),
        ([-1], list(range(64))),
        ([-1, -1, -1, -1], list(range(130))),
        ([0], []),
    ],
)
def test_messages_that_an_ack_set_has_no_words_for_are_acknowledged(
    ack_set: list[int], left: list[int]
) -> None:
    """Clients cut a set behind its last bit: what it does not name is not left."""
    messages = [Message(b"%d" % index) for index in range(130)]
    found = unpack(pack(messages, "p", 1, 2), LIMIT, ack_set)
    assert [one.batch_index for one in found] == left


def test_unpack_skips_what_compaction_took_out() -> None:
    body = batch(
        (SingleMessageMetadata(payload_size=1), b"a"),
        (SingleMessageMetadata(payload_size=0, compacted_out=True, partition_key="k"), b""),
        (SingleMessageMetadata(payload_size=1), b"c"),
    )
    unpacked = unpack(join_payload(metadata(num_messages_in_batch=3), body), LIMIT)
    assert [(one.message.value, one.batch_index) for one in unpacked] == [(b"a", 0), (b"c", 2)]


def test_unpack_gives_an_empty_list_when_all_is_compacted_out() -> None:
    body = batch((SingleMessageMetadata(payload_size=0, compacted_out=True), b""))
    assert unpack(join_payload(metadata(num_messages_in_batch=1), body), LIMIT) == []


def test_unpack_gives_a_batch_index_when_a_batch_holds_one_message() -> None:
    body = batch((SingleMessageMetadata(payload_size=1, sequence_id=5), b"a"))
    (one,) = unpack(join_payload(metadata(num_messages_in_batch=1), body), LIMIT)
    assert one.batch_index == 0


def test_unpack_gives_null_values_and_keys_as_such() -> None:
    body = batch(
        (SingleMessageMetadata(payload_size=0, null_value=True, partition_key="k"), b""),
        (SingleMessageMetadata(payload_size=0, partition_key="", null_partition_key=True), b""),
    )
    unpacked = unpack(join_payload(metadata(num_messages_in_batch=2), body), LIMIT)
    assert [one.message for one in unpacked] == [Message(b"", b"k", null=True), Message(b"")]


def test_unpack_gives_an_entry_of_a_foreign_producer_its_number() -> None:
    (one,) = unpack(join_payload(metadata(sequence_id=7), b"x"), LIMIT)
    assert one.message == Message(b"x", sequence=7)
    (ours,) = unpack(pack([Message(b"x")], f"{OURS}1", 7, 8), LIMIT)
    assert ours.message == Message(b"x")


@pytest.mark.parametrize(
    "header",
    [
        metadata(encryption_keys=[EncryptionKeys(key="k", value=b"v")], compression=LZ4),
        metadata(num_chunks_from_msg=2, chunk_id=0, uuid="u", compression=ZLIB),
    ],
)
def test_unpack_gives_the_bytes_as_they_are_when_only_the_consumer_can_undo_them(
    header: MessageMetadata,
) -> None:
    header.partition_key = "key"
    (one,) = unpack(join_payload(header, b"secret"), LIMIT)
    assert one.opaque
    assert one.message == Message(b"secret", b"key", sequence=1)


@given(messages=SOME, kind=KINDS, data=st.data())
def test_unpack_raises_when_a_byte_changed(
    messages: list[Message], kind: CompressionType, data: st.DataObject
) -> None:
    payload = bytearray(pack(messages, "p", 1, 2, kind))
    payload[data.draw(st.integers(2, len(payload) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ProtocolError):
        unpack(bytes(payload), LIMIT)


@given(
    messages=SOME,
    kind=KINDS,
    edits=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_unpack_reads_or_raises_when_mutated_without_a_checksum(
    messages: list[Message], kind: CompressionType, edits: list[tuple[int, int]]
) -> None:
    mutated = bytearray(pack(messages, "p", 1, 2, kind)[6:])
    for place, byte in edits:
        mutated[place % len(mutated)] = byte
    try:
        unpacked = unpack(bytes(mutated), LIMIT)
    except ProtocolError:
        return
    assert all(isinstance(one.message.value, bytes) for one in unpacked)
    assert all(type(one.message.key) in {bytes, type(None)} for one in unpacked)
    assert sum(len(one.message.value) for one in unpacked) <= LIMIT


@given(messages=SOME, kind=KINDS, data=st.data())
def test_unpack_raises_when_cut_short(
    messages: list[Message], kind: CompressionType, data: st.DataObject
) -> None:
    payload = pack(messages, "p", 1, 2, kind)
    with pytest.raises(ProtocolError):
        unpack(payload[: data.draw(st.integers(2, len(payload) - 1))], LIMIT)


@given(noise=st.binary(max_size=80), count=st.integers(-2, 20))
def test_read_batch_reads_or_raises_when_noise(noise: bytes, count: int) -> None:
    try:
        unpacked = read_batch(noise, counting(count))
    except ProtocolError:
        return
    assert sum(len(one.message.value) for one in unpacked) <= len(noise)


@given(messages=st.lists(MESSAGES, min_size=1, max_size=4), change=st.integers(-4, 4).filter(bool))
def test_unpack_raises_when_the_count_is_wrong(messages: list[Message], change: int) -> None:
    header = metadata(num_messages_in_batch=len(messages) + change)
    with pytest.raises(ProtocolError):
        unpack(join_payload(header, by_protobuf(messages)), LIMIT)


SINGLE = SingleMessageMetadata(payload_size=1).SerializeToString()


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(
            join_payload(metadata(compression=LZ4, uncompressed_size=LIMIT + 1), b"x"),
            id="declared size over the limit",
        ),
        *(
            pytest.param(
                join_payload(
                    metadata(compression=kind, uncompressed_size=size), compress(kind, b"abc")
                ),
                id=f"{CompressionType.Name(kind)} of 3 bytes declared as {size}",
            )
            for kind in (LZ4, ZLIB, ZSTD, SNAPPY)
            for size in (0, 2, 4)
        ),
        pytest.param(
            b"\0\0\0\x09" + metadata().SerializeToString() + b"\x40\x09" + b"x",
            id="compression of the future",
        ),
        pytest.param(
            join_payload(
                metadata(partition_key="no base64!", partition_key_b64_encoded=True), b"x"
            ),
            id="key no base64",
        ),
        pytest.param(
            join_payload(
                metadata(num_messages_in_batch=1),
                batch((SingleMessageMetadata(payload_size=-1), b"")),
            ),
            id="negative size",
        ),
        pytest.param(
            join_payload(
                metadata(num_messages_in_batch=1),
                batch((SingleMessageMetadata(payload_size=1), b"ab")),
            ),
            id="bytes left over",
        ),
        pytest.param(
            join_payload(metadata(num_messages_in_batch=1), b"\xff\xff\xff\xff" + SINGLE + b"a"),
            id="endless head",
        ),
        pytest.param(
            join_payload(
                metadata(num_messages_in_batch=MAX_BATCH + 1),
                (len(SINGLE).to_bytes(4) + SINGLE + b"a") * (MAX_BATCH + 1),
            ),
            id="too many messages",
        ),
    ],
)
def test_unpack_raises_when_malformed(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        unpack(payload, LIMIT)


def test_unpack_takes_a_payload_without_a_checksum() -> None:
    (one,) = unpack(b"\0\0\0\x09" + metadata().SerializeToString() + b"\x40\x00" + b"x", LIMIT)
    assert one.message == Message(b"x", sequence=1)


def test_unpack_takes_as_many_messages_as_a_batch_may_have() -> None:
    one = len(SINGLE).to_bytes(4) + SINGLE + b"a"
    payload = join_payload(metadata(num_messages_in_batch=MAX_BATCH), one * MAX_BATCH)
    assert len(unpack(payload, LIMIT)) == MAX_BATCH


def test_unpack_knows_heads_of_more_sizes_than_it_remembers() -> None:
    messages = [Message(bytes(size)) for size in range(5000)]
    for messages_ in (messages, messages[::-1]):
        assert [one.message for one in unpack(pack(messages_, "p", 1, 2), LIMIT)] == messages_


def test_pack_writes_keys_as_official_clients_do() -> None:
    text, binary, none = (Message(b"v", key) for key in ("ké".encode(), b"\xff\0", None))
    headers = [read_metadata(pack([one], "p", 1, 2)) for one in (text, binary, none)]
    assert [(h.partition_key, h.partition_key_b64_encoded) for h in headers] == [
        ("ké", False),
        ("/wA=", True),
        ("", False),
    ]
    assert not headers[2].HasField("partition_key")


def test_pack_gives_a_batch_the_key_of_its_first_message() -> None:
    for first, second in pairwise([b"a", b"\xff", None, b"b"]):
        header = read_metadata(pack([Message(b"", first), Message(b"", second)], "p", 1, 2))
        single = read_metadata(pack([Message(b"", first)], "p", 1, 2))
        assert header.partition_key == single.partition_key
        assert header.partition_key_b64_encoded == single.partition_key_b64_encoded


def test_pack_compresses_a_batch_as_a_whole() -> None:
    messages = [Message(b"value" * 50)] * 20
    entry = split_payload(pack(messages, "p", 1, 2, ZSTD))
    assert entry.metadata.uncompressed_size == len(by_protobuf(messages))
    assert len(entry.body) < 100


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("producer", ["raw", "router-1"])
def test_pack_writes_the_clusters_that_an_entry_is_meant_for(count: int, producer: str) -> None:
    message = Message(b"v", sequence=5, replicate_to=("us", "__local__"))
    payload = pack([message] * count, producer, 5, 1_000)
    assert list(split_payload(payload).metadata.replicate_to) == ["us", "__local__"]
    assert [one.message.replicate_to for one in unpack(payload, 1_000)] == [
        ("us", "__local__")
    ] * count
