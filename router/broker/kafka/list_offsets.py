"""ListOffsets (2): the first and the last offset, and offsets by time.

A time stands for the first record, in the order of offsets, whose timestamp is not before it. The
timestamps are those that Kafka clients read: of records the ones that their senders gave them, of
messages of other protocols the event time, or else the time of storing. The log has an index of
them (`Ledger.find_latest_time`), so the batch that it finds is the only one that is opened, unless
what is looked for is left out or cannot be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from router.access.permissions import Right
from router.broker.consume.entry_info import UnreadableEntryError
from router.broker.consume.visible import Visible
from router.broker.entries.kafka import TAG, timestamps
from router.broker.kafka.client import KafkaApi, KafkaRequest
from router.broker.kafka.context import LEADER_EPOCH, KafkaContext
from router.broker.kafka.failures import REFUSALS, ErrorCode, KafkaError, error_code
from router.broker.storage import DamagedError, Entry

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
VERSIONS: Final = {
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""The first version that has each of these constants. The last three are of remote storage: the log
is local to its beginning, and nothing of it is, or will be, stored elsewhere.
"""
REMOTE_OFFSETS: Final = frozenset({LATEST_TIERED, EARLIEST_PENDING_UPLOAD})
READ_COMMITTED: Final = 1
NONE: Final = -1, -1
"""Timestamp and offset where there is no message."""
_LAST_TIME: Final = (1 << 63) - 1


async def list_offsets(request: KafkaRequest) -> Any:
    """Answer an offset for each partition."""
    topics = []
    for topic in request.body.topics:
        partitions = [
            await _partition(request, topic.name, requested) for requested in topic.partitions
        ]
        topics.append(
            request.struct("ListOffsetsTopicResponse", name=topic.name, partitions=partitions)
        )
    return request.response(topics=topics)


async def _partition(request: KafkaRequest, topic: str, requested: Any) -> Any:
    index = requested.partition_index
    code, timestamp, offset = ErrorCode.NONE, *NONE
    try:
        epoch = requested.current_leader_epoch
        partition = request.client.partition(topic, index, Right.VIEW, epoch)
        committed = request.body.isolation_level == READ_COMMITTED
        visible = partition.visible if committed else partition.uncommitted
        time = requested.timestamp
        if time < EARLIEST and request.version < VERSIONS.get(time, request.version + 1):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        timestamp, offset = await _offset(request.context, visible, time)
    except REFUSALS as failure:
        code = error_code(failure)
    request.count_error(code)
    found = request.struct(
        "ListOffsetsPartitionResponse",
        partition_index=index,
        error_code=code,
        timestamp=timestamp,
        offset=offset,
    )
    if request.version >= 4 and not code and requested.timestamp not in REMOTE_OFFSETS:
        found.leader_epoch = LEADER_EPOCH
    return found


async def _offset(context: KafkaContext, visible: Visible, timestamp_ms: int) -> tuple[int, int]:
    """Return the timestamp and offset that stand for a time, or for one of the constants."""
    if timestamp_ms == LATEST:
        return NONE[0], visible.end_number
    if timestamp_ms in {EARLIEST, EARLIEST_LOCAL}:
        return NONE[0], min(visible.first_number, visible.end_number)
    if timestamp_ms == MAX_TIMESTAMP:
        return await _latest(context, visible)
    if timestamp_ms in REMOTE_OFFSETS:
        return NONE
    return await _by_time(context, visible, timestamp_ms)


async def _latest(context: KafkaContext, visible: Visible) -> tuple[int, int]:
    """Return the first record with the largest timestamp.

    If that record is left out, it is the newest one of those that are not.
    """
    ledger = visible.ledger
    found = await _by_time(context, visible, await ledger.latest_time())
    number = visible.last_to(visible.end_number - 1)
    if found != NONE or number < ledger.first_number:
        return found
    entries = await ledger.read(await ledger.entry_of_number(number), 1, 1)
    if not entries or entries[0].index < number:
        return NONE
    times = await _times(context, visible, entries[0])
    return (times[-1][1], number) if times else NONE


async def _by_time(context: KafkaContext, visible: Visible, timestamp_ms: int) -> tuple[int, int]:
    ledger, entry = visible.ledger, 0
    while (entry := await ledger.find_latest_time(timestamp_ms, entry)) < visible.end_entry:
        try:
            entries = await ledger.read(entry, 1, 1)
        except DamagedError as damage:
            entry = damage.last + 1
            continue
        if not entries:
            break
        for offset, time in await _times(context, visible, entries[0]):
            if time >= timestamp_ms:
                return min(time, _LAST_TIME), offset
        entry = entries[0].entry_id + 1
        following = visible.first_from(entries[0].index + 1)
        if following > entries[0].index + 1:
            entry = max(entry, await ledger.entry_of_number(following))
    return NONE


async def _times(
    context: KafkaContext, visible: Visible, entry: Entry
) -> Sequence[tuple[int, int]]:
    """Return the offsets of the records of an entry that are visible, with their timestamps.

    There are none of an entry that cannot be read.
    """
    live = visible.messages(entry)
    if live == 0:
        return ()
    try:
        payload = entry.payload
        if entry.format != TAG:
            payload = await context.transcoder.transcoded(visible.ledger.id, [entry], TAG)
        times = await context.workers.run(timestamps, payload)
    except UnreadableEntryError:
        return ()
    first = entry.index + 1 - entry.messages
    return [
        (first + place, time)
        for place, time in enumerate(times)
        if live is None or live >> place & 1
    ]


LIST_OFFSETS: Final = KafkaApi(2, "ListOffsets", (1, 11), list_offsets)
