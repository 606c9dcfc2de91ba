"""Claims that a worker retains between two polls of a consumer id, with their open consumers.

Theory of operation. A claim, a consumer on each partition and a release cost a poll several
requests to the node's broker and to the store. An id that polls again at once needs none of them:
the claim of a poll that delivered messages is retained here for RETAIN_SECONDS, and the id's next
poll goes on where the last one ended. It is retained only for an id that polled here a moment ago,
so that polls which alternate between workers do not recall each other's claims.

Nothing is pinned to the worker. The node recalls a claim when another poll of the id waits for it,
another node for its lease, or an administrator for its end (`router.node.Claim`). One thread finds
claims that are recalled, lost, revoked or unused, and has each ended: its consumers are closed,
which ends what they have under way, and it is released. They have at most MAX_RETAINED
consumers; what each has read ahead is bounded by its backend.

One lock guards the table; it is never held over I/O.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from router.backends import Consumer
from router.clocks.ttl_cache import TTLMap
from router.errors import RouterError
from router.model import ConsumerId, PollOutcome, Position
from router.node import Claim, Mailbox

RETAIN_SECONDS: Final = 0.5
MAX_RETAINED: Final = 100
"""Consumers of retained claims: half of what a worker may have open on Kafka by default."""
MAX_RECENT: Final = 10_000

_log = structlog.get_logger(__name__)


@dataclass(eq=False, slots=True)
class ClaimMailbox:
    """Wakes the poll that uses a claim and its consumers, or the thread that ends unused ones."""

    mailbox: Mailbox

    def wake(self) -> None:
        """Wake whichever has the claim now."""
        self.mailbox.wake()


@dataclass(eq=False, slots=True)
class RetainedClaim:
    """A claim for so many partitions, its open consumers, each with its generation.

    `pending` is what the id's next poll acknowledges first.
    """

    claim: Claim
    partitions: int
    mailbox: ClaimMailbox
    opened: dict[int, tuple[int, Consumer]]
    pending: Mapping[int, Position]
    until: float = 0.0

    def is_usable(self) -> bool:
        """Return whether the claim holds what its consumers read, and no other needs it."""
        claim = self.claim
        if claim.recalled() or claim.lost() or claim.revoked() or claim.waiting():
            return False
        granted = claim.granted()
        return granted == {partition: opened[0] for partition, opened in self.opened.items()}

    def end(self) -> None:
        """Close the consumers and release the claim."""
        for _, consumer in self.opened.values():
            try:
                consumer.close()
            except RouterError as error:
                _log.warning("closing a consumer failed", reason=str(error))
        try:
            self.claim.release(PollOutcome.DELIVERED, tuple(self.pending.values()))
        except RouterError as error:
            _log.warning("release failed", reason=str(error))


@dataclass(eq=False, slots=True)
class _Waker:
    """The mailbox of a claim that no poll uses: has it looked at."""

    consumer: ConsumerId
    retained: RetainedClaims

    def wake(self) -> None:
        self.retained.check(self.consumer)


class RetainedClaims:
    """The retained claims of a worker, by consumer id; calls may be made from many threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._recent: TTLMap[ConsumerId, bool] = TTLMap(RETAIN_SECONDS, MAX_RECENT, clock)
        # Ordered by the time of their last poll.
        self._claims: OrderedDict[ConsumerId, RetainedClaim] = OrderedDict()
        self._woken: deque[ConsumerId] = deque()
        # Looked up now, not when the class is made: gevent has replaced it since.
        self._lock = threading.Lock()
        self._wakeup = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False

    def take(self, consumer: ConsumerId, partitions: int) -> RetainedClaim | None:
        """Return the claim that is retained for an id; None: there is none that may be used."""
        with self._lock:
            found = self._claims.pop(consumer, None)
        if found is None:
            return None
        if found.partitions == partitions and found.is_usable():
            return found
        found.end()
        return None

    def polled_lately(self, consumer: ConsumerId) -> bool:
        """Return whether an id polled here within RETAIN_SECONDS, and note that it does now."""
        lately = self._recent.get(consumer) is not None
        self._recent.put(consumer, True)
        return lately

    def put(self, consumer: ConsumerId, claim: RetainedClaim) -> None:
        """Retain a claim for the id's next poll; one too many ends the one unused longest."""
        claim.until = self._clock() + RETAIN_SECONDS
        claim.mailbox.mailbox = _Waker(consumer, self)
        claim.claim.retain()
        ended = []
        with self._lock:
            if self._closed:
                ended.append(claim)
            else:
                if (other := self._claims.pop(consumer, None)) is not None:
                    ended.append(other)
                self._claims[consumer] = claim
                while self._claims and self._consumers() > MAX_RETAINED:
                    ended.append(self._claims.popitem(last=False)[1])
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, name="retained-claims", daemon=True
                    )
                    self._thread.start()
        for one in ended:
            one.end()
        if not claim.is_usable():  # what woke it may have come before the table had it
            self.check(consumer)

    def _consumers(self) -> int:
        return sum(len(claim.opened) for claim in self._claims.values())

    def end_oldest(self) -> bool:
        """End the claim that is unused longest; return False if there is none."""
        with self._lock:
            found = self._claims.popitem(last=False)[1] if self._claims else None
        if found is not None:
            found.end()
        return found is not None

    def check(self, consumer: ConsumerId) -> None:
        """Have the thread look at an id's claim; never waits."""
        self._woken.append(consumer)
        self._wakeup.set()

    def close(self) -> None:
        """End all claims, and retain none from now on."""
        with self._lock:
            self._closed = True
            claims = list(self._claims.values())
            self._claims.clear()
        self._wakeup.set()
        for claim in claims:
            claim.end()

    def _run(self) -> None:
        while True:
            self._wakeup.wait(RETAIN_SECONDS)
            self._wakeup.clear()
            with self._lock:
                ended = self._take_unusable()
                if not self._claims and not ended:
                    self._thread = None
                    return
            for claim in ended:
                # Each by itself: a store that is slow for one group holds up no other.
                threading.Thread(target=claim.end, name="ended-claim", daemon=True).start()

    def _take_unusable(self) -> list[RetainedClaim]:
        found, now = [], self._clock()
        while self._woken:
            consumer = self._woken.popleft()
            claim = self._claims.get(consumer)
            if claim is not None and not claim.is_usable():
                found.append(self._claims.pop(consumer))
        while self._claims and next(iter(self._claims.values())).until <= now:
            found.append(self._claims.popitem(last=False)[1])
        return found
