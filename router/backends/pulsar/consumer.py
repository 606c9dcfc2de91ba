"""Exclusive consumers: one partition of a subscription, read for one poll.

Theory of operation. The broker pushes entries as long as it has permits, and every push is put in
line by the connection's reader. `receive` gives few permits at first, more when it has seen how
large the messages are, and asks in the same breath for the last stored position, the *fence*: what
lies above the last entry received and not above the fence is on its way and is waited for; when the
fence is reached there is nothing more, and the permits left over let the next arrival wake the
mailbox. What arrives then is answered as it is: asking for the fence once more would cost a waiting
poll another round trip, for messages that its id's next poll gets anyway. A waiting poll thus costs
this object and nothing else: no thread, no queue of its own.

Permits are counted so that the broker never has fewer than this side believes, else both would wait
for ever: an entry is counted with all its messages, the acknowledged ones too.

What was pushed and not returned is dropped at `close`, and the broker delivers it again.

A consumer may serve the polls of one consumer id one after the other. It then reads ahead, and its
acknowledgements are not answered, but for the last one, which is sent once more when it is closed:
an acknowledgement is cumulative, so that it answers for all before it.

A broker of ours says at opening under which epoch of the subscription entries are received; with a
reset it changes. A position of another epoch is not acknowledged, whichever consumer received it.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from dataclasses import dataclass, field
from secrets import token_hex
from threading import Lock
from typing import Any, Final

from router.backends.pulsar.entries import is_oversized, read_entry
from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    ConsumerClosedError,
    FencedError,
    PublishRefusedError,
    ReadFailedError,
)
from router.model import Position, Stored
from router.node import Mailbox
from router.pulsar_client.connection import PulsarConnection, PulsarConnectionLostError
from router.pulsar_client.refusals import refusal
from router.wire.pulsar import encode
from router.wire.pulsar import pulsar_pb2 as pb

CONSUMER_NAME: Final = "router-"
"""What the names of routers' consumers begin with; the rest is of this consumer alone."""
NAME_BYTES: Final = 6
FIRST_PERMITS: Final = 16
MAX_INFLATED_BYTES: Final = 16 * 1024 * 1024
PERMITS_GROWTH: Final = 4
SHARE_MESSAGES: Final = 1_000
"""Messages of an entry that are taken apart in a row."""
QUIET_SECONDS: Final = 1.0
MAX_AHEAD_BYTES: Final = 256 * 1024
MAX_AHEAD_MESSAGES: Final = 512
"""What a consumer that serves several polls has the broker push for the next ones."""
CLOSE_SECONDS: Final = 5.0
"""How long a consumer that is closed waits until its last acknowledgement is confirmed."""
_NEGATIVE: Final = 1 << 63
_WORD: Final = 64

Place = tuple[int, int]
NO_POSITION: Final[Place] = (-1, -1)


@dataclass(eq=False, slots=True)
class Taking:
    """What one `receive` has gathered, and how much more it may."""

    limit: int
    max_bytes: int
    found: list[Stored] = field(default_factory=list, init=False)
    size: int = field(default=0, init=False)
    largest: int = field(default=1, init=False)
    full: bool = field(default=False, init=False)

    def add(self, stored: Stored) -> bool:
        """Take a message unless it exceeds the bounds; the first one always fits."""
        size = stored.message.size()
        if self.found and self.size + size > self.max_bytes:
            self.full = True
            return False
        self.found.append(stored)
        self.size += size
        self.largest = max(self.largest, size)
        self.full = len(self.found) >= self.limit or self.size >= self.max_bytes
        return True

    def remaining(self) -> int:
        """Return how many more messages of the largest size seen would fit, at least one."""
        left = self.max_bytes - self.size
        return max(1, min(self.limit - len(self.found), left // self.largest))


@dataclass(eq=False, slots=True)
class PulsarConsumer:
    """An exclusive reader of one partition of a subscription, open while its claim stands."""

    connection: PulsarConnection
    number: int
    partition: int
    generation: int
    _mailbox: Mailbox
    # Entries that have more bytes without their compression are given as stored.
    max_inflated: int = MAX_INFLATED_BYTES
    name: str = field(init=False)
    # Set by who opens it; 0: the broker does not say.
    epoch: int = field(default=0, init=False)
    _queue: deque[tuple[pb.CommandMessage, bytes]] = field(default_factory=deque, init=False)
    _left: deque[Stored] | None = field(default=None, init=False)
    _received: Place = field(default=NO_POSITION, init=False)
    _fence: Place = field(default=NO_POSITION, init=False)
    _passed: Place = field(default=NO_POSITION, init=False)
    _drained: bool = field(default=False, init=False)
    _permits: int = field(default=0, init=False)
    _target: int = field(default=FIRST_PERMITS, init=False)
    # From the first poll that goes on with it: what comes is kept for the next one.
    _reads_ahead: bool = field(default=False, init=False)
    _largest: int = field(default=1, init=False)
    # Acknowledged without an answer.
    _unconfirmed: Position | None = field(default=None, init=False)
    _waiter: Lock | None = field(default=None, init=False)
    # The request that waits for its answer, 0: none does.
    _request_id: int = field(default=0, init=False)
    _busy: bool = field(default=False, init=False)
    _closed: bool = field(default=False, init=False)
    _lost: BackendUnavailableError | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.name = f"{CONSUMER_NAME}{token_hex(NAME_BYTES)}"

    # What the connection's reader calls.

    def pushed(self, command: Any, payload: bytes) -> None:
        """Queue an entry and wake the call that waits for it."""
        if isinstance(command, pb.CommandMessage):
            self._queue.append((command, payload))
            self._notify()
        else:
            self.connection.drop_consumer(self.number)
            self.cut(ConsumerClosedError("the broker closed the consumer"))

    def cut(self, error: BackendUnavailableError) -> None:
        """Learn that nothing will come any more."""
        self._lost = error
        self.connection.refuse(self._request_id, error)
        self._notify()

    def _notify(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            waiter.release()
        elif not self._busy:
            self._mailbox.wake()

    # What the poll calls.

    def receive(self, limit: int, max_bytes: int, timeout: float) -> list[Stored]:
        """Return what is stored and was not received yet; see the protocol."""
        deadline = time.monotonic() + timeout
        taking = Taking(max(1, limit), max_bytes)
        self._busy = True
        try:
            self._gather(taking, deadline)
        except (BackendTimeoutError, ReadFailedError):
            if not taking.found:
                raise
        except PublishRefusedError as error:
            if not taking.found:
                raise ReadFailedError(f"a stored entry cannot be read: {error}") from error
        finally:
            self._busy = False
        self._largest = max(self._largest, taking.largest)
        if self._reads_ahead and taking.found:
            self._give_permits(taking)
        if (self._queue or self._lost is not None) and not taking.found:
            # It came between the last look and `_busy`, when no one was told.
            self._mailbox.wake()
        return taking.found

    def acknowledge(self, upto: Position, timeout: float) -> None:
        """Acknowledge everything up to and including this message; see the protocol."""
        if self._closed or isinstance(self._lost, ConsumerClosedError):
            raise FencedError
        if self._lost is not None:
            raise self._lost
        if self._is_stale(upto):
            raise FencedError("the subscription was reset since")
        place = acknowledging(upto)
        if place is None:
            return
        request_id = self.connection.next_id()
        try:
            answer = self.ask(request_id, self._ack(place, request_id), time.monotonic() + timeout)
        except ConsumerClosedError as error:
            raise FencedError from error
        if answer.HasField("error"):
            # It may have crossed the news that the consumer is closed.
            if isinstance(self._lost, ConsumerClosedError):
                raise FencedError
            raise refusal(answer.error, answer.message)

    def acknowledge_soon(self, upto: Position) -> bool:
        """Send an acknowledgement that is not answered; `close` sends the last one again."""
        if self._closed or self._lost is not None or self._is_stale(upto):
            return False
        if (place := acknowledging(upto)) is None:
            return False
        self._unconfirmed = upto
        self.connection.send(encode(self._ack(place)))
        return True

    def resume(self) -> None:
        """Go on for the next poll, which asks again what is stored if too little is here."""
        self._drained = False
        self._reads_ahead = True

    def _is_stale(self, upto: Position) -> bool:
        return bool(upto.epoch and self.epoch and upto.epoch != self.epoch)

    def _ack(self, place: pb.MessageIdData, request_id: int | None = None) -> pb.BaseCommand:
        ack = pb.CommandAck(
            consumer_id=self.number,
            ack_type=pb.CommandAck.Cumulative,
            message_id=(place,),
            request_id=request_id,
        )
        if self.connection.ours:
            ack.properties.add(key="router-generation", value=self.generation)
        return pb.BaseCommand(type=pb.BaseCommand.ACK, ack=ack)

    def ask(self, request_id: int, command: pb.BaseCommand, deadline: float) -> Any:
        """Return the answer to a request about this consumer; raise as `PulsarConnection.call`.

        Raises ConsumerClosedError as soon as the consumer is closed: Apache Pulsar does not answer
        the acknowledgement of one that it closed.
        """
        connection = self.connection
        self._request_id = request_id
        reply = connection.ask(request_id, encode(command))
        if self._lost is not None:
            # The reader may have looked before there was something to refuse.
            connection.refuse(request_id, self._lost)
        return connection.take(request_id, reply, deadline)

    def close(self) -> None:
        """Let go; see the protocol."""
        if self._closed:
            return
        unconfirmed, self._unconfirmed = self._unconfirmed, None
        try:
            if unconfirmed is not None and self._lost is None:
                self.acknowledge(unconfirmed, CLOSE_SECONDS)
        finally:
            self._close()

    def _close(self) -> None:
        self._closed = True
        self._queue.clear()
        self._left = None
        connection = self.connection
        connection.drop_consumer(self.number)
        if self._lost is None and connection.error is None:
            close_consumer(connection, self.number)

    def _gather(self, taking: Taking, deadline: float) -> None:
        """Take what there is; raises ReadFailedError, LostError, BackendTimeoutError."""
        # What comes after the end was seen once is news: it is answered at once, rather than after
        # the question whether more has come since.
        requested = self._drained and bool(self._queue)
        while True:
            if self._closed or self._lost is not None:
                raise self._lost or PulsarConnectionLostError("this consumer is closed")
            self._take(taking)
            if taking.full:
                return
            if not requested:
                requested = True
                self._ask(taking, deadline)
            elif self._received >= self._fence or self._passed >= self._fence:
                if not self._queue:
                    self._drained = True
                    if not taking.found:
                        self._give_permits(taking)
                    return
            elif not self._wait(taking, deadline):
                # What is missing was acknowledged one by one, or the broker is slow and wakes us.
                self._passed = self._fence
                return

    def _take(self, taking: Taking) -> None:
        while not taking.full:
            if self._left:
                if taking.add(self._left[0]):
                    self._left.popleft()
            elif self._queue:
                self._unpack(*self._queue[0])
                self._queue.popleft()
            else:
                return

    def _unpack(self, command: pb.CommandMessage, payload: bytes) -> None:
        where, ack_set = command.message_id, command.ack_set
        place = (where.ledgerId, where.entryId)
        # A message that the broker takes as it is must not be refused for being compressed.
        limit = max(self.max_inflated, self.connection.max_message)
        unpacked, size = read_entry(payload, ack_set, place, limit)
        oversized = is_oversized(unpacked)
        self._permits -= size
        self._received = max(self._received, place)
        ledger, entry = place
        partition, count, epoch = self.partition, command.redelivery_count, self.epoch
        left = deque[Stored]()
        for number, one in enumerate(unpacked, 1):
            position = Position(ledger, entry, partition, one.batch_index, size, epoch)
            left.append(Stored(one.message, position, one.publish_time, count, oversized))
            if number % SHARE_MESSAGES == 0:
                time.sleep(0)  # a large entry does not hold up what else runs in this thread
        self._left = left

    def _ask(self, taking: Taking, deadline: float) -> None:
        """Give permits and learn the fence: all that was stored until now is not above it."""
        self._give_permits(taking)
        answer = self._last(deadline)
        last = _place(answer.last_message_id)
        if answer.HasField("consumer_mark_delete_position"):
            done = _place(answer.consumer_mark_delete_position)
            self._fence = last if last > done else NO_POSITION
        else:
            self._fence = last

    def last_stored(self, deadline: float) -> Place:
        """Return where the last entry is, NO_POSITION: there is none; raises as `receive`."""
        return _place(self._last(deadline).last_message_id)

    def _last(self, deadline: float) -> Any:
        connection = self.connection
        request_id = connection.next_id()
        command = pb.CommandGetLastMessageId(consumer_id=self.number, request_id=request_id)
        question = pb.BaseCommand(type=pb.BaseCommand.GET_LAST_MESSAGE_ID, getLastMessageId=command)
        try:
            return connection.call(request_id, question, deadline)
        except BackendUnavailableError as error:
            # The question may have crossed the news that the consumer is closed.
            if self._lost is not None and self._lost is not error:
                raise self._lost from error
            raise

    def _give_permits(self, taking: Taking) -> None:
        permits = min(self._target, taking.remaining())
        if self._reads_ahead:
            ahead = max(1, MAX_AHEAD_BYTES // max(self._largest, taking.largest))
            permits = max(permits, min(self._target, ahead, MAX_AHEAD_MESSAGES))
        if self._permits * 2 > permits:
            return
        command = pb.CommandFlow(consumer_id=self.number, messagePermits=permits - self._permits)
        self._permits = permits
        self._target *= PERMITS_GROWTH
        self.connection.send(encode(pb.BaseCommand(type=pb.BaseCommand.FLOW, flow=command)))

    def _wait(self, taking: Taking, deadline: float) -> bool:
        """Wait for the next push; False when none comes in time."""
        self._give_permits(taking)
        waiter = Lock()
        waiter.acquire()
        self._waiter = waiter
        if self._queue or self._lost is not None:
            self._waiter = None
            return True
        left = min(QUIET_SECONDS, deadline - time.monotonic())
        try:
            return waiter.acquire(timeout=max(0.0, left))
        finally:
            self._waiter = None


def close_consumer(connection: PulsarConnection, number: int) -> None:
    """Tell the broker that a consumer went; its answer is of no interest."""
    command = pb.CommandCloseConsumer(consumer_id=number, request_id=connection.next_id())
    connection.send(
        encode(pb.BaseCommand(type=pb.BaseCommand.CLOSE_CONSUMER, close_consumer=command))
    )


def _place(where: pb.MessageIdData) -> Place:
    """Return a position's place; none (2^64-1 on the wire) is before all others."""
    if where.ledgerId >= _NEGATIVE or where.entryId >= _NEGATIVE:
        return NO_POSITION
    return where.ledgerId, where.entryId


def acknowledging(upto: Position) -> pb.MessageIdData | None:
    """Return what acknowledges up to this message, or None when there is nothing to say.

    Inside a batch the set bits are the messages that are left. Without knowing the batch's size the
    entry is left whole, to be delivered again rather than lost.
    """
    where = pb.MessageIdData(ledgerId=upto.ledger, entryId=upto.entry)
    if upto.batch_index < 0 or 0 < upto.batch_size <= upto.batch_index + 1:
        return where
    if upto.batch_size == 0:
        if upto.entry == 0:
            return None
        where.entryId = upto.entry - 1
        return where
    bits = (1 << upto.batch_size) - (1 << upto.batch_index + 1)
    where.ack_set.extend(ack_words(bits, upto.batch_size))
    where.batch_size = upto.batch_size
    return where


def ack_words(left: int, size: int) -> list[int]:
    """Return the messages of a batch that are left, its bits, as the protocol's signed words."""
    words = -(-size // _WORD)
    return list(struct.unpack(f"<{words}q", left.to_bytes(words * 8, "little")))
