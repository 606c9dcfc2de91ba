"""Polls of consumer groups that the node's broker serves: a request, its answer, and its end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from router.backends import Start
from router.backends.polling import GroupPoll
from router.backends.pulsar.consumer import Taking
from router.backends.pulsar.entries import is_oversized, read_entry
from router.errors import (
    BackendUnavailableError,
    PublishRefusedError,
    ReadFailedError,
    RouterError,
    from_code,
    over_max_bytes,
)
from router.model import VALUE_OF, PollOutcome, Position, Stored
from router.node import Mailbox
from router.pulsar_client.connection import PulsarConnection, PulsarConnectionLostError
from router.pulsar_client.link import PulsarLink
from router.wire import node
from router.wire.node import node_pb2 as npb
from router.wire.node.conversions import OUTCOMES, to_message_id


@dataclass(eq=False, slots=True)
class BrokerPoll:
    """A poll under way; see `PendingPoll`. The connection's reader hands it what comes."""

    _connection: PulsarConnection
    _poll: GroupPoll
    _mailbox: Mailbox
    _number: int = field(init=False)
    _max_inflated: int = field(init=False)
    _answer: list[tuple[Any, bytes]] = field(default_factory=list, init=False)
    _error: BackendUnavailableError | None = field(default=None, init=False)
    _has_ended: bool = field(default=False, init=False)
    # The broker serves it, or waits for the end of what it answered.
    _is_open: bool = field(default=True, init=False)
    _upto: Sequence[Position] = field(default=(), init=False)

    def __post_init__(self) -> None:
        self._number = self._connection.next_id()
        # A message that the broker takes as it is must not be refused for being compressed.
        self._max_inflated = max(self._poll.max_inflated, self._connection.max_message)

    def begin(self, empty_polls_per_minute: int) -> None:
        """Send the request; raise LostError."""
        poll, connection = self._poll, self._connection
        connection.add_claim(self._number, self)
        subscription = poll.subscription
        command = npb.CommandPoll(
            poll_id=self._number,
            topic=str(subscription.topic),
            subscription=subscription.name,
            consumer=poll.consumer,
            limit=poll.limit,
            max_bytes=poll.max_bytes,
            strict=poll.strict or None,
            timeout_ms=max(0, round(poll.timeout * 1000)),
            empty_polls_per_minute=empty_polls_per_minute if poll.is_limited else None,
            max_inflated=self._max_inflated,
        )
        if poll.start is Start.EARLIEST:
            command.earliest = True
        elif isinstance(poll.start, int):
            command.timestamp_ms = max(0, poll.start)
        if (fetch := poll.fetch) is not None:
            command.fetch.ack_timeout_ms = round(fetch.ack_timeout * 1000)
            command.fetch.max_unacknowledged = fetch.max_unacknowledged
            command.fetch.live.extend(fetch.live)
            command.fetch.live_at_ms = fetch.live_at_ms
        if poll.explicit_partitions:
            command.explicit_partitions = poll.explicit_partitions
            command.acknowledged.extend(map(to_message_id, poll.acknowledged))
        if (record := poll.record) is not None:
            command.record.kind, command.record.name = record.kind, record.name
            command.record.version = record.version
        connection.send(node.frame(poll=command))

    # What the connection's reader calls.

    def pushed(self, command: Any, payload: bytes) -> None:
        """Take an answer, or a part of it."""
        self._answer.append((command, payload))
        if not command.more:
            self._has_ended = True
            self._is_open = bool(command.entries)
            self._mailbox.wake()

    def cut(self, error: BackendUnavailableError) -> None:
        """Learn that the connection went, and with it what the poll held."""
        self._error = error
        self._is_open = False
        self._has_ended = True
        self._mailbox.wake()

    # What the poll's caller calls.

    def answer(self) -> list[Stored] | None:
        """Return the messages, None: there is no answer yet; raise the failure."""
        if not self._has_ended:
            return None
        if self._error is not None:
            raise self._error
        last = self._answer[-1][0]
        if last.HasField("code"):
            after = last.retry_after_ms / 1000 if last.HasField("retry_after_ms") else None
            raise from_code(last.code, last.message, after)
        found, failure = self._read_all()
        # What the messages were made of need not wait with them for their client.
        self._answer.clear()
        if failure is not None:
            if not found:
                raise ReadFailedError(f"a stored entry cannot be read: {failure}") from failure
            self._upto = _last(found)
        if found:
            found = self._bounded(found)
            if self._poll.explicit_partitions:
                self._upto = ()
        return found

    @property
    def is_held(self) -> bool:
        """Return whether the broker holds what it answered; see `PendingPoll`."""
        return self._has_ended and self._is_open

    def done(
        self, outcome: PollOutcome, *, keep: bool = False, upto: Sequence[Position] = ()
    ) -> None:
        """End the poll; see `PendingPoll`."""
        self._connection.drop_claim(self._number)
        if not self._is_open:
            return
        self._is_open = False
        places = upto or self._upto
        command = npb.CommandDone(
            poll_id=self._number,
            outcome=OUTCOMES[outcome],
            keep=keep or None,
            upto=[to_message_id(position) for position in places] if places else None,
        )
        self._connection.send(node.frame(done=command))

    def _read_all(self) -> tuple[list[Stored], RouterError | None]:
        """Return the messages, and what made those of a partition unreadable from some entry on.

        Of entries of which nothing is left the ends are kept: no later poll could name them.
        """
        found: list[Stored] = []
        failure: RouterError | None = None
        damaged: set[int] = set()
        ends: dict[int, Position] = {}
        for command, payload in self._answer:
            begin = end = 0
            for entry in command.entries:
                begin, end = end, end + entry.size
                partition = entry.partition
                if partition in damaged:
                    continue
                try:
                    found += self._read(entry, payload[begin:end])
                except (PublishRefusedError, ReadFailedError) as error:
                    failure = error
                    damaged.add(partition)
                else:
                    ends[partition] = Position(
                        entry.ledger, entry.entry, partition, epoch=entry.epoch
                    )
        if not found:
            self._upto = tuple(ends.values())
        return found, failure

    def _read(self, entry: Any, payload: bytes) -> list[Stored]:
        """Return the messages of an entry; raise PublishRefusedError, ReadFailedError."""
        place = ledger, number = entry.ledger, entry.entry
        unpacked, size = read_entry(payload, entry.ack_set, place, self._max_inflated)
        oversized, first = is_oversized(unpacked), 0
        partition, epoch, timestamp_ms = entry.partition, entry.epoch, entry.timestamp_ms
        if entry.batch_size:
            first, size = entry.first, entry.batch_size
        return [
            Stored(
                one.message,
                Position(
                    ledger,
                    number,
                    partition,
                    one.batch_index if one.batch_index < 0 else first + one.batch_index,
                    size,
                    epoch,
                ),
                timestamp_ms,
                0,
                oversized,
            )
            for one in unpacked
        ]

    def _bounded(self, found: list[Stored]) -> list[Stored]:
        """Return what of an answer is within the bounds of the poll, at least one message.

        An entry that the broker does not take apart comes whole. Raises MessageOverMaxBytesError.
        """
        poll = self._poll
        if found and found[0].oversized:
            return found  # alone, and passed over whatever the bounds are
        size = sum(map(len, map(VALUE_OF, found)))
        fits = len(found) <= poll.limit and size <= poll.max_bytes
        if fits and (len(found) > 1 or not poll.strict):
            return found
        taking = Taking(max(1, poll.limit), poll.max_bytes)
        for stored in found:
            if not taking.add(stored) or taking.full:
                break
        kept = taking.found
        if poll.strict and kept and (size := kept[0].message.size()) > poll.max_bytes:
            raise over_max_bytes(size, poll.max_bytes)
        if len(kept) < len(found):
            self._upto = _last(kept)
        return kept


def _last(found: Sequence[Stored]) -> Sequence[Position]:
    """Return the last position of each partition."""
    return tuple({one.position.partition: one.position for one in found}.values())


class BrokerPolls:
    """Sends polls on the connection to the broker."""

    def __init__(self, link: PulsarLink, empty_polls_per_minute: int) -> None:
        self._link = link
        self._limit = empty_polls_per_minute

    def poll(self, poll: GroupPoll, mailbox: Mailbox, timeout: float) -> BrokerPoll:
        """Begin a poll; see `Polling`."""
        deadline = time.monotonic() + timeout
        while True:
            pending = BrokerPoll(self._link.connection(deadline), poll, mailbox)
            try:
                pending.begin(self._limit)
            except PulsarConnectionLostError:
                if time.monotonic() >= deadline:
                    raise
            else:
                return pending
