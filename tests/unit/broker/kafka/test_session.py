"""One connection: versions, order, limits, and what ends it; over a transport in memory."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from router import errors
from router.broker.kafka import failures as error_codes
from router.broker.kafka import session
from router.broker.kafka.apis import APIS
from router.broker.kafka.failures import ErrorCode, error_code, error_message
from router.broker.storage import StoreError
from router.errors import RouterError, TopicNotFoundError
from router.log import MAX_REFUSAL_LINES_PER_SECOND, LineLimit
from router.wire import ProtocolError
from router.wire.kafka.frames import KafkaFrameReader
from tests.unit.broker.kafka.serving import KafkaClient, serving

API_VERSIONS = 18
PUBLIC_METADATA = {"topics": None}


@pytest.mark.parametrize("version", range(5))
async def test_versions_are_answered_from_the_table(tmp_path: Path, version: int) -> None:
    async with serving(tmp_path) as server:
        answer = await server.client().ask(
            "ApiVersions", version, client_software_name="lib", client_software_version="1.0"
        )
        found = {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys}
        assert answer.error_code == 0
        assert found == {api.key: api.versions for api in APIS}


async def test_versions_of_a_newer_client_are_answered_in_version_0(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        client = server.client()
        client.connection.data_received(
            struct.pack(">ihhih", 12, API_VERSIONS, 99, 7, -1) + bytes(2)
        )
        # Correlation id, error 35, one key with its versions; 16 bytes, as Apache Kafka sends.
        answer = await client.receive_frame()
        assert struct.unpack(">ihihhh", answer) == (7, 35, 1, API_VERSIONS, 0, 4)
        assert not client.connection.closed


async def test_a_client_is_named_by_its_software(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        client = server.client()
        named = {"client_software_name": "a b", "client_software_version": "1"}
        answer = await client.ask("ApiVersions", 3, **named)
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        named["client_software_name"] = "librdkafka"
        assert (await client.ask("ApiVersions", 3, **named)).error_code == 0
        assert client.connection.session.name.startswith("librdkafka 1 at 127.0.0.1")


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">ihhi", 8, 9999, 0, 1),
        struct.pack(">ihhih", 10, 3, 99, 1, -1),
        struct.pack(">ihhih", 10, 3, 4, 1, -1),
        struct.pack(">ihhih", 10, 3, 4, 1, 500),
        struct.pack(">i", session.MAX_REQUEST_BYTES + 1),
        struct.pack(">i", -1),
        struct.pack(">ihh", 4, 3, 4),
    ],
    ids=["api", "version", "no-body", "client-id", "too-large", "negative", "too-short"],
)
async def test_what_is_no_request_ends_its_connection_only(tmp_path: Path, frame: bytes) -> None:
    async with serving(tmp_path) as server:
        client, other = server.client(), server.client()
        client.connection.data_received(frame)
        assert client.connection.closed
        assert (await other.ask("Metadata", 4, topics=None)).topics == []


async def test_responses_come_in_the_order_of_the_requests(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        client = server.client()
        # The first one waits for the disk.
        client.send("Metadata", 9, topics=[_named(client, "new")], allow_auto_topic_creation=True)
        client.send("ApiVersions", 0)
        client.send("Metadata", 9, **PUBLIC_METADATA)
        assert [topic.name for topic in (await client.receive()).topics] == ["new"]
        assert (await client.receive()).api_keys
        # A request finds what the one before it did.
        assert [topic.name for topic in (await client.receive()).topics] == ["new"]


async def test_nothing_is_read_while_requests_wait(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        client = server.client()
        client.send("Metadata", 9, topics=[_named(client, "new")], allow_auto_topic_creation=True)
        client.send("ApiVersions", 0)
        assert not client.transport.reading
        await client.receive()
        await client.receive()
        assert client.transport.reading


async def test_a_client_that_left_is_answered_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        client = server.client()
        client.send("Metadata", 9, topics=[_named(client, "new")], allow_auto_topic_creation=True)
        client.leave()
        await client.connection.settled()
        assert client.take() == []
        assert server.topics.find_kafka("new") is not None


def _named(client: KafkaClient, name: str) -> object:
    return client.struct("MetadataRequest", "MetadataRequestTopic", name=name)


@pytest.mark.parametrize("size", [0, 1, 7])
async def test_a_frame_that_is_too_short_for_a_request_ends_its_connection(
    tmp_path: Path, size: int
) -> None:
    async with serving(tmp_path) as server:
        client = server.client()
        with capture_logs() as logs:
            client.connection.data_received(struct.pack(">i", size) + bytes(size))
        assert [(one["event"], one["protocol"]) for one in logs] == [
            ("client-broke-protocol", "test")
        ]
        assert client.connection.closed
        assert client.take() == []


async def test_clients_that_break_the_protocol_write_a_bounded_number_of_lines(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        seconds = iter([0.0] * 25 + [1.0])
        transport = server.context.transport
        transport.broken_lines = LineLimit(lambda: next(seconds))
        with capture_logs() as logs:
            for _ in range(26):
                server.client().connection.data_received(struct.pack(">i", 0))
        lines = [one for one in logs if one["event"] == "client-broke-protocol"]
        assert len(lines) == MAX_REFUSAL_LINES_PER_SECOND + 1
        assert lines[-1]["left_out"] == 25 - MAX_REFUSAL_LINES_PER_SECOND


@pytest.mark.parametrize("step", [1, 3, 7, 1000])
def test_frames_survive_any_chunking(step: int) -> None:
    frames = [bytes([number]) * number for number in range(20)]
    stream = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
    reader = KafkaFrameReader(100)
    found = []
    for start in range(0, len(stream), step):
        found += reader.receive(stream[start : start + step])
    assert found == frames
    assert reader.expected_bytes == 4
    with pytest.raises(ProtocolError):
        reader.receive(struct.pack(">i", 101))


def test_a_reader_says_how_large_the_frame_is_that_has_begun() -> None:
    reader = KafkaFrameReader(1000)
    assert reader.receive(struct.pack(">i", 500) + bytes(20)) == []
    assert reader.expected_bytes == 504


def test_every_failure_has_a_code() -> None:
    for code, failure in errors.by_code().items():
        assert code in error_codes.FAILURES, failure
    assert error_code(TopicNotFoundError()) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert error_code(StoreError("full")) is ErrorCode.KAFKA_STORAGE_ERROR
    assert error_code(OSError(5, "x")) is ErrorCode.KAFKA_STORAGE_ERROR
    assert error_code(ValueError()) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert error_message(RouterError("so")) == "internal: so"


async def test_requests_and_errors_are_counted(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        client = server.client()
        wrong = {"client_software_name": "", "client_software_version": ""}
        await client.ask("ApiVersions", 3, **wrong)
        await client.ask("ApiVersions", 0)
        counters = server.context.broker.counters
        await counters.refresh()
        shown = counters.render()
        assert 'router_kafka_requests_total{api="ApiVersions"} 2' in shown
        assert 'router_kafka_errors_total{api="ApiVersions",error="INVALID_REQUEST"} 1' in shown


async def test_a_large_request_without_batches_ends_its_connection(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        client = server.client()
        size = session.MAX_OTHER_REQUEST_BYTES + 1
        client.connection.data_received(struct.pack(">ihhih", size, 3, 4, 1, -1) + bytes(size - 10))
        assert client.connection.closed
