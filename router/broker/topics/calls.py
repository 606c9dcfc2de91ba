"""Calls of administration by name: functions whose arguments and results are JSON.

The node protocol carries them as they are (`AdminCall`), so that a new call needs a function here
and nothing in between.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from types import UnionType
from typing import Any, Final, get_origin, get_type_hints

import orjson

from router.broker.consume import REPLICATED, BacklogCounter, Partition
from router.broker.consume.membership.live_members import OWNER
from router.broker.topics import changes
from router.broker.topics.cursor_administration import acknowledge_before, size_from
from router.broker.topics.groups import TopicSubscriptions, only_partition
from router.broker.topics.message_events import MessageEvents
from router.broker.topics.names import check_properties
from router.broker.topics.topics import Topics
from router.errors import BadRequestError, NotAllowedError, SubscriptionNotFoundError
from router.errors.quoting import quoted
from router.model import PERSISTENT, check_namespace
from router.model.administration import INHERITED
from router.model.publish_source import source_at

OWN_PROPERTIES: Final = (OWNER, REPLICATED)
"""Properties of subscriptions that the broker keeps there."""


class AdminCalls:
    """The calls, by the names of their methods.

    Each raises BadNameError, BadRequestError, NotAllowedError, TopicNotFoundError, StoreError, and
    DamagedError, OSError where the disk cannot be read.
    """

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._groups = TopicSubscriptions(topics)
        self._events = MessageEvents(topics.now_ms)

    async def history(self) -> str:
        """Return the name of the folder's line of appends, which no other broker's folder has."""
        return str(self._topics.store.history)

    async def truncate(self, topic: str) -> None:
        """Delete all messages of a topic or partition, and leave its subscriptions at the end."""
        for partition in self._topics.pieces(self._topics.parse(topic)):
            for subscription in list(partition.subscriptions.values()):
                acknowledge_before(self._topics.store, subscription, partition.ledger.durable_entry)
            ledger = partition.ledger
            await self._topics.store.delete_before(ledger, ledger.durable_number)

    async def message_at(self, topic: str, timestamp_ms: int) -> Sequence[int]:
        """Return ledger, entry and partition of the first entry stored at a time or later.

        Those of the last entry if there is none, with the entry -1 if there is no entry at all.
        """
        partition = only_partition(self._topics, topic)
        ledger = partition.ledger
        found = await ledger.find_time(timestamp_ms)
        return ledger.id, min(found, partition.visible.end_entry - 1), partition.index

    async def publish_source(self, topic: str, partition: int, entry: int, index: int) -> Any:
        """Return who published a message: the fields of PublishSource, None: that is not known.

        Raises BadRequestError for no partition of it.
        """
        ledger = self._piece(topic, partition).ledger
        found = source_at(self._topics.store.publish_source(ledger.id, entry), max(0, index))
        return None if found is None else asdict(found)

    async def add_message_events(
        self,
        topic: str,
        partition: int,
        ledger: int,
        ranges: Sequence[Sequence[int]],
        action: str,
        other: str,
        user: str,
        operation: str = "",
    ) -> None:
        """Note what was done with messages: `ranges` of entry and index, and entry and index.

        What is noted with the same `operation` is found once; "": each time. Nothing is noted of a
        ledger that the partition has no more. Raises BadRequestError for no partition of it.
        """
        if self._piece(topic, partition).ledger.id == ledger:
            for entry, index, last, last_index in ranges:
                places = ((entry, index), (last, last_index))
                self._events.add(ledger, places, action, other, user, operation)

    async def message_events(
        self, topic: str, partition: int, ledger: int, entry: int, index: int
    ) -> Any:
        """Return the `events` of a message: `action`, `topic`, `user` and `at` of each.

        And `since`, the time in ms from which on all events are known. Raises BadRequestError for
        no partition of it.
        """
        self._piece(topic, partition)
        found = self._events.find(ledger, (entry, index))
        rows = [
            {"action": one.action, "topic": one.topic, "user": one.user, "at": one.at}
            for one in found
        ]
        return {"events": rows, "since": self._events.since}

    async def entry_at(self, topic: str, partition: int, number: int) -> Sequence[int]:
        """Return the ledger, and the entry that has the message number `number` of a partition.

        With its index in a batch, -1 if the entry is none. A number that is not there stands for
        the nearest that is, or that comes next. Raises BadRequestError for no partition of it.
        """
        found = self._piece(topic, partition)
        ledger, end = found.ledger, found.visible.end_entry
        entry = min(max(await ledger.entry_of_number(max(0, number)), ledger.first_entry), end)
        if entry == end:
            return ledger.id, entry, -1
        first, last = await ledger.number_before(entry), await ledger.number_before(entry + 1)
        return ledger.id, entry, number - first if 1 < last - first > number - first >= 0 else -1

    def _piece(self, topic: str, partition: int) -> Partition:
        pieces = self._topics.pieces(self._topics.parse(topic))
        found = next((one for one in pieces if one.index == partition), None)
        if found is None:
            raise BadRequestError(f"there is no partition {partition} of {topic}")
        return found

    async def bytes_from(self, topic: str, ledger: int, entry: int) -> int:
        """Return about how many bytes a partition has from an entry on."""
        held = only_partition(self._topics, topic).ledger
        if ledger == held.id:
            return size_from(held, entry)
        return held.size_bytes if ledger < held.id else 0

    async def change_properties(
        self, topic: str, new: Mapping[str, str], clear: Sequence[str]
    ) -> None:
        """Set some properties of a topic and clear others."""
        _check_texts(*new, *new.values(), *clear)
        await changes.change_properties(self._topics, self._topics.parse(topic), new, clear)

    async def change_subscription(
        self, topic: str, subscription: str, properties: Mapping[str, str]
    ) -> None:
        """Give a subscription other properties; raise SubscriptionNotFoundError besides."""
        _check_texts(*properties, *properties.values())
        check_properties(properties)
        for found in self._groups.find(self._topics.parse(topic), subscription):
            if (record := found.record) is None:
                raise NotAllowedError(f"{quoted(subscription)} is not durable")
            kept = {k: v for k, v in record.properties.items() if k in OWN_PROPERTIES}
            await self._topics.store.change_subscription(record, {**properties, **kept})

    async def analyze_backlog(self, topic: str, subscription: str) -> Mapping[str, Any]:
        """Return what a subscription of a partition has left: `entries`, `messages`, and its ends.

        `first` and `last` are ledger and entry, None if nothing is left. Raises
        SubscriptionNotFoundError besides.
        """
        only_partition(self._topics, topic)
        (found,) = self._groups.find(self._topics.parse(topic), subscription)
        cursor, ledger = found.cursor, found.ledger
        first = cursor.next_unacked(max(cursor.mark_delete + 1, ledger.first_entry))
        end = found.visible.end_entry
        whole = sum(max(0, min(b + 1, end) - max(a, first)) for a, b in cursor.ranges())
        return {
            "entries": max(0, end - first - whole),
            "messages": await BacklogCounter().backlog(found.visible, cursor),
            "first": [ledger.id, first] if first < end else None,
            "last": [ledger.id, end - 1] if first < end else None,
        }

    async def clear_backlog(self, namespace: str, subscription: str | None) -> None:
        """Acknowledge what the subscriptions of a namespace's topics have left, or what one has.

        Raises NamespaceNotFoundError, SubscriptionNotFoundError besides.
        """
        name = "/".join(check_namespace(namespace))
        self._topics.namespaces.namespace(name)
        found = [
            one
            for topic in self._topics.in_namespace(name)
            if topic.domain == PERSISTENT
            for partition in self._topics.pieces(topic)
            for one in list(partition.subscriptions.values())
            if subscription in {None, one.name}
            and one.record is not None
            and OWNER not in one.record.properties
        ]
        if subscription is not None and not found:
            raise SubscriptionNotFoundError(f"{name} has no subscription {quoted(subscription)}")
        for one in found:
            acknowledge_before(self._topics.store, one, one.visible.end_entry)
        await self._topics.store.synced()

    async def check_quotas(self) -> None:
        """Remove what retention and quotas allow to go now."""
        await self._topics.store.retain(self._topics.now_ms())

    async def policies(self, topic: str) -> Mapping[str, Mapping[str, Any]]:
        """Return a topic's `own` policies, and those `applied` with what its namespace has."""
        record = self._topics.known(self._topics.parse(topic))
        kinds = {"own": record.policies, "applied": self._topics.policies(record)}
        return {
            kind: {name: value for name, value in asdict(found).items() if name in INHERITED}
            for kind, found in kinds.items()
        }


@lru_cache(maxsize=256)
def _signature(function: Callable[..., object]) -> tuple[inspect.Signature, dict[str, Any]]:
    """Return what a call takes, and the types of that; there are as many as calls."""
    return inspect.signature(function), get_type_hints(function)


async def make_call(calls: object, name: str, arguments: bytes) -> bytes:
    """Return the result of a call as JSON; raise what the call raises.

    Raises BadRequestError for a call that there is not, and for arguments that it does not take.
    """
    call = None if name.startswith("_") else getattr(type(calls), name, None)
    if call is None:
        raise BadRequestError(f"this broker does not know the call {quoted(name)}")
    try:
        given = orjson.loads(arguments)
        signature, hints = _signature(call)
        signature.bind(calls, **given)
    except (orjson.JSONDecodeError, TypeError) as error:
        raise BadRequestError(f"{name}: {error}") from error
    for key, value in given.items():
        kind = hints[key] if isinstance(hints[key], UnionType) else get_origin(hints[key])
        if not isinstance(value, kind or hints[key]):
            raise BadRequestError(f"{name}: {key} has another type")
    return orjson.dumps(await call(calls, **given))


def _check_texts(*values: object) -> None:
    if not all(isinstance(value, str) for value in values):
        raise BadRequestError("properties have texts as names and values")
