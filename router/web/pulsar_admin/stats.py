"""What a topic holds, as Pulsar's statistics: one topic or partition, or all partitions together.

`msgInCounter` and `bytesInCounter` count what is stored now; counters of what was sent begin when
the broker loads a partition. Rates are averages since about a minute ago, and sizes of backlogs are
estimated by the average size of the messages that are stored, as in Pulsar.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from router.errors import TopicNotFoundError
from router.model import (
    NOT_PARTITIONED,
    PERSISTENT,
    PartitionStats,
    SubscriptionStats,
    TopicInfo,
    TopicName,
)
from router.model.administration import ClientInfo, CursorDescription
from router.node.administration import Administration
from router.wire.pulsar import pulsar_pb2 as pb

RATES: Final = ("msgRateOut", "msgThroughputOut", "msgRateRedeliver", "messageAckRate")
"""Of a subscription, summed up over its consumers."""
OUT: Final = ("msgRateOut", "msgThroughputOut", "msgOutCounter", "bytesOutCounter")
"""Of a topic, summed up over its subscriptions."""

P = TypeVar("P", PartitionStats, SubscriptionStats, CursorDescription, ClientInfo)


@dataclass(frozen=True, slots=True)
class StatsTarget:
    """What there is of a topic, or of a partition where one was named."""

    info: TopicInfo
    partitions: Sequence[PartitionStats]
    subscriptions: Sequence[SubscriptionStats]
    cursors: Sequence[CursorDescription]
    clients: Sequence[ClientInfo]

    def of(self, partition: int) -> StatsTarget:
        """Return what is about one partition."""

        def only(found: Iterable[P]) -> list[P]:
            return [one for one in found if one.partition == partition]

        return StatsTarget(
            self.info,
            only(self.partitions),
            only(self.subscriptions),
            only(self.cursors),
            only(self.clients),
        )


class TopicInspection:
    """Collects what the broker answers about a topic."""

    def __init__(self, administration: Administration) -> None:
        self._administration = administration

    def whole(self, topic: TopicName, *, earliest: bool = False) -> StatsTarget:
        """Return what there is of a topic, not of a partition; raise TopicNotFoundError.

        With `earliest` also when the first message of each backlog was stored.
        """
        stats = self._administration.describe(topic)
        cursors: Iterable[CursorDescription] = ()
        if topic.domain == PERSISTENT:
            cursors = self._administration.cursors(topic, earliest=earliest)
        clients = list(self._administration.clients(topic))
        return StatsTarget(
            stats.info, stats.partitions, stats.subscriptions, list(cursors), clients
        )

    def one(self, topic: TopicName, *, earliest: bool = False) -> StatsTarget:
        """Return what there is of a topic without partitions, or of the partition that is named.

        See `whole`. Raises TopicNotFoundError, also for a topic that has partitions.
        """
        parent, index = self._place(topic)
        found = self.whole(parent, earliest=earliest).of(index)
        if not found.partitions:
            raise TopicNotFoundError(f"Topic {topic} not found, or it is partitioned: name one")
        return found

    def subscriptions(self, topic: TopicName) -> list[str]:
        """Return the names of a topic's subscriptions; raise TopicNotFoundError."""
        if topic.domain != PERSISTENT:
            return sorted({one.name for one in self._administration.describe(topic).subscriptions})
        return sorted({cursor.subscription for cursor in self._administration.cursors(topic)})

    def _place(self, topic: TopicName) -> tuple[TopicName, int]:
        """Return a topic and the index of the partition that its name may stand for."""
        part = topic.parent()
        if part is not None:
            with suppress(TopicNotFoundError):
                self._administration.describe(part[0])
                return part
        return topic, NOT_PARTITIONED


def topic_stats(found: StatsTarget) -> dict[str, Any]:
    """Return Pulsar's TopicStats."""
    messages = sum(partition.messages for partition in found.partitions)
    size = sum(partition.bytes for partition in found.partitions)
    producers = [client for client in found.clients if client.subscription is None]
    names = sorted({one.name for one in found.subscriptions})
    subscriptions = {name: _subscription(found, name) for name in names}
    return {
        "msgRateIn": sum(partition.message_rate for partition in found.partitions),
        "msgThroughputIn": sum(partition.byte_rate for partition in found.partitions),
        **_sums(subscriptions.values(), OUT),
        "msgInCounter": messages,
        "bytesInCounter": size,
        "backlogSize": max((one["backlogSize"] for one in subscriptions.values()), default=0),
        "earliestMsgPublishTimeInBacklogs": _earliest(found.cursors),
        "averageMsgSize": size / messages if messages else 0.0,
        "storageSize": size,
        "publishers": [_publisher(client) for client in producers],
        "subscriptions": subscriptions,
        "replication": {},
        "deduplicationStatus": "Enabled" if found.info.policies.deduplication else "Disabled",
    }


def partitioned_stats(topic: TopicName, found: StatsTarget, *, each: bool) -> dict[str, Any]:
    """Return Pulsar's PartitionedTopicStats, with those of each partition if `each`."""
    return topic_stats(found) | {
        "metadata": metadata(found.info),
        "partitions": _each(topic, found, topic_stats) if each else {},
    }


def metadata(info: TopicInfo) -> dict[str, Any]:
    """Return Pulsar's PartitionedTopicMetadata."""
    fields: dict[str, Any] = {"partitions": info.partitions, "deleted": False}
    if info.properties:
        fields["properties"] = info.properties
    return fields


def internal_stats(found: StatsTarget) -> dict[str, Any]:
    """Return Pulsar's PersistentTopicInternalStats of one partition."""
    (partition,) = found.partitions
    ledger, entries = partition.ledger, partition.next_entry - partition.first_entry
    return {
        "entriesAddedCounter": partition.next_entry,
        "numberOfEntries": entries,
        "totalSize": partition.bytes,
        "currentLedgerEntries": entries,
        "currentLedgerSize": partition.bytes,
        "lastConfirmedEntry": f"{ledger}:{partition.next_entry - 1}",
        "ledgers": [
            {"ledgerId": ledger, "entries": entries, "size": partition.bytes, "offloaded": False}
        ],
        "cursors": {cursor.subscription: _cursor(cursor) for cursor in found.cursors},
        "properties": found.info.properties,
    }


def partitioned_internal_stats(topic: TopicName, found: StatsTarget) -> dict[str, Any]:
    """Return Pulsar's PartitionedTopicInternalStats."""
    partitions = _each(topic, found, internal_stats)
    return {"metadata": metadata(found.info), "partitions": partitions}


def _each(
    topic: TopicName, found: StatsTarget, shown: Callable[[StatsTarget], dict[str, Any]]
) -> Mapping[str, dict[str, Any]]:
    return {
        str(topic.partition(partition.partition)): shown(found.of(partition.partition))
        for partition in found.partitions
    }


def _client(client: ClientInfo) -> dict[str, Any]:
    return {
        "address": client.address,
        "clientVersion": client.version,
        "connectedSince": moment(client.connected_ms),
        "metadata": client.metadata,
    }


def _publisher(client: ClientInfo) -> dict[str, Any]:
    return _client(client) | {
        "msgRateIn": client.message_rate,
        "msgThroughputIn": client.byte_rate,
        "averageMsgSize": client.bytes / client.messages if client.messages else 0.0,
        "producerName": client.name,
        "producerId": client.id,
        "accessMode": pb.ProducerAccessMode.Name(client.access or 0),
        "supportsPartialProducer": False,
    }


def _subscription(found: StatsTarget, name: str) -> dict[str, Any]:
    own = [one for one in found.subscriptions if one.name == name]
    cursors = [cursor for cursor in found.cursors if cursor.subscription == name]
    consumers = [client for client in found.clients if client.subscription == name]
    kinds = [cursor.type for cursor in cursors if cursor.type]
    held = {partition.partition: partition for partition in found.partitions}
    shown = [_consumer(client) for client in consumers]
    sent = _sums(shown, ("msgOutCounter", "bytesOutCounter"))
    if cursors:  # they know what consumers that left were sent
        sent = {
            "msgOutCounter": sum(cursor.messages_out for cursor in cursors),
            "bytesOutCounter": sum(cursor.bytes_out for cursor in cursors),
        }
    return {
        **_sums(shown, RATES),
        **sent,
        "backlogSize": sum(_backlog_size(held.get(one.partition), one.backlog) for one in own),
        "earliestMsgPublishTimeInBacklog": _earliest(cursors),
        "msgBacklog": sum(one.backlog for one in own),
        "unackedMessages": sum(cursor.unacked for cursor in cursors),
        "type": kinds[0] if kinds else "None",
        "consumers": shown,
        "isDurable": any(one.durable for one in own),
        "isReplicated": any(cursor.replicated for cursor in cursors),
        "subscriptionProperties": cursors[0].properties if cursors else {},
    }


def _backlog_size(held: PartitionStats | None, backlog: int) -> int:
    return 0 if held is None else held.bytes * backlog // max(1, held.messages)


def _earliest(cursors: Iterable[CursorDescription]) -> int:
    """Return when the first message of the backlogs was stored, 0: none, or it was not asked."""
    return min((one.earliest_ms for one in cursors if one.earliest_ms is not None), default=0)


def _sums(shown: Iterable[Mapping[str, Any]], fields: Iterable[str]) -> dict[str, Any]:
    found = list(shown)
    return {field: sum(one[field] for one in found) for field in fields}


def _consumer(client: ClientInfo) -> dict[str, Any]:
    return _client(client) | {
        "msgRateOut": client.message_rate,
        "msgThroughputOut": client.byte_rate,
        "msgRateRedeliver": client.redelivery_rate,
        "messageAckRate": client.ack_rate,
        "msgOutCounter": client.messages,
        "bytesOutCounter": client.bytes,
        "consumerName": client.name,
        "availablePermits": client.permits,
        "unackedMessages": client.unacked,
    }


def _cursor(cursor: CursorDescription) -> dict[str, Any]:
    ledger = cursor.ledger_id
    # An interval is open where it begins, as Pulsar writes them.
    ranges = ",".join(f"({ledger}:{r.first - 1}..{ledger}:{r.last}]" for r in cursor.acknowledged)
    return {
        "markDeletePosition": f"{ledger}:{cursor.mark_delete}",
        "readPosition": f"{ledger}:{cursor.mark_delete + 1}",
        "individuallyDeletedMessages": f"[{ranges}]",
        "active": bool(cursor.type),
    }


def moment(ms: int) -> str:
    """Return a time as Pulsar writes it."""
    at = datetime.fromtimestamp(ms / 1000, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
