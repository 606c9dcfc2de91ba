"""Plain subscriptions receive what other dialects append to streams, once and in order."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from router.broker.consume.visible import Visible
from router.broker.entries import ENTRY_FORMATS
from router.broker.nats import other_dialects
from router.broker.nats.consumers.reading import SubjectFilter
from router.broker.nats.other_dialects import OtherDialects
from router.broker.nats.protocol.hub import Hub, HubSubscription, Subscriber
from router.broker.storage import PULSAR_FORMAT, Ledger
from router.model import Message, TopicName
from router.model.policies import Policies
from router.wire.nats.message import NatsMessage
from router.wire.nats.subjects import matches
from tests.unit.broker.nats.streaming import DEADLINE_SECONDS, Anyone, Rig, streaming


class Box(Subscriber):
    """A subscriber, and what it received."""

    def __init__(self) -> None:
        self.found: list[NatsMessage] = []

    def deliver(self, message: NatsMessage) -> None:
        self.found.append(message)

    @property
    def texts(self) -> list[str]:
        return [f"{one.subject} {one.payload.decode()}" for one in self.found]

    async def until(self, count: int) -> list[str]:
        """Return what came when there is so much."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while len(self.found) < count:  # noqa: ASYNC110 - a sync is waited for
                await asyncio.sleep(0.001)
        return self.texts


class Served:
    """Streams, a hub, and what sends from the one to the other."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.hub = Hub()
        self.dialects = OtherDialects(self.hub, rig.streams, rig.topics)

    def subscribe(self, subject: str, box: Box | None = None) -> tuple[Box, HubSubscription]:
        box = box or Box()
        return box, self.hub.subscribe(subject, box)

    async def topic(self, name: str, partitions: int = 0) -> None:
        topics = self.rig.topics
        await topics.create(topics.parse(name), partitions, Policies(), {})

    def ledger(self, name: str, index: int = 0) -> Ledger:
        topic = self.rig.topics.find(str(self.rig.topics.parse(name)))
        assert topic is not None
        return self.rig.store.ledger(topic.ledger_ids[index])

    async def append(self, ledger: Ledger, *messages: Message) -> None:
        """Append an entry of a Pulsar client and return when it is on disk."""
        payload = ENTRY_FORMATS[PULSAR_FORMAT].from_messages(messages, 0)
        done = asyncio.Event()
        ledger.append(payload, PULSAR_FORMAT, len(messages), 1, lambda _: done.set())
        await done.wait()

    async def settled(self) -> None:
        """Return when what was appended before has been announced."""
        stored = asyncio.Event()
        self.rig.store.after_sync(stored.set)
        await stored.wait()
        for _ in range(20):
            await asyncio.sleep(0)


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Served]:
    async with streaming(folder) as rig:
        served = Served(rig)
        yield served
        served.dialects.close()


def message(text: str, subject: str = "", **properties: str) -> Message:
    if subject:
        properties["Nats-Subject"] = subject
    return Message(text.encode(), properties=properties)


@pytest.mark.parametrize("pattern", ["ORDERS", "*", ">"])
async def test_a_plain_topic_is_seen_under_its_name(pattern: str, tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.topic("ORDERS")
        box, _ = served.subscribe(pattern)
        other, _ = served.subscribe("ORDERS.x")
        await served.append(served.ledger("ORDERS"), message("1"), message("2", "elsewhere"))
        assert await box.until(2) == ["ORDERS 1", "ORDERS 2"]
        assert not other.found


async def test_what_may_not_be_delivered_yet_or_any_more_is_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as served:
        await served.topic("T")
        box, _ = served.subscribe("T")
        ledger = served.ledger("T")
        monkeypatch.setattr(Visible, "end_entry", 1)
        monkeypatch.setattr(Visible, "messages", lambda _self, _entry: 0b101)
        await served.append(ledger, message("1"), message("2"), message("3"))
        await served.append(ledger, message("4"))
        await served.settled()
        assert box.texts == ["T 1", "T 3"]
        monkeypatch.setattr(Visible, "end_entry", 2)
        ledger.announce()
        assert await box.until(3) == ["T 1", "T 3", "T 4"]


async def test_messages_have_the_subjects_that_the_stream_takes_and_their_headers(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as served:
        stream = await served.rig.create("S", "s.>")
        box, _ = served.subscribe(">")
        new, _ = served.subscribe("s.new")
        other, _ = served.subscribe("s.S")
        name, _ = served.subscribe("S")
        messages = message("1", "s.new", a="b"), message("2", "s.old"), message("3", "t.x")
        await served.append(stream.ledger, *messages)
        assert await box.until(3) == ["s.new 1", "s.old 2", "s.S 3"]
        assert new.found == [NatsMessage("s.new", "", b"NATS/1.0\r\na: b\r\n\r\n", b"1")]
        assert other.texts == ["s.S 3"]
        assert not name.found


@pytest.mark.parametrize(
    ("subjects", "subject"),
    [
        (("trp.>",), "trp.TRP"),
        (("a.*.c.*", "d"), "a.TRP.c.TRP"),
        (("one", "two.>"), "one"),
        (("one.>", "TRP"), "TRP"),
        (("*",), "TRP"),
        (("$KV.bucket.>",), "$KV.bucket.TRP"),
    ],
)
async def test_a_message_without_a_subject_is_what_each_filter_that_matches_its_default_finds(
    subjects: tuple[str, ...], subject: str, tmp_path: Path
) -> None:
    async with serving(tmp_path) as served:
        await served.topic("TRP")
        await served.append(served.ledger("TRP"), message("before"))
        plain = await served.rig.streams.open("TRP")
        assert [one.subject for one in await plain.read_from(1, 9, 999)] == ["TRP"]
        stream = await served.rig.create("TRP", *subjects)
        patterns = {*subjects, subject, "TRP", "trp.*", "trp.>", "*", ">", "elsewhere"}
        boxes = {pattern: served.subscribe(pattern)[0] for pattern in patterns}
        await served.append(stream.ledger, message("1"), message("2", "not.of.the.stream.x"))
        await boxes[">"].until(2)
        assert [one.subject for one in await stream.read_from(1, 9, 999)] == [subject] * 3
        await stream.log.catch_up()
        for pattern, box in boxes.items():
            found = matches(pattern, subject)
            assert len(box.found) == (2 if found else 0)
            assert await stream.log.count_from(1, (pattern,)) == (3 if found else 0)
            assert await stream.last_of_subjects((pattern,)) == ([3] if found else [])
            assert SubjectFilter((pattern,), subjects)(subject) == found


async def test_what_nats_clients_publish_is_not_sent_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        stream = await served.rig.create("S", "s.>")
        box, _ = served.subscribe("s.>")
        await served.rig.publish("s.a", b"of NATS")
        await served.append(stream.ledger, message("1", "s.a"))
        await served.rig.publish("s.a", b"of NATS")
        await served.append(stream.ledger, message("2", "s.a"))
        assert await box.until(2) == ["s.a 1", "s.a 2"]
        await served.settled()
        assert len(box.found) == 2


async def test_ledgers_are_followed_only_while_a_subscription_is_about_them(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.topic("A")
        await served.topic("B")
        await served.rig.create("S", "s.>")
        before = {name: len(served.ledger(name).listeners) for name in ("A", "B", "S")}

        def followed() -> list[str]:
            return [n for n, count in before.items() if len(served.ledger(n).listeners) > count]

        assert followed() == []
        ends = [served.subscribe("A")[1], served.subscribe("A")[1], served.subscribe("s.x")[1]]
        served.subscribe("_INBOX.1.>")
        served.subscribe("nothing")
        assert followed() == ["A", "S"]
        ends.pop().unsubscribe()
        assert followed() == ["A"]
        ends.pop().unsubscribe()
        assert followed() == ["A"]
        ends.pop().unsubscribe()
        assert followed() == []
        everything = served.subscribe(">")[1]
        assert followed() == ["A", "B", "S"]
        everything.unsubscribe()
        assert followed() == []
        assert len(served.dialects.followers) == 0


async def test_a_subscription_sees_only_what_is_appended_after_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.topic("A")
        await served.append(served.ledger("A"), message("before"))
        box, subscription = served.subscribe("A")
        await served.append(served.ledger("A"), message("1"))
        await box.until(1)
        subscription.unsubscribe()
        await served.append(served.ledger("A"), message("meanwhile"))
        again, _ = served.subscribe("A")
        await served.append(served.ledger("A"), message("2"))
        assert await again.until(1) == ["A 2"]
        assert box.texts == ["A 1"]


@pytest.mark.parametrize("pattern", ["LATER", "LAT*", "*", "l.x", "l.*"])
async def test_topics_and_streams_that_are_made_later_are_followed(
    pattern: str, tmp_path: Path
) -> None:
    async with serving(tmp_path) as served:
        box, _ = served.subscribe(pattern)
        if pattern.startswith("l"):
            await served.rig.create("LATER", "l.x")
            await served.append(served.ledger("LATER"), message("1", "l.x"))
            assert await box.until(1) == ["l.x 1"]
        elif pattern == "LAT*":
            await served.topic("LATER")
            await served.append(served.ledger("LATER"), message("1"))
            await served.settled()
            assert not box.found
        else:
            await served.topic("LATER")
            await served.append(served.ledger("LATER"), message("1"))
            assert await box.until(1) == ["LATER 1"]


async def test_a_topic_that_is_made_later_is_not_followed_for_a_subscription_that_ended(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as served:
        served.subscribe("elsewhere")
        for pattern in (">", "LATER"):
            served.subscribe(pattern)[1].unsubscribe()
        await served.topic("LATER")
        await served.settled()
        assert len(served.dialects.followers) == 0


async def test_a_topic_that_is_made_again_is_followed_and_the_old_one_is_not(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as served:
        await served.topic("A")
        box, subscription = served.subscribe("A")
        await served.append(served.ledger("A"), message("1"))
        await box.until(1)
        await served.rig.topics.delete(TopicName.parse("persistent://public/default/A"))
        await asyncio.sleep(0)
        assert len(served.dialects.followers) == 0
        await served.topic("A")
        await served.append(served.ledger("A"), message("2"))
        assert await box.until(2) == ["A 1", "A 2"]
        subscription.unsubscribe()
        assert len(served.dialects.followers) == 0


async def test_a_change_of_subjects_is_a_change_of_what_is_followed(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        stream = await served.rig.create("S", "s.x")
        box, _ = served.subscribe("t.*")
        assert len(served.dialects.followers) == 0
        streams = served.rig.streams
        config = dataclasses.replace(stream.config, subjects=("t.x",))
        await streams.update(config, Anyone(), pedantic=False)
        await served.append(served.ledger("S"), message("1", "t.x"))
        assert await box.until(1) == ["t.x 1"]
        config = dataclasses.replace(config, subjects=("s.x",))
        await streams.update(config, Anyone(), pedantic=False)
        await served.settled()
        assert len(served.dialects.followers) == 0


async def test_each_partition_is_a_stream_of_its_own(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.topic("P", partitions=2)
        box, _ = served.subscribe("P-partition-1")
        both, _ = served.subscribe("*")
        assert len(served.dialects.followers) == 2
        await served.append(served.ledger("P", 0), message("0"))
        await served.append(served.ledger("P", 1), message("1"))
        assert sorted(await both.until(2)) == ["P-partition-0 0", "P-partition-1 1"]
        assert box.texts == ["P-partition-1 1"]


async def test_much_is_sent_in_order_beside_other_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_dialects, "CHUNK_ENTRIES", 3)
    async with serving(tmp_path) as served:
        await served.topic("A")
        box, _ = served.subscribe("A")
        ledger = served.ledger("A")
        texts = [f"{number} " + "x" * (number % 7 * 5_000) for number in range(120)]
        await asyncio.gather(*(served.append(ledger, message(text)) for text in texts[:60]))
        await asyncio.gather(*(served.append(ledger, message(text)) for text in texts[60:]))
        assert await box.until(120) == [f"A {text}" for text in texts]


async def test_what_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.topic("A")
        box, _ = served.subscribe("A")
        ledger = served.ledger("A")
        done = asyncio.Event()
        ledger.append(b"no entry of Pulsar", PULSAR_FORMAT, 1, 1, lambda _: done.set())
        await done.wait()
        await served.append(ledger, message("1"))
        assert await box.until(1) == ["A 1"]


async def test_a_subscriber_that_ends_while_it_is_sent_to_is_sent_no_more(tmp_path: Path) -> None:
    class Once(Box):
        end: HubSubscription

        def deliver(self, message: NatsMessage) -> None:
            super().deliver(message)
            self.end.unsubscribe()

    async with serving(tmp_path) as served:
        await served.topic("A")
        box = Once()
        _, box.end = served.subscribe("A", box)
        await served.append(served.ledger("A"), message("1"), message("2"))
        await box.until(1)
        await served.append(served.ledger("A"), message("3"))
        await served.settled()
        assert box.texts == ["A 1"]
        assert len(served.dialects.followers) == 0


async def test_many_topics_are_compared_in_several_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_dialects, "MAX_TOPICS_AT_ONCE", 2)
    async with serving(tmp_path) as served:
        for number in range(7):
            await served.topic(f"T{number}")
        box, subscription = served.subscribe("*")
        assert len(served.dialects.followers) == 2
        gone, ended = served.subscribe(">")
        ended.unsubscribe()
        await served.settled()
        assert len(served.dialects.followers) == 7
        await served.append(served.ledger("T6"), message("1"))
        assert await box.until(1) == ["T6 1"]
        assert not gone.found
        subscription.unsubscribe()
        assert len(served.dialects.followers) == 0
