"""One poll's view of a partition: what is there now, and acknowledging what was delivered.

Theory of operation. A consumer has a reader of the pool while it is open. Whether there is nothing
cannot be told from what was fetched: the broker is asked where the partition ends, and the reader
brings what lies before that. Once a consumer has answered "nothing", whatever the reader brings is
new and is answered as it comes.

An acknowledgement is a commit of the offset behind the message, in this order: the node's broker
confirms the generation; what the group has committed, and its epoch, are compared with what this
consumer found or committed itself, so that a reset or another holder's commit is never undone; the
commit. A reset by this worker ends the consumer first, and waits for an acknowledgement under way;
one by another worker is met by the comparison (`KafkaBackend.reset` says what remains). A process
that stands still between the first and the last of these for longer than the node's session can
still commit late (`kafka.fencing` = deadline). With `transactions` the commit goes in a transaction
whose name belongs to group and partition, and Kafka itself refuses it once another consumer opened.
Where single messages of the group are acknowledged too, commits are made in turns: `acknowledging`.

A consumer may serve the polls of one consumer id one after the other. It then commits beside them,
together with the others of this worker (`committing`); closing it commits what is left.

A `KafkaReader` reads a partition for no group: it leaves no trace.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import dropwhile
from typing import Final

import structlog

from router.backends.kafka.acknowledging import SharedCommits
from router.backends.kafka.committing import CommitQueue
from router.backends.kafka.group_progress import CommitProgress
from router.backends.kafka.names import kafka_partition
from router.backends.kafka.offsets import (
    CommittedOffset,
    GroupCommit,
    GroupPartition,
    Offsets,
    epoch_of,
    note_of,
)
from router.backends.kafka.reader import PrefetchingReader
from router.backends.kafka.transactions import KafkaTransactions
from router.clocks import seconds_left
from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    ConsumerClosedError,
    FencedError,
    RouterError,
)
from router.model import Grant, Position, Stored
from router.node import Mailbox, Node

CLOSE_SECONDS: Final = 5.0
"""How long a consumer that is closed waits for its last commit."""

_log = structlog.get_logger(__name__)


class KafkaConsumer:
    """An exclusive reader of one partition of a subscription; see `Consumer`."""

    def __init__(
        self,
        node: Node,
        together: SharedCommits,
        commits: CommitQueue,
        grant: Grant,
        group: str,
        reader: PrefetchingReader,
        let_go: Callable[[], None],
    ) -> None:
        self.partition = grant.partition
        self._group = group
        self._node = node
        self._together = together
        self._commits = commits
        self._offsets = together.offsets
        self.grant = grant
        self.of = GroupPartition(
            grant.subscription.topic, group, reader.topic, kafka_partition(grant.partition)
        )
        self._reader = reader
        self._let_go = let_go
        self._transaction: KafkaTransactions | None = None
        self._committed: set[int | None] = set()
        self._progress = CommitProgress(0)
        self._epoch = 0
        self._acknowledging = threading.Lock()
        self._caught_up = False
        # Acknowledged by `acknowledge_soon`, and how much of it is committed: offsets.
        self._due = self._done = self._committing = -1
        self._failure: RouterError | None = None
        self._ended = False
        self._closed = False

    def start(
        self,
        mailbox: Mailbox,
        offset: int,
        committed: CommittedOffset | None,
        transaction: KafkaTransactions | None,
        deadline: float,
    ) -> None:
        """Begin at an offset, the group having committed this.

        Kafka forgets what was committed long ago, on each partition by itself: what stays the same
        for want of messages is committed again now and then.
        """
        self._committed = {None if committed is None else committed.offset}
        self._progress = CommitProgress(offset) if committed is None else committed.progress()
        self._epoch = epoch_of(committed)
        self._transaction = transaction
        self._reader.attach(mailbox, offset, self._epoch)
        if committed is not None and self._reader.stale():
            with suppress(RouterError), self._acknowledging:
                # Should it fail, the next consumer does it, days before it matters.
                self._node.confirm(self.grant, seconds_left(deadline))
                if not self._ended and self._progress.shared:
                    self._change(committed.offset, deadline)
                elif not self._ended:
                    self._commit(CommitProgress(committed.offset), deadline)

    def receive(self, limit: int, max_bytes: int, timeout: float) -> list[Stored]:
        """Return what is stored now and not yet acknowledged; see the protocol."""
        if self._closed or self._ended or isinstance(self._failure, FencedError):
            raise ConsumerClosedError("this consumer is closed")
        found: list[Stored] = []
        try:
            self._receive(found, limit, max_bytes, time.monotonic() + timeout)
        except RouterError:
            if not found:  # what was taken is not given twice; the failure comes again
                raise
        self._caught_up |= not found
        return found

    def _receive(self, found: list[Stored], limit: int, max_bytes: int, deadline: float) -> None:
        reader = self._reader
        full = self._take(found, max(1, limit), max_bytes)
        if full or (found and self._caught_up):
            return
        end = self._offsets.end(reader.topic, reader.partition, deadline)
        while not full and reader.more(end, deadline):
            full = self._take(found, max(1, limit), max_bytes)

    def _take(self, found: list[Stored], limit: int, max_bytes: int) -> bool:
        """Add messages that are here and not acknowledged; return whether that is all for now."""
        while True:
            before = len(found)
            full = self._reader.take(found, limit, max_bytes)
            if not self._progress.apart:
                return full
            taken = found[before:]
            found[before:] = [s for s in taken if not self._progress.covers(s.position.entry)]
            if not full or len(found) == before + len(taken):
                return full

    def acknowledge(self, upto: Position, timeout: float) -> None:
        """Acknowledge everything up to and including this message; see the protocol."""
        deadline = time.monotonic() + timeout
        with self._acknowledging:
            if self._closed or self._ended or (upto.epoch and upto.epoch != self._epoch):
                raise FencedError
            target = upto.entry + 1
            self._acknowledge(target, deadline)
            self._done = max(self._done, target)

    def acknowledge_soon(self, upto: Position) -> bool:
        """Have everything up to this message committed with others' commits; see the protocol."""
        target = upto.entry + 1
        if (
            self._closed
            or self._ended
            or self._failure is not None
            or self._progress.shared
            or target <= self._due
            or (upto.epoch and upto.epoch != self._epoch)
        ):
            return False
        self._due = target
        self._commits.add(self)
        return True

    def resume(self) -> None:
        """Go on for the next poll: what is stored now is received."""
        self._caught_up = False

    # What the queue of commits calls.

    def begin_commit(self) -> bool:
        """Keep all others from committing; False: there is nothing to commit, or one commits."""
        if self._closed or self._ended or self._due <= self._done or self._failure is not None:
            return False
        if not self._acknowledging.acquire(blocking=False):
            self._commits.add(self)
            return False
        self._committing = self._due
        return True

    def next_commit(
        self, found: CommittedOffset | None, *, is_confirmed: bool
    ) -> GroupCommit | None:
        """Return what to commit where the group has committed this; None: that goes alone.

        Raises FencedError if the grant is not confirmed, or the group was moved.
        """
        if not is_confirmed:
            raise FencedError
        if self._transaction is not None or not self._may_commit(self._committing, found):
            return None
        note = note_of(self._epoch)
        return GroupCommit(self.of.group, self.of.name, self.of.number, self._committing, note)

    def commit_alone(self, deadline: float) -> None:
        """Commit by requests of its own; raise what prevents it."""
        self._acknowledge(self._committing, deadline)

    def end_commit(self, failure: RouterError | None) -> None:
        """Note that it is committed, or what prevented it, and let others commit."""
        target = self._committing
        self._failure = failure
        if failure is None:
            self._done = target
            self._reader.refreshed()
        self._acknowledging.release()
        if failure is not None:
            _log.info("acknowledgement failed", reason=str(failure), group=self._group)
            self._reader.wake()
        elif self._due > target:
            self._commits.add(self)

    def _acknowledge(self, target: int, deadline: float) -> None:
        self._node.confirm(self.grant, seconds_left(deadline))
        found = self._together.committed(self.of, deadline)
        if self._is_shared(found):
            self._change(target, deadline)
        elif self._may_commit(target, found):
            self._commit(CommitProgress(target), deadline)
            self._committed = {target}
            self._reader.skip(target)

    def _is_shared(self, found: CommittedOffset | None) -> bool:
        """Return whether single messages are acknowledged beside this consumer."""
        if found is None or found.offset == self._reader.redirected_from:
            return False
        return found.progress().shared

    def _may_commit(self, target: int, found: CommittedOffset | None) -> bool:
        """Return whether to commit an offset where the group has committed this.

        False: it goes by turns, or there is nothing to commit. Raises FencedError.
        """
        if self._is_shared(found):
            return False
        current = None if found is None else found.offset
        if current not in self._committed or epoch_of(found) != self._epoch:
            raise FencedError("The group's position was moved by another client.")
        if current is not None and target <= current != self._reader.redirected_from:
            return False
        self._committed = {current, target}  # should the answer get lost, it may be either
        return True

    def _change(self, target: int, deadline: float) -> None:
        """Commit in turn with acknowledgements of single messages, which stay."""

        def change(progress: CommitProgress) -> CommitProgress:
            return progress.acknowledge((progress.offset, target))

        def commit(progress: CommitProgress) -> None:
            self._node.confirm(self.grant, seconds_left(deadline))
            self._commit(progress, deadline)

        after = self._together.change(self.of, self._epoch, change, commit, deadline)
        self._committed, self._progress = {after.offset}, after
        self._reader.skip(after.offset)

    def _commit(self, progress: CommitProgress, deadline: float) -> None:
        grant, topic, note = self.grant, self._reader.topic, note_of(self._epoch, progress)
        partition, target = kafka_partition(grant.partition), progress.offset
        transaction = self._transaction
        if transaction is None:
            self._offsets.commit(self._group, topic, {partition: target}, note, deadline)
        else:
            transaction.commit_offset(self._group, topic, partition, target, note, deadline)
            transaction.end(commit=True, deadline=deadline)
        self._reader.refreshed()

    def end(self, deadline: float) -> None:
        """Give and acknowledge nothing any more; wait for an acknowledgement under way."""
        self._ended = True
        if not self._acknowledging.acquire(timeout=seconds_left(deadline)):
            raise BackendTimeoutError("An acknowledgement under way takes too long.")
        self._acknowledging.release()

    def close(self) -> None:
        """Let go; see the protocol."""
        if not self._closed:
            try:
                self._settle(time.monotonic() + CLOSE_SECONDS)
            except RouterError as error:
                _log.info("acknowledgement failed", reason=str(error), group=self._group)
            self._closed = True
            self._let_go()

    def _settle(self, deadline: float) -> None:
        """Commit what was acknowledged and is not committed, unless that failed already."""
        if self._due <= self._done or self._ended or self._failure is not None:
            return
        if not self._acknowledging.acquire(timeout=seconds_left(deadline)):
            raise BackendTimeoutError("An acknowledgement under way takes too long.")
        try:
            if self._due > self._done and self._failure is None:
                self._acknowledge(self._due, deadline)
                self._done = self._due
        finally:
            self._acknowledging.release()


@dataclass(eq=False, slots=True)
class KafkaReader:
    """Reads one partition from an offset on; see `PrefetchingReader` of the protocol."""

    _offsets: Offsets
    _reader: PrefetchingReader
    _first: int
    _let_go: Callable[[], None]
    _closed: bool = field(default=False, init=False)

    def receive(self, limit: int, max_bytes: int, timeout: float) -> list[Stored]:
        """Return what comes next; see the protocol."""
        if self._closed:
            raise BackendUnavailableError("this reader is closed")
        reader, deadline = self._reader, time.monotonic() + timeout
        found: list[Stored] = []
        full = self._take(found, limit, max_bytes)
        if full or found:
            return found
        end = self._offsets.settled_end(reader.topic, reader.partition, deadline)
        while not full and reader.more(end, deadline):
            full = self._take(found, limit, max_bytes)
        return found

    def _take(self, found: list[Stored], limit: int, max_bytes: int) -> bool:
        full = self._reader.take(found, max(1, limit), max_bytes)
        if found and found[0].position.entry < self._first:
            # It was opened behind the end, and waits for its position.
            found[:] = dropwhile(lambda stored: stored.position.entry < self._first, found)
            return False
        return full

    def close(self) -> None:
        """Let go; see the protocol."""
        if not self._closed:
            self._closed = True
            self._let_go()
