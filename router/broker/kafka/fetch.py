"""Fetch (1): batches of partitions from offsets on, at once or when enough has come.

Theory of operation. A request is answered from memory within the call if all that it wants is
there. What is on disk is read by a task, which ends with the response. A request that has to wait
for messages (`max_wait_ms`, `min_bytes`) is a listener of its partitions and a timer: ten thousand
that wait cost no task. It is tried again once for each turn of the event loop in which something
became durable.

A request is of a session (`fetch_sessions.py`) or names all its partitions. What a session keeps is
looked up again when rights have changed, also while a request waits, and after a failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from router.access.permissions import Right
from router.broker.consume import Partition
from router.broker.consume.visible import Visible
from router.broker.kafka.batch_reader import Batches, BatchReader
from router.broker.kafka.client import KafkaApi, KafkaClient, KafkaRequest
from router.broker.kafka.failures import REFUSALS, ErrorCode, KafkaError, error_code
from router.broker.kafka.fetch_sessions import (
    MAX_KEPT_PARTITIONS,
    MAX_PARTITIONS,
    UNKNOWN,
    FetchedPartition,
    FetchSession,
)
from router.broker.storage import StoreError

MAX_WAIT_SECONDS: Final = 300.0
NO_SESSION: Final = 0
FINAL_EPOCH: Final = -1
NEW_EPOCH: Final = 0
READ_COMMITTED: Final = 1
TOPIC_IDS: Final = 13
"""The first version in which topics have ids instead of names."""


@dataclass(slots=True, eq=False)
class FetchJob:
    """A request while it is under way; it is answered at `deadline`, with what is there then.

    `continues`: it goes on with its session, and is answered what changed. `over`: its timer has
    fired, which may be before `deadline` by the loop's clock: that of uvloop counts milliseconds.
    `rights` is the version of the client's rights by which partitions were looked up.
    """

    request: KafkaRequest
    partitions: list[FetchedPartition]
    deadline: float
    rights: object
    session: FetchSession | None = None
    continues: bool = False
    timer: asyncio.TimerHandle | None = None
    due: bool = False
    over: bool = False
    listens: list[Partition] = field(default_factory=list)


class Limit:
    """The bytes that a response may still take; its first batch is sent whatever its size is."""

    def __init__(self, size: int) -> None:
        self.left = size
        self._any = False

    def take(self, one: FetchedPartition, found: Batches) -> None:
        """Give a partition what was found, unless that is too much."""
        if self._any and found.size > self.left:
            self.left = 0
            return
        one.batches = found
        self._any = self._any or bool(found.size)
        self.left = max(0, self.left - found.size)


class Fetching:
    """The fetches of one connection."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._connection = client.connection
        self._context = client.context
        self._reader = BatchReader(client.context)
        self._loop = asyncio.get_running_loop()
        self._job: FetchJob | None = None
        self._session: FetchSession | None = None
        self._kept = self._sessions = 0
        client.on_close[self._close] = None

    def fetch(self, request: KafkaRequest) -> None:
        """Answer a request, now or when enough has come."""
        wait = min(max(request.body.max_wait_ms, 0) / 1_000, MAX_WAIT_SECONDS)
        continues = request.body.session_epoch not in {NEW_EPOCH, FINAL_EPOCH}
        # Before partitions are looked up: rights that change meanwhile are looked at again.
        rights = self._client.rights_version
        try:
            partitions = self._go_on(request, rights) if continues else self._begin(request, rights)
        except KafkaError as refusal:
            request.count_error(refusal.code)
            request.answer(request.response(error_code=refusal.code))
            return
        deadline = self._loop.time() + wait
        job = FetchJob(request, partitions, deadline, rights, self._session, continues)
        self._job = job
        if self._connection.writable:
            self._try(job)
        else:
            self._connection.when_writable(partial(self._try_guarded, job))

    def _begin(self, request: KafkaRequest, rights: object) -> list[FetchedPartition]:
        """Return all partitions of a request, which ends a session, and begins one if it may."""
        self._keep(None)
        named = _named(request)
        for one in named:
            _look_up(request, one)
        kept = self._context.fetched_partitions + len(named)
        may = 0 < len(named) <= MAX_PARTITIONS and kept <= MAX_KEPT_PARTITIONS
        if request.body.session_epoch != NEW_EPOCH or not may:
            return named
        self._sessions += 1
        session = FetchSession(self._sessions, _is_committed(request), _is_by_id(request), rights)
        for one in named:
            session.put(one)
        self._keep(session)
        return list(session.partitions.values())

    def _go_on(self, request: KafkaRequest, rights: object) -> list[FetchedPartition]:
        """Return the partitions of a session as a request changes them; raise KafkaError."""
        body, session = request.body, self._session
        if session is None or session.id != body.session_id:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != body.session_epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != _is_by_id(request):
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.advance()
        for topic in body.forgotten_topics_data:
            name = topic.topic_id if session.by_id else topic.topic
            for index in topic.partitions:
                session.partitions.pop((name, index), None)
        for one in _named(request):
            session.put(one)
        self._keep(session)
        asks = _is_committed(request), rights
        everything = asks != (session.committed, session.rights)
        session.committed, session.rights = asks
        for one in session.partitions.values():
            if everything or one.code or one.partition is None:
                _look_up(request, one)
        return list(session.partitions.values())

    def _keep(self, session: FetchSession | None) -> None:
        """Have this session, and no other; raise KafkaError if it has become too large."""
        count = 0 if session is None else len(session.partitions)
        self._context.fetched_partitions += count - self._kept
        self._session, self._kept = session, count
        if count > MAX_PARTITIONS or self._context.fetched_partitions > MAX_KEPT_PARTITIONS:
            self._keep(None)
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)

    def _try(self, job: FetchJob) -> None:
        """Answer from memory, or have a task read the disk, or wait."""
        if job is not self._job or self._connection.closed:
            return
        if (rights := self._client.rights_version) != job.rights:
            job.rights = rights
            for one in job.partitions:
                _look_up(job.request, one)
        limit = Limit(self._limit(job))
        for one, visible, max_bytes in _readable(job, limit):
            found = self._reader.read_cached(visible, one.offset, max_bytes)
            if found is None:
                self._connection.spawn(self._read(job))
                return
            limit.take(one, found)
        self._answer_or_wait(job)

    async def _read(self, job: FetchJob) -> None:
        limit = Limit(self._limit(job))
        for one, visible, max_bytes in _readable(job, limit):
            try:
                found = self._reader.read_cached(visible, one.offset, max_bytes)
                if found is None:
                    found = await self._reader.read(visible, one.offset, max_bytes)
            except (OSError, StoreError) as failure:
                one.code = error_code(failure)
            else:
                limit.take(one, found)
        if job is self._job:
            self._answer_or_wait(job)
            # Something may have come while the disk was read.
            self._arrived()

    def _limit(self, job: FetchJob) -> int:
        requested: int = job.request.body.max_bytes
        return min(max(requested, 1), self._connection.max_unsent)

    def _answer_or_wait(self, job: FetchJob) -> None:
        size = sum(map(_available, job.partitions))
        ready = not job.partitions or any(one.code for one in job.partitions)
        over = job.over or job.deadline <= self._loop.time()
        if ready or over or size >= min(job.request.body.min_bytes, self._limit(job)):
            self._answer(job)
            return
        if job.timer is None:
            job.timer = self._loop.call_at(job.deadline, self._end_wait, job)
            for one in job.partitions:
                if one.partition is not None:
                    one.partition.ledger.listeners[self._arrived] = None
                    job.listens.append(one.partition)

    def _arrived(self) -> None:
        """Try again in the next turn of the event loop: more may become durable in this one."""
        job = self._job
        if job is not None and not job.due:
            job.due = True
            self._loop.call_soon(self._try_guarded, job)

    def _end_wait(self, job: FetchJob) -> None:
        job.over = True
        self._try_guarded(job)

    def _try_guarded(self, job: FetchJob) -> None:
        job.due = False
        self._connection.guard(lambda: self._try(job))

    def _answer(self, job: FetchJob) -> None:
        self._forget(job)
        for one in job.partitions:
            if one.batches is not None and one.batches.size and one.partition is not None:
                self._reader.remember(one.partition.ledger, one.batches)
                self._context.topics.tally.delivered += one.batches.messages
        response = _response(job)
        if job.session is not None:
            job.session.rotate()
        job.request.answer(response)

    def _forget(self, job: FetchJob) -> None:
        self._job = None
        if job.timer is not None:
            job.timer.cancel()
        for partition in job.listens:
            partition.ledger.listeners.pop(self._arrived, None)

    def _close(self) -> None:
        self._keep(None)
        if self._job is not None:
            self._forget(self._job)


def _named(request: KafkaRequest) -> list[FetchedPartition]:
    """Return the partitions that a request names, which are not looked up."""
    by_id = _is_by_id(request)
    return [
        FetchedPartition(
            topic.topic_id if by_id else topic.topic,
            one.partition,
            one.fetch_offset,
            max(one.partition_max_bytes, 0),
            one.current_leader_epoch,
        )
        for topic in request.body.topics
        for one in topic.partitions
    ]


def _is_by_id(request: KafkaRequest) -> bool:
    return request.version >= TOPIC_IDS


def _is_committed(request: KafkaRequest) -> bool:
    committed: bool = request.body.isolation_level == READ_COMMITTED
    return committed


def _look_up(request: KafkaRequest, one: FetchedPartition) -> None:
    """Find what is read of a partition, or the reason why it is refused."""
    one.code, one.partition, one.visible = 0, None, None
    try:
        one.partition = request.client.partition(
            one.topic, one.index, Right.SUBSCRIBE, one.leader_epoch
        )
        committed = _is_committed(request)
        one.visible = one.partition.visible if committed else one.partition.uncommitted
    except REFUSALS as failure:
        one.code = error_code(failure)


def _readable(job: FetchJob, limit: Limit) -> Iterator[tuple[FetchedPartition, Visible, int]]:
    """Yield the partitions to read, and how many bytes of each, while the limit leaves some."""
    for one in job.partitions:
        one.batches = None
        if limit.left and _in_range(one):
            assert one.visible is not None
            yield one, one.visible, min(one.max_bytes, limit.left)


def _in_range(one: FetchedPartition) -> bool:
    """Return whether there is something to read; note an offset that does not exist.

    What compaction or aborted transactions left out at the beginning is a gap like those behind it:
    who stopped there reads on, and does not begin again as at an offset that retention passed.
    """
    if one.code or one.partition is None:
        return False
    ledger = one.partition.ledger
    start = 0 if one.partition.topic.policies.compacts else ledger.removed_number
    if start <= one.offset < ledger.first_number:
        one.offset = ledger.first_number
    if ledger.discarded:
        one.code = _unknown(one.topic)
    elif not ledger.first_number <= one.offset <= ledger.durable_number:
        one.code = ErrorCode.OFFSET_OUT_OF_RANGE
    return not one.code


def _available(one: FetchedPartition) -> int:
    """Return how many bytes there are for a partition, of those that it may be sent.

    Batches are sent whole, so a response may have less although there is more.
    """
    if one.code or one.visible is None:
        return 0
    found = one.batches
    size, offset = (0, one.offset) if found is None else (found.size, found.offset)
    more = offset < one.visible.end_number and (size or found is None)
    return max(size, one.max_bytes) if more else size


def _unknown(topic: str | bytes) -> ErrorCode:
    if isinstance(topic, bytes):
        return ErrorCode.UNKNOWN_TOPIC_ID
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _response(job: FetchJob) -> Any:
    request = job.request
    committed = request.body.isolation_level == READ_COMMITTED
    topics: dict[str | bytes, list[Any]] = {}
    named = "topic_id" if _is_by_id(request) else "topic"
    for one in job.partitions:
        high = stable = start = UNKNOWN
        if one.partition is not None and one.code != _unknown(one.topic):
            visible = one.partition.visible
            high, stable = visible.ledger.durable_number, visible.end_number
            start = min(visible.first_number, high)
        if job.continues and not one.changes(high, start):
            continue
        one.answered(high, start)
        found = request.struct(
            "PartitionData",
            partition_index=one.index,
            error_code=one.code,
            high_watermark=high,
            last_stable_offset=stable,
            log_start_offset=start,
            aborted_transactions=() if committed else None,
            records=b"" if one.batches is None else one.batches.records(),
        )
        request.count_error(one.code)
        topics.setdefault(one.topic, []).append(found)
    return request.response(
        responses=[
            request.struct("FetchableTopicResponse", partitions=partitions, **{named: topic})
            for topic, partitions in topics.items()
        ],
        session_id=NO_SESSION if job.session is None else job.session.id,
    )


def fetch(request: KafkaRequest) -> Any:
    """Answer batches, now or later."""
    request.client.part(Fetching).fetch(request)
    return None


FETCH: Final = KafkaApi(1, "Fetch", (4, 18), fetch)
