"""What a copy remembers: places of messages here and there, across restarts, for one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.backends import Receipt
from router.errors import BackendUnavailableError, BadRequestError
from router.model import Position, TopicName
from router.services.copying.places import key_of, read_runs, runs_of, write_runs
from router.services.copying.state import CopiedBatch, CopiedTopic, CopyState

TOPIC = TopicName.parse("orders")
PARTITION = 2
SYNCHRONOUS_FULL = 2


@st.composite
def stored(draw: st.DrawFn) -> list[Position]:
    """Positions of a partition as stores give them: ledgers, gaps, entries of one or many."""
    found: list[Position] = []
    ledger, entry = 3, 0
    for _ in range(draw(st.integers(1, 12))):
        if draw(st.integers(0, 5)) == 0:
            ledger, entry = ledger + draw(st.integers(1, 3)), 0
        entry += draw(st.sampled_from([0, 0, 0, 1, 4]))
        size = draw(st.sampled_from([0, 0, 1, 2, 5]))
        if size:
            deleted = draw(st.sets(st.integers(0, size - 1), max_size=size - 1))
            indexes = [index for index in range(size) if index not in deleted]
            found += [Position(ledger, entry, PARTITION, index, size) for index in indexes]
        else:
            found.append(Position(ledger, entry, PARTITION))
        entry += 1
    return found


@st.composite
def receipts(draw: st.DrawFn, count: int, begin: int) -> Receipt:
    """Where a target stores so many messages: flat, as a batch, or in parts."""
    parts, entry = [], begin
    while count:
        some = draw(st.integers(1, count))
        flat = draw(st.booleans())
        where = Position(9, entry, PARTITION)
        if some == 1 and not flat and draw(st.booleans()):
            where = Position(9, entry, PARTITION, 0, 1)
        parts.append(Receipt(where, some, flat=flat))
        entry += draw(st.integers(0, 2)) + (some if flat else 1)
        count -= some
    return Receipt.joined(parts)


def batch_of(sequence: int, positions: list[Position]) -> CopiedBatch:
    return CopiedBatch(
        PARTITION, sequence, runs_of(positions), len(positions), 10, b"sum", 1_700_000_000_000
    )


@given(positions=stored())
def test_runs_are_the_positions(positions: list[Position]) -> None:
    runs = read_runs(write_runs(runs_of(positions)))
    batch = batch_of(0, positions)
    assert list(batch.sources()) == positions
    assert [p.batch_size for p in batch.sources()] == [p.batch_size for p in positions]
    assert runs == batch.runs
    assert (batch.first(), batch.last()) == (positions[0], positions[-1])
    assert [batch.upto(position) for position in positions] == [
        number + 1 for number in range(len(positions))
    ]


@settings(max_examples=60, deadline=None)
@given(positions=stored(), data=st.data())
def test_each_position_is_translated_to_the_place_of_its_message(
    positions: list[Position], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(positions)), max_size=3)) | {len(positions)})
    copied: dict[Position, Position] = {}
    with TemporaryDirectory() as folder:
        state = CopyState.open(Path(folder) / "copy.db", "a", "b")
        state.put_topic(CopiedTopic(TOPIC, TOPIC, 4))
        begin = 0
        for sequence, cut in enumerate(cuts):
            some = positions[begin:cut]
            batch = batch_of(sequence, some)
            state.begin(TOPIC, batch)
            assert state.newest(TOPIC, PARTITION) == batch
            before = copied[positions[begin - 1]] if begin else None
            assert {upto(state, position) for position in some} == {before}
            receipt = data.draw(receipts(len(some), begin * 3))
            state.complete(TOPIC, batch, receipt)
            copied |= zip(some, map(receipt.at, range(len(some))), strict=True)
            begin = cut
        state.close()
        state = CopyState.open(Path(folder) / "copy.db", "a", "b")
        try:
            for position in positions:
                assert upto(state, position) == copied[position]
            for batch in state.batches(TOPIC, PARTITION):
                where = zip(batch.sources(), batch.targets(), strict=True)
                assert all(copied[source] == target for source, target in where)
            ledgers, entries, sizes = st.integers(2, 9), st.integers(0, 40), st.integers(-1, 5)
            asked = Position(data.draw(ledgers), data.draw(entries), PARTITION, data.draw(sizes))
            assert upto(state, asked) == last_upto(copied, asked)
        finally:
            state.close()


def last_upto(copied: dict[Position, Position], asked: Position) -> Position | None:
    whole = asked.batch_index < 0
    limit = (asked.ledger, asked.entry, 99 if whole else asked.batch_index)
    before = [source for source in copied if key_of(source) <= limit]
    return copied[max(before, key=key_of)] if before else None


def upto(state: CopyState, position: Position) -> Position | None:
    """Return where the last copied message is that lies at a source position or before it."""
    batch = state.batch_at(TOPIC, position)
    if batch is None:
        return None
    assert batch.receipt is not None
    return batch.receipt.at(batch.upto(position) - 1)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[CopyState]:
    state = CopyState.open(tmp_path / "copies" / "copy.db", "a", "b")
    yield state
    state.close()


def test_a_batch_in_flight_is_known_after_a_restart(state: CopyState) -> None:
    state.put_topic(CopiedTopic(TOPIC, TOPIC, 0, done=True))
    batches = [batch_of(n, [Position(0, n, PARTITION)]) for n in range(3)]
    state.begin(TOPIC, batches[0])
    receipts = [Receipt(Position(5, n, PARTITION), 1) for n in range(2)]
    state.complete(TOPIC, batches[0], receipts[0], batches[1])
    state.complete(TOPIC, batches[1], receipts[1], batches[2])
    name = state.id
    state.close()
    again = CopyState.open(state.path, "a", "b")
    try:
        assert again.id == name
        assert again.topics() == [CopiedTopic(TOPIC, TOPIC, 0, done=True)]
        assert again.newest(TOPIC, PARTITION) == batches[2]
        last = again.last_copied(TOPIC, PARTITION)
        assert last is not None
        assert (last.sequence, last.receipt) == (1, receipts[1])
        assert again.copied(TOPIC, PARTITION) == (2, 20)
        assert again.partitions(TOPIC) == [PARTITION]
    finally:
        again.close()


def test_what_is_noted_is_on_disk_before_it_is_published(tmp_path: Path) -> None:
    """SQLite syncs each transaction; without it a power cut would have batches stored twice."""
    with closing(CopyState.open(tmp_path / "s", "a", "b")) as state:
        (level,) = state._connection.execute("PRAGMA synchronous").fetchone()
    assert level == SYNCHRONOUS_FULL


def test_one_process_has_the_state(state: CopyState) -> None:
    with pytest.raises(BadRequestError, match="another process copies"):
        CopyState.open(state.path, "a", "b")


def test_the_state_is_that_of_one_copy(state: CopyState) -> None:
    state.close()
    with pytest.raises(BadRequestError, match="whose target is b, not c"):
        CopyState.open(state.path, "a", "c")
    with pytest.raises(BadRequestError, match="whose source is a, not c"):
        CopyState.open(state.path, "c", "b")


def test_a_write_that_fails_changes_nothing_and_hinders_no_other(state: CopyState) -> None:
    state.put_topic(CopiedTopic(TOPIC, TOPIC, 0))
    first, second = (batch_of(n, [Position(0, n, PARTITION)]) for n in range(2))
    state.begin(TOPIC, first)
    with pytest.raises(BackendUnavailableError):
        state.complete(TOPIC, first, Receipt(Position(5, 0, PARTITION), 1), first)
    assert state.last_copied(TOPIC, PARTITION) is None
    state.complete(TOPIC, first, Receipt(Position(5, 0, PARTITION), 1), second)
    assert state.newest(TOPIC, PARTITION) == second


def test_a_batch_that_is_stored_is_not_forgotten(state: CopyState) -> None:
    state.put_topic(CopiedTopic(TOPIC, TOPIC, 0))
    batch = batch_of(0, [Position(0, 0, PARTITION)])
    state.begin(TOPIC, batch)
    state.complete(TOPIC, batch, Receipt(Position(5, 0, PARTITION), 1))
    state.forget(TOPIC, batch)
    assert state.last_copied(TOPIC, PARTITION) is not None


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_all_batches_are_given_however_many_are_read_at_once(
    state: CopyState, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr("router.services.copying.state.ROWS_AT_ONCE", 2)
    state.put_topic(CopiedTopic(TOPIC, TOPIC, 0))
    for number in range(count):
        batch = batch_of(number, [Position(0, number, PARTITION)])
        state.begin(TOPIC, batch)
        state.complete(TOPIC, batch, Receipt(Position(5, number, PARTITION), 1))
    assert [one.sequence for one in state.batches(TOPIC, PARTITION)] == list(range(count))
    assert [one.sequence for one in state.batches(TOPIC, PARTITION, 0)] == list(range(1, count))


def test_others_cannot_read_the_state(state: CopyState) -> None:
    state.put_topic(CopiedTopic(TOPIC, TOPIC, 0))
    for file in state.path.parent.iterdir():
        assert file.stat().st_mode & 0o077 == 0, file


def test_a_file_that_is_no_state_is_named(tmp_path: Path) -> None:
    path = tmp_path / "copy.db"
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(BackendUnavailableError, match=r"copy\.db cannot be used"):
        CopyState.open(path, "a", "b")


def test_a_damaged_state_is_refused_with_a_sentence(state: CopyState) -> None:
    """Whatever is wrong with its bytes, and wherever that is found."""
    state.put_topic(CopiedTopic(TOPIC, TOPIC, 4))
    for sequence in range(30):
        batch = batch_of(sequence, [Position(3, sequence, PARTITION)])
        state.begin(TOPIC, batch)
        state.complete(TOPIC, batch, Receipt(Position(9, sequence, PARTITION), 1))
    state.close()
    whole, random, sentences = state.path.read_bytes(), Random(1), list[str]()
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(20):
            damaged[random.randrange(len(whole))] ^= 1 << random.randrange(8)
        state.path.write_bytes(damaged)
        try:
            with closing(CopyState.open(state.path, "a", "b")) as found:
                for topic in found.topics():
                    list(found.batches(topic.source, PARTITION, -1))
        except (BackendUnavailableError, BadRequestError) as error:
            sentences.append(str(error))
    assert sentences
    assert all("copy.db" in sentence for sentence in sentences)
