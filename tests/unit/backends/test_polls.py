"""Polls that a broker serves: what a worker makes of an answer, and what it sends back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from threading import Event
from typing import Any

import pytest

from router.backends.polling import GroupPoll
from router.backends.pulsar.polls import BrokerPoll, BrokerPolls
from router.errors import (
    BackendUnavailableError,
    MessageOverMaxBytesError,
    ReadFailedError,
    TooManyRequestsError,
)
from router.model import Message, PollOutcome, Subscription, TopicName
from router.wire import node as wire_node
from router.wire.node import node_pb2 as npb
from router.wire.pulsar import pack
from router.wire.pulsar.pulsar_pb2 import LZ4
from tests.unit.pulsar_client.fake_broker import WAIT, FakeBroker, Side

GROUP = Subscription(TopicName.parse("t"), "g")
Answers = Callable[[int], Sequence[tuple[npb.CommandPolled, Sequence[bytes]]]]


class Woken:
    """A mailbox that a thread can wait for."""

    def __init__(self) -> None:
        self.event = Event()

    def wake(self) -> None:
        self.event.set()


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    broker = FakeBroker()
    yield broker
    for side in broker.sides:
        side.cut()


def polled(broker: FakeBroker, answers: Answers, **bounds: Any) -> BrokerPoll:
    """Return a poll that the broker answered with these frames."""

    def answer(side: Side, command: Any, _payload: bytes) -> None:
        poll_id = wire_node.read(command.extension).poll.poll_id
        for frame, payloads in answers(poll_id):
            command = wire_node.NodeCommand(polled=frame)
            side.send_raw(b"".join(wire_node.parts(command, payloads)))

    broker.on["poll"] = answer
    given: dict[str, Any] = {"limit": 100, "max_bytes": 1 << 20, **bounds}
    mailbox = Woken()
    polls = BrokerPolls(broker.link(), 10)
    pending = polls.poll(GroupPoll(GROUP, "c", timeout=1.0, **given), mailbox, WAIT)
    assert mailbox.event.wait(WAIT)
    return pending


def entry(number: int, payload: bytes, partition: int = 0, **fields: Any) -> npb.PolledEntry:
    return npb.PolledEntry(
        partition=partition,
        ledger=7,
        entry=number,
        epoch=1,
        size=len(payload),
        timestamp_ms=5,
        **fields,
    )


def answer_of(poll_id: int, *entries: tuple[npb.PolledEntry, bytes], more: bool = False) -> Any:
    frame = npb.CommandPolled(poll_id=poll_id, entries=[one for one, _ in entries], more=more)
    return frame, [payload for _, payload in entries]


def batch(*values: bytes) -> bytes:
    return pack([Message(value) for value in values], "p", 0, 1)


def held(pending: BrokerPoll) -> bool:
    return pending.is_held


def done(broker: FakeBroker) -> Any:
    (command,) = broker.wait_for("done")
    return command


def test_an_answer_of_several_frames_is_one(broker: FakeBroker) -> None:
    first, second = batch(b"a", b"b"), batch(b"c", b"d")
    pending = polled(
        broker,
        lambda number: [
            answer_of(number, (entry(0, first), first), more=True),
            answer_of(number, (entry(1, second, first=3, batch_size=9), second)),
        ],
    )
    found = pending.answer()
    assert found is not None
    assert [stored.message.value for stored in found] == [b"a", b"b", b"c", b"d"]
    places = [(one.position.entry, one.position.batch_index) for one in found]
    assert places == [(0, 0), (0, 1), (1, 3), (1, 4)]
    assert {stored.publish_time for stored in found} == {5}
    pending.done(PollOutcome.DELIVERED)
    assert not done(broker).upto


def test_what_a_poll_has_no_limit_for_is_not_acknowledged(broker: FakeBroker) -> None:
    payload = batch(b"a", b"b", b"c")
    pending = polled(broker, lambda n: [answer_of(n, (entry(0, payload), payload))], limit=2)
    found = pending.answer()
    assert found is not None
    assert [stored.message.value for stored in found] == [b"a", b"b"]
    pending.done(PollOutcome.DELIVERED)
    (upto,) = done(broker).upto
    assert (upto.entryId, upto.batch_index, upto.batch_size) == (0, 1, 3)


def test_an_entry_that_cannot_be_read_holds_up_its_partition_alone(broker: FakeBroker) -> None:
    sound, other = batch(b"a"), batch(b"b")
    damaged = sound[:-1] + b"?"
    pending = polled(
        broker,
        lambda n: [
            answer_of(
                n,
                (entry(0, sound), sound),
                (entry(1, damaged), damaged),
                (entry(2, sound), sound),
                (entry(9, other, 1), other),
            )
        ],
    )
    found = pending.answer()
    assert found is not None
    assert [stored.message.value for stored in found] == [b"a", b"b"]
    pending.done(PollOutcome.DELIVERED)
    assert [(one.partition, one.entryId) for one in done(broker).upto] == [(0, 0), (1, 9)]


def test_an_answer_of_which_nothing_can_be_read_is_a_failure(broker: FakeBroker) -> None:
    damaged = batch(b"a")[:-1] + b"?"
    pending = polled(broker, lambda n: [answer_of(n, (entry(0, damaged), damaged))])
    with pytest.raises(ReadFailedError, match="cannot be read"):
        pending.answer()


def test_an_oversized_entry_is_given_whatever_the_bound_on_bytes_is(broker: FakeBroker) -> None:
    payload = pack([Message(bytes(6 << 20))], "p", 0, 1, LZ4)
    pending = polled(
        broker, lambda n: [answer_of(n, (entry(0, payload), payload))], max_bytes=1, strict=True
    )
    found = pending.answer()
    assert found is not None
    assert [stored.oversized for stored in found] == [True]


def test_a_first_message_of_too_many_bytes_is_refused_if_the_bound_is_strict(
    broker: FakeBroker,
) -> None:
    payload = batch(b"abc")
    pending = polled(
        broker, lambda n: [answer_of(n, (entry(0, payload), payload))], max_bytes=2, strict=True
    )
    with pytest.raises(MessageOverMaxBytesError, match="3 bytes, maxBytes is 2"):
        pending.answer()


def test_a_refusal_has_its_code_and_when_to_come_back(broker: FakeBroker) -> None:
    refusal: dict[str, Any] = {
        "code": TooManyRequestsError.code,
        "message": "slower",
        "retry_after_ms": 1_500,
    }
    pending = polled(broker, lambda n: [(npb.CommandPolled(poll_id=n, **refusal), ())])
    with pytest.raises(TooManyRequestsError, match="slower") as caught:
        pending.answer()
    assert caught.value.retry_after == 1.5
    assert not pending.is_held


def test_what_a_lost_connection_answered_is_not_held_any_more(broker: FakeBroker) -> None:
    payload = batch(b"a")
    pending = polled(broker, lambda n: [answer_of(n, (entry(0, payload), payload))])
    assert held(pending)
    broker.side.cut()
    until = time.monotonic() + WAIT
    while held(pending):
        assert time.monotonic() < until, "it is held still"
        time.sleep(0.002)
    with pytest.raises(BackendUnavailableError):
        pending.answer()
    pending.done(PollOutcome.DELIVERED)
    assert not broker.of_the_node("done")
