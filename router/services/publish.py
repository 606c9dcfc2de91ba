"""Publishing: limits, partitions, names of requests; a request is answered as a whole.

Theory of operation. The messages of a request are parted by key, those without a key stay together
and take turns over the partitions, one turn a request, and each part joins the next append of its
partition (`appending`). What answers each message by itself is in `producing`.

A request that may be sent again (one with an idempotency key) does not join: each of its appends
carries a producer name made from what names the request, which the backend remembers with the
entry, so that a repeat is found however late it comes. What a key names must not change between
tries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, ParamSpec, TypeVar

from router.backends import Backend, Batch
from router.clocks.steps import Offload, Steps, run_blocking, run_here
from router.errors import (
    BackendTimeoutError,
    MessageTooLargeError,
    NotAllowedError,
    PartialPublishError,
    RouterError,
    SettingError,
    TopicNotFoundError,
)
from router.metrics import Metrics
from router.model import Message, Principal, TopicName
from router.model.publish_source import NO_SOURCE
from router.services.appending import Append, Appender
from router.services.batches import ENTRY_LIMITS, PublishBatch, parts
from router.services.shared_secret import RequestNames
from router.services.topic_metadata import TopicMetadataCache
from router.settings.options import SettingsOptions, from_setting

P = ParamSpec("P")
R = TypeVar("R")

MAX_LIGHT_MESSAGES: Final = 2_000
"""Up to so many, a request's messages are parted on the event loop."""


@dataclass(frozen=True, slots=True)
class PublishOptions(SettingsOptions):
    """The settings that publishing reads."""

    max_message: int = from_setting("publish.max_message")
    timeout: float = from_setting("publish.timeout")
    auto_create: bool = from_setting("topics.auto_create")

    def __post_init__(self) -> None:
        limit = ENTRY_LIMITS.max_bytes
        if self.max_message > limit:
            raise SettingError(f"publish.max_message: at most {limit} bytes fit into an entry")


@dataclass(frozen=True, slots=True)
class PublishResult:
    """How many messages are stored, and whether all of them were so before this request."""

    count: int
    replayed: bool = False


@contextmanager
def timeouts_of_publish() -> Iterator[None]:
    """Have a timeout say whether messages are stored: BackendTimeoutError and subclasses only."""
    try:
        yield
    except BackendTimeoutError as error:
        raise error.of_publish() from error


class Publisher:
    """Stores messages; calls wait, and may be made from many threads or greenlets."""

    def __init__(
        self,
        backend: Backend,
        topics: TopicMetadataCache,
        names: RequestNames,
        options: PublishOptions,
        metrics: Metrics,
        clock: Callable[[], float],
        *,
        offload: Offload = run_here,
    ) -> None:
        self._topics_cache = topics
        self._names = names
        self._cached_partitions = topics.known
        self._offload = offload
        self._options = options
        self._clock = clock
        self._appender = Appender(backend, metrics, clock)
        self._turn = 0  # over partitions, of the next request

    def publish(
        self,
        topic: TopicName,
        messages: Sequence[Message],
        principal: Principal,
        idempotency_key: str | None = None,
        source: bytes = NO_SOURCE,
    ) -> PublishResult:
        """Store messages as `publish_steps` does, waiting here."""
        with timeouts_of_publish():
            steps = self.publish_steps(topic, messages, principal, idempotency_key, source)
            return run_blocking(steps)

    def publish_steps(
        self,
        topic: TopicName,
        messages: Sequence[Message],
        principal: Principal,
        idempotency_key: str | None = None,
        source: bytes = NO_SOURCE,
    ) -> Steps[PublishResult]:
        """Store all messages or raise; when it returns they are durable.

        `source`: see `router.model.publish_source`.
        Raises MessageTooLargeError with nothing stored, PartialPublishError with the count of those
        that are stored, TopicNotFoundError, and what the backend raises.
        """
        if not messages:
            return PublishResult(0)
        light = len(messages) <= MAX_LIGHT_MESSAGES
        whole = (
            PublishBatch(messages, source)
            if light
            else self._offload(PublishBatch, messages, source)
        )
        self._check_size(whole)
        identity = None
        if idempotency_key is not None:
            identity = principal.name, str(topic), idempotency_key
        deadline = self._clock() + self._options.timeout
        partitions = self._partitions(topic)
        try:
            return (yield from self._publish(topic, whole, partitions, identity, deadline))
        except (TopicNotFoundError, NotAllowedError):
            # Deleted, or made again with other partitions, since the cache asked.
            partitions = self._partitions(topic)
            return (yield from self._publish(topic, whole, partitions, identity, deadline))

    def enter(self, topic: TopicName, append: Append) -> bool:
        """Begin to store an append's messages where one append takes them all, and return that.

        It does not wait: nothing begins, either, where the store is to be asked for the partitions.
        What it is called for then, or returns as leader with, `finish_steps` takes to its end; one
        that ends without an error is stored. `leave` gives it up. Raises what `publish` does, with
        nothing stored.
        """
        batch = append.batch
        self._check_size(batch)
        partitions = self._cached_partitions(topic)
        if partitions is None and (partitions := self._topics_cache.renewed(topic)) is None:
            return False
        append.deadline = self._clock() + self._options.timeout
        placed = parts(batch, partitions, self._turn)
        if len(placed) > 1:
            return False  # and the request, whose steps follow, has its turn still
        self._turn += 1
        self._appender.enter(topic, placed[0][0], append)
        return True

    def finish_steps(self, topic: TopicName, append: Append) -> Steps[PublishResult]:
        """Go on with what `enter` began; return and raise what `publish_steps` does."""
        try:
            yield from self._ended(topic, append)
        except (TopicNotFoundError, NotAllowedError):
            partitions, whole = self._partitions(topic), append.batch
            return (yield from self._publish(topic, whole, partitions, None, append.deadline))
        return PublishResult(len(append.batch.messages))

    def leave(self, append: Append) -> None:
        """Give up what `enter` began: what is not on its way is not stored."""
        self._appender.leave(append)

    def _ended(self, topic: TopicName, append: Append) -> Steps[None]:
        try:
            yield from self._appender.settle(append)
        except RouterError as error:
            if stored := _stored_of(error):
                raise _partial(topic, stored, error) from error
            self._topics_cache.forget(topic)
            raise

    def _publish(
        self,
        topic: TopicName,
        whole: PublishBatch,
        partitions: int,
        identity: tuple[str, ...] | None,
        deadline: float,
    ) -> Steps[PublishResult]:
        stored, replayed = 0, identity is not None
        try:
            # Messages without a key go where the turn says; a repeat's turn is the same.
            turn = (
                self._next_turn()
                if identity is None
                else int(self._names.digest(*identity)[:8], 16)
            )
            batches = self.compute(len(whole.messages), parts, whole, partitions, turn)
            for index, (partition, batch) in enumerate(batches):
                if identity is None:
                    yield from self._appender.join(topic, partition, batch, deadline)
                    stored += len(batch.messages)
                    continue
                name = self._names.producer(*identity, str(index))
                named = Batch(topic, partition, batch.messages, name, 0, batch.source)
                receipt = self._appender.append(named, batch.size, deadline)
                stored += receipt.stored
                replayed = replayed and receipt.duplicate
        except RouterError as error:
            if stored := stored + _stored_of(error):
                raise _partial(topic, stored, error) from error
            self._topics_cache.forget(topic)
            raise
        return PublishResult(stored, replayed)

    def compute(
        self, messages: int, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Call what computes with so many messages: here, or where it delays no other request."""
        if messages <= MAX_LIGHT_MESSAGES:
            return function(*args, **kwargs)
        return self._offload(function, *args, **kwargs)

    def _partitions(self, topic: TopicName) -> int:
        return self._topics_cache.partitions(topic, create=self._options.auto_create)

    def _next_turn(self) -> int:
        turn = self._turn
        self._turn += 1
        return turn

    def _check_size(self, batch: PublishBatch) -> None:
        limit = self._options.max_message
        if batch.largest <= limit:
            return
        sizes = [message.size() for message in batch.messages]
        at = next(index for index, size in enumerate(sizes) if size > limit)
        raise MessageTooLargeError(
            f"Message {at + 1} of {len(sizes)} has {sizes[at]} bytes, the limit is {limit}."
        )


def _stored_of(error: RouterError) -> int:
    return error.stored if isinstance(error, PartialPublishError) else 0


def _partial(topic: TopicName, stored: int, cause: RouterError) -> PartialPublishError:
    return PartialPublishError(
        f"Failed to publish messages to topic {topic.local}. Successfully published {stored} number"
        f" of messages. The rest failed: {cause}",
        stored=stored,
    )
