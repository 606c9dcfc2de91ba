"""What a topic keeps, for how long, and what of it is compacted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_LATEST: Final = 1_000
"""Newest values of a compacted topic in one answer."""
CLEANUP_POLICIES: Final = ("delete", "compact", "compact,delete", "delete,compact")
"""What a topic may do with old messages: delete them by time and size, or keep the newest of each
key, or both.
"""
LONG_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Policies:
    """What a topic keeps, in milliseconds and bytes; None: as settings say, -1: no bound.

    `replicas` are copies on as many servers, where the store has several; None: as it decides.
    After `ttl_seconds` messages count as acknowledged. `max_producers`, `max_consumers` and
    `max_consumers_per_subscription` bound clients of the Pulsar protocol for each partition.
    None or 0: no such limit.

    `cleanup_policy` is one of CLEANUP_POLICIES, None: `delete`. Of a compacted topic, with None as
    Apache Kafka has them by default: a tombstone is kept for `delete_retention_ms` after it was
    cleaned (a day), a message may be cleaned away from `min_compaction_lag_ms` (0) after it was
    stored, and is cleaned at the latest after `max_compaction_lag_ms` (LONG_MAX), and otherwise
    when `min_cleanable_dirty_ratio` (0.5) of the bytes are not cleaned yet.

    For readers that ask for a compacted topic, as Pulsar's do, one of any policy is compacted again
    when more than `compaction_threshold` bytes were stored since; None or 0: only on request.
    """

    retention_ms: int | None = None
    retention_bytes: int | None = None
    backlog_bytes: int | None = None
    deduplication: bool | None = None
    replicas: int | None = None
    ttl_seconds: int | None = None
    max_producers: int | None = None
    max_consumers: int | None = None
    max_consumers_per_subscription: int | None = None
    cleanup_policy: str | None = None
    delete_retention_ms: int | None = None
    min_compaction_lag_ms: int | None = None
    max_compaction_lag_ms: int | None = None
    min_cleanable_dirty_ratio: float | None = None
    compaction_threshold: int | None = None

    @property
    def compacts(self) -> bool:
        """Return whether messages go whose key has a newer one."""
        return "compact" in (self.cleanup_policy or "")

    @property
    def deletes(self) -> bool:
        """Return whether messages go by time and size."""
        return "delete" in (self.cleanup_policy or "delete")
