"""What a poll asks for, the client that waits for it, and what all polls of a worker share."""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from router.backends import Backend, Start
from router.backends.polling import FetchTerms
from router.clocks.steps import Event, Steps
from router.clocks.ttl_cache import TTLMap
from router.errors import PublishRefusedError, ReadFailedError
from router.metrics import Metrics, taken
from router.model import UNDECODED, VALUE_OF, Stored, Subscription, TopicName
from router.node import Node
from router.services.consume.ack_tokens import AnsweredRange
from router.services.consume.retained import RetainedClaims
from router.services.memory_budget import MemoryBudget, Reservation
from router.services.topic_metadata import TopicMetadataCache
from router.settings import Settings
from router.sharing.registry import RecordVersion

KNOWN_GROUP_SECONDS: Final = 30.0
MAX_KNOWN_GROUPS: Final = 20_000
MAX_UNCOUNTED: Final = 20_000
"""Polls between two drains of the metrics, a second apart; commands never drain theirs."""


MESSAGE_OVERHEAD_BYTES: Final = 512
"""What a received message takes beside its value."""


class ClientGoneError(Exception):
    """The client closed its connection: an answer has no receiver."""


class WaitingClient(Protocol):
    """The client that waits for the answer."""

    def is_closed(self) -> bool:
        """Return whether the client closed its connection; never waits."""
        ...

    def check_seconds(self) -> float:
        """Return after how many seconds to ask again; infinite if the mailbox is woken instead."""
        ...


class ConnectedClient:
    """A client whose connection never closes."""

    def is_closed(self) -> bool:
        """Return False."""
        return False

    def check_seconds(self) -> float:
        """Return infinity."""
        return math.inf


class PollMailbox(Event):
    """Wakes one waiting poll.

    A poll that waits without a timer is woken after `until`, a time of the polls' clock; None:
    never.
    """

    __slots__ = ("until",)

    def __init__(self) -> None:
        super().__init__()
        self.until: float | None = None


class AckMode(Enum):
    """What acknowledges the messages of an answer.

    `WRITTEN`: that the answer was written; `NEXT`: the next poll of the id; `EXPLICIT`: a later
    poll that names them.
    """

    WRITTEN = "written"
    NEXT = "next"
    EXPLICIT = "explicit"


@dataclass(frozen=True, slots=True)
class PollRequest:
    """What a poll asks for; `timeout` in seconds, `max_bytes` None: as settings say.

    `start` is for a group that does not exist yet; a number is a time in ms since 1970. `limited`:
    if it ends empty, it counts against the limit on empty polls. `acknowledged` are messages of an
    earlier answer, by partition, that the poll acknowledges first; a `limit` of 0: it does no more.
    Terms of `fetch` are for a store that serves polls itself, and the `record` by which the poll
    goes: nothing is acknowledged, and the poll is refused if the record may have another version.
    """

    subscription: Subscription
    consumer: str
    timeout: float
    limit: int
    max_bytes: int | None = None
    start: Start | int = Start.LATEST
    ack: AckMode = AckMode.WRITTEN
    limited: bool = True
    acknowledged: Mapping[int, AnsweredRange] = field(default_factory=dict)
    fetch: FetchTerms | None = None
    record: RecordVersion | None = None


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    """The settings that consuming reads."""

    max_bytes: int
    backend_timeout: float
    create_topics: bool
    max_unsent: int = 128 << 20
    dead_letter_topic: TopicName | None = None

    @classmethod
    def from_settings(cls, settings: Settings) -> ConsumeOptions:
        """Return what the settings say; raise SettingError."""
        dead_letters = settings.text("consume.dead_letter_topic")
        return cls(
            settings.number("consume.max_bytes"),
            settings.seconds("backend.timeout"),
            settings.text("consume.unknown_topic") == "create",
            settings.number("consume.max_unsent"),
            settings.topic(dead_letters) if dead_letters else None,
        )


class PollFigures:
    """Figures of the polls of a worker, which the metrics take when they are drained.

    Polls append from any thread: their seconds waited and seconds else, the outcomes of claims, and
    of each answer the messages, their bytes, and how many could not be taken apart.
    """

    def __init__(self, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.waiting: set[PollMailbox] = set()
        self.seconds: deque[tuple[float, float]] = deque(maxlen=MAX_UNCOUNTED)
        self.outcomes: deque[str] = deque(maxlen=MAX_UNCOUNTED)
        self.answers: deque[tuple[int, int, int]] = deque(maxlen=MAX_UNCOUNTED)
        self._metrics = metrics
        self._lock = threading.Lock()
        self._counted_waiting = 0
        metrics.before_drain(self._count)

    def note_answer(self, messages: Sequence[Stored]) -> None:
        """Note an answer that is out."""
        undecoded = 0
        for stored in messages:
            undecoded += UNDECODED in stored.message.properties
        size = sum(map(len, map(VALUE_OF, messages)))
        self.answers.append((len(messages), size, undecoded))

    def _count(self) -> None:
        metrics, now = self._metrics, self._clock()
        for mailbox in tuple(self.waiting):
            if mailbox.until is not None and mailbox.until <= now:
                mailbox.wake()
        with self._lock:
            more = len(self.waiting) - self._counted_waiting
            self._counted_waiting += more
        metrics.gauge("router_polls_waiting", more)
        if seconds := taken(self.seconds):
            waited, worked = zip(*seconds, strict=True)
            metrics.observe_all("router_poll_wait_seconds", waited)
            metrics.observe_all("router_poll_service_seconds", worked)
        if answers := taken(self.answers):
            messages, sizes, strange = map(sum, zip(*answers, strict=True))
            metrics.inc("router_delivered_messages_total", messages)
            metrics.inc("router_delivered_bytes_total", sizes)
            if strange:
                metrics.inc("router_undecoded_messages_total", strange)
        for outcome, times in Counter(taken(self.outcomes)).items():
            metrics.inc("router_polls_total", times, outcome=outcome)


def answer_size(messages: Sequence[Stored]) -> int:
    """Return about how much memory an answer takes: the messages, and the body made of them."""
    return 2 * sum(map(len, map(VALUE_OF, messages))) + MESSAGE_OVERHEAD_BYTES * len(messages)


@dataclass(eq=False, slots=True)
class AnswerMemory:
    """The memory that one answer takes until it is sent."""

    _budget: MemoryBudget
    _reserved: Reservation | None = field(default=None, init=False)

    def reserve(self, size: int) -> bool:
        """Reserve bytes of the memory budget; return False if they are not free."""
        if self._reserved is not None:
            if self._reserved.shrink(size):
                return True
            self.release()
        self._reserved = self._budget.try_reserve(size)
        return self._reserved is not None

    def wait_for(self, size: int, deadline: float) -> Steps[None]:
        """Reserve bytes of the memory budget, waiting until they are free."""
        self._reserved = yield from self._budget.reserve(size, 0, deadline)

    def release(self) -> None:
        """Give it back; callable twice."""
        reserved, self._reserved = self._reserved, None
        if reserved is not None:
            reserved.release()


class PollContext:
    """The parts that polls use, the memory of their answers, what is retained for the next ones."""

    def __init__(
        self,
        parts: tuple[Backend, Node, TopicMetadataCache],
        options: ConsumeOptions,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self.backend, self.node, self.topics = parts
        self.options = options
        self.figures = PollFigures(metrics, clock)
        self.clock = clock
        self.unsent = MemoryBudget(options.max_unsent, clock)
        self.retained = RetainedClaims(clock)
        self.stopping = False
        self._known_groups: TTLMap[Subscription, bool] = TTLMap(
            KNOWN_GROUP_SECONDS, MAX_KNOWN_GROUPS, clock
        )

    def ensure_group(self, request: PollRequest, *, again: bool = False) -> int:
        """Make the group exist; return how many partitions its topic has.

        `again`: even if it was made a moment ago. Raises TopicNotFoundError, ReadFailedError.
        """
        subscription = request.subscription
        topic = subscription.topic
        partitions = self.topics.known(topic)
        if partitions is None:
            partitions = self.topics.partitions(topic, create=self.options.create_topics)
        if again or not self._known_groups.get(subscription):
            try:
                self.backend.subscribe(subscription, request.start, self.options.backend_timeout)
            except PublishRefusedError as error:  # a full disk: there is nothing to publish here
                raise ReadFailedError(f"The group cannot be made: {error}.") from error
            self._known_groups.put(subscription, True)
        return partitions

    def forget(self, subscription: Subscription) -> None:
        """Ask the store for the topic and the group the next time."""
        self._known_groups.remove(subscription)
        self.topics.forget(subscription.topic)

    def check_topic(self, subscription: Subscription) -> None:
        """Raise TopicNotFoundError if consumers ended because their topic was deleted."""
        self.forget(subscription)
        self.topics.partitions(subscription.topic)
