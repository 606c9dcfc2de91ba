"""Access modes, the line for exclusive access, fencing and termination, frame by frame."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from router.wire import node
from router.wire.node import node_pb2 as npb
from router.wire.pulsar import pulsar_pb2 as pb
from tests.broker.conftest import Connect, greeted
from tests.broker.raw import RawClient
from tests.ports import free_port
from tests.processes import BrokerProcess

EXCLUSIVE = pb.Exclusive
WAIT = pb.WaitForExclusive
FENCE = pb.ExclusiveWithFencing


def open_producer(
    raw: RawClient, topic: str, mode: pb.ProducerAccessMode = pb.Shared, **fields: Any
) -> pb.CommandProducerSuccess:
    return raw.producer(topic, producer_access_mode=mode, **fields)


def refused(
    raw: RawClient, topic: str, mode: pb.ProducerAccessMode = pb.Shared, **fields: int
) -> pb.ServerError:
    fields.setdefault("producer_id", 0)
    answer = raw.ask("PRODUCER", "ERROR", topic=topic, producer_access_mode=mode, **fields)
    error: pb.ServerError = answer.error
    return error


def wait_in_line(raw: RawClient, topic: str, producer_id: int = 0, request_id: int = 900) -> None:
    raw.send(
        "PRODUCER",
        topic=topic,
        producer_id=producer_id,
        request_id=request_id,
        producer_access_mode=WAIT,
    )
    answer = raw.expect("PRODUCER_SUCCESS")
    assert (answer.request_id, answer.producer_ready) == (request_id, False)
    assert not answer.HasField("topic_epoch")


def get_turn(raw: RawClient, request_id: int = 900) -> pb.CommandProducerSuccess:
    answer: pb.CommandProducerSuccess = raw.expect("PRODUCER_SUCCESS")
    assert (answer.request_id, answer.producer_ready) == (request_id, True)
    return answer


def close(raw: RawClient, producer_id: int = 0) -> None:
    raw.ask("CLOSE_PRODUCER", "SUCCESS", producer_id=producer_id)


@pytest.fixture
def third(shared_broker: BrokerProcess, connect: Connect) -> RawClient:
    return greeted(connect(shared_broker))


def test_each_exclusive_producer_has_the_next_topic_epoch(raw: RawClient, topic: str) -> None:
    for epoch in range(3):
        opened = open_producer(raw, topic, EXCLUSIVE)
        assert (opened.topic_epoch, opened.producer_ready) == (epoch, True)
        close(raw)


def test_shared_producer_has_no_topic_epoch(raw: RawClient, topic: str) -> None:
    assert not open_producer(raw, topic).HasField("topic_epoch")


def test_second_producer_is_refused_while_a_topic_is_held(
    raw: RawClient, other: RawClient, topic: str
) -> None:
    open_producer(raw, topic, EXCLUSIVE)
    assert refused(other, topic, EXCLUSIVE) == pb.ProducerFenced
    assert refused(other, topic) == pb.ProducerBusy
    raw.publish(b"mine")
    close(raw)
    open_producer(other, topic)


def test_exclusive_producer_is_refused_while_others_share(
    raw: RawClient, other: RawClient, topic: str
) -> None:
    open_producer(raw, topic)
    assert refused(other, topic, EXCLUSIVE) == pb.ProducerFenced
    raw.publish(b"shared")


def test_waiting_producer_is_ready_when_the_holder_closes(
    raw: RawClient, other: RawClient, topic: str
) -> None:
    open_producer(raw, topic, EXCLUSIVE)
    wait_in_line(other, topic)
    assert other.silent()
    close(raw)
    assert get_turn(other).topic_epoch == 1
    other.publish(b"my turn")


def test_waiting_producer_is_ready_at_once_when_nobody_is_there(raw: RawClient, topic: str) -> None:
    opened = open_producer(raw, topic, WAIT)
    assert (opened.producer_ready, opened.topic_epoch) == (True, 0)


def test_waiting_producer_is_ready_when_the_last_shared_one_closes(
    raw: RawClient, other: RawClient, topic: str
) -> None:
    open_producer(raw, topic, producer_id=1)
    open_producer(raw, topic, producer_id=2)
    wait_in_line(other, topic)
    assert refused(raw, topic, producer_id=3) == pb.ProducerBusy
    close(raw, 1)
    assert other.silent()
    close(raw, 2)
    get_turn(other)


def test_turns_come_in_the_order_of_the_line(
    raw: RawClient, other: RawClient, third: RawClient, topic: str
) -> None:
    open_producer(raw, topic, EXCLUSIVE)
    wait_in_line(other, topic)
    wait_in_line(third, topic)
    raw.close()
    get_turn(other)
    assert third.silent()
    close(other)
    get_turn(third)


@pytest.mark.parametrize("leave", ["close", "disconnect"])
def test_who_leaves_the_line_is_not_waited_for(
    raw: RawClient, other: RawClient, third: RawClient, topic: str, leave: str
) -> None:
    open_producer(raw, topic, EXCLUSIVE)
    wait_in_line(other, topic)
    wait_in_line(third, topic)
    if leave == "close":
        close(other)
    else:
        other.close()
    # What the broker answers comes after it has heard that the other one left.
    third.ask("PARTITIONED_METADATA", "PARTITIONED_METADATA_RESPONSE", topic=topic)
    close(raw)
    get_turn(third)


def test_asking_again_keeps_the_place_in_the_line(
    raw: RawClient, other: RawClient, topic: str
) -> None:
    open_producer(raw, topic, EXCLUSIVE)
    wait_in_line(other, topic, request_id=900)
    wait_in_line(other, topic, request_id=901)
    close(raw)
    get_turn(other, request_id=901)


def test_send_of_a_producer_in_the_line_closes_the_connection(
    raw: RawClient, other: RawClient, topic: str
) -> None:
    open_producer(raw, topic, EXCLUSIVE)
    wait_in_line(other, topic)
    other.send_entry(b"too early")
    assert other.closed()


def test_fencing_lets_all_others_go(
    raw: RawClient, other: RawClient, third: RawClient, topic: str
) -> None:
    open_producer(raw, topic, EXCLUSIVE)
    wait_in_line(other, topic)
    assert open_producer(third, topic, FENCE).topic_epoch == 1
    assert raw.expect("CLOSE_PRODUCER").producer_id == 0
    raw.send_entry(b"fenced")
    assert raw.silent()
    failed = other.expect("ERROR")
    assert (failed.request_id, failed.error) == (900, pb.ProducerFenced)
    assert third.publish(b"alone").message_id.entryId == 0


@pytest.mark.parametrize("mode", [EXCLUSIVE, WAIT, FENCE])
def test_producer_of_an_older_topic_epoch_is_fenced(
    raw: RawClient, other: RawClient, topic: str, mode: pb.ProducerAccessMode
) -> None:
    open_producer(raw, topic, EXCLUSIVE)
    open_producer(other, topic, FENCE)
    raw.expect("CLOSE_PRODUCER")
    assert refused(raw, topic, mode, topic_epoch=0, epoch=1) == pb.ProducerFenced
    other.publish(b"still mine")


def test_producer_comes_back_with_its_topic_epoch(raw: RawClient, topic: str) -> None:
    assert open_producer(raw, topic, EXCLUSIVE).topic_epoch == 0
    close(raw)
    assert open_producer(raw, topic, EXCLUSIVE, topic_epoch=0, epoch=1).topic_epoch == 0


def test_holder_takes_over_from_its_old_connection(
    raw: RawClient, other: RawClient, topic: str
) -> None:
    open_producer(raw, topic, EXCLUSIVE, producer_name="me")
    again = open_producer(
        other, topic, EXCLUSIVE, producer_name="me", topic_epoch=0, epoch=1, producer_id=5
    )
    assert again.topic_epoch == 0
    raw.expect("CLOSE_PRODUCER")
    other.send_entry(b"v", producer_id=5)
    other.expect("SEND_RECEIPT")


def test_topic_epoch_beyond_all_bounds_is_refused(raw: RawClient, topic: str) -> None:
    assert refused(raw, topic, EXCLUSIVE, topic_epoch=2**64 - 1) == pb.NotAllowedError
    assert open_producer(raw, topic, EXCLUSIVE).topic_epoch == 0


def test_producers_are_closed_when_the_topic_is_terminated(raw: RawClient, topic: str) -> None:
    raw.producer(topic)
    place = raw.publish(b"last").message_id
    raw.send("ADMIN", request_id=7, terminate_topic=npb.TopicRef(topic=topic))
    assert raw.expect("CLOSE_PRODUCER").producer_id == 0
    (last,) = raw.expect("ADMIN_RESPONSE").last_positions
    assert (last.ledgerId, last.entryId) == (place.ledgerId, place.entryId)
    raw.send_entry(b"too late", sequence_id=1)
    assert raw.silent()
    assert refused(raw, topic) == pb.TopicTerminatedError


def test_terminating_again_answers_the_same(raw: RawClient, topic: str) -> None:
    raw.producer(topic)
    answers = []
    for _ in range(2):
        raw.send("ADMIN", request_id=7, terminate_topic=npb.TopicRef(topic=topic))
        answers.append(next(a.extension for a in frames(raw) if a.HasField("extension")))
    (first,), (second,) = (node.read(answer).admin_response.last_positions for answer in answers)
    assert first == second
    assert first.entryId == 2**64 - 1


def test_who_waits_is_told_when_the_topic_is_terminated(
    raw: RawClient, other: RawClient, topic: str
) -> None:
    open_producer(raw, topic, EXCLUSIVE)
    wait_in_line(other, topic)
    raw.send("ADMIN", request_id=7, terminate_topic=npb.TopicRef(topic=topic))
    assert other.expect("ERROR").error == pb.TopicTerminatedError


def frames(raw: RawClient) -> Iterator[pb.BaseCommand]:
    while (frame := raw.read()) is not None:
        yield frame.command


def test_topic_epoch_and_termination_outlive_the_broker(
    tmp_path_factory: pytest.TempPathFactory, connect: Connect, topic: str
) -> None:
    broker = BrokerProcess(tmp_path_factory.mktemp("killed") / "data", free_port())
    ended = f"{topic}-ended"
    broker.start()
    try:
        raw = greeted(connect(broker))
        assert open_producer(raw, topic, EXCLUSIVE).topic_epoch == 0
        open_producer(raw, ended, producer_id=1)
        raw.publish(b"v", producer_id=1)
        raw.send("ADMIN", request_id=7, terminate_topic=npb.TopicRef(topic=ended))
        raw.expect("CLOSE_PRODUCER")
        raw.expect("ADMIN_RESPONSE")
        broker.kill()
        broker.start()
        raw = greeted(connect(broker))
        assert refused(raw, ended) == pb.TopicTerminatedError
        assert open_producer(raw, topic, FENCE).topic_epoch == 1
        close(raw)
        assert refused(raw, topic, EXCLUSIVE, topic_epoch=0) == pb.ProducerFenced
    finally:
        broker.stop()
