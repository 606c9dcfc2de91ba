"""Retention by interest, and of work queues: what no consumer needs any more is deleted.

Theory of operation. A consumer hands over each message that it has acknowledged; those of one
turn of the event loop are looked at together. On an interest stream a message is kept while a
consumer needs it, or a durable subscription of another dialect has not acknowledged its entry; a
message that none needs when it is stored goes at once. Subscriptions do not report what they
acknowledge, so a stream that has some is looked through from time to time (`Streams`), and so is
what other dialects published. On a work queue a message goes when its consumer has acknowledged it.
Nothing is deleted before all consumers of the stream are restored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

import structlog

from router.broker.consume import Partition, PartitionSubscription
from router.broker.nats.streams.log.messages import StoredMessage
from router.broker.nats.streams.log.stream_log import StreamLog
from router.broker.storage import StoreError
from router.wire.nats.jetstream.policies import Retention

MAX_SKIPPED: Final = 64
"""Messages behind one that cannot be read, which are not tried."""

_log = structlog.get_logger(__name__)


class StreamConsumer(Protocol):
    """A consumer, as its stream uses it."""

    def needs(self, sequence: int, subject: str) -> bool:
        """Return whether the consumer is to receive a message, or has not acknowledged it."""
        ...

    def stored(self) -> None:
        """Deliver what was stored durably by any dialect."""
        ...

    def deleted(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Wait no more for messages that were deleted, by ranges of sequences, ends included."""
        ...


class StreamInterest:
    """The interest in the messages of one stream; `consumers` are those it has now."""

    def __init__(
        self,
        log: StreamLog,
        partition: Partition,
        consumers: Mapping[str, StreamConsumer],
        retention: Retention,
    ) -> None:
        self.retention = retention
        self._log = log
        self._partition = partition
        self._consumers = consumers
        self._acknowledged: set[int] = set()
        self._unread: set[int] = set()
        self._held = True
        self._taken = self._reviewed_to = 0
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Delete from now on: all consumers are there, with what they need."""
        self._held = False
        if self._acknowledged and self._task is None:
            self._start()

    def acknowledged(self, sequence: int) -> None:
        """Delete a message, soon, if it is kept for no consumer any more."""
        if self.retention is Retention.LIMITS:
            return
        self._acknowledged.add(sequence)
        if self._task is None and not self._held:
            self._start()

    def stored(self, messages: Iterable[tuple[int, str]], entry: int) -> None:
        """Delete those of the messages of a new entry, by sequence and subject, that none needs.

        Retention is by interest.
        """
        for sequence, subject in messages:
            if not self.is_needed(sequence, subject, entry):
                self.acknowledged(sequence)

    async def maintain(self) -> None:
        """Delete what none needs where nothing reported it, and what could not be read before.

        Groups of other dialects report nothing, nor do those that publish in other dialects. Raises
        OSError, StoreError.
        """
        if self._unread:
            self._acknowledged |= self._unread
            self._unread.clear()
            self.begin()
        indexer, last = self._log.indexer, self._log.last_sequence
        if indexer is None or self.retention is not Retention.INTEREST:
            return
        groups, taken = any(self._groups()), indexer.taken
        if groups or taken != self._taken:
            await self.review(1 if groups else self._reviewed_to + 1)
            self._taken, self._reviewed_to = taken, last

    async def review(self, first: int = 1) -> None:
        """Delete what none needs: a consumer has gone, or retention is by interest now.

        `first` is the sequence to begin at. Raises OSError, StoreError.
        """
        if self.retention is not Retention.INTEREST:
            return
        log = self._log
        await log.catch_up()
        async for messages in log.scan(max(first, log.first_sequence), log.last_sequence):
            await log.delete_durably(
                [
                    one
                    for one in messages
                    if not self.is_needed(one.sequence, one.subject, one.entry)
                ]
            )

    def is_needed(self, sequence: int, subject: str, entry: int) -> bool:
        """Return whether a message is kept for a consumer, or for a group of another dialect.

        `entry` is the one that holds it.
        """
        if self.retention is Retention.LIMITS:
            return True
        if any(one.needs(sequence, subject) for one in self._consumers.values()):
            return True
        return self.retention is Retention.INTEREST and any(
            not one.cursor.is_acked(entry) for one in self._groups()
        )

    async def settle(self) -> None:
        """Return when what was acknowledged is deleted."""
        while self._task is not None:
            await asyncio.shield(self._task)
            await asyncio.sleep(0)  # the callback of a task that has ended is still to run

    async def close(self) -> None:
        """End the task."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._delete())
        self._task.add_done_callback(self._ended)

    async def _delete(self) -> None:
        log = self._log
        while self._acknowledged:
            await asyncio.sleep(0)  # what is acknowledged in this turn goes together
            sequences, self._acknowledged = sorted(self._acknowledged), set()
            found, failure = await self._read(sequences)
            await log.delete_durably(
                [one for one in found if not self.is_needed(one.sequence, one.subject, one.entry)]
            )
            if failure is not None:
                raise failure

    async def _read(self, sequences: Sequence[int]) -> tuple[list[StoredMessage], OSError | None]:
        """Return those of the messages that can be read, and why others cannot.

        `maintain` tries those again. A failure takes a second: the more there are in a row, the
        more messages behind them are not tried now.
        """
        log, found, failure = self._log, list[StoredMessage](), None
        following, step = 0, 1
        try:
            await log.catch_up()
        except OSError as error:
            self._unread.update(sequences)
            return found, error
        for place, sequence in enumerate(sequences):
            if place < following:
                self._unread.add(sequence)
                continue
            try:
                message = await log.read(sequence)
            except OSError as error:
                self._unread.add(sequence)
                failure, following, step = error, place + step, min(2 * step, MAX_SKIPPED)
                continue
            step = 1
            if message is not None:
                found.append(message)
        return found, failure

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        failure = None if task.cancelled() else task.exception()
        if failure is not None and not isinstance(failure, StoreError):  # the store says so itself
            _log.error("nats-retention-failed", topic=self._log.own_subject, reason=str(failure))
        if self._acknowledged and not task.cancelled():
            self._start()  # it was acknowledged when the task had ended already

    def _groups(self) -> Iterator[PartitionSubscription]:
        """Yield the subscriptions of other dialects that hold messages back."""
        for one in self._partition.subscriptions.values():
            if one.durable and not one.passive and one.name not in self._consumers:
                yield one
