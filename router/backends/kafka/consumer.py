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

A `KafkaReader` reads a partition for no group: it leaves no trace.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import dropwhile
from threading import Lock

from router.backends.kafka.acknowledging import GroupPartition, SharedCommits
from router.backends.kafka.group_progress import Progress
from router.backends.kafka.names import kafka_partition
from router.backends.kafka.offsets import Commit, Offsets, epoch_of, note_of
from router.backends.kafka.reader import Reader
from router.backends.kafka.transactions import Transaction
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


class KafkaConsumer:
    """An exclusive reader of one partition of a subscription; see `Consumer`."""

    def __init__(
        self,
        node: Node,
        together: SharedCommits,
        opened_for: tuple[Grant, str],
        reader: Reader,
        let_go: Callable[[], None],
    ) -> None:
        grant, self._group = opened_for
        self.partition = grant.partition
        self._node = node
        self._together = together
        self._offsets = together.offsets
        self._grant = grant
        self._of = GroupPartition(
            grant.subscription.topic, self._group, reader.topic, kafka_partition(grant.partition)
        )
        self._reader = reader
        self._let_go = let_go
        self._transaction: Transaction | None = None
        self._committed: set[int | None] = set()
        self._progress = Progress(0)
        self._epoch = 0
        self._acknowledging = Lock()
        self._caught_up = False
        self._ended = False
        self._closed = False

    def start(
        self,
        mailbox: Mailbox,
        offset: int,
        committed: Commit | None,
        transaction: Transaction | None,
        deadline: float,
    ) -> None:
        """Begin at an offset, the group having committed this.

        Kafka forgets what was committed long ago, on each partition by itself: what stays the same
        for want of messages is committed again now and then.
        """
        self._committed = {None if committed is None else committed.offset}
        self._progress = Progress(offset) if committed is None else committed.progress()
        self._epoch = epoch_of(committed)
        self._transaction = transaction
        self._reader.attach(mailbox, offset, self._epoch)
        if committed is not None and self._reader.stale():
            with suppress(RouterError), self._acknowledging:
                # Should it fail, the next consumer does it, days before it matters.
                self._node.confirm(self._grant, seconds_left(deadline))
                if not self._ended and self._progress.shared:
                    self._change(committed.offset, deadline)
                elif not self._ended:
                    self._commit(Progress(committed.offset), deadline)

    def receive(self, limit: int, max_bytes: int, timeout: float) -> list[Stored]:
        """Return what is stored now and not yet acknowledged; see the protocol."""
        if self._closed or self._ended:
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
            self._acknowledge(upto.entry + 1, deadline)

    def _acknowledge(self, target: int, deadline: float) -> None:
        self._node.confirm(self._grant, seconds_left(deadline))
        found = self._together.committed(self._of, deadline)
        current = None if found is None else found.offset
        back = current == self._reader.behind_end
        if found is not None and found.progress().shared and not back:
            self._change(target, deadline)
            return
        if current not in self._committed or epoch_of(found) != self._epoch:
            raise FencedError("The group's position was moved by another client.")
        if current is not None and target <= current and not back:
            return
        self._committed.add(target)  # should the answer get lost, it may be either
        self._commit(Progress(target), deadline)
        self._committed = {target}
        self._reader.skip(target)

    def _change(self, target: int, deadline: float) -> None:
        """Commit in turn with acknowledgements of single messages, which stay."""

        def change(progress: Progress) -> Progress:
            return progress.acknowledge((progress.offset, target))

        def commit(progress: Progress) -> None:
            self._node.confirm(self._grant, seconds_left(deadline))
            self._commit(progress, deadline)

        after = self._together.change(self._of, self._epoch, change, commit, deadline)
        self._committed, self._progress = {after.offset}, after
        self._reader.skip(after.offset)

    def _commit(self, progress: Progress, deadline: float) -> None:
        grant, topic, note = self._grant, self._reader.topic, note_of(self._epoch, progress)
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
            self._closed = True
            self._let_go()


@dataclass(eq=False, slots=True)
class KafkaReader:
    """Reads one partition from an offset on; see `Reader` of the protocol."""

    _offsets: Offsets
    _reader: Reader
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
        end = self._offsets.end(reader.topic, reader.partition, deadline)
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
