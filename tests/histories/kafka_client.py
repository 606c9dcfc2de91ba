"""One Kafka connection without retries: each call is one request, and its outcome is plain."""

from __future__ import annotations

import socket
import time
from typing import Any, Final

from router.kafka.definitions import definition_texts
from router.wire import ProtocolError
from router.wire.kafka.engine import Messages, request_header_version, response_header_version
from router.wire.kafka.frames import SIZE, KafkaFrameReader
from router.wire.kafka.record_batches import build_batch, open_batch
from router.wire.kafka.records import read_records, write_record
from tests.histories.recording import Output, RefusedError, UnknownOutcomeError
from tests.wire.kafka.batches import split_batches

MESSAGES: Final[Any] = Messages(definition_texts())
SECONDS: Final = 15.0
MAX_RESPONSE: Final = 4 << 20
OUT_OF_RANGE: Final = 1
LATEST: Final = -1


class KafkaConnection:
    """Connects when it is needed; after a failure the next call connects again."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket: socket.socket | None = None
        self._frames = KafkaFrameReader(MAX_RESPONSE)

    def append(self, topic: str, value: str) -> Output:
        """Produce one record with acks=all."""
        return self.append_keyed(topic, None, value)

    def append_keyed(self, topic: str, key: bytes | None, value: str) -> Output:
        """Produce one record under a key with acks=all."""
        record = write_record(0, 0, key, value.encode())
        # Apache Kafka removes what is older than its retention.
        now_ms = time.time_ns() // 1_000_000
        part = struct(
            "ProduceRequest",
            "PartitionProduceData",
            index=0,
            records=bytes(build_batch([record], now_ms, now_ms)),
        )
        data = struct("ProduceRequest", "TopicProduceData", name=topic, partition_data=[part])
        answer = self.request("Produce", 9, acks=-1, timeout_ms=5_000, topic_data=[data])
        found = answer.responses[0].partition_responses[0]
        expect(found.error_code)
        return {"offset": found.base_offset}

    def read(self, topic: str, offset: int) -> Output:
        """Fetch what there is from an offset on."""
        part = struct(
            "FetchRequest",
            "FetchPartition",
            partition=0,
            fetch_offset=offset,
            partition_max_bytes=1 << 20,
            current_leader_epoch=-1,
        )
        named = struct("FetchRequest", "FetchTopic", topic=topic, partitions=[part])
        answer = self.request(
            "Fetch", 11, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=[named]
        )
        expect(answer.error_code)
        found = answer.responses[0].partitions[0]
        if found.error_code == OUT_OF_RANGE:
            return {"values": []}
        expect(found.error_code)
        values: list[str] = []
        for header, data in split_batches(bytes(found.records or b"")):
            for record in read_records(open_batch(header, data, MAX_RESPONSE), header.records):
                at = header.base_offset + record.offset
                if at >= offset:
                    gap = at != offset + len(values)
                    values.append(f"a gap before {at}" if gap else (record.value or b"").decode())
        return {"values": values}

    def end(self, topic: str) -> Output:
        """List the offset behind the last record."""
        part = struct(
            "ListOffsetsRequest",
            "ListOffsetsPartition",
            partition_index=0,
            timestamp=LATEST,
            current_leader_epoch=-1,
        )
        named = struct("ListOffsetsRequest", "ListOffsetsTopic", name=topic, partitions=[part])
        answer = self.request("ListOffsets", 7, replica_id=-1, topics=[named])
        found = answer.topics[0].partitions[0]
        expect(found.error_code)
        return {"offset": found.offset}

    def commit(self, group: str, topic: str, offset: int) -> Output:
        """Commit an offset of partition 0 as a client that is no member."""
        part = struct(
            "OffsetCommitRequest",
            "OffsetCommitRequestPartition",
            partition_index=0,
            committed_offset=offset,
        )
        named = struct(
            "OffsetCommitRequest", "OffsetCommitRequestTopic", name=topic, partitions=[part]
        )
        answer = self.request("OffsetCommit", 7, group_id=group, topics=[named])
        expect(answer.topics[0].partitions[0].error_code)
        return {}

    def committed(self, group: str, topic: str, partition: int = 0) -> Output:
        """Fetch the committed offset; -1: none."""
        named = struct(
            "OffsetFetchRequest",
            "OffsetFetchRequestTopic",
            name=topic,
            partition_indexes=(partition,),
        )
        answer = self.request("OffsetFetch", 7, group_id=group, topics=[named])
        expect(answer.error_code)
        found = answer.topics[0].partitions[0]
        expect(found.error_code)
        return {"offset": found.committed_offset}

    def close(self) -> None:
        """End the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def request(self, name: str, version: int, **fields: Any) -> Any:
        """Return the response; raise RefusedError, UnknownOutcomeError."""
        if self._socket is None:
            self._connect()
        try:
            return self._answer(name, version, fields)
        except (OSError, ProtocolError) as error:
            self.close()
            raise UnknownOutcomeError(str(error)) from error

    def _connect(self) -> None:
        """Connect and see that the broker answers: a proxy accepts for one that is gone."""
        try:
            self._socket = socket.create_connection(("127.0.0.1", self._port), SECONDS)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._frames = KafkaFrameReader(MAX_RESPONSE)
            self._answer("ApiVersions", 0, {})
        except (OSError, ProtocolError) as error:
            self.close()
            raise RefusedError(str(error)) from error

    def _answer(self, name: str, version: int, fields: dict[str, Any]) -> Any:
        assert self._socket is not None
        definition = MESSAGES.definition(f"{name}Request")
        head = MESSAGES.message("RequestHeader")(
            request_api_key=definition.api_key,
            request_api_version=version,
            correlation_id=7,
            client_id="history",
        ).write(request_header_version(definition, version))
        body = MESSAGES.message(f"{name}Request")(**fields).write(version)
        self._socket.sendall(SIZE.pack(len(head) + len(body)) + bytes(head) + bytes(body))
        while not (frames := self._frames.receive(data := self._socket.recv(1 << 16))):
            if not data:
                raise ConnectionError("closed")
        response = MESSAGES.definition(f"{name}Response")
        _, start = MESSAGES.message("ResponseHeader").read_from(
            frames[0], response_header_version(response, version)
        )
        return MESSAGES.message(f"{name}Response").read_from(frames[0], version, start)[0]


def struct(message: str, name: str, /, **fields: Any) -> Any:
    """Return a struct of a message."""
    return MESSAGES.message(message).STRUCTS[name](**fields)


def expect(code: int) -> None:
    """Take an error for what it may be: the request may have been carried out in part."""
    if code:
        raise UnknownOutcomeError(f"error code {code}")
