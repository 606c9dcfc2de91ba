"""Positions of groups and offsets by time that official clients see on both brokers."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import NoOffsetForPartitionError, OffsetOutOfRangeError
from kafka.structs import OffsetAndMetadata

from tests.kafka.clients import SECONDS, Record
from tests.kafka.conftest import Clients
from tests.kafka.scenarios import T0, new_topic, numbered

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]


@contextlib.contextmanager
def consumer(clients: Clients, group: str, reset: str) -> Iterator[KafkaConsumer]:
    found = KafkaConsumer(
        bootstrap_servers=clients.bootstrap,
        group_id=group,
        auto_offset_reset=reset,
        enable_auto_commit=False,
    )
    with contextlib.closing(found):
        yield found


def test_a_commit_beyond_the_end_stays_and_is_out_of_range_at_the_reader(clients: Clients) -> None:
    client, group = clients["kafka-python"], f"g-{uuid.uuid4()}"
    topic = new_topic(client)
    place = TopicPartition(topic, 0)
    client.produce(topic, numbered(3))
    with consumer(clients, group, "none") as first:
        first.assign([place])
        first.commit({place: OffsetAndMetadata(100, "far", -1)})
        assert first.committed(place) == 100
        client.produce(topic, numbered(2, 3))
        assert first.committed(place) == 100
        with pytest.raises((OffsetOutOfRangeError, NoOffsetForPartitionError)):
            _read(first, 1)
    with consumer(clients, group, "earliest") as second:
        assert second.committed(place) == 100
        second.assign([place])
        assert _read(second, 5) == [0, 1, 2, 3, 4]
        second.commit()
        assert second.committed(place) == 5


def _read(reader: KafkaConsumer, count: int) -> list[int]:
    found: list[int] = []
    until = time.monotonic() + SECONDS
    while len(found) < count:
        assert time.monotonic() < until, found
        for records in reader.poll(500).values():
            found += [record.offset for record in records]
    return found


def test_the_largest_timestamp_is_found(clients: Clients) -> None:
    client = clients["confluent-kafka"]
    topic = new_topic(client)
    for times in ((5_000, 9_000, 1_000), (9_000, 3_000)):
        client.produce(topic, [Record(b"v", timestamp=T0 + time) for time in times])
    place = ConfluentPartition(topic, 0)
    admin = AdminClient({"bootstrap.servers": clients.bootstrap})
    found = admin.list_offsets({place: OffsetSpec.max_timestamp()})[place].result(SECONDS)
    assert (found.offset, found.timestamp) == (1, T0 + 9_000)
