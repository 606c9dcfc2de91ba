"""Owns ledgers that nothing uses: as bytes, with their subscriptions, until something does.

A node may have tens of thousands of topics of which most are not touched for days. In use a ledger
takes some kilobytes, as bytes a few hundred, and the collector of garbage does not look at them. A
few numbers stand in front, so that the tasks that pass over all ledgers need not read the rest. The
alternative, to read the rows from the metadata when they are needed, would have the event loop wait
for the disk.
"""

from __future__ import annotations

import marshal
import struct
from typing import Final, NamedTuple

from router.broker.storage.cursors import Cursor
from router.broker.storage.loading import NO_PROPERTIES, StoredLedger, check_deleted

FOREVER: Final = (1 << 63) - 1
_HEAD: Final = struct.Struct("<qqqqqB")
_LAGS, _DELETED, _COMPACTED = 1, 2, 4


class LedgerSummary(NamedTuple):
    """Figures of an idle ledger, its topic, segments and subscriptions, without reading all of it.

    `size`: bytes of its segments. `oldest_ms`: the latest timestamp of the oldest segment, FOREVER
    if there is none; `used_ms`: when the subscription was used that was not for longest, FOREVER if
    there is none. `lags`: a subscription has not acknowledged everything. `deletes`: messages were
    deleted one by one. `compacted`: compaction was requested of it.
    """

    topic_id: int
    size: int
    segments: int
    oldest_ms: int
    used_ms: int
    lags: bool
    deletes: bool
    compacted: bool


def pack(stored: StoredLedger) -> tuple[bytes, bool]:
    """Return a ledger as bytes that `summary` and `unpack` understand, in this process only.

    Also whether it is ahead: it names entries or messages that are not stored, and must be set
    right before new ones get their numbers. Raises ValueError if it cannot be understood.
    """
    segments, deleted, next_entry = stored.segments, stored.deleted, stored.next_entry
    lags, ahead = False, stored.removed_entry > next_entry
    ahead = ahead or stored.removed_number > stored.next_index
    used_ms = FOREVER
    for _id, _name, properties, _made, used, cursor, _passive, commit in stored.subscriptions:
        if properties != NO_PROPERTIES or commit is not None:
            stored.records()
        mark_delete = Cursor.mark_delete_of(cursor)
        lags = lags or mark_delete is None or mark_delete + 1 < next_entry
        if mark_delete is None:
            ahead = Cursor.load(cursor).clip(next_entry) or ahead
        else:
            ahead = ahead or mark_delete >= next_entry
        used_ms = min(used_ms, used)
    if deleted:
        check_deleted(deleted)
        ahead = ahead or deleted[-1][1] >= stored.next_index
    head = _HEAD.pack(
        stored.topic_id,
        sum([segment[4] for segment in segments]),
        len(segments),
        segments[0][6] if segments else FOREVER,
        used_ms,
        lags * _LAGS | bool(deleted) * _DELETED | bool(stored.compacted_number) * _COMPACTED,
    )
    return head + marshal.dumps(tuple(stored)), ahead


def summary(data: bytes) -> LedgerSummary:
    """Return what stands in front."""
    topic_id, size, segments, oldest_ms, used_ms, flags = _HEAD.unpack_from(data)
    found = (bool(flags & flag) for flag in (_LAGS, _DELETED, _COMPACTED))
    return LedgerSummary(topic_id, size, segments, oldest_ms, used_ms, *found)


def unpack(data: bytes) -> StoredLedger:
    """Return the ledger."""
    return StoredLedger(*marshal.loads(memoryview(data)[_HEAD.size :]))  # noqa: S302 - our own
