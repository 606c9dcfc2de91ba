"""Copying one partition: batch by batch, each stored once, whatever was killed meanwhile.

Theory of operation. A batch is noted in the state before it is published, under the name of the
copy and the next number; the target stores a name and number once. One batch of a partition is in
flight at a time, so that what a killed copier leaves behind is one batch of which it is not known
whether it is stored. `_settle` finds out: a store that shows producers' names is searched behind
the last known place; any other one is given the same messages under the same number again.

While a batch is published the next one is read, unless the source had no more. The alternative,
several batches in flight, would need a search for each of them, and with batches of 4 MiB the
target waits for little else.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from concurrent.futures import Future, wait
from functools import partial
from itertools import islice
from typing import Final

from router.backends import Batch, FindsBatches, Receipt, Start
from router.clocks import wall_ms
from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    ConflictError,
    EntryTooLargeError,
    OutcomeUnknownError,
    PublishRefusedError,
    RouterError,
)
from router.model import UNDECODED, Message, Position, Stored
from router.services.copying.context import RUN_AGAIN, StoppedError, is_passing
from router.services.copying.fidelity import StoreKind, checksum, held, loss, weight
from router.services.copying.places import Key, key_of, runs_of
from router.services.copying.plan import AGAIN
from router.services.copying.reading import PartitionReading
from router.services.copying.state import CopiedBatch

BATCHES_PER_TURN: Final = 16
"""After so many another partition has its turn."""
AHEAD_SECONDS: Final = 1.0
"""How long the next batch is waited for before the receipt of the last one is noted alone."""
PRODUCER: Final = "router-copy-"
KAFKA_REMEMBERS_MS: Final = 7 * 24 * 3600 * 1000
"""For so long Kafka tells that a batch is stored, unless `offsets.retention.minutes` is set."""
PERHAPS_TWICE: Final = (
    "messages of batches that were in flight for more than 7 days, which may be in Kafka twice"
)


class PartitionCopy:
    """The copy of one partition; `turn` is called by one thread at a time.

    `level_at`: all that the source held at this monotonic time is copied.
    """

    def __init__(self, reading: PartitionReading, fence: Key | None = None) -> None:
        self.topic = reading.topic
        self.partition = reading.partition
        self._context = reading.context
        self._skipped = f"skipped {self.topic.source} {self.partition}"
        self._name = f"{PRODUCER}{self._context.state.id}"
        self._reading = reading
        self._fence = fence
        self._sequence = -1
        self._target: Position | None = None
        self._begun = False
        self.level_at = -math.inf

    @property
    def is_open(self) -> bool:
        """Return whether the source holds a reader for it."""
        return self._reading.is_open

    def turn(self) -> bool:
        """Copy some batches; return whether there may be more to copy now.

        Raises RouterError when the partition cannot be copied on, and is not called again then: a
        batch may be in flight.
        """
        if not self._begun:
            self._begin()
            self._begun = True
        prepared = self._next()
        for number in range(BATCHES_PER_TURN):
            if prepared is None:
                self.level_at = self._reading.looked_at
                return False
            row, messages = prepared
            last = number == BATCHES_PER_TURN - 1 or self._context.stop.is_set()
            last = last or self._is_beyond(row)
            # What comes while a small batch is published goes together into the next one.
            at_end, looked_at = self._reading.at_end, self._reading.looked_at
            read_ahead = not last and not at_end
            ahead = self._context.readers.submit(self._reading.batch) if read_ahead else None
            receipt = self._stored(row, messages, ahead)
            prepared = self._completed(row, receipt, ahead)
            if at_end:
                self.level_at = looked_at
            if last:
                return not (at_end or self._is_beyond(row))
            if at_end:
                prepared = self._next()
        return True

    def _next(self) -> tuple[CopiedBatch, list[Message]] | None:
        """Return the batch that comes next, which is noted; None: nothing is left."""
        return self._noted(self._reading.batch())

    def _noted(self, found: Sequence[Stored]) -> tuple[CopiedBatch, list[Message]] | None:
        if not found:
            return None
        prepared = self._prepared(found)
        self._context.state.begin(self.topic.source, prepared[0])
        return prepared

    def close(self) -> None:
        """Let go of the source's reader."""
        self._reading.close()

    def _is_beyond(self, row: CopiedBatch) -> bool:
        if self._fence is None:
            return False
        last = row.last()
        at, end = (last.ledger, last.entry), self._fence[:2]
        whole = last.batch_index < 0 or last.batch_index + 1 >= last.batch_size
        return at > end or (at == end and whole)

    def _completed(
        self, row: CopiedBatch, receipt: Receipt, ahead: Future[list[Stored]] | None
    ) -> tuple[CopiedBatch, list[Message]] | None:
        """Note where a batch is, and the one that was read ahead, which is returned; None: none.

        A source that takes its time or fails does not hold up the receipt.
        """
        if ahead is None:
            self._complete(row, receipt, None)
            return None
        wait((ahead,), AHEAD_SECONDS)
        if ahead.done() and ahead.exception() is None:
            found = ahead.result()
            following = self._prepared(found) if found else None
            self._complete(row, receipt, None if following is None else following[0])
            return following
        self._complete(row, receipt, None)
        return self._noted(ahead.result())

    def _prepared(self, found: Sequence[Stored]) -> tuple[CopiedBatch, list[Message]]:
        """Return the row of a batch, under the next number, and what is to be published."""
        self._sequence += 1
        return self._row(found, self._sequence)

    def _row(self, found: Sequence[Stored], sequence: int) -> tuple[CopiedBatch, list[Message]]:
        messages = self._outgoing(found)
        row = CopiedBatch(
            self.partition,
            sequence,
            runs_of(stored.position for stored in found),
            len(messages),
            sum(message.size() for message in messages),
            checksum(messages),
            wall_ms(),
        )
        return row, messages

    def _outgoing(self, found: Sequence[Stored]) -> list[Message]:
        """Return messages as the target holds them, with its versions of their schemas."""
        kind, figures = self._context.kind, self._context.figures
        messages = []
        versions = self._context.schemas(self.topic)
        for stored in found:
            message = stored.message
            if message.properties or message.deliver_at is not None:
                there = held(message, kind)
                if what := loss(message, there):
                    figures.lost(what)
                message = there
            if message.schema_version:
                version = partial(versions.get, message.schema_version)
                message = message._replace(schema_version=self._context.persist("target", version))
            messages.append(message)
        return messages

    def _complete(self, row: CopiedBatch, receipt: Receipt, following: CopiedBatch | None) -> None:
        self._context.state.complete(self.topic.source, row, receipt, following)
        self._context.figures.copied(row.count, row.size)
        self._know(receipt, row.count)

    def _know(self, receipt: Receipt, count: int) -> None:
        last = receipt.at(count - 1)
        if self._target is None or key_of(last) > key_of(self._target):
            self._target = last

    def _stored(
        self, row: CopiedBatch, messages: list[Message], ahead: Future[list[Stored]] | None
    ) -> Receipt:
        """Return where a batch is stored; raise RouterError when the target does not take it."""
        self._context.throttle.take(row.size)
        try:
            return self._publish(row, messages, {row.count})
        except BaseException:
            # It uses the reader, which is closed next.
            if ahead is not None and not ahead.cancel():
                wait((ahead,))
            raise

    def _publish(
        self, row: CopiedBatch, messages: list[Message], counts: Collection[int]
    ) -> Receipt:
        """Publish a batch, again as often as it takes, and return where it is.

        `counts`: of how many messages it may be.
        """
        context = self._context
        batch = Batch(self.topic.target, self.partition, messages, self._name, row.sequence)

        def attempt() -> Receipt:
            receipt = context.target.publish(batch, context.options.timeout)
            if not is_known(receipt, counts):
                receipt = self._located(row.sequence) or receipt
            if not is_known(receipt, counts):
                raise OutcomeUnknownError("The target does not say where it stores a batch.")
            return receipt

        try:
            return context.persist("target", attempt)
        except RouterError as failure:
            raise self._about(failure, row, messages) from failure

    def _about(
        self, error: RouterError, row: CopiedBatch, messages: Sequence[Message]
    ) -> RouterError:
        """Return a failure; one that is about what is stored says what that is."""
        if isinstance(error, BackendUnavailableError | BackendTimeoutError | StoppedError):
            return error
        if isinstance(error, EntryTooLargeError):
            return self._too_large(error, row, messages)
        first, passing = row.first(), is_passing(error)
        cls = PublishRefusedError if passing else RouterError
        return cls(
            f"{row.count} messages of topic {self.topic.source.local}, from {first.ledger}:"
            f"{first.entry} of partition {max(0, self.partition)} on, cannot be stored at the"
            f" target: {error}{RUN_AGAIN if passing else ''}"
        )

    def _too_large(
        self, error: RouterError, row: CopiedBatch, messages: Sequence[Message]
    ) -> RouterError:
        """Return what says which message is too large for the target."""
        size, at = max((weight(message), number) for number, message in enumerate(messages))
        places = row.sources()
        place = next(places) if len(messages) != row.count else next(islice(places, at, None))
        chunk = ""
        if UNDECODED in messages[at].properties:
            chunk = " (it is encrypted or a part of a chunked message of a Pulsar client's)"
        return EntryTooLargeError(
            f"topic {self.topic.source.local}, partition {max(0, self.partition)}: the message at"
            f" {place.ledger}:{place.entry}, of {size:,} bytes{chunk}, is too large for the"
            f" target; it and what follows it there is not copied: {error}"
        )

    def _located(self, sequence: int) -> Receipt | None:
        """Return where the target shows a batch of this copy, None: it shows none."""
        context = self._context
        if not isinstance(context.target, FindsBatches):
            return None
        # All that others stored behind the last batch is read.
        timeout = max(context.options.timeout, context.options.retry_seconds)
        return context.target.find_batch(
            self.topic.target, self.partition, (self._name, sequence), self._target, timeout
        )

    # What an earlier run left behind.

    def _begin(self) -> None:
        """Go on where the state says, and settle what was in flight; raise RouterError."""
        state, source = self._context.state, self.topic.source
        self._sequence = int(state.fact(self._skipped) or -1)
        known = state.last_copied(source, self.partition)
        if known is not None and known.receipt is not None:
            self._know(known.receipt, known.count)
            self._sequence = max(self._sequence, known.sequence)
        newest = state.newest(source, self.partition)
        if newest is not None and newest.receipt is None:
            self._settle(newest)
            newest = state.last_copied(source, self.partition)
        if newest is None:
            since = self._context.options.since
            self._reading.start(Start.EARLIEST if since is None else since, None)
        else:
            last = newest.last()
            self._reading.start(last, key_of(last))

    def _settle(self, row: CopiedBatch) -> None:
        """Complete a batch of which it is not known whether it is stored."""
        found = self._read_again(row)
        receipt = self._context.persist("target", lambda: self._located(row.sequence))
        if receipt is not None and is_known(receipt, {row.count}):
            self._finish(row, receipt)
            return
        if not found:
            self._gone(row)
            return
        again, messages = self._row(found, row.sequence)
        if again.count == row.count and again.checksum != row.checksum:
            raise ConflictError(
                f"topic {self.topic.source.local} has other messages than before where its copy"
                f" goes on, at {row.first().ledger}:{row.first().entry} of partition"
                f" {max(0, self.partition)}: it was deleted and created again. {AGAIN}"
            )
        receipt = self._publish(row, messages, {row.count, again.count})
        late = wall_ms() - row.started_ms > KAFKA_REMEMBERS_MS
        if late and self._context.kind is StoreKind.KAFKA and not receipt.duplicate:
            self._context.figures.lost(PERHAPS_TWICE, receipt.stored)
        self._finish(row if receipt.stored == row.count else again, receipt)

    def _finish(self, row: CopiedBatch, receipt: Receipt) -> None:
        self._context.state.replace(self.topic.source, row)
        self._sequence = row.sequence
        self._complete(row, receipt, None)

    def _gone(self, row: CopiedBatch) -> None:
        """Forget a batch whose messages the source has not any more, but not its number."""
        state = self._context.state
        self._sequence = row.sequence
        state.note(self._skipped, str(row.sequence))
        state.forget(self.topic.source, row)
        self._context.figures.lost(
            "messages that the source deleted while it was not known whether they were copied",
            row.count,
        )

    def _read_again(self, row: CopiedBatch) -> list[Stored]:
        """Return what the source has left of the messages of a batch, in order."""
        first, last = row.first(), row.last()
        ledger, entry, index = key_of(first)
        reading = self._reading
        reading.start(first, (ledger, entry, index - 1))
        keys = set(map(key_of, row.sources()))
        found: list[Stored] = []
        while some := reading.batch():
            found += [stored for stored in some if key_of(stored.position) in keys]
            if key_of(some[-1].position) >= key_of(last):
                break
        return found


def is_known(receipt: Receipt, counts: Collection[int]) -> bool:
    """Return whether a receipt says where each message is of one of so many."""
    parts = receipt.parts or (receipt,)
    return receipt.stored in counts and all(
        part.position.ledger >= 0 and part.position.entry >= 0 for part in parts
    )
