"""Reading one partition of the source in batches, from a place on, across lost connections."""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from typing import Final

from router.backends import Reader, Start
from router.errors import RouterError, TopicNotFoundError
from router.model import Position, Stored
from router.node import Mailbox
from router.services.copying.comparing import PartitionEnd
from router.services.copying.context import CopyContext, SourceGoneError
from router.services.copying.fidelity import weight
from router.services.copying.places import Key, key_of
from router.services.copying.plan import (
    SOURCE,
    TopicIdentity,
    check_same,
    copied_ends,
    identities,
    noted,
)
from router.services.copying.state import CopiedTopic

LOOK_SECONDS: Final = 1.0
"""A gap between messages is looked into once in this time at most."""
DELETED: Final = "ranges of messages, which the source deleted before they were copied"


class PartitionReading:
    """Batches of one partition; for one caller at a time.

    `at_end`: the last batch has all that the source held at `looked_at`, a monotonic time.
    """

    def __init__(
        self,
        context: CopyContext,
        topic: CopiedTopic,
        partition: int,
        mailbox: Mailbox,
        max_bytes: int,
    ) -> None:
        self.context = context
        self.topic = topic
        self.partition = partition
        self._mailbox = mailbox
        self._max_bytes = max_bytes
        self._start: Start | int | Position = Start.EARLIEST
        self._after: Key | None = None
        self._reader: Reader | None = None
        self._left: deque[Stored] = deque()
        self._doubtful = False
        self._look_at = 0.0
        self.at_end = False
        self.looked_at = 0.0

    @property
    def is_open(self) -> bool:
        """Return whether the source holds a reader for it."""
        return self._reader is not None

    def start(self, start: Start | int | Position, after: Key | None) -> None:
        """Begin at a place, and give only messages behind another one."""
        self.close()
        self._start, self._after = start, after

    def batch(self) -> list[Stored]:
        """Return what comes next, as much as a batch may have; empty: that was all.

        Raises SourceGoneError, and what reading raises once the source did not answer for as long
        as may be.
        """
        found: list[Stored] = []

        def attempt() -> None:
            try:
                self._fill(found)
            except RouterError:
                self._doubtful = True
                if not found:
                    raise

        try:
            self.context.persist("source", attempt)
        except TopicNotFoundError as error:
            raise SourceGoneError(str(error)) from error
        return found

    def _check(self) -> None:
        """Read on behind a failure, unless the topic is another one now: raise ConflictError."""
        source, topic, timeout = (
            self.context.source,
            self.topic.source,
            self.context.options.timeout,
        )
        known = noted(self.context.state, SOURCE, topic)
        ends = copied_ends(self.context.state, topic, [self.partition])
        identity = identities(source, [topic], timeout).get(topic, "")
        stats = source.describe_topic(topic, timeout)
        check_same(known, TopicIdentity(stats.info.created_ms, identity), ends, stats)
        self._doubtful = False

    def _fill(self, found: list[Stored]) -> None:
        options = self.context.options
        size, self.at_end = sum(weight(stored.message) for stored in found), False
        while len(found) < options.batch_messages:
            if not self._left and not self._receive(options.batch_messages - len(found)):
                return
            while self._left and len(found) < options.batch_messages:
                size += weight(self._left[0].message)
                if found and size > self._max_bytes:
                    return
                stored = self._left.popleft()
                self._look_for_gap(stored.position)
                self._after = key_of(stored.position)
                self._start = stored.position
                found.append(stored)

    def _look_for_gap(self, following: Position) -> None:
        """Say it if the source deleted what was to come next before it was copied.

        What is between two messages may be nothing too: transactions of Kafka, what it compacted,
        and other ledgers of Apache Pulsar leave gaps. So it is asked what is kept, now and then.
        """
        last = self._start
        if not isinstance(last, Position) or self._after != key_of(last):
            return
        near = last.entry <= following.entry <= last.entry + 1
        now = time.monotonic()
        if (near and last.ledger == following.ledger) or now < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        end = PartitionEnd(
            self.context.source, self.topic.source, self.partition, self.context.options.timeout
        )
        with suppress(RouterError):
            first = end.first()
            if first is None or first > self._after:
                name = self.topic.source.local
                self.context.figures.lost(DELETED)
                self.context.figures.notify(
                    f"deleted {name} {self.partition}",
                    f"topic {name}, partition {max(0, self.partition)}: the source deleted"
                    f" messages between {last.ledger}:{last.entry} and"
                    f" {following.ledger}:{following.entry} before they were copied",
                )

    def _receive(self, limit: int) -> bool:
        """Receive some more; return whether there was any."""
        options = self.context.options
        try:
            if self._reader is None:
                if self._doubtful:
                    self._check()
                self._reader = self.context.source.read(
                    self.topic.source,
                    self.partition,
                    _entry_of(self._start),
                    self._mailbox,
                    options.timeout,
                )
            self.looked_at = time.monotonic()
            while some := self._reader.receive(limit, self._max_bytes, options.timeout):
                after = self._after
                if after is not None:
                    some = [stored for stored in some if key_of(stored.position) > after]
                if some:
                    self._left.extend(some)
                    return True
        except BaseException:
            self.close()
            raise
        self.at_end = True
        return False

    def close(self) -> None:
        """Let go of the reader; the next batch opens another one."""
        self._left.clear()
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()


def _entry_of(start: Start | int | Position) -> Start | int | Position:
    """Return a start that is the whole entry: what of it is behind a message is chosen here."""
    if isinstance(start, Position):
        return Position(start.ledger, start.entry, start.partition)
    return start
