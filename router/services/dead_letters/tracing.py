"""The dead letters of one message: searched for in the topics that may have them, within a bound.

A dead letter names its original message; no message names its dead letter. So the newest messages
of the topics are read, back to the time of the message: each dead letter is younger than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog

from router.backends import Backend
from router.errors import (
    NotAllowedError,
    NotSupportedError,
    ReadFailedError,
    RouterError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from router.model import (
    CursorState,
    PartitionStats,
    Position,
    Stored,
    Subscription,
    TopicName,
)
from router.services.dead_letters.dead_letter import DeadLetterOrigin, origin
from router.services.dead_letters.scan import Acknowledged
from router.services.dead_letters.service import GROUP
from router.services.pages import FIRST_ENTRIES, MAX_LATE, before
from router.services.read import TopicReader
from router.services.scan import (
    Places,
    ScanBounds,
    StartPosition,
    earlier,
    end_of,
    is_empty,
)

_log = structlog.get_logger(__name__)

MAX_DEAD_LETTERS: Final = 20
"""Of one message in one topic."""
STEP_BOUNDS: Final = ScanBounds(500, 4 * 1024 * 1024, 0.5)


@dataclass(frozen=True, slots=True)
class TraceBounds:
    """How much is read at most: messages of one topic, and for how many seconds in all."""

    messages: int
    seconds: float


QUICK: Final = TraceBounds(2_000, 0.3)
LONG: Final = TraceBounds(50_000, 5.0)


@dataclass(frozen=True, slots=True)
class TracedDeadLetter:
    """A dead letter of a message; `waits`: it was neither requeued nor discarded."""

    topic: TopicName
    stored: Stored
    origin: DeadLetterOrigin
    waits: bool


@dataclass(frozen=True, slots=True)
class DeadLetterTrace:
    """The dead letters of a message, the oldest first; `unsearched` topics may have others."""

    dead_letters: tuple[TracedDeadLetter, ...]
    unsearched: tuple[TopicName, ...]


class DeadLetterTracer:
    """Searches for dead letters; calls block, and may be made from many threads or greenlets."""

    def __init__(self, backend: Backend, reading: TopicReader, timeout: float) -> None:
        self._backend = backend
        self._reading = reading
        self._timeout = timeout

    def trace(
        self,
        topic: TopicName,
        stored: Stored,
        among: Sequence[TopicName],
        bounds: TraceBounds = QUICK,
    ) -> DeadLetterTrace:
        """Return the dead letters of a message of `topic` that are in some topics.

        Each topic has its share of the time that is left, so that a large one keeps none from being
        searched, nor does one that fails. A topic that there is not has none.
        """
        dead_letters, unsearched = list[TracedDeadLetter](), list[TopicName]()
        deadline = self._reading.clock() + bounds.seconds
        for number, dead in enumerate(among):
            share = (deadline - self._reading.clock()) / (len(among) - number)
            whole = False
            try:
                if share > 0:
                    own = TraceBounds(bounds.messages, share)
                    found, whole = self._in_topic(dead, topic, stored, own)
                    dead_letters += found
            except TopicNotFoundError:
                continue
            except (NotSupportedError, NotAllowedError, ReadFailedError):
                pass
            except RouterError as error:
                _log.warning("dead-letters-unknown", topic=str(dead), reason=str(error))
            if not whole:
                unsearched.append(dead)
        dead_letters.sort(key=lambda dead_letter: dead_letter.stored.publish_time)
        return DeadLetterTrace(tuple(dead_letters), tuple(unsearched))

    def _in_topic(
        self, dead: TopicName, topic: TopicName, stored: Stored, bounds: TraceBounds
    ) -> tuple[list[TracedDeadLetter], bool]:
        deadline = self._reading.clock() + bounds.seconds
        stats = self._backend.describe_topic(dead, self._timeout)
        ends: Places = end_of(stats)
        found, looked = list[Stored](), 0
        oldest = dict[int, int]()

        def is_dead_letter(one: Stored) -> bool:
            at = one.position.partition
            oldest[at] = min(one.publish_time, oldest.get(at, one.publish_time))
            came = origin(one.message, dead)
            return came.topic == topic and _is_of(came.at, stored.position)

        whole, is_cut, first, step = False, False, FIRST_ENTRIES, STEP_BOUNDS
        while looked < bounds.messages and (left := deadline - self._reading.clock()) > 0:
            # A range that takes too long is read in smaller ones, each in that time; one of single
            # entries at most partition by partition.
            step = replace(step, seconds=left / (2 if first == 1 else 1 + MAX_LATE))
            page = before(
                self._reading, stats, ends, MAX_DEAD_LETTERS, is_dead_letter, step, first=first
            )
            if page.is_cut and step.messages < bounds.messages:
                # Batches have more messages than a step: one after the other.
                first, step = 1, replace(step, messages=bounds.messages)
                continue
            is_cut = is_cut or page.is_cut
            found += page.messages
            looked += page.looked
            # Each partition by itself: one with few dead letters is soon read back to days ago.
            whole = not is_cut and (
                page.whole
                or all(
                    oldest.get(part.partition, stored.publish_time) < stored.publish_time
                    or _is_first(part, page.begin[part.partition])
                    for part in stats.partitions
                )
            )
            if whole or len(found) >= MAX_DEAD_LETTERS or not page.looked:
                break
            ends = page.begin
        states = self._states(dead) if found else {}
        return [_traced(dead, one, states) for one in found], whole

    def _states(self, dead: TopicName) -> dict[int, CursorState]:
        try:
            cursors = self._backend.cursors(Subscription(dead, GROUP), self._timeout)
        except SubscriptionNotFoundError:
            return {}  # nothing was requeued or discarded yet
        return {state.partition: state for state in cursors}


def _traced(dead: TopicName, one: Stored, states: dict[int, CursorState]) -> TracedDeadLetter:
    done = Acknowledged(states.get(one.position.partition))
    waits = done.upto_range(one.position) is None
    return TracedDeadLetter(dead, one, origin(one.message, dead), waits)


def _is_first(part: PartitionStats, place: StartPosition) -> bool:
    """Return whether a partition has nothing before a place."""
    return is_empty(earlier(part, place, 1), place)


def _is_of(origin_at: Position | None, position: Position) -> bool:
    """Return whether a dead letter's origin is a message; an origin without an index: an entry.

    Origins count partitions from 0, and for some clients a message alone is the first of a batch.
    """
    return (
        origin_at is not None
        and (origin_at.ledger, origin_at.entry) == (position.ledger, position.entry)
        and origin_at.partition == max(0, position.partition)
        and origin_at.batch_index in {-1, max(0, position.batch_index)}
    )
