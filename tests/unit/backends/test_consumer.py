from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.backends.pulsar import consumer as consumers
from router.backends.pulsar.consumer import PulsarConsumer, acknowledging
from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    FencedError,
    ReadFailedError,
)
from router.model import UNDECODED, Message, Position
from router.wire.pulsar import pack
from router.wire.pulsar import pulsar_pb2 as pb
from tests.processes import wait_until
from tests.unit.pulsar_client.fake_broker import WAIT, FakeBroker, Side, T

BYTES = 1 << 30
NO_POSITION = 2**64 - 1


class Bell:
    def __init__(self) -> None:
        self.event = threading.Event()

    def wake(self) -> None:
        self.event.set()


class Partition:
    """A partition with entries that the fake broker sends as permits come."""

    def __init__(self, *entries: Sequence[bytes] | None) -> None:
        self.broker = FakeBroker()
        self.broker.on[T.FLOW] = self._flow
        self.broker.on[T.GET_LAST_MESSAGE_ID] = self._last
        self.entries = list(entries)
        self.permits = 0
        self.next = 0
        self.fence: int | None = None
        self.done = -1
        self.bell = Bell()
        self.connection = self.broker.connect()
        self.consumer = PulsarConsumer(self.connection, 5, -1, 77, self.bell)
        self.connection.add_consumer(5, self.consumer)

    def push(self, ack_set: Sequence[int] = ()) -> None:
        """Send the next entry, whether there are permits or not; None is an entry that is gone."""
        values = self.entries[self.next]
        where = pb.MessageIdData(ledgerId=1, entryId=self.next)
        self.next += 1
        if values is None:
            return
        payload = pack([Message(value) for value in values], "p", 0, 0)
        message = pb.CommandMessage(consumer_id=5, message_id=where, ack_set=ack_set)
        self.broker.side.send(T.MESSAGE, payload, message=message)
        self.permits -= len(values)

    def receive(
        self, limit: int = 1000, max_bytes: int = BYTES, timeout: float = WAIT
    ) -> list[bytes]:
        received = self.consumer.receive(limit, max_bytes, timeout)
        return [stored.message.value for stored in received]

    def _flow(self, _side: Side, command: Any, _payload: bytes) -> None:
        self.permits += command.flow.messagePermits
        while self.permits > 0 and self.next < len(self.entries):
            self.push()

    def _last(self, side: Side, command: Any, _payload: bytes) -> None:
        last = self.fence if self.fence is not None else len(self.entries) - 1
        side.send(
            T.GET_LAST_MESSAGE_ID_RESPONSE,
            getLastMessageIdResponse=pb.CommandGetLastMessageIdResponse(
                request_id=command.getLastMessageId.request_id,
                last_message_id=_where(last),
                consumer_mark_delete_position=_where(self.done),
            ),
        )


def _where(entry: int) -> pb.MessageIdData:
    if entry < 0:
        return pb.MessageIdData(ledgerId=NO_POSITION, entryId=NO_POSITION)
    return pb.MessageIdData(ledgerId=1, entryId=entry)


@pytest.fixture
def empty() -> Iterator[Partition]:
    partition = Partition()
    yield partition
    partition.connection.close()


def test_few_permits_come_first_and_more_when_sizes_are_known() -> None:
    partition = Partition(*([b"%d" % n] for n in range(300)))
    assert partition.receive() == [b"%d" % n for n in range(300)]
    permits = [command.flow.messagePermits for command in partition.broker.of(T.FLOW)]
    partition.connection.close()
    assert permits[0] == 16
    assert len(permits) <= 5


def test_permits_never_exceed_what_is_wanted() -> None:
    partition = Partition(*([b"%d" % n] for n in range(100)))
    partition.receive(limit=3)
    partition.connection.close()
    assert [command.flow.messagePermits for command in partition.broker.of(T.FLOW)] == [3]


def test_large_messages_keep_permits_few() -> None:
    partition = Partition(*([bytes(1000)] for n in range(200)))
    partition.receive(max_bytes=40_000)
    partition.connection.close()
    assert partition.next <= 40 + 16


def test_news_is_answered_without_asking_for_the_end_again(empty: Partition) -> None:
    assert empty.receive() == []
    empty.entries.append([b"news"])
    empty.push()
    assert empty.bell.event.wait(WAIT)
    assert empty.receive() == [b"news"]
    assert len(empty.broker.of(T.GET_LAST_MESSAGE_ID)) == 1


@pytest.mark.slow
@given(
    sizes=st.lists(st.integers(1, 30), max_size=12),
    limits=st.lists(st.integers(1, 40), min_size=1, max_size=8),
)
def test_any_limits_give_all_messages_once(sizes: list[int], limits: list[int]) -> None:
    entries = [[b"%d/%d" % (n, k) for k in range(size)] for n, size in enumerate(sizes)]
    partition = Partition(*entries)
    flat = [value for entry in entries for value in entry]
    seen: list[bytes] = []
    for limit in limits:
        received = partition.receive(limit)
        assert len(received) == min(limit, len(flat) - len(seen))
        seen += received
    partition.connection.close()
    assert seen == flat[: len(seen)]


def test_after_an_empty_answer_the_broker_may_send_one(empty: Partition) -> None:
    for number in range(100):
        assert empty.receive() == []
        assert empty.permits > 0
        empty.bell.event.clear()
        empty.entries.append([b"%d" % number] * 3)
        empty.push()
        assert empty.bell.event.wait(WAIT)
        assert len(empty.receive()) == 3


def test_what_is_on_its_way_is_waited_for(empty: Partition) -> None:
    empty.entries = [[b"late"]]
    empty.broker.on[T.FLOW] = lambda *_: None
    threading.Timer(0.05, empty.push).start()
    assert empty.receive() == [b"late"]


@pytest.mark.slow
def test_entries_that_never_come_are_not_waited_for_twice(
    empty: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "QUIET_SECONDS", 3.0)
    empty.entries = [[b"1"], None]
    assert empty.receive() == [b"1"]
    began = time.monotonic()
    assert empty.receive() == []
    assert time.monotonic() - began < consumers.QUIET_SECONDS


def test_what_is_acknowledged_already_is_not_waited_for(
    empty: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[object] = []
    monkeypatch.setattr(PulsarConsumer, "_wait", lambda *asked: waits.append(asked))
    empty.fence = empty.done = 7
    assert empty.receive() == []
    assert waits == []


def test_acknowledged_messages_of_a_batch_are_left_out(empty: Partition) -> None:
    empty.entries = [[b"0", b"1", b"2"]]
    empty.broker.on[T.FLOW] = lambda *_: None
    empty.push(ack_set=[0b110])
    received = empty.consumer.receive(10, BYTES, WAIT)
    assert [stored.message.value for stored in received] == [b"1", b"2"]
    assert received[0].position == Position(1, 0, -1, 1)


def test_a_broken_entry_comes_as_its_bytes_and_what_is_behind_it_too(empty: Partition) -> None:
    message = pb.CommandMessage(consumer_id=5, message_id=_where(0))
    empty.broker.side.send(T.MESSAGE, b"\x0e\x01broken", message=message)
    empty.entries, empty.next = [None, [b"good"]], 1
    empty.push()
    empty.fence = 1
    broken, good = empty.consumer.receive(10, BYTES, WAIT)
    assert broken.message == Message(b"\x0e\x01broken", None, {UNDECODED: "entry"})
    assert broken.position == Position(1, 0)
    assert good.message == Message(b"good")


def test_a_wrong_checksum_is_reported_after_what_was_good(empty: Partition) -> None:
    empty.entries = [[b"good"]]
    empty.push()
    payload = bytearray(pack([Message(b"value")], "p", 0, 1))
    payload[-1] ^= 1
    message = pb.CommandMessage(consumer_id=5, message_id=_where(1))
    empty.broker.side.send(T.MESSAGE, bytes(payload), message=message)
    empty.fence = 1
    assert empty.receive() == [b"good"]
    for _ in range(2):
        with pytest.raises(ReadFailedError):
            empty.receive()


def test_a_store_that_cannot_be_read_is_reported(empty: Partition) -> None:
    def refuse(side: Side, command: Any, _payload: bytes) -> None:
        request_id = command.getLastMessageId.request_id
        failure = pb.CommandError(
            request_id=request_id, error=pb.PersistenceError, message="damaged"
        )
        side.send(T.ERROR, error=failure)

    empty.broker.on[T.GET_LAST_MESSAGE_ID] = refuse
    with pytest.raises(ReadFailedError, match="damaged"):
        empty.receive()


def test_a_broker_that_does_not_answer_is_a_timeout(empty: Partition) -> None:
    del empty.broker.on[T.GET_LAST_MESSAGE_ID]
    with pytest.raises(BackendTimeoutError):
        empty.receive(timeout=0.1)


def test_a_cut_connection_wakes_and_ends_the_consumer(empty: Partition) -> None:
    assert empty.receive() == []
    empty.broker.side.cut()
    assert empty.bell.event.wait(WAIT)
    with pytest.raises(BackendUnavailableError):
        empty.receive()
    with pytest.raises(BackendUnavailableError):
        empty.consumer.acknowledge(Position(1, 0), WAIT)


def test_a_consumer_that_the_broker_closes_is_ended(empty: Partition) -> None:
    closed = pb.CommandCloseConsumer(consumer_id=5, request_id=NO_POSITION)
    empty.broker.side.send(T.CLOSE_CONSUMER, close_consumer=closed)
    assert empty.bell.event.wait(WAIT)
    with pytest.raises(BackendUnavailableError):
        empty.receive()
    assert empty.connection.error is None


def test_an_acknowledgement_carries_the_generation(empty: Partition) -> None:
    empty.consumer.acknowledge(Position(1, 3), WAIT)
    (command,) = empty.broker.of(T.ACK)
    assert command.ack.ack_type == pb.CommandAck.Cumulative
    assert [(p.key, p.value) for p in command.ack.properties] == [("router-generation", 77)]


def test_an_acknowledgement_of_before_a_reset_is_not_sent(empty: Partition) -> None:
    empty.consumer.epoch = 7
    with pytest.raises(FencedError):
        empty.consumer.acknowledge(Position(1, 3, epoch=6), WAIT)
    assert empty.broker.of(T.ACK) == []
    for epoch in (7, 0):  # 0: a store that does not say
        empty.consumer.acknowledge(Position(1, 3, epoch=epoch), WAIT)
    assert len(empty.broker.of(T.ACK)) == 2


def test_what_comes_between_the_last_look_and_the_answer_wakes(
    empty: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    gather = PulsarConsumer._gather

    def late(self: PulsarConsumer, taking: consumers.Taking, deadline: float) -> None:
        gather(self, taking, deadline)
        empty.entries.append([b"late"])
        empty.push()
        wait_until(lambda: bool(self._queue))

    monkeypatch.setattr(PulsarConsumer, "_gather", late)
    assert empty.receive() == []
    assert empty.bell.event.is_set()
    monkeypatch.setattr(PulsarConsumer, "_gather", gather)
    assert empty.receive() == [b"late"]


def test_a_refused_acknowledgement_is_raised(empty: Partition) -> None:
    def refuse(side: Side, command: Any, _payload: bytes) -> None:
        response = pb.CommandAckResponse(
            consumer_id=5,
            request_id=command.ack.request_id,
            error=pb.NotAllowedError,
            message="fenced: a newer claim",
        )
        side.send(T.ACK_RESPONSE, ackResponse=response)

    empty.broker.on[T.ACK] = refuse
    with pytest.raises(FencedError):
        empty.consumer.acknowledge(Position(1, 3), WAIT)


def test_an_acknowledgement_that_meets_the_end_of_its_consumer_is_refused_at_once(
    empty: Partition,
) -> None:
    def close(side: Side, _command: Any, _payload: bytes) -> None:
        closed = pb.CommandCloseConsumer(consumer_id=5, request_id=NO_POSITION)
        side.send(T.CLOSE_CONSUMER, close_consumer=closed)

    empty.broker.on[T.ACK] = close
    with pytest.raises(FencedError):
        empty.consumer.acknowledge(Position(1, 3), WAIT)
    assert empty.connection.error is None


@given(size=st.integers(1, 200), data=st.data())
def test_the_bits_of_an_acknowledgement_are_what_is_left(size: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, size - 1))
    where = acknowledging(Position(4, 9, -1, index, size))
    assert where is not None
    assert (where.ledgerId, where.entryId) == (4, 9)
    bits = sum((word % 2**64) << 64 * n for n, word in enumerate(where.ack_set))
    assert bits == sum(1 << left for left in range(index + 1, size))


@pytest.mark.parametrize(("entry", "expected"), [(9, 8), (1, 0), (0, None)])
def test_a_batch_of_unknown_size_is_left_whole(entry: int, expected: int | None) -> None:
    where = acknowledging(Position(4, entry, -1, 2))
    assert (where.entryId if where is not None else None) == expected


def test_closing_tells_the_broker_once(empty: Partition) -> None:
    empty.consumer.close()
    empty.consumer.close()
    empty.broker.wait_for(T.CLOSE_CONSUMER)
    with pytest.raises(BackendUnavailableError):
        empty.receive()
    assert len(empty.broker.of(T.CLOSE_CONSUMER)) == 1


def test_a_message_is_received_that_is_larger_than_most_brokers_take(empty: Partition) -> None:
    value = bytes(6 * 1024 * 1024)
    empty.entries.append([value])
    assert empty.receive() == [value]


def test_entries_are_inflated_up_to_the_bound_or_the_largest_message() -> None:
    partition = Partition()
    partition.consumer.max_inflated = 1_000
    partition.connection.max_message = 2_000
    zstd = pb.ZSTD
    for entry, size in enumerate((2_000, 2_001, 10)):
        payload = pack([Message(bytes(size))], "router-p", entry, 0, zstd)
        where = pb.MessageIdData(ledgerId=1, entryId=entry)
        partition.broker.side.send(
            T.MESSAGE, payload, message=pb.CommandMessage(consumer_id=5, message_id=where)
        )
        partition.entries.append(None)
        partition.next += 1
    received = partition.consumer.receive(100, BYTES, WAIT)
    partition.connection.close()
    assert [stored.oversized for stored in received] == [False, True, False]
    assert [stored.position.entry for stored in received] == [0, 1, 2]


def test_a_consumer_that_goes_on_reads_ahead_and_asks_for_nothing_while_it_has_enough() -> None:
    partition = Partition(*([b"%d" % n] for n in range(60)))
    found = []
    for _ in range(40):
        found += partition.receive(limit=1)
        partition.consumer.resume()
    partition.connection.close()
    assert found == [b"%d" % n for n in range(40)]
    # The first poll and the second ask for the end; the others take what came.
    assert len(partition.broker.of(T.GET_LAST_MESSAGE_ID)) <= 3
    assert len(partition.broker.of(T.FLOW)) <= 5


def test_what_is_read_ahead_is_bounded_in_messages_and_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumers, "MAX_AHEAD_BYTES", 20_000)
    partition = Partition(*([bytes(1000)] for _ in range(400)))
    for _ in range(20):
        partition.receive(limit=1)
        partition.consumer.resume()
    wait_until(lambda: partition.permits <= 0)
    partition.connection.close()
    assert partition.next <= 20 + 20
    monkeypatch.setattr(consumers, "MAX_AHEAD_MESSAGES", 7)
    partition = Partition(*([b"1"] for _ in range(400)))
    for _ in range(20):
        partition.receive(limit=1)
        partition.consumer.resume()
    partition.connection.close()
    assert partition.next <= 20 + 7


def test_a_later_acknowledgement_is_not_answered_and_the_last_one_is_confirmed_at_the_end() -> None:
    partition = Partition([b"1"], [b"2"])
    partition.broker.on[T.ACK] = _confirmed
    for _ in range(2):
        (stored,) = partition.consumer.receive(1, BYTES, WAIT)
        assert partition.consumer.acknowledge_soon(stored.position)
    wait_until(lambda: len(partition.broker.of(T.ACK)) == 2)
    assert not any(command.ack.HasField("request_id") for command in partition.broker.of(T.ACK))
    partition.consumer.close()
    *_, last = partition.broker.of(T.ACK)
    partition.connection.close()
    assert last.ack.HasField("request_id")
    assert [place.entryId for place in last.ack.message_id] == [1]


def _confirmed(side: Side, command: Any, _payload: bytes) -> None:
    if command.ack.HasField("request_id"):
        side.send(
            T.ACK_RESPONSE,
            ackResponse=pb.CommandAckResponse(consumer_id=5, request_id=command.ack.request_id),
        )
