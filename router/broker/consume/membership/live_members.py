"""Live members of groups whose protocol reads without consumers: who they are, whom they exclude.

A group of such a protocol and consumers of the same subscription would move one position against
each other, so that a subscription with live members here takes no consumers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from router.errors import SubscriptionBusyError
from router.errors.quoting import quoted
from router.model.administration import SUBSCRIPTION_OWNER

OWNER: Final = SUBSCRIPTION_OWNER
"""The property of a stored subscription that a protocol keeps for itself: its name for people."""


@dataclass(frozen=True, slots=True)
class LiveMember:
    """A member of a group: its id, its client for people, and its partitions of one topic.

    NOT_PARTITIONED stands for the partition of a topic without partitions.
    """

    id: str
    client: str
    partitions: frozenset[int]


class LiveMembers:
    """The live members by topic and subscription."""

    def __init__(self) -> None:
        self._members: dict[str, dict[str, tuple[LiveMember, ...]]] = {}
        self._reserved: dict[str, str] = {}

    def replace(self, topic: str, subscription: str, members: Sequence[LiveMember]) -> None:
        """Note the members of a group on a topic; none: consumers may come."""
        groups = self._members.setdefault(topic, {})
        if members:
            groups[subscription] = tuple(members)
        else:
            groups.pop(subscription, None)
        if not groups:
            del self._members[topic]

    def of(self, topic: str, subscription: str) -> Sequence[LiveMember]:
        """Return the members of a group on a topic."""
        return self._members.get(topic, {}).get(subscription, ())

    def groups(self, topic: str) -> list[str]:
        """Return the names of the groups that have members on a topic."""
        return sorted(self._members.get(topic, ()))

    def readers(self, topic: str, subscription: str, partition: int) -> int:
        """Return how many members a partition is assigned to."""
        return sum(partition in member.partitions for member in self.of(topic, subscription))

    def reserve(self, topic: str, reason: str) -> None:
        """Refuse consumers of all subscriptions of a topic with a reason; empty: no longer."""
        if reason:
            self._reserved[topic] = reason
        else:
            self._reserved.pop(topic, None)

    def check_free(self, topic: str, properties: Mapping[str, str]) -> None:
        """Raise SubscriptionBusyError if a protocol keeps the topic or a subscription for itself.

        `properties` are those of the subscription.
        """
        if owner := properties.get(OWNER):
            raise SubscriptionBusyError(f"the subscription is a {owner}")
        if reason := self._reserved.get(topic):
            raise SubscriptionBusyError(reason)

    def check(self, topic: str, subscription: str) -> None:
        """Raise SubscriptionBusyError if there are members, or the topic is kept from consumers."""
        self.check_free(topic, {})
        if members := self.of(topic, subscription):
            raise SubscriptionBusyError(
                f"{quoted(subscription)} is read by {len(members)} members of another protocol",
                retry_after=1,
            )
