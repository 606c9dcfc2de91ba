"""Connections of the load to a router, one for each protocol: each call is one request."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.broker.raw import RawClient
from tests.histories.http_client import HttpConnection
from tests.histories.kafka_client import KafkaConnection, struct
from tests.histories.nats_client import NatsConnection
from tests.histories.recording import RefusedError, UnknownOutcomeError

FAILURES: Final = (OSError, UnknownOutcomeError, RefusedError, AssertionError)
"""What the calls raise if they are not carried out, or may not have been."""


@dataclass(frozen=True)
class Ports:
    """Where clients connect to."""

    http: int
    kafka: int
    nats: int
    pulsar: int


class Kafka(KafkaConnection):
    """With requests of administration."""

    def create(self, topic: str, **configs: str) -> None:
        """Create a topic with one partition."""
        texts = [
            struct(
                "CreateTopicsRequest",
                "CreatableTopicConfig",
                name=name.replace("_", "."),
                value=value,
            )
            for name, value in configs.items()
        ]
        made = struct(
            "CreateTopicsRequest",
            "CreatableTopic",
            name=topic,
            num_partitions=1,
            replication_factor=1,
            assignments=[],
            configs=texts,
        )
        answer = self.request("CreateTopics", 5, timeout_ms=5_000, topics=[made])
        assert not answer.topics[0].error_code, answer

    def delete_before(self, topic: str, offset: int) -> None:
        """Delete the records of a topic below an offset."""
        part = struct(
            "DeleteRecordsRequest", "DeleteRecordsPartition", partition_index=0, offset=offset
        )
        named = struct("DeleteRecordsRequest", "DeleteRecordsTopic", name=topic, partitions=[part])
        answer = self.request("DeleteRecords", 2, timeout_ms=5_000, topics=[named])
        assert not answer.topics[0].partitions[0].error_code, answer

    @property
    def port(self) -> int:
        """The port of this end, 0 without a connection."""
        return self._socket.getsockname()[1] if self._socket is not None else 0


class Nats(NatsConnection):
    """With pulls of a consumer, whose messages have a subject for their acknowledgement."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._reply_to = ""

    @property
    def port(self) -> int:
        """The port of this end, 0 without a connection."""
        return self._socket.getsockname()[1] if self._socket is not None else 0

    def pull(self, stream: str, consumer: str) -> tuple[bytes, str]:
        """Return the next message and the subject of its acknowledgement; empty: there is none."""
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        head, body = self._request(subject, json.dumps({"batch": 1, "no_wait": True}).encode(), {})
        return (b"", "") if head else (body, self._reply_to)

    def confirm(self, subject: str) -> None:
        """Acknowledge a message and wait until the broker has taken it."""
        self._request(subject, b"+ACK", {})

    def _reply(self, inbox: bytes) -> tuple[str, bytes]:
        assert self._lines is not None
        assert self._socket is not None
        while True:
            words = self._lines.readline().split()
            if not words or words[0] == b"-ERR":
                raise ConnectionError(str(words))
            if words[0] == b"PING":
                self._socket.sendall(b"PONG\r\n")
                continue
            payload = self._lines.read(int(words[-1]) + 2)[:-2]
            if words[2] == b"1":
                # A message that is pulled has its own subject, not that of the inbox.
                has_head = words[0] == b"HMSG"
                self._reply_to = words[3].decode() if len(words) == 5 + has_head else ""
                return self._split(payload, int(words[-2]) if has_head else 0)


class Http(HttpConnection):
    """With the port of this end."""

    @property
    def port(self) -> int:
        """The port of this end, 0 without a connection."""
        return self._client.sock.getsockname()[1] if self._client is not None else 0


class Pulsar:
    """A connection of the Pulsar protocol that is opened when it is needed."""

    def __init__(self, port: int, prepare: Callable[[RawClient], object]) -> None:
        self._url = f"pulsar://127.0.0.1:{port}"
        self._prepare = prepare
        self._client: RawClient | None = None

    @property
    def port(self) -> int:
        """The port of this end, 0 without a connection."""
        return self._client._socket.getsockname()[1] if self._client is not None else 0

    def connected(self) -> RawClient:
        """Return the client, connected and prepared."""
        if self._client is None:
            self._client = RawClient(self._url)
            self._client.shake_hands()
            self._prepare(self._client)
        return self._client

    def close(self) -> None:
        """End the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None


Connection = Kafka | Nats | Http | Pulsar
