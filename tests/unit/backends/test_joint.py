"""Batches for several partitions in one frame, and what becomes of those that cannot go with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from router.backends import Batch, JointBackend
from router.backends.pulsar.backend import PulsarBackend
from router.backends.pulsar.producers import NamedProducer, Place
from router.backends.pulsar.routes import OneBroker
from router.errors import (
    BackendTimeoutError,
    NotAllowedError,
    OutcomeUnknownError,
    PublishRefusedError,
    QuotaExceededError,
    TopicTerminatedError,
)
from router.model import NOT_PARTITIONED, Message, TopicName
from router.wire.pulsar import pulsar_pb2 as pb
from router.wire.pulsar import unpack
from tests.unit.pulsar_client.fake_broker import WAIT, FakeBroker, Side, T

Outcomes = dict[int, BaseException | None]


class Worker:
    """A backend at a fake broker that stores each producer's entries once, by their number."""

    def __init__(self, server_version: str = "dragoman test") -> None:
        self.broker = FakeBroker(server_version)
        self.link = self.broker.link()
        self.backend = PulsarBackend(OneBroker(self.link), None, time.time_ns)
        self.names: dict[tuple[Side, int], tuple[str, str]] = {}
        self.held: dict[str, list[bytes]] = {}
        self.last: dict[tuple[str, str], int] = {}
        self.broker.on[T.PRODUCER] = self._producer
        self.broker.on[T.SEND] = self._sent
        self.broker.on[T.APPENDS] = self._appended

    def open(self, *topics: str) -> None:
        for topic in topics:
            self.backend.publish(self.batch(topic, b"opened"), WAIT)

    def batch(self, topic: str, *values: bytes, **fields: Any) -> Batch:
        messages = [Message(value, **fields) for value in values]
        return Batch(TopicName.parse(topic), NOT_PARTITIONED, messages)

    def publish(self, *batches: Batch, timeout: float = WAIT) -> Outcomes:
        """Publish batches together; return what became of each, when all is known."""
        outcomes: Outcomes = {}
        ended = threading.Semaphore(0)

        def settled(place: int, failure: BaseException | None) -> None:
            assert place not in outcomes
            outcomes[place] = failure
            ended.release()

        self.backend.publish_many(batches, timeout, settled)
        for _ in batches:
            assert ended.acquire(timeout=WAIT)
        return outcomes

    def values(self, topic: str) -> list[bytes]:
        """What is held of a topic behind what opened it."""
        return self.held[str(TopicName.parse(topic))][1:]

    def store(self, side: Side, number: int, sequence: int, payload: bytes) -> None:
        """Keep an entry, unless its producer sent this number before."""
        topic, name = self.names[side, number]
        if self.last.get((topic, name), -1) < sequence:
            self.last[topic, name] = sequence
            self.held.setdefault(topic, []).extend(
                one.message.value for one in unpack(payload, 1 << 20)
            )

    def entries(self, command: Any, payload: bytes) -> Iterator[tuple[int, int, bytes]]:
        asked, at = command.appends, 0
        for number, sequence, size in zip(
            asked.producer_ids, asked.sequence_ids, asked.sizes, strict=True
        ):
            yield number, sequence, payload[at : at + size]
            at += size
        assert at == len(payload)

    def _producer(self, side: Side, command: Any, payload: bytes) -> None:
        asked = command.producer
        self.names[side, asked.producer_id] = asked.topic, asked.producer_name
        self.broker.last_sequence = self.last.get((asked.topic, asked.producer_name), -1)
        self.broker._producer(side, command, payload)

    def _sent(self, side: Side, command: Any, payload: bytes) -> None:
        self.store(side, command.send.producer_id, command.send.sequence_id, payload)
        self.broker._receipt(side, command, payload)

    def _appended(self, side: Side, command: Any, payload: bytes) -> None:
        for entry in self.entries(command, payload):
            self.store(side, *entry)
        self.broker.respond(side, command.appends.request_id)


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker()
    worker.open("a", "b", "c")
    yield worker
    worker.link.close()


def failure(entry: int, error: pb.ServerError, message: str) -> pb.AppendFailure:
    return pb.AppendFailure(entry=entry, error=error, message=message)


def test_batches_of_open_partitions_share_a_frame(worker: Worker) -> None:
    assert isinstance(worker.backend, JointBackend)
    batches = [worker.batch("a", b"1", b"2"), worker.batch("b", b"3"), worker.batch("c", b"4")]
    for _ in range(3):
        assert worker.publish(*batches) == {0: None, 1: None, 2: None}
    assert len(worker.broker.of(T.APPENDS)) == 3
    assert len(worker.broker.of(T.SEND)) == 3  # those that opened them
    assert worker.values("a") == [b"1", b"2"] * 3
    assert worker.values("c") == [b"4"] * 3


def test_only_partitions_that_our_own_broker_has_open_are_open(worker: Worker) -> None:
    assert worker.backend.is_open(TopicName.parse("a"), NOT_PARTITIONED)
    assert not worker.backend.is_open(TopicName.parse("a"), 0)
    assert not worker.backend.is_open(TopicName.parse("d"), NOT_PARTITIONED)
    worker.broker.side.send(
        T.CLOSE_PRODUCER, close_producer=pb.CommandCloseProducer(producer_id=2, request_id=0)
    )
    deadline = time.monotonic() + WAIT
    while worker.backend.is_open(TopicName.parse("a"), NOT_PARTITIONED):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    foreign = Worker("Pulsar Server 4.0")
    foreign.open("a")
    assert not foreign.backend.is_open(TopicName.parse("a"), NOT_PARTITIONED)
    foreign.link.close()


def test_what_cannot_go_together_goes_alone(worker: Worker) -> None:
    """Not open yet; messages that cannot share an entry; twice the same partition."""
    mixed = Batch(
        TopicName.parse("b"), NOT_PARTITIONED, [Message(b"now"), Message(b"later", deliver_at=1)]
    )
    first, again = worker.batch("a", b"1"), worker.batch("a", b"2")
    outcomes = worker.publish(worker.batch("new", b"0", b"1"), first, again, mixed)
    assert set(outcomes.values()) == {None}
    assert worker.held["persistent://public/default/new"] == [b"0", b"1"]
    assert worker.values("a") == [b"1", b"2"]
    assert worker.values("b") == [b"now", b"later"]


def test_a_frame_takes_no_more_than_the_broker_allows(worker: Worker) -> None:
    connection = worker.link.connection(time.monotonic() + WAIT)
    connection.max_message = 1_000
    huge, half = worker.batch("a", b"x" * 1_001), b"x" * 600
    outcomes = worker.publish(huge, worker.batch("b", half), worker.batch("c", half))
    assert isinstance(outcomes[0], PublishRefusedError)
    assert (outcomes[1], outcomes[2]) == (None, None)
    assert max(len(payload) for _, payload in worker.broker.seen) <= 1_000
    assert worker.values("c") == [half]


def test_a_refused_entry_fails_no_other(worker: Worker) -> None:
    def react(side: Side, command: Any, payload: bytes) -> None:
        entries = list(worker.entries(command, payload))
        worker.store(side, *entries[1])
        quota = failure(0, pb.ProducerBlockedQuotaExceededError, "quota-exceeded: full")
        terminated = failure(2, pb.TopicTerminatedError, "topic-terminated: over")
        worker.broker.respond(side, command.appends.request_id, terminated, quota)

    worker.broker.on[T.APPENDS] = react
    outcomes = worker.publish(*[worker.batch(topic, b"v") for topic in "abc"])
    assert [type(outcomes[place]) for place in range(3)] == [
        QuotaExceededError,
        type(None),
        TopicTerminatedError,
    ]
    assert [worker.values(topic) for topic in "abc"] == [[], [b"v"], []]
    worker.broker.on[T.APPENDS] = worker._appended
    assert set(worker.publish(*[worker.batch(topic, b"w") for topic in "abc"]).values()) == {None}


def test_a_refused_frame_fails_only_what_it_carried(worker: Worker) -> None:
    """A batch that is published apart is stored, and its outcome says so."""

    def refuse(side: Side, command: Any, payload: bytes) -> None:
        del payload
        error = pb.CommandError(
            request_id=command.appends.request_id, error=pb.NotAllowedError, message="not now"
        )
        side.send(T.ERROR, error=error)

    worker.broker.on[T.APPENDS] = refuse
    outcomes = worker.publish(*[worker.batch(topic, b"v") for topic in ("new", "a", "b")])
    assert [type(outcomes[place]) for place in range(3)] == [
        type(None),
        NotAllowedError,
        NotAllowedError,
    ]
    assert worker.held["persistent://public/default/new"] == [b"v"]


def test_entries_without_an_answer_are_sent_again_as_they_were(worker: Worker) -> None:
    """The broker stored some of them before the connection went, and nothing twice."""

    def react(side: Side, command: Any, payload: bytes) -> None:
        for entry in list(worker.entries(command, payload))[:2]:
            worker.store(side, *entry)
        side.cut()

    worker.broker.on[T.APPENDS] = react
    assert set(worker.publish(*[worker.batch(topic, b"v") for topic in "abc"]).values()) == {None}
    assert [worker.values(topic) for topic in "abc"] == [[b"v"]] * 3
    (lost,) = worker.broker.of(T.APPENDS)
    again = worker.broker.of(T.SEND)[3:]
    assert sorted(one.send.sequence_id for one in again) == sorted(lost.appends.sequence_ids)


def test_an_entry_that_the_broker_wants_again_holds_up_no_other(worker: Worker) -> None:
    """Its producer is not open any more, and opening it takes as long as there is time."""
    busy = threading.Event()

    def react(side: Side, command: Any, payload: bytes) -> None:
        for entry in list(worker.entries(command, payload))[1:]:
            worker.store(side, *entry)
        closed = pb.CommandCloseProducer(producer_id=command.appends.producer_ids[0], request_id=0)
        side.send(T.CLOSE_PRODUCER, close_producer=closed)
        not_open = failure(0, pb.ServiceNotReady, "producer 2 is not open")
        worker.broker.respond(side, command.appends.request_id, not_open)

    def hold(side: Side, command: Any, payload: bytes) -> None:
        del payload
        busy.set()
        error = pb.CommandError(
            request_id=command.producer.request_id, error=pb.ProducerBusy, message="connected"
        )
        side.send(T.ERROR, error=error)

    worker.broker.on[T.APPENDS], worker.broker.on[T.PRODUCER] = react, hold
    outcomes: Outcomes = {}
    ended = threading.Event()

    def settled(place: int, outcome: BaseException | None) -> None:
        outcomes[place] = outcome
        if place == 0:
            ended.set()

    worker.backend.publish_many([worker.batch(topic, b"v") for topic in "abc"], WAIT, settled)
    assert outcomes == {1: None, 2: None}
    assert busy.wait(WAIT)
    worker.broker.on[T.APPENDS] = worker._appended
    # What comes next goes past it, but for what is behind it in its own partition.
    assert worker.publish(worker.batch("b", b"w"), worker.batch("c", b"w")) == {0: None, 1: None}
    assert 0 not in outcomes
    worker.broker.on[T.PRODUCER] = worker._producer
    assert ended.wait(WAIT)
    assert outcomes[0] is None
    assert [worker.values(topic) for topic in "abc"] == [[b"v"], [b"v", b"w"], [b"v", b"w"]]


def test_an_answer_that_does_not_come_is_an_unknown_outcome(worker: Worker) -> None:
    worker.broker.on[T.APPENDS] = lambda _side, _command, _payload: None
    outcomes = worker.publish(*[worker.batch(topic, b"v") for topic in "ab"], timeout=2)
    assert [type(outcome) for outcome in outcomes.values()] == [OutcomeUnknownError] * 2
    worker.broker.on[T.APPENDS] = worker._appended
    # Its number is not used again, and the turn is free.
    assert worker.publish(*[worker.batch(topic, b"w") for topic in "ab"]) == {0: None, 1: None}
    lost, sent = worker.broker.of(T.APPENDS)
    assert [n + 1 for n in lost.appends.sequence_ids] == list(sent.appends.sequence_ids)


def test_what_was_in_a_lost_frame_is_unknown_while_the_broker_stays_away(worker: Worker) -> None:
    def react(side: Side, command: Any, payload: bytes) -> None:
        del worker.broker.on[T.CONNECT]
        for entry in worker.entries(command, payload):
            worker.store(side, *entry)
        side.cut()

    worker.broker.on[T.APPENDS] = react
    outcomes = worker.publish(*[worker.batch(topic, b"v") for topic in "ab"], timeout=2)
    assert [type(outcome) for outcome in outcomes.values()] == [OutcomeUnknownError] * 2


def test_a_producer_that_was_given_up_a_moment_ago_is_not_opened_again(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name would be taken for as long as the connection lives."""
    producers = worker.backend._producers
    ready = producers.ready

    def retired(place: Place) -> NamedProducer | None:
        if (producer := ready(place)) is not None:
            producers._retire(producer)
        return producer

    with monkeypatch.context() as patch:
        patch.setattr(producers, "ready", retired)
        assert worker.publish(worker.batch("a", b"v")) == {0: None}
    assert worker.values("a") == [b"v"]
    assert worker.backend.is_open(TopicName.parse("a"), NOT_PARTITIONED)


def test_a_publish_that_waits_for_its_turn_in_vain_is_a_timeout(worker: Worker) -> None:
    producer = worker.backend._producers._table[TopicName.parse("a"), NOT_PARTITIONED]
    with producer.turn:
        outcomes = worker.publish(worker.batch("a", b"v"), worker.batch("b", b"v"), timeout=2)
    assert isinstance(outcomes[0], BackendTimeoutError)
    assert outcomes[1] is None


def test_turns_are_free_when_a_publish_breaks_off(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(*_args: object) -> Any:
        raise Killed

    connection = worker.link.connection(time.monotonic() + WAIT)
    with monkeypatch.context() as patch:
        patch.setattr(connection, "ask", killed)
        with pytest.raises(Killed):
            worker.publish(worker.batch("a", b"v"), worker.batch("b", b"v"))
    assert worker.publish(worker.batch("a", b"w"), worker.batch("b", b"w")) == {0: None, 1: None}


def test_publishes_to_many_partitions_are_each_stored_once_while_connections_go(
    worker: Worker,
) -> None:
    """From several threads, in order for each partition and thread, and nothing twice."""
    topics = [f"t{number}" for number in range(6)]
    worker.open(*topics)
    count = 0
    lock = threading.Lock()

    def react(side: Side, command: Any, payload: bytes) -> None:
        nonlocal count
        with lock:
            count += 1
            entries = list(worker.entries(command, payload))
            stored = entries[: count % (len(entries) + 1)] if count % 4 == 0 else entries
            for entry in stored:
                worker.store(side, *entry)
        if count % 4 == 0:
            side.cut()
        else:
            worker.broker.respond(side, command.appends.request_id)

    worker.broker.on[T.APPENDS] = react
    failures: list[BaseException] = []

    def work(name: int) -> None:
        for number in range(8):
            batches = [worker.batch(topic, b"%d.%d" % (name, number)) for topic in topics]
            outcomes = worker.publish(*batches)
            failures.extend(one for one in outcomes.values() if one is not None)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(4 * WAIT)
    assert failures == []
    for topic in topics:
        held = worker.values(topic)
        assert len(held) == len(set(held)) == 16
        for name in range(2):
            own = [value for value in held if value.startswith(b"%d." % name)]
            assert own == [b"%d.%d" % (name, number) for number in range(8)]
