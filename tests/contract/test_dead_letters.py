"""Dead letters on every backend: some are done with, others wait; a repeat is stored once."""

from __future__ import annotations

import time

import pytest

from router.backends import Batch, Start
from router.backends.memory import MemoryNode
from router.metrics import Metrics
from router.model import NOT_PARTITIONED, Message, Subscription, TopicName
from router.services.dead_letters.service import GROUP, DeadLetters, DeadLetterSelection
from router.services.publish import Publisher, PublishOptions
from router.services.shared_secret import RequestNames
from router.services.topic_metadata import TopicMetadataCache
from tests.contract.conftest import WAIT, Opened
from tests.contract.test_groups import waiting

pytestmark = pytest.mark.contract


def letters_of(opened: Opened) -> DeadLetters:
    directory = TopicMetadataCache(opened.backend, 0, WAIT, time.monotonic)
    names = RequestNames(MemoryNode().registry, WAIT)
    options = PublishOptions(1 << 20, WAIT, False)
    publisher = Publisher(opened.backend, directory, names, options, Metrics(), time.monotonic)
    return DeadLetters(
        opened.backend, directory, publisher, None, WAIT, lambda: time.time_ns() // 1_000_000
    )


def bury(opened: Opened, dead: TopicName, came_from: TopicName, *values: bytes) -> None:
    notes = {"router-topic": str(came_from), "router-error": "no JSON"}
    messages = [Message(value, b"k", notes) for value in values]
    opened.backend.publish(Batch(dead, NOT_PARTITIONED, messages), WAIT)


def test_letters_are_requeued_and_discarded_one_by_one(opened: Opened) -> None:
    dead, orders = opened.new_topic(), opened.new_topic()
    opened.backend.subscribe(Subscription(orders, "g"), Start.EARLIEST, WAIT)
    bury(opened, dead, orders, b"1", b"2", b"3")
    bury(opened, dead, orders, b"4")
    dead_letters = letters_of(opened)

    def values() -> list[bytes]:
        return [
            one.stored.message.value
            for one in dead_letters.page(dead, DeadLetterSelection()).dead_letters
        ]

    found = [
        one.stored.position for one in dead_letters.page(dead, DeadLetterSelection()).dead_letters
    ]
    assert dead_letters.discard(dead, DeadLetterSelection((found[1],)), lambda _: True).done == 1
    if opened.kind != "apache":  # which acknowledges a part of a batch only where it is told to
        assert values() == [b"1", b"3", b"4"]
    assert dead_letters.requeue(dead, DeadLetterSelection((found[3],)), lambda _: True).done == 1
    left = values()
    assert b"4" not in left
    outcome = dead_letters.requeue(dead, DeadLetterSelection(), lambda _: True)
    assert (outcome.done, outcome.refused, outcome.failure) == (len(left), {}, "")
    assert values() == []
    assert waiting(opened, Subscription(orders, "g")) == [b"4", *left]
    if opened.kind == "apache":
        return  # it deduplicates where its namespaces say so
    opened.backend.reset(Subscription(dead, GROUP), Start.EARLIEST, WAIT)
    assert dead_letters.requeue(dead, DeadLetterSelection((found[3],)), lambda _: True).done == 1
    assert waiting(opened, Subscription(orders, "g")) == [b"4", *left]
