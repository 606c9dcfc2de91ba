"""ListOffsets (2): the first and the last offset, and offsets by time.

A time is looked up in the log's own index, which has the times at which entries were stored. From
the entry found on, batches are compared with the times that their senders gave them, within
MAX_SCANNED_BYTES. So a record is found by its sender's time unless that is in the future.
"""

from __future__ import annotations

from typing import Any, Final

from router.access.permissions import Right
from router.broker.entries.kafka import MAX_RECORDS_BYTES, TAG
from router.broker.kafka.client import Api, Request
from router.broker.kafka.context import LEADER_EPOCH, KafkaContext
from router.broker.kafka.failures import ErrorCode, error_code
from router.broker.storage import Entry, Ledger, StoreError
from router.errors import RouterError
from router.model import TopicName
from router.wire.kafka.errors import RecordsError
from router.wire.kafka.record_batches import open_batch, read_header
from router.wire.kafka.records import read_records

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
NONE: Final = -1, -1
"""Timestamp and offset where there is no message."""
MAX_SCANNED_BYTES: Final = 64 << 20
_READ_BYTES: Final = 1 << 20
_READ_ENTRIES: Final = 1_000
_LAST_TIME: Final = (1 << 63) - 1


async def list_offsets(request: Request) -> Any:
    """Answer an offset for each partition."""
    topics = []
    for topic in request.body.topics:
        partitions = [await _partition(request, topic.name, asked) for asked in topic.partitions]
        topics.append(
            request.struct("ListOffsetsTopicResponse", name=topic.name, partitions=partitions)
        )
    return request.response(topics=topics)


async def _partition(request: Request, topic: str, asked: Any) -> Any:
    index = asked.partition_index
    code, timestamp, offset = ErrorCode.NONE, *NONE
    try:
        ledger = _ledger(request, topic, asked)
        if isinstance(ledger, ErrorCode):
            code = ledger
        else:
            timestamp, offset = await _offset(request.context, ledger, asked.timestamp)
    except (RouterError, StoreError, OSError) as failure:
        code = error_code(failure)
    request.count_error(code)
    found = request.struct(
        "ListOffsetsPartitionResponse",
        partition_index=index,
        error_code=code,
        timestamp=timestamp,
        offset=offset,
    )
    if request.version >= 4 and not code:
        found.leader_epoch = LEADER_EPOCH
    return found


def _ledger(request: Request, topic: str, asked: Any) -> Ledger | ErrorCode:
    record = request.context.topics.find_kafka(topic)
    if record is None:
        return request.client.missing(topic)
    if not request.client.may(TopicName.parse(record.name), Right.VIEW):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if asked.current_leader_epoch > LEADER_EPOCH:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    return request.context.partition(record, asked.partition_index).ledger


async def _offset(context: KafkaContext, ledger: Ledger, wanted: int) -> tuple[int, int]:
    """Return the timestamp and offset that stand for a time, or for one of the constants."""
    if wanted == LATEST:
        return NONE[0], ledger.durable_number
    if wanted == EARLIEST:
        return NONE[0], min(ledger.first_live_number, ledger.durable_number)
    if wanted == MAX_TIMESTAMP:
        return await _newest(ledger)
    if wanted < 0:
        return NONE
    return await _by_time(context, ledger, wanted)


async def _newest(ledger: Ledger) -> tuple[int, int]:
    number = ledger.deleted.last_live(ledger.durable_number - 1)
    if number < ledger.first_number:
        return NONE
    entries = await ledger.read(await ledger.entry_of_number(number), 1, 1)
    if not entries:
        return NONE
    return _latest_time(entries[0]), min(entries[0].index, number)


async def _by_time(context: KafkaContext, ledger: Ledger, wanted: int) -> tuple[int, int]:
    entry, scanned = await ledger.find_time(wanted), 0
    while entry < ledger.durable_entry:
        entries = await ledger.read(entry, _READ_ENTRIES, _READ_BYTES)
        if not entries:
            break
        for one in entries:
            scanned += len(one.payload)
            first = one.index + 1 - one.messages
            live = ledger.deleted.first_live(first)
            if live > one.index:
                entry = await ledger.entry_of_number(live)
                break
            if _latest_time(one) >= wanted or scanned > MAX_SCANNED_BYTES:
                if one.format != TAG:
                    return one.timestamp_ms, live
                time, place = await context.workers.run(_first_record, one.payload, wanted)
                return time, ledger.deleted.first_live(first + place)
        else:
            entry = entries[-1].entry_id + 1
    return NONE


def _latest_time(entry: Entry) -> int:
    """Return the time of an entry's latest record, or that at which it was stored."""
    if entry.format != TAG:
        return entry.timestamp_ms
    try:
        return read_header(entry.payload).max_timestamp
    except RecordsError:
        return entry.timestamp_ms


def _first_record(payload: bytes, wanted: int) -> tuple[int, int]:
    """Return the time and place of the first record of a batch with a time or a later one."""
    try:
        header = read_header(payload)
        if header.has_append_time:
            return header.max_timestamp, 0
        opened = open_batch(header, payload, MAX_RECORDS_BYTES)
        for place, record in enumerate(read_records(opened, header.records)):
            if (time := header.base_timestamp + record.timestamp) >= wanted:
                return min(time, _LAST_TIME), place
    except RecordsError:
        return wanted, 0
    return header.max_timestamp, 0


LIST_OFFSETS: Final = Api(2, "ListOffsets", (1, 7), list_offsets)
