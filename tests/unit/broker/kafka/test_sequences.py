"""Idempotent producers: batches are next, duplicates or gaps, as a list of all of them says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.broker.kafka.failures import KafkaError
from router.broker.kafka.sequences import (
    REMEMBERED_BATCHES,
    SEQUENCES,
    DuplicateBatch,
    NextBatch,
    check_sequence,
)
from router.broker.storage import ProducerState, ProducerStates
from router.model import REQUEST_PRODUCER
from router.wire.kafka.error_codes import ErrorCode
from router.wire.kafka.record_batches import BatchHeader

PRODUCER = 7
STEPS = st.tuples(
    st.sampled_from(["next", "again", "gap", "epoch", "old epoch"]),
    st.integers(1, 5),
    st.integers(0, 7),
)


def header(epoch: int, sequence: int, records: int) -> BatchHeader:
    return BatchHeader(0, 0, 0, 2, 0, 0, records - 1, 0, 0, PRODUCER, epoch, sequence, records)


def refusal(epoch: int, newest: int) -> ErrorCode:
    if epoch < newest:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def judged(producers: ProducerStates, asked: tuple[int, int, int]) -> object:
    """Return what a batch is, or the code that refuses it."""
    try:
        return check_sequence(producers, header(*asked))
    except KafkaError as error:
        return error.code


@given(first=st.integers(0, SEQUENCES - 1), steps=st.lists(STEPS, max_size=40))
def test_batches_are_judged_as_a_list_of_all_would(
    first: int, steps: list[tuple[str, int, int]]
) -> None:
    producers = ProducerStates(1_000, 1_000)
    stored: list[tuple[int, int, int]] = []
    for kind, records, back in steps:
        epoch, following = 0, first
        if stored:
            epoch, sequence, count = stored[-1]
            following = (sequence + count) % SEQUENCES
        if kind == "again" and stored:
            place = max(0, len(stored) - 1 - back)
            asked = stored[place]
            remembered = asked[0] == epoch and place >= len(stored) - REMEMBERED_BATCHES
            expected: object = DuplicateBatch(place) if remembered else refusal(asked[0], epoch)
        elif kind == "gap" and stored:
            asked = epoch, (following + 1 + back) % SEQUENCES, records
            expected = refusal(epoch, epoch)
        elif kind == "epoch" and stored:
            asked = epoch + 1, 0, records
            expected = NextBatch
        elif kind == "old epoch" and epoch:
            asked = epoch - 1, following, records
            expected = refusal(epoch - 1, epoch)
        else:
            asked = epoch, following, records
            expected = NextBatch
        found = judged(producers, asked)
        if isinstance(found, NextBatch):
            assert expected is NextBatch
            assert found.name.startswith(REQUEST_PRODUCER)
            producers.record(found.name, ProducerState(found.sequence, len(stored), asked[2], 0))
            stored.append(asked)
        else:
            assert found == expected
