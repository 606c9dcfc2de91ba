"""Polls of the node protocol: a worker's requests to the engine, and what it is answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from router.broker.consume import StartPosition
from router.broker.consume.cursor.in_flight import InFlightTerms
from router.broker.consume.polls.engine import PollEngine
from router.broker.consume.polls.requests import GroupPollRequest, PollConnection, TakenMessages
from router.errors import NotAllowedError, RouterError
from router.sharing.registry import RecordVersion
from router.wire import node
from router.wire.node import conversions
from router.wire.node import node_pb2 as npb

MAX_FRAME_PAYLOAD: Final = 1 << 20
"""An answer of more than one entry that has more bytes takes several frames."""
OUTCOMES: Final = {number: outcome for outcome, number in conversions.OUTCOMES.items()}


class PollingConnection(PollConnection, Protocol):
    """A client's connection, as the answers of its polls use it."""

    def write(self, *parts: bytes) -> None:
        """Send a frame, given in pieces, soon."""
        ...


class ClientPolls:
    """The polls of one client; the engine's PollClient."""

    def __init__(self, connection: PollingConnection, engine: PollEngine | None, why: str) -> None:
        """`why` there is no engine."""
        self._connection = connection
        self._engine = engine
        self._why = why

    @property
    def name(self) -> str:
        """Return the client's name for people."""
        return self._connection.name

    @property
    def writable(self) -> bool:
        """Return whether answers may be sent now."""
        return self._connection.writable

    def when_writable(self, resume: Callable[[], None]) -> None:
        """Call `resume` once when answers may be sent again."""
        self._connection.when_writable(resume)

    def begin(self, command: npb.CommandPoll) -> None:
        """Begin a poll."""
        if self._engine is None:
            self.refused(command.poll_id, NotAllowedError(self._why))
            return
        when = command.timestamp_ms if command.HasField("timestamp_ms") else None
        record: RecordVersion | None = None
        if command.HasField("record"):
            found = command.record
            record = RecordVersion(found.kind, found.name, found.version)
        request = GroupPollRequest(
            command.topic,
            command.subscription,
            command.consumer,
            command.limit,
            command.max_bytes,
            command.strict,
            command.timeout_ms / 1000,
            StartPosition(command.earliest, when),
            command.max_inflated,
            command.empty_polls_per_minute,
            _fetch_terms(command.fetch) if command.HasField("fetch") else None,
            record,
            command.explicit_partitions,
            tuple(map(conversions.from_message_id, command.acknowledged)),
        )
        self._engine.begin(self, command.poll_id, request)

    def done(self, command: npb.CommandDone) -> None:
        """End a poll."""
        if self._engine is not None:
            self._engine.done(
                self,
                command.poll_id,
                OUTCOMES[command.outcome],
                keep=command.keep,
                upto=[conversions.from_message_id(place) for place in command.upto]
                if command.upto
                else (),
            )

    def close(self) -> None:
        """End all polls; the connection is closed."""
        if self._engine is not None:
            self._engine.gone(self)

    # What the engine calls.

    def polled(self, poll_id: int, taken: Sequence[TakenMessages]) -> None:
        """Send the answer of a poll."""
        answer = npb.CommandPolled(poll_id=poll_id)
        payloads: list[bytes] = []
        size = 0
        for one in taken:
            if payloads and size + len(one.payload) > MAX_FRAME_PAYLOAD:
                answer.more = True
                self._send(answer, payloads)
                answer, payloads, size = npb.CommandPolled(poll_id=poll_id), [], 0
            found = answer.entries.add(
                partition=one.partition,
                ledger=one.ledger,
                entry=one.entry,
                epoch=one.epoch,
                timestamp_ms=one.timestamp_ms,
                size=len(one.payload),
            )
            if one.batch_size:
                found.first, found.batch_size = one.first, one.batch_size
            elif one.ack_set:
                found.ack_set.extend(one.ack_set)
            payloads.append(one.payload)
            size += len(one.payload)
        self._send(answer, payloads)

    def refused(self, poll_id: int, failure: RouterError) -> None:
        """Send the failure of a poll."""
        after = failure.retry_after
        answer = npb.CommandPolled(
            poll_id=poll_id,
            code=failure.code,
            message=str(failure),
            retry_after_ms=None if after is None else round(after * 1000),
        )
        self._send(answer, ())

    def _send(self, answer: npb.CommandPolled, payloads: Sequence[bytes]) -> None:
        self._connection.write(*node.parts(npb.NodeCommand(polled=answer), payloads))


def _fetch_terms(terms: npb.FetchTerms) -> InFlightTerms:
    return InFlightTerms(
        terms.ack_timeout_ms, terms.max_unacknowledged, frozenset(terms.live), terms.live_at_ms
    )
