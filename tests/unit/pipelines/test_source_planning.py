"""The first batch of a stream is the same whenever Spark asks for it, or its loss is said."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from router.backends.pulsar import PulsarBackend
from router.backends.pulsar.extents import Extent, Place, Stretch
from router.model import TopicName
from router.pipelines.source.losses import MessagesLostError
from router.pipelines.source.offsets import Offset
from router.pipelines.source.options import Options
from router.pipelines.source.planning import Planner


class Store(PulsarBackend):
    """One topic of one partition, an entry for each message, of which old ones go."""

    def __init__(self, first: int, behind: int) -> None:
        self.first, self.behind = first, behind

    def extents(
        self, topic: TopicName, stretches: Sequence[Stretch], timeout: float
    ) -> list[Extent]:
        start, end = self.first, self.behind
        for wanted in stretches:
            start = min(max(wanted.start.entry, self.first), self.behind)
            if wanted.messages is not None:
                end = min(start + wanted.messages, self.behind)
        first, behind = Place(1, self.first), Place(1, self.behind)
        ledgers, indexes = ((1, self.behind),), (self.first, start, end, self.behind)
        places = first, behind, Place(1, start), Place(1, end)
        return [Extent(-1, *places, ledgers, True, *indexes)]


def planner(store: Store, starting: str) -> Planner:
    return Planner(Options.of_texts({"topics": "t", "starting": starting}), store)


def kept(offset: Offset) -> Offset:
    """Return an offset as Spark's checkpoint gives it back."""
    return Offset.of_json(offset.json())


def test_first_batch_is_read_from_where_it_began_when_the_latest_moved_on() -> None:
    store = Store(0, 5)
    source = planner(store, "latest")
    start = source.initial()
    store.behind = 9
    end = kept(source.latest(start))
    (wanted,) = planner(store, "latest").ranges(planner(store, "latest").initial(), end)
    assert (wanted.start, wanted.last) == (Place(1, 5), Place(1, 8))


def test_first_batch_that_retention_cut_is_a_loss_when_it_is_read_again() -> None:
    store = Store(0, 9)
    source = planner(store, "earliest")
    end = kept(source.latest(source.initial()))
    store.first = 4
    again = planner(store, "earliest")
    with pytest.raises(MessagesLostError, match="from 1:0 to before 1:4"):
        again.ranges(again.initial(), end)


def test_offset_tells_where_a_batch_begins_no_longer_than_it_must() -> None:
    store = Store(2, 2)
    source = planner(store, "earliest")
    empty = kept(source.initial())
    assert source.latest(empty) is empty
    store.behind = 5
    first = kept(source.latest(empty))
    assert first.starts(first) == empty.starts(first) == {part: Place(1, 2) for part in first.next}
    store.behind = 7
    assert not source.latest(first).begin
