"""Fetch sessions (KIP-227) are answered as by Apache Kafka: what changed, and what is refused."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from router.wire.kafka.error_codes import ErrorCode
from tests.histories.kafka_client import MESSAGES, KafkaConnection
from tests.kafka.clients import Record
from tests.kafka.conftest import Clients

pytestmark = [pytest.mark.java, pytest.mark.timeout(120)]
PARTITIONS = 3
LEADERS_SECONDS = 30.0


class SessionReader(KafkaConnection):
    """A connection that reads a topic; calls return the partitions that are answered."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(int(bootstrap.rpartition(":")[2]))
        self.topic = topic
        self.id, self.epoch = 0, 0

    def answer(self, *indexes: int, forgets: tuple[int, ...] = (), offset: int = 0) -> Any:
        """Name partitions, read from an offset, and forget others."""
        structs = MESSAGES.message("FetchRequest").STRUCTS
        parts = [
            structs["FetchPartition"](
                partition=index,
                fetch_offset=offset,
                partition_max_bytes=1 << 20,
                current_leader_epoch=-1,
            )
            for index in indexes
        ]
        topics = [structs["FetchTopic"](topic=self.topic, partitions=parts)] if parts else []
        gone = [structs["ForgottenTopic"](topic=self.topic, partitions=list(forgets))]
        return self.request(
            "Fetch",
            11,
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=1 << 20,
            session_id=self.id,
            session_epoch=self.epoch,
            topics=topics,
            forgotten_topics_data=gone if forgets else [],
        )

    def fetch(self, *indexes: int, **how: Any) -> dict[int, str]:
        """Go on; return of each partition that is answered its error, or whether it has records."""
        answer = self.answer(*indexes, **how)
        assert answer.error_code == 0
        self.id, self.epoch = answer.session_id, self.epoch + 1
        return {
            part.partition_index: ErrorCode(part.error_code).name
            if part.error_code
            else ("records" if part.records else "none")
            for topic in answer.responses
            for part in topic.partitions
        }

    def await_leaders(self) -> None:
        """Return when the broker leads all partitions: a moment after it has made the topic."""
        until = time.monotonic() + LEADERS_SECONDS
        indexes = range(PARTITIONS)
        while True:
            self.id, self.epoch = 0, -1  # without a session
            if self.fetch(*indexes) == dict.fromkeys(indexes, "none"):
                break
            assert time.monotonic() < until
            time.sleep(0.05)
        self.epoch = 0

    def refusal(self) -> tuple[str, int]:
        """Return the error of a request that names nothing, and the session of the answer."""
        answer = self.answer()
        return ErrorCode(answer.error_code).name, answer.session_id


@pytest.fixture
def reader(clients: Clients) -> Iterator[SessionReader]:
    topic = f"t-{uuid.uuid4()}"
    clients["confluent-kafka"].create(topic, PARTITIONS)
    with contextlib.closing(SessionReader(clients.bootstrap, topic)) as made:
        made.await_leaders()
        yield made


def test_a_session_is_answered_what_changed(clients: Clients, reader: SessionReader) -> None:
    topic, client = reader.topic, clients["confluent-kafka"]
    client.produce(topic, [Record(b"v")], partition=1)
    assert reader.fetch(0, 1, 2) == {0: "none", 1: "records", 2: "none"}
    assert reader.id > 0
    assert reader.fetch() == {1: "records"}
    assert reader.fetch(1, offset=1) == {}
    client.produce(topic, [Record(b"v")], partition=2)
    assert reader.fetch(forgets=(1,)) == {2: "records"}
    assert reader.fetch(2, offset=1) == {}
    assert reader.fetch(1) == {1: "records"}
    assert reader.fetch(1, offset=9) == {1: "OFFSET_OUT_OF_RANGE"}
    assert reader.fetch() == {1: "OFFSET_OUT_OF_RANGE"}
    assert reader.fetch(1, offset=1) == {1: "none"}
    reader.epoch += 1
    assert reader.refusal() == ("INVALID_FETCH_SESSION_EPOCH", 0)
    reader.epoch -= 1
    assert reader.fetch() == {}
    reader.id += 1
    assert reader.refusal() == ("FETCH_SESSION_ID_NOT_FOUND", 0)
    reader.id = 0
    assert reader.refusal() == ("FETCH_SESSION_ID_NOT_FOUND", 0)
    reader.epoch = -1
    assert reader.fetch(0) == {0: "none"}
    assert reader.id == 0
