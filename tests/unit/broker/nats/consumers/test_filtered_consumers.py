"""Consumers of some subjects, under changes of all dialects: complete, once, and well counted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from router.broker.entries import ENTRY_FORMATS
from router.broker.nats.consumers.consumer import JetStreamConsumer
from router.broker.nats.streams.stream import Stream
from router.broker.storage import PULSAR_FORMAT, Undecided
from router.model import Message
from router.wire.nats.message import NatsMessage
from tests.unit.broker.nats.serving import Inbox, Serving, run
from tests.unit.broker.nats.streaming import everything

SUBJECTS = ("s.a", "s.b", "s.c")
FILTERS = {"a": ["s.a"], "ab": ["s.a", "s.b"], "all": ["s.>"], "none": ["s.none"], "s": ["*.c"]}
STEPS = 40


class Walk:
    """Random changes of a stream, and what its consumers were delivered.

    `waiting`: each has a request that waits for all messages; else they are pulled now and then.
    """

    def __init__(self, served: Serving, seed: int, *, waiting: bool) -> None:
        self.served = served
        self.random = random.Random(seed)
        self.waiting = waiting
        self.delivered: dict[str, list[int]] = {name: [] for name in FILTERS}
        self.inboxes = {name: Inbox() for name in FILTERS}
        for name, inbox in self.inboxes.items():
            served.hub.subscribe(f"in.{name}", inbox)
            if waiting:
                served.ask(name, f"in.{name}", batch=100_000)

    @property
    def stream(self) -> Stream:
        return self.served.server.streams.find("S")

    async def step(self) -> None:
        change = self.random.choice(
            [self.publish] * 4 + [self.foreign] * 2 + [self.pull] * 4 + [self.delete, self.purge]
            + ([self.truncate] if self.random.random() < 0.3 else [])
        )  # fmt: skip
        await change()

    async def publish(self) -> None:
        for _ in range(self.random.choice((1, 1, 5, 100))):
            await self.served.publish(b"v", subject=self.random.choice(SUBJECTS))

    async def foreign(self) -> None:
        size = self.random.choice((1, 20_000))
        names = self.random.choices(SUBJECTS, k=self.random.choice((1, 3)))
        messages = [Message(value=bytes(size), properties={"Nats-Subject": name}) for name in names]
        payload = ENTRY_FORMATS[PULSAR_FORMAT].from_messages(messages, 0)
        self.stream.ledger.append(payload, PULSAR_FORMAT, len(names), 1, lambda _: None)
        if self.random.random() < 0.5:
            await self.served.stored()

    async def pull(self, count: int = 0) -> None:
        name = self.random.choice(list(FILTERS))
        if self.waiting:
            return
        for message in await self.served.pull(name, count or self.random.choice((1, 7, 200))):
            self.delivered[name].append(sequence_of(message))
            self.served.say(message)

    async def delete(self) -> None:
        if self.stream.log.last_sequence:
            sequence = self.random.randint(1, self.stream.log.last_sequence)
            await self.served.call("STREAM.MSG.DELETE.S", seq=sequence)

    async def purge(self) -> None:
        body = self.random.choice(
            ({}, {"filter": "s.a"}, {"keep": 5}, {"seq": self.stream.log.last_sequence // 2 + 1})
        )
        if self.random.random() < 0.4:
            await self.served.call("STREAM.PURGE.S", **body)

    async def truncate(self) -> None:
        ledger = self.stream.ledger
        number = self.random.randint(ledger.first_number, ledger.durable_number)
        await self.served.store.delete_before(ledger, number)

    async def receive(self, subjects: dict[int, str]) -> None:
        """Return when all messages that are left were delivered to those that get them."""
        for name, inbox in self.inboxes.items():
            consumer = self.stream.consumers[name]
            wanted = {one for one, subject in subjects.items() if matching(consumer, subject)}
            async with asyncio.timeout(10):
                while not wanted <= set(map(sequence_of, inbox.messages)):  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            self.delivered[name] = [sequence_of(message) for message in inbox.messages]

    async def check(self) -> None:
        """Compare what consumers have before them with the messages that are left."""
        await self.stream.settle()
        messages = await everything(self.stream)
        if self.waiting:
            await self.receive({message.sequence: message.subject for message in messages})
        for name, consumer in self.stream.consumers.items():
            assert isinstance(consumer, JetStreamConsumer)
            mine = [m.sequence for m in messages if matching(consumer, m.subject)]
            seen = self.delivered[name]
            assert seen == sorted(set(seen)), name
            left = [sequence for sequence in mine if sequence not in set(seen)]
            assert consumer.num_pending == len(left), name
            assert all(sequence >= consumer.state.next_sequence for sequence in left), name


def matching(consumer: JetStreamConsumer, subject: str) -> bool:
    """Return whether a message of a subject is the consumer's."""
    return consumer._deliveries.source.matches(subject)


def sequence_of(message: NatsMessage) -> int:
    """Return the sequence of a message that was delivered."""
    return int(message.reply.split(".")[5])


@pytest.mark.slow
def test_messages_that_are_published_while_a_consumer_begins_are_counted(tmp_path: Path) -> None:
    async def test(served: Serving) -> None:
        await served.stream()
        stream = served.server.streams.find("S")
        publisher = served.server.streams.publisher(lambda: None, lambda: None)

        async def publish() -> None:
            while True:
                for subject in SUBJECTS:
                    publisher.publish(stream, NatsMessage(subject, "", b"", b"v"))
                publisher.flush()
                await asyncio.sleep(0)

        publishing = asyncio.create_task(publish())
        for name in ("a", "ab"):
            await served.consumer(name, filter_subjects=FILTERS[name])
        publishing.cancel()
        await asyncio.wait((publishing,))
        await served.stored()
        await check_counts(stream)

    run(tmp_path, test)


def test_messages_behind_an_open_transaction_are_counted_that_are_on_disk_alone(
    tmp_path: Path,
) -> None:
    async def test(served: Serving) -> None:
        await served.stream()
        stream = served.server.streams.find("S")
        ledger = stream.ledger
        first = ledger.next_entry
        ledger.undecided = Undecided(first, ledger.next_index)
        async with asyncio.timeout(30):
            while ledger.next_entry == first or ledger.in_memory(first) is not None:
                await served.publish(bytes(50_000), subject="s.a")
                await served.publish(b"v", subject="s.b")
                await served.stored()
        await served.consumer("ab", filter_subjects=FILTERS["ab"])
        await served.consumer("a", filter_subjects=FILTERS["a"])
        assert [(await served.info(name))["num_pending"] for name in ("ab", "a")] == [0, 0]
        ledger.undecided = None
        ledger.announce()
        await check_counts(stream)

    run(tmp_path, test)


def test_messages_behind_an_open_transaction_are_not_pending_before_it_is_decided(
    tmp_path: Path,
) -> None:
    """So that who watches a bucket learns that it has all values that there are."""

    async def test(served: Serving) -> None:
        await served.stream()
        stream = served.server.streams.find("S")
        ledger = stream.ledger
        await served.publish(b"1", b"2", subject="s.a")
        await served.consumer("old", filter_subjects=["s.a"])

        async def pending(name: str) -> int:
            return int((await served.info(name))["num_pending"])

        ledger.undecided = Undecided(ledger.next_entry, ledger.next_index)
        await served.publish(b"3", b"4", subject="s.a")
        middle = Undecided(ledger.next_entry, ledger.next_index)
        await served.publish(b"5", subject="s.a")
        new = await served.consumer("new", filter_subjects=["s.a"])
        assert (await pending("old"), new["num_pending"]) == (2, 2)
        found = await served.pull("old")
        assert [one.reply.split(".")[-1] for one in found] == ["1", "0"]
        ledger.undecided = middle  # the first of two is decided
        ledger.announce()
        assert (await pending("old"), await pending("new")) == (2, 4)
        await served.call("STREAM.PURGE.S", filter="s.a", keep=1)
        assert (await pending("old"), await pending("new")) == (1, 1)
        assert stream.log.indexer is not None
        stream.log.indexer.restart()
        await stream.settle()
        assert (await pending("old"), await pending("new")) == (1, 1)
        ledger.undecided = None
        ledger.announce()
        assert (await pending("old"), await pending("new")) == (2, 2)
        await check_counts(stream, "new")

    run(tmp_path, test)


def test_messages_are_counted_once_if_the_index_is_built_again_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(served: Serving) -> None:
        await served.stream()
        stream = served.server.streams.find("S")
        for subject in SUBJECTS * 2:
            await served.publish(b"v", subject=subject)
        await served.stored()
        count_from = stream.log.count_from

        async def restarted(sequence: int, filters: Sequence[str]) -> int:
            found = await count_from(sequence, filters)
            assert stream.log.indexer is not None
            stream.log.indexer.restart()
            return found

        monkeypatch.setattr(stream.log, "count_from", restarted)
        await served.consumer("a", filter_subjects=FILTERS["a"])
        monkeypatch.undo()
        await check_counts(stream)

    run(tmp_path, test)


async def check_counts(stream: Stream, *names: str) -> None:
    """Compare what consumers that begin have before them with the messages that there are."""
    await stream.settle()
    left = await everything(stream)
    for name in names or stream.consumers:
        consumer = stream.consumers[name]
        assert isinstance(consumer, JetStreamConsumer)
        assert consumer.num_pending == sum(matching(consumer, m.subject) for m in left), name


@pytest.mark.slow
@pytest.mark.parametrize("waiting", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_consumers_of_some_subjects_get_all_of_them_once(
    tmp_path: Path, seed: int, waiting: bool
) -> None:
    async def test(served: Serving) -> None:
        await served.stream(allow_direct=True)
        for name, filters in FILTERS.items():
            await served.consumer(name, filter_subjects=filters, max_ack_pending=10_000)
        walk = Walk(served, seed, waiting=waiting)
        for _ in range(STEPS):
            await walk.step()
            await walk.check()
            await asyncio.sleep(0)

    run(tmp_path, test)
