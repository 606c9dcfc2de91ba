"""The protocol of backends whose store serves polls itself, with one request for each."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from router.backends import Start
from router.model import PollOutcome, Position, Stored, Subscription
from router.node import Mailbox
from router.sharing.registry import RecordVersion


@dataclass(frozen=True, slots=True)
class FetchTerms:
    """How long messages that a fetch takes are in flight, and which consumers there are.

    Until `ack_timeout` seconds have passed without an acknowledgement, or their consumer is gone:
    `live` are the ids of all consumers at a time in ms since 1970. With more than
    `max_unacknowledged` messages of a partition that are not acknowledged, a fetch takes only what
    is due again, and raises TooManyRequestsError if there is none.
    """

    ack_timeout: float
    max_unacknowledged: int
    live: Set[str]
    live_at_ms: int


@dataclass(frozen=True, slots=True)
class GroupPoll:
    """A poll of a consumer group; `timeout` in seconds.

    `strict`: a first message of more than `max_bytes` is refused, else it is answered alone.
    `start` is for a group that does not exist yet; a number is a time in ms since 1970. An entry
    that has more than `max_inflated` bytes without its compression is answered alone, as stored.
    `is_limited`: if it ends empty, it counts against the limit on empty polls. With terms of
    `fetch` nothing is acknowledged: what is delivered is in flight. With a `record` of the registry
    the poll is refused, by ConflictError, unless the record is known to have this version. With
    `explicit_partitions`, of so many of which an answer has messages, what is delivered is
    acknowledged by a later poll that names it: `acknowledged` are the ends of an earlier answer,
    one a partition, and with a `limit` of 0 the poll does no more and raises ConflictError if one
    is overtaken.
    """

    subscription: Subscription
    consumer: str
    limit: int
    max_bytes: int
    timeout: float
    strict: bool = False
    start: Start | int = Start.LATEST
    max_inflated: int = 0
    is_limited: bool = True
    fetch: FetchTerms | None = None
    record: RecordVersion | None = None
    explicit_partitions: int = 0
    acknowledged: Sequence[Position] = ()


class PendingPoll(Protocol):
    """A poll that a store serves: its partitions are held until it is done."""

    @property
    def is_held(self) -> bool:
        """Return whether the store holds something that it answered until the poll is done."""
        ...

    def answer(self) -> list[Stored] | None:
        """Return the messages, none: the time is over; None: there is no answer yet.

        Raises TopicNotFoundError, SubscriptionBusyError, TooManyRequestsError,
        MessageOverMaxBytesError, CoordinationUnavailableError, ReadFailedError, and
        BackendUnavailableError if the store went away, and with it all that was held.
        """
        ...

    def done(
        self, outcome: PollOutcome, *, keep: bool = False, upto: Sequence[Position] = ()
    ) -> None:
        """End the poll: delivered messages are acknowledged, or only those up to these positions.

        With `keep` the next poll of the same consumer id acknowledges them. Those of an explicit
        poll stay unacknowledged without positions. Callable twice.
        """
        ...


@runtime_checkable
class Polling(Protocol):
    """A store that serves polls itself: claims, takes and acknowledges in one place."""

    def poll(self, poll: GroupPoll, mailbox: Mailbox, timeout: float) -> PendingPoll:
        """Begin a poll; its answer wakes the mailbox. `timeout` bounds the sending.

        Raises BackendUnavailableError.
        """
        ...
