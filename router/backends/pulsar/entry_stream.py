"""Stored entries of one partition in bulk, without decoding, for readers of whole partitions.

Theory of operation. A stream is a consumer of a subscription that is not durable, like a reader,
but for what it gives: whole entries, not messages. Permits are given ahead for about `WINDOW_BYTES`
bytes, by what the messages had until then. Where they suddenly grow, more than `MAX_HELD_BYTES`
bytes would lie here: then the stream ends as if the connection were lost, and the reader opens
another one behind the last entry it got. To hold up the connection's reader instead was not taken:
pings would wait too.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, Final, NamedTuple

from router.backends import NullMailbox
from router.backends.pulsar.consumer import PulsarConsumer, close_consumer
from router.backends.pulsar.extents import EntryPosition
from router.backends.pulsar.routes import Routes, at_broker, wait_on
from router.backends.pulsar.subscribing import attach_reader
from router.errors import BackendUnavailableError
from router.model import TopicName
from router.pulsar_client.connection import PulsarConnection, PulsarConnectionLostError
from router.wire.pulsar import encode
from router.wire.pulsar import pulsar_pb2 as pb

WINDOW_BYTES: Final = 8 * 1024 * 1024
MAX_HELD_BYTES: Final = 8 * WINDOW_BYTES
FIRST_PERMITS: Final = 256
MAX_PERMITS: Final = 50_000
_NEGATIVE: Final = 1 << 63


class StreamEntry(NamedTuple):
    """An entry as it is stored; set bits of `ack_set` are its messages that are not deleted.

    An empty `ack_set`: none is deleted. Entries of which all messages are deleted do not come.
    """

    place: EntryPosition
    payload: bytes
    ack_set: Sequence[int]


class EntryStream(PulsarConsumer):
    """A stream of entries from a place on; for one caller at a time."""

    __slots__ = ("_came", "_held", "_lock", "_messages", "_octets", "_overfull")

    def __init__(self, connection: PulsarConnection, number: int, partition: int) -> None:
        super().__init__(connection, number, partition, 0, NullMailbox())
        self._came: SimpleQueue[StreamEntry | BackendUnavailableError] = SimpleQueue()
        self._lock = Lock()
        self._held = 0
        self._overfull = False
        self._messages = self._octets = 0

    def pushed(self, command: Any, payload: bytes) -> None:
        """Put an entry in line."""
        if not isinstance(command, pb.CommandMessage):
            self.connection.drop_consumer(self.number)
            self.cut(PulsarConnectionLostError("the broker closed the reader"))
        elif not self._overfull:
            with self._lock:
                self._held += len(payload)
                self._overfull = self._held > MAX_HELD_BYTES
            where = command.message_id
            place = EntryPosition(where.ledgerId, where.entryId)
            self._came.put(StreamEntry(place, payload, tuple(command.ack_set)))
            if self._overfull:
                self.cut(
                    PulsarConnectionLostError("messages take more memory than a reader may use")
                )

    def cut(self, error: BackendUnavailableError) -> None:
        """Learn that nothing will come any more."""
        self._came.put(error)

    def next(self, timeout: float) -> StreamEntry | None:
        """Return the next entry, None: none came in time; raise BackendUnavailableError."""
        try:
            found = self._came.get(timeout=timeout) if timeout > 0 else self._came.get_nowait()
        except Empty:
            return None
        if isinstance(found, BackendUnavailableError):
            self._came.put(found)
            raise found
        with self._lock:
            self._held -= len(found.payload)
        return found

    def took(self, messages: int, octets: int) -> None:
        """Tell how many messages an entry had, so that as many more may come."""
        self._permits -= messages
        self._messages += messages
        self._octets += octets
        fitting = WINDOW_BYTES * self._messages // max(1, self._octets)
        self.ask_for(max(1, min(MAX_PERMITS, fitting)))

    def ask_for(self, messages: int) -> None:
        """Have so many messages on their way, if less than half of them are."""
        if self._permits * 2 > messages:
            return
        command = pb.CommandFlow(consumer_id=self.number, messagePermits=messages - self._permits)
        self._permits = messages
        self.connection.send(encode(pb.BaseCommand(type=pb.BaseCommand.FLOW, flow=command)))

    def end(self, deadline: float) -> EntryPosition | None:
        """Return the last entry that will come without waiting for a publisher, None: none will.

        Raises BackendUnavailableError, BackendTimeoutError.
        """
        connection = self.connection
        request_id = connection.next_id()
        command = pb.CommandGetLastMessageId(consumer_id=self.number, request_id=request_id)
        question = pb.BaseCommand(type=pb.BaseCommand.GET_LAST_MESSAGE_ID, getLastMessageId=command)
        last = connection.call(request_id, question, deadline).last_message_id
        if last.ledgerId >= _NEGATIVE or last.entryId >= _NEGATIVE:
            return None
        return EntryPosition(last.ledgerId, last.entryId)

    def close(self) -> None:
        """Let go."""
        connection = self.connection
        connection.drop_consumer(self.number)
        if connection.error is None:
            close_consumer(connection, self.number)


def open_stream(
    routes: Routes, topic: TopicName, partition: int, start: EntryPosition, deadline: float
) -> EntryStream:
    """Return the stream of what is stored at a place and behind it.

    Raises TopicNotFoundError, BackendUnavailableError, BackendTimeoutError.
    """
    name = str(topic.partition(partition))
    place = pb.MessageIdData(ledgerId=start.ledger, entryId=start.entry)

    def opened(connection: PulsarConnection) -> EntryStream:
        stream = EntryStream(connection, connection.next_id(), partition)
        reader = f"router-stream-{uuid.uuid4().hex}"
        attach_reader(connection, stream, name, reader, place, deadline)
        return stream

    stream = at_broker(routes, name, opened, deadline, when_busy=wait_on)
    stream.ask_for(FIRST_PERMITS)
    return stream
