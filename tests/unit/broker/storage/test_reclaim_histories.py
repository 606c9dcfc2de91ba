"""Whatever was appended, deleted and reclaimed: readers of all formats get what is not deleted."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.broker.consume.visible import Visible
from router.broker.entries import ENTRY_FORMATS, kafka, keep_messages, latest_time, transcode
from router.broker.storage import (
    KAFKA_FORMAT,
    NATS_FORMAT,
    PULSAR_FORMAT,
    Entry,
    Ledger,
    Store,
    StoreOptions,
)
from router.broker.storage.files import check
from router.model import Message
from router.wire.kafka.record_batches import build_batch, open_batch, read_header
from router.wire.kafka.records import read_records, write_record
from router.wire.pulsar import pack
from tests.unit.broker.storage.rig import NOW_MS, clock, ignore, one_ledger, run, synced

OPTIONS = StoreOptions(
    segment=900, journal=10**6, cache=0, reserve=0, index_step=300, open_files=8, reclaim_bytes=1
)
CODECS = range(5)
"""None, gzip or lz4, snappy or zlib, and so on, as Kafka and Pulsar number them."""

STEPS = st.one_of(
    st.tuples(
        st.just("append"), st.sampled_from([1, 2, 3]), st.integers(1, 6), st.sampled_from(CODECS)
    ),
    st.tuples(st.just("append"), st.sampled_from([1, 2, 3]), st.integers(1, 6), st.just(0)),
    st.tuples(st.just("delete"), st.floats(0, 1), st.integers(0, 30)),
    st.tuples(st.just("scatter"), st.integers(2, 7), st.integers(0, 6)),
    st.just(("reclaim",)),
    st.just(("restart",)),
    st.just(("kill",)),
)


def key_of(value: bytes) -> bytes:
    return b"k%d" % (len(value) % 5)


def payload_of(tag: int, values: Sequence[bytes], codec: int, sequence: int, ms: int) -> bytes:
    """Return an entry of messages with these values and keys."""
    messages = [Message(value, key_of(value)) for value in values]
    if tag == KAFKA_FORMAT:
        records = [write_record(n, n, m.key, m.value) for n, m in enumerate(messages)]
        producer = (7, 1, sequence)
        return bytes(build_batch(records, ms, ms + len(values), codec=codec, producer=producer))
    if tag == PULSAR_FORMAT:
        return pack(messages, "producer", sequence, ms, codec)  # type: ignore[arg-type]
    return ENTRY_FORMATS[tag].from_messages(messages, ms)


class History:
    """A store with one ledger, and what must be found in it: values by number, times by entry."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.values: dict[int, bytes] = {}
        self.entries: list[tuple[int, int, int]] = []
        self.sequence = count()

    async def open(self) -> None:
        self.store = await Store.open(
            self.folder / "data", OPTIONS, clock, None, latest_time, keep_messages
        )
        self.ledger: Ledger = await one_ledger(self.store)

    async def take(self, step: tuple[Any, ...]) -> None:
        kind, *details = step
        await getattr(self, f"on_{kind}")(*details)

    async def on_append(self, tag: int, messages: int, codec: int) -> None:
        """Append so many entries, so that steps fill segments."""
        for sequence, _ in zip(self.sequence, range(4), strict=False):
            first, ms = self.ledger.next_index, NOW_MS + 1000 * sequence
            values = [b"%d:" % n + b"abcdefgh" * (n % 9) for n in range(first, first + messages)]
            payload = payload_of(tag, values, codec, sequence, ms)
            self.ledger.append(payload, tag, messages, ms, ignore)
            self.values |= dict(enumerate(values, first))
            self.entries.append((first, messages, ms))
        await synced(self.store)

    async def delete(self, numbers: Sequence[int]) -> None:
        self.store.delete_messages(self.ledger, [(n, n) for n in numbers])
        await synced(self.store)
        for number in numbers:
            self.values.pop(number, None)

    async def on_delete(self, place: float, length: int) -> None:
        first = int(place * self.ledger.next_index)
        await self.delete(range(first, min(first + length, self.ledger.next_index)))

    async def on_scatter(self, step: int, rest: int) -> None:
        await self.delete([n for n in range(self.ledger.next_index) if n % step != rest % step])

    async def on_reclaim(self) -> None:
        await self.store._checkpointer.checkpoint()
        size = self.ledger.size_bytes
        assert await self.store.reclaim(self.ledger) == size - self.ledger.size_bytes
        segments = self.ledger.segments
        assert await self.store.reclaim(self.ledger) == 0
        assert self.ledger.segments == segments

    async def on_restart(self) -> None:
        await self.store.close()
        assert check(self.folder / "data") == []
        await self.open()

    async def on_kill(self) -> None:
        self.store.fail(PermissionError(13, "killed"))
        await self.store.close()
        assert check(self.folder / "data") == []
        await self.open()

    async def check(self) -> None:
        visible, ledger = Visible(self.ledger), self.ledger
        found: dict[int, bytes] = {}
        at = 0
        while entries := await visible.read(at, 5, 10_000):
            for entry in entries:
                assert entry.entry_id >= at
                at = entry.entry_id + 1
                found |= self.delivered(visible, entry)
        assert found == self.values
        assert ledger.next_index == sum(messages for _, messages, _ in self.entries)
        await self.check_lookups(visible)

    def delivered(self, visible: Visible, entry: Entry) -> dict[int, bytes]:
        """Return the values that readers of an entry get, the same whatever their format is."""
        first, live = entry.index + 1 - entry.messages, visible.messages(entry)
        chosen = [n for n in range(entry.messages) if live is None or live >> n & 1]
        found = []
        for tag in (PULSAR_FORMAT, KAFKA_FORMAT, NATS_FORMAT):
            payload = entry.payload
            if tag != entry.format:
                payload = transcode(ENTRY_FORMATS, entry, tag)
            messages = ENTRY_FORMATS[tag].to_messages(payload)
            assert len(messages) == entry.messages
            found.append({first + n: messages[n].value for n in chosen})
            if tag == KAFKA_FORMAT:
                found.append(as_fetched(payload, first, chosen))
        assert all(one == found[0] for one in found)
        keys = ENTRY_FORMATS[entry.format].keys(entry.payload)
        assert len(keys) == entry.messages
        assert [keys[n].key for n in chosen] == [key_of(found[0][first + n]) for n in chosen]
        return found[0]

    async def check_lookups(self, visible: Visible) -> None:
        numbers = sorted(self.values)
        for number in numbers[:: max(1, len(numbers) // 7)]:
            entry = await self.ledger.entry_of_number(number)
            place = next(n for n, e in enumerate(self.entries) if number < e[0] + e[1])
            assert entry == place
            assert await self.ledger.number_before(entry) == self.entries[place][0]
            assert await self.ledger.number_before(entry + 1) == sum(self.entries[place][:2])
        for _, _, ms in self.entries[:: max(1, len(self.entries) // 5)]:
            expected = next(
                (n for first, m, t in self.entries if t >= ms for n in range(first, first + m)
                 if n in self.values),
                visible.end_number,
            )  # fmt: skip
            for found in (await self.ledger.find_time(ms), await self.ledger.find_latest_time(ms)):
                before = await self.ledger.number_before(found)
                assert min(visible.first_from(before), visible.end_number) == expected


def as_fetched(payload: bytes, first: int, chosen: Sequence[int]) -> dict[int, bytes]:
    """Return what a Kafka client reads of a batch of which these records are left."""
    made = kafka.without_deleted(payload, sum(1 << n for n in chosen))
    header = read_header(made)
    assert header.last_offset == header.base_offset + read_header(payload).last_offset_delta
    records = read_records(open_batch(header, made, 1 << 20), header.records)
    return {first + offset: value or b"" for offset, _, _, value, _ in records}


@pytest.mark.no_cover
@settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(steps=st.lists(STEPS, min_size=3, max_size=14))
def test_readers_get_what_is_not_deleted_after_any_history(
    folder: Path, steps: list[tuple[Any, ...]]
) -> None:
    async def work(place: Path) -> None:
        history = History(place)
        await history.open()
        try:
            for step in [*steps, ("reclaim",)]:
                await history.take(step)
                await history.check()
        finally:
            await history.store.close()
        assert check(place / "data") == []

    with tempfile.TemporaryDirectory(dir=folder) as place:
        run(work(Path(place)))
