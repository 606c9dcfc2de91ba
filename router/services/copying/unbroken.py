"""How far a partition of the target holds copied messages only.

The beginning of a partition is read batch by batch in the state, and at the target where places do
not say that two batches are neighbors: Kafka's markers take offsets, and Apache Pulsar begins other
ledgers. What was found is kept for the life of the command: a message that is stored never gets
another one before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from typing import Final

from router.backends import Backend, NullMailbox, Receipt, Start
from router.model import Position, TopicName
from router.services.copying.acknowledged import adjoin, last_of, marker_between
from router.services.copying.places import key_of
from router.services.copying.state import CopiedBatch

ONE_MESSAGE_BYTES: Final = 1


class Unbroken:
    """The unbroken beginning of one partition of the target; for one thread at a time.

    `sequence` is that of its last batch, -1: there is none. `broken`: another message follows it.
    """

    def __init__(self, target: Backend, topic: TopicName, partition: int) -> None:
        self.sequence = -1
        self.broken = False
        self._target = target
        self._topic = topic
        self._partition = partition
        self._end: Receipt | None = None

    def extend(self, batches: Iterable[CopiedBatch], timeout: float) -> None:
        """Look at the batches behind `sequence`; raise what reading the target raises."""
        for batch in () if self.broken else batches:
            receipt = batch.receipt
            if receipt is None or not self._continues(receipt, timeout):
                return
            self.sequence, self._end = batch.sequence, receipt

    def _continues(self, receipt: Receipt, timeout: float) -> bool:
        """Return whether a batch certainly follows the beginning, with nothing between."""
        before = self._end
        for number, part in enumerate(receipt.parts or (receipt,)):
            if not self._adjoins(before, part, other_batch=not number):
                found = self._first_after(before, timeout)
                if found is None:
                    return False  # not known at present
                if key_of(found) < key_of(part.at(0)):
                    self.broken = True
                    return False
            before = part
        return True

    def _adjoins(self, before: Receipt | None, after: Receipt, *, other_batch: bool) -> bool:
        if before is None:
            return False
        if adjoin(last_of(before), after.at(0)):
            return True
        return other_batch and any(marker_between(before, after))

    def _first_after(self, before: Receipt | None, timeout: float) -> Position | None:
        """Return where the first message behind an append is that is kept."""
        start = Start.EARLIEST if before is None else self._after(last_of(before))
        reader = self._target.read(self._topic, self._partition, start, NullMailbox(), timeout)
        with closing(reader):
            found = reader.receive(1, ONE_MESSAGE_BYTES, timeout)
        return found[0].position if found else None

    def _after(self, last: Position) -> Position:
        if 0 <= last.batch_index < last.batch_size - 1:
            return replace(last, partition=self._partition, batch_index=last.batch_index + 1)
        return Position(last.ledger, last.entry + 1, self._partition)
