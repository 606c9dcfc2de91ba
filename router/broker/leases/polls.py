"""What the node knows of a poll, of a group of polls, and of each partition of the group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from router.coordination import Lease
from router.deal import Deal
from router.errors import SubscriptionBusyError
from router.wire.pulsar import pulsar_pb2 as pb

MAX_POLLS: Final = 10_000
"""Of a group on this node."""
MAX_DEALT: Final = 250_000
"""Consumer ids of a group times its partitions."""

Later = Callable[[float, Callable[[], None]], object]
"""Calls something back after some seconds, as an event loop's call_later does."""


class Peer(Protocol):
    """A worker's connection, such as the one named `worker pid 1234`."""

    @property
    def name(self) -> str:
        """Tell people which worker this is."""
        ...

    def send(self, command: pb.BaseCommand) -> None:
        """Send a command soon, never waiting."""
        ...


@dataclass(slots=True, eq=False)
class Poll:
    """One claim of a worker that stands."""

    peer: Peer
    claim_id: int
    consumer: str
    group: Group
    empty_limit: int
    since: float

    def poller(self) -> tuple[str, str, str]:
        """Return whose poll it is, for the limit on empty polls."""
        return (self.group.topic, self.group.subscription, self.consumer)


@dataclass(slots=True, eq=False)
class Share:
    """One partition of a group: the node's lease, and the newest grant under it."""

    asked: bool = False
    held: bool = False
    # Another node queues for it.
    wanted: bool = False
    generation: int = 0
    # Who was told the newest grant, as long as it may act on it.
    poll: Poll | None = None


@dataclass(slots=True, eq=False)
class Group:
    """The polls of one subscription."""

    topic: str
    subscription: str
    deal: Deal[Poll]
    shares: dict[int, Share] = field(default_factory=dict)
    # The ids that other nodes were told of.
    joined: set[str] = field(default_factory=set)
    timer_armed: bool = False

    def lease(self, partition: int) -> Lease:
        """Name the lease of a partition."""
        return Lease(self.topic, self.subscription, partition)

    def share(self, partition: int) -> Share:
        """Return what is known of a partition."""
        return self.shares.setdefault(partition, Share())

    def fit(self, partitions: tuple[int, ...]) -> None:
        """Deal other partitions, if they are others: the topic has grown, or was made anew."""
        if self.deal.partitions != partitions:
            self.deal.resize(partitions)

    def check_room(self, consumer: str, partitions: int) -> None:
        """Raise SubscriptionBusyError if one more poll of this id is too many."""
        known = self.deal.everywhere()
        dealt = (len(known) + (consumer not in known)) * partitions
        if self.deal.polls() >= MAX_POLLS or dealt > MAX_DEALT:
            raise SubscriptionBusyError(
                f"the subscription has {self.deal.polls()} polls of {len(known)} consumer ids"
                " already"
            )

    def unused(self) -> list[int]:
        """Return the partitions whose lease is held or asked for, and of use to others only."""
        known = self.deal.owned()
        return [
            partition
            for partition, share in self.shares.items()
            if share.asked
            and (share.wanted or not share.held or partition not in known)
            and self.deal.holder(partition) is None
        ]

    def waiting(self) -> set[Poll]:
        """Return the polls to which the deal gives partitions whose lease the node has not."""
        return {
            poll
            for partition, share in self.shares.items()
            if share.asked and not share.held
            if (poll := self.deal.holder(partition)) is not None
        }

    def missing(self, poll: Poll) -> list[int]:
        """Return the partitions that the deal gives to this poll, and no lease yet."""
        return [p for p in self.deal.held(poll) if self.share(p).poll is not poll]
