"""What a group acknowledged of copied messages is acknowledged at the target, and nothing else."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.backends import Receipt
from router.model import CursorState, Position, TopicName
from router.services.copying.acknowledged import Done, TargetAcknowledgements, Translation
from router.services.copying.places import Key, end_key_of, key_of, runs_of
from router.services.copying.state import CopiedBatch, CopiedTopic, CopyState

TOPIC = TopicName.parse("orders")
P = 2
STEP = st.one_of(
    st.tuples(st.just("copy"), st.integers(1, 6)),
    st.tuples(st.just("foreign"), st.just(0)),
    st.tuples(st.just("upto"), st.integers(0, 12)),
    st.tuples(st.just("upto"), st.integers(0, 12)),
    st.tuples(st.just("apart"), st.sets(st.integers(0, 12), min_size=1, max_size=5)),
    st.tuples(st.just("reset"), st.just(0)),
)


class Model:
    """Messages of the source by number, where each is at the target, and what is acknowledged."""

    def __init__(self, state: CopyState, sizes: list[int], kafka: bool) -> None:
        self.source = [
            Position(3, entry, P, index if size > 1 else -1, size if size > 1 else 0)
            for entry, size in enumerate(sizes)
            for index in range(size)
        ]
        self.done = Done()
        self._state = state
        self._kafka = kafka
        self._acknowledged: set[int] = set()
        self._ever: set[int] = set()
        # What is at each place: the number of a message, None: it is of another publisher.
        self._target: dict[Key, int | None] = {}
        self._there: set[Key] = set()
        self._copied = self._sequence = self._entry = 0
        self._unbroken = -1  # the last batch before which there is no other message
        self.broken = False

    def copy(self, count: int) -> None:
        """Copy what comes next as one batch, behind which Kafka has a marker."""
        some = self.source[self._copied : self._copied + count]
        if not some:
            return
        runs = runs_of(some)
        row = CopiedBatch(P, self._sequence, runs, len(some), 1, b"", 0)
        receipt = Receipt(Position(0 if self._kafka else 9, self._entry, P), len(some))
        if self._kafka:
            receipt = Receipt(receipt.position, len(some), flat=True)
        self._state.begin(TOPIC, row)
        self._state.complete(TOPIC, row, receipt)
        for number in range(len(some)):
            self._target[key_of(receipt.at(number))] = self._copied + number
        if not self.broken:
            self._unbroken = self._sequence
        self._entry += len(some) + 1 if self._kafka else 1
        self._copied += len(some)
        self._sequence += 1

    def foreign(self, _: int) -> None:
        self._target[0 if self._kafka else 9, self._entry, 0] = None
        self._entry += 1
        self.broken = True

    def upto(self, number: int) -> None:
        self._acknowledged |= set(range(min(number + 1, len(self.source))))

    def apart(self, numbers: set[int]) -> None:
        self._acknowledged |= {number for number in numbers if number < len(self.source)}

    def reset(self, _: int) -> None:
        """The group goes back to the first message; the target's never does."""
        self._ever |= self._acknowledged
        self._acknowledged.clear()

    def sync(self) -> TargetAcknowledgements:
        translation = Translation(self._state, TOPIC, P, self._unbroken)
        acks, self.done = translation.acks(self._cursor(), self.done)
        if acks.upto is not None:
            self._there |= {key for key in self._target if key <= end_key_of(acks.upto)}
        for one in acks.alone:
            self._there |= {k for k in self._target if key_of(one) <= k <= end_key_of(one)}
        wanted = {key for key, number in self._target.items() if number in self._acknowledged}
        before = {key for key, number in self._target.items() if number in self._ever}
        assert wanted <= self._there <= wanted | before
        return acks

    def _cursor(self) -> CursorState:
        entries: dict[int, list[int]] = {}
        for number, place in enumerate(self.source):
            entries.setdefault(place.entry, []).append(number)
        whole = [e for e, numbers in entries.items() if self._acknowledged.issuperset(numbers)]
        mark = -1
        while mark + 1 in whole:
            mark += 1
        ranges: list[tuple[Position, Position]] = []
        for entry, numbers in entries.items():
            if entry <= mark:
                continue
            if entry in whole:
                here = Position(3, entry, P)
                joins = ranges and entry - 1 in whole and entry - 1 > mark
                ranges[-1:] = [(ranges[-1][0], here)] if joins else [*ranges[-1:], (here, here)]
            else:
                places = [self.source[n] for n in numbers if n in self._acknowledged]
                ranges += [(place, place) for place in places]
        return CursorState(P, Position(3, mark, P) if mark >= 0 else None, tuple(ranges))


@pytest.mark.no_cover
@pytest.mark.parametrize("kafka", [False, True], ids=["entries", "offsets"])
@pytest.mark.slow
@settings(max_examples=250, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=3, max_size=8),
    first=st.sampled_from(["foreign", "reset"]),
    steps=st.lists(st.tuples(STEP, st.booleans()), min_size=3, max_size=12),
)
def test_what_is_acknowledged_and_copied_is_acknowledged_at_the_target_and_nothing_else(
    kafka: bool, sizes: list[int], first: str, steps: list[tuple[tuple[str, object], bool]]
) -> None:
    with TemporaryDirectory() as folder:
        state = CopyState.open(Path(folder) / "copy.db", "a", "b")
        try:
            state.put_topic(CopiedTopic(TOPIC, TOPIC, 4, done=True))
            model = Model(state, sizes, kafka)
            begin = ((first, 0), False), (("copy", 5), False)
            for (what, how), synced in [*begin, *steps, (("copy", 100), True)]:
                getattr(model, what)(how)
                if synced:
                    model.sync()
            # What was done is not done again, but for the batch in which the group stands.
            again = model.sync()
            assert again.upto is None
            assert not again or model.broken
        finally:
            state.close()
