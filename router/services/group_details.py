"""One group in detail: its members, who holds its partitions, and where it stands on each."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from router.backends import Backend, ResetTarget, Start
from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    NotAllowedError,
    NotSupportedError,
    SubscriptionNotFoundError,
)
from router.model import (
    CursorState,
    GroupMembers,
    PartitionLease,
    PartitionStats,
    Position,
    Subscription,
)
from router.node import Node
from router.services.groups import TopicGroup, TopicGroups
from router.services.position_texts import write_position

NO_NODE: Final = "This node's broker does not answer: members are not known."


@dataclass(frozen=True, slots=True)
class PartitionDetails:
    """A group on one partition.

    `committed` is the last message up to which all are acknowledged, None: nothing is, or the store
    does not tell. `apart` counts ranges that are acknowledged behind it. `lease` is None where no
    node holds the partition.
    """

    partition: int
    lag: int
    consumers: int
    committed: Position | None
    apart: int
    first: Position
    end: Position
    lease: PartitionLease | None

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON of the API."""
        return {
            "partition": self.partition,
            "backlog": self.lag,
            "consumers": self.consumers,
            "committed": None if self.committed is None else write_position(self.committed),
            "acknowledged_apart": self.apart,
            "first": write_position(self.first),
            "end": write_position(self.end),
            "holder": None if self.lease is None else asdict(self.lease),
        }


@dataclass(frozen=True, slots=True)
class GroupDetails:
    """A group in detail; `used_ms` is when it was read or acknowledged last, 0: not known.

    `untold` says why committed positions are not known, "" if they are; `members` is None where the
    node cannot be asked; `stored` are the messages of the topic.
    """

    group: TopicGroup
    partitions: tuple[PartitionDetails, ...]
    members: GroupMembers | None
    used_ms: int
    untold: str
    stored: int

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON of the API."""
        members = self.members
        return {
            "name": self.group.name,
            "backlog": self.group.backlog,
            "consumers": self.group.consumers,
            "durable": self.group.durable,
            "last_used": self.used_ms or None,
            "members": None if members is None else [asdict(one) for one in members.members],
            "more_members": members is not None and members.cut,
            "trouble": NO_NODE if members is None else members.unavailable_reason,
            "untold": self.untold,
            "partitions": [one.as_json() for one in self.partitions],
        }


class GroupInspection:
    """Looks at groups; calls block, and may be made from many threads or greenlets."""

    def __init__(self, backend: Backend, node: Node, timeout: float) -> None:
        self._backend = backend
        self._node = node
        self._timeout = timeout

    def details(self, subscription: Subscription) -> GroupDetails:
        """Return a group; raise TopicNotFoundError, SubscriptionNotFoundError."""
        stats, group = TopicGroups(self._backend, self._timeout).described(subscription)
        cursors, untold = self._cursors(subscription)
        members = self._members(subscription)
        leases = {} if members is None else {one.partition: one for one in members.leases}
        kept = {one.partition: one for one in stats.partitions}
        rows = []
        for one in group.partitions:
            state, bounds = cursors.get(one.partition), kept.get(one.partition)
            rows.append(
                PartitionDetails(
                    max(0, one.partition),
                    one.backlog,
                    one.consumers,
                    state.mark_delete if state is not None else None,
                    len(state.acknowledged) if state is not None else 0,
                    *_bounds(one.partition, bounds),
                    leases.get(one.partition),
                )
            )
        used_ms = max((state.used_ms for state in cursors.values()), default=0)
        stored = sum(one.messages for one in stats.partitions)
        return GroupDetails(group, tuple(rows), members, used_ms, untold, stored)

    def _cursors(self, subscription: Subscription) -> tuple[dict[int, CursorState], str]:
        try:
            found = self._backend.cursors(subscription, self._timeout)
        except (NotSupportedError, NotAllowedError) as error:
            return {}, str(error)
        except SubscriptionNotFoundError:
            return {}, "The group was deleted meanwhile."
        return {state.partition: state for state in found}, ""

    def _members(self, subscription: Subscription) -> GroupMembers | None:
        try:
            return self._node.members(subscription, self._timeout)
        except (BackendUnavailableError, BackendTimeoutError):
            return None


def shown_target(to: ResetTarget) -> str | int:
    """Return where a group is moved, as it was asked for."""
    if isinstance(to, tuple):
        return ",".join(map(write_position, to))
    return to.value if isinstance(to, Start) else to


def _bounds(partition: int, found: PartitionStats | None) -> tuple[Position, Position]:
    """Return the first readable entry of a partition, and the one that is written next."""
    if found is None:
        found = PartitionStats(partition)
    return (
        Position(found.ledger, found.first_entry, partition),
        Position(found.ledger, found.next_entry, partition),
    )
