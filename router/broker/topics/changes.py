"""Changes of a topic in use: more partitions, other policies, its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from router.broker.storage import TopicRecord
from router.broker.topics.names import check_new, check_properties
from router.broker.topics.namespaces import check_policies
from router.broker.topics.steps import side_by_side
from router.broker.topics.topics import Topics
from router.errors import BadRequestError, NotAllowedError, TopicTerminatedError
from router.errors.quoting import quoted
from router.model import NO_PROPERTIES, Position, TopicName
from router.model.policies import Policies


async def grow(topics: Topics, name: TopicName, partitions: int) -> None:
    """Give a partitioned topic more partitions, with the subscriptions that it has.

    These begin at the beginning of each. Raises TopicNotFoundError, NotAllowedError,
    TopicTerminatedError, BadRequestError.
    """

    async def change(record: TopicRecord) -> TopicRecord:
        if not record.partitions:
            raise NotAllowedError(f"{name} is not partitioned: it cannot get more partitions")
        if partitions < record.partitions:
            raise NotAllowedError(f"{name} has {record.partitions} partitions and keeps them")
        if any(topics.store.ledger(ledger_id).terminated for ledger_id in record.ledger_ids):
            raise TopicTerminatedError
        check_new(name, partitions, NO_PROPERTIES)
        if partitions == record.partitions:
            return record
        return await topics.store.grow_topic(record, partitions)

    before = await topics.change(name, change)
    await _subscribe(topics, name, before.partitions)


async def change_policies(
    topics: Topics, name: TopicName, new: Mapping[str, Any], clear: Iterable[str]
) -> None:
    """Set some policies of a topic and clear others.

    Raises TopicNotFoundError, BadRequestError.
    """
    await change_settings(topics, name, dict.fromkeys(clear) | dict(new), {})


async def change_properties(
    topics: Topics, name: TopicName, new: Mapping[str, str], clear: Iterable[str]
) -> None:
    """Set some properties of a topic and clear others.

    Raises TopicNotFoundError, BadRequestError.
    """
    await change_settings(topics, name, {}, dict.fromkeys(clear) | dict(new))


async def change_settings(
    topics: Topics,
    name: TopicName,
    policies: Mapping[str, Any],
    properties: Mapping[str, str | None],
) -> None:
    """Set policies and properties of a topic at once; those that are None are cleared.

    Raises TopicNotFoundError, BadRequestError.
    """
    if unknown := policies.keys() - asdict(Policies()).keys():
        raise BadRequestError(f"a topic has no policy {quoted(min(unknown))}")

    async def change(record: TopicRecord) -> TopicRecord:
        changed = replace(record.policies, **policies)
        check_policies(asdict(changed))
        merged = {**record.properties, **properties}
        kept = {key: value for key, value in merged.items() if value is not None}
        check_properties(kept)
        return await topics.store.change_topic(replace(record, policies=changed, properties=kept))

    await topics.change(name, change)


async def terminate(topics: Topics, name: TopicName) -> list[Position]:
    """Have a topic, or the partition that is named, take no more entries; return the last ones.

    The topic neither grows nor goes meanwhile. Raises TopicNotFoundError.
    """
    last: list[Position] = []

    async def change(record: TopicRecord) -> TopicRecord:
        last.extend(await side_by_side(partition.terminate() for partition in topics.pieces(name)))
        return record

    part = name.parent()
    await topics.change(name if part is None else part[0], change)
    return last


async def _subscribe(topics: Topics, name: TopicName, before: int) -> None:
    """Give new partitions the subscriptions that others were given while they were made."""
    partitions = topics.partitions(topics.known(name))
    missing = {n: s for p in partitions[:before] for n, s in p.subscriptions.items()}
    for subscription in missing.values():
        if subscription.record is not None:
            named = subscription.name, 0, subscription.record.properties
            await side_by_side(partition.subscribe(*named) for partition in partitions[before:])
