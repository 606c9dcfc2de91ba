"""The official client against a scripted server: its frames are understood, and ours by it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pulsar
import pytest

from router.model import Message
from router.wire.pulsar import (
    MAX_MESSAGE_SIZE,
    Frame,
    PulsarFrameReader,
    command,
    encode,
    pack,
    read_metadata,
    unpack,
    verify_checksum,
)
from router.wire.pulsar.pulsar_pb2 import (
    LZ4,
    NONE,
    SNAPPY,
    ZLIB,
    ZSTD,
    BaseCommand,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
    CompressionType,
    MessageIdData,
)

PATIENCE = 10
KINDS = {
    NONE: pulsar.CompressionType.NONE,
    LZ4: pulsar.CompressionType.LZ4,
    ZLIB: pulsar.CompressionType.ZLib,
    ZSTD: pulsar.CompressionType.ZSTD,
    SNAPPY: pulsar.CompressionType.SNAPPY,
}
MESSAGES = [
    Message(b"value alone"),
    Message(b"", b"key"),
    Message(b"x" * 3000, "schlüssel".encode(), {"a": "b", "ü": ""}, 1_700_000_000_123),
    *(Message(b'{"n": %d, "text": "some more of it"}' % n, b"k%d" % (n % 3)) for n in range(40)),
]


class ScriptedServer:
    """Answers what a producer or a consumer asks, keeps what is sent, and hands out `entries`."""

    def __init__(self) -> None:
        self.sent: list[Frame] = []
        self.entries: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(60)
        self.url = f"pulsar://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._thread.join(PATIENCE)
        self._listener.close()
        assert not self._thread.is_alive()

    def _serve(self) -> None:
        peer, _ = self._listener.accept()
        peer.settimeout(60)
        reader = PulsarFrameReader()
        with peer:
            while data := peer.recv(65536):
                for frame in reader.receive(data):
                    for answer in self._answers(frame):
                        peer.sendall(answer)

    def _answers(self, frame: Frame) -> Iterator[bytes]:
        asked = frame.command
        if asked.type == BaseCommand.SEND:
            self.sent.append(frame)
            yield encode(
                command(
                    BaseCommand.SEND_RECEIPT,
                    producer_id=asked.send.producer_id,
                    sequence_id=asked.send.sequence_id,
                    message_id=MessageIdData(ledgerId=1, entryId=len(self.sent)),
                )
            )
        elif asked.type == BaseCommand.FLOW:
            while self.entries:
                yield encode(
                    command(
                        BaseCommand.MESSAGE,
                        consumer_id=asked.flow.consumer_id,
                        message_id=MessageIdData(ledgerId=1, entryId=len(self.entries)),
                    ),
                    self.entries.pop(0),
                )
        elif (answer := self._answer(asked)) is not None:
            yield encode(answer)

    def _answer(self, asked: BaseCommand) -> BaseCommand | None:
        if asked.type == BaseCommand.CONNECT:
            return command(
                BaseCommand.CONNECTED,
                server_version="scripted",
                protocol_version=20,
                max_message_size=MAX_MESSAGE_SIZE,
            )
        if asked.type == BaseCommand.PARTITIONED_METADATA:
            return command(
                BaseCommand.PARTITIONED_METADATA_RESPONSE,
                request_id=asked.partitionMetadata.request_id,
                partitions=0,
                response=CommandPartitionedTopicMetadataResponse.Success,
            )
        if asked.type == BaseCommand.LOOKUP:
            return command(
                BaseCommand.LOOKUP_RESPONSE,
                request_id=asked.lookupTopic.request_id,
                brokerServiceUrl=self.url,
                response=CommandLookupTopicResponse.Connect,
                proxy_through_service_url=True,
            )
        if asked.type == BaseCommand.PRODUCER:
            return command(
                BaseCommand.PRODUCER_SUCCESS,
                request_id=asked.producer.request_id,
                producer_name="scripted-0",
            )
        for name in ("subscribe", "close_producer", "close_consumer"):
            if asked.HasField(name):
                return command(BaseCommand.SUCCESS, request_id=getattr(asked, name).request_id)
        return None


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def client(server: ScriptedServer) -> Iterator[pulsar.Client]:
    client = pulsar.Client(
        server.url,
        operation_timeout_seconds=PATIENCE,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    yield client
    client.close()


@pytest.mark.parametrize("batching", [True, False], ids=["batched", "single"])
@pytest.mark.parametrize("kind", KINDS, ids=CompressionType.Name)
def test_unpack_reads_what_the_client_sends(
    server: ScriptedServer, client: pulsar.Client, kind: CompressionType, *, batching: bool
) -> None:
    server.sent.clear()
    producer = client.create_producer(
        "orders",
        compression_type=KINDS[kind],
        batching_enabled=batching,
        batching_max_publish_delay_ms=50,
        send_timeout_millis=PATIENCE * 1000,
    )
    for message in MESSAGES:
        producer.send_async(
            message.value,
            None,
            properties=dict(message.properties),
            partition_key=None if message.key is None else message.key.decode(),
            event_timestamp=message.event_time,
        )
    producer.flush()
    producer.close()
    assert all(verify_checksum(frame.payload) for frame in server.sent)
    assert {read_metadata(frame.payload).compression for frame in server.sent} == {kind}
    received = [one for frame in server.sent for one in unpack(frame.payload, MAX_MESSAGE_SIZE)]
    numbered = [message._replace(sequence=number) for number, message in enumerate(MESSAGES)]
    assert [one.message for one in received] == numbered
    assert any(one.batch_index > 0 for one in received) == batching


@pytest.mark.parametrize("kind", KINDS, ids=CompressionType.Name)
def test_client_reads_what_pack_writes(
    server: ScriptedServer, client: pulsar.Client, kind: CompressionType
) -> None:
    server.entries = [
        pack(MESSAGES[:1], "ours", 1, 1_700_000_000_000, kind),
        pack(MESSAGES[2:3], "ours", 2, 1_700_000_000_000, kind),
        pack(MESSAGES, "ours", 3, 1_700_000_000_000, kind),
    ]
    consumer = client.subscribe("orders", f"sub-{kind}")
    expected = [MESSAGES[0], MESSAGES[2], *MESSAGES]
    received = [consumer.receive(timeout_millis=PATIENCE * 1000) for _ in expected]
    consumer.close()
    assert [
        Message(
            one.data(),
            one.partition_key().encode() or None,
            one.properties(),
            one.event_timestamp() or None,
        )
        for one in received
    ] == expected
    assert {one.publish_timestamp() for one in received} == {1_700_000_000_000}
