"""The enumerations of stream and consumer configurations, with the words of their JSON."""

from __future__ import annotations

from enum import StrEnum


class Retention(StrEnum):
    """When a stream may delete a message apart from its limits."""

    LIMITS = "limits"
    INTEREST = "interest"
    WORK_QUEUE = "workqueue"


class Discard(StrEnum):
    """What a full stream does: delete its oldest messages, or refuse new ones."""

    OLD = "old"
    NEW = "new"


class StorageType(StrEnum):
    """Where a stream is kept; the router keeps both on disk."""

    FILE = "file"
    MEMORY = "memory"


class Compression(StrEnum):
    """How a stream's files are compressed."""

    NONE = "none"
    S2 = "s2"


class PersistMode(StrEnum):
    """When a publish is acknowledged; the router always acknowledges after fsync."""

    DEFAULT = "default"
    ASYNC = "async"


class DeliverPolicy(StrEnum):
    """Where a consumer starts."""

    ALL = "all"
    LAST = "last"
    NEW = "new"
    BY_START_SEQUENCE = "by_start_sequence"
    BY_START_TIME = "by_start_time"
    LAST_PER_SUBJECT = "last_per_subject"


class AckPolicy(StrEnum):
    """Which acknowledgements a consumer expects."""

    NONE = "none"
    ALL = "all"
    EXPLICIT = "explicit"
    FLOW_CONTROL = "flow_control"


class ReplayPolicy(StrEnum):
    """How fast a consumer gets stored messages: at once, or at the pace of their times."""

    INSTANT = "instant"
    ORIGINAL = "original"


class PriorityPolicy(StrEnum):
    """How the clients of a pull consumer share it."""

    NONE = "none"
    OVERFLOW = "overflow"
    PINNED_CLIENT = "pinned_client"
    PRIORITIZED = "prioritized"
