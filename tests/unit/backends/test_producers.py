from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from router.backends import Batch, Receipt
from router.backends.pulsar.producers import NamedProducers
from router.backends.pulsar.routes import OneBroker
from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    CredentialsRefusedError,
    OutcomeUnknownError,
    PartialPublishError,
    PublishRefusedError,
    QuotaExceededError,
    TopicNotFoundError,
)
from router.model import NOT_PARTITIONED, Message, Position, TopicName
from router.wire.pulsar import pulsar_pb2 as pb
from router.wire.pulsar import read_metadata, unpack
from tests.unit.pulsar_client.fake_broker import WAIT, FakeBroker, Side, T

NOW = 1_700_000_000_000


class Worker:
    """A worker's producers against a fake broker."""

    def __init__(self, **bounds: Any) -> None:
        self.broker = FakeBroker()
        self.link = self.broker.link()
        self.producers = NamedProducers(OneBroker(self.link), lambda: NOW * 1_000_000, **bounds)

    def publish(
        self,
        values: Sequence[bytes] = (b"v",),
        topic: str = "t",
        timeout: float = WAIT,
        **named: Any,
    ) -> Receipt:
        messages = [Message(value) for value in values]
        batch = Batch(TopicName.parse(topic), NOT_PARTITIONED, messages, **named)
        return self.producers.publish(batch, timeout)

    def sequences(self) -> list[int]:
        return [command.send.sequence_id for command in self.broker.of(T.SEND)]


@pytest.fixture
def worker() -> Any:
    worker = Worker()
    yield worker
    worker.link.close()


def refuse_producer(error: pb.ServerError, message: str, times: int) -> Any:
    """Refuse a producer so many times, then let it in."""
    left = [times]

    def react(side: Side, command: Any, payload: bytes) -> None:
        if not left[0]:
            side.broker._producer(side, command, payload)
            return
        left[0] -= 1
        request_id = command.producer.request_id
        failure = pb.CommandError(request_id=request_id, error=error, message=message)
        side.send(T.ERROR, error=failure)

    return react


def test_an_entry_carries_its_messages_and_their_number(worker: Worker) -> None:
    receipt = worker.publish([b"1", b"2"])
    command, payload = next(seen for seen in worker.broker.seen if seen[0].type == T.SEND)
    assert command.send.num_messages == 2
    assert [one.message.value for one in unpack(payload, 100)] == [b"1", b"2"]
    assert read_metadata(payload).publish_time == NOW
    assert receipt == Receipt(Position(1, 1), 2)


def test_numbers_grow_on_one_producer(worker: Worker) -> None:
    for _ in range(3):
        worker.publish()
    assert worker.sequences() == [0, 1, 2]
    assert len(worker.broker.of(T.PRODUCER)) == 1


def test_numbers_go_on_where_the_broker_says(worker: Worker) -> None:
    worker.broker.last_sequence = 41
    worker.publish()
    assert worker.sequences() == [42]


def test_our_broker_is_asked_to_store_once_and_others_are_not() -> None:
    for version, pairs in (("dragoman x", [("router-dedup", "true")]), ("Pulsar", [])):
        worker = Worker()
        worker.broker.server_version = version
        worker.publish()
        worker.link.close()
        (command,) = worker.broker.of(T.PRODUCER)
        assert [(pair.key, pair.value) for pair in command.producer.metadata] == pairs


def test_an_entry_without_a_receipt_is_sent_again_as_it_was(worker: Worker) -> None:
    def cut_the_first(side: Side, command: Any, payload: bytes) -> None:
        if len(worker.broker.of(T.SEND)) == 2:
            side.cut()
        else:
            worker.broker._receipt(side, command, payload)

    worker.broker.on[T.SEND] = cut_the_first
    worker.publish([b"before"])
    worker.publish([b"lost"])
    worker.publish([b"after"])
    assert worker.sequences() == [0, 1, 1, 2]
    payloads = [payload for command, payload in worker.broker.seen if command.type == T.SEND]
    assert payloads[1] == payloads[2]
    names = {command.producer.producer_name for command in worker.broker.of(T.PRODUCER)}
    assert len(names) == 1


def test_an_entry_is_sent_again_when_the_broker_closes_the_producer(worker: Worker) -> None:
    def close_the_first(side: Side, command: Any, payload: bytes) -> None:
        if len(worker.broker.of(T.SEND)) == 1:
            number = command.send.producer_id
            closed = pb.CommandCloseProducer(producer_id=number, request_id=2**64 - 1)
            side.send(T.CLOSE_PRODUCER, close_producer=closed)
        else:
            worker.broker._receipt(side, command, payload)

    worker.broker.on[T.SEND] = close_the_first
    worker.publish()
    assert worker.sequences() == [0, 0]
    assert len(worker.broker.sides) == 1


def test_an_outcome_that_is_not_known_is_a_timeout(worker: Worker) -> None:
    worker.publish()  # the producer is open: the entry is sent at once
    worker.broker.on[T.SEND] = lambda side, _command, _payload: side.cut()
    with pytest.raises(BackendTimeoutError):
        worker.publish(timeout=2)
    assert set(worker.sequences()) == {0, 1}


def test_entry_that_was_sent_before_the_credentials_were_refused_may_be_stored(
    worker: Worker,
) -> None:
    worker.publish()

    def refuse(side: Side, _command: Any, _payload: bytes) -> None:
        refused = pb.AuthenticationError
        failure = pb.CommandError(request_id=0, error=refused, message="unauthenticated: ended")
        side.send(T.ERROR, error=failure)

    def cut(side: Side, _command: Any, _payload: bytes) -> None:
        worker.broker.on[T.CONNECT] = refuse
        side.cut()

    worker.broker.on[T.SEND] = cut
    with pytest.raises(OutcomeUnknownError, match="ended"):
        worker.publish()
    with pytest.raises(CredentialsRefusedError):
        worker.publish()


def test_a_number_of_unknown_outcome_is_not_used_again(worker: Worker) -> None:
    worker.publish()  # the producer is open: only the entry is waited for
    react = worker.broker.on.pop(T.SEND)
    with pytest.raises(BackendTimeoutError):
        worker.publish(timeout=2)
    worker.broker.on[T.SEND] = react
    worker.publish()
    assert worker.sequences() == [0, 1, 2]


def test_what_was_never_sent_is_unavailability(worker: Worker) -> None:
    worker.broker.on[T.PRODUCER] = lambda side, _command, _payload: side.cut()
    with pytest.raises(BackendUnavailableError):
        worker.publish(timeout=2)


def test_a_missing_topic_is_said_at_once(worker: Worker) -> None:
    worker.broker.on[T.PRODUCER] = refuse_producer(pb.TopicNotFound, "no", 1)
    with pytest.raises(TopicNotFoundError):
        worker.publish()
    worker.publish()


def test_a_refused_entry_is_raised_as_what_it_means(worker: Worker) -> None:
    def refuse(side: Side, command: Any, _payload: bytes) -> None:
        failure = pb.CommandSendError(
            producer_id=command.send.producer_id,
            sequence_id=command.send.sequence_id,
            error=pb.ProducerBlockedQuotaExceededError,
            message="full",
        )
        side.send(T.SEND_ERROR, send_error=failure)

    worker.broker.on[T.SEND] = refuse
    with pytest.raises(QuotaExceededError):
        worker.publish()


@pytest.mark.parametrize("error", [pb.ProducerBusy, pb.ServiceNotReady])
def test_a_producer_that_will_soon_be_let_in_is_tried_again(
    worker: Worker, error: pb.ServerError
) -> None:
    worker.broker.on[T.PRODUCER] = refuse_producer(error, "wait", 2)
    worker.publish()
    assert len(worker.broker.of(T.PRODUCER)) == 3


@pytest.mark.slow
def test_a_broker_that_is_asked_too_much_is_asked_less_and_less(worker: Worker) -> None:
    worker.broker.on[T.PRODUCER] = refuse_producer(pb.TooManyRequests, "slow down", 1000)
    with pytest.raises(BackendUnavailableError):
        worker.publish(timeout=1)
    assert 3 <= len(worker.broker.of(T.PRODUCER)) <= 10


def test_a_named_producer_lives_for_one_publish(worker: Worker) -> None:
    receipt = worker.publish(producer="idempotency:1", sequence=7)
    worker.broker.wait_for(T.CLOSE_PRODUCER)
    assert worker.sequences() == [7]
    assert not receipt.duplicate
    assert worker.producers.size() == 0


def test_a_named_duplicate_answers_what_was_stored_first(worker: Worker) -> None:
    def known(side: Side, command: Any, _payload: bytes) -> None:
        receipt = pb.CommandSendReceipt(
            producer_id=command.send.producer_id,
            sequence_id=command.send.sequence_id,
            message_id=pb.MessageIdData(ledgerId=3, entryId=4),
            stored_messages=9,
        )
        side.send(T.SEND_RECEIPT, send_receipt=receipt)

    worker.broker.on[T.SEND] = known
    receipt = worker.publish(producer="idempotency:1")
    assert receipt == Receipt(Position(3, 4), 9, duplicate=True)
    assert worker.publish() == Receipt(Position(3, 4), 1)


def test_a_duplicate_of_long_ago_has_no_place(worker: Worker) -> None:
    def known(side: Side, command: Any, _payload: bytes) -> None:
        receipt = pb.CommandSendReceipt(
            producer_id=command.send.producer_id,
            sequence_id=command.send.sequence_id,
            message_id=pb.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1),
            stored_messages=1,
        )
        side.send(T.SEND_RECEIPT, send_receipt=receipt)

    worker.broker.on[T.SEND] = known
    assert worker.publish(producer="old").position == Position(-1, -1)


def test_an_entry_above_the_brokers_limit_is_not_sent(worker: Worker) -> None:
    with pytest.raises(PublishRefusedError, match="exceeds"):
        worker.publish([bytes(5 * 1024 * 1024 + 1)])
    assert worker.sequences() == []
    worker.publish()


def test_the_least_recently_used_producer_makes_room() -> None:
    worker = Worker(limit=2)
    for topic in ("a", "b", "a", "c"):
        worker.publish(topic=topic)
    worker.broker.wait_for(T.CLOSE_PRODUCER)
    opened = {c.producer.producer_id: c.producer.topic for c in worker.broker.of(T.PRODUCER)}
    closed = [opened[c.close_producer.producer_id] for c in worker.broker.of(T.CLOSE_PRODUCER)]
    worker.link.close()
    assert [TopicName.parse(name).local for name in closed] == ["b"]
    assert worker.producers.size() == 2


def test_an_unused_producer_is_closed_in_time() -> None:
    worker = Worker(idle=0.02)
    worker.publish(topic="a")
    time.sleep(0.04)
    worker.publish(topic="b")
    worker.broker.wait_for(T.CLOSE_PRODUCER)
    worker.link.close()
    assert worker.producers.size() == 1


class Overtaken:
    """A producer's turn whose producer is retired by another publish before it is had."""

    def __init__(self, retire: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._retire: Callable[[], None] | None = retire

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        retire, self._retire = self._retire, None
        if blocking and retire is not None:
            retire()
        return self._lock.acquire(blocking, timeout)

    def release(self) -> None:
        self._lock.release()


def test_a_producer_that_was_retired_while_its_turn_was_waited_for_is_not_used(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.publish()
    (retired,) = worker.producers._table.values()
    monkeypatch.setattr(retired, "turn", Overtaken(lambda: worker.producers._retire(retired)))
    worker.publish()
    (fresh,) = worker.producers._table.values()
    assert fresh is not retired
    assert len(worker.broker.of(T.PRODUCER)) == 2


def test_publishes_to_one_partition_take_turns_and_to_others_do_not(worker: Worker) -> None:
    held: list[tuple[Side, Any, bytes]] = []
    worker.broker.on[T.SEND] = lambda side, command, payload: held.append((side, command, payload))
    threads = [threading.Thread(target=worker.publish, kwargs={"topic": topic}) for topic in "aab"]
    for thread in threads:
        thread.start()
    # One of each partition; what is third is sent when the one before it has its receipt.
    answered = 0
    for expected in (2, 3):
        worker.broker.wait_for(T.SEND, expected)
        producers = [command.send.producer_id for _, command, _ in held[answered:]]
        assert len(producers) == len(set(producers))
        for react in held[answered:expected]:
            worker.broker._receipt(*react)
        answered = expected
    for thread in threads:
        thread.join(WAIT)
    assert len(worker.sequences()) == 3


def test_a_turn_that_does_not_come_is_a_timeout(worker: Worker) -> None:
    del worker.broker.on[T.SEND]
    failures: list[BackendTimeoutError] = []

    def work() -> None:
        try:
            worker.publish(timeout=4)
        except BackendTimeoutError as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    worker.broker.wait_for(T.SEND)
    with pytest.raises(BackendTimeoutError, match="Earlier publishes took too long"):
        worker.publish(timeout=0.05)
    thread.join(WAIT)
    assert len(failures) == 1
    assert worker.sequences() == [0]


def test_messages_that_cannot_share_an_entry_go_in_several(worker: Worker) -> None:
    messages = [
        Message(b"1"),
        Message(b"2"),
        Message(b"3", deliver_at=NOW),
        Message(b"4", schema_version=bytes(8)),
        Message(b"5", schema_version=bytes(8)),
    ]
    receipt = worker.producers.publish(
        Batch(TopicName.parse("t"), NOT_PARTITIONED, messages, "key", 0), WAIT
    )
    sent = [(c.send, read_metadata(p)) for c, p in worker.broker.seen if c.type == T.SEND]
    assert [send.num_messages for send, _ in sent] == [2, 1, 2]
    assert [m.deliver_at_time for _, m in sent] == [0, NOW, 0]
    assert [m.schema_version for _, m in sent] == [b"", b"", bytes(8)]
    assert [m.producer_name for _, m in sent] == ["key", "key/1", "key/2"]
    assert receipt.stored == 5
    assert [receipt.at(place).batch_index for place in range(5)] == [0, 1, 0, 0, 1]
    assert len({receipt.at(place).entry for place in range(5)}) == 3


def test_a_failure_behind_the_first_entry_tells_how_many_are_stored(worker: Worker) -> None:
    def refuse_the_second(side: Side, command: Any, payload: bytes) -> None:
        if len(worker.broker.of(T.SEND)) == 2:
            send = command.send
            failure = pb.CommandSendError(
                producer_id=send.producer_id,
                sequence_id=send.sequence_id,
                error=pb.PersistenceError,
                message="no",
            )
            side.send(T.SEND_ERROR, send_error=failure)
        else:
            worker.broker._receipt(side, command, payload)

    worker.broker.on[T.SEND] = refuse_the_second
    messages = [Message(b"1"), Message(b"2"), Message(b"3", deliver_at=NOW)]
    with pytest.raises(PartialPublishError) as refused:
        worker.producers.publish(Batch(TopicName.parse("t"), NOT_PARTITIONED, messages), WAIT)
    assert refused.value.stored == 2
