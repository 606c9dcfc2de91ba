"""Readers: consumers of subscriptions that are not durable, which leave no trace.

A reader begins at an entry; what of it, or of later ones, lies before the position that was asked
for is dropped here, as official clients do. A reader at a time is opened at the first message and
moved by SEEK, after which the broker lets it go and it comes again under the same name. The
alternative, `start_message_rollback_duration_sec`, counts seconds, and by the broker's clock.

A broker closes consumers when it unloads a topic or hands it to another broker, and Apache Pulsar
at times right after a SEEK. The reader then opens another consumer behind what it returned.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from functools import partial
from typing import Final

from router.backends import NullMailbox, Start
from router.backends.pulsar.consumer import NO_POSITION, PulsarConsumer
from router.backends.pulsar.routes import Routes, at_broker, moved_pauses, wait_on
from router.backends.pulsar.subscribing import attach_reader
from router.errors import BadRequestError, ConsumerClosedError
from router.model import Position, Stored, TopicName
from router.node import Mailbox
from router.pulsar_client.connection import PulsarConnection
from router.wire.pulsar import pulsar_pb2 as pb

_EARLIEST: Final = pb.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)
_LATEST: Final = pb.MessageIdData(ledgerId=2**63 - 1, entryId=2**63 - 1)

Key = tuple[int, int, int]


class PulsarReader:
    """A reader of one partition; see `Reader`."""

    __slots__ = ("_consumer", "_first", "_opening", "_routes")

    def __init__(self, routes: Routes, opening: Opening, deadline: float) -> None:
        self._routes = routes
        self._opening = opening
        self._consumer, self._first = opening.consumer(routes, deadline)

    def receive(self, limit: int, max_bytes: int, timeout: float) -> list[Stored]:
        """Return what comes next; see the protocol."""
        deadline, pauses = time.monotonic() + timeout, moved_pauses()
        while True:
            left = max(0.0, deadline - time.monotonic())
            try:
                found = self._consumer.receive(limit, max_bytes, left)
            except ConsumerClosedError:
                if not pauses.sleep(deadline):
                    raise
                self._consumer.close()
                self._consumer, self._first = self._opening.consumer(self._routes, deadline)
                continue
            first = self._first
            later = [one for one in found if first is None or _key(one.position) >= first]
            if later:
                self._first = None
                self._opening.begin_after(later[-1].position)
            if later or not found:
                return later

    def close(self) -> None:
        """Let go; see the protocol."""
        self._consumer.close()


class Opening:
    """Where a reader begins: first where it was asked to, then behind what it returned."""

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

    def consumer(self, routes: Routes, deadline: float) -> tuple[PulsarConsumer, Key | None]:
        """Return a consumer, and the first message to take of it, None: its first one.

        Raises TopicNotFoundError, BackendUnavailableError, BackendTimeoutError.
        """
        # Busy: after a SEEK the broker may not have noticed yet that the consumer went.
        attempt = partial(self._attempt, deadline=deadline)
        return at_broker(routes, self._topic, attempt, deadline, when_busy=wait_on)

    def begin_after(self, position: Position) -> None:
        """Have the next consumer begin behind a message."""
        self._start = replace(position, batch_index=max(0, position.batch_index) + 1)

    def _attempt(
        self, connection: PulsarConnection, deadline: float
    ) -> tuple[PulsarConsumer, Key | None]:
        name, start = f"router-reader-{uuid.uuid4().hex}", self._start
        if isinstance(start, Position):
            place = pb.MessageIdData(
                ledgerId=start.ledger, entryId=start.entry, batch_index=start.batch_index
            )
            return self._attach(connection, name, place, deadline), _key(start)
        if start is Start.LATEST:
            return self._at_end(connection, name, deadline)
        if not isinstance(start, Start) and start > 0:
            self._seek(connection, name, start, deadline)
        return self._attach(connection, name, _EARLIEST, deadline), None

    def _at_end(
        self, connection: PulsarConnection, name: str, deadline: float
    ) -> tuple[PulsarConsumer, Key | None]:
        """Open at the end, and note where that is: another consumer begins there, not later."""
        consumer = self._attach(connection, name, _LATEST, deadline)
        try:
            ledger, entry = consumer.last_stored(deadline)
        except BaseException:
            consumer.close()
            raise
        if (ledger, entry) == NO_POSITION:
            self._start = Start.EARLIEST
            return consumer, None
        self._start = end = Position(ledger, entry + 1, self._partition)
        return consumer, _key(end)

    def _attach(
        self, connection: PulsarConnection, name: str, place: pb.MessageIdData, deadline: float
    ) -> PulsarConsumer:
        number = connection.next_id()
        consumer = PulsarConsumer(
            connection, number, self._partition, 0, self._mailbox, self._max_inflated
        )
        attach_reader(connection, consumer, self._topic, name, place, deadline)
        return consumer

    def _seek(self, connection: PulsarConnection, name: str, time_ms: int, deadline: float) -> None:
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
