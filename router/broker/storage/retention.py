"""Owns the rule of what may go: segments, whole ones, and why; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from router.broker.storage.deleted_ranges import DeletedRanges
from router.broker.storage.options import DAY_MS, StoreOptions
from router.broker.storage.segments import Segment
from router.model.policies import Policies

ROLLS_PER_RETENTION: Final = 7
"""A segment spans at most this part of the retention time, so that no entry stays much longer."""
MIN_ROLL_MS: Final = 10_000
"""Milliseconds that a segment may span in any case: each is a file, and sweeps come by minutes."""


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """What one topic keeps; milliseconds and bytes, -1: no bound.

    `max_compaction_lag_ms` is when a message of a compacted topic is cleaned at the latest.
    """

    retention_ms: int
    retention_bytes: int
    backlog_bytes: int
    max_compaction_lag_ms: int = -1


def limits_of(policies: Policies, options: StoreOptions) -> RetentionLimits:
    """Return what a topic keeps: its own policies, else what the settings say.

    A topic that is only compacted keeps the newest message of each key, whatever its age.
    """

    def choose(own: int | None, setting: int) -> int:
        return setting if own is None else own

    deletes = policies.deletes
    return RetentionLimits(
        choose(policies.retention_ms, options.retention_ms) if deletes else -1,
        choose(policies.retention_bytes, options.retention_bytes) if deletes else -1,
        choose(policies.backlog_bytes, options.backlog_bytes),
        choose(policies.max_compaction_lag_ms, -1) if policies.compacts else -1,
    )


def roll_age_ms(keep: RetentionLimits) -> int:
    """Return the age at which a segment is ended, in milliseconds.

    The segment that is written is not cleaned, so it is none any more when its messages are due.
    """
    age = DAY_MS
    if keep.retention_ms >= 0:
        age = min(age, keep.retention_ms // ROLLS_PER_RETENTION)
    if keep.max_compaction_lag_ms >= 0:
        age = min(age, keep.max_compaction_lag_ms)
    return max(MIN_ROLL_MS, age)


def expendable(
    segments: Sequence[Segment], keep: RetentionLimits, acked: int | None, now_ms: int
) -> int:
    """Return how many of the oldest segments may go.

    One may go when it is older than the retention time, or more bytes are kept than retention
    allows; and every subscription has acknowledged it (`acked`: the lowest mark-delete position,
    None: there is no subscription) or the slowest one's backlog is over its quota.
    """
    total = sum(segment.size for segment in segments)
    for count, segment in enumerate(segments):
        old = 0 <= keep.retention_ms <= now_ms - segment.max_ms
        if not old and not 0 <= keep.retention_bytes < total:
            return count
        done = acked is None or segment.next_entry - 1 <= acked
        # From the first unacknowledged segment on, all that is left is backlog.
        if not done and not 0 <= keep.backlog_bytes < total:
            return count
        total -= segment.size
    return len(segments)


def removable(
    segments: Sequence[Segment],
    keep: RetentionLimits,
    acked: int | None,
    now_ms: int,
    deleted: DeletedRanges,
) -> Sequence[Segment]:
    """Return the segments that may go: the expendable ones, and those without messages.

    A segment whose messages are all deleted may go wherever it stands, whether it is acknowledged
    or not, and is no backlog. The last one, which may be written on, goes only with all others.
    """
    left = _with_messages(segments, deleted)
    kept = {segment.first_entry for segment in left[expendable(left, keep, acked, now_ms) :]}
    return _all_but(segments, kept)


def without_messages(segments: Sequence[Segment], deleted: DeletedRanges) -> Sequence[Segment]:
    """Return the segments that may go because their messages are all deleted."""
    return _all_but(segments, {s.first_entry for s in _with_messages(segments, deleted)})


def expired_number(
    segments: Sequence[Segment],
    keep: RetentionLimits,
    acked: int | None,
    now_ms: int,
    deleted: DeletedRanges,
) -> int:
    """Return the number of the first message that is not in an expendable segment."""
    left = _with_messages(segments, deleted)
    count = expendable(left, keep, acked, now_ms)
    return left[count - 1].next_index if count else 0


def removed_bounds(segments: Sequence[Segment], deleted: DeletedRanges) -> tuple[int, int]:
    """Return the entry and number behind the last of these segments with messages; 0: none has."""
    found = ((s.next_entry, s.next_index) for s in _with_messages(segments, deleted))
    return max(found, default=(0, 0))


def _with_messages(segments: Sequence[Segment], deleted: DeletedRanges) -> Sequence[Segment]:
    if not deleted:
        return segments
    return [s for s in segments if not deleted.covers(s.first_index, s.next_index - 1)]


def _all_but(segments: Sequence[Segment], kept: set[int]) -> Sequence[Segment]:
    if kept and segments:
        kept.add(segments[-1].first_entry)
    return [segment for segment in segments if segment.first_entry not in kept]
