"""Which names and numbers of partitions topics may have, and how their partitions are called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from router.broker.storage import TopicRecord
from router.errors import BadNameError, BadRequestError
from router.model import TopicName, check_name, partition_name

MAX_PARTITIONS: Final = 1_000
MAX_PROPERTIES: Final = 100
MAX_PROPERTY: Final = 4_096


def partition_names(record: TopicRecord) -> list[str]:
    """Return the names of a topic's partitions, or its own if it has none."""
    if not record.partitions:
        return [record.name]
    return [partition_name(record.name, index) for index in range(record.partitions)]


def check_new(name: TopicName, partitions: int, properties: Mapping[str, str]) -> None:
    """Raise BadNameError, BadRequestError unless there may be such a topic."""
    if name.parent() is not None:
        raise BadNameError(f"{name.local}: names that end in -partition-<n> are partitions")
    if not 0 <= partitions <= MAX_PARTITIONS:
        raise BadRequestError(f"a topic has 0 to {MAX_PARTITIONS} partitions")
    if partitions:
        check_name(name.partition(partitions - 1).local, "partition")
    check_properties(properties)


def check_properties(properties: Mapping[str, str]) -> None:
    """Raise BadRequestError unless a topic or subscription may have these properties."""
    if len(properties) > MAX_PROPERTIES or any(
        len(key) + len(value) > MAX_PROPERTY for key, value in properties.items()
    ):
        raise BadRequestError("too many or too large properties")
