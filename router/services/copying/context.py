"""What all partitions of a copy share: both stores, the state, bounds, figures and the rate."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final, TypeVar

from router.backends import Backend
from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    ConflictError,
    EntryTooLargeError,
    IncompatibleSchemaError,
    InvalidSchemaError,
    NotAllowedError,
    NotSupportedError,
    PublishRefusedError,
    RouterError,
    SchemaNotFoundError,
    TopicNotFoundError,
)
from router.model import TopicName
from router.services.copying.fidelity import StoreKind
from router.services.copying.state import CopiedTopic, CopyState

MAX_BATCH_BYTES: Final = 4 * 1024 * 1024
MAX_BATCH_MESSAGES: Final = 5_000
MAX_RETRY_SECONDS: Final = 300.0
"""How long a copy goes on trying when one end goes away."""
REFUSED_SECONDS: Final = 30.0
"""The same for a target that answers and does not store."""
NOTICE_INTERVAL_SECONDS: Final = 5.0
RUN_AGAIN: Final = " Run the same command again: it goes on where it stopped."
MAX_PULSAR_MESSAGES: Final = 500
"""In a batch for Apache Pulsar, which keeps acknowledgements within an entry in memory: so many
messages come again at most to a group that stands in the middle of an entry."""
_VERSION_BYTES: Final = 8

T = TypeVar("T")


class StoppedError(RouterError):
    """The copy was stopped while it waited; what was in flight is settled by the next run."""


class SourceGoneError(RouterError):
    """The topic is not at the source any more."""


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """What a copy may take: `rate` bytes a second (0: any), `since` ms since 1970 (None: all).

    A store that went away is tried again for `retry_seconds`. `timeout` is that of one call;
    `workers` partitions are copied at a time.
    """

    rate: int = 0
    since: int | None = None
    follow: bool = False
    retry_seconds: float = MAX_RETRY_SECONDS
    timeout: float = 30.0
    workers: int = 4
    batch_messages: int = MAX_BATCH_MESSAGES


class Throttle:
    """Limits the bytes sent a second; 0: no limit."""

    def __init__(self, rate: int, stop: threading.Event) -> None:
        self._rate = rate
        self._stop = stop
        self._lock = threading.Lock()
        self._free_at = time.monotonic()

    def take(self, size: int) -> None:
        """Wait until `size` bytes may be sent, or the copy is stopped."""
        if not self._rate:
            return
        with self._lock:
            now = time.monotonic()
            begin = max(now, self._free_at)
            self._free_at = begin + size / self._rate
        self._stop.wait(begin - now)


class Figures:
    """Counts of what was copied and what could not be kept; notifies of stores that went away."""

    def __init__(self, notify: Callable[[str], None]) -> None:
        self._notify = notify
        self._lock = threading.Lock()
        self._notified_at: dict[str, float] = {}
        self.messages = 0
        self.bytes = 0
        self.batches = 0
        self.losses: Counter[str] = Counter()

    def copied(self, messages: int, size: int) -> None:
        """Count a batch whose receipt is there."""
        with self._lock:
            self.messages += messages
            self.bytes += size
            self.batches += 1

    def lost(self, what: str, count: int = 1) -> None:
        """Count messages of which something is not the same at the target."""
        with self._lock:
            self.losses[what] += count

    def notify(self, about: str, sentence: str) -> None:
        """Notify by a sentence, at most once in NOTICE_INTERVAL_SECONDS about the same."""
        now = time.monotonic()
        with self._lock:
            if (
                now - self._notified_at.get(about, -NOTICE_INTERVAL_SECONDS)
                < NOTICE_INTERVAL_SECONDS
            ):
                return
            self._notified_at[about] = now
        self._notify(sentence)


@dataclass(eq=False, slots=True)
class CopyContext:
    """The parts that every partition's copy uses; `readers` runs what reads ahead."""

    source: Backend
    target: Backend
    kind: StoreKind
    state: CopyState
    options: CopyOptions
    figures: Figures
    throttle: Throttle
    readers: Executor
    stop: threading.Event
    _schemas: dict[TopicName, SchemaVersions] = field(default_factory=dict, init=False)

    def schemas(self, topic: CopiedTopic) -> SchemaVersions:
        """Return the versions of a topic's schemas at the target."""
        return self._schemas.setdefault(topic.source, SchemaVersions(self, topic))

    def persist(self, side: str, attempt: Callable[[], T]) -> T:
        """Return the result of a call, repeated until it succeeds or its time ends.

        Raises the last failure, one that a retry does not mend at once, and StoppedError.
        """
        began, pause = time.monotonic(), 0.1
        while True:
            try:
                return attempt()
            except RouterError as error:
                left = self._left(side, error, began)
                if self.stop.wait(min(pause, left)):
                    raise StoppedError from error
                pause = min(2.0, pause * 2)

    def _left(self, side: str, error: RouterError, began: float) -> float:
        """Notify, and return for how many seconds a store may fail; raise if none are left."""
        if not is_passing(error):
            raise error
        refused = isinstance(error, PublishRefusedError)
        retry_seconds = min(self.options.retry_seconds, REFUSED_SECONDS if refused else math.inf)
        left = began + retry_seconds - time.monotonic()
        if left <= 0 and refused:
            raise error
        if left <= 0:
            raise type_of(error)(
                f"The {side} did not answer for {retry_seconds:.0f} s: {error}{RUN_AGAIN}"
            ) from error
        what = "refuses a batch" if refused else "does not answer"
        self.figures.notify(side, f"the {side} {what}, trying for {left:.0f} s: {error}")
        return left


def is_passing(error: RouterError) -> bool:
    """Return whether a failure may pass by itself."""
    lasting = StoppedError | ConflictError | EntryTooLargeError
    return error.retriable and not isinstance(error, lasting)


def not_made(topic: TopicName, error: PublishRefusedError) -> PublishRefusedError:
    """Return a refusal that may pass, with the topic that the target could not make for it."""
    return PublishRefusedError(
        f"topic {topic.local} cannot be made at the target: {str(error).rstrip('.')}.{RUN_AGAIN}"
    )


def type_of(error: RouterError) -> type[RouterError]:
    """Return the class with which a failure is raised again with a sentence around it."""
    if isinstance(error, BackendTimeoutError):
        return BackendTimeoutError
    return BackendUnavailableError


class SchemaVersions:
    """The versions of one topic's schemas at the target, by those at the source.

    All schemas of the source are put at the target in their order when the first one is needed.
    """

    def __init__(self, context: CopyContext, topic: CopiedTopic) -> None:
        self._context = context
        self._topic = topic
        self._lock = threading.Lock()
        self._versions: dict[bytes, bytes] = {b"": b""}

    def copy_all(self) -> None:
        """Put the schemas that the source has at the target, in their order."""
        source, timeout = self._context.source, self._context.options.timeout
        try:
            newest = source.schemas.get(self._topic.source, None, timeout).version
        except (SchemaNotFoundError, NotSupportedError, NotAllowedError):
            return
        numbered = len(newest) == _VERSION_BYTES
        count = int.from_bytes(newest) + 1 if numbered else 0
        known = [number.to_bytes(_VERSION_BYTES) for number in range(count)] or [newest]
        for version in known:
            self.get(version)

    def get(self, version: bytes) -> bytes:
        """Return the target's version of a schema, b"": it has none; raise what stores raise."""
        with self._lock:
            if (known := self._versions.get(version)) is None:
                known = self._versions[version] = self._put(version)
            return known

    def _put(self, version: bytes) -> bytes:
        context, topic = self._context, self._topic
        timeout = context.options.timeout
        try:
            try:
                schema = context.source.schemas.get(topic.source, version, timeout)
            except TopicNotFoundError as error:
                raise SourceGoneError(str(error)) from error
            return context.target.schemas.put(topic.target, schema, timeout)
        except (
            SchemaNotFoundError,
            IncompatibleSchemaError,
            InvalidSchemaError,
            NotSupportedError,
            NotAllowedError,
        ) as error:
            number = int.from_bytes(version[:_VERSION_BYTES])
            sentence = (
                f"schema {number} of topic {topic.source.local} is not at the target, and its"
                f" messages name no schema there: {error}"
            )
            context.figures.notify(f"schema {topic.source} {number}", sentence)
            context.figures.lost("schemas that the target refused")
            return b""
