"""Limits of a stream whose oldest messages are on disk, where they may be damaged or unreadable."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from router.broker.nats.streams.log.limits import StreamLimits
from router.broker.storage import PULSAR_FORMAT, Undecided
from tests.unit.broker.nats.streaming import Anyone, Clock, Rig, everything, streaming

HOUR_SECONDS = 3_600
COUNT = 40


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Return a list that grows with each part that is deleted by reading."""
    found: list[int] = []
    delete = StreamLimits._delete_by_reading

    async def counted(limits: StreamLimits) -> None:
        found.append(1)
        assert len(found) < 100, "limits are enforced without end"
        await delete(limits)

    monkeypatch.setattr(StreamLimits, "_delete_by_reading", counted)
    yield found
    assert len(found) < 100


async def publish(rig: Rig, *places: int) -> None:
    for place in places:
        await rig.publish(f"s.{place % 3}", b"%02d" % place * 50)


def segments(folder: Path) -> list[Path]:
    return sorted((folder / "data" / "ledgers").rglob("*.seg"))


def lose(folder: Path, lost: str) -> None:
    """Damage the first entry, or remove the first segment, or all."""
    files = segments(folder)
    if lost == "an entry":
        data = bytearray(files[0].read_bytes())
        data[60] ^= 1
        files[0].write_bytes(data)
    for file in {"a segment": files[:1], "all": files}.get(lost, []):
        file.unlink()


@pytest.mark.parametrize("lost", ["nothing", "an entry", "a segment", "all"])
async def test_the_age_of_stored_messages_is_waited_for_by_a_timer(
    tmp_path: Path, lost: str, rounds: list[int]
) -> None:
    clock = Clock()
    async with streaming(tmp_path, clock) as rig:
        await rig.create("S", "s.>", max_age=HOUR_SECONDS * 1_000_000_000)
        await publish(rig, *range(COUNT))
    lose(tmp_path, lost)
    async with streaming(tmp_path, clock) as rig:
        stream = await rig.streams.open("S")
        await asyncio.sleep(0.1)
        assert len(rounds) <= 2
        assert (stream.limits._timer is not None) == (lost != "all")
        clock.now += HOUR_SECONDS + 1
        await publish(rig, COUNT)
        stream.limits._stop_timer()
        stream.limits.enforce()
        await stream.settle()
        assert [one.sequence for one in await everything(stream)] == [COUNT + 1]


@pytest.mark.parametrize("lost", ["an entry", "a segment", "all"])
async def test_a_limit_deletes_no_newer_messages_in_place_of_damaged_ones(
    tmp_path: Path, lost: str, rounds: list[int]
) -> None:
    async with streaming(tmp_path) as rig:
        await rig.create("S", "s.>", max_msgs=COUNT)
        await publish(rig, *range(COUNT))
    lose(tmp_path, lost)
    async with streaming(tmp_path) as rig:
        stream = await rig.streams.open("S")
        before = [one.sequence for one in await everything(stream)]
        assert len(before) < COUNT
        await publish(rig, COUNT)
        await stream.settle()
        assert [one.sequence for one in await everything(stream)] == [*before, COUNT + 1]
        await publish(rig, *range(COUNT + 1, 2 * COUNT + 1))
        await stream.settle()
        left = [one.sequence for one in await everything(stream)]
        assert left == list(range(COUNT + 2, 2 * COUNT + 2))
    assert len(rounds) < 60


@pytest.mark.parametrize("meanwhile", ["what NATS cannot read", "an open transaction"])
async def test_what_else_is_in_the_log_hides_no_damage_from_a_limit(
    tmp_path: Path, meanwhile: str, rounds: list[int]
) -> None:
    async with streaming(tmp_path) as rig:
        stream = await rig.create("S", "s.>", max_msgs=COUNT)
        await publish(rig, *range(COUNT))
        if meanwhile == "what NATS cannot read":
            stored = asyncio.Event()
            now_ms = int(rig.clock() * 1000)
            stream.ledger.append(b"?", PULSAR_FORMAT, 1, now_ms, lambda _: stored.set())
            await stored.wait()
            await stream.settle()
            assert stream.log.indexer is not None
            assert stream.log.indexer.unreadable == 1
    lose(tmp_path, "a segment")
    async with streaming(tmp_path) as rig:
        stream = await rig.streams.open("S")
        before = await everything(stream)
        assert len(before) < COUNT - 10
        if meanwhile == "an open transaction":
            stream.ledger.undecided = Undecided(stream.ledger.next_entry, stream.ledger.next_index)
            await rig.append_foreign(stream, "s.1")
        await publish(rig, COUNT)
        await stream.settle()
        stream.ledger.undecided = None
        await stream.settle()
        came = 1 + (meanwhile == "an open transaction")
        assert len(await everything(stream)) == len(before) + came
    assert len(rounds) < 60


async def test_damage_is_found_where_the_index_lacks_other_damage(tmp_path: Path) -> None:
    async with streaming(tmp_path) as rig:
        await rig.create("S", "s.>", max_msgs=COUNT)
        await publish(rig, *range(COUNT))
    for place in range(2):
        lose(tmp_path, "a segment")
        async with streaming(tmp_path) as rig:
            stream = await rig.streams.open("S")
            before = await everything(stream)
            publishes = COUNT - len(before) if not place else 1
            await publish(rig, *range(publishes))
            await stream.settle()
            assert len(await everything(stream)) == len(before) + publishes


@pytest.mark.parametrize("lost", ["a segment", "all"])
async def test_a_limit_of_a_subject_deletes_no_newer_messages_in_place_of_damaged_ones(
    tmp_path: Path, lost: str, rounds: list[int]
) -> None:
    limit = 100
    async with streaming(tmp_path) as rig:
        await rig.create("S", "s.>", max_msgs_per_subject=limit)
        await publish(rig, *[0] * limit)
    lose(tmp_path, lost)
    async with streaming(tmp_path) as rig:
        stream = await rig.streams.open("S")
        before = await everything(stream)
        await publish(rig, 0)
        await stream.settle()
        assert len(await everything(stream)) == len(before) + 1
        await publish(rig, *[0] * limit)
        await stream.settle()
        assert len(await everything(stream)) == limit


async def test_a_lower_limit_of_damaged_messages_is_no_endless_work(
    tmp_path: Path, rounds: list[int]
) -> None:
    async with streaming(tmp_path) as rig:
        await rig.create("S", "s.>")
        await publish(rig, *range(COUNT))
    async with streaming(tmp_path) as rig:
        stream = await rig.streams.open("S")
        assert stream.log.index is not None
        assert stream.log.index.messages == COUNT
        lose(tmp_path, "all")
        await rig.streams.update(replace(stream.config, max_msgs=5), Anyone(), pedantic=False)
        await asyncio.sleep(0.1)
        await publish(rig, *range(6))
        await stream.settle()
        assert [one.sequence for one in await everything(stream)] == list(range(42, 47))
    assert len(rounds) < 20


async def test_what_waits_for_its_markers_longer_than_it_may_live_is_no_endless_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: list[int]
) -> None:
    clock = Clock()
    async with streaming(tmp_path, clock) as rig:
        markers = {"subject_delete_marker_ttl": 1_000_000_000, "allow_rollup_hdrs": True}
        await rig.create("S", "s.>", max_age=500_000_000, allow_msg_ttl=True, **markers)
        await publish(rig, *range(COUNT))
    clock.now += 1
    with monkeypatch.context() as patched:
        patched.setattr(StreamLimits, "_is_held", lambda _: True)  # the disk is full
        async with streaming(tmp_path, clock) as rig:
            await rig.streams.open("S")
            await asyncio.sleep(0.1)
            assert len(rounds) <= 2
