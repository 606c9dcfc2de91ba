"""The last messages of a topic."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic

import pytest

from router.backends import Batch, Start
from router.backends.memory import MemoryBackend
from router.model import Message, Policies, TopicName
from router.services import recent as module
from router.services.consume import PollMailbox
from router.services.directory import Directory
from router.services.read import Reading, ReadOptions
from router.services.recent import nothing, recent

TOPIC = TopicName.parse("t")
OPTIONS = ReadOptions(5.0, False, 10, 5.0, 60.0, 1_000_000)


@pytest.fixture
def backend() -> Iterator[MemoryBackend]:
    made = MemoryBackend(auto_create=False)
    made.create_topic(TOPIC, 2, Policies(), {}, 5)
    yield made
    made.close()


@pytest.fixture
def reading(backend: MemoryBackend) -> Reading:
    return Reading(backend, Directory(backend, 0, 5, monotonic), OPTIONS, monotonic)


def store(backend: MemoryBackend, partition: int, *values: bytes) -> None:
    backend.publish(Batch(TOPIC, partition, [Message(value) for value in values]), 5)


def test_last_messages_come_with_what_follows_them(
    backend: MemoryBackend, reading: Reading
) -> None:
    for number in range(10):
        store(backend, number % 2, b"%d" % number)
    found = recent(reading, backend.describe_topic(TOPIC, 5), 4)
    values = [stored.message.value for stored in found.messages]
    assert len(values) == 4
    # Those of one millisecond have no order among partitions.
    for parity in (0, 1):
        own = [value for value in values if int(value) % 2 == parity]
        assert own == [b"%d" % number for number in range(parity, 10, 2)][5 - len(own) :]
    store(backend, 0, b"next")
    feed = reading.feed(TOPIC, found.whence, PollMailbox())
    assert [stored.message.value for stored in feed.take(10, 1000)] == [b"next"]
    feed.close()


def test_batches_that_are_more_than_one_look_takes_are_read_from_fewer_entries(
    backend: MemoryBackend, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_MESSAGES", 250)
    for number in range(9):
        store(backend, 0, *(b"%d.%d" % (number, index) for index in range(100)))
    found = recent(reading, backend.describe_topic(TOPIC, 5), 50)
    values = [stored.message.value for stored in found.messages]
    assert values == [b"8.%d" % index for index in range(50, 100)]


def test_last_batch_comes_whole(backend: MemoryBackend, reading: Reading) -> None:
    store(backend, 0, *(b"%d" % number for number in range(module.TAKE_MESSAGES + 1)))
    found = recent(reading, backend.describe_topic(TOPIC, 5), 1_000)
    assert len(found.messages) == module.TAKE_MESSAGES + 1


def test_topic_without_messages_is_followed_from_its_first(
    backend: MemoryBackend, reading: Reading
) -> None:
    found = recent(reading, backend.describe_topic(TOPIC, 5), 50)
    assert found.messages == ()
    assert found.whence == {0: Start.EARLIEST, 1: Start.EARLIEST}


def test_store_that_tells_no_end_is_followed_from_now(reading: Reading) -> None:
    assert nothing(reading, TOPIC).whence == {0: Start.LATEST, 1: Start.LATEST}
