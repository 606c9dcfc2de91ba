"""Stretches of a topic on every store: in either direction each message once."""

from __future__ import annotations

from time import monotonic

from router.backends import Batch, Start
from router.model import Message, Stored, TopicName, TopicStats
from router.services.pages import MessagePage, after, before
from router.services.read import ReadOptions, TopicReader
from router.services.scan import beginning, end_of
from router.services.topic_metadata import TopicMetadataCache
from tests.contract.conftest import WAIT, Opened

OPTIONS = ReadOptions(WAIT, False, 10, 5.0, 60.0, 1_000_000)
PAGE = 7
COUNT = 60


def reads(opened: Opened) -> TopicReader:
    return TopicReader(
        opened.backend, TopicMetadataCache(opened.backend, 0, WAIT, monotonic), OPTIONS, monotonic
    )


def filled(opened: Opened, partitions: int) -> TopicName:
    """Return a topic with messages alone and in batches."""
    topic = opened.new_topic(partitions)
    number = 0
    while number < COUNT:
        size = min(1 + number % 5, COUNT - number)
        batch = [Message(b"%d" % (number + index)) for index in range(size)]
        opened.backend.publish(Batch(topic, number % 2 if partitions else -1, batch), WAIT)
        number += size
    return topic


def forward(reading: TopicReader, stats: TopicStats) -> list[MessagePage]:
    topic, ends = stats.info.topic, end_of(stats)
    pages = [after(reading, topic, (beginning([*ends], Start.EARLIEST), ends), PAGE, everything)]
    while not pages[-1].whole:
        assert pages[-1].messages
        pages.append(after(reading, topic, (pages[-1].end, ends), PAGE, everything))
    return pages


def back(reading: TopicReader, stats: TopicStats) -> list[MessagePage]:
    pages = [before(reading, stats, end_of(stats), PAGE, everything)]
    while not pages[-1].whole:
        assert pages[-1].messages
        pages.append(before(reading, stats, pages[-1].begin, PAGE, everything))
    return pages


def everything(stored: Stored) -> bool:
    return True


def numbers(pages: list[MessagePage]) -> list[int]:
    return [int(stored.message.value) for page in pages for stored in page.messages]


def test_pages_hold_each_message_once(opened: Opened) -> None:
    reading = reads(opened)
    for partitions in (0, 2):
        topic = filled(opened, partitions)
        stats = opened.backend.describe_topic(topic, WAIT)
        assert sorted(numbers(forward(reading, stats))) == [*range(COUNT)]
        assert sorted(numbers(back(reading, stats))) == [*range(COUNT)]


def test_filter_searches_back_to_the_first_message(opened: Opened) -> None:
    reading, topic = reads(opened), filled(opened, 2)
    stats = opened.backend.describe_topic(topic, WAIT)
    found = before(reading, stats, end_of(stats), 1, lambda stored: stored.message.value == b"0")
    assert [stored.message.value for stored in found.messages] == [b"0"]
