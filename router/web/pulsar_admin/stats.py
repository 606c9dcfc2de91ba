"""What a topic holds, as Pulsar's statistics: one topic or partition, or all partitions together.

Rates are not kept here, and left out rather than told as 0; counters count what is stored now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from router.backends.embedded.administration import Administration
from router.errors import TopicNotFoundError
from router.model import NOT_PARTITIONED, TopicName
from router.wire.pulsar import pulsar_pb2 as pb


@dataclass(frozen=True, slots=True)
class Found:
    """What the broker tells of a topic; of a partition where one was named."""

    info: Any
    partitions: list[Any]
    subscriptions: list[Any]
    cursors: list[Any]
    clients: list[Any]

    def of(self, partition: int) -> Found:
        """Return what is about one partition."""

        def only(all_of_them: Iterable[Any]) -> list[Any]:
            return [one for one in all_of_them if one.partition == partition]

        return Found(
            self.info,
            only(self.partitions),
            only(self.subscriptions),
            only(self.cursors),
            only(self.clients),
        )


class Looking:
    """Asks the broker for all that it tells of topics, page by page."""

    def __init__(self, administration: Administration) -> None:
        self._administration = administration

    def info(self, topic: TopicName) -> Any:
        """Return name, partitions and properties of a topic; raise TopicNotFoundError."""
        return self._describe(topic).info

    def whole(self, topic: TopicName) -> Found:
        """Return what there is of a topic, not of a partition; raise TopicNotFoundError."""
        stats = self._describe(topic)
        persistent = topic.domain == "persistent"
        cursors = list(self.cursors(topic)) if persistent else []
        clients = list(self._clients(topic))
        return Found(
            stats.info, list(stats.partitions), list(stats.subscriptions), cursors, clients
        )

    def one(self, topic: TopicName) -> Found:
        """Return what there is of a topic without partitions, or of the partition that is named.

        Raises TopicNotFoundError, also for a topic that has partitions.
        """
        parent, index = self._place(topic)
        found = self.whole(parent).of(index)
        if not found.partitions:
            raise TopicNotFoundError(f"Topic {topic} not found, or it is partitioned: name one")
        return found

    def cursors(self, topic: TopicName) -> Iterator[Any]:
        """Yield where the subscriptions of a topic stand; raise TopicNotFoundError."""
        asked, more = pb.DescribeCursors(topic=str(topic)), True
        while more:
            page = self._administration.ask(pb.CommandAdmin(describe_cursors=asked))
            yield from page.cursors
            if more := page.more:
                asked.after_partition = page.cursors[-1].partition
                asked.after_subscription = page.cursors[-1].subscription

    def subscriptions(self, topic: TopicName) -> list[str]:
        """Return the names of a topic's subscriptions; raise TopicNotFoundError."""
        if topic.domain != "persistent":
            return sorted({one.name for one in self._describe(topic).subscriptions})
        return sorted({cursor.subscription for cursor in self.cursors(topic)})

    def _describe(self, topic: TopicName) -> Any:
        asked = pb.TopicRef(topic=str(topic))
        answer = first = self._administration.ask(pb.CommandAdmin(describe_topic=asked))
        while answer.more:
            last = answer.stats.subscriptions[-1]
            asked.after_partition, asked.after_subscription = last.partition, last.name
            answer = self._administration.ask(pb.CommandAdmin(describe_topic=asked))
            first.stats.subscriptions.extend(answer.stats.subscriptions)
        return first.stats

    def _clients(self, topic: TopicName) -> Iterator[Any]:
        asked, more = pb.DescribeClients(topic=str(topic)), True
        while more:
            page = self._administration.ask(pb.CommandAdmin(describe_clients=asked))
            yield from page.clients
            asked.after += len(page.clients)
            more = page.more

    def _place(self, topic: TopicName) -> tuple[TopicName, int]:
        """Return a topic and the index of the partition that its name may stand for."""
        local, mark, index = topic.local.rpartition("-partition-")
        if mark and index.isascii() and index.isdigit():
            parent = TopicName(topic.tenant, topic.namespace, local, topic.domain)
            try:
                self.info(parent)
            except TopicNotFoundError:
                return topic, NOT_PARTITIONED
            return parent, int(index)
        return topic, NOT_PARTITIONED


def topic_stats(found: Found) -> dict[str, Any]:
    """Return Pulsar's TopicStats."""
    messages = sum(partition.messages for partition in found.partitions)
    size = sum(partition.bytes for partition in found.partitions)
    producers = [client for client in found.clients if not client.HasField("subscription")]
    names = sorted({one.name for one in found.subscriptions})
    return {
        "msgInCounter": messages,
        "bytesInCounter": size,
        "averageMsgSize": size / messages if messages else 0.0,
        "storageSize": size,
        "publishers": [_publisher(client) for client in producers],
        "subscriptions": {name: _subscription(found, name) for name in names},
        "replication": {},
        "deduplicationStatus": "Enabled" if found.info.policies.deduplication else "Disabled",
    }


def partitioned_stats(topic: TopicName, found: Found, *, each: bool) -> dict[str, Any]:
    """Return Pulsar's PartitionedTopicStats, with those of each partition where asked for."""
    return topic_stats(found) | {
        "metadata": metadata(found.info),
        "partitions": _each(topic, found, topic_stats) if each else {},
    }


def metadata(info: Any) -> dict[str, Any]:
    """Return Pulsar's PartitionedTopicMetadata."""
    told: dict[str, Any] = {"partitions": info.partitions, "deleted": False}
    if properties := {pair.key: pair.value for pair in info.properties}:
        told["properties"] = properties
    return told


def internal_stats(found: Found) -> dict[str, Any]:
    """Return Pulsar's PersistentTopicInternalStats of one partition."""
    (partition,) = found.partitions
    ledger, entries = partition.ledger_id, partition.next_entry - partition.first_entry
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
        "properties": {pair.key: pair.value for pair in found.info.properties},
    }


def partitioned_internal_stats(topic: TopicName, found: Found) -> dict[str, Any]:
    """Return Pulsar's PartitionedTopicInternalStats."""
    partitions = _each(topic, found, internal_stats)
    return {"metadata": metadata(found.info), "partitions": partitions}


def _each(
    topic: TopicName, found: Found, tell: Callable[[Found], dict[str, Any]]
) -> Mapping[str, dict[str, Any]]:
    return {
        str(topic.partition(partition.partition)): tell(found.of(partition.partition))
        for partition in found.partitions
    }


def _publisher(client: Any) -> dict[str, Any]:
    return {
        "producerName": client.name,
        "producerId": client.id,
        "address": client.address,
        "clientVersion": client.version,
        "accessMode": pb.ProducerAccessMode.Name(client.access),
        "connectedSince": moment(client.connected_ms),
        "metadata": _metadata(client),
        "supportsPartialProducer": False,
    }


def _subscription(found: Found, name: str) -> dict[str, Any]:
    own = [one for one in found.subscriptions if one.name == name]
    cursors = [cursor for cursor in found.cursors if cursor.subscription == name]
    consumers = [client for client in found.clients if client.subscription == name]
    kinds = [cursor.type for cursor in cursors if cursor.type]
    backlog = sum(one.backlog for one in own)
    return {
        "msgBacklog": backlog,
        "unackedMessages": sum(cursor.unacked for cursor in cursors),
        "type": kinds[0] if kinds else "None",
        "consumers": [_consumer(client) for client in consumers],
        "isDurable": any(one.durable for one in own),
        "isReplicated": any(cursor.replicated for cursor in cursors),
        "subscriptionProperties": {
            pair.key: pair.value for cursor in cursors[:1] for pair in cursor.properties
        },
    }


def _consumer(client: Any) -> dict[str, Any]:
    return {
        "consumerName": client.name,
        "availablePermits": client.permits,
        "unackedMessages": client.unacked,
        "address": client.address,
        "clientVersion": client.version,
        "connectedSince": moment(client.connected_ms),
        "metadata": _metadata(client),
    }


def _metadata(client: Any) -> dict[str, str]:
    return {pair.key: pair.value for pair in client.metadata}


def _cursor(cursor: Any) -> dict[str, Any]:
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
