"""Readers: consumers of subscriptions that are not durable, which leave no trace.

A reader begins at an entry; what of it, or of later ones, lies before the position that was asked
for is dropped here, as official clients do. A reader at a time is opened at the first message and
moved by SEEK, after which the broker lets it go and it comes again under the same name. The
alternative, `start_message_rollback_duration_sec`, counts seconds, and by the broker's clock.
"""

from __future__ import annotations

import time
import uuid
from functools import partial
from typing import Final

from router.backends import NullMailbox, Start
from router.backends.pulsar.consumer import PulsarConsumer
from router.backends.pulsar.routes import Routes, at_broker
from router.backends.pulsar.subscribing import attach_reader
from router.errors import BadRequestError
from router.model import Position, Stored, TopicName
from router.node import Mailbox
from router.pulsar_client.connection import Connection
from router.wire.pulsar import pulsar_pb2 as pb

_EARLIEST: Final = pb.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)
_LATEST: Final = pb.MessageIdData(ledgerId=2**63 - 1, entryId=2**63 - 1)

Key = tuple[int, int, int]


class PulsarReader:
    """A reader of one partition; see `Reader`."""

    __slots__ = ("_consumer", "_first")

    def __init__(self, consumer: PulsarConsumer, first: Key | None) -> None:
        self._consumer = consumer
        self._first = first

    def receive(self, limit: int, max_bytes: int, timeout: float) -> list[Stored]:
        """Return what comes next; see the protocol."""
        deadline = time.monotonic() + timeout
        while True:
            left = max(0.0, deadline - time.monotonic())
            found = self._consumer.receive(limit, max_bytes, left)
            if self._first is None or not found:
                return found
            wanted = [one for one in found if _key(one.position) >= self._first]
            if wanted:
                self._first = None
                return wanted

    def close(self) -> None:
        """Let go; see the protocol."""
        self._consumer.close()


class Opening:
    """A reader about to be opened; `attempt` may be repeated on another connection."""

    def __init__(
        self,
        topic: TopicName,
        partition: int,
        start: Start | int | Position,
        mailbox: Mailbox,
        max_inflated: int,
    ) -> None:
        if isinstance(start, Position) and not start.may_be_of(partition):
            raise BadRequestError(f"{start} is no position of partition {partition} of {topic}")
        self._topic = str(topic.partition(partition))
        self._partition = partition
        self._start = start
        self._mailbox = mailbox
        self._max_inflated = max_inflated

    def open(self, routes: Routes, deadline: float) -> PulsarReader:
        """Open it; raise TopicNotFoundError, BackendUnavailableError, BackendTimeoutError."""
        # Busy: after a SEEK the broker may not have noticed yet that the consumer went.
        attempt = partial(self._attempt, deadline=deadline)
        return at_broker(routes, self._topic, attempt, deadline, even_if_busy=True)

    def _attempt(self, connection: Connection, deadline: float) -> PulsarReader:
        name, start = f"router-reader-{uuid.uuid4().hex}", self._start
        if isinstance(start, Position):
            place = pb.MessageIdData(
                ledgerId=start.ledger, entryId=start.entry, batch_index=start.batch_index
            )
            return PulsarReader(self._attach(connection, name, place, deadline), _key(start))
        place = _LATEST if start is Start.LATEST else _EARLIEST
        if not isinstance(start, Start) and start > 0:
            self._seek(connection, name, start, deadline)
        return PulsarReader(self._attach(connection, name, place, deadline), None)

    def _attach(
        self, connection: Connection, name: str, place: pb.MessageIdData, deadline: float
    ) -> PulsarConsumer:
        number = connection.next_id()
        consumer = PulsarConsumer(connection, number, self._partition, 0, self._mailbox)
        consumer.max_inflated = self._max_inflated
        attach_reader(connection, consumer, self._topic, name, place, deadline)
        return consumer

    def _seek(self, connection: Connection, name: str, time_ms: int, deadline: float) -> None:
        """Leave a subscription behind that begins at a time; it has no consumer."""
        number, request_id = connection.next_id(), connection.next_id()
        consumer = PulsarConsumer(connection, number, self._partition, 0, NullMailbox())
        attach_reader(connection, consumer, self._topic, name, _EARLIEST, deadline)
        command = pb.CommandSeek(
            consumer_id=number, request_id=request_id, message_publish_time=time_ms
        )
        try:
            connection.call(
                request_id, pb.BaseCommand(type=pb.BaseCommand.SEEK, seek=command), deadline
            )
        except BaseException:
            consumer.close()
            raise


def _key(position: Position) -> Key:
    return position.ledger, position.entry, max(0, position.batch_index)
