"""Appends of a worker: one at a time for each partition, shared by the requests that wait for it.

Theory of operation. Requests append through the *accumulator* of their partition. The first request
is the batch leader: it calls the backend. Requests that arrive while an append is under way queue
behind it; the first of them leads the next append and takes all that fit into it. One append is in
flight for each partition and worker, which keeps the order and lets a slow disk make batches larger
instead of queues longer. The alternative, a thread that collects for a millisecond, makes every
lone publisher wait and needs the thread.

A batch leader that has company first lets requests in that have arrived already (`YIELD_TO_LOOP`):
clients that were answered together ask again together, and the leader would otherwise go alone.

A backend that stored only the beginning of a joined append says how many messages that is. They are
counted off over the requests in order, so that each request learns what is stored of its own.

The one lock guards the accumulators and is never held over a call of the backend.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from router.backends import Backend, Batch, Receipt
from router.errors import (
    BackendTimeoutError,
    OutcomeUnknownError,
    PartialPublishError,
    PublishRefusedError,
    RouterError,
    from_code,
)
from router.metrics import Metrics
from router.model import NOT_PARTITIONED, Message, TopicName
from router.services.partitioning import partition_of
from router.steps import YIELD_TO_LOOP, Event, Steps

T = TypeVar("T")

MAX_BATCH_DELAY_SECONDS: Final = 0.002
"""Time that an append waits at most for requests that could join it."""
# What a message costs in an entry beside its value; a key that is no UTF-8 travels as base64.
_MESSAGE_OVERHEAD_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What one batch holds at most."""

    max_bytes: int
    max_messages: int


ENTRY_LIMITS: Final = BatchLimits(4 * 1024 * 1024, 10_000)
"""Of a batch that every store keeps as one append."""


class PublishBatch:
    """Messages for one partition, their bytes and those of the largest, what they weigh stored."""

    __slots__ = ("largest", "messages", "size", "weight")

    def __init__(self, messages: Sequence[Message]) -> None:
        size = keys = largest = 0
        for message in messages:
            value, key, properties = message[:3]
            # `Message.size`, most often without the call.
            own = message.size() if key or properties else len(value)
            size += own
            if own > largest:  # noqa: PLR1730 - `max` takes three times as long
                largest = own
            if key:
                keys += len(key)
        self.messages = messages
        self.size = size
        self.largest = largest
        self.weight = size + keys + _MESSAGE_OVERHEAD_BYTES * len(messages)

    def fits(self, limits: BatchLimits) -> bool:
        """Return whether it is within limits as a whole."""
        return self.weight <= limits.max_bytes and len(self.messages) <= limits.max_messages


def split(
    messages: Sequence[Message],
    limits: BatchLimits,
    alone: Callable[[Message], bool] | None = None,
) -> Iterator[PublishBatch]:
    """Split messages into batches within limits, in order; a larger message is one by itself.

    So is each message for which `alone` is true.
    """
    begin = total = 0
    for at, message in enumerate(messages):
        weight = message.size() + len(message.key or b"") + _MESSAGE_OVERHEAD_BYTES
        single = alone is not None and alone(message)
        full = total + weight > limits.max_bytes or at - begin == limits.max_messages
        if at > begin and (single or full):
            yield PublishBatch(messages[begin:at])
            begin, total = at, 0
        total += weight
        if single:
            yield PublishBatch(messages[at : at + 1])
            begin, total = at + 1, 0
    if begin < len(messages):
        yield PublishBatch(messages[begin:])


def parts(whole: PublishBatch, partitions: int, turn: int) -> list[tuple[int, PublishBatch]]:
    """Part messages by partition, into batches that fit into an entry; order is kept in each."""
    if partitions <= 1:
        parted = [(0 if partitions else NOT_PARTITIONED, whole)]
    else:
        messages = whole.messages
        places = (
            turn % partitions if message.key is None else partition_of(message.key, partitions)
            for message in messages
        )
        parted = [(at, PublishBatch(found)) for at, found in sorted(grouped(messages, places))]
    batches = []
    for partition, together in parted:
        if together.fits(ENTRY_LIMITS):
            batches.append((partition, together))
        else:
            batches += [(partition, one) for one in split(together.messages, ENTRY_LIMITS)]
    return batches


def grouped(items: Sequence[T], places: Iterable[int]) -> Iterable[tuple[int, list[T]]]:
    """Return items by place, both in the order in which they come."""
    found: dict[int, list[T]] = {}
    for item, place in zip(items, places, strict=True):
        found.setdefault(place, []).append(item)
    return found.items()


class _Append:
    """One request's part in the queue of an accumulator."""

    __slots__ = ("batch", "deadline", "done", "error", "is_leader")

    def __init__(self, batch: PublishBatch, deadline: float) -> None:
        self.batch = batch
        self.deadline = deadline
        self.done: Event | None = None
        self.is_leader = False
        self.error: RouterError | None = None


class _PartitionAccumulator:
    """The appends of a partition: it exists while one is under way, `waiting` is behind it."""

    __slots__ = ("partition", "topic", "waiting")

    def __init__(self, topic: TopicName, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.waiting: deque[_Append] = deque()


class Appender:
    """Stores batches; calls wait, and may be made from many threads or greenlets."""

    def __init__(self, backend: Backend, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._backend = backend
        self._metrics = metrics
        self._clock = clock
        self._lock = threading.Lock()
        self._accumulators: dict[tuple[TopicName, int], _PartitionAccumulator] = {}
        self._last_joined = 1  # requests in the last append
        self._messages = self._bytes = 0  # stored, and not counted yet
        metrics.before_drain(self._count)

    def append(self, batch: Batch, size: int, deadline: float) -> Receipt:
        """Append a batch of `size` bytes that must not be joined with others.

        Returns where it is stored; raises what the backend raises.
        """
        receipt = self._backend.publish(batch, self._left(deadline))
        if not receipt.duplicate:
            self._note(len(batch.messages), size)
        return receipt

    def join(
        self, topic: TopicName, partition: int, batch: PublishBatch, deadline: float
    ) -> Steps[None]:
        """Append messages together with what other requests have for the partition.

        Raises BackendTimeoutError if the turn comes too late, PartialPublishError with the count
        of this batch's messages that are stored, and what the backend raises.
        """
        append = _Append(batch, deadline)
        name = topic, partition
        with self._lock:
            accumulator = self._accumulators.get(name)
            if accumulator is None:
                accumulator = _PartitionAccumulator(topic, partition)
                self._accumulators[name] = accumulator
                append.is_leader = True
            else:
                append.done = Event()
                accumulator.waiting.append(append)
        try:
            # Without a bound of its own, which would cost more than the rest of the queue: the
            # append under way has one, and the next batch leader leaves out what came too late.
            if append.done is not None:
                yield append.done, None
            # A lone publisher does not wait; among several the next are on their way already.
            if append.is_leader and (accumulator.waiting or self._last_joined > 1):
                yield YIELD_TO_LOOP, MAX_BATCH_DELAY_SECONDS
        except BaseException:
            self._leave(accumulator, append)
            raise
        if append.is_leader:
            self._lead(accumulator, append)
        elif append.error is not None:
            try:
                raise append.error
            finally:
                # Its traceback leads to this frame: from here it must not lead back to the error,
                # or the messages would stay until the garbage collector comes by.
                del append

    def _leave(self, accumulator: _PartitionAccumulator, append: _Append) -> None:
        """Give up waiting: what is still queued is not stored, and a leader hands on."""
        with self._lock:
            if append in accumulator.waiting:
                accumulator.waiting.remove(append)
        if append.is_leader:
            self._hand_on(accumulator)

    def _lead(self, accumulator: _PartitionAccumulator, leader: _Append) -> None:
        late: list[_Append] = []
        joined = [leader]
        try:
            with self._lock:
                _take(accumulator.waiting, joined, late, self._clock())
            self._store(accumulator, joined)
        except PartialPublishError as failure:
            _count_off(joined, failure)
            if leader.error is not None:
                raise leader.error from failure
        except BaseException as failure:
            for append in joined:
                append.error = _copy_of(failure)
            raise
        finally:
            self._hand_on(accumulator)
            for append in late:
                append.error = _too_late()
            for append in (*late, *joined):
                if append is not leader and append.done is not None:
                    append.done.wake()
            leader.error = None  # it was raised here, see `join`

    def _store(self, accumulator: _PartitionAccumulator, joined: Sequence[_Append]) -> None:
        self._last_joined = len(joined)
        messages = joined[0].batch.messages
        if len(joined) > 1:
            messages = [message for append in joined for message in append.batch.messages]
        deadline = max(append.deadline for append in joined)
        batch = Batch(accumulator.topic, accumulator.partition, messages)
        try:
            self._backend.publish(batch, self._left(deadline))
        except PartialPublishError as error:
            stored = messages[: error.stored]
            self._note(len(stored), sum(message.size() for message in stored))
            raise
        self._note(len(messages), sum([append.batch.size for append in joined]))

    def _hand_on(self, accumulator: _PartitionAccumulator) -> None:
        """Make the next in the queue the batch leader; without one the accumulator goes."""
        with self._lock:
            if not accumulator.waiting:
                del self._accumulators[accumulator.topic, accumulator.partition]
                return
            following = accumulator.waiting.popleft()
            following.is_leader = True
        assert following.done is not None
        following.done.wake()

    def _note(self, messages: int, size: int) -> None:
        """Note what was stored, for the metrics."""
        with self._lock:
            self._messages += messages
            self._bytes += size

    def _count(self) -> None:
        """Hand what was stored since the last call to the metrics."""
        with self._lock:
            messages, size = self._messages, self._bytes
            self._messages = self._bytes = 0
        if messages:
            self._metrics.inc("router_published_messages_total", messages)
            self._metrics.inc("router_published_bytes_total", size)

    def _left(self, deadline: float) -> float:
        return max(0.001, deadline - self._clock())


def _take(waiting: deque[_Append], joined: list[_Append], late: list[_Append], now: float) -> None:
    """Take from the queue what fits into one entry, and what is too late for any.

    Raises BackendTimeoutError if the batch leader itself is too late.
    """
    if joined[0].deadline <= now:
        raise _too_late()
    weight, messages = joined[0].batch.weight, len(joined[0].batch.messages)
    while waiting:
        if waiting[0].deadline <= now:
            late.append(waiting.popleft())
            continue
        weight += waiting[0].batch.weight
        messages += len(waiting[0].batch.messages)
        if weight > ENTRY_LIMITS.max_bytes or messages > ENTRY_LIMITS.max_messages:
            break
        joined.append(waiting.popleft())


def _too_late() -> BackendTimeoutError:
    return BackendTimeoutError("Earlier publishes took too long; none of these was stored.")


def _count_off(joined: Sequence[_Append], failure: PartialPublishError) -> None:
    """Give each append its failure: they are stored in order, up to where the append failed."""
    left = failure.stored
    for append in joined:
        length = len(append.batch.messages)
        stored = min(length, left)
        left -= stored
        if stored == length:
            continue
        if stored:
            append.error = PartialPublishError(str(failure), stored=stored)
        else:
            append.error = _copy_of(failure.__cause__ or PublishRefusedError(str(failure)))


def _copy_of(error: BaseException) -> RouterError:
    """Return a failure for one request that another met for all; exceptions are not shared."""
    if isinstance(error, RouterError):
        return from_code(error.code, str(error), error.retry_after)
    return OutcomeUnknownError.because("The append broke off.")
