"""Which requests of a pull consumer with a priority policy may have the next message (ADR-42).

`overflow`: a request may name how many messages have to wait, or be unacknowledged, before it gets
any. `pinned_client`: the first request that gets a message pins its client, whose further requests
name the id of the pin; requests without one wait until the client has sent none for
`priority_timeout`, or is unpinned. `prioritized`: requests of a lower number come first.
"""

from __future__ import annotations

import secrets
from typing import Final, NamedTuple

from router.wire.nats.jetstream.config import ConsumerConfig
from router.wire.nats.jetstream.policies import PriorityPolicy
from router.wire.nats.jetstream.replies import PriorityGroupState
from router.wire.nats.jetstream.requests import PullRequest

PIN_ID: Final = "Nats-Pin-Id"
MAX_PRIORITY: Final = 9
_PIN_BYTES: Final = 11
_NOT_OVERFLOW: Final = "Bad Request - Not a Overflow Priority consumer"
_NOT_PINNED: Final = "Bad Request - Not a Pinned Client Priority consumer"
_WRONG_PRIORITY: Final = f"Bad Request - Priority must be between 0 and {MAX_PRIORITY}"
_WRONG_GROUP: Final = "Bad Request - Invalid Priority Group"


class Backlog(NamedTuple):
    """How many messages of a consumer wait, and how many are delivered and unacknowledged."""

    pending: int
    unacknowledged: int


class Pin:
    """The client that has the messages of a consumer; `id` is empty if there is none."""

    def __init__(self) -> None:
        self.id = ""
        self.since_ns: int | None = None
        self.ends_ns: int | None = None

    def assign(self, now_ns: int, timeout_ns: int) -> str:
        """Pin another client; return the id of its pin."""
        self.id, self.since_ns = secrets.token_hex(_PIN_BYTES), now_ns
        self.extend(now_ns, timeout_ns)
        return self.id

    def extend(self, now_ns: int, timeout_ns: int) -> None:
        """Begin the time again after which the client is unpinned."""
        self.ends_ns = now_ns + timeout_ns

    def release(self) -> None:
        """Unpin the client."""
        self.id, self.since_ns, self.ends_ns = "", None, None

    def expire(self, now_ns: int) -> None:
        """Unpin the client if its time is over."""
        if self.ends_ns is not None and self.ends_ns <= now_ns:
            self.release()


def refusal(
    config: ConsumerConfig, request: PullRequest, pin: Pin, *, is_object: bool
) -> tuple[int, str] | None:
    """Return the status that refuses a request by its priority; None: it is taken.

    `is_object`: its body is JSON, so that it has to name a group of the consumer.
    """
    if not is_object:
        return None
    policy, group = config.priority_policy, request.group
    bounded = request.min_pending or request.min_ack_pending
    grouped = policy is not PriorityPolicy.NONE
    stale = pin.id and request.id and request.id != pin.id
    for is_wrong, code, text in (
        (bounded and policy is not PriorityPolicy.OVERFLOW, 400, _NOT_OVERFLOW),
        (request.id and policy is not PriorityPolicy.PINNED_CLIENT, 400, _NOT_PINNED),
        (not 0 <= request.priority <= MAX_PRIORITY, 400, _WRONG_PRIORITY),
        (grouped and not group, 400, "Bad Request - Priority Group missing"),
        (grouped and group not in config.priority_groups, 400, _WRONG_GROUP),
        (stale, 423, "Nats-Pin-Id mismatch"),
    ):
        if is_wrong:
            return code, text
    return None


def overflows(request: PullRequest, backlog: Backlog) -> bool:
    """Return whether so much waits that a request gets messages; one without bounds always does."""
    if request.min_pending <= 0 and request.min_ack_pending <= 0:
        return True
    return (
        0 < request.min_pending <= backlog.pending
        or 0 < request.min_ack_pending <= backlog.unacknowledged
    )


def group_states(config: ConsumerConfig, pin: Pin) -> tuple[PriorityGroupState, ...]:
    """Return what CONSUMER.INFO shows: as nats-server, the first group alone."""
    if not config.priority_groups:
        return ()
    return (PriorityGroupState(config.priority_groups[0], pin.id, pin.since_ns),)
