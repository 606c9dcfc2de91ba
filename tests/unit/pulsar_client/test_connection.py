from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest

from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    NotServedError,
    TopicNotFoundError,
)
from router.process.build import NODE_PROTOCOL, build_id
from router.pulsar_client import connection as connections
from router.pulsar_client.connection import PulsarConnection, PulsarConnectionLostError
from router.pulsar_client.handshake import shake_hands
from router.wire.pulsar import encode
from router.wire.pulsar import pulsar_pb2 as pb
from tests.unit.pulsar_client.fake_broker import WAIT, FakeBroker, Side, T


def ask(connection: PulsarConnection, topic: str, timeout: float = WAIT) -> Any:
    request_id = connection.next_id()
    asked = pb.CommandLookupTopic(topic=topic, request_id=request_id)
    command = pb.BaseCommand(type=T.LOOKUP, lookupTopic=asked)
    return connection.call(request_id, command, time.monotonic() + timeout)


def answer(side: Side, command: Any) -> None:
    found = pb.CommandLookupTopicResponse(
        request_id=command.lookupTopic.request_id, message=command.lookupTopic.topic
    )
    side.send(T.LOOKUP_RESPONSE, lookupTopicResponse=found)


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


def test_answers_find_their_callers_in_any_order(broker: FakeBroker) -> None:
    waiting: list[Any] = []

    def hold(side: Side, command: Any, _payload: bytes) -> None:
        waiting.append(command)
        if len(waiting) == 20:
            for held in reversed(waiting):
                answer(side, held)

    broker.on[T.LOOKUP] = hold
    connection = broker.connect()
    found: dict[int, str] = {}

    def work(number: int) -> None:
        found[number] = ask(connection, f"topic-{number}").message

    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    connection.close()
    assert found == {number: f"topic-{number}" for number in range(20)}


class _Narrow:
    """A stream that takes a few bytes at a time."""

    def __init__(self, peer: Any) -> None:
        self._peer = peer

    def send(self, data: bytes) -> int:
        sent: int = self._peer.send(data[:3])
        return sent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._peer, name)


def test_frame_that_is_sent_in_part_is_sent_to_its_end(broker: FakeBroker) -> None:
    broker.on[T.LOOKUP] = lambda side, command, _payload: answer(side, command)
    connection = broker.connect()
    connection._peer = _Narrow(connection._peer)
    assert [ask(connection, topic).message for topic in ("a", "b")] == ["a", "b"]
    connection.close()


def test_an_error_is_raised_as_what_it_means(broker: FakeBroker) -> None:
    def refuse(side: Side, command: Any, _payload: bytes) -> None:
        request_id = command.lookupTopic.request_id
        error = pb.CommandError(request_id=request_id, error=pb.TopicNotFound, message="no")
        side.send(T.ERROR, error=error)

    broker.on[T.LOOKUP] = refuse
    connection = broker.connect()
    with pytest.raises(TopicNotFoundError):
        ask(connection, "t")
    connection.close()


def test_a_call_without_an_answer_ends_at_its_deadline(broker: FakeBroker) -> None:
    connection = broker.connect()
    began = time.monotonic()
    with pytest.raises(BackendTimeoutError):
        ask(connection, "t", 0.1)
    assert time.monotonic() - began < 5
    connection.close()


def test_an_answer_after_the_deadline_disturbs_nobody(broker: FakeBroker) -> None:
    connection = broker.connect()
    with pytest.raises(BackendTimeoutError):
        ask(connection, "late", 0.05)
    answer(broker.side, broker.of(T.LOOKUP)[0])
    broker.on[T.LOOKUP] = lambda side, command, _payload: answer(side, command)
    assert ask(connection, "next").message == "next"
    connection.close()


def test_a_cut_connection_ends_what_waits(broker: FakeBroker) -> None:
    broker.on[T.LOOKUP] = lambda side, _command, _payload: side.cut()
    connection = broker.connect()
    with pytest.raises(PulsarConnectionLostError):
        ask(connection, "t")
    with pytest.raises(PulsarConnectionLostError):
        ask(connection, "t")
    assert connection.error is not None


def test_an_entry_for_a_producer_that_the_broker_closed_is_not_waited_for(
    broker: FakeBroker,
) -> None:
    connection = broker.connect()
    number = connection.next_id()
    send = pb.CommandSend(producer_id=number, sequence_id=0)
    key = number, 0
    reply = connection.ask(key, encode(pb.BaseCommand(type=T.SEND, send=send), b"\0"))
    with pytest.raises(PulsarConnectionLostError):
        connection.take(key, reply, time.monotonic() + WAIT)
    connection.close()
    assert broker.of(T.SEND) == []


def test_a_malformed_frame_ends_the_connection(broker: FakeBroker) -> None:
    broker.on[T.LOOKUP] = lambda side, _command, _payload: side.send_raw(b"\xff" * 16)
    connection = broker.connect()
    with pytest.raises(PulsarConnectionLostError):
        ask(connection, "t")


def test_a_ping_is_answered(broker: FakeBroker) -> None:
    connection = broker.connect()
    broker.side.send(T.PING, ping=pb.CommandPing())
    broker.wait_for(T.PONG)
    connection.close()


def test_what_comes_together_with_the_handshake_is_not_lost(broker: FakeBroker) -> None:
    ping = encode(pb.BaseCommand(type=T.PING, ping=pb.CommandPing()))
    hello = pb.CommandConnected(server_version="Pulsar Server4.2.4")
    connected = encode(pb.BaseCommand(type=T.CONNECTED, connected=hello))
    broker.on[T.CONNECT] = lambda side, _command, _payload: side.send_raw(connected + ping)
    connection = broker.connect()
    broker.wait_for(T.PONG)
    connection.close()


def test_a_broker_of_another_build_is_used(broker: FakeBroker) -> None:
    broker.server_version = "dragoman 0.9.0+0123456789"
    connection = broker.connect()
    assert connection.ours
    connection.close()


def test_a_broker_with_another_node_protocol_is_refused_with_both_builds(
    broker: FakeBroker,
) -> None:
    broker.server_version = "dragoman 0.9.0+0123456789"
    broker.node_protocol = NODE_PROTOCOL + 1
    with pytest.raises(NotServedError) as refused:
        broker.link().connection(time.monotonic() + WAIT)
    assert f"0.9.0+0123456789 (node protocol {NODE_PROTOCOL + 1})" in str(refused.value)
    assert build_id() in str(refused.value)


def test_a_silent_broker_is_pinged_and_then_given_up(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_SILENCE_SECONDS", 1.0)
    connection = broker.connect()
    with pytest.raises(PulsarConnectionLostError):
        ask(connection, "t")
    assert len(broker.of(T.PING)) == 1


def test_a_pong_keeps_the_connection(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_SILENCE_SECONDS", 1.0)
    broker.on[T.PING] = lambda side, _command, _payload: side.send(T.PONG, pong=pb.CommandPong())
    connection = broker.connect()
    broker.wait_for(T.PING, 2)
    assert connection.error is None
    connection.close()


def test_frames_of_many_senders_stay_whole(broker: FakeBroker) -> None:
    broker.on[T.LOOKUP] = lambda side, command, _payload: answer(side, command)
    connection = broker.connect()
    failed: list[str] = []

    def work(number: int) -> None:
        topic = f"{number}-" * 5_000
        failed.extend(topic for _ in range(10) if ask(connection, topic).message != topic)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT * 2)
    connection.close()
    assert failed == []
    assert len(broker.of(T.LOOKUP)) == 80


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_a_peer_that_is_no_broker_is_said_to_be_none(greeting: bytes) -> None:
    near, far = socket.socketpair()
    far.sendall(greeting)
    far.shutdown(socket.SHUT_WR)
    with far, pytest.raises(BackendUnavailableError):
        shake_hands(near, time.monotonic() + WAIT)
    assert near.fileno() == -1


def test_a_refused_handshake_is_unavailability(broker: FakeBroker) -> None:
    def refuse(side: Side, _command: Any, _payload: bytes) -> None:
        error = pb.CommandError(request_id=0, error=pb.AuthenticationError, message="who?")
        side.send(T.ERROR, error=error)

    broker.on[T.CONNECT] = refuse
    with pytest.raises(BackendUnavailableError, match="who"):
        broker.connect()


def test_the_handshake_has_a_deadline() -> None:
    near, far = socket.socketpair()
    with far, pytest.raises(TimeoutError):
        shake_hands(near, time.monotonic() + 0.05)
