"""NATS requests at the node's broker: what is sent, what is handed on, and what ends them."""

from __future__ import annotations

from typing import Any

import pytest

from router.errors import (
    BackendTimeoutError,
    ForbiddenError,
    MessageTooLargeError,
    OutcomeUnknownError,
)
from router.model import Principal
from router.node.nats import NatsCall, NatsRoad
from router.pulsar_client.connection import PulsarConnectionLostError, Waiting
from router.services.consume import ClientGoneError
from router.services.jetstream import AckRequest, BrokerStreams, JetStreamRequest
from router.wire import node
from router.wire.nats.message import AckResult, NatsMessage
from router.wire.node import node_pb2 as npb
from router.wire.pulsar import MAX_MESSAGE_SIZE, PulsarFrameReader

MESSAGE = NatsMessage("orders.new", "", b"NATS/1.0\r\nA: b\r\n\r\n", b"pears")


class Wire:
    """A connection that keeps what is sent, and answers when a test says so."""

    def __init__(self) -> None:
        self._reader = PulsarFrameReader()
        self._ids = iter(range(1, 100))
        self.waiting: dict[int, Waiting] = {}
        self.sent: list[npb.CommandAdmin] = []

    def connection(self, _deadline: float) -> Wire:
        return self

    def next_id(self) -> int:
        return next(self._ids)

    def send(self, data: bytes) -> None:
        for frame in self._reader.receive(data):
            self.sent.append(node.read(frame.command.extension).admin)

    def ask_for(self, key: int, frame: bytes, waiting: Waiting) -> None:
        self.waiting[key] = waiting
        self.send(frame)

    def drop(self, key: int) -> bool:
        return self.waiting.pop(key, None) is not None

    def answer(self, key: int, **fields: Any) -> None:
        self.waiting.pop(key).put(npb.CommandAdminResponse(request_id=key, **fields))


class Client:
    """A client that stays until a test says otherwise."""

    def __init__(self) -> None:
        self.gone = False
        self.closed = False

    def is_closed(self) -> bool:
        return self.gone

    def check_seconds(self) -> float:
        return 0.5

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def streams(wire: Wire) -> BrokerStreams:
    link: Any = wire
    return BrokerStreams(NatsRoad(link, 1.0), 2.0)


def asked(*, long_poll: bool = False, reads: bool = False) -> JetStreamRequest:
    return JetStreamRequest(Principal("anna"), True, MESSAGE, 3, 5.0, long_poll, reads)


def ended(steps: Any) -> Any:
    """Take the last step; return what the steps return."""
    with pytest.raises(StopIteration) as stop:
        next(steps)
    return stop.value.value


def test_request_says_who_asks_and_what_is_waited_for(wire: Wire, streams: BrokerStreams) -> None:
    steps = streams.request(asked())
    event, seconds = next(steps)
    assert isinstance(event, NatsCall)
    assert 6 < (seconds or 0) <= 7
    (command,) = wire.sent
    sent = command.nats_request
    message = sent.message
    assert (message.subject, message.headers, message.payload) == (MESSAGE[0], *MESSAGE[2:])
    assert not message.HasField("reply")
    assert (sent.principal, sent.administers, sent.key, sent.admin) == ("anna", True, False, False)
    assert (sent.max_replies, sent.timeout_ms) == (3, 5_000)
    reply = npb.NatsMessage(subject="_INBOX.x", payload=b"{}")
    wire.answer(1, nats_messages=[reply])
    assert ended(steps) == [NatsMessage("_INBOX.x", payload=b"{}")]
    assert len(wire.sent) == 1


TOKENS = [f"$JS.ACK.S.c.1.{number}.{number}.1700.0" for number in range(1, 1_001)]
ACKS = AckRequest(Principal("anna"), TOKENS, b"-NAK", 5.0)


def test_acknowledgements_of_one_request_are_one_frame(wire: Wire, streams: BrokerStreams) -> None:
    steps = streams.acknowledge(ACKS)
    next(steps)
    (command,) = wire.sent
    sent = command.nats_acknowledge
    assert (list(sent.subjects), sent.payload) == (TOKENS, b"-NAK")
    assert (sent.principal, sent.key, sent.admin) == ("anna", False, False)
    wire.answer(1, acknowledged=1_000)
    assert ended(steps) == AckResult(1_000)
    assert len(wire.sent) == 1


def test_a_failure_of_acknowledgements_says_how_many_are_done(
    wire: Wire, streams: BrokerStreams
) -> None:
    steps = streams.acknowledge(ACKS)
    next(steps)
    wire.answer(1, acknowledged=7, code="forbidden", message="no right")
    done, failure = ended(steps)
    assert (done, type(failure), str(failure)) == (7, ForbiddenError, "no right")


def test_acknowledgements_without_an_answer_may_be_taken(
    wire: Wire, streams: BrokerStreams
) -> None:
    steps = streams.acknowledge(ACKS)
    next(steps)
    wire.waiting.pop(1).fail(PulsarConnectionLostError("gone"))
    with pytest.raises(OutcomeUnknownError, match="gone"):
        next(steps)
    late = streams.acknowledge(ACKS._replace(seconds=-1.0))
    with pytest.raises(OutcomeUnknownError, match="in time"):
        next(late)
    assert wire.sent[-1].cancel_nats_request == 2
    assert wire.waiting == {}


def test_failure_of_the_broker_is_raised(wire: Wire, streams: BrokerStreams) -> None:
    steps = streams.request(asked())
    next(steps)
    wire.answer(1, code="forbidden", message="no right")
    with pytest.raises(ForbiddenError, match="no right"):
        next(steps)


def test_outcome_is_unknown_where_the_connection_goes(wire: Wire, streams: BrokerStreams) -> None:
    steps = streams.request(asked())
    next(steps)
    wire.waiting.pop(1).fail(PulsarConnectionLostError("gone"))
    with pytest.raises(OutcomeUnknownError, match="gone"):
        next(steps)


def test_what_changes_nothing_is_asked_again(wire: Wire, streams: BrokerStreams) -> None:
    steps = streams.request(asked(reads=True))
    next(steps)
    wire.waiting.pop(1).fail(PulsarConnectionLostError("gone"))
    next(steps)
    wire.answer(2)
    assert ended(steps) == []
    assert len(wire.sent) == 2


def test_a_poll_that_loses_the_broker_says_that_it_is_away(
    wire: Wire, streams: BrokerStreams
) -> None:
    steps = streams.request(asked(long_poll=True))
    next(steps)
    wire.waiting.pop(1).fail(PulsarConnectionLostError("gone"))
    with pytest.raises(PulsarConnectionLostError):
        next(steps)


def test_what_is_given_up_is_cancelled_at_the_broker(wire: Wire, streams: BrokerStreams) -> None:
    steps = streams.request(asked())
    next(steps)
    steps.close()
    assert wire.sent[-1].cancel_nats_request == 1
    assert wire.waiting == {}


def test_client_that_leaves_ends_the_wait(wire: Wire, streams: BrokerStreams) -> None:
    client = Client()
    steps = streams.request(asked(long_poll=True), lambda _: client)
    assert next(steps)[1] == 0.5
    next(steps)  # it is looked at again and again
    client.gone = True
    with pytest.raises(ClientGoneError):
        next(steps)
    assert wire.sent[-1].cancel_nats_request == 1
    assert client.closed


def test_answer_counts_though_its_client_left(wire: Wire, streams: BrokerStreams) -> None:
    client = Client()
    steps = streams.request(asked(), lambda _: client)
    next(steps)
    client.gone = True
    wire.answer(1)
    assert ended(steps) == []


def test_long_polls_end_when_the_worker_stops(wire: Wire, streams: BrokerStreams) -> None:
    poll, publish = streams.request(asked(long_poll=True)), streams.request(asked())
    woken: list[str] = []
    next(poll)[0].call(lambda: woken.append("poll"))
    next(publish)[0].call(lambda: woken.append("publish"))
    streams.stop()
    assert woken == ["poll"]
    assert ended(poll) == []
    assert wire.sent[-1].cancel_nats_request == 1
    assert ended(streams.request(asked(long_poll=True))) == []
    wire.answer(2)
    assert ended(publish) == []


@pytest.mark.parametrize("reads", [False, True])
def test_request_without_an_answer_times_out(streams: BrokerStreams, reads: bool) -> None:
    late = BrokerStreams(streams._road, -10.0)
    with pytest.raises(BackendTimeoutError) as caught:
        next(late.request(asked(reads=reads)))
    # What changes something was sent, and may have been done.
    assert isinstance(caught.value, OutcomeUnknownError) != reads
    assert ended(late.request(asked(long_poll=True))) == []


def test_a_message_larger_than_a_frame_is_not_sent(wire: Wire, streams: BrokerStreams) -> None:
    large = asked()._replace(message=MESSAGE._replace(payload=bytes(MAX_MESSAGE_SIZE)))
    with pytest.raises(MessageTooLargeError):
        next(streams.request(large))
    assert wire.sent == []
