"""Frames recorded from official clients and brokers are read, and written again byte for byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from router.model import Message
from router.wire.pulsar import (
    Frame,
    PulsarFrameReader,
    command,
    encode,
    split_payload,
    unpack,
    verify_checksum,
)
from router.wire.pulsar.pulsar_pb2 import BaseCommand, CommandAck, CompressionType, MessageIdData


def golden(name: str) -> dict[str, Any]:
    file = Path(__file__).with_name("golden") / name
    recorded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return recorded


COMMANDS = golden("pulsar-commands.json")
BATCHES = golden("pulsar-batches.json")
JAVA: dict[str, str] = golden("pulsar-java.json")["frames"]
FRAMES: dict[str, str] = COMMANDS["frames"] | BATCHES["frames"]


def read(name: str) -> Frame:
    (frame,) = PulsarFrameReader().receive(bytes.fromhex(FRAMES[name]))
    return frame


@pytest.mark.parametrize("name", FRAMES)
def test_frame_is_written_as_it_was_recorded(name: str) -> None:
    frame = read(name)
    assert BaseCommand.Type.Name(frame.command.type) == name.split(maxsplit=1)[0]
    assert encode(*frame).hex() == FRAMES[name]


@pytest.mark.parametrize("name", JAVA)
def test_frame_of_the_java_client_is_understood(name: str) -> None:
    # It writes some fields in another order than ours, so the bytes need not be the same.
    (frame,) = PulsarFrameReader().receive(bytes.fromhex(JAVA[name]))
    assert BaseCommand.Type.Name(frame.command.type) == name.split(maxsplit=1)[0]
    assert PulsarFrameReader().receive(encode(*frame)) == [frame]
    if frame.payload:
        assert verify_checksum(frame.payload)
        assert unpack(frame.payload, 1000)


def test_connect_is_understood() -> None:
    connect = read("CONNECT").command.connect
    assert (connect.client_version, connect.protocol_version) == ("Pulsar-CPP-v4.2.0", 20)
    assert connect.auth_method_name == "none"
    assert connect.feature_flags.supports_auth_refresh


def test_connected_is_understood() -> None:
    connected = read("CONNECTED").command.connected
    assert connected.server_version == "Pulsar Server4.2.4"
    assert (connected.protocol_version, connected.max_message_size) == (20, 5 * 1024 * 1024)


def test_flow_is_what_command_builds() -> None:
    flow = command(BaseCommand.FLOW, consumer_id=0, messagePermits=1000)
    assert encode(flow).hex() == FRAMES["FLOW"]


def test_ack_is_what_command_builds() -> None:
    ack = command(
        BaseCommand.ACK,
        consumer_id=0,
        ack_type=CommandAck.Individual,
        message_id=[MessageIdData(ledgerId=226, entryId=entry) for entry in (0, 1)],
    )
    assert read("ACK").command.ack.message_id[0].ledgerId == 226
    assert encode(ack).hex() == FRAMES["ACK"]


def test_message_carries_what_was_sent() -> None:
    sent, delivered = read("SEND"), read("MESSAGE")
    assert delivered.payload == sent.payload
    assert delivered.command.message.message_id.partition == -1
    assert verify_checksum(sent.payload)
    (one,) = unpack(sent.payload, 100)
    assert one.message == Message(b"hello", b"key1", {"k": "v"}, sequence=0)
    assert (one.batch_index, one.publish_time) == (-1, 1795253832737)


def test_batch_of_the_protocol_description_is_understood() -> None:
    frame = read("SEND (LZ4 batch of 3)")
    assert frame.command.send.num_messages == 3
    assert [one.message for one in unpack(frame.payload, 100)] == [
        Message(b"m%d" % index, b"k", sequence=index) for index in range(3)
    ]


@pytest.mark.parametrize("name", BATCHES["frames"])
def test_batch_is_unpacked_to_what_the_client_was_given(name: str) -> None:
    payload = read(name).payload
    assert CompressionType.Name(split_payload(payload).metadata.compression) == name.split()[1]
    assert [one.message for one in unpack(payload, 1000)] == [
        Message(
            given["value"].encode(),
            given["key"] and given["key"].encode(),
            given["properties"],
            given["event_time"],
            sequence=number,
        )
        for number, given in enumerate(BATCHES["messages"])
    ]
