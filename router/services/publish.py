"""Publishing: limits, partitions by key, and one append for all requests that come meanwhile.

Theory of operation. A request's messages are parted by key (`partitioning`); those without a key
stay together and take turns over the partitions, one turn a request. Each part is appended through
the *lane* of its partition: the first request leads, that is, it calls the backend; requests that
arrive while an append is under way queue behind it, and the first of them then leads the next
append with all that fit into it. One append is in flight for each partition and worker, which keeps
the order and lets a slow disk make batches larger instead of queues longer. The alternative, a
thread that collects for a millisecond, makes every lone publisher wait and needs the thread.

Where requests meet, who leads first lets those come in that are there already (`LULL`): clients
that were answered together ask again together; the first would else go alone, the others after it.

A request with an idempotency key does not join: each of its appends carries a producer name made
from the key, which the backend remembers with the entry, so that a repeat is found however late it
comes. What the key names must not change between tries.

A backend that stored only the beginning of a joined append says how many messages that is. They are
counted off over the requests in order, so that each is told what is stored of its own.

The one lock guards the lanes and is never held over a call of the backend.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final, ParamSpec, TypeVar

from router.backends import Backend, Batch, Receipt
from router.errors import (
    BackendTimeoutError,
    MessageTooLargeError,
    NotAllowedError,
    OutcomeUnknownError,
    PartialPublishError,
    PublishRefusedError,
    RouterError,
    SettingError,
    TopicNotFoundError,
    from_code,
)
from router.metrics import Metrics
from router.model import Message, Principal, TopicName
from router.services.directory import Directory
from router.services.idempotency import RequestNames
from router.services.portions import MAX_BYTES, MAX_MESSAGES, Portion, parts
from router.settings import Settings
from router.waiting import LULL, Offload, Steps, Wakeup, finish, run_here

P = ParamSpec("P")
R = TypeVar("R")

MAX_LIGHT_MESSAGES: Final = 2_000
"""Up to so many, a request's messages are parted on the event loop."""
PATIENCE: Final = 0.002
"""Seconds that an append waits at most for requests that could join it."""


@dataclass(frozen=True, slots=True)
class PublishOptions:
    """The settings that publishing reads."""

    max_message: int
    timeout: float
    auto_create: bool

    def __post_init__(self) -> None:
        if self.max_message > MAX_BYTES:
            raise SettingError(f"publish.max_message: at most {MAX_BYTES} bytes fit into an entry")

    @classmethod
    def of(cls, settings: Settings) -> PublishOptions:
        """Read them."""
        return cls(
            settings.number("publish.max_message"),
            settings.seconds("publish.timeout"),
            settings.flag("topics.auto_create"),
        )


@dataclass(frozen=True, slots=True)
class Published:
    """How many messages are stored, and whether all of them were so before this request."""

    count: int
    replayed: bool = False


class _Append:
    """One request's part in the queue of a lane."""

    __slots__ = ("deadline", "done", "error", "leads", "portion")

    def __init__(self, portion: Portion, deadline: float) -> None:
        self.portion = portion
        self.deadline = deadline
        self.done: Wakeup | None = None
        self.leads = False
        self.error: RouterError | None = None


class _Lane:
    """The appends of a partition: it is there while one is under way, `waiting` is behind it."""

    __slots__ = ("partition", "topic", "waiting")

    def __init__(self, topic: TopicName, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.waiting: deque[_Append] = deque()


class Publisher:
    """Stores messages; calls wait, and may be made from many threads or greenlets."""

    def __init__(
        self,
        parts: tuple[Backend, Directory, RequestNames],
        options: PublishOptions,
        metrics: Metrics,
        clock: Callable[[], float],
        *,
        offload: Offload = run_here,
    ) -> None:
        self._backend, self._directory, self.names = parts
        self._offload = offload
        self._options = options
        self._metrics = metrics
        self._clock = clock
        self._turns = count()
        self._lock = threading.Lock()
        self._lanes: dict[tuple[TopicName, int], _Lane] = {}
        self._together = 1  # requests in the last append

    def publish(
        self,
        topic: TopicName,
        messages: Sequence[Message],
        principal: Principal,
        idempotency_key: str | None = None,
    ) -> Published:
        """Store messages as `publishing` does, waiting here."""
        return finish(self.publishing(topic, messages, principal, idempotency_key))

    def publishing(
        self,
        topic: TopicName,
        messages: Sequence[Message],
        principal: Principal,
        idempotency_key: str | None = None,
    ) -> Steps[Published]:
        """Store all messages or raise; when it returns they are durable.

        Raises MessageTooLargeError with nothing stored, PartialPublishError with the count of those
        that are stored, TopicNotFoundError, and what the backend raises.
        """
        if not messages:
            return Published(0)
        whole = self.compute(len(messages), Portion, messages)
        if whole.largest > self._options.max_message:
            raise self._too_large(messages)
        request = _Request(self, topic, self._clock() + self._options.timeout)
        if idempotency_key is not None:
            request.identify(self.names, (principal.name, str(topic), idempotency_key))
        partitions = self._partitions(topic)
        try:
            return (yield from self._attempt(request, whole, partitions))
        except (TopicNotFoundError, NotAllowedError):
            # Deleted, or made anew with other partitions, since the directory looked.
            return (yield from self._attempt(request, whole, self._partitions(topic)))

    def compute(
        self, messages: int, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Call what computes with so many messages: here, or where it delays no other request."""
        call = self._offload if messages > MAX_LIGHT_MESSAGES else run_here
        return call(function, *args, **kwargs)

    def _too_large(self, messages: Sequence[Message]) -> MessageTooLargeError:
        sizes = [message.size() for message in messages]
        limit = self._options.max_message
        at = next(index for index, size in enumerate(sizes) if size > limit)
        return MessageTooLargeError(
            f"Message {at + 1} of {len(sizes)} has {sizes[at]} bytes, the limit is {limit}."
        )

    def _partitions(self, topic: TopicName) -> int:
        return self._directory.partitions(topic, create=self._options.auto_create)

    def _attempt(self, request: _Request, whole: Portion, partitions: int) -> Steps[Published]:
        try:
            turn = request.turn(self._turns)
            portions = self.compute(len(whole.messages), parts, whole, partitions, turn)
            return (yield from request.store(portions))
        except RouterError as error:
            stored = request.stored
            if isinstance(error, PartialPublishError):
                stored += error.stored
            if stored:
                raise _partial(request.topic, stored, error) from error
            self._directory.forget(request.topic)
            raise

    def alone(self, batch: Batch, size: int, deadline: float) -> Receipt:
        """Append a batch that must not be joined with others."""
        receipt = self._backend.publish(batch, self._left(deadline))
        if not receipt.duplicate:
            self._count(len(batch.messages), size)
        return receipt

    def join(
        self, topic: TopicName, partition: int, portion: Portion, deadline: float
    ) -> Steps[None]:
        """Append messages together with what other requests have for the partition."""
        append = _Append(portion, deadline)
        name = topic, partition
        with self._lock:
            lane = self._lanes.get(name)
            if lane is None:
                lane = self._lanes[name] = _Lane(topic, partition)
                append.leads = True
            else:
                append.done = Wakeup()
                lane.waiting.append(append)
        try:
            # Without a bound of its own, which would cost more than the rest of the queue: the
            # append under way has one, and who leads the next leaves out what came too late.
            if append.done is not None:
                yield append.done, None
            # A lone publisher waits for nobody; among several the next are on their way already.
            if append.leads and (lane.waiting or self._together > 1):
                yield LULL, PATIENCE
        except BaseException:
            self._leave(lane, append)
            raise
        if append.leads:
            self._lead(lane, append)
        elif append.error is not None:
            try:
                raise append.error
            finally:
                # Its traceback leads to this frame: from here it must not lead back to the error,
                # or the messages would stay until the garbage collector comes by.
                del append

    def _leave(self, lane: _Lane, append: _Append) -> None:
        """Give up waiting: what nobody took yet is not stored, and who was to lead hands on."""
        with self._lock:
            if append in lane.waiting:
                lane.waiting.remove(append)
        if append.leads:
            self._hand_on(lane)

    def _lead(self, lane: _Lane, first: _Append) -> None:
        late: list[_Append] = []
        joined = [first]
        try:
            with self._lock:
                _take(lane.waiting, joined, late, self._clock())
            self._append(lane, joined)
        except PartialPublishError as failure:
            _share(joined, failure)
            if first.error is not None:
                raise first.error from failure
        except BaseException as failure:
            for append in joined:
                append.error = _same(failure)
            raise
        finally:
            self._hand_on(lane)
            for append in late:
                append.error = _too_late()
            for append in (*late, *joined):
                if append is not first and append.done is not None:
                    append.done.wake()
            first.error = None  # it was raised here, see `join`

    def _append(self, lane: _Lane, joined: Sequence[_Append]) -> None:
        self._together = len(joined)
        messages = joined[0].portion.messages
        if len(joined) > 1:
            messages = [message for append in joined for message in append.portion.messages]
        deadline = max(append.deadline for append in joined)
        try:
            self._backend.publish(Batch(lane.topic, lane.partition, messages), self._left(deadline))
        except PartialPublishError as error:
            stored = messages[: error.stored]
            self._count(len(stored), sum(message.size() for message in stored))
            raise
        self._count(len(messages), sum(append.portion.size for append in joined))

    def _hand_on(self, lane: _Lane) -> None:
        with self._lock:
            if not lane.waiting:
                del self._lanes[lane.topic, lane.partition]
                return
            following = lane.waiting.popleft()
            following.leads = True
        assert following.done is not None
        following.done.wake()

    def _count(self, messages: int, size: int) -> None:
        self._metrics.inc("router_published_messages_total", messages)
        self._metrics.inc("router_published_bytes_total", size)

    def _left(self, deadline: float) -> float:
        return max(0.001, deadline - self._clock())


class _Request:
    """One request's way through the partitions, and what of it is stored so far."""

    def __init__(self, publisher: Publisher, topic: TopicName, deadline: float) -> None:
        self.publisher = publisher
        self.topic = topic
        self.deadline = deadline
        self.stored = 0
        self.fresh = False
        self._producer: Callable[[int], str] | None = None
        self._turn = 0

    def identify(self, names: RequestNames, identity: tuple[str, ...]) -> None:
        """Name the request, so that what it stores is stored once."""
        self._turn = int(names.digest(*identity)[:8], 16)
        self._producer = lambda index: names.producer(*identity, str(index))

    def turn(self, turns: Iterator[int]) -> int:
        """Return what chooses the partition of messages without key; a repeat's is the same."""
        return next(turns) if self._producer is None else self._turn

    def store(self, portions: Sequence[tuple[int, Portion]]) -> Steps[Published]:
        """Store the portions in turn; `stored` counts what is."""
        for index, (partition, portion) in enumerate(portions):
            if self._producer is None:
                yield from self.publisher.join(self.topic, partition, portion, self.deadline)
                self.stored += len(portion.messages)
                continue
            name = self._producer(index)
            batch = Batch(self.topic, partition, portion.messages, name, 0)
            receipt = self.publisher.alone(batch, portion.size, self.deadline)
            self.stored += receipt.stored
            self.fresh |= not receipt.duplicate
        return Published(self.stored, self._producer is not None and not self.fresh)


def _take(waiting: deque[_Append], joined: list[_Append], late: list[_Append], now: float) -> None:
    """Take from the queue what fits into one entry, and what is too late for any.

    Raises BackendTimeoutError if the first, which leads, is too late itself.
    """
    if joined[0].deadline <= now:
        raise _too_late()
    weight, messages = joined[0].portion.weight, len(joined[0].portion.messages)
    while waiting:
        if waiting[0].deadline <= now:
            late.append(waiting.popleft())
            continue
        weight += waiting[0].portion.weight
        messages += len(waiting[0].portion.messages)
        if weight > MAX_BYTES or messages > MAX_MESSAGES:
            break
        joined.append(waiting.popleft())


def _too_late() -> BackendTimeoutError:
    return BackendTimeoutError("Earlier publishes took too long; none of these was stored.")


def _share(joined: Sequence[_Append], failure: PartialPublishError) -> None:
    """Tell each append what is stored of it: they are stored in order, up to where it failed."""
    left = failure.stored
    for append in joined:
        length = len(append.portion.messages)
        stored = min(length, left)
        left -= stored
        if stored == length:
            continue
        if stored:
            append.error = PartialPublishError(str(failure), stored=stored)
        else:
            append.error = _same(failure.__cause__ or PublishRefusedError(str(failure)))


def _same(error: BaseException) -> RouterError:
    """Return a failure for one request that another met for all; exceptions are not shared."""
    if isinstance(error, RouterError):
        return from_code(error.code, str(error), error.retry_after)
    return OutcomeUnknownError.because("The append broke off.")


def _partial(topic: TopicName, stored: int, cause: RouterError) -> PartialPublishError:
    return PartialPublishError(
        f"Failed to publish messages to topic {topic.local}. Successfully published {stored} number"
        f" of messages. The rest failed: {cause}",
        stored=stored,
    )
