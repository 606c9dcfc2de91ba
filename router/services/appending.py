"""Appends of a worker: one at a time for each partition, shared by the requests that wait for it.

Theory of operation. Requests append through the *accumulator* of their partition. The first request
is the batch leader: it calls the backend. Requests that arrive while an append is under way queue
behind it; the first of them leads the next append and takes all that fit into it. One append is in
flight for each partition and worker, which keeps the order and lets a slow disk make batches larger
instead of queues longer. The alternative, a thread that collects for a millisecond, makes every
lone publisher wait and needs the thread.

A backend may carry the appends of many partitions at once (`JointBackend`). Then they share one
accumulator, named None, and each partition has an outcome of its own. Left out are large batches,
and partitions whose last append is still under way in their own accumulator.

A batch leader that has company first lets requests in that have arrived already (`YIELD_TO_LOOP`):
clients that were answered together ask again together, and the leader would otherwise go alone.

A backend that stored only the beginning of a joined append says how many messages that is. They are
counted off over the requests in order, so that each request learns what is stored of its own.

A request enters an accumulator by an `Append`, which is called back once: when it leads, or when
it has ended. Who waits in steps (`join`) is woken by that. Who does not need to wait, because all
that is left is to write an answer, answers in the call: so one pass over the requests of a batch
answers them all, in the greenlet or thread of their leader.

The one lock guards the accumulators and is never held over a call of the backend, nor over anything
that switches greenlets. So it is a native one: gevent's own costs each publish three times as much.
"""

from __future__ import annotations

from _thread import RLock
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from router.backends import Backend, Batch, JointBackend, Receipt
from router.clocks.steps import YIELD_TO_LOOP, Event, Steps
from router.errors import (
    BackendTimeoutError,
    OutcomeUnknownError,
    PartialPublishError,
    PublishRefusedError,
    RouterError,
    from_code,
)
from router.metrics import Metrics
from router.model import TopicName
from router.model.publish_source import shared_source
from router.services.batches import ENTRY_LIMITS, PublishBatch

MAX_BATCH_DELAY_SECONDS: Final = 0.002
"""Time that an append waits at most for requests that could join it."""
MAX_JOINT_BYTES: Final = 64 * 1024
"""A larger batch is appended by itself, however many partitions have something to append."""
MAX_JOINT_PARTITIONS: Final = 500
"""Whose appends go together, at most."""
Place = tuple[TopicName, int]
"""A topic, and the number of a partition."""


class Append(ABC):
    """One request's part in the queue of a partition; a subclass says what `called` does."""

    __slots__ = ("accumulator", "batch", "deadline", "error", "is_leader", "place")

    accumulator: _Accumulator
    place: Place

    def __init__(self, batch: PublishBatch, deadline: float) -> None:
        self.batch = batch
        self.deadline = deadline
        self.is_leader = False
        self.error: RouterError | None = None

    @abstractmethod
    def called(self) -> None:
        """Take note that it `is_leader`, or has ended with its `error`, None: it is stored.

        Called once if another leads when it enters, in the leader's greenlet or thread; must not
        wait, and raises nothing.
        """


class _WaitingAppend(Append):
    """One that waits in steps."""

    __slots__ = ("done",)

    def __init__(self, batch: PublishBatch, deadline: float) -> None:
        super().__init__(batch, deadline)
        self.done = Event()

    def called(self) -> None:
        self.done.wake()


@dataclass(eq=False, slots=True)
class _Accumulator:
    """The appends of a partition (`name`), or of many (None); it exists while one is under way.

    `waiting` is behind it.
    """

    name: Place | None
    waiting: deque[Append] = field(default_factory=deque, init=False)


class Appender:
    """Stores batches; calls wait, and may be made from many threads or greenlets."""

    def __init__(self, backend: Backend, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._backend = backend
        self._metrics = metrics
        self._clock = clock
        self._lock = RLock()
        self._accumulators: dict[Place | None, _Accumulator] = {}
        self._joint = backend if isinstance(backend, JointBackend) else None
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
        append = _WaitingAppend(batch, deadline)
        self.enter(topic, partition, append)
        return self.settle(append, None if append.is_leader else append.done)

    def enter(self, topic: TopicName, partition: int, append: Append) -> None:
        """Queue an append; one that `is_leader` then is not called: its steps are to be taken."""
        place = append.place = topic, partition
        with self._lock:
            name = None if self._may_join(place, append.batch) else place
            accumulator = self._accumulators.get(name)
            if accumulator is None:
                accumulator = self._accumulators[name] = _Accumulator(name)
                append.is_leader = True
            else:
                accumulator.waiting.append(append)
            append.accumulator = accumulator

    def settle(self, append: Append, done: Event | None = None) -> Steps[None]:
        """Take an append to its end, as `join` does; `done`: what wakes one that waits still."""
        try:
            # Without a bound of its own, which would cost more than the rest of the queue: the
            # append under way has one, and the next batch leader leaves out what came too late.
            if done is not None:
                yield done, None
            # A lone publisher does not wait; among several the next are on their way already.
            if append.is_leader and (append.accumulator.waiting or self._last_joined > 1):
                yield YIELD_TO_LOOP, MAX_BATCH_DELAY_SECONDS
        except BaseException:
            self.leave(append)
            raise
        if append.is_leader:
            settled = self._lead(append.accumulator, append)
            if settled is not None:
                yield settled, None
        if append.error is not None:
            error, append.error = append.error, None
            try:
                raise error
            finally:
                # Its traceback leads to this frame: from here it must not lead back to the error,
                # or the messages would stay until the garbage collector comes by.
                del error

    def leave(self, append: Append) -> None:
        """Give up waiting: what is still queued is not stored, and a leader hands on."""
        accumulator = append.accumulator
        with self._lock:
            if append in accumulator.waiting:
                accumulator.waiting.remove(append)
        if append.is_leader:
            self._hand_on(accumulator)

    def _may_join(self, place: Place, batch: PublishBatch) -> bool:
        """Return whether an append may go together with those of other partitions."""
        return (
            self._joint is not None
            and batch.weight <= MAX_JOINT_BYTES
            and place not in self._accumulators
            and self._joint.is_open(*place)
        )

    def _lead(self, accumulator: _Accumulator, leader: Append) -> Event | None:
        """Store what waits; return what the leader has to wait for then, None: for nothing."""
        late: list[Append] = []
        joined = [leader]
        joint = False
        try:
            with self._lock:
                _take(accumulator.waiting, joined, late, self._clock())
            self._last_joined = len(joined)
            joint = accumulator.name is None and any(
                append.place != leader.place for append in joined
            )
            if joint:
                return self._store_joint(joined)
            self._store(leader.place, joined)
        except PartialPublishError as failure:
            _count_off(joined, failure)
            if leader.error is not None:
                raise leader.error from failure
        except BaseException as failure:
            if not joint:
                _fail(joined, failure)
            raise
        finally:
            self._hand_on(accumulator)
            if late:
                _fail(late, _too_late())
            for append in late if joint else (*late, *joined):
                if append is not leader:
                    append.called()
            if not joint:
                leader.error = None  # it was raised here, see `settle`
        return None

    def _store(self, place: Place, joined: Sequence[Append]) -> None:
        batch = _batch(place, joined)
        try:
            self._backend.publish(batch, self._left(_latest(joined)))
        except PartialPublishError as error:
            stored = batch.messages[: error.stored]
            self._note(len(stored), sum(message.size() for message in stored))
            raise
        self._note_all(joined)

    def _store_joint(self, joined: Sequence[Append]) -> Event | None:
        """Store appends of several partitions; each ends with the failure of its own partition's.

        The first is the leader's: what is returned wakes it if that is yet to end.
        """
        assert self._joint is not None
        by_place: dict[Place, list[Append]] = {}
        for append in joined:
            by_place.setdefault(append.place, []).append(append)
        parts = list(by_place.values())
        left = set(range(len(parts)))
        leader, ended = joined[0], Event()

        def settled(number: int, failure: BaseException | None) -> None:
            self._end(parts[number], failure)
            left.remove(number)  # only now: another thread may look for the leader's outcome
            for append in parts[number]:
                if append is leader:
                    ended.wake()
                else:
                    append.called()

        try:
            batches = [_batch(place, appends) for place, appends in by_place.items()]
            self._joint.publish_many(batches, self._left(_latest(joined)), settled)
        except BaseException as failure:
            for number in list(left):
                settled(number, failure)
            raise
        return ended if 0 in left else None

    def _end(self, appends: Sequence[Append], failure: BaseException | None) -> None:
        """Give the appends of one partition their outcome."""
        if failure is None:
            self._note_all(appends)
        elif isinstance(failure, PartialPublishError):
            _count_off(appends, failure)
        else:
            _fail(appends, failure)

    def _hand_on(self, accumulator: _Accumulator) -> None:
        """Make the next in the queue the batch leader; without one the accumulator goes."""
        with self._lock:
            if not accumulator.waiting:
                del self._accumulators[accumulator.name]
                return
            following = accumulator.waiting.popleft()
            following.is_leader = True
        following.called()

    def _note(self, messages: int, size: int) -> None:
        with self._lock:
            self._messages += messages
            self._bytes += size

    def _note_all(self, appends: Sequence[Append]) -> None:
        messages = sum([len(append.batch.messages) for append in appends])
        self._note(messages, sum([append.batch.size for append in appends]))

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


def _take(waiting: deque[Append], joined: list[Append], late: list[Append], now: float) -> None:
    """Take from the queue what fits into one entry, and what is too late for any.

    Raises BackendTimeoutError if the batch leader itself is too late.
    """
    if joined[0].deadline <= now:
        raise _too_late()
    weight, messages = joined[0].batch.weight, len(joined[0].batch.messages)
    places = {joined[0].place}
    while waiting:
        following = waiting[0]
        if following.deadline <= now:
            late.append(waiting.popleft())
            continue
        weight += following.batch.weight
        messages += len(following.batch.messages)
        places.add(following.place)
        if (
            weight > ENTRY_LIMITS.max_bytes
            or messages > ENTRY_LIMITS.max_messages
            or len(places) > MAX_JOINT_PARTITIONS
        ):
            break
        joined.append(waiting.popleft())


def _batch(place: Place, appends: Sequence[Append]) -> Batch:
    messages, source = appends[0].batch.messages, appends[0].batch.source
    if len(appends) > 1:
        messages = [message for append in appends for message in append.batch.messages]
        if {append.batch.source for append in appends} != {source}:
            batches = [append.batch for append in appends]
            source = shared_source([(len(one.messages), one.source) for one in batches])
    return Batch(*place, messages, source=source)


def _latest(appends: Sequence[Append]) -> float:
    return max([append.deadline for append in appends])


def _fail(appends: Sequence[Append], failure: BaseException) -> None:
    """Give each append a failure of its own."""
    for append in appends:
        append.error = _copy_of(failure)


def _too_late() -> BackendTimeoutError:
    return BackendTimeoutError("Earlier publishes took too long.")


def _count_off(joined: Sequence[Append], failure: PartialPublishError) -> None:
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
