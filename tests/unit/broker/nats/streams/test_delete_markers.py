"""Delete markers: what takes the place of the last message of a subject whose time is over."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from router.broker.nats.streams.log import deadlines, limits, markers
from router.broker.nats.streams.log.messages import StoredMessage
from router.broker.nats.streams.stream import Stream
from router.wire.nats import headers
from tests.unit.broker.nats.streaming import Anyone, Clock, Rig, check_index, everything
from tests.unit.broker.nats.streams.test_publishing import ok, refused, with_streams

SECOND = 1_000_000_000
MARKED: Any = {"subject_delete_marker_ttl": SECOND, "max_msgs_per_subject": 5}
MARKER = b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\nNats-TTL: %b\r\nNats-Rollup: sub\r\n\r\n"


def shown(messages: Sequence[StoredMessage]) -> list[tuple[int, str, str]]:
    """Return sequence, last token of the subject, and the payload or what a marker says."""
    return [
        (
            one.sequence,
            one.subject.rpartition(".")[2],
            headers.first(one.headers, "Nats-Marker-Reason") or one.payload.decode(),
        )
        for one in messages
    ]


async def held(stream: Stream) -> list[tuple[int, str, str]]:
    await stream.settle()
    await check_index(stream)
    return shown(await everything(stream))


async def until_held(stream: Stream, *messages: tuple[int, str, str]) -> None:
    """Return when a timer has found what age ended."""
    async with asyncio.timeout(5):
        while shown(await everything(stream)) != list(messages):  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.01)
    assert await held(stream) == list(messages)


async def fill(rig: Rig, *subjects: str, ttl: str = "1s") -> None:
    """Publish a message with a time to live to each subject."""
    for subject in subjects:
        rig.send(f"s.{subject}", subject.encode(), {"Nats-TTL": ttl} if ttl else None)
    rig.publisher.flush()
    await rig.answered()


def test_a_marker_takes_the_place_of_a_message_and_ends_itself(tmp_path: Path) -> None:
    clock = Clock()

    async def test(rig: Rig) -> None:
        stream = await rig.create(
            "S", "s.>", **MARKED | {"subject_delete_marker_ttl": 3601 * SECOND}
        )
        await fill(rig, "a", ttl="2h")
        await fill(rig, "b", ttl="")
        clock.now += 7_200
        assert await held(stream) == [(2, "b", "b"), (3, "a", "MaxAge")]
        (_, marker) = await everything(stream)
        assert (marker.headers, marker.payload) == (MARKER % b"1h0m1s", b"")
        clock.now += 3_600
        assert await held(stream) == [(2, "b", "b"), (3, "a", "MaxAge")]
        clock.now += 1
        assert await held(stream) == [(2, "b", "b")]

    with_streams(tmp_path, test, clock=clock)


@pytest.mark.parametrize("most", [1, 100])
@pytest.mark.parametrize("at_once", [1, 1_000])
def test_only_the_last_message_of_a_subject_gets_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, at_once: int
) -> None:
    monkeypatch.setattr(markers, "MAX_ENTRY_MARKERS", most)
    monkeypatch.setattr(limits, "MAX_DELETED_AT_ONCE", at_once)
    clock = Clock()

    async def test(rig: Rig) -> None:
        stream = await rig.create("S", "s.>", **MARKED)
        await fill(rig, "a", "b", "a", "c", "a", "c", "d")
        await fill(rig, "c", "a", ttl="9s")
        clock.now += 1
        left = [(8, "c", "c"), (9, "a", "a"), (10, "b", "MaxAge"), (11, "d", "MaxAge")]
        assert await held(stream) == left
        clock.now += 8
        assert await held(stream) == [(12, "c", "MaxAge"), (13, "a", "MaxAge")]

    with_streams(tmp_path, test, clock=clock)


@pytest.mark.parametrize(
    "fields", [{"KV-Operation": "PURGE"}, {"Nats-Marker-Reason": "Remove"}], ids=str
)
def test_what_says_that_a_value_is_gone_ends_without_one(
    tmp_path: Path, fields: dict[str, str]
) -> None:
    clock = Clock()

    async def test(rig: Rig) -> None:
        stream = await rig.create("S", "s", **MARKED)
        await rig.publish("s", b"", fields | {"Nats-TTL": "1s"})
        clock.now += 1
        assert await held(stream) == []
        assert stream.log.last_sequence == 1

    with_streams(tmp_path, test, clock=clock)


@pytest.mark.parametrize("killed", [False, True])
def test_whether_a_deadline_is_of_a_marker_is_known_after_a_restart(
    tmp_path: Path, killed: bool
) -> None:
    clock = Clock()

    async def before(rig: Rig) -> None:
        stream = await rig.create("S", "s.>", **MARKED)
        await fill(rig, "a")
        clock.now += 1
        assert await held(stream) == [(2, "a", "MaxAge")]

    async def after(rig: Rig) -> None:
        stream = await rig.streams.open("S")
        clock.now += 1
        assert await held(stream) == []
        assert stream.log.last_sequence == 2

    with_streams(tmp_path, before, clock=clock, killed=killed)
    with_streams(tmp_path, after, clock=clock)


@pytest.mark.parametrize("killed", [False, True])
def test_a_message_whose_time_ends_while_the_broker_is_down_gets_its_marker_first(
    tmp_path: Path, killed: bool
) -> None:
    clock = Clock()

    async def before(rig: Rig) -> None:
        await rig.create("S", "s.>", **MARKED)
        await fill(rig, "a", "b", "a")

    async def after(rig: Rig) -> None:
        stream = rig.streams.find("S")
        seen: list[Any] = []

        async def loader(opened: Stream) -> None:
            seen.append(shown(await everything(opened)))

        stream.loader = loader
        await stream.open()
        assert seen == [[(4, "b", "MaxAge"), (5, "a", "MaxAge")]]  # before consumers are there

    with_streams(tmp_path, before, clock=clock, killed=killed)
    clock.now += 1
    with_streams(tmp_path, after, clock=clock)


@pytest.mark.parametrize("killed", [False, True])
def test_a_stop_beside_a_marker_leaves_one_marker_or_makes_it_later(
    tmp_path: Path, killed: bool
) -> None:
    clock = Clock()

    async def before(rig: Rig) -> None:
        stream = await rig.create("S", "s.>", **MARKED)
        await fill(rig, "a")
        clock.now += 1
        stream.limits.enforce()
        assert stream.markers.replacing  # it is appended, and not on disk

    async def after(rig: Rig) -> None:
        stream = await rig.streams.open("S")
        assert await held(stream) == [(2, "a", "MaxAge")]

    with_streams(tmp_path, before, clock=clock, killed=killed)
    with_streams(tmp_path, after, clock=clock)


@pytest.mark.parametrize("killed", [False, True])
def test_age_ends_all_but_what_lives_for_ever(tmp_path: Path, killed: bool) -> None:
    clock = Clock()
    aged: Any = {"max_age": SECOND // 5, "duplicate_window": SECOND // 5, "allow_msg_ttl": True}

    async def before(rig: Rig) -> None:
        stream = await rig.create("S", "s.>", **aged)
        await fill(rig, "a", ttl="never")
        await fill(rig, "b", ttl="1h")
        await fill(rig, "c", ttl="")
        await fill(rig, "d", ttl="Never")
        clock.now += 0.15
        await fill(rig, "e", ttl="")
        clock.now += 0.1
        await until_held(stream, (1, "a", "a"), (4, "d", "d"), (5, "e", "e"))

    async def after(rig: Rig) -> None:
        stream = await rig.streams.open("S")
        clock.now += 0.15
        await until_held(stream, (1, "a", "a"), (4, "d", "d"))
        config = replace(stream.config, max_msgs=1)
        await rig.streams.update(config, Anyone(), pedantic=False)
        assert await held(stream) == [(4, "d", "d")]  # other limits hold for them

    with_streams(tmp_path, before, clock=clock, killed=killed)
    with_streams(tmp_path, after, clock=clock)


def test_messages_that_age_ends_get_markers_that_age_ends(tmp_path: Path) -> None:
    clock = Clock()

    async def test(rig: Rig) -> None:
        config = MARKED | {"max_age": SECOND // 5, "subject_delete_marker_ttl": 9 * SECOND}
        stream = await rig.create("S", "s.>", **config)
        await fill(rig, "a", "b", "a", ttl="")
        clock.now += 0.15
        await fill(rig, "b", ttl="")
        clock.now += 0.1
        await until_held(stream, (4, "b", "b"), (5, "a", "MaxAge"))
        clock.now += 0.12
        await until_held(stream, (5, "a", "MaxAge"), (6, "b", "MaxAge"))
        clock.now += 0.25
        await until_held(stream)

    with_streams(tmp_path, test, clock=clock)


def test_a_message_lives_as_long_as_a_marker_at_least(tmp_path: Path) -> None:
    clock = Clock()

    async def test(rig: Rig) -> None:
        config = MARKED | {"subject_delete_marker_ttl": 3 * SECOND}
        stream = await rig.create("S", "s", **config)
        assert await rig.publish("s", b"", {"Nats-TTL": "2s", "A": "b"}) == ok(1)
        assert await rig.publish("s", b"", {"Nats-TTL": "4s", "A": "b"}) == ok(2)
        assert [headers.read(one.headers) for one in await everything(stream)] == [
            [("A", "b"), ("Nats-TTL", "3")],
            [("Nats-TTL", "4s"), ("A", "b")],
        ]
        await rig.streams.update(
            replace(stream.config, max_msgs_per_subject=1), Anyone(), pedantic=False
        )
        await rig.publish("s", b"s", {"Nats-TTL": "1s"})
        clock.now += 1
        assert await held(stream) == [(4, "s", "MaxAge")]

    with_streams(tmp_path, test, clock=clock)


def test_a_stream_that_takes_no_new_message_takes_markers(tmp_path: Path) -> None:
    clock = Clock()

    async def test(rig: Rig) -> None:
        stream = await rig.create("S", "s.>", **MARKED | {"discard": "new", "max_msgs": 1})
        await fill(rig, "a")
        assert await rig.publish("s.b") == refused(10077)
        clock.now += 1
        assert await held(stream) == [(2, "a", "MaxAge")]

    with_streams(tmp_path, test, clock=clock)


def test_a_message_waits_for_its_marker_while_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HELD_SECONDS", 0.01)
    monkeypatch.setattr(limits, "MIN_TIMER_SECONDS", 0.01)
    clock = Clock()

    async def test(rig: Rig) -> None:
        stream = await rig.create("S", "s.>", **MARKED | {"max_age": SECOND // 5})
        await fill(rig, "a")
        await fill(rig, "b", ttl="")
        rig.store.full = True
        clock.now += 2
        assert await held(stream) == [(1, "a", "a"), (2, "b", "b")]
        rig.store.full = False
        async with asyncio.timeout(5):
            while stream.log.last_sequence < 4:  # noqa: ASYNC110 - a timer is waited for
                await asyncio.sleep(0.01)
        assert [one[1:] for one in await held(stream)] == [("a", "MaxAge"), ("b", "MaxAge")]

    with_streams(tmp_path, test, clock=clock)


def test_no_marker_hides_what_another_dialect_appended(tmp_path: Path) -> None:
    clock = Clock()

    async def test(rig: Rig) -> None:
        stream = await rig.create("S", "s.>", **MARKED)
        await fill(rig, "a")
        await rig.append_foreign(stream, "s.a", deliver=False)
        clock.now += 1
        assert await held(stream) == [(2, "a", "v")]

    with_streams(tmp_path, test, clock=clock)


def test_a_marker_that_no_consumer_waits_for_goes_at_once(tmp_path: Path) -> None:
    clock = Clock()

    class Waiting:
        """A consumer that acknowledges nothing of `s.a`."""

        num_pending = 0

        def needs(self, sequence: int, subject: str) -> bool:
            return subject == "s.a" or sequence < 3

        def stored(self) -> None:
            """Nothing is delivered."""

        def deleted(self, ranges: Sequence[tuple[int, int]]) -> None:
            """Nothing waits."""

    async def test(rig: Rig) -> None:
        stream = await rig.create("S", "s.>", **MARKED | {"retention": "interest"})
        stream.consumers["c"] = Waiting()
        await fill(rig, "a", "b")
        clock.now += 1
        await stream.settle()
        await stream.settle()  # what was stored by the first one is looked at
        assert await held(stream) == [(3, "a", "MaxAge")]
        stream.consumers.clear()

    with_streams(tmp_path, test, clock=clock)


def test_markers_that_were_replaced_take_no_memory_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "MAX_DEADLINES", 4)
    clock = Clock()

    async def test(rig: Rig) -> None:
        config = MARKED | {"subject_delete_marker_ttl": 3_600 * SECOND}
        stream = await rig.create("S", "s.>", **config | {"max_msgs_per_subject": 1})
        for _ in range(20):
            await fill(rig, "a")
            clock.now += 1
            await stream.settle()
        indexer = stream.log.indexer
        assert indexer is not None
        assert len(indexer.deadlines) <= 5

    with_streams(tmp_path, test, clock=clock)
