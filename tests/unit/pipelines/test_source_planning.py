"""The first batch of a stream is the same whenever Spark asks for it, or its loss is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.backends.pulsar import PulsarBackend
from router.backends.pulsar.extents import EntryExtent, EntryPosition, EntryRead, ExtentRequests
from router.errors import SettingError
from router.model import TopicInfo, TopicName
from router.pipelines.source.losses import RECREATED, MessagesLostError
from router.pipelines.source.offsets import MessagePoint, Offset, Part
from router.pipelines.source.options import SourceOptions
from router.pipelines.source.planning import BatchPlanner
from router.pipelines.source.ranges import MissingEntries, bound_end, gap_losses

T = Part("persistent://public/default/t", -1)


class Store(PulsarBackend):
    """One topic of one partition, an entry for each message, of which old ones go."""

    def __init__(self, first: int, stop: int) -> None:
        self.first, self.stop = first, stop
        self.removed: int | None = None
        self.questions = 0
        self.names = ["t"]

    def extents(self, wanted: ExtentRequests, timeout: float) -> dict[TopicName, list[EntryExtent]]:
        self.questions += 1
        return {topic: [self._extent(reads)] for topic, reads in wanted.items()}

    def list_topics(self, timeout: float, *, internal: bool = False) -> list[TopicInfo]:
        return [TopicInfo(TopicName.parse(name)) for name in self.names]

    def _extent(self, reads: Sequence[EntryRead]) -> EntryExtent:
        start, end = self.first, self.stop
        for one in reads:
            wanted = one.start.entry if one.index is None else one.index
            start = min(max(wanted, self.first), self.stop)
            if one.messages is not None:
                end = min(start + one.messages, self.stop)
        first, stop = EntryPosition(1, self.first), EntryPosition(1, self.stop)
        ledgers, indexes = ((1, self.stop),), (self.first, start, end, self.stop)
        places = first, stop, EntryPosition(1, start), EntryPosition(1, end)
        removed = places[0] if self.removed is None else EntryPosition(1, self.removed)
        return EntryExtent(-1, *places, ledgers, True, *indexes, removed=removed)


class Entries(Store):
    """The same with ten messages in each entry: `first` and `stop` count messages."""

    ledger = 1

    def _extent(self, reads: Sequence[EntryRead]) -> EntryExtent:
        first, stop = self.first // 10, self.stop // 10
        start, end = first, stop
        for one in reads:
            wanted = one.start.entry if one.index is None else one.index // 10
            start = min(max(wanted, first), stop)
        places = self._place(first), self._place(stop), self._place(start), self._place(end)
        indexes = (first * 10, start * 10, end * 10, stop * 10)
        ledgers = ((self.ledger, stop),)
        return EntryExtent(-1, *places, ledgers, True, *indexes, removed=places[0])

    def _place(self, entry: int) -> EntryPosition:
        return EntryPosition(self.ledger, entry)


def planner(store: Store, starting: str) -> BatchPlanner:
    return BatchPlanner(SourceOptions.of_texts({"topics": "t", "starting": starting}), store)


def kept(offset: Offset) -> Offset:
    """Return an offset as Spark's checkpoint gives it back."""
    return Offset.of_json(offset.json())


def test_first_batch_is_read_from_where_it_began_when_the_latest_moved_on() -> None:
    store = Store(0, 5)
    source = planner(store, "latest")
    start = source.initial()
    store.stop = 9
    end = kept(source.latest(start))
    (wanted,) = planner(store, "latest").ranges(planner(store, "latest").initial(), end)
    assert (wanted.start, wanted.last) == (EntryPosition(1, 5), EntryPosition(1, 8))


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
    store.stop = 5
    first = kept(source.latest(empty))
    assert (
        first.starts(first)
        == empty.starts(first)
        == {part: EntryPosition(1, 2) for part in first.next}
    )
    store.stop = 7
    assert not source.latest(first).begin


@given(
    gap=st.tuples(st.integers(0, 20), st.integers(1, 20)),
    removed=st.integers(0, 25),
    holes=st.lists(st.tuples(st.integers(0, 25), st.integers(1, 5)), max_size=3),
)
def test_gap_is_lost_as_far_as_the_store_lost_it(
    gap: tuple[int, int], removed: int, holes: list[tuple[int, int]]
) -> None:
    start, end = gap[0], gap[0] + gap[1]
    given_up = tuple(
        (EntryPosition(1, first), EntryPosition(1, first + size)) for first, size in holes
    )
    places = (EntryPosition(1, 0), EntryPosition(1, 50), EntryPosition(1, 0), EntryPosition(1, 50))
    extent = EntryExtent(
        -1, *places, ((1, 50),), True, removed=EntryPosition(1, removed), given_up=given_up
    )
    found = list(
        gap_losses(
            T, MissingEntries(EntryPosition(1, start), EntryPosition(1, end), 10, 30), extent
        )
    )
    lost = {e for one in found for e in range(one.start.entry, one.upto.entry if one.upto else 0)}
    gone = {*range(removed), *(e for first, size in holes for e in range(first, first + size))}
    assert lost == gone & set(range(start, end))
    # Only of a whole gap it is known how many messages it had.
    assert all(one.messages in {None, 20} for one in found)
    again = replace(extent, first=EntryPosition(2, 0))
    (anew,) = gap_losses(
        T, MissingEntries(EntryPosition(1, start), EntryPosition(1, end), None, None), again
    )
    assert anew.why == RECREATED


def test_what_was_deleted_before_a_checkpoint_goes_on_is_no_loss() -> None:
    store = Store(0, 5)
    source = planner(store, "earliest")
    end = kept(source.latest(source.initial()))
    # Segments whose messages were all deleted went; retention had taken what is before 3.
    store.first, store.stop, store.removed = 8, 9, 3
    assert kept(source.latest(end)).losses == 0
    store.removed = 6
    with pytest.raises(MessagesLostError, match="from 1:5 to before 1:6"):
        source.latest(end)


@pytest.mark.slow
def test_thousand_topics_take_as_few_questions_as_one() -> None:
    store = Store(0, 5)
    store.names = [f"t{number}" for number in range(1_000)]
    source = BatchPlanner(SourceOptions.of_texts({"pattern": "t.*"}), store)
    start = source.initial()
    assert store.questions == 1
    end = kept(source.latest(start, 100_000))
    assert store.questions == 2
    assert len(source.ranges(start, end)) == 1_000
    assert store.questions == 3
    # A bound of rows asks also where the shares end, and how many messages are before that.
    assert source.latest(start, 2_000).next != end.next
    assert store.questions == 6


def batch(source: BatchPlanner, start: Offset) -> tuple[Offset, int | MessagePoint | None]:
    """Return the end of the next batch, and the first message that it gives if that is said."""
    end = kept(source.latest(start))
    return end, next((one.low for one in source.ranges(start, end)), None)


def test_start_inside_of_an_entry_bounds_the_first_batch_alone() -> None:
    store = Entries(0, 50)
    source = planner(store, '{"t": {"0": 23}}')
    start = kept(source.initial())
    end, low = batch(source, start)
    assert (start.next[T], low) == (EntryPosition(1, 2), 23)
    store.stop = 90
    # The checkpoint says where it goes on, whatever the option says by now.
    later = planner(store, '{"t": {"0": 87}}')
    assert batch(later, end)[1] is None
    assert batch(later, kept(later.latest(end)))[1] is None


def test_start_that_is_still_to_come_holds_until_it_has() -> None:
    store = Entries(0, 20)
    source = planner(store, '{"t": {"0": 35}}')
    start = kept(source.initial())
    store.stop = 30
    first, low = batch(source, start)
    assert low == 35
    store.stop = 40
    second, low = batch(source, first)
    assert low == 35
    store.stop = 50
    assert batch(source, second)[1] is None


def test_start_inside_of_an_entry_says_nothing_of_a_topic_that_was_made_again() -> None:
    store = Entries(0, 50)
    texts = {"topics": "t", "starting": '{"t": {"0": 60}}', "on_loss": "skip"}
    source = BatchPlanner(SourceOptions.of_texts(texts), store)
    start = kept(source.initial())
    store.ledger, store.stop = 2, 30
    end, low = batch(source, start)
    assert (low, end.begin[T], end.losses) == (None, EntryPosition(2, 0), 1)


def test_start_at_a_position_inside_of_an_entry_is_kept_by_the_checkpoint() -> None:
    store = Entries(0, 50)
    source = planner(store, '{"t": {"0": "1:3:4"}}')
    start = kept(source.initial())
    assert start.low == {T: MessagePoint(EntryPosition(1, 3), 4)}
    end, low = batch(source, start)
    assert low == MessagePoint(EntryPosition(1, 3), 4)
    store.stop = 60
    assert batch(source, end)[1] is None
    assert not kept(planner(store, '{"t": {"0": "1:3"}}').initial()).low
    assert not kept(planner(store, '{"t": {"0": 30}}').initial()).low


def bounded(store: Store, **texts: str) -> list[tuple[int, int]]:
    """Return the first and last entry of what a frame reads."""
    source = BatchPlanner(SourceOptions.of_texts({"topics": "t", **texts}), store)
    start = source.initial()
    end = source.latest(start, target=source.target())
    return [(one.start.entry, one.last.entry) for one in source.ranges(start, end)]


def test_frame_begins_and_ends_at_offsets() -> None:
    offsets = {"startingOffsets": '{"t": {"0": 3}}', "endingOffsets": '{"t": {"0": 6}}'}
    assert bounded(Store(0, 9), **offsets) == [(3, 5)]
    assert bounded(Store(0, 4), **offsets) == [(3, 3)]
    assert bounded(Store(0, 2), **offsets) == []


def test_frame_ends_inside_of_the_entry_that_a_position_names() -> None:
    assert bounded(Store(0, 9), endingOffsets='{"t": {"0": "1:4"}}') == [(0, 3)]
    assert bounded(Store(0, 9), endingOffsets='{"t": {"0": "1:4:2"}}') == [(0, 4)]


def test_offset_that_was_deleted_is_a_loss() -> None:
    offsets = {"startingOffsets": '{"t": {"0": 3}}'}
    with pytest.raises(MessagesLostError, match="2 messages, because retention"):
        bounded(Store(5, 9), **offsets)
    assert bounded(Store(5, 9), **offsets, failOnDataLoss="false") == [(5, 8)]
    with pytest.raises(MessagesLostError, match="retention"):
        bounded(Store(5, 9), startingOffsets='{"t": {"0": "1:4"}}')


def test_offset_of_a_partition_that_is_not_there_is_refused() -> None:
    with pytest.raises(SettingError, match="no partition 7"):
        bounded(Store(0, 9), endingOffsets='{"t": {"7": 3}}')
    with pytest.raises(SettingError, match="deleted and created again"):
        bounded(Store(0, 9), startingOffsets='{"t": {"0": "2:3"}}')


def test_position_that_is_the_latest_reads_nothing() -> None:
    assert bounded(Store(0, 9), starting="latest") == []
    assert bounded(Store(0, 9), startingOffsets='{"t": {"0": -2}}') == [(0, 8)]


@pytest.mark.parametrize(
    ("number", "start_index", "entry"), [(20, 20, 4), (21, 20, 5), (29, 20, 5), (3, 7, 4)]
)
def test_frame_that_ends_inside_of_an_entry_takes_the_entry(
    number: int, start_index: int, entry: int
) -> None:
    # The store answers the entry that holds the message, or the first that is kept.
    places = EntryPosition(1, 0), EntryPosition(1, 9), EntryPosition(1, 4), EntryPosition(1, 9)
    extent = EntryExtent(-1, *places, ((1, 9),), True, 0, start_index, 90, 90)
    assert bound_end(number, extent) == EntryPosition(1, entry)
