"""Enforces the limits of a stream: its oldest messages are deleted when there are too many.

Theory of operation. StreamLimits are enforced right after a publish is on disk, before it is
acknowledged, as far as what is to be deleted is in memory; a task does the rest. What is old is
found by a timer, which is set for the oldest message or the nearest deadline (`deadlines.py`). A
step deletes at most MAX_DELETED_AT_ONCE messages of each kind, so that the event loop goes on.

Age ends all messages but those that live for ever by their header. Where the stream has delete
markers, one takes the place of the last message of a subject whose time is over (`markers.py`);
what cannot get a marker now, as while the disk is full, stays and is looked at again.

What a limit takes goes in memory at once, and its journal record with the next commit group, at
most 5 ms later: a publish at the limit costs no sync of its own. A kill in between brings such
messages back; opening deletes them before NATS clients see them (`recover`), and limits rest while
a configuration is replaced that would not delete them any more (`suspended`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import structlog

from router.broker.nats.streams.log.deadlines import MARK, NEVER, is_marker, message_ttl
from router.broker.nats.streams.log.markers import DeleteMarkers
from router.broker.nats.streams.log.messages import NS_PER_MS, StoredMessage
from router.broker.nats.streams.log.stream_log import IndexedMessage, StreamLog
from router.broker.storage import StoreError
from router.wire.nats.jetstream.config import StreamConfig
from router.wire.nats.jetstream.policies import Discard

MAX_DELETED_AT_ONCE: Final = 1_000
MAX_ROUNDS: Final = 4
"""Of one step."""
MAX_RECOVERY_ROUNDS: Final = 100
"""Before a stream is open: more messages than this deletes are too old after a long stop only."""
READ_BYTES: Final = 256 << 10
MIN_TIMER_SECONDS: Final = 0.05
MAX_TIMER_SECONDS: Final = 3_600.0
HELD_SECONDS: Final = 1.0
"""After which what waits for its markers is looked at again."""
RETRY_SECONDS: Final = 60.0
"""After which it is tried again when the disk failed."""

_log = structlog.get_logger(__name__)


class StreamLimits:
    """The limits of one stream; `now_ms` counts from 1970."""

    def __init__(
        self,
        log: StreamLog,
        config: StreamConfig,
        markers: DeleteMarkers,
        now_ms: Callable[[], int],
    ) -> None:
        self._log = log
        self._config = config
        self._markers = markers
        self._now_ms = now_ms
        # Messages before it are not too old, or live for ever.
        self._aged_from = 1
        # Those before it are deleted or damaged.
        self._readable_from = 1
        self._recounted_to = 0
        # What may be read while a transaction is open, when subjects were looked at last.
        self._looked_until: int | None = None
        self._task: asyncio.Task[bool] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = self._suspended = False

    def configure(self, config: StreamConfig) -> None:
        """Go on with other limits."""
        self._config = config
        self._aged_from = self._readable_from = 1
        self._looked_until = None
        self._stop_timer()  # by what holds now it may be due earlier

    def enforce(self) -> bool:
        """Delete what is beyond a limit; return whether that is done, else a task goes on."""
        if self._is_done():
            return True
        if self._task is None and not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(self._ended)
        return False

    async def recover(self) -> None:
        """Delete what limits took right before a kill, and all whose time to live is over.

        What more there is a task deletes later. Raises OSError, StoreError.
        """
        log = self._log
        if log.index is not None and not self._delete_exact():
            # What was replaced before a kill would be the last message of its subject otherwise.
            await self._delete_of_subjects()
        while not log.ledger.discarded and (not self._expire() or self._markers.replacing):
            await log.store.synced()
            await log.catch_up()
            self._markers.delete_replaced()
        for _ in range(MAX_RECOVERY_ROUNDS):
            if self._is_done():
                break
            await self._delete_by_reading()

    @asynccontextmanager
    async def suspended(self) -> AsyncIterator[None]:
        """Delete nothing within the block; what was deleted before is on disk then.

        Raises StoreError.
        """
        self._suspended = True
        try:
            await self._log.store.synced()
            yield
        finally:
            self._suspended = False
            self.enforce()

    async def settle(self) -> None:
        """Return when nothing is beyond a limit, or the log cannot be read now."""
        while not self._closed and not self.enforce():
            assert self._task is not None
            if not await asyncio.shield(self._task):
                break
            await asyncio.sleep(0)  # the callback of a task that has ended is still to run

    async def close(self) -> None:
        """End the timer and the task."""
        self._closed = True
        self._stop_timer()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    def _ended(self, task: asyncio.Task[bool]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("nats-limits-failed", ledger=self._log.ledger.id, reason=str(error))
        elif not task.cancelled() and task.result():
            self.enforce()  # more may have come when the task had ended already

    async def _run(self) -> bool:
        """Enforce the limits; return False if the log cannot be read."""
        try:
            while not self._closed and not self._is_done():
                # What is needed is on disk, or there is more to do than one step may.
                await self._delete_by_reading()
        except (OSError, StoreError) as error:
            _log.warning("nats-limits-delayed", ledger=self._log.ledger.id, reason=str(error))
            self._set_timer(RETRY_SECONDS)
            return False
        return True

    async def _delete_by_reading(self) -> None:
        """Delete what is beyond a limit and may not be in memory: a part of it."""
        log = self._log
        await log.catch_up()
        await self._delete_of_subjects()
        if self._is_over():
            following = log.last_sequence + 1
            oldest = await log.read_from(self._readable_from, MAX_DELETED_AT_ONCE, READ_BYTES)
            self._readable_from = oldest[0].sequence if oldest else following
            self._recount(log.ledger.first_number, self._readable_from - 1, 0)
            if not self._suspended:
                self._delete_oldest(oldest)
        if (config := self._config).max_age > 0:
            following = log.last_sequence + 1
            oldest = await log.read_from(self._aged_from, MAX_DELETED_AT_ONCE, READ_BYTES)
            if self._config is config and not self._suspended:
                if not oldest:
                    self._aged_from = following
                self._end_aged(oldest)
        if self._config.marker_seconds:
            await log.store.synced()
        await asyncio.sleep(0)

    def _recount(self, first: int, end: int, found: int) -> bool:
        """Build the index again if it counts what cannot be read; return whether.

        `found` messages were read now of the numbers from `first` to before `end`: newer ones would
        be deleted in place of the others.
        """
        log, indexer = self._log, self._log.indexer
        if indexer is None or (passed := log.visible.count(first, end) - found) <= 0:
            return False
        if (absent := indexer.count_absent()) is None:
            if end <= self._recounted_to:
                return False  # the index was built without what is damaged there
        elif indexer.index.messages <= log.ledger.messages - absent - passed:
            return False
        self._recounted_to = log.last_sequence
        indexer.restart()
        return True

    def _is_done(self) -> bool:
        """Do what is quick; return whether all is counted and nothing is beyond a limit."""
        log, indexer = self._log, self._log.indexer
        if log.ledger.discarded or indexer is None or self._suspended:
            return True
        if not indexer.advance():
            return False
        if self._markers.replacing:
            self._markers.delete_replaced()
        return self._step() and not self._markers.replacing

    def _step(self) -> bool:
        """Delete what is in memory; return whether nothing is beyond a limit."""
        index = self._log.index
        assert index is not None
        # Behind an open transaction nothing is to delete until more may be read.
        until = None if self._log.ledger.undecided is None else self._log.last_sequence
        looks = index.over and (until is None or until != self._looked_until)
        done = self._delete_exact() if looks else True
        self._looked_until = until
        done = self._expire() and done
        for _ in range(MAX_ROUNDS):
            if not self._is_over():
                break
            found = self._log.read_now(self._readable_from, MAX_DELETED_AT_ONCE, READ_BYTES)
            if found is None:
                return False
            if not self._delete_oldest(found):
                break
        else:
            return False
        if not (done and self._watch_age()):
            return False
        self._watch_deadlines()
        return True

    def _expire(self) -> bool:
        """Delete messages whose time to live is over; return False if there may be more."""
        log, indexer, now_ms = self._log, self._log.indexer, self._now_ms()
        if indexer is None or (at_ms := indexer.deadlines.next_ms()) is None or at_ms > now_ms:
            return True
        if self._is_held():
            return True
        due = indexer.deadlines.take_due(now_ms, log.ledger.durable_number, MAX_DELETED_AT_ONCE)
        ended = sorted((IndexedMessage(*one[1:4]), one.is_marker) for one in due)
        self._mark(ended)
        is_replacing = self._markers.is_replacing
        log.delete_indexed([one for one, _ in ended if not is_replacing(one.sequence)])
        return len(due) < MAX_DELETED_AT_ONCE

    def _is_held(self) -> bool:
        """Return whether what is over stays until markers can be appended."""
        log, indexer = self._log, self._log.indexer
        if not self._config.marker_seconds or log.ledger.terminated:
            return False
        # What another dialect has appended may be of the same subject.
        complete = indexer is not None and indexer.has_all
        return log.store.full or log.store.failed.done() or not complete

    def _mark(self, ended: Sequence[tuple[IndexedMessage, bool]]) -> None:
        """Append markers for those messages that are the last ones of their subjects.

        `ended` are messages whose time is over, in order, and whether they are markers themselves.
        """
        seconds, markers = self._config.marker_seconds, self._markers
        if not seconds or self._log.ledger.terminated:
            return
        removed: Counter[str] = Counter()
        replaced: list[IndexedMessage] = []
        for message, marks in ended:
            subject = message.subject
            if markers.is_replacing(message.sequence):
                continue  # its age and its time to live are over
            if not marks and markers.is_last(subject, removed[subject]):
                replaced.append(message)
            removed[subject] += 1
        markers.replace(replaced, seconds)

    def _is_over(self) -> bool:
        index, config = self._log.index, self._config
        if index is None or config.discard is not Discard.OLD:
            return False
        return (0 < config.max_msgs < index.messages) or (0 < config.max_bytes < index.bytes)

    def _delete_exact(self) -> bool:
        """Delete what subjects have too much of where it is known; return whether that is all.

        What stands behind an open transaction replaces nothing until readers may have it: the rest
        is deleted when the transaction is decided.
        """
        index, limit = self._log.index, self._config.max_msgs_per_subject
        assert index is not None
        undecided, end = self._log.ledger.undecided, self._log.last_sequence
        excess: list[IndexedMessage] = []
        for subject in list(index.over):
            state = index.subjects.get(subject)
            if state is None or state.count <= limit or limit <= 0:
                del index.over[subject]
            elif state.places is not None:
                places = state.places
                if undecided is not None:
                    places = [place for place in places if place[0] <= end]
                excess += (
                    IndexedMessage(sequence, subject, size)
                    for sequence, size in places[: max(0, len(places) - limit)]
                )
                if len(places) == state.count:
                    del index.over[subject]
        if excess:
            self._log.delete_indexed(excess)
        return undecided is not None or not index.over

    async def _delete_of_subjects(self) -> None:
        """Delete what subjects have too much of by the limit that holds, by reading the log."""
        index, limit = self._log.index, self._config.max_msgs_per_subject
        for subject in list(index.over) if index is not None else ():
            assert index is not None
            if self._suspended or self._config.max_msgs_per_subject != limit:
                break
            state = index.subjects.get(subject)
            deleted = 0
            if state is not None and state.count > limit > 0:
                end, count = self._log.last_sequence + 1, state.count - limit
                deleted = await self._log.delete_matching((subject,), end, count, self._recount)
            if self._config.max_msgs_per_subject != limit:
                break
            state = index.subjects.get(subject)
            # What came meanwhile may make it too much again.
            if not deleted or state is None or state.count <= limit:
                index.over.pop(subject, None)

    def _delete_oldest(self, messages: list[StoredMessage]) -> bool:
        """Delete the oldest messages beyond a limit; return whether there was any."""
        index, config = self._log.index, self._config
        if index is None:
            return False
        count, size = index.messages, index.bytes
        excess = 0
        for message in messages:
            if not ((0 < config.max_msgs < count) or (0 < config.max_bytes < size)):
                break
            count -= 1
            size -= message.size
            excess += 1
        if excess:
            self._log.delete_oldest(messages[:excess])
        return excess > 0

    def _watch_age(self) -> bool:
        """Set the timer for the oldest message; return False if that takes more than a step."""
        max_age, now = self._config.max_age, asyncio.get_running_loop().time()
        left_seconds = max_age / 1e9
        if 0 < left_seconds < HELD_SECONDS and self._is_held():
            left_seconds = HELD_SECONDS
        if max_age <= 0 or self._rings_between(now, now + left_seconds):
            return True
        for _ in range(MAX_ROUNDS):
            oldest = self._log.read_now(self._aged_from, MAX_DELETED_AT_ONCE, READ_BYTES)
            if oldest is None:
                return False
            if self._end_aged(oldest):
                return True
        return False

    def _end_aged(self, oldest: Sequence[StoredMessage]) -> bool:
        """Delete what is too old of the oldest messages; return whether that is all for now.

        Then the timer is set for the first one.
        """
        if not oldest:
            return True
        left_ns = self._config.max_age + oldest[0].time_ns - self._now_ms() * NS_PER_MS
        if left_ns > 0 or self._is_held():
            self._set_timer(left_ns / 1e9 if left_ns > 0 else HELD_SECONDS)
            return True
        self._delete_aged(oldest)
        return False

    def _delete_aged(self, messages: Sequence[StoredMessage]) -> None:
        """Delete those of the messages from `_aged_from` on that are too old."""
        log, indexer = self._log, self._log.indexer
        end_ns = self._now_ms() * NS_PER_MS - self._config.max_age
        aged: list[StoredMessage] = []
        at_start = bool(messages) and messages[0].sequence == log.first_sequence
        for message in messages:
            if message.time_ns > end_ns or indexer is None or not indexer.has(message.entry):
                break
            self._aged_from = message.sequence + 1
            if _lives_for_ever(message):
                at_start = False
            else:
                aged.append(message)
        self._mark(
            [(IndexedMessage(o.sequence, o.subject, o.size), is_marker(o.headers)) for o in aged]
        )
        deleted = [one for one in aged if not self._markers.is_replacing(one.sequence)]
        if at_start and deleted and len(deleted) == len(aged):
            log.delete_oldest(deleted)
        else:
            log.delete_messages(deleted)

    def _watch_deadlines(self) -> None:
        """Set the timer for the nearest deadline, unless it ends before."""
        indexer = self._log.indexer
        at_ms = indexer.deadlines.next_ms() if indexer is not None else None
        if at_ms is not None:
            now, left_seconds = asyncio.get_running_loop().time(), (at_ms - self._now_ms()) / 1000
            if left_seconds <= 0 and self._is_held():
                left_seconds = HELD_SECONDS
            if not self._rings_between(now, now + left_seconds):
                self._set_timer(left_seconds)

    def _rings_between(self, after: float, until: float) -> bool:
        """Return whether the timer is set for a time between two of the event loop's clock."""
        return self._timer is not None and after < self._timer.when() <= until

    def _set_timer(self, seconds: float) -> None:
        if self._closed:
            return
        self._stop_timer()
        seconds = min(max(seconds, MIN_TIMER_SECONDS), MAX_TIMER_SECONDS)
        self._timer = asyncio.get_running_loop().call_later(seconds, self._on_timer)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        self.enforce()


def _lives_for_ever(message: StoredMessage) -> bool:
    """Return whether age does not end a message, as its publisher says."""
    if not message.native or MARK not in message.headers:
        return False
    try:
        return message_ttl(message.headers) == NEVER
    except ValueError:
        return False  # of an archive: a publish is refused
