"""Administration of topics and subscriptions by commands of our own broker."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from router.backends import Capabilities, Positions, ResetTarget, Start
from router.backends.pulsar.cursors import (
    MAX_IDS_PER_COMMAND,
    cursors_from_broker,
    in_commands,
    message_ids,
)
from router.backends.pulsar.extents import EntryExtent, ExtentRequests, located
from router.errors import SubscriptionNotFoundError
from router.model import CursorState, Subscription, TopicInfo, TopicName, TopicStats
from router.node.requests import after, after_cursor, ask, described, listed
from router.pulsar_client.link import PulsarLink
from router.wire.node import conversions
from router.wire.node import node_pb2 as npb
from router.wire.pulsar import pulsar_pb2 as pb


class BrokerAdmin:
    """Administration of our own broker, on the connection that messages take.

    Deadlines are of the monotonic clock.
    """

    def __init__(self, link: PulsarLink) -> None:
        self._link = link

    def create(self, info: TopicInfo, deadline: float) -> None:
        """Create a topic; raise TopicExistsError."""
        command = npb.CreateTopic(
            topic=str(info.topic),
            partitions=info.partitions,
            policies=conversions.POLICIES.encode(info.policies),
            properties=conversions.to_pairs(info.properties),
        )
        ask(self._link, npb.CommandAdmin(create_topic=command), deadline, again=False)

    def delete(self, topic: TopicName, deadline: float) -> None:
        """Delete a topic with all it holds; raise TopicNotFoundError."""
        command = npb.CommandAdmin(delete_topic=npb.TopicRef(topic=str(topic)))
        ask(self._link, command, deadline, again=False)

    def check(self, deadline: float) -> None:
        """Return: it answers where messages are served."""

    def check_space(self, deadline: float) -> None:
        """Raise DiskFullError while the broker refuses publishing for it."""
        ask(self._link, npb.CommandAdmin(check_space=npb.Nothing()), deadline)

    def capabilities(self, deadline: float) -> Capabilities:
        """Return that nothing is missing."""
        del deadline
        return Capabilities()

    def grow(self, topic: TopicName, partitions: int, deadline: float) -> None:
        """Give a partitioned topic more partitions; raise TopicNotFoundError, NotAllowedError."""
        grown = npb.UpdatePartitions(topic=str(topic), partitions=partitions)
        ask(self._link, npb.CommandAdmin(update_partitions=grown), deadline)

    def retain(
        self, topic: TopicName, ms: int | None, max_bytes: int | None, deadline: float
    ) -> None:
        """Change what a topic keeps; raise TopicNotFoundError, NotAllowedError."""
        values = {"retention_ms": ms, "retention_bytes": max_bytes}
        change = npb.ChangePolicies(
            topic=str(topic),
            policies=npb.Policies(retention_ms=ms, retention_bytes=max_bytes),
            clear=[name for name, value in values.items() if value is None],
        )
        ask(self._link, npb.CommandAdmin(change_policies=change), deadline)

    def topics(self, deadline: float, *, internal: bool = False) -> list[TopicInfo]:
        """Return all topics; a broker of ours has no internal ones."""
        del internal

        def answer(request: npb.ListTopics) -> Any:
            return ask(self._link, npb.CommandAdmin(list_topics=request), deadline)

        topics = listed(answer, npb.ListTopics(), "topics", after("topic"))
        return [conversions.TOPIC_INFO.decode(topic) for topic in topics]

    def describe(self, topic: TopicName, deadline: float) -> TopicStats:
        """Return what a topic holds; raise TopicNotFoundError."""

        def answer(request: npb.TopicRef) -> Any:
            return ask(self._link, npb.CommandAdmin(describe_topic=request), deadline)

        return described(answer, topic)

    def subscribe(self, subscription: Subscription, start: Start | int, deadline: float) -> None:
        """Make a subscription exist on all partitions."""
        command = npb.CreateSubscription(
            topic=str(subscription.topic),
            subscription=subscription.name,
            earliest=start is Start.EARLIEST,
            timestamp_ms=_time(start),
        )
        ask(self._link, npb.CommandAdmin(create_subscription=command), deadline)

    def reset(self, subscription: Subscription, to: ResetTarget, deadline: float) -> None:
        """Move a subscription; raise SubscriptionNotFoundError."""
        places = to if isinstance(to, tuple) else ()
        command = npb.ResetSubscription(
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
        ask(self._link, npb.CommandAdmin(reset_subscription=command), deadline)

    def unsubscribe(self, subscription: Subscription, deadline: float) -> None:
        """Forget a subscription on all partitions."""
        command = npb.SubscriptionRef(topic=str(subscription.topic), subscription=subscription.name)
        with suppress(SubscriptionNotFoundError):
            ask(self._link, npb.CommandAdmin(delete_subscription=command), deadline)

    def acknowledge(
        self, subscription: Subscription, positions: Positions, cumulative: bool, deadline: float
    ) -> None:
        """Acknowledge messages, each alone or with all before it."""
        ids = message_ids(positions, cumulative=cumulative)
        for some in in_commands(ids, MAX_IDS_PER_COMMAND) if ids else [()]:
            command = npb.AcknowledgePositions(
                topic=str(subscription.topic),
                subscription=subscription.name,
                message_id=some,
                cumulative=cumulative,
            )
            ask(self._link, npb.CommandAdmin(acknowledge=command), deadline)

    def cursors(self, subscription: Subscription, deadline: float) -> list[CursorState]:
        """Return where a subscription stands, by partition; raise SubscriptionNotFoundError."""

        def answer(request: npb.DescribeCursors) -> Any:
            return ask(self._link, npb.CommandAdmin(describe_cursors=request), deadline)

        named = npb.DescribeCursors(topic=str(subscription.topic), subscription=subscription.name)
        return list(map(cursors_from_broker, listed(answer, named, "cursors", after_cursor)))

    def evict(
        self, subscription: Subscription, partition: int, asking: str, deadline: float
    ) -> None:
        """Do nothing: our broker lets go of a silent consumer as soon as a leased one comes."""

    def deduplicates(self, topic: TopicName, deadline: float) -> bool:
        """Return True: our producers ask for it themselves."""
        return True

    def deduplicate(self, topic: TopicName, deadline: float) -> None:
        """Do nothing: see `deduplicates`."""

    def history(self, deadline: float) -> str:
        """Return what names the broker's line of appends."""
        command = npb.CommandAdmin(call=npb.AdminCall(name="history", arguments=b"{}"))
        return str(json.loads(ask(self._link, command, deadline).value))

    def extents(
        self, requests: ExtentRequests, deadline: float
    ) -> dict[TopicName, list[EntryExtent]]:
        """Return where the partitions of topics begin and end; missing topics are left out."""
        return located(self._link, requests, deadline)


def _time(start: Start | int) -> int | None:
    """Return the time that a start is; one before 1970 is before everything that is stored."""
    return None if isinstance(start, Start) else max(0, start)
