"""Reading one partition ahead, from one offset on, and waking the poll that waits for it.

Theory of operation. A reader has a thread (a greenlet under gevent) that fetches: at once while
there is more, otherwise Kafka holds the answer back until something comes. A broker answers the
requests of a connection one after the other, so a waiting fetch needs a connection of its own; a
reader costs that, its thread, and at most two chunks of half a MiB. Measured: opening one costs 3
ms of CPU, 150 idle ones no CPU to speak of and 12 MiB; kafka-python's consumer takes 48 ms to open,
11 of them CPU, a thread and two or three connections. The alternative, one fetch for all partitions
of a worker, needs one connection a broker; but a partition that joins then waits until the fetch
under way comes back, or all wait for a new one, and one busy partition has the request for all of
them made again for each of its messages.

A reader goes from consumer to consumer of its group and partition (`pool`): between two polls it
goes on waiting, so that what comes is there when the next poll asks. A consumer that left messages
unacknowledged makes the next one go back. `head` is the offset behind what was handed out.

The one condition guards all state and is never held over I/O; messages are decoded under it, a
poll's share at a time.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from typing import Any, Final, NamedTuple

import structlog

from router.backends.kafka import apis
from router.backends.kafka.cluster import Cluster
from router.backends.kafka.connection import KafkaConnection
from router.backends.kafka.failures import CodeError, KafkaConnectionLostError, NoAnswerError
from router.backends.kafka.offsets import COMMITTED_ONLY, EARLIEST, Offsets
from router.backends.kafka.records import MAX_INFLATED_BYTES, decode
from router.errors import BackendTimeoutError, BackendUnavailableError, ReadFailedError, RouterError
from router.errors.quoting import failure_text
from router.model import Stored
from router.node import Mailbox
from router.wire.kafka.error_codes import ErrorCode
from router.wire.kafka.record_batches import next_offset

CHUNK_BYTES: Final = 512 * 1024
MAX_CHUNKS_AHEAD: Final = 2
MAX_WAIT_SECONDS: Final = 20.0
MIN_WAIT_SECONDS: Final = 0.1
ANSWER_SECONDS: Final = 10.0
REFRESH_SECONDS: Final = 6 * 3600.0
MIN_PAUSE_SECONDS: Final = 0.05
MAX_PAUSE_SECONDS: Final = 1.0

_log = structlog.get_logger(__name__)


class _FetchedChunk:
    """What one fetch brought, decoded as it is taken."""

    __slots__ = ("_damage", "_found", "_records")

    def __init__(
        self, partition: int, epoch: int, start: int, answer: Any, max_inflated: int
    ) -> None:
        aborted = [(t.producer_id, t.first_offset) for t in answer.aborted_transactions or ()]
        self._records = decode(
            answer.records or b"", start, partition, aborted, epoch, max_inflated
        )
        self._found: Stored | None = None
        self._damage: ReadFailedError | None = None

    def peek(self) -> Stored | None:
        """Return the next message and keep it; None: that was all. Raises ReadFailedError."""
        if self._damage is not None:
            raise ReadFailedError(str(self._damage))
        try:
            if self._found is None:
                self._found = next(self._records, None)
        except ReadFailedError as error:
            self._damage = error  # not taken for the end when it is asked again
            raise
        return self._found

    def drop(self) -> None:
        """Do without the message that `peek` returned."""
        self._found = None


class PartitionNumbers(NamedTuple):
    """A partition's number in Kafka, and the one that its messages carry in the router."""

    number: int
    shown: int


class PrefetchingReader:
    """Reads a partition in the background; calls come from the consumer that has it, and its pool.

    It ends when no consumer has had it for `idle` seconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        offsets: Offsets,
        topic: str,
        partitions: PartitionNumbers,
        idle: float,
        max_inflated: int = MAX_INFLATED_BYTES,
    ) -> None:
        self.topic = topic
        self.partition = partitions.number
        self._max_inflated = max_inflated
        self._shown = partitions.shown
        self._idle = idle
        self._longest = min(MAX_WAIT_SECONDS, max(MIN_WAIT_SECONDS, idle))
        self._cluster = cluster
        self._offsets = offsets
        self._changed = threading.Condition()
        self._chunks: deque[_FetchedChunk] = deque()
        self._head = self._next = -1
        self._moves = 0
        self._redirected_from = -1
        self._epoch = 0
        self._refreshed = -math.inf
        self._mailbox: Mailbox | None = None
        self._idle_until = 0.0
        self._connection: KafkaConnection | None = None
        self._ended: RouterError | None = None
        self._thread: threading.Thread | None = None

    def hold(self) -> bool:
        """Keep from ending for lack of use; False: this reader has ended already."""
        with self._changed:
            self._idle_until = math.inf
            return self._ended is None

    def attach(self, mailbox: Mailbox, offset: int, epoch: int) -> None:
        """Read for a consumer from an offset on, which may be where this reader is already.

        The messages' positions tell the epoch.
        """
        with self._changed:
            self._mailbox = mailbox
            if (offset, epoch) != (self._head, self._epoch):
                self._epoch = epoch
                self._seek(offset)
            self._changed.notify_all()
            if self._thread is None and self._ended is None:
                name = f"kafka-{self.topic}-{self.partition}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

    def detach(self) -> None:
        """Go on for the next consumer, and end if none comes."""
        with self._changed:
            self._mailbox = None
            self._idle_until = time.monotonic() + self._idle
            self._changed.notify_all()

    def stale(self) -> bool:
        """Return whether it is time to commit again what the group has committed."""
        return time.monotonic() - self._refreshed >= REFRESH_SECONDS

    def refreshed(self) -> None:
        """Note that the group's position was committed just now."""
        self._refreshed = time.monotonic()

    def _seek(self, offset: int) -> None:
        self._chunks.clear()
        self._head = self._next = offset
        self._moves += 1
        self._redirected_from = -1
        if self._connection is not None:
            self._connection.abort()  # it waits for what is not wanted any more
        self._changed.notify_all()

    @property
    def redirected_from(self) -> int:
        """The offset that lay behind the end, so that the first message came instead; -1: none.

        If a group committed it, what is acknowledged before it moves the group back.
        """
        return self._redirected_from

    def skip(self, offset: int) -> None:
        """Hand out nothing before an offset."""
        with self._changed:
            if offset > self._head:
                self._seek(offset)

    def take(self, found: list[Stored], limit: int, max_bytes: int) -> bool:
        """Add messages that are here, in order; return whether the bounds allow no more.

        A first one above `max_bytes` comes alone. Raises ReadFailedError, and
        BackendUnavailableError once the reader has ended.
        """
        size = sum(stored.message.size() for stored in found)
        with self._changed:
            self._check()
            while len(found) < limit and self._fill():
                stored = self._chunks[0].peek()
                assert stored is not None
                size += stored.message.size()
                if found and size > max_bytes:
                    return True
                found.append(stored)
                self._chunks[0].drop()
                self._head = stored.position.entry + 1
        return len(found) >= limit

    def _fill(self) -> bool:
        """Return whether the first chunk has a message; those without any are dropped."""
        try:
            while self._chunks:
                if self._chunks[0].peek() is not None:
                    return True
                self._chunks.popleft()
                self._changed.notify_all()
        except ReadFailedError:
            self._seek(self._head)  # it is fetched again for the next call
            raise
        return False

    def more(self, end: int, deadline: float) -> bool:
        """Wait until something is here that was stored before `end`; return False: there is none.

        Raises BackendTimeoutError, BackendUnavailableError, ReadFailedError.
        """
        with self._changed:
            while True:
                self._check()
                if self._fill():
                    return True
                if self._next >= end:
                    return False
                left = deadline - time.monotonic()
                if left <= 0:
                    raise BackendTimeoutError("Kafka did not deliver the messages in time.")
                self._changed.wait(left)

    def end(self, reason: RouterError) -> None:
        """Stop; calls raise the reason from now on. Callable twice, from any thread."""
        with self._changed:
            self._ended = self._ended or reason
            self._chunks.clear()
            if self._connection is not None:
                self._connection.abort()
            self._changed.notify_all()
        self.wake()

    def wake(self) -> None:
        """Wake the poll that has this reader."""
        with self._changed:
            mailbox = self._mailbox
        if mailbox is not None:
            mailbox.wake()

    def join(self, timeout: float) -> None:
        """Wait for the thread of a reader that was told to end."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _check(self) -> None:
        if self._ended is not None:
            raise type(self._ended)(str(self._ended))

    def _run(self) -> None:
        failures = 0
        try:
            while (task := self._task()) is not None:
                try:
                    self._keep(task, self._fetch(*task))
                    failures = 0
                except (CodeError, NoAnswerError, RouterError) as error:
                    failures = self._failed(task, failures, error)
        except Exception as error:  # noqa: BLE001 - the thread's rim: a poll that waits gets the failure
            _log.exception("reader failed", topic=self.topic, partition=self.partition)
            self.end(BackendUnavailableError(f"reading failed: {failure_text(error)}"))

    def _task(self) -> tuple[int, int, float] | None:
        """Wait until there is something to fetch: number of moves, offset, how long; None: end."""
        with self._changed:
            while self._ended is None:
                left = self._longest
                if self._mailbox is None:
                    left = self._idle_until - time.monotonic()
                    if left <= 0:
                        self._ended = BackendUnavailableError("the reader was idle")
                        break
                if len(self._chunks) < (MAX_CHUNKS_AHEAD if self._mailbox is not None else 1):
                    return self._moves, self._next, min(left, self._longest)
                self._changed.wait(min(left, self._longest))
            return None

    def _fetch(self, moves: int, offset: int, wait: float) -> Any:
        partition = {
            "partition": self.partition,
            "fetch_offset": offset,
            "partition_max_bytes": CHUNK_BYTES,
        }
        request = apis.FETCH(
            max_wait_ms=int(wait * 1000),
            min_bytes=1,
            max_bytes=CHUNK_BYTES,
            isolation_level=COMMITTED_ONLY,
            topics=[{"topic": self.topic, "partitions": [partition]}],
        )
        deadline = time.monotonic() + wait + ANSWER_SECONDS
        leader = self._cluster.leader(self.topic, self.partition, deadline)
        try:
            with self._cluster.lent(leader, deadline) as connection:
                if not self._lend(moves, connection):
                    return None
                try:
                    answer = connection.ask(request, deadline)
                finally:
                    with self._changed:
                        self._connection = None
        except NoAnswerError:
            self._cluster.forget(self.topic)
            raise
        about = f"topic {self.topic}"
        self._cluster.check(self.topic, answer.error_code, about, deadline)
        (found,) = answer.responses[0].partitions
        if found.error_code != ErrorCode.OFFSET_OUT_OF_RANGE:
            self._cluster.check(self.topic, found.error_code, about, deadline)
        return found

    def _lend(self, moves: int, connection: KafkaConnection) -> bool:
        """Note the connection that waits, so that it can be called back; False: not wanted."""
        with self._changed:
            if moves != self._moves or self._ended is not None:
                return False
            self._connection = connection
            return True

    def _keep(self, task: tuple[int, int, float], found: Any) -> None:
        moves, offset, _ = task
        if found is None:
            return
        if found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._start_over(moves, offset)
            return
        data = found.records or b""
        with self._changed:
            if moves != self._moves or not data:
                return
            following = next_offset(data, offset)
            if following == offset:
                raise KafkaConnectionLostError(f"Kafka sent no whole batch at offset {offset}")
            self._chunks.append(
                _FetchedChunk(self._shown, self._epoch, offset, found, self._max_inflated)
            )
            self._next = following
            mailbox = self._mailbox
            self._changed.notify_all()
        if mailbox is not None:
            mailbox.wake()

    def _start_over(self, moves: int, offset: int) -> None:
        """Go to the first message there is.

        Those in between went with the topic's retention, or the offset lies behind the end: another
        client committed it, or the partition lost what was there.
        """
        deadline = time.monotonic() + ANSWER_SECONDS
        first = self._offsets.at(self.topic, (self.partition,), EARLIEST, deadline)[self.partition]
        _log.warning(
            "messages are gone",
            topic=self.topic,
            partition=self.partition,
            wanted=offset,
            first=first,
        )
        with self._changed:
            if moves == self._moves:
                self._seek(first)
                self._redirected_from = offset if first < offset else -1

    def _failed(self, task: tuple[int, int, float], failures: int, error: Exception) -> int:
        """Pause after a failure, or end if the topic is gone; return how many there were."""
        if isinstance(error, CodeError) and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self.end(BackendUnavailableError(f"topic {self.topic} is not there any more"))
            return failures
        with self._changed:
            if self._moves != task[0] or self._ended is not None:
                return 0  # called back
            mailbox = self._mailbox if failures else None
            self._changed.wait(min(MAX_PAUSE_SECONDS, MIN_PAUSE_SECONDS * 2**failures))
        if mailbox is not None:
            mailbox.wake()  # the poll asks for itself and gets the failure
        return min(failures + 1, 10)
