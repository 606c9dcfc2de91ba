"""Administration of Apache Pulsar through its REST interface, `?admin=http://host:8080`.

Subscriptions alone are made on the binary protocol: a consumer that comes and goes leaves a cursor
behind, and needs no administrator's rights.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote, unquote_plus

from router.backends import Capabilities, Positions, ResetTarget, Start, check_positions
from router.backends.pulsar.consumer import CONSUMER_NAME
from router.backends.pulsar.cursors import cursors_from_rest, message_ids
from router.backends.pulsar.extents import (
    EntryExtent,
    EntryRead,
    ExtentRequests,
    extents_from_stats,
    position_from_stats,
)
from router.backends.pulsar.rest_peer import NOT_PULSAR, RestPeer
from router.backends.pulsar.routes import Recall, Routes, recall_nothing
from router.backends.pulsar.subscribing import acknowledge, make_subscription
from router.backends.pulsar.system_topics import check_not_system, is_system_topic
from router.clocks import seconds_left
from router.clocks.backoff import Backoff
from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    BadRequestError,
    NotAllowedError,
    NotSupportedError,
    RouterError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from router.model import (
    NOT_PARTITIONED,
    CursorState,
    PartitionStats,
    Position,
    Subscription,
    SubscriptionStats,
    TopicInfo,
    TopicName,
    TopicStats,
)
from router.model.policies import Policies
from router.pulsar_client.credentials import NO_CREDENTIALS, PulsarCredentials

NO_POLICIES: Final = "policies of a topic are set in Apache Pulsar itself, for its namespace"
# Pulsar moves a cursor to a time; before all times is the first message, after all of them the end.
_TIMES: Final = {Start.EARLIEST: 0, Start.LATEST: 2**53 - 1}
_LAST: Final = re.compile(r"([0-9]+):(-1|[0-9]+)")
MAX_CONCURRENT_QUESTIONS: Final = 8
"""Requests of one planner that Pulsar's administration answers at a time."""
POLICY_PAUSE_SECONDS: Final = 0.05
MAX_POLICY_PAUSE_SECONDS: Final = 1.0
_PARTITIONED: Final = "application/vnd.partitioned-topic-metadata+json"
_WITH_SYSTEM_TOPICS: Final = "?includeSystemTopic=true"


class RestAdmin:
    """Administration over HTTP, in the terms of `BrokerAdmin`."""

    def __init__(
        self,
        url: str,
        routes: Routes,
        credentials: PulsarCredentials = NO_CREDENTIALS,
        recall: Recall = recall_nothing,
    ) -> None:
        self._peer = RestPeer(url, credentials)
        self._routes = routes
        self._recall = recall

    def create(self, info: TopicInfo, deadline: float) -> None:
        """Create a topic; raise TopicExistsError, NotAllowedError for policies.

        Replicas are Pulsar's to decide: to ask for some has no effect, as clients of the original
        Message Router always do.
        """
        if replace(info.policies, replicas=None) != Policies():
            raise NotAllowedError(NO_POLICIES)
        properties = dict(info.properties)
        if info.partitions:
            path, body = (
                f"{_path(info.topic)}/partitions",
                json.dumps({"partitions": info.partitions, "properties": properties}),
            )
            self._peer.ask("PUT", path, deadline, body.encode(), _PARTITIONED)
        else:
            self._peer.ask("PUT", _path(info.topic), deadline, json.dumps(properties).encode())

    def delete(self, topic: TopicName, deadline: float) -> None:
        """Delete a topic with all it holds; raise TopicNotFoundError."""
        partitioned = "/partitions" if self._partitions(topic, deadline) else ""
        self._peer.ask("DELETE", f"{_path(topic)}{partitioned}?force=true", deadline)

    def check(self, deadline: float) -> None:
        """Return if Apache Pulsar's administration answers, to clients of any rights.

        Raises NotAllowedError, TopicNotFoundError, BackendUnavailableError.
        """
        self._peer.get("clusters", list, deadline)

    def capabilities(self, deadline: float) -> Capabilities:
        """Return what is Apache Pulsar's own to decide."""
        del deadline
        return Capabilities(policies=NO_POLICIES, retention=NO_POLICIES)

    def grow(self, topic: TopicName, partitions: int, deadline: float) -> None:
        """Give a partitioned topic more partitions; raise TopicNotFoundError, NotAllowedError."""
        has = self._partitions(topic, deadline)
        if not has or partitions < has:
            raise NotAllowedError(f"topic {topic.local} cannot have {partitions} partitions")
        path = f"{_path(topic)}/partitions"
        self._peer.ask("POST", path, deadline, str(partitions).encode())

    def retain(
        self, topic: TopicName, ms: int | None, max_bytes: int | None, deadline: float
    ) -> None:
        """Raise NotAllowedError: its namespaces say what is kept."""
        raise NotAllowedError(NO_POLICIES)

    def topics(self, deadline: float, *, internal: bool = False) -> list[TopicInfo]:
        """Return the topics of all tenants and namespaces; properties of the partitioned only.

        Those that belong to Pulsar itself are returned only with `internal`.
        """
        found: list[TopicInfo] = []
        for tenant in self._peer.get("tenants", list, deadline):
            for namespace in self._peer.get(f"namespaces/{quote(tenant)}", list, deadline):
                found += self._namespace(namespace, deadline, internal=internal)
        return sorted(found, key=lambda info: str(info.topic))

    def describe(self, topic: TopicName, deadline: float) -> TopicStats:
        """Return what a topic holds; raise TopicNotFoundError."""
        info = self._info(topic, deadline)
        partitions = range(info.partitions) if info.partitions else (NOT_PARTITIONED,)
        stats = {p: self._stats(topic.partition(p), deadline) for p in partitions}
        kept = {p: self._kept(topic.partition(p), deadline) for p in partitions}
        if not info.partitions:
            info = replace(info, properties=kept[NOT_PARTITIONED].get("properties") or {})
        return TopicStats(
            info,
            tuple(_partition(p, one, kept[p]) for p, one in stats.items()),
            tuple(
                SubscriptionStats(
                    name,
                    p,
                    subscription.get("msgBacklog", 0),
                    len(subscription.get("consumers", ())),
                    subscription.get("isDurable", True),
                )
                for p, one in stats.items()
                for name, subscription in one.get("subscriptions", {}).items()
            ),
        )

    def subscribe(self, subscription: Subscription, start: int, deadline: float) -> None:
        """Make a subscription exist on all partitions, new ones at a time in ms since 1970."""
        # Made at the beginning, so that nothing is missed, and moved where it was not there before.
        missing = [
            topic
            for topic in self._topics_of(subscription.topic, deadline)
            if subscription.name
            not in self._peer.get(f"{_path(topic)}/subscriptions", list, deadline)
        ]
        if missing:
            make_subscription(self._routes, subscription, Start.EARLIEST, deadline)
        for topic in missing:
            self._move(topic, subscription.name, start, deadline)

    def reset(self, subscription: Subscription, to: ResetTarget, deadline: float) -> None:
        """Move a subscription; raise SubscriptionNotFoundError.

        Partitions are moved one after the other: a failure leaves the first ones moved.
        """
        if isinstance(to, tuple):
            self._check_partitions(subscription, to, deadline)
            for position in to:
                topic = subscription.topic.partition(position.partition)
                self._move(topic, subscription.name, position, deadline)
            return
        for topic in self._topics_of(subscription.topic, deadline):
            self._move(topic, subscription.name, to, deadline)

    def acknowledge(
        self, subscription: Subscription, positions: Positions, cumulative: bool, deadline: float
    ) -> None:
        """Acknowledge messages, each alone or with all before it, by a consumer of our own."""

        def recall() -> None:
            # A group that polls all the time has hardly a moment without a consumer.
            self._recall(subscription.topic, subscription.name, seconds_left(deadline))

        known = {partition for partition, _ in self._found(subscription, deadline)}
        for partition in sorted({position.partition for position in positions} & known):
            mine = [position for position in positions if position.partition == partition]
            self._check_stored(subscription.topic.partition(partition), mine, deadline)
            ids = message_ids(mine, cumulative=cumulative)
            if ids:
                acknowledge(
                    self._routes, subscription, partition, ids, cumulative, deadline, recall
                )

    def cursors(self, subscription: Subscription, deadline: float) -> list[CursorState]:
        """Return where a subscription stands, by partition; raise SubscriptionNotFoundError."""
        found = []
        for partition, backlog in self._found(subscription, deadline):
            path = f"{_path(subscription.topic.partition(partition))}/internalStats"
            stats = self._peer.get(path, dict, deadline)
            # Named as Java encodes a form: a space is a plus.
            cursors = {unquote_plus(name): one for name, one in stats.get("cursors", {}).items()}
            cursor = cursors.get(subscription.name, {})
            ledgers = extents_from_stats(partition, stats, None).ledgers
            found.append(cursors_from_rest(partition, cursor, backlog, ledgers))
        return found

    def extents(
        self, requests: ExtentRequests, deadline: float
    ) -> dict[TopicName, list[EntryExtent]]:
        """Return where the partitions of topics begin and end; `messages` are entries here.

        Pulsar answers about one partition at a time, so several questions are asked at once.
        """
        with ThreadPoolExecutor(MAX_CONCURRENT_QUESTIONS) as pool:
            pending = [
                (topic, pool.submit(self._extents, topic, reads, deadline))
                for topic, reads in requests.items()
            ]
            try:
                found = [(topic, one.result()) for topic, one in pending]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return {topic: extents for topic, extents in found if extents is not None}

    def _extents(
        self, topic: TopicName, reads: Sequence[EntryRead], deadline: float
    ) -> list[EntryExtent] | None:
        """Return the extents of a topic; None: it does not exist."""
        requested = {read.partition: read for read in reads}
        try:
            partitions = self._partitions(topic, deadline)
            return [
                self._extent(topic.partition(one), one, requested.get(one), deadline)
                for one in (range(partitions) if partitions else (NOT_PARTITIONED,))
            ]
        except TopicNotFoundError:
            return None

    def _extent(
        self, topic: TopicName, partition: int, requested: EntryRead | None, deadline: float
    ) -> EntryExtent:
        stats, at = self._kept(topic, deadline), None
        if requested is not None and requested.index is not None:
            raise NotSupportedError("Apache Pulsar does not count messages: name positions")
        if requested is not None and requested.time_ms is not None:
            path = f"{_path(topic)}/messageid/{requested.time_ms}"
            at = position_from_stats(self._peer.ask("GET", path, deadline))
        return extents_from_stats(partition, stats, requested, at)

    def evict(
        self, subscription: Subscription, partition: int, asking: str, deadline: float
    ) -> None:
        """Have Pulsar unload the partition if another router's consumer than `asking` is open.

        A Pulsar that is only slow has none, or opened the one that asks too late for its router.
        Unloading closes what is connected to the partition, waits for no sign of life, and loads it
        again when it is looked up: producers and consumers that are alive come back by themselves.
        """
        topic = subscription.topic.partition(partition)
        found = self._stats(topic, deadline).get("subscriptions", {}).get(subscription.name, {})
        names = [consumer.get("consumerName", "") for consumer in found.get("consumers", ())]
        if any(name.startswith(CONSUMER_NAME) and name != asking for name in names):
            self._peer.ask("PUT", f"{_path(topic)}/unload", deadline, b"")

    def deduplicates(self, topic: TopicName, deadline: float) -> bool:
        """Return whether Pulsar deduplicates a topic, by whichever policy applies to it."""
        path = f"{_path(topic)}/deduplicationEnabled?applied=true"
        return bool(self._peer.ask("GET", path, deadline))

    def deduplicate(self, topic: TopicName, deadline: float) -> None:
        """Have Pulsar deduplicate a topic, and wait until it does.

        Raises NotAllowedError, BackendTimeoutError.
        """
        if self.deduplicates(topic, deadline):
            return
        self._peer.ask("POST", f"{_path(topic)}/deduplicationEnabled", deadline, b"true")
        pauses = Backoff(POLICY_PAUSE_SECONDS, MAX_POLICY_PAUSE_SECONDS)
        while not self.deduplicates(topic, deadline):
            if not pauses.sleep(deadline):
                raise BackendTimeoutError(f"deduplication of topic {topic.local} does not begin")

    def _found(self, subscription: Subscription, deadline: float) -> list[tuple[int, int]]:
        """Return on which partitions there is the subscription, with its backlog on each.

        Raises TopicNotFoundError, SubscriptionNotFoundError.
        """
        partitions = self._partitions(subscription.topic, deadline)
        found = []
        for partition in range(partitions) if partitions else (NOT_PARTITIONED,):
            stats = self._stats(subscription.topic.partition(partition), deadline)
            if (mine := stats.get("subscriptions", {}).get(subscription.name)) is not None:
                found.append((partition, mine.get("msgBacklog", 0)))
        if not found:
            raise SubscriptionNotFoundError(f"there is no subscription {subscription.name}")
        return found

    def _check_stored(
        self, topic: TopicName, positions: Sequence[Position], deadline: float
    ) -> None:
        """Raise BadRequestError for a position that the topic never had.

        Ledgers before the first that is kept may have been the topic's.
        """
        held = extents_from_stats(NOT_PARTITIONED, self._kept(topic, deadline), None).ledgers
        ends = dict(held)
        check_positions([p for p in positions if p.ledger >= held[0][0]], ends, topic)

    def _check_partitions(
        self, subscription: Subscription, to: Iterable[Position], deadline: float
    ) -> None:
        """Raise BadRequestError for a position of a partition that there is not."""
        known = {partition for partition, _ in self._found(subscription, deadline)}
        if not known >= {position.partition for position in to}:
            raise BadRequestError("there is no subscription on one of these partitions")

    def _move(
        self, topic: TopicName, name: str, to: Start | int | Position, deadline: float
    ) -> None:
        """Move a subscription on one partition; Pulsar lets its consumers go."""
        path, body = f"{_path(topic)}/subscription/{quote(name, safe='')}/resetcursor", b""
        if isinstance(to, Position):
            body = json.dumps({"ledgerId": to.ledger, "entryId": to.entry}).encode()
        else:
            path += f"/{_TIMES[to] if isinstance(to, Start) else max(0, to)}"
        try:
            self._peer.ask("POST", path, deadline, body)
        except TopicNotFoundError as error:
            if "subscription" in str(error).lower():
                raise SubscriptionNotFoundError(str(error)) from error
            raise

    def _topics_of(self, topic: TopicName, deadline: float) -> list[TopicName]:
        """Return the topics that are the partitions of a topic, or the topic itself."""
        partitions = self._partitions(topic, deadline)
        return [topic.partition(p) for p in range(partitions)] if partitions else [topic]

    def _namespace(self, namespace: str, deadline: float, *, internal: bool) -> list[TopicInfo]:
        path, query = f"persistent/{quote(namespace)}", _WITH_SYSTEM_TOPICS if internal else ""
        parents = self._peer.get(f"{path}/partitioned{query}", list, deadline)
        found = self._peer.get(f"{path}{query}", list, deadline)
        plain = [
            TopicInfo(topic, internal=is_system_topic(topic))
            for topic in _listed(found, internal=internal)
            if (part := topic.parent()) is None or str(part[0]) not in parents
        ]
        parted = _listed(parents, internal=internal)
        return plain + [self._info(topic, deadline, internal=internal) for topic in parted]

    def _info(self, topic: TopicName, deadline: float, *, internal: bool = False) -> TopicInfo:
        """Return what is written about a topic, were it partitioned: nothing if it is not."""
        found = self._peer.get(f"{_path(topic, internal=internal)}/partitions", dict, deadline)
        if "partitions" not in found:
            raise BackendUnavailableError(NOT_PULSAR)
        return TopicInfo(
            topic,
            found["partitions"],
            properties=found.get("properties") or {},
            internal=is_system_topic(topic),
        )

    def _partitions(self, topic: TopicName, deadline: float) -> int:
        return self._info(topic, deadline).partitions

    def _stats(self, topic: TopicName, deadline: float) -> dict[str, Any]:
        return self._peer.get(f"{_path(topic)}/stats", dict, deadline)

    def _kept(self, topic: TopicName, deadline: float) -> dict[str, Any]:
        """Return what Pulsar says about the ledgers of a topic."""
        return self._peer.get(f"{_path(topic)}/internalStats", dict, deadline)


def _partition(number: int, stats: dict[str, Any], kept: dict[str, Any]) -> PartitionStats:
    """Return what a partition holds; Pulsar counts messages since its broker loaded the topic."""
    entries = kept.get("numberOfEntries", 0)
    last = _LAST.fullmatch(str(kept.get("lastConfirmedEntry", "")))
    ledger, end_entry = (int(last[1]), int(last[2]) + 1) if last else (0, 0)
    return PartitionStats(
        number,
        ledger,
        # Of the last of Pulsar's ledgers: entries are numbered from 0 in each, and counted in all.
        max(0, end_entry - entries),
        end_entry,
        max(stats.get("msgInCounter", 0), entries),
        stats.get("storageSize", 0),
        len(stats.get("publishers", ())),
    )


def _path(topic: TopicName, *, internal: bool = False) -> str:
    """Return the path of a topic; raise InternalTopicError unless it may be internal."""
    if not internal:
        check_not_system(topic)
    parts = (topic.domain, topic.tenant, topic.namespace, topic.local)
    return "/".join(quote(part, safe="") for part in parts)


def _listed(names: Iterable[str], *, internal: bool) -> list[TopicName]:
    """Return the topics whose names are allowed; Pulsar's own only with `internal`."""
    topics = []
    for name in names:
        with suppress(RouterError):
            topics.append(TopicName.parse(name))
    return [topic for topic in topics if internal or not is_system_topic(topic)]
