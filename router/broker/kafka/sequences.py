"""Idempotent producers: which batch is the next of a producer, which is a duplicate, which a gap.

Theory of operation. A producer numbers its records in each partition and has up to five batches in
flight. Of each producer and partition the last five batches are remembered, so that a batch that is
sent again is answered with the offset that it has. They are kept as producer states of the ledger,
one name for each of five slots that are used in turn: states are journalled in the commit group of
their entry, so that they survive a kill with what they describe, and expire like those of other
producers (dedup.window, dedup.max_producers). A producer that is not remembered may begin with any
sequence, as at Apache Kafka.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from router.broker.kafka.failures import KafkaError
from router.broker.storage import ProducerState, ProducerStates
from router.model import REQUEST_PRODUCER
from router.wire.kafka.error_codes import ErrorCode
from router.wire.kafka.record_batches import BatchHeader

REMEMBERED_BATCHES: Final = 5
"""Clients have no more in flight."""
SEQUENCES: Final = 1 << 31
"""Behind the last sequence comes 0."""
STATES_NAME: Final = f"{REQUEST_PRODUCER}kafka/"
"""No client's producer may have such a name."""
_EPOCH_BITS: Final = 32


class NextBatch(NamedTuple):
    """A batch is the next: the name and sequence id under which its state is to be stored."""

    name: str
    sequence: int


class DuplicateBatch(NamedTuple):
    """A batch is stored already, as this entry."""

    entry: int


class ActiveProducer(NamedTuple):
    """A producer that a partition remembers: its last record, and when that was stored."""

    producer: int
    epoch: int
    last_sequence: int
    time_ms: int


def active_producers(producers: ProducerStates) -> list[ActiveProducer]:
    """Return the producers of a partition by their ids."""
    newest: dict[int, ProducerState] = {}
    for name, state in producers:
        if name.startswith(STATES_NAME):
            producer = int(name.removeprefix(STATES_NAME).partition("/")[0])
            if producer not in newest or newest[producer].entry < state.entry:
                newest[producer] = state
    return [
        ActiveProducer(
            producer,
            state.sequence >> _EPOCH_BITS,
            (state.sequence % (1 << _EPOCH_BITS) + state.messages - 1) % SEQUENCES,
            state.time_ms,
        )
        for producer, state in sorted(newest.items())
    ]


def check_sequence(producers: ProducerStates, header: BatchHeader) -> NextBatch | DuplicateBatch:
    """Return what a batch of an idempotent producer is; raise KafkaError."""
    producer, epoch, first = header.producer_id, header.producer_epoch, header.base_sequence
    if epoch < 0 or first < 0:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"a batch has the epoch {epoch} and the sequence {first}"
        )
    names = [f"{STATES_NAME}{producer}/{slot}" for slot in range(REMEMBERED_BATCHES)]
    states = [producers.last(name) for name in names]
    newest, slot = None, -1
    for place, state in enumerate(states):
        if state is not None and (newest is None or state.entry > newest.entry):
            newest, slot = state, place
    sequence = epoch << _EPOCH_BITS | first
    if newest is not None:
        _check_epoch(newest, epoch)
        for state in states:
            if state and (state.sequence, state.messages) == (sequence, header.records):
                return DuplicateBatch(state.entry)
        _check_next(newest, epoch, first)
    return NextBatch(names[(slot + 1) % REMEMBERED_BATCHES], sequence)


def _check_epoch(newest: ProducerState, epoch: int) -> None:
    known = newest.sequence >> _EPOCH_BITS
    if epoch < known:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH, f"the epoch {epoch} is older than {known}"
        )


def _check_next(newest: ProducerState, epoch: int, first: int) -> None:
    """Raise KafkaError unless a sequence may follow the newest batch."""
    known, last_first = newest.sequence >> _EPOCH_BITS, newest.sequence % (1 << _EPOCH_BITS)
    expected = 0 if epoch > known else (last_first + newest.messages) % SEQUENCES
    if first != expected:
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"the sequence {first} does not follow, {expected} is the next",
        )
