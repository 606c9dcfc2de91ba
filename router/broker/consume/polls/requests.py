"""What a poll of a consumer group asks for, and what it is answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from router.broker.consume import StartPosition
from router.broker.consume.cursor.in_flight import InFlightTerms
from router.errors import RouterError
from router.model import Position
from router.sharing.registry import RecordVersion


@dataclass(frozen=True, slots=True)
class GroupPollRequest:
    """A poll; `timeout` in seconds.

    `strict`: a first message of more than `max_bytes` is refused, else it is answered alone.
    `start` is for a group that does not exist yet. Entries that have more than `max_inflated` bytes
    without their compression are answered alone. `empty_polls_per_minute`: 0 is no limit. A poll
    with terms of `fetch` acknowledges nothing: it takes what is not in flight, which is so then.
    `record`: the version of a record by which the poll goes; if it may be another, it is refused.
    With `explicit_partitions`, of so many of which an answer has messages, what is delivered is
    acknowledged by a later poll that names it: `acknowledged` are the ends of an earlier answer,
    one a partition, and with a `limit` of 0 the poll does no more.
    """

    topic: str
    subscription: str
    consumer: str
    limit: int
    max_bytes: int
    strict: bool
    timeout: float
    start: StartPosition
    max_inflated: int
    empty_polls_per_minute: int = 0
    fetch: InFlightTerms | None = None
    record: RecordVersion | None = None
    explicit_partitions: int = 0
    acknowledged: Sequence[Position] = ()


class TakenMessages(NamedTuple):
    """Messages of one entry that a poll takes, as the payload of an entry.

    `ack_set`: the payload is the whole entry, of which these messages are left; empty: all. With
    `batch_size` the payload is a batch of its own, of the messages from `first` on of a batch of so
    many. `timestamp_ms`: when the entry was stored.
    """

    partition: int
    ledger: int
    entry: int
    epoch: int
    timestamp_ms: int
    payload: bytes
    ack_set: Sequence[int] = ()
    first: int = 0
    batch_size: int = 0


class Timer(Protocol):
    """A call that is due later."""

    def cancel(self) -> None:
        """Do not call."""
        ...


class PollConnection(Protocol):
    """The connection of a worker that polls. No call waits."""

    @property
    def name(self) -> str:
        """Return the worker's name for people."""
        ...

    @property
    def writable(self) -> bool:
        """Return whether answers may be sent now."""
        ...

    def when_writable(self, resume: Callable[[], None]) -> None:
        """Call `resume` once when answers may be sent again."""
        ...


class PollClient(PollConnection, Protocol):
    """A worker's connection with what the engine answers its polls."""

    def polled(self, poll_id: int, taken: Sequence[TakenMessages]) -> None:
        """Send the answer of a poll; none: its time is over, and it has ended."""
        ...

    def refused(self, poll_id: int, failure: RouterError) -> None:
        """Send the failure of a poll, which has ended."""
        ...
