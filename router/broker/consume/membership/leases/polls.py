"""Polls: what they ask for and are told, groups and partitions that they share, what they left."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import astuple, dataclass, field
from itertools import islice
from typing import Final, Protocol

import orjson

from router.coordination import Coordinator, Lease, RemoteGroup
from router.errors import BadNameError, BadRequestError, SubscriptionBusyError
from router.model import GroupMembers, Member, PartitionLease, Position
from router.sharing.assignment import PartitionAssignor

MAX_NAME_CHARACTERS: Final = 1_024
MAX_PARTITIONS: Final = 10_000
MAX_MEMBERS: Final = 2_000
"""Consumer ids of an answer about a group, which has to fit into a frame."""
MAX_LEASES: Final = 2_000
"""Partitions of such an answer."""
MAX_POLLS_PER_GROUP: Final = 10_000
"""Of a group on this node."""
MAX_MEMBERS_TIMES_PARTITIONS: Final = 250_000
"""Consumer ids of a group times its partitions."""
MAX_PENDING: Final = 100_000
"""Positions that polls left for the next poll of their id."""

CallLater = Callable[[float, Callable[[], None]], object]
"""Calls something back after some seconds, as an event loop's call_later does."""


class LeaseMetrics(Protocol):
    """The node's metrics, as leases and polls count in them."""

    def inc(self, name: str) -> None:
        """Add one to a counter."""
        ...

    def watch(self, name: str, read: Callable[[], float]) -> None:
        """Have a gauge read whenever metrics are shown."""
        ...


class PollPeer(Protocol):
    """A worker's connection, such as the one named `worker pid 1234`."""

    @property
    def name(self) -> str:
        """Return the worker's name for people."""
        ...

    def claim_updated(self, claim_id: int, update: ClaimUpdate) -> None:
        """Send an update of a claim soon, never waiting."""
        ...


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """What a poll asks for; partitions = 0: the one of a topic that is not partitioned.

    `empty_polls_per_minute` limits how often the id may poll for nothing, 0: it may always.
    """

    topic: str
    subscription: str
    consumer: str
    partitions: int = 0
    empty_polls_per_minute: int = 0

    def check(self) -> None:
        """Raise BadNameError, BadRequestError for what is too large."""
        names = self.topic, self.subscription, self.consumer
        if max(map(len, names)) > MAX_NAME_CHARACTERS:
            raise BadNameError(f"a claim's names have at most {MAX_NAME_CHARACTERS} characters")
        if self.partitions > MAX_PARTITIONS:
            raise BadRequestError(f"a claim is for at most {MAX_PARTITIONS} partitions")


@dataclass(frozen=True, slots=True)
class ClaimGrant:
    """A partition that a poll may read, and what the last poll of its id left to acknowledge."""

    partition: int
    generation: int
    pending: Position | None = None


@dataclass(slots=True)
class ClaimUpdate:
    """What one poll has not been told yet; clients apply it in the order of its fields.

    `holder`: what the claim waits for and may be refused for. `waiting`: leases of partitions that
    are assigned to the claim are on their way. `recalled`: another needs what the claim holds.
    """

    withdrawn: set[int] = field(default_factory=set)
    granted: dict[int, ClaimGrant] = field(default_factory=dict)
    revoked: set[int] = field(default_factory=set)
    limited_ms: int | None = None
    unavailable_reason: str | None = None
    holder: str | None = None
    waiting: bool = False
    recalled: bool = False

    def grant(self, grant: ClaimGrant) -> None:
        """Add a partition that the poll holds from now on."""
        self.granted[grant.partition] = grant
        self.revoked.discard(grant.partition)

    def withdraw(self, partition: int) -> None:
        """Add that the poll must not act on its grant any more, known to it or not."""
        self.granted.pop(partition, None)
        self.revoked.discard(partition)
        self.withdrawn.add(partition)


@dataclass(slots=True, eq=False)
class PollClaim:
    """One claim of a worker that stands."""

    peer: PollPeer
    claim_id: int
    consumer: str
    group: PollGroup
    empty_limit: int
    since: float
    # Its worker keeps the claim between polls of the id.
    is_retained: bool = False
    is_recalled: bool = False

    def poller(self) -> tuple[str, str, str]:
        """Return whose poll it is, for the limit on empty polls."""
        return (self.group.topic, self.group.subscription, self.consumer)


@dataclass(slots=True, eq=False)
class Share:
    """One partition of a group: the node's lease, and the newest grant under it."""

    requested: bool = False
    held: bool = False
    # Another node queues for it.
    contended: bool = False
    generation: int = 0
    # The poll that has the newest grant, as long as it may act on it.
    poll: PollClaim | None = None


@dataclass(slots=True, eq=False)
class PollGroup:
    """The polls of one subscription."""

    topic: str
    subscription: str
    assignor: PartitionAssignor[PollClaim]
    shares: dict[int, Share] = field(default_factory=dict)
    # The ids that the other nodes know of.
    joined: set[str] = field(default_factory=set)
    timer_armed: bool = False
    # Retained claims that are known to have no poll, in the order in which they began to rest.
    resting: dict[PollClaim, None] = field(default_factory=dict)

    def is_of(self, topic: str, subscription: str | None) -> bool:
        """Return whether it is this subscription, None: any of the topic."""
        return self.topic == topic and subscription in {None, self.subscription}

    def lease(self, partition: int) -> Lease:
        """Name the lease of a partition."""
        return Lease(self.topic, self.subscription, partition)

    def share(self, partition: int) -> Share:
        """Return what is known of a partition."""
        return self.shares.setdefault(partition, Share())

    def fit(self, partitions: tuple[int, ...]) -> None:
        """Assign these partitions, if they are others: the topic has grown, or was made again."""
        if self.assignor.partitions != partitions:
            self.assignor.resize(partitions)

    def check_room(self, consumer: str, partitions: int) -> None:
        """Raise SubscriptionBusyError if one more poll of this id is too many."""
        known = self.assignor.members()
        product = (len(known) + (consumer not in known)) * partitions
        if self.assignor.polls() >= MAX_POLLS_PER_GROUP or product > MAX_MEMBERS_TIMES_PARTITIONS:
            raise SubscriptionBusyError(
                f"the subscription has {self.assignor.polls()} polls of {len(known)} consumer ids"
                " already"
            )

    def resting_beside(self, consumer: str) -> list[PollClaim]:
        """Return the claims that rest in the way of a new one: of its id, of a new id all."""
        if not self.resting:
            return []
        known = self.assignor.is_live(consumer)
        return [poll for poll in self.resting if poll.consumer == consumer or not known]

    def unused(self) -> list[int]:
        """Return the partitions whose lease is held or asked for, and of use to others only."""
        known = self.assignor.owned()
        return [
            partition
            for partition, share in self.shares.items()
            if share.requested
            and (share.contended or not share.held or partition not in known)
            and self.assignor.holder(partition) is None
        ]

    def requested(self) -> set[Lease]:
        """Return the leases that the node holds or asks for."""
        return {
            self.lease(partition) for partition, share in self.shares.items() if share.requested
        }

    def waiting(self) -> dict[PollClaim, None]:
        """Return the polls to which partitions are assigned whose lease the node does not hold."""
        return {
            poll: None
            for partition, share in self.shares.items()
            if share.requested and not share.held
            if (poll := self.assignor.holder(partition)) is not None
        }

    def is_contended(self, poll: PollClaim) -> bool:
        """Return whether a poll of the same id, or another node, waits for what this poll holds."""
        return len(self.assignor.queued(poll.consumer)) > 1 or any(
            self.share(partition).contended for partition in self.assignor.held(poll)
        )

    def missing(self, poll: PollClaim) -> list[int]:
        """Return the partitions that are assigned to this poll and whose lease is not held."""
        return [p for p in self.assignor.held(poll) if self.share(p).poll is not poll]


def describe(poll: PollClaim, update: ClaimUpdate, coordinator: Coordinator, now: float) -> None:
    """Add to an update what the poll waits for; `now` in seconds."""
    update.unavailable_reason = coordinator.unavailable_reason()
    if first := poll.group.assignor.poll_before(poll):
        update.waiting, seconds = True, now - first.since
        update.holder = (
            f"consumer {first.consumer} ({first.peer.name}), polling for {seconds:.1f} s"
        )
    elif update.unavailable_reason is None and (missing := poll.group.missing(poll)):
        update.waiting, update.holder = True, _holder(poll, missing, coordinator)


def _holder(poll: PollClaim, missing: list[int], coordinator: Coordinator) -> str | None:
    """Return what keeps these leases away; None: other ids, for which a poll is not refused."""
    names = {coordinator.holder(poll.group.lease(partition)) for partition in missing}
    if not (known := sorted(filter(None, names))):
        return "its lease, which is not granted yet"
    return f"node {', '.join(known)}" if poll.group.assignor.is_remote(poll.consumer) else None


def members(
    group: PollGroup | None, remote: RemoteGroup, unavailable_reason: str | None, now: float
) -> GroupMembers:
    """Return the consumer ids and leases of a group, here and on other nodes; `now` in seconds."""
    local = sorted(group.assignor.live()) if group is not None else []
    found = [_local(group, one, now) for one in local[:MAX_MEMBERS]] if group is not None else []
    found += [
        Member(consumer, node)
        for consumer, node in islice(remote.members, MAX_MEMBERS - len(found))
    ]
    held = {p for p, share in group.shares.items() if share.held} if group is not None else set()
    partitions = sorted(held | remote.queues.keys())
    return GroupMembers(
        tuple(found),
        tuple(_lease(group, remote, partition) for partition in partitions[:MAX_LEASES]),
        len(local) + len(remote.members) > MAX_MEMBERS or len(partitions) > MAX_LEASES,
        unavailable_reason,
    )


def _local(group: PollGroup, consumer: str, now: float) -> Member:
    queued = group.assignor.queued(consumer)
    polls = [poll for poll in queued if poll not in group.resting]
    ended = group.assignor.ended(consumer)
    if queued and not polls:
        ended = queued[0].since
    return Member(
        consumer,
        polls=len(polls),
        polling_ms=_ms(now - polls[0].since) if polls else None,
        idle_ms=_ms(now - ended) if ended is not None and not polls else None,
    )


def _lease(group: PollGroup | None, remote: RemoteGroup, partition: int) -> PartitionLease:
    """Return the holder of a partition: of what this node holds it knows more than the others."""
    nodes = remote.queues.get(partition, ())
    share = group.shares.get(partition) if group is not None else None
    if share is not None and share.held:
        consumer = share.poll.consumer if share.poll is not None else None
        return PartitionLease(partition, "", consumer, tuple(node for node in nodes if node))
    if nodes and nodes[0]:
        return PartitionLease(partition, nodes[0], None, tuple(nodes[1:]))
    return PartitionLease(partition, "")


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))


class Pending:
    """Positions that polls left for the next poll of their id to acknowledge, one a partition.

    Of too many the oldest go, and are delivered again.
    """

    def __init__(self) -> None:
        self._positions: OrderedDict[Lease, tuple[str, Position]] = OrderedDict()

    def leave(self, lease: Lease, consumer: str, position: Position) -> None:
        """Keep what this id was given up to."""
        self._positions[lease] = (consumer, position)
        self._positions.move_to_end(lease)
        while len(self._positions) > MAX_PENDING:
            self._positions.popitem(last=False)

    def take(self, lease: Lease, consumer: str) -> Position | None:
        """Return what this id left.

        The position is used up, by its id or by the change of ids, whichever id gets the partition.
        """
        left, position = self._positions.pop(lease, ("", None))
        return position if left == consumer else None

    def drop(self, lease: Lease) -> None:
        """Forget a partition's position: another node may have read on from there."""
        self._positions.pop(lease, None)

    def hand_over(self, lease: Lease) -> bytes:
        """Forget a partition's position, and return it as a note for another node."""
        consumer, position = self._positions.pop(lease, ("", None))
        if position is None:
            return b""
        return orjson.dumps([consumer, *astuple(position)])

    def take_over(self, lease: Lease, note: bytes) -> None:
        """Keep the position that another node noted; of a note that is not understood nothing."""
        try:
            consumer, *numbers = orjson.loads(note)
            if all(type(number) is int for number in numbers):
                self.leave(lease, str(consumer), Position(*numbers))
        except (TypeError, ValueError):
            return

    def forget(self, topic: str, subscription: str | None) -> None:
        """Forget a subscription's positions; None: those of all of the topic's."""
        stale = [
            lease
            for lease in self._positions
            if lease.topic == topic and subscription in {None, lease.subscription}
        ]
        for lease in stale:
            del self._positions[lease]

    def __len__(self) -> int:
        return len(self._positions)
