"""Message ids and marks in texts."""

from __future__ import annotations

import base64

import pulsar
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.backends import Start
from router.errors import BadRequestError
from router.model import Position
from router.services.read import After, StartPosition
from router.web.pulsar_rest import ids
from router.wire.pulsar import MAX_BATCH

numbers = st.integers(0, 2**63 - 1)
positions = st.builds(
    Position, numbers, numbers, st.integers(-1, 2**31 - 1), st.integers(-1, 2**31 - 2)
)
places = st.builds(Position, numbers, numbers, st.just(-1), st.integers(-1, 2**31 - 1))
whences: st.SearchStrategy[StartPosition] = st.one_of(
    st.sampled_from(list(Start)), st.integers(0, 10**15 - 1), places, st.builds(After, places)
)


@given(positions)
def test_ids_survive_a_round_trip(position: Position) -> None:
    text = ids.write(position)
    assert ids.read(text) == position
    urlsafe = base64.urlsafe_b64encode(base64.b64decode(text)).decode().rstrip("=")
    assert ids.read(urlsafe) == position


@given(positions)
def test_official_client_reads_our_ids(position: Position) -> None:
    found = pulsar.MessageId.deserialize(base64.b64decode(ids.write(position)))
    assert (found.ledger_id(), found.entry_id()) == (position.ledger, position.entry)
    assert (found.partition(), found.batch_index()) == (position.partition, position.batch_index)


@given(st.builds(Position, st.integers(0, 10**18), st.integers(0, 10**18), st.integers(-1, 999)))
def test_ids_of_apache_pulsar_survive_a_round_trip(position: Position) -> None:
    assert ids.read(ids.write_colons(position)) == position
    assert ids.read(f"{position.ledger}:{position.entry}").partition == -1


@given(st.lists(whences, min_size=1, max_size=6))
def test_marks_survive_a_round_trip(found: list[StartPosition]) -> None:
    assert ids.read_marks(ids.write_marks(found)) == found


@pytest.mark.slow
@given(st.text(max_size=40) | st.binary(max_size=40).map(lambda b: base64.b64encode(b).decode()))
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in (ids.read, ids.read_marks):
        try:
            read(text)
        except BadRequestError:
            continue


@pytest.mark.parametrize(
    "text",
    [None, 7, "", "x", "1:2:3:4:5", "1:2:-2", "99999999999999999999:1:1", "A" * 300]
    + [base64.b64encode(pulsar.MessageId(*at).serialize()).decode() for at in [(-1, -1, -1, -1)]],
)
def test_what_is_no_id_is_refused(text: object) -> None:
    with pytest.raises(BadRequestError):
        ids.read(text)


def test_forged_size_of_a_batch_is_refused() -> None:
    largest = ids.write(Position(1, 2, 0, 0, MAX_BATCH))
    assert ids.read(largest).batch_size == MAX_BATCH
    with pytest.raises(BadRequestError):
        ids.read(ids.write(Position(1, 2, 0, 0, 2**31 - 1)))
