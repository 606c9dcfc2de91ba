"""What a stream answers of a subject while a transaction is open on its topic."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from router.broker.nats.streams.log import indexing, withheld
from router.broker.storage import Undecided
from router.model.policies import Policies
from tests.unit.broker.nats.streaming import Anyone, check_index, streaming


class Counted(dict[str, None]):
    """Counts how often all are looked at."""

    looks = 0

    def __iter__(self) -> Iterator[str]:
        self.looks += 1
        return super().__iter__()


@pytest.mark.parametrize("limit", [1, 3, 0])
def test_last_message_of_a_subject_is_the_last_that_may_be_read(tmp_path: Path, limit: int) -> None:
    async def run() -> None:
        async with streaming(tmp_path) as rig:
            stream = await rig.create("KV", "k.>", max_msgs_per_subject=limit)
            for number in range(12):
                await rig.publish("k.a", b"%d" % number)
            ledger = stream.ledger
            # The next entry is the first of an open transaction.
            ledger.undecided = Undecided(ledger.next_entry, ledger.next_index)
            await rig.append_foreign(stream, "k.b")
            for number in range(12, 24):
                assert (await rig.publish("k.a", b"%d" % number))["seq"] == number + 2
            await rig.publish("k.new", b"n")
            found = await stream.log.last_of_subject(["k.a"])
            assert found is not None
            assert found.payload == b"11"
            assert await stream.log.last_sequences(["k.>"]) == [found.sequence]
            assert await stream.log.last_of_subject(["k.new"]) is None
            ledger.undecided = None
            ledger.announce()
            await stream.settle()
            found = await stream.log.last_of_subject(["k.a"])
            assert found is not None
            assert found.payload == b"23"
            assert await stream.log.last_sequences(["k.>"]) == [13, 25, 26]
            index = stream.log.index
            assert index is not None
            assert index.subjects["k.a"].count == (limit or 24)

    asyncio.run(run())


def test_subjects_behind_an_open_transaction_are_not_looked_at_with_each_message(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with streaming(tmp_path) as rig:
            stream = await rig.create("KV", "k.>", max_msgs_per_subject=1)
            for number in range(20):
                await rig.publish(f"k.{number}", b"old")
            ledger, index = stream.ledger, stream.log.index
            assert index is not None
            ledger.undecided = Undecided(ledger.next_entry, ledger.next_index)
            await rig.append_foreign(stream, "k.x")
            over = index.over = Counted(index.over)
            for number in range(20):
                await rig.publish(f"k.{number}", b"new")
            assert len(over) == 20
            assert over.looks <= 1
            ledger.undecided = None
            ledger.announce()
            await stream.settle()
            assert [index.subjects[f"k.{number}"].count for number in range(20)] == [1] * 20

    asyncio.run(run())


def test_a_topic_that_is_a_stream_by_itself_counts_nothing_of_an_open_transaction(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with streaming(tmp_path) as rig:
            await rig.topics.create(rig.topics.parse("plain"), 0, Policies(), {})
            stream = rig.streams.find("plain")
            await stream.open()
            ledger = stream.ledger
            ledger.undecided = Undecided(ledger.next_entry, ledger.next_index)
            await rig.append_foreign(stream, "")
            state = await stream.state(subjects_filter=">")
            assert (state.messages, state.num_subjects, state.subjects) == (0, 0, {})
            assert state.bytes == 0
            ledger.undecided = None
            state = await stream.state(subjects_filter=">")
            assert (state.messages, state.num_subjects, state.subjects) == (1, 1, {"plain": 1})
            assert state.bytes == ledger.size_bytes

    asyncio.run(run())


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_state_has_nothing_that_stands_behind_an_open_transaction(
    tmp_path: Path, *, on_disk: bool
) -> None:
    async def run() -> None:
        async with streaming(tmp_path) as rig:
            stream = await rig.create("KV", "k.>")
            for number in range(12):
                await rig.publish("k.many", b"%d" % number)
            await rig.publish("k.gone")
            await rig.publish("k.one", b"v", {"some": "header"})
            await stream.log.delete_matching(["k.gone"], 100, 1)
            before = await stream.state(subjects_filter=">")
            assert (before.num_subjects, before.subjects) == (2, {"k.many": 12, "k.one": 1})
            ledger = stream.ledger
            first = ledger.next_entry
            ledger.undecided = Undecided(first, ledger.next_index)
            await rig.append_foreign(stream, "k.foreign")
            for number in range(12):
                await rig.publish("k.many", b"%d" % number)
                await rig.publish("k.new", b"", {"other": "header"})
            while on_disk and ledger.in_memory(first + 1) is not None:
                await rig.publish("k.new", bytes(1_000))
                await rig.append_foreign(stream, "k.foreign", value=bytes(1_000))
            info = await stream.info(subjects_filter=">")
            assert replace(info.state, last_ts=None) == replace(before, last_ts=None)
            state = await stream.state(subjects_filter="k.new")
            assert (state.num_subjects, state.subjects) == (2, {})
            ledger.undecided = None
            ledger.announce()
            await check_index(stream)
            state = await stream.state(subjects_filter="k.many")
            assert (state.num_subjects, state.subjects) == (4, {"k.many": 24})
            assert state.bytes == stream.log.bytes > before.bytes

    asyncio.run(run())


def test_a_state_looks_at_so_much_behind_an_open_transaction_and_not_at_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not looked at is in it."""
    monkeypatch.setattr(withheld, "MAX_WITHHELD_ENTRIES", 3)

    async def run() -> None:
        async with streaming(tmp_path) as rig:
            stream = await rig.create("KV", "k.>")
            await rig.publish("k.a")
            ledger = stream.ledger
            ledger.undecided = Undecided(ledger.next_entry, ledger.next_index)
            await rig.append_foreign(stream, "k.x")
            for number in range(5):
                await rig.publish(f"k.{number}")
            state = await stream.state(subjects_filter=">")
            assert state.subjects == {"k.a": 1, "k.3": 1, "k.4": 1}
            assert (state.messages, state.num_subjects, state.bytes) == (1, 3, 3 * 33)
            assert stream.log.bytes == 6 * 33

    asyncio.run(run())


def test_a_state_reads_the_disk_so_often_and_not_more_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(withheld, "MAX_READS", 2)
    monkeypatch.setattr(indexing, "READ_ENTRIES", 3)

    async def run() -> None:
        async with streaming(tmp_path) as rig:
            stream = await rig.create("KV", "k.>")
            ledger = stream.ledger
            first = ledger.next_entry
            ledger.undecided = Undecided(first, ledger.next_index)
            await rig.append_foreign(stream, "k.x")
            for number in range(8):
                await rig.publish(f"k.{number}")
            while ledger.in_memory(first + 8) is not None:
                await rig.append_foreign(stream, "k.x", value=bytes(1_000))
            state = await stream.state(subjects_filter=">")
            assert state.subjects == {"k.6": 1, "k.7": 1}

    asyncio.run(run())


@pytest.mark.parametrize("values", [1, 40])
def test_a_start_knows_what_was_published_behind_an_open_transaction(
    tmp_path: Path, values: int
) -> None:
    async def run() -> None:
        async with streaming(tmp_path) as rig:
            stream = await rig.create("KV", "k.>")
            await rig.publish("k.a", b"old")
            first = Undecided(stream.ledger.next_entry, stream.ledger.next_index)
            stream.ledger.undecided = first
            for _ in range(values):
                await rig.append_foreign(stream, "k.a", value=bytes(1_000))
                await rig.publish("k.b", bytes(1_000))
            newest = (await rig.publish("k.a", b"new", {"Nats-Msg-Id": "once"}))["seq"]
        async with streaming(tmp_path) as rig:
            stream = rig.streams.find("KV")
            stream.ledger.undecided = first
            await stream.open()
            assert (await stream.state()).num_subjects == 1
            again = await rig.publish("k.a", b"new", {"Nats-Msg-Id": "once"})
            assert (again["seq"], again["duplicate"]) == (newest, True)
            expected = {"Nats-Expected-Last-Subject-Sequence": "1"}
            assert (await rig.publish("k.a", b"lost", expected))["error"] == 10071
            expected = {"Nats-Expected-Last-Subject-Sequence": str(newest)}
            assert (await rig.publish("k.a", b"next", expected))["seq"] == newest + 1
            stream.ledger.undecided = None
            stream.ledger.announce()
            await check_index(stream)
            assert (await stream.state()).num_subjects == 2

    asyncio.run(run())


async def test_an_index_that_is_built_again_has_what_stands_behind_an_open_transaction(
    tmp_path: Path,
) -> None:
    async with streaming(tmp_path) as rig:
        stream = await rig.create("KV", "k.>")
        await rig.append_foreign(stream, "k.foreign")
        await stream.settle()
        ledger, indexer = stream.ledger, stream.log.indexer
        assert indexer is not None
        ledger.undecided = Undecided(ledger.next_entry, ledger.next_index)
        await rig.append_foreign(stream, "k.foreign")
        newest = (await rig.publish("k.a", b"on disk"))["seq"]
        while ledger.in_memory(newest - 1) is not None:
            await rig.append_foreign(stream, "k.foreign", value=bytes(1_000))
        await rig.publish("k.b", b"in memory")
        config = replace(stream.config, subjects=("k.>", "more.>"))
        await rig.streams.update(config, Anyone(), pedantic=False)
        assert indexer.restarts == 1
        expected = {"Nats-Expected-Last-Subject-Sequence": str(newest)}
        assert (await rig.publish("k.a", b"next", expected)).get("error") is None
        ledger.undecided = None
        ledger.announce()
        await check_index(stream)
