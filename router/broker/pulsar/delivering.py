"""What one connection's consumers are sent: entries, and what became of the consumer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from router.broker.dispatch import Consumer, Tally
from router.broker.ledger import Entry
from router.broker.pulsar import answers
from router.wire.pulsar import broker_entry_prefix, encode_parts
from router.wire.pulsar import pulsar_pb2 as pb

if TYPE_CHECKING:
    from router.broker.pulsar.connection import Connection


class Delivery:
    """The connection as delivery sees it; see router.broker.dispatch.Link.

    `closed` is told the number of a consumer that the broker let go of.
    """

    def __init__(
        self, connection: Connection, tally: Tally, closed: Callable[[int], object]
    ) -> None:
        self._connection = connection
        self._tally = tally
        self._closed = closed
        # Filled anew for each entry: building them costs more than all else that sending takes.
        self._message = pb.BaseCommand(type=pb.BaseCommand.MESSAGE)
        self._body = self._message.message
        self._place = self._body.message_id
        self._broker_entry = pb.BrokerEntryMetadata()

    @property
    def writable(self) -> bool:
        """Tell whether the connection takes entries now."""
        return self._connection.writable

    @property
    def peer(self) -> str:
        """Tell people where the client is."""
        return self._connection.peer

    @property
    def client(self) -> str:
        """Tell people what the client calls itself."""
        return self._connection.client

    def when_writable(self, resume: Callable[[], None]) -> None:
        """Call `resume` once when it is writable again."""
        self._connection.when_writable(resume)

    def deliver(
        self, consumer: Consumer, entry: Entry, redeliveries: int, ack_set: Sequence[int]
    ) -> None:
        """Send an entry to the client."""
        self._fill(consumer, entry, redeliveries, ack_set)
        self._tally.dispatched += 1
        if not self._connection.wants_broker_entry:
            self._connection.write(*encode_parts(self._message, entry.payload))
            return
        self._broker_entry.broker_timestamp = entry.timestamp_ms
        self._broker_entry.index = entry.index
        prefix = broker_entry_prefix(self._broker_entry)
        self._connection.write(*encode_parts(self._message, prefix, entry.payload))

    def consumer_closed(self, consumer: Consumer) -> None:
        """Tell the client that the broker let go of its consumer."""
        self._closed(consumer.consumer_id)
        self._connection.send(answers.close_consumer(consumer.consumer_id))

    def activity_changed(self, consumer: Consumer, active: bool) -> None:
        """Tell the client whether its failover consumer is the active one."""
        command = answers.active_change(consumer.consumer_id, active)
        # Behind the answer to the SUBSCRIBE that brought it about.
        self._connection.soon(partial(self._connection.send, command))

    def reached_end(self, consumer: Consumer) -> None:
        """Tell the client that it has acknowledged all that there will ever be."""
        command = answers.reached_end(consumer.consumer_id)
        self._connection.soon(partial(self._connection.send, command))

    def probe(self, *, soon: bool = False) -> None:
        """Find out whether the client is still there."""
        self._connection.probe(soon=soon)

    def _fill(
        self, consumer: Consumer, entry: Entry, redeliveries: int, ack_set: Sequence[int]
    ) -> None:
        partition = consumer.subscription.partition
        body, place = self._body, self._place
        body.consumer_id = consumer.consumer_id
        body.redelivery_count = redeliveries
        place.ledgerId = partition.ledger.id
        place.entryId = entry.entry_id
        place.partition = partition.index
        if ack_set or body.ack_set:
            body.ack_set[:] = ack_set
        if consumer.epoch is not None:
            body.consumer_epoch = consumer.epoch
        elif body.HasField("consumer_epoch"):
            body.ClearField("consumer_epoch")
