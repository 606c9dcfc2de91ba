"""What may be delivered is decided in one module, and every reader asks it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

import router
from router.broker.consume import BacklogCounter, StartPosition, SubscriptionType
from router.broker.consume.polls.poll import Poll
from router.broker.consume.polls.reader import PollReader
from router.broker.consume.polls.requests import GroupPollRequest, TakenMessages
from router.broker.consume.visible import Visible
from router.broker.entries import ENTRY_FORMATS, Transcoder
from router.broker.entries.slicing import EntryOpener
from router.broker.kafka.batch_reader import BatchReader
from router.broker.kafka.context import KafkaContext
from router.broker.nats.streams.log.indexing import Indexer
from router.broker.nats.streams.log.messages import EntryCache, MessageReader
from router.broker.nats.streams.log.stream_log import StreamLog
from router.broker.nats.streams.log.subject_index import SubjectBudget, SubjectIndex
from router.broker.pulsar.positions import last_entry
from tests.unit.broker.consume.dispatch.bench import on_a_partition
from tests.unit.broker.storage.rig import until
from tests.wire.kafka.batches import split_batches

MODULE = Path("broker/consume/visible.py")
DELETIONS = {"deleted_numbers", "deleted_ranges", "DeletedRanges"}
BATCH, ENTRIES, END = 3, 6, 4


def names(tree: ast.AST) -> Iterator[str]:
    """Yield the names by which a module finds anything: attributes, imports, strings."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute():
                yield node.attr
            case ast.ImportFrom():
                yield from (node.module or "").split(".")
                yield from (one.name for one in node.names)
            case ast.Import():
                yield from (part for one in node.names for part in one.name.split("."))
            case ast.Constant(value=str(text)):
                yield text


def test_no_reader_looks_at_the_deletions_of_a_ledger_itself() -> None:
    folder = Path(router.__file__).parent
    found = {
        path.relative_to(folder)
        for path in folder.rglob("*.py")
        if not path.is_relative_to(folder / "broker/storage")
        and any(name in (text := path.read_text()) for name in DELETIONS)
        and DELETIONS & set(names(ast.parse(text)))
    }
    assert found == {MODULE}


class _Poll:
    """A poll that is not waited for."""

    def ready(self) -> None:
        """Do nothing: the test takes again."""

    def closed(self, reader: PollReader) -> None:
        raise AssertionError(reader)


@pytest.mark.parametrize("in_memory", [True, False])
async def test_all_readers_end_where_a_rule_says_that_what_is_visible_ends(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, in_memory: bool
) -> None:
    if not in_memory:
        async with on_a_partition(folder, cache=0) as bench:
            await bench.publish(ENTRIES, batch=BATCH)
    monkeypatch.setattr(Visible, "end_entry", END)
    monkeypatch.setattr(Visible, "end_number", END * BATCH)
    async with on_a_partition(folder, cache=1 << 20 if in_memory else 0) as bench:
        if in_memory:
            await bench.publish(ENTRIES, batch=BATCH)
        partition = bench.partition
        visible, transcoder = partition.visible, Transcoder(ENTRY_FORMATS)
        subscription = await bench.subscription()
        bench.consumer(subscription, "pulsar", SubscriptionType.SHARED, permits=100)
        await until(lambda: len(bench.notes.got) == END)
        assert last_entry(subscription, unacknowledged=False) == END - 1
        assert await BacklogCounter().backlog(visible, subscription.cursor) == END * BATCH

        reader = PollReader(await bench.subscription("polls"), EntryOpener(transcoder))
        request = GroupPollRequest(
            "t", "polls", "c", 99, 1 << 20, False, 1.0, StartPosition(), 1 << 20
        )
        taken: list[TakenMessages] = []
        reader.attach(cast("Poll", _Poll()), request)
        while not taken:
            reader.take(request, 99, 1 << 20, taken)
            await until(lambda: reader.is_settled)
        reader.take(request, 99, 1 << 20, taken)
        assert [one.entry for one in taken] == list(range(END))
        reader.detach()

        context = SimpleNamespace(transcoder=transcoder, topics=partition.context)
        batches = await BatchReader(cast(KafkaContext, context)).read(visible, 0, 1 << 20)
        assert [h.base_offset for h, _ in split_batches(batches.records())] == [0, 3, 6, 9]
        assert batches.offset == END * BATCH

        log = StreamLog(
            partition.store, MessageReader(visible, transcoder, EntryCache(), lambda _: "t"), "t"
        )
        read = [one.sequence async for found in log.scan(1, 99) for one in found]
        assert read == list(range(1, END * BATCH + 1))
        assert (log.last_sequence, await log.count_from(1, ())) == (END * BATCH, END * BATCH)
        indexer = Indexer(log.reader, SubjectIndex(SubjectBudget(1 << 20)))
        await indexer.catch_up()
        assert indexer.position == END

        assert len(bench.notes.got) == END
        transcoder.workers.close()
