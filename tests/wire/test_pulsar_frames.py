"""Frames: any chunking, and everything that is no frame."""

from __future__ import annotations

import subprocess
import sys
import time
import tracemalloc
from contextlib import suppress
from itertools import pairwise

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given, settings
from hypothesis import strategies as st

from router.wire.pulsar import (
    FRAME_LIMIT,
    ProtocolError,
    PulsarFrameReader,
    command,
    encode,
    encode_parts,
)
from router.wire.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandSend,
    KeyValue,
    MessageIdData,
    Schema,
)

U64 = st.integers(0, 2**64 - 1)
TEXT = st.text(max_size=20)

SENDS = st.builds(
    lambda producer, sequence, count: command(
        BaseCommand.SEND, producer_id=producer, sequence_id=sequence, num_messages=count
    ),
    U64,
    U64,
    st.integers(1, 1000),
)
MESSAGES = st.builds(
    lambda consumer, ledger, entry, acked: command(
        BaseCommand.MESSAGE,
        consumer_id=consumer,
        message_id=MessageIdData(ledgerId=ledger, entryId=entry, partition=-1),
        ack_set=acked,
    ),
    U64,
    U64,
    U64,
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=2),
)
PRODUCERS = st.builds(
    lambda topic, names: command(
        BaseCommand.PRODUCER,
        topic=topic,
        producer_id=1,
        request_id=2,
        metadata=[KeyValue(key=name, value=topic) for name in names],
    ),
    TEXT,
    st.lists(TEXT, max_size=3),
)
PINGS = st.sampled_from([command(BaseCommand.PING), command(BaseCommand.PONG)])

FRAMES = st.one_of(
    st.tuples(st.one_of(SENDS, MESSAGES), st.binary(min_size=1, max_size=80)),
    st.tuples(st.one_of(PRODUCERS, PINGS), st.just(b"")),
)

PING = encode(command(BaseCommand.PING))
SEND = encode(command(BaseCommand.SEND, producer_id=1, sequence_id=2), b"payload")


def raw(body: bytes, payload: bytes = b"") -> bytes:
    """A frame with any bytes in the place of the command."""
    return (4 + len(body) + len(payload)).to_bytes(4) + len(body).to_bytes(4) + body + payload


@given(frames=st.lists(FRAMES, max_size=6), cuts=st.lists(st.integers(0, 400), max_size=30))
def test_frames_survive_any_chunking(
    frames: list[tuple[BaseCommand, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(encode(sent, payload) for sent, payload in frames)
    ends = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    reader = PulsarFrameReader()
    received = [f for a, b in pairwise(ends) for f in reader.receive(stream[a:b])]
    assert [(f.command, f.payload) for f in received] == frames


@given(frames=st.lists(FRAMES, max_size=4), step=st.integers(1, 3))
def test_frames_survive_when_bytes_dribble(
    frames: list[tuple[BaseCommand, bytes]], step: int
) -> None:
    stream = b"".join(encode(sent, payload) for sent, payload in frames)
    reader = PulsarFrameReader()
    chunks = (stream[at : at + step] for at in range(0, len(stream), step))
    assert [tuple(f) for chunk in chunks for f in reader.receive(chunk)] == frames


@given(sent=FRAMES, pieces=st.integers(1, 3))
def test_encode_parts_joined_is_encode(sent: tuple[BaseCommand, bytes], pieces: int) -> None:
    built, payload = sent
    third = max(1, len(payload) // pieces)
    parts = [payload[at : at + third] for at in range(0, len(payload), third)]
    assert b"".join(encode_parts(built, *parts)) == encode(built, payload)


@given(
    frames=st.lists(FRAMES, min_size=1, max_size=3),
    edits=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_mutated_stream_is_read_or_refused(
    frames: list[tuple[BaseCommand, bytes]], edits: list[tuple[int, int]]
) -> None:
    stream = bytearray(b"".join(encode(sent, payload) for sent, payload in frames))
    for place, byte in edits:
        stream[place % len(stream)] = byte
    try:
        received = PulsarFrameReader().receive(bytes(stream))
    except ProtocolError:
        return
    for frame in received:
        assert encode(frame.command, frame.payload)


# Commands in their shortest form: types with fields that are whole, that lack something, or that
# are anything; behind them perhaps the fields of another type, which lack something.
FIELDS = st.one_of(
    st.sampled_from(
        [
            (BaseCommand.SEND, b"\x08\1\x10\1"),
            (BaseCommand.SEND, b"\x08\1"),
            (BaseCommand.SEND, b"\x08\1\x10\1\x4a\2\x08\1"),
            (BaseCommand.PRODUCER, b"\x0a\1t\x10\1\x18\1"),
            (BaseCommand.PRODUCER, b"\x0a\1\xff\x10\1\x18\1"),
            (BaseCommand.FLOW, b"\x08\1\x10\1"),
        ]
    ),
    st.tuples(st.integers(2, 0x7F), st.binary(max_size=12)),
)
BODIES = st.one_of(
    st.builds(
        lambda fields, off, rest: (
            bytes((0x08, fields[0], (fields[0] << 3 | 2) & 0x7F, max(0, len(fields[1]) + off)))
            + fields[1]
            + rest
        ),
        FIELDS,
        st.sampled_from([0, 0, 1, -1]),
        st.sampled_from([b"", b"\x52\0", b"\x32\0", b"\x08\6"]),
    ),
    st.builds(
        lambda frame, at, piece: (body := frame[0].SerializeToString())[:at] + piece + body[at:],
        FRAMES,
        st.integers(0, 12),
        st.binary(max_size=2),
    ),
)


def is_text(message: Message) -> bool:
    """Tell whether all text in a message is text."""
    for field, value in message.ListFields():
        for item in value if field.is_repeated else [value]:
            if field.type == field.TYPE_STRING and not isinstance(item, str):
                return False
            if field.message_type is not None and not is_text(item):
                return False
    return True


def is_whole(body: bytes, *, payload: bool) -> bool:
    """Judge a command by looking at all there is in it."""
    try:
        found = BaseCommand.FromString(body)
    except DecodeError:
        return False
    field = BaseCommand.DESCRIPTOR.fields_by_number.get(found.type)
    named = field is None or (found.HasField(field.name) and is_text(getattr(found, field.name)))
    carries = found.type in {BaseCommand.SEND, BaseCommand.MESSAGE}
    return found.IsInitialized() and named and carries is payload


@given(body=BODIES, payload=st.booleans(), whole=st.booleans())
@settings(max_examples=800)
def test_commands_are_judged_as_by_looking_at_every_field(
    body: bytes, payload: bool, whole: bool
) -> None:
    stream, reader = raw(body, b"x" if payload else b""), PulsarFrameReader()
    chunks = [stream] if whole else [stream[:7], stream[7:]]
    try:
        (found,) = [frame for chunk in chunks for frame in reader.receive(chunk)]
    except ProtocolError:
        assert not is_whole(body, payload=payload)
        return
    assert is_whole(body, payload=payload)
    assert found.command == BaseCommand.FromString(body)
    assert found.payload == (b"x" if payload else b"")


@given(noise=st.binary(max_size=200))
def test_noise_is_refused_or_waited_for(noise: bytes) -> None:
    reader = PulsarFrameReader(limit=1000)
    try:
        frames = reader.receive(noise)
    except ProtocolError:
        return
    assert sum(len(encode(*frame)) for frame in frames) <= len(noise)


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param((FRAME_LIMIT + 1).to_bytes(4), id="larger than the limit"),
        pytest.param(b"\xff\xff\xff\xff", id="largest size"),
        pytest.param(bytes(4), id="empty"),
        pytest.param(b"\0\0\0\3abc", id="no room for a command size"),
        pytest.param(b"\0\0\0\4\0\0\0\0", id="empty command"),
        pytest.param(b"\0\0\0\6\0\0\0\3\x08\x12", id="command larger than the frame"),
        pytest.param(raw(b"\x08"), id="no protobuf"),
        pytest.param(raw(b"\x08\x45"), id="unknown type"),
        pytest.param(raw(b"\x08\x06"), id="fields of the type missing"),
        pytest.param(raw(b"\x08\x06\x92\x01\x00"), id="fields of another type"),
        pytest.param(raw(b"\x08\x06\x32\x00", b"x"), id="required fields missing"),
        pytest.param(raw(b"\x08\x06\x32\x04\x08\x01\x10\x01"), id="SEND without a payload"),
        pytest.param(PING[:3] + bytes([PING[3] + 1]) + PING[4:] + b"x", id="PING with a payload"),
        pytest.param(raw(b"\x08\x17\xba\x01\x06\x0a\x02\xff\xfe\x10\x01"), id="topic no text"),
        pytest.param(
            raw(b"\x08\x05\x2a\x0f\x0a\x01t\x10\x01\x18\x01\x32\x06\x0a\x01\xff\x12\x01v"),
            id="property no text",
        ),
    ],
)
def test_receive_raises_when_malformed(stream: bytes) -> None:
    reader = PulsarFrameReader()
    with pytest.raises(ProtocolError) as raised:
        reader.receive(stream)
    with pytest.raises(ProtocolError) as again:
        reader.receive(PING)
    assert str(again.value) == str(raised.value)


def test_receive_raises_when_topics_of_a_namespace_are_no_text() -> None:
    good = command(BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE, request_id=1, topics=["abc"])
    with pytest.raises(ProtocolError, match="UTF-8"):
        PulsarFrameReader().receive(encode(good).replace(b"abc", b"a\xffc"))


def test_receive_takes_a_type_that_has_no_fields_here() -> None:
    (frame,) = PulsarFrameReader().receive(raw(b"\x08\x44"))
    assert frame.command.type == BaseCommand.TOPIC_MIGRATED


HUGE = encode(
    command(
        BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES,
        consumer_id=1,
        message_ids=[MessageIdData(ledgerId=1, entryId=1)] * 40_000,
    )
)


def test_receive_refuses_a_command_of_very_many_fields() -> None:
    with pytest.raises(ProtocolError, match="more than"):
        PulsarFrameReader().receive(HUGE)


def test_receive_refuses_a_command_of_very_many_fields_when_the_peer_is_a_client() -> None:
    reader = PulsarFrameReader()
    reader.receive(encode(command(BaseCommand.CONNECT, client_version="x")))
    reader.receive(encode(command(BaseCommand.CONNECTED, server_version="x")))
    with pytest.raises(ProtocolError, match="more than"):
        reader.receive(HUGE)


def test_receive_takes_a_command_of_very_many_fields_when_the_peer_is_a_broker() -> None:
    reader = PulsarFrameReader()
    reader.receive(encode(command(BaseCommand.CONNECTED, server_version="x")))
    (frame,) = reader.receive(HUGE)
    assert len(frame.command.redeliverUnacknowledgedMessages.message_ids) == 40_000


def test_receive_takes_a_large_command_of_few_fields() -> None:
    schema = Schema(name="s", schema_data=bytes(200_000), type=Schema.Json)
    asked = command(BaseCommand.PRODUCER, topic="t", producer_id=1, request_id=1, schema=schema)
    (frame,) = PulsarFrameReader().receive(encode(asked))
    assert frame.command == asked


def test_receive_takes_a_frame_of_just_the_limit() -> None:
    (frame,) = PulsarFrameReader(limit=len(SEND) - 4).receive(SEND)
    assert frame.payload == b"payload"
    with pytest.raises(ProtocolError, match="allowed"):
        PulsarFrameReader(limit=len(SEND) - 5).receive(SEND)


def test_receive_refuses_a_large_frame_before_it_has_come() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="allowed"):
            PulsarFrameReader().receive((2**32 - 1).to_bytes(4))
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024
    finally:
        tracemalloc.stop()


def test_receive_takes_time_in_proportion_when_bytes_dribble() -> None:
    stream = encode(command(BaseCommand.SEND, producer_id=1, sequence_id=2), bytes(2**22))
    reader = PulsarFrameReader()
    started = time.process_time()
    received = [f for at in range(0, len(stream), 32) for f in reader.receive(stream[at : at + 32])]
    assert [len(frame.payload) for frame in received] == [2**22]
    # Copying what is held for every chunk would move 270 GB.
    assert time.process_time() - started < 10


# In a process of its own: threads that other tests left behind would be measured too.
MANY = """
import sys, tracemalloc
from router.wire.pulsar import PulsarFrameReader

stream = bytes.fromhex(sys.argv[1]) * 20_000
reader = PulsarFrameReader()
reader.receive(stream[:5])
received = 0
tracemalloc.start()
for at in range(5, len(stream), 1000):
    received += len(reader.receive(stream[at : at + 1000]))
print(received, tracemalloc.get_traced_memory()[1])
"""


def test_receive_holds_no_more_than_one_frame_when_many_come() -> None:
    command = [sys.executable, "-c", MANY, SEND.hex()]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    received, peak = map(int, printed.stdout.split())
    assert received == 20_000
    assert peak < 256 * 1024


def test_receive_keeps_nothing_of_what_it_refused() -> None:
    reader = PulsarFrameReader()
    tracemalloc.start()
    try:
        with suppress(ProtocolError):
            reader.receive(b"\xff" * 1_000_000)
        assert tracemalloc.get_traced_memory()[0] < 500_000
    finally:
        tracemalloc.stop()


def test_payload_stays_when_the_chunk_is_overwritten() -> None:
    chunk = bytearray(SEND)
    (frame,) = PulsarFrameReader().receive(chunk)
    chunk[:] = bytes(len(chunk))
    assert frame.payload == b"payload"
    assert frame.command.send == CommandSend(producer_id=1, sequence_id=2)


@pytest.mark.parametrize("payload", [b"", b"payload"])
def test_an_extension_may_have_a_payload(payload: bytes) -> None:
    frame = encode(BaseCommand(type=BaseCommand.EXTENSION, extension=b"content"), payload)
    (found,) = PulsarFrameReader().receive(frame)
    assert (found.command.extension, found.payload) == (b"content", payload)


def test_command_sets_a_body_without_fields() -> None:
    assert command(BaseCommand.PING).HasField("ping")


# The body of the extension is bytes, which wire/node reads and writes.
@pytest.mark.parametrize("kind", sorted(set(BaseCommand.Type.values()) - {BaseCommand.EXTENSION}))
def test_command_finds_the_body_of_every_type_that_has_one(kind: BaseCommand.Type) -> None:
    field = BaseCommand.DESCRIPTOR.fields_by_number.get(kind)
    if field is None:
        with pytest.raises(KeyError):
            command(kind)
    else:
        assert command(kind).HasField(field.name)
