"""What schema registries ask of their topic: created compacted, verified, read to its end.

Confluent's and Karapace's keep all schemas in one compacted topic, `_schemas`. An instance reads it
from the beginning, then writes a record without a meaning and reads on to it, and so knows that it
has everything. Every later write is read back in the same way before it is answered.
"""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.kafka.clients import SECONDS
from tests.kafka.clients.confluent import topic_configs
from tests.kafka.conftest import Clients

pytestmark = [pytest.mark.java, pytest.mark.timeout(120)]
NOOP = {"keytype": "NOOP", "magic": 0}


class Registry:
    """One instance of a registry; `schemas` is what it read so far."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self.created = self._create()
        configs = topic_configs(bootstrap, topic)
        assert configs["cleanup.policy"] == "compact"
        self.schemas: dict[str, Any] = {}
        settings = {"bootstrap.servers": bootstrap}
        self._producer = Producer(settings | {"acks": "all", "enable.idempotence": False})
        group = {"group.id": f"registry-{uuid.uuid4()}", "enable.auto.commit": False}
        self._consumer = Consumer(settings | group)
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        self._read_offset = -1
        self.write(NOOP, None)

    def close(self) -> None:
        """Read no more."""
        self._consumer.close()

    def write(self, key: dict[str, Any], value: dict[str, Any] | None) -> None:
        """Store a record and read it back."""
        found: list[int] = []

        def delivered(error: KafkaError | None, message: Any) -> None:
            assert error is None, error
            found.append(message.offset())

        data = None if value is None else json.dumps(value).encode()
        self._producer.produce(
            self._topic, data, json.dumps(key).encode(), partition=0, on_delivery=delivered
        )
        assert self._producer.flush(SECONDS) == 0
        self._read_to(found[0])

    def _read_to(self, offset: int) -> None:
        until = time.monotonic() + SECONDS
        while self._read_offset < offset:
            assert time.monotonic() < until, f"{offset} was not read"
            message = self._consumer.poll(1.0)
            if message is None:
                continue
            assert message.error() is None, message.error()
            key, value = message.key(), message.value()
            assert key is not None
            self._read_offset = message.offset() or 0
            if json.loads(key) == NOOP:
                continue
            if value is None:
                self.schemas.pop(key.decode(), None)
            else:
                self.schemas[key.decode()] = json.loads(value)

    def _create(self) -> bool:
        """Create the topic; return whether it was not there."""
        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        new = NewTopic(self._topic, 1, 1, config={"cleanup.policy": "compact"})
        try:
            admin.create_topics([new])[self._topic].result(SECONDS)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            return False
        return True


def test_an_instance_reads_what_others_wrote(clients: Clients) -> None:
    topic = f"_schemas-{uuid.uuid4()}"
    first = Registry(clients.bootstrap, topic)
    expected = {}
    for version in range(1, 4):
        for subject in ("orders", "prices"):
            key = {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}
            value = {"subject": subject, "version": version, "schema": '"string"', "deleted": False}
            first.write(key, value)
            expected[json.dumps(key)] = value
    config = {"keytype": "CONFIG", "subject": None, "magic": 0}
    for level in ("BACKWARD", "FULL"):
        first.write(config, {"compatibilityLevel": level})
    expected[json.dumps(config)] = {"compatibilityLevel": "FULL"}
    gone = {"keytype": "SCHEMA", "subject": "orders", "version": 1, "magic": 1}
    first.write(gone, None)
    del expected[json.dumps(gone)]
    second = Registry(clients.bootstrap, topic)
    assert (first.created, second.created) == (True, False)
    assert first.schemas == second.schemas == expected
    first.close()
    second.close()


def test_a_record_without_a_key_is_refused(clients: Clients) -> None:
    topic = f"_schemas-{uuid.uuid4()}"
    Registry(clients.bootstrap, topic).close()
    codes: list[int] = []
    producer = Producer({"bootstrap.servers": clients.bootstrap})
    producer.produce(topic, b"v", on_delivery=lambda error, _: codes.append(error.code()))
    assert producer.flush(SECONDS) == 0
    assert codes == [87]  # INVALID_RECORD
