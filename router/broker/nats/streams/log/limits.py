"""Enforces the limits of a stream: its oldest messages are deleted when there are too many.

Theory of operation. StreamLimits are enforced right after a publish is on disk, before it is
acknowledged, as far as what is to be deleted is in memory; a task does the rest. What is old is
found by a timer, which is set for the oldest message or the nearest deadline (`deadlines.py`). A
step deletes at most MAX_DELETED_AT_ONCE messages of each kind, so that the event loop goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from router.broker.nats.streams.log.messages import NS_PER_MS, StoredMessage
from router.broker.nats.streams.log.stream_log import IndexedMessage, StreamLog
from router.broker.storage import StoreError
from router.wire.nats.jetstream.config import StreamConfig
from router.wire.nats.jetstream.policies import Discard

MAX_DELETED_AT_ONCE: Final = 1_000
MAX_ROUNDS: Final = 4
"""Of one step."""
READ_BYTES: Final = 256 << 10
MIN_TIMER_SECONDS: Final = 0.05
MAX_TIMER_SECONDS: Final = 3_600.0

_log = structlog.get_logger(__name__)


class StreamLimits:
    """The limits of one stream; `now_ms` counts from 1970."""

    def __init__(self, log: StreamLog, config: StreamConfig, now_ms: Callable[[], int]) -> None:
        self._log = log
        self._config = config
        self._now_ms = now_ms
        self._task: asyncio.Task[bool] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def configure(self, config: StreamConfig) -> None:
        """Go on with other limits."""
        self._config = config

    def enforce(self) -> bool:
        """Delete what is beyond a limit; return whether that is done, else a task goes on."""
        if self._is_done():
            return True
        if self._task is None and not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(self._ended)
        return False

    def expire(self) -> bool:
        """Delete messages whose time to live is over; return False if there may be more."""
        log, indexer = self._log, self._log.indexer
        if indexer is None or not indexer.deadlines:
            return True
        due = indexer.deadlines.take_due(
            self._now_ms(), log.ledger.durable_number, MAX_DELETED_AT_ONCE
        )
        if due:
            log.delete_indexed([IndexedMessage(*one[1:]) for one in due])
        return len(due) < MAX_DELETED_AT_ONCE

    async def settle(self) -> None:
        """Return when nothing is beyond a limit."""
        while not self._closed and not self.enforce():
            assert self._task is not None
            await asyncio.shield(self._task)
            await asyncio.sleep(0)  # the callback of a task that has ended is still to run

    async def close(self) -> None:
        """End the timer and the task."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
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
                await self._log.catch_up()
                await self._delete_of_subjects()
                oldest = await self._log.read_from(1, MAX_DELETED_AT_ONCE, READ_BYTES)
                self._delete_oldest(oldest)
                await asyncio.sleep(0)
        except (OSError, StoreError) as error:
            _log.warning("nats-limits-delayed", ledger=self._log.ledger.id, reason=str(error))
            self._set_timer(MAX_TIMER_SECONDS)
            return False
        return True

    def _is_done(self) -> bool:
        """Do what is quick; return whether all is counted and nothing is beyond a limit."""
        log, indexer = self._log, self._log.indexer
        if log.ledger.discarded or indexer is None:
            return True
        return indexer.advance() and self._step()

    def _step(self) -> bool:
        """Delete what is in memory; return whether nothing is beyond a limit."""
        index = self._log.index
        assert index is not None
        done = self._delete_exact() if index.over else True
        done = self.expire() and done
        for _ in range(MAX_ROUNDS):
            if not self._is_over():
                break
            found = self._log.read_now(1, MAX_DELETED_AT_ONCE, READ_BYTES)
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

    def _is_over(self) -> bool:
        index, config = self._log.index, self._config
        if index is None or config.discard is not Discard.OLD:
            return False
        return (0 < config.max_msgs < index.messages) or (0 < config.max_bytes < index.bytes)

    def _delete_exact(self) -> bool:
        """Delete what subjects have too much of where it is known; return whether that is all."""
        index, limit = self._log.index, self._config.max_msgs_per_subject
        assert index is not None
        excess: list[IndexedMessage] = []
        for subject in list(index.over):
            state = index.subjects.get(subject)
            if state is None or state.count <= limit or limit <= 0:
                del index.over[subject]
            elif state.places is not None:
                excess += (
                    IndexedMessage(sequence, subject, size)
                    for sequence, size in state.places[: state.count - limit]
                )
                del index.over[subject]
        if excess:
            self._log.delete_indexed(excess)
        return not index.over

    async def _delete_of_subjects(self) -> None:
        """Delete what subjects have too much of, by reading the log."""
        index, limit = self._log.index, self._config.max_msgs_per_subject
        for subject in list(index.over) if index is not None else ():
            assert index is not None
            state = index.subjects.get(subject)
            if state is not None and state.count > limit > 0:
                await self._log.delete_matching(
                    (subject,), self._log.last_sequence + 1, state.count - limit
                )
            index.over.pop(subject, None)

    def _delete_oldest(self, messages: list[StoredMessage]) -> bool:
        """Delete what is beyond a limit of the oldest messages; return whether there was any."""
        index, config = self._log.index, self._config
        if index is None:
            return False
        count, size = index.messages, index.bytes
        old = config.discard is Discard.OLD
        end_ns = self._now_ms() * NS_PER_MS - config.max_age if config.max_age > 0 else -1
        excess = 0
        for message in messages:
            over = old and ((0 < config.max_msgs < count) or (0 < config.max_bytes < size))
            if not over and message.time_ns > end_ns:
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
        if max_age <= 0 or self._rings_between(now, now + max_age / 1e9):
            return True
        for _ in range(MAX_ROUNDS):
            oldest = self._log.read_now(1, MAX_DELETED_AT_ONCE, READ_BYTES)
            if oldest is None:
                return False
            left_ns = max_age
            if oldest:
                left_ns += oldest[0].time_ns - self._now_ms() * NS_PER_MS
            if left_ns > 0:
                if oldest:
                    self._set_timer(left_ns / 1e9)
                return True
            self._delete_oldest(oldest)
        return False

    def _watch_deadlines(self) -> None:
        """Set the timer for the nearest deadline, unless it ends before."""
        indexer = self._log.indexer
        at_ms = indexer.deadlines.next_ms() if indexer is not None else None
        if at_ms is not None:
            now, left_seconds = asyncio.get_running_loop().time(), (at_ms - self._now_ms()) / 1000
            if not self._rings_between(now, now + left_seconds):
                self._set_timer(left_seconds)

    def _rings_between(self, after: float, until: float) -> bool:
        """Return whether the timer is set for a time between two of the event loop's clock."""
        return self._timer is not None and after < self._timer.when() <= until

    def _set_timer(self, seconds: float) -> None:
        if self._closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        seconds = min(max(seconds, MIN_TIMER_SECONDS), MAX_TIMER_SECONDS)
        self._timer = asyncio.get_running_loop().call_later(seconds, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.enforce()
