"""What a page of the table view takes apart; its answers are in contract/test_latest."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path

import pytest

from router.broker.compaction import PartitionIndex, table_view
from router.broker.compaction.key_index import KeyedMessage
from router.broker.compaction.table_view import CompactionCalls
from router.broker.consume.entry_info import MessageKey
from router.broker.entries import ENTRY_FORMATS
from router.broker.storage import KAFKA_FORMAT
from router.model import Message
from tests.unit.broker.compaction.log import TOPIC, History, opened


class CountedFormat:
    """Kafka's format, which counts the entries that are taken apart."""

    opened = 0

    def to_messages(self, payload: bytes) -> Sequence[Message]:
        self.opened += 1
        return ENTRY_FORMATS[KAFKA_FORMAT].to_messages(payload)

    def keys(self, payload: bytes) -> Sequence[MessageKey]:
        return ENTRY_FORMATS[KAFKA_FORMAT].keys(payload)


async def test_entry_is_taken_apart_once_for_a_page(folder: Path) -> None:
    counted = CountedFormat()
    async with opened(folder, History()) as log:
        await log.publish([(b"k%03d" % n, b"v") for n in range(200)], KAFKA_FORMAT)
        calls = CompactionCalls(log.topics, log.indexes, log.compactor, {KAFKA_FORMAT: counted})
        page = await calls.latest_values(str(TOPIC), None, 200)
        assert (len(page["values"]), page["next"], counted.opened) == (200, None, 1)


@pytest.mark.parametrize("bound", ["MAX_OPENED_MESSAGES", "MAX_OPENED_BYTES"])
async def test_page_ends_when_enough_was_taken_apart(
    folder: Path, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_view, bound, 5)
    counted = CountedFormat()
    async with opened(folder, History()) as log:
        for entry in range(3):
            messages = [(b"%d-%d" % (place, entry), b"v") for place in range(6)]
            await log.publish(messages, KAFKA_FORMAT)
        calls = CompactionCalls(log.topics, log.indexes, log.compactor, {KAFKA_FORMAT: counted})
        page = await calls.latest_values(str(TOPIC), None, 100)
        keys = [one["key"] for one in page["values"]]
        assert ([b64decode(key) for key in keys], counted.opened) == ([b"0-0"], 1)
        while page["next"] is not None:
            page = await calls.latest_values(str(TOPIC), page["next"], 100)
            keys += [one["key"] for one in page["values"]]
        assert len(keys) == len(set(keys)) == 18


async def test_value_that_is_superseded_and_cleaned_while_a_page_is_made_is_the_newer_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = PartitionIndex.page
    async with opened(folder, History()) as log:

        async def then_clean(
            index: PartitionIndex, after: bytes | None, limit: int
        ) -> list[KeyedMessage]:
            page = await found(index, after, limit)
            await log.publish([(b"a", b"newer"), (b"b", None)], KAFKA_FORMAT)
            log.store.delete_messages(log.partition.ledger, [(0, 1)])
            return page

        monkeypatch.setattr(PartitionIndex, "page", then_clean)
        messages = [(b"a", b"old"), (b"b", b"old"), (b"c", b"old")]
        await log.publish(messages, KAFKA_FORMAT)
        formats = {KAFKA_FORMAT: ENTRY_FORMATS[KAFKA_FORMAT]}
        calls = CompactionCalls(log.topics, log.indexes, log.compactor, formats)
        page = await calls.latest_values(str(TOPIC), None, 10)
        values = {b64decode(one["key"]): b64decode(one["value"]) for one in page["values"]}
        assert values == {b"a": b"newer", b"c": b"old"}
