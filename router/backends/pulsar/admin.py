"""Administration of topics: the Protocol, and its implementation by commands of our own broker."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from router.backends import Capabilities, ResetTarget, Start
from router.backends.pulsar.asking import ask
from router.backends.pulsar.cursors import AT_ONCE, in_commands, message_ids, told_by_broker
from router.backends.pulsar.extents import Extent, Wanted, located
from router.backends.pulsar.link import Link
from router.errors import SubscriptionNotFoundError
from router.model import (
    CursorState,
    PartitionStats,
    Policies,
    Position,
    Subscription,
    SubscriptionStats,
    TopicInfo,
    TopicName,
    TopicStats,
)
from router.wire.pulsar import pulsar_pb2 as pb


class Admin(Protocol):
    """What a backend needs beyond producing and consuming; deadlines are of the monotonic clock."""

    def create(self, info: TopicInfo, deadline: float) -> None:
        """Create a topic; raise TopicExistsError."""
        ...

    def delete(self, topic: TopicName, deadline: float) -> None:
        """Delete a topic with all it holds; raise TopicNotFoundError."""
        ...

    def capabilities(self, deadline: float) -> Capabilities:
        """Return what the store can do."""
        ...

    def grow(self, topic: TopicName, partitions: int, deadline: float) -> None:
        """Give a partitioned topic more partitions; raise TopicNotFoundError, NotAllowedError."""
        ...

    def retain(
        self, topic: TopicName, ms: int | None, max_bytes: int | None, deadline: float
    ) -> None:
        """Change what a topic keeps; raise TopicNotFoundError, NotAllowedError."""
        ...

    def topics(self, deadline: float) -> list[TopicInfo]:
        """Return all topics."""
        ...

    def describe(self, topic: TopicName, deadline: float) -> TopicStats:
        """Return what a topic holds; raise TopicNotFoundError."""
        ...

    def subscribe(self, subscription: Subscription, start: Start | int, deadline: float) -> None:
        """Make a subscription exist on all partitions."""
        ...

    def reset(self, subscription: Subscription, to: ResetTarget, deadline: float) -> None:
        """Move a subscription; raise SubscriptionNotFoundError."""
        ...

    def unsubscribe(self, subscription: Subscription, deadline: float) -> None:
        """Forget a subscription on all partitions."""
        ...

    def acknowledge(
        self,
        subscription: Subscription,
        positions: Sequence[Position],
        cumulative: bool,
        deadline: float,
    ) -> None:
        """Acknowledge messages, each alone or with all before it."""
        ...

    def cursors(self, subscription: Subscription, deadline: float) -> list[CursorState]:
        """Return where a subscription stands, by partition; raise SubscriptionNotFoundError."""
        ...

    def evict(
        self, subscription: Subscription, partition: int, asking: str, deadline: float
    ) -> None:
        """Have the store let go of routers' consumers of a partition, whose leases are lost.

        `asking` is the name of the consumer that is opened, and may be open meanwhile.
        """
        ...

    def deduplicates(self, topic: TopicName, deadline: float) -> bool:
        """Return whether appends with a producer's name and number are stored once in a topic."""
        ...

    def extents(self, wanted: Wanted, deadline: float) -> dict[TopicName, list[Extent]]:
        """Return where the partitions of topics begin and end; missing topics are left out."""
        ...


class BrokerAdmin:
    """Administration of our own broker, on the connection that messages take."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def create(self, info: TopicInfo, deadline: float) -> None:
        """Create a topic; raise TopicExistsError."""
        command = pb.CreateTopic(
            topic=str(info.topic),
            partitions=info.partitions,
            policies=_policies_out(info.policies),
            properties=_pairs(info.properties),
        )
        ask(self._link, pb.CommandAdmin(create_topic=command), deadline, again=False)

    def delete(self, topic: TopicName, deadline: float) -> None:
        """Delete a topic with all it holds; raise TopicNotFoundError."""
        command = pb.CommandAdmin(delete_topic=pb.TopicRef(topic=str(topic)))
        ask(self._link, command, deadline, again=False)

    def capabilities(self, deadline: float) -> Capabilities:
        """Return that nothing is missing."""
        del deadline
        return Capabilities()

    def grow(self, topic: TopicName, partitions: int, deadline: float) -> None:
        """Give a partitioned topic more partitions; see `Admin`."""
        grown = pb.UpdatePartitions(topic=str(topic), partitions=partitions)
        ask(self._link, pb.CommandAdmin(update_partitions=grown), deadline)

    def retain(
        self, topic: TopicName, ms: int | None, max_bytes: int | None, deadline: float
    ) -> None:
        """Change what a topic keeps; see `Admin`."""
        values = {"retention_ms": ms, "retention_bytes": max_bytes}
        change = pb.ChangePolicies(
            topic=str(topic),
            policies=pb.Policies(retention_ms=ms, retention_bytes=max_bytes),
            clear=[name for name, value in values.items() if value is None],
        )
        ask(self._link, pb.CommandAdmin(change_policies=change), deadline)

    def topics(self, deadline: float) -> list[TopicInfo]:
        """Return all topics."""
        asked, found, more = pb.ListTopics(), list[TopicInfo](), True
        while more:
            answer = ask(self._link, pb.CommandAdmin(list_topics=asked), deadline)
            found += [_info(info) for info in answer.topics]
            more = answer.more
            if more:
                asked.after = answer.topics[-1].topic
        return found

    def describe(self, topic: TopicName, deadline: float) -> TopicStats:
        """Return what a topic holds; raise TopicNotFoundError."""
        asked = pb.TopicRef(topic=str(topic))
        answer = first = ask(self._link, pb.CommandAdmin(describe_topic=asked), deadline)
        subscriptions = list(first.stats.subscriptions)
        while answer.more:
            asked.after_partition = subscriptions[-1].partition
            asked.after_subscription = subscriptions[-1].name
            answer = ask(self._link, pb.CommandAdmin(describe_topic=asked), deadline)
            subscriptions += answer.stats.subscriptions
        return TopicStats(
            _info(first.stats.info),
            tuple(
                PartitionStats(
                    p.partition,
                    p.ledger_id,
                    p.first_entry,
                    p.next_entry,
                    p.messages,
                    p.bytes,
                    p.producers,
                )
                for p in first.stats.partitions
            ),
            tuple(
                SubscriptionStats(s.name, s.partition, s.backlog, s.consumers, s.durable)
                for s in subscriptions
            ),
        )

    def subscribe(self, subscription: Subscription, start: Start | int, deadline: float) -> None:
        """Make a subscription exist on all partitions."""
        command = pb.CreateSubscription(
            topic=str(subscription.topic),
            subscription=subscription.name,
            earliest=start is Start.EARLIEST,
            timestamp_ms=_time(start),
        )
        ask(self._link, pb.CommandAdmin(create_subscription=command), deadline)

    def reset(self, subscription: Subscription, to: ResetTarget, deadline: float) -> None:
        """Move a subscription; raise SubscriptionNotFoundError."""
        places = to if isinstance(to, tuple) else ()
        command = pb.ResetSubscription(
            topic=str(subscription.topic),
            subscription=subscription.name,
            earliest=to is Start.EARLIEST,
            latest=to is Start.LATEST,
            timestamp_ms=None if isinstance(to, tuple) else _time(to),
            positions=[
                pb.MessageIdData(ledgerId=p.ledger, entryId=p.entry, partition=p.partition)
                for p in places
            ],
        )
        ask(self._link, pb.CommandAdmin(reset_subscription=command), deadline)

    def unsubscribe(self, subscription: Subscription, deadline: float) -> None:
        """Forget a subscription on all partitions."""
        command = pb.SubscriptionRef(topic=str(subscription.topic), subscription=subscription.name)
        with suppress(SubscriptionNotFoundError):
            ask(self._link, pb.CommandAdmin(delete_subscription=command), deadline)

    def acknowledge(
        self,
        subscription: Subscription,
        positions: Sequence[Position],
        cumulative: bool,
        deadline: float,
    ) -> None:
        """Acknowledge messages, each alone or with all before it."""
        ids = message_ids(positions, cumulative=cumulative)
        for some in in_commands(ids, AT_ONCE) if ids else [()]:
            command = pb.AcknowledgePositions(
                topic=str(subscription.topic),
                subscription=subscription.name,
                message_id=some,
                cumulative=cumulative,
            )
            ask(self._link, pb.CommandAdmin(acknowledge=command), deadline)

    def cursors(self, subscription: Subscription, deadline: float) -> list[CursorState]:
        """Return where a subscription stands, by partition; raise SubscriptionNotFoundError."""
        asked = pb.DescribeCursors(topic=str(subscription.topic), subscription=subscription.name)
        found, more = list[pb.CursorState](), True
        while more:
            answer = ask(self._link, pb.CommandAdmin(describe_cursors=asked), deadline)
            found += answer.cursors
            more = answer.more
            if more:
                asked.after_partition = found[-1].partition
                asked.after_subscription = found[-1].subscription
        return [told_by_broker(state) for state in found]

    def evict(
        self, subscription: Subscription, partition: int, asking: str, deadline: float
    ) -> None:
        """Do nothing: our broker lets go of a silent consumer as soon as a leased one comes."""

    def deduplicates(self, topic: TopicName, deadline: float) -> bool:
        """Return True: our producers ask for it themselves."""
        return True

    def extents(self, wanted: Wanted, deadline: float) -> dict[TopicName, list[Extent]]:
        """Return where the partitions of topics begin and end; missing topics are left out."""
        return located(self._link, wanted, deadline)


def deadline_in(seconds: float) -> float:
    """Return the time of the monotonic clock that is so many seconds ahead."""
    return time.monotonic() + seconds


def remaining(deadline: float) -> float:
    """Return the seconds until a deadline, never none at all."""
    return max(0.001, deadline - time.monotonic())


def _time(start: Start | int) -> int | None:
    """Return the time that a start is; one before 1970 is before everything that is stored."""
    return None if isinstance(start, Start) else max(0, start)


def _pairs(properties: Mapping[str, str]) -> Iterable[pb.KeyValue]:
    return [pb.KeyValue(key=key, value=value) for key, value in properties.items()]


def _policies_out(policies: Policies) -> pb.Policies:
    return pb.Policies(
        retention_ms=policies.retention_ms,
        retention_bytes=policies.retention_bytes,
        backlog_bytes=policies.backlog_bytes,
        deduplication=policies.deduplication,
    )


def _policies_in(policies: pb.Policies) -> Policies:
    names = ("retention_ms", "retention_bytes", "backlog_bytes", "deduplication")
    return Policies(**{n: getattr(policies, n) for n in names if policies.HasField(n)})


def _info(info: pb.TopicInfo) -> TopicInfo:
    return TopicInfo(
        TopicName.parse(info.topic),
        info.partitions,
        _policies_in(info.policies),
        {item.key: item.value for item in info.properties},
        info.created_ms,
    )
