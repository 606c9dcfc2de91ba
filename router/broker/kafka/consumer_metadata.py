"""What consumers write into the metadata and assignments of their groups, as far as it is read.

Both begin with a version, and later versions add fields behind those of earlier ones. What cannot
be read is none of a consumer's, and names nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from struct import Struct
from typing import Any, Final

from router.broker.kafka.group_values import JoinRequest, KafkaMember
from router.kafka.definitions import definition_text
from router.wire.kafka.engine import compile_message
from router.wire.kafka.errors import KafkaMessageError

MAX_METADATA_BYTES: Final = 1 << 20
"""Of one member for one protocol."""
MAX_CACHED_BYTES: Final = 16 << 10
MAX_CACHED: Final = 1_000
"""Metadata whose topics are remembered: members of a group mostly have the same."""
_VERSION: Final = Struct(">h")
_OWNED_FROM: Final = 1
"""The first version with the partitions that a consumer has."""


def subscribed_topics(metadata: bytes) -> Sequence[str]:
    """Return the topics that a consumer subscribes to."""
    return _cached_topics(metadata) if len(metadata) <= MAX_CACHED_BYTES else _topics(metadata)


def topics_of(member: JoinRequest | KafkaMember[Any], kind: str | None = None) -> Sequence[str]:
    """Return the topics that a consumer's metadata names, in all of its protocols."""
    protocol_type = member.protocol_type if isinstance(member, JoinRequest) else kind
    if protocol_type != "consumer":
        return ()
    found: dict[str, None] = {}
    for _, metadata in member.protocols:
        found.update(dict.fromkeys(subscribed_topics(metadata)))
    return tuple(found)


def assigned_partitions(assignment: bytes) -> Mapping[str, Sequence[int]]:
    """Return the partitions that a consumer was assigned, by topic."""
    found = _read("ConsumerProtocolAssignment", assignment)
    if found is None:
        return {}
    return {one.topic: tuple(one.partitions) for one in found.assigned_partitions}


def owned_partitions(metadata: bytes) -> Mapping[str, Sequence[int]]:
    """Return the partitions that a consumer says it has, by topic."""
    version = _VERSION.unpack_from(metadata)[0] if len(metadata) >= _VERSION.size else 0
    if version < _OWNED_FROM:
        return {}
    found = _read("ConsumerProtocolSubscription", metadata, _OWNED_FROM)
    return {} if found is None else {o.topic: tuple(o.partitions) for o in found.owned_partitions}


def write_assignment(partitions: Mapping[str, Sequence[int]]) -> bytes:
    """Return what a consumer reads as its assignment, by topic."""
    kind = _message("ConsumerProtocolAssignment")
    struct = kind.STRUCTS["TopicPartition"]
    found = [struct(topic=topic, partitions=numbers) for topic, numbers in partitions.items()]
    return _VERSION.pack(0) + bytes(kind(assigned_partitions=found).write(0))


def _topics(metadata: bytes) -> Sequence[str]:
    found = _read("ConsumerProtocolSubscription", metadata)
    return () if found is None else tuple(found.topics)


_cached_topics = lru_cache(maxsize=MAX_CACHED)(_topics)


def _read(name: str, data: bytes, version: int = 0) -> Any:
    if len(data) < _VERSION.size:
        return None
    try:
        return _message(name).read(data, version, _VERSION.size)
    except KafkaMessageError:
        return None


@cache
def _message(name: str) -> Any:
    file = f"{name}.json"
    return compile_message(definition_text(file), file)
