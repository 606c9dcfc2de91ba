"""Messages with a time to live of their own: what clients may say, and when messages go."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from router.broker.nats.streams.log import deadlines, limits
from router.broker.nats.streams.log.deadlines import NEVER, message_ttl
from router.broker.nats.streams.stream import Stream
from router.wire.nats import headers
from tests.unit.broker.nats.streaming import Anyone, Clock, Rig, check_index
from tests.unit.broker.nats.streams.test_publishing import ok, refused, with_streams

SECOND = 1_000_000_000
TIMED: Any = {"allow_msg_ttl": True, "max_msgs_per_subject": 5}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("", 0),
        ("5", 5),
        ("00", 0),
        ("never", NEVER),
        ("Never", NEVER),
        ("1s", 1),
        ("+2m", 120),
        ("1h2m3.9s", 3_723),
        ("1500ms", 1),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_the_header_says_seconds_a_duration_or_never(text: str, seconds: int) -> None:
    assert message_ttl(headers.build([("Nats-TTL", text)])) == seconds


@pytest.mark.parametrize("text", ["0", "999ms", "-2h", "-1", "+5", "1 s", "1d", "s", "x", "9" * 20])
def test_another_header_is_refused(tmp_path: Path, text: str) -> None:
    async def test(rig: Rig) -> None:
        await rig.create("S", "s", allow_msg_ttl=True)
        assert await rig.publish("s", b"", {"Nats-TTL": text}) == refused(10165)

    with_streams(tmp_path, test)


def test_a_stream_has_to_allow_it(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        await rig.create("S", "s")
        assert await rig.publish("s", b"", {"Nats-TTL": "never"}) == refused(10166)
        assert await rig.publish("s", b"", {"Nats-TTL": "x"}) == refused(10165)

    with_streams(tmp_path, test)


async def fill(rig: Rig) -> Stream:
    """Publish messages that live 2 s, for ever, 1 s, 1 hour and for ever."""
    stream = await rig.create("S", "s.>", **TIMED)
    for subject, ttl in (("a", "2s"), ("b", "never"), ("a", "1"), ("c", "1h"), ("d", "")):
        await rig.publish(f"s.{subject}", b"x", {"Nats-TTL": ttl} if ttl else None)
    return stream


def left(stream: Stream) -> list[int]:
    return [sequence for sequence in range(1, 6) if stream.contains(sequence)]


async def until_left(stream: Stream, *sequences: int) -> None:
    async with asyncio.timeout(5):
        while left(stream) != list(sequences):  # noqa: ASYNC110 - a timer is waited for
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("at_once", [1, 1_000])
def test_messages_go_by_their_deadlines_in_any_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(limits, "MAX_DELETED_AT_ONCE", at_once)
    clock = Clock()

    async def test(rig: Rig) -> None:
        stream = await fill(rig)
        clock.now += 0.99
        await stream.settle()
        assert left(stream) == [1, 2, 3, 4, 5]
        clock.now += 0.01
        await until_left(stream, 1, 2, 4, 5)
        clock.now += 1
        await stream.settle()
        assert left(stream) == [2, 4, 5]
        await check_index(stream)
        clock.now += 3_600
        await stream.settle()
        assert left(stream) == [2, 5]

    with_streams(tmp_path, test, clock=clock)


@pytest.mark.parametrize("killed", [False, True])
def test_no_message_is_there_behind_its_deadline_after_a_restart(
    tmp_path: Path, killed: bool
) -> None:
    clock = Clock()

    async def before(rig: Rig) -> None:
        await fill(rig)

    async def after(rig: Rig) -> None:
        stream = rig.streams.for_subject("s.a")
        assert stream is not None
        seen: list[list[int]] = []

        async def loader(opened: Stream) -> None:
            seen.append(left(opened))

        stream.loader = loader
        await stream.open()
        assert seen == [[2, 4, 5]]  # before consumers are there
        indexer = stream.log.indexer
        assert indexer is not None
        assert (indexer.taken == 0) is not killed  # the checkpoint has the deadlines
        await check_index(stream)
        clock.now += 3_600
        await stream.settle()
        assert left(stream) == [2, 5]

    with_streams(tmp_path, before, clock=clock, killed=killed)
    clock.now += 2
    with_streams(tmp_path, after, clock=clock)


def test_the_sooner_of_age_and_time_to_live_ends_a_message(tmp_path: Path) -> None:
    clock = Clock()

    async def test(rig: Rig) -> None:
        stream = await rig.create("S", "s", **TIMED)
        await rig.publish("s", b"", {"Nats-TTL": "1h"})
        config = replace(stream.config, max_age=100_000_000, duplicate_window=100_000_000)
        await rig.streams.update(config, Anyone(), pedantic=False)
        clock.now += 0.11
        await until_left(stream)  # the timer is not left at the hour

    with_streams(tmp_path, test, clock=clock)


def test_messages_are_waited_for_by_the_age_that_holds_now(tmp_path: Path) -> None:
    clock = Clock()

    async def test(rig: Rig) -> None:
        loop = asyncio.get_running_loop()
        stream = await rig.create("S", "s", max_age=600 * SECOND)
        await rig.publish("s")
        # As after a minute, in which the loop's clock went on as well.
        clock.now += 60
        stream.limits._set_timer(540)
        config = replace(stream.config, max_age=550 * SECOND)
        await rig.streams.update(config, Anyone(), pedantic=False)
        timer = stream.limits._timer
        assert timer is not None
        assert 480 < timer.when() - loop.time() <= 490

    with_streams(tmp_path, test, clock=clock)


def test_deadlines_have_a_bound_and_deleted_messages_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "MAX_DEADLINES", 3)
    clock = Clock()

    async def test(rig: Rig) -> None:
        stream = await rig.create("S", "s", allow_msg_ttl=True)
        for sequence in (1, 2, 3):
            assert await rig.publish("s", b"", {"Nats-TTL": "9"}) == ok(sequence)
        assert await rig.publish("s", b"", {"Nats-TTL": "9"}) == refused(10077)
        assert await rig.publish("s", b"", {"Nats-TTL": "never"}) == ok(4)
        await stream.log.delete_range(1, 2)
        clock.now += 1
        assert await rig.publish("s", b"", {"Nats-TTL": "9"}) == ok(5)

    with_streams(tmp_path, test, clock=clock)
