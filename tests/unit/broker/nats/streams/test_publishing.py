"""Publishing to streams: order, conditions in headers, duplicates, limits, restarts."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from router.broker.consume import Producer, ProducerAccess
from router.broker.nats.streams.log.messages import StoredMessage
from router.broker.nats.streams.publishing import MAX_ENTRY_MESSAGES, MAX_IN_FLIGHT_BYTES
from router.broker.storage import NATS_FORMAT, Store, StoreOptions
from router.model import TopicName
from router.model.policies import Policies
from tests.unit.broker.nats.streaming import (
    DEADLINE_SECONDS,
    Anyone,
    Clock,
    Rig,
    check_index,
    everything,
    streaming,
)
from tests.unit.broker.storage.disks import HeldDisk

Test = Callable[[Rig], Awaitable[None]]


def with_streams(folder: Path, test: Test, **options: Any) -> None:
    async def run() -> None:
        async with streaming(folder, **options) as rig:
            await test(rig)

    asyncio.run(run())


def ok(sequence: int, stream: str = "S") -> dict[str, Any]:
    return {"stream": stream, "seq": sequence}


def refused(code: int, stream: str = "S") -> dict[str, Any]:
    return {"error": code, "stream": stream, "seq": 0}


def test_what_is_sent_together_is_one_entry_in_its_order(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        stream = await rig.create("S", "s.>")
        replies = [rig.send(f"s.{place}", b"%d" % place) for place in range(50)]
        assert stream.ledger.next_entry == 0
        rig.publisher.flush()
        answers = [await rig.answer(reply) for reply in replies]
        assert [answer["seq"] for answer in answers] == list(range(1, 51))
        assert stream.ledger.next_entry == 1
        messages = await everything(stream)
        assert [(one.subject, one.payload) for one in messages] == [
            (f"s.{place}", b"%d" % place) for place in range(50)
        ]
        (entry,) = await stream.ledger.read(0, 1, 1)
        assert (entry.format, entry.messages) == (NATS_FORMAT, 50)

    with_streams(tmp_path, test)


def test_more_than_an_entry_holds_becomes_several(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        stream = await rig.create("S", "s")
        replies = [rig.send("s") for _ in range(MAX_ENTRY_MESSAGES + 1)]
        rig.publisher.flush()
        assert (await rig.answer(replies[-1]))["seq"] == MAX_ENTRY_MESSAGES + 1
        assert stream.ledger.next_entry == 2

    with_streams(tmp_path, test)


def test_publishes_to_a_stream_that_is_not_open_wait_in_their_order(tmp_path: Path) -> None:
    async def first(rig: Rig) -> None:
        await rig.create("S", "s.>")
        await rig.create("T", "t")
        await rig.publish("s.a")

    async def second(rig: Rig) -> None:
        replies = [rig.send(subject) for subject in ("s.a", "t", "s.b", "t")]
        rig.publisher.flush()
        assert [await rig.answer(reply) for reply in replies] == [
            ok(2),
            ok(1, "T"),
            ok(3),
            ok(2, "T"),
        ]

    with_streams(tmp_path, first)
    with_streams(tmp_path, second)


EXPECTED = "Nats-Expected-"
CONDITIONS: list[tuple[dict[str, str], dict[str, Any]]] = [
    ({f"{EXPECTED}Stream": "S"}, ok(4)),
    ({f"{EXPECTED}Stream": "T"}, refused(10060)),
    ({f"{EXPECTED}Last-Sequence": "3"}, ok(4)),
    ({f"{EXPECTED}Last-Sequence": "2"}, refused(10071)),
    ({f"{EXPECTED}Last-Sequence": "x"}, refused(10071)),
    ({f"{EXPECTED}Last-Msg-Id": "three"}, ok(4)),
    ({f"{EXPECTED}Last-Msg-Id": "two"}, refused(10070)),
    ({f"{EXPECTED}Last-Subject-Sequence": "2"}, ok(4)),
    ({f"{EXPECTED}Last-Subject-Sequence": "3"}, refused(10071)),
    (
        {
            f"{EXPECTED}Last-Subject-Sequence": "3",
            f"{EXPECTED}Last-Subject-Sequence-Subject": "s.b",
        },
        ok(4),
    ),
    (
        {
            f"{EXPECTED}Last-Subject-Sequence": "0",
            f"{EXPECTED}Last-Subject-Sequence-Subject": "s.none",
        },
        ok(4),
    ),
    ({f"{EXPECTED}Last-Subject-Sequence-Subject": "s.b"}, refused(10193)),
    ({"Nats-Rollup": "sub"}, refused(10111)),
    ({"Nats-TTL": "5"}, refused(10166)),
    ({"Nats-Msg-Id": "two"}, {"stream": "S", "seq": 2, "duplicate": True}),
    ({"Nats-Msg-Id": "two", f"{EXPECTED}Stream": "T"}, refused(10060)),
    (
        {"Nats-Msg-Id": "two", f"{EXPECTED}Last-Sequence": "1"},
        {"stream": "S", "seq": 2, "duplicate": True},
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("restarted", [False, True])
def test_conditions_of_headers_hold_before_and_after_a_restart(
    tmp_path: Path, restarted: bool
) -> None:
    async def fill(rig: Rig) -> None:
        stream = rig.streams.for_subject("s.a") or await rig.create("S", "s.>")
        await stream.log.delete_all()
        await rig.streams.delete("S", Anyone())
        stream = await rig.create("S", "s.>")
        for subject, name in (("s.a", "one"), ("s.a", "two"), ("s.b", "three")):
            await rig.publish(subject, b"", {"Nats-Msg-Id": name})

    async def check(rig: Rig) -> None:
        for fields, expected in CONDITIONS:
            answer = await rig.publish("s.a", b"", fields)
            assert answer == expected, fields
            if answer.get("seq") == 4:
                await fill(rig)

    async def both(rig: Rig) -> None:
        await fill(rig)
        await check(rig)

    if restarted:
        with_streams(tmp_path, fill, killed=True)
        with_streams(tmp_path, check)
    else:
        with_streams(tmp_path, both)


def test_a_message_id_is_free_again_behind_its_window(tmp_path: Path) -> None:
    clock = Clock()

    async def test(rig: Rig) -> None:
        await rig.create("S", "s", duplicate_window=10_000_000_000)
        assert await rig.publish("s", b"", {"Nats-Msg-Id": "x"}) == ok(1)
        clock.now += 9
        assert (await rig.publish("s", b"", {"Nats-Msg-Id": "x"})).get("duplicate")
        clock.now += 2
        assert await rig.publish("s", b"", {"Nats-Msg-Id": "x"}) == ok(2)

    with_streams(tmp_path, test, clock=clock)


def test_the_second_of_two_equal_ids_in_one_read_is_a_duplicate(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        await rig.create("S", "s")
        replies = [rig.send("s", b"", {"Nats-Msg-Id": "x"}) for _ in range(2)]
        rig.publisher.flush()
        assert not rig.answers, "acknowledged before it is on disk"
        assert await rig.answer(replies[0]) == ok(1)
        assert await rig.answer(replies[1]) == {"stream": "S", "seq": 1, "duplicate": True}

    with_streams(tmp_path, test)


def test_the_second_of_two_in_one_read_expects_the_first_of_a_plain_topic(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        topic = TopicName.parse("persistent://public/default/p")
        await rig.topics.create(topic, 0, Policies(), {})
        fields = {f"{EXPECTED}Last-Subject-Sequence": "0"}
        replies = [rig.send("p", b"", fields) for _ in range(2)]
        rig.publisher.flush()
        assert await rig.answer(replies[0]) == ok(1, "p")
        assert await rig.answer(replies[1]) == refused(10071, "p")

    with_streams(tmp_path, test)


def test_the_last_message_of_a_subject_may_have_been_deleted(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        stream = await rig.create("S", "s.>")
        for _ in range(12):
            await rig.publish("s.a")
        state = stream.log.index.subjects["s.a"] if stream.log.index else None
        assert state is not None
        assert state.places is None
        last = await stream.read(12)
        assert last is not None
        stream.log.delete_messages([last])
        assert not state.last_exact
        fields = {f"{EXPECTED}Last-Subject-Sequence": "11"}
        assert await rig.publish("s.a", b"", fields) == ok(13)

    with_streams(tmp_path, test)


def test_a_subject_whose_messages_cannot_be_read_holds_up_no_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: int) -> AsyncIterator[list[StoredMessage]]:
        none: list[list[StoredMessage]] = []
        for found in none:
            yield found

    async def test(rig: Rig) -> None:
        stream = await rig.create("S", "s")
        for _ in range(12):
            await rig.publish("s")
        last = await stream.read(12)
        assert last is not None
        stream.log.delete_messages([last])
        monkeypatch.setattr(stream.log, "scan", nothing)
        fields = {f"{EXPECTED}Last-Subject-Sequence": "11"}
        assert await rig.publish("s", b"", fields) == refused(10071)
        assert await rig.publish("s") == ok(13)

    with_streams(tmp_path, test)


LIMITS: list[tuple[dict[str, Any], list[int]]] = [
    ({"max_msgs": 3}, [6, 7, 8]),
    ({"max_bytes": 100}, [6, 7, 8]),
    ({"max_msgs_per_subject": 1}, [7, 8]),
    ({"max_msgs_per_subject": 2}, [5, 6, 7, 8]),
    ({"max_msgs_per_subject": 2, "max_msgs": 3}, [6, 7, 8]),
    ({"max_msgs": 3, "discard": "new"}, [1, 2, 3]),
    ({"max_msgs": 3, "discard": "new", "max_msgs_per_subject": 1}, [7, 8]),
    (
        {
            "max_msgs": 9,
            "discard": "new",
            "max_msgs_per_subject": 1,
            "discard_new_per_subject": True,
        },
        [1, 2],
    ),
]


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(("members", "left"), LIMITS)
def test_what_a_limit_leaves(
    tmp_path: Path, members: dict[str, Any], left: list[int], together: bool
) -> None:
    async def test(rig: Rig) -> None:
        stream = await rig.create("S", "s.*", **members)
        subjects = [f"s.{place % 2}" for place in range(8)]
        replies = []
        for subject in subjects:
            replies.append(rig.send(subject))
            if not together:
                rig.publisher.flush()
                await rig.answer(replies.pop())
        rig.publisher.flush()
        for reply in replies:
            await rig.answer(reply)
        # At the time of the acknowledgement, without waiting for anything.
        assert [one.sequence for one in await everything(stream)] == left
        await check_index(stream)

    with_streams(tmp_path, test)


def test_old_messages_go_by_their_age(tmp_path: Path) -> None:
    clock = Clock()

    async def test(rig: Rig) -> None:
        stream = await rig.create("S", "s", max_age=100_000_000, duplicate_window=100_000_000)
        await rig.publish("s")
        clock.now += 0.06
        await rig.publish("s")
        clock.now += 0.06
        async with asyncio.timeout(5):
            while stream.contains(1):  # noqa: ASYNC110 - a timer is waited for
                await asyncio.sleep(0.01)
        assert stream.contains(2)

    with_streams(tmp_path, test, clock=clock)


def test_a_rollup_leaves_itself(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        stream = await rig.create("S", "s.>", allow_rollup_hdrs=True)
        for place in range(30):
            await rig.publish(f"s.{place % 2}")
        assert await rig.publish("s.0", b"", {"Nats-Rollup": "sub"}) == ok(31)
        counts = Counter(one.subject for one in await everything(stream))
        assert counts == {"s.0": 1, "s.1": 15}
        assert await rig.publish("s.1", b"", {"Nats-Rollup": "all"}) == ok(32)
        assert [one.sequence for one in await everything(stream)] == [32]
        await check_index(stream)

    with_streams(tmp_path, test)


def test_what_an_acknowledged_rollup_deleted_stays_deleted_after_a_crash(tmp_path: Path) -> None:
    async def before(rig: Rig) -> None:
        await rig.create("S", "s", allow_rollup_hdrs=True)
        for _ in range(3):
            await rig.publish("s")
        await rig.publish("s", b"", {"Nats-Rollup": "sub"})
        shutil.copytree(tmp_path / "data", tmp_path / "copy" / "data")

    async def after(rig: Rig) -> None:
        stream = await rig.streams.open("S")
        assert [one.sequence for one in await everything(stream)] == [4]

    with_streams(tmp_path, before)
    with_streams(tmp_path / "copy", after)


def test_a_limit_holds_for_large_entries_of_other_dialects(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        stream = await rig.create("S", "s", max_msgs=3)
        for _ in range(5):
            await rig.append_foreign(stream, "s", "s", value=bytes(20_000))
        async with asyncio.timeout(DEADLINE_SECONDS):
            while stream.ledger.messages > 3:  # noqa: ASYNC110 - a thread is waited for
                await asyncio.sleep(0.01)

    with_streams(tmp_path, test)


def test_limit_that_cannot_be_enforced_holds_up_no_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: int) -> None:
        raise OSError(errno.EIO, "the disk cannot be read")

    async def test(rig: Rig) -> None:
        stream = await rig.create("S", "s", max_msgs=1)
        monkeypatch.setattr(stream.log, "read_now", lambda *_: None)  # it is not in memory
        monkeypatch.setattr(stream.log, "read_from", fail)
        await rig.publish("s")
        await rig.publish("s")
        async with asyncio.timeout(DEADLINE_SECONDS):
            await stream.settle()
        assert stream.ledger.messages == 2

    with_streams(tmp_path, test)


def test_checks_that_take_long_leave_time_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message is checked a turn then; order and acknowledgements are the same."""
    monkeypatch.setattr("router.broker.nats.streams.publishing.MAX_TURN_SECONDS", -1.0)

    async def test(rig: Rig) -> None:
        stream = await rig.create("S", "s.>")
        name = "Nats-Expected-Last-Subject-Sequence"
        replies = [
            rig.send("s.x", b"%d" % place, {name: str(place), f"{name}-Subject": "*.x"})
            for place in range(5)
        ]
        rig.publisher.flush()
        assert stream.ledger.next_index == 1
        assert [(await rig.answer(reply))["seq"] for reply in replies] == [1, 2, 3, 4, 5]
        assert [one.payload for one in await everything(stream)] == [b"0", b"1", b"2", b"3", b"4"]

    with_streams(tmp_path, test)


def test_a_new_subject_beyond_the_bound_is_refused(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        stream = await rig.create("S", "s.*")
        for place in range(3):
            assert await rig.publish(f"s.{place}") == ok(place + 1)
        assert await rig.publish("s.3") == refused(10077)
        assert await rig.publish("s.0") == ok(4)
        assert await stream.log.delete_all() == 4
        assert await rig.publish("s.3") == ok(5)

    with_streams(tmp_path, test, max_subjects=3)


def test_a_stream_held_by_an_exclusive_producer_refuses(tmp_path: Path) -> None:
    class Link:
        def producer_closed(self, producer: Producer) -> None: ...
        def producer_turn(self, producer: Producer) -> None: ...
        def producer_failed(self, producer: Producer, failure: Exception) -> None: ...
        def probe(self) -> None: ...

    async def test(rig: Rig) -> None:
        stream = await rig.create("S", "s")
        holder = Producer(
            Link(), 0, "p", 0, generated=False, deduplicated=False, access=ProducerAccess.EXCLUSIVE
        )
        stream.partition.producers.add(holder)
        assert await rig.publish("s") == refused(10077)
        stream.partition.producers.remove(holder)
        assert await rig.publish("s") == ok(1)

    with_streams(tmp_path, test)


def test_a_full_disk_refuses(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        await rig.create("S", "s")
        rig.store.full = True
        assert await rig.publish("s") == refused(10077)

    with_streams(tmp_path, test)


@pytest.mark.parametrize(
    ("options", "taken"),
    [
        (StoreOptions(reserve=0), MAX_IN_FLIGHT_BYTES),
        (StoreOptions(reserve=0, unsynced=1 << 20), 1 << 20),
    ],
    ids=["client", "disk"],
)
def test_a_client_is_not_read_from_while_too_much_of_it_waits_for_the_disk(
    tmp_path: Path, options: StoreOptions, taken: int
) -> None:
    disk = HeldDisk()
    payload = b"x" * (128 << 10)

    async def test(rig: Rig) -> None:
        await rig.create("S", "s")
        disk.hold()
        try:
            replies: list[str] = []
            while rig.reading.is_set() and len(replies) < 100:
                replies.append(rig.send("s", payload))
                rig.publisher.flush()
                await asyncio.sleep(0)
            assert taken <= len(replies) * len(payload) <= taken + 2 * len(payload)
            assert not rig.answers
        finally:
            disk.release()
        assert (await rig.answer(replies[-1]))["seq"] == len(replies)
        async with asyncio.timeout(DEADLINE_SECONDS):
            await rig.reading.wait()

    with_streams(tmp_path, test, options=options, disk=disk)


def test_a_refusal_shows_no_message_before_it_is_on_disk(tmp_path: Path) -> None:
    disk = HeldDisk()

    async def test(rig: Rig) -> None:
        await rig.create("S", "s")
        disk.hold()
        try:
            stored = rig.send("s", b"first")
            refused = rig.send("s", b"second", {f"{EXPECTED}Last-Subject-Sequence": "0"})
            rig.publisher.flush()
            assert await asyncio.to_thread(disk.held.wait, DEADLINE_SECONDS)
            again = rig.send("s", b"third", {f"{EXPECTED}Last-Subject-Sequence": "0"})
            rig.publisher.flush()
            await asyncio.sleep(0)
            assert not rig.answers
        finally:
            disk.release()
        assert (await rig.answer(stored))["seq"] == 1
        assert (await rig.answer(refused))["error"] == 10071
        assert (await rig.answer(again))["error"] == 10071

    with_streams(tmp_path, test, disk=disk)


def test_a_client_whose_messages_are_on_disk_waits_until_the_disk_has_caught_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = [True]
    monkeypatch.setattr(Store, "congested", property(lambda _store: bool(slow)))

    async def test(rig: Rig) -> None:
        await rig.create("S", "s")
        assert await rig.publish("s") == ok(1)
        assert not rig.reading.is_set()
        slow.clear()
        for listener in tuple(rig.store.pressure):
            listener()
        assert rig.reading.is_set()
        assert not rig.store.pressure

    with_streams(tmp_path, test)
