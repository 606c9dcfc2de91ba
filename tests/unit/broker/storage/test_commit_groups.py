"""The journal's bytes: what was packed is read again, and nothing else is believed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.broker.storage.commit_groups import (
    GROUP_HEADER_SIZE,
    AckRecord,
    BadCommitGroup,
    CommitGroup,
    CommitRecord,
    DeletedRecord,
    EntryRecord,
    FileHeader,
    JournalRecord,
    ProducerRecord,
    ResetRecord,
    entry_prefix,
    guess_file_header,
    pack_ack,
    pack_commit,
    pack_deleted,
    pack_end,
    pack_file_header,
    pack_group_header,
    pack_producer_state,
    pack_reset,
    pack_value,
    read_file_header,
    read_records,
    salvage,
    scan_commit_groups,
)
from router.broker.storage.cursors import Ack, CommittedPosition
from router.broker.storage.producer_state import ProducerState
from router.broker.storage.records import MAX_PAYLOAD, Entry, make_head, read_record, record_size
from router.broker.storage.values import ValueChange, ValueOperation

u64 = st.integers(0, 2**64 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)


def entry_record(ledger: int, entry: Entry) -> EntryRecord:
    return EntryRecord(ledger, make_head(entry), entry)


entries = st.builds(
    entry_record,
    u64,
    st.builds(
        Entry, u64, u64, u64, st.integers(1, 255), st.integers(1, 2**31), st.binary(max_size=60)
    ),
)
marks = st.builds(
    ProducerRecord,
    u64,
    st.text(max_size=9),
    st.builds(ProducerState, u64, u64, st.integers(0, 2**31), u64),
)
acks = st.builds(
    AckRecord,
    u64,
    st.builds(Ack, u64, st.booleans(), st.lists(i64, max_size=3).map(tuple)),
)
resets = st.builds(ResetRecord, u64, i64)
commits = st.builds(
    CommitRecord,
    u64,
    st.builds(
        CommittedPosition,
        i64,
        st.integers(-1, 9),
        st.text(max_size=9),
        i64,
        st.tuples(i64, st.integers(0, 2**31 - 1)),
    ),
)
deletions = st.builds(DeletedRecord, u64, st.lists(st.tuples(u64, u64), max_size=3).map(tuple), u64)
values = st.builds(
    ValueChange,
    st.sampled_from(ValueOperation),
    st.text(max_size=5),
    st.text(max_size=5),
    st.binary(max_size=9),
)
kinds = entries, marks, acks, resets, commits, deletions, values
records = st.lists(st.one_of(*kinds), max_size=8)


def pack(record: JournalRecord) -> bytes:
    if isinstance(record, EntryRecord):
        return entry_prefix(record.ledger) + record.head + record.entry.payload
    if isinstance(record, ProducerRecord):
        return pack_producer_state(record.ledger, record.name, record.state)
    if isinstance(record, AckRecord):
        return pack_ack(record.subscription, record.ack)
    if isinstance(record, CommitRecord):
        return pack_commit(record.subscription, record.commit)
    if isinstance(record, DeletedRecord):
        return pack_deleted(record.ledger, record.ranges, record.removed_entry)
    if isinstance(record, ValueChange):
        return pack_value(record)
    return pack_reset(record.subscription, record.mark_delete)


def journal(bodies: list[bytes], header: FileHeader) -> bytes:
    parts = [pack_file_header(header)]
    for number, body in enumerate(bodies, header.first_group):
        parts += [pack_group_header(number, header.salt, [body[:3], body[3:]]), body]
    return b"".join(parts)


HEADER = FileHeader(7, 6, 40, 0x1122334455667788, relaxed=False)


@given(records)
def test_records_survive_the_way_to_bytes_and_back(given_records: list[JournalRecord]) -> None:
    assert list(read_records(b"".join(map(pack, given_records)))) == given_records


@given(records, st.data())
def test_a_body_cut_anywhere_gives_whole_records_and_an_error(
    given_records: list[JournalRecord], data: st.DataObject
) -> None:
    body = b"".join(map(pack, given_records))
    cut = body[: data.draw(st.integers(0, len(body)))]
    found: list[JournalRecord] = []
    try:
        for record in read_records(cut):
            found.append(record)  # noqa: PERF402 - what came before the error counts
    except ValueError:
        assert cut != body
    assert found == given_records[: len(found)]


@given(st.binary(max_size=200))
def test_any_bytes_are_records_or_an_error(body: bytes) -> None:
    try:
        found = list(read_records(body))
    except ValueError:
        return
    assert b"".join(map(pack, found)) == body or any(isinstance(r, AckRecord) for r in found)


@given(st.lists(st.binary(max_size=30), max_size=6))
def test_rounds_are_found_in_order(bodies: list[bytes]) -> None:
    data = journal(bodies, HEADER)
    assert read_file_header(data) == HEADER
    found = [item for item in scan_commit_groups(data, HEADER) if isinstance(item, CommitGroup)]
    assert [(item.number, item.body) for item in found] == list(enumerate(bodies, 40))
    assert [item.end for item in found][-1:] in ([], [len(data)])


def one_byte_changed(
    bodies: list[bytes], header: FileHeader, data: st.DataObject
) -> tuple[list[CommitGroup], CommitGroup, bytes]:
    """Return the rounds of a journal, the one that has a byte changed, and the file with it."""
    clean = journal(bodies, header)
    rounds = [item for item in scan_commit_groups(clean, header) if isinstance(item, CommitGroup)]
    place = data.draw(st.integers(rounds[0].start, len(clean) - 1))
    changed = bytearray(clean)
    changed[place] ^= data.draw(st.integers(1, 255))
    hit = next(item for item in rounds if item.start <= place < item.end)
    return rounds, hit, bytes(changed)


@given(st.lists(st.binary(min_size=1, max_size=30), min_size=2, max_size=6), st.data())
def test_a_bad_round_is_bounded_by_the_next_good_one(
    bodies: list[bytes], data: st.DataObject
) -> None:
    rounds, hit, changed = one_byte_changed(bodies, HEADER, data)
    found = list(scan_commit_groups(changed, HEADER))
    (bad,) = [item for item in found if isinstance(item, BadCommitGroup)]
    assert (bad.start, bad.number) == (hit.start, hit.number)
    end, followed = (len(changed), False) if hit is rounds[-1] else (hit.end, True)
    assert (bad.end, bad.followed) == (end, followed)
    assert [item for item in found if isinstance(item, CommitGroup)] == [
        item for item in rounds if item is not hit
    ]


REUSED = HEADER._replace(reused=True)


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_a_round_of_another_file_does_not_count(ahead: int) -> None:
    first = HEADER.first_group + ahead
    foreign = journal([b"a", b"b"], HEADER._replace(salt=1, first_group=first))
    data = journal([b"x"], HEADER) + foreign[len(pack_file_header(HEADER)) :]
    found = list(scan_commit_groups(data, HEADER))
    assert [type(item) for item in found] == [CommitGroup, BadCommitGroup]


REUSED = HEADER._replace(reused=True)


def reused(bodies: list[bytes], older: bytes = b"") -> bytes:
    """Return a journal that was written over older bytes."""
    data = journal(bodies, REUSED)
    data += pack_end(REUSED.first_group + len(bodies), REUSED.salt)
    return data + older[len(data) :]


@given(
    st.lists(st.binary(max_size=30), max_size=4),
    st.lists(st.binary(max_size=30), min_size=1, max_size=9),
)
def test_what_an_older_file_left_behind_the_last_round_is_passed_over(
    bodies: list[bytes], older: list[bytes]
) -> None:
    data = reused(bodies, journal(older, REUSED._replace(salt=5, first_group=2)))
    header = read_file_header(data)
    assert header == REUSED
    found = list(scan_commit_groups(data, header))
    assert [item.body for item in found if isinstance(item, CommitGroup)] == bodies
    assert len(found) == len(bodies)


@given(
    st.lists(st.binary(max_size=30), min_size=1, max_size=4),
    st.lists(st.binary(max_size=30), min_size=1, max_size=9),
)
def test_a_write_that_was_cut_at_any_byte_is_no_damage_and_no_data(
    bodies: list[bytes], older: list[bytes]
) -> None:
    """Before the last round was written there was an end mark, and older bytes behind it."""
    stale = journal(older, REUSED._replace(salt=5, first_group=2)) + bytes(200)
    before, after = reused(bodies[:-1], stale), reused(bodies, stale)
    start, end = len(journal(bodies[:-1], REUSED)), len(journal(bodies, REUSED))
    for cut in range(start, end + GROUP_HEADER_SIZE + 1):
        for torn in (after[:cut] + before[cut:], before[:cut] + after[cut:]):
            found = list(scan_commit_groups(torn, REUSED))
            groups = [item.body for item in found if isinstance(item, CommitGroup)]
            assert groups in (bodies[:-1], bodies)
            assert groups == bodies or torn[start:end] != after[start:end]
            bad = [item for item in found if isinstance(item, BadCommitGroup)]
            assert all(not item.followed and item.start in {start, end} for item in bad)


@given(
    st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=6),
    st.integers(0, 60),
    st.data(),
)
def test_a_bad_round_of_a_reused_file_is_told_of(
    bodies: list[bytes], stale: int, data: st.DataObject
) -> None:
    rounds, hit, changed = one_byte_changed(bodies, REUSED, data)
    mark = pack_end(REUSED.first_group + len(bodies), REUSED.salt)
    whole = changed + mark + bytes(stale)
    found = list(scan_commit_groups(whole, REUSED))
    bad = [item for item in found if isinstance(item, BadCommitGroup)]
    end, followed = (len(whole), False) if hit is rounds[-1] else (hit.end, True)
    assert bad == [BadCommitGroup(hit.start, hit.number, end, followed)]
    assert [item for item in found if isinstance(item, CommitGroup)] == [
        r for r in rounds if r != hit
    ]


@given(st.lists(st.binary(max_size=30), max_size=4), st.data())
def test_a_damaged_or_missing_end_mark_is_told_of(bodies: list[bytes], data: st.DataObject) -> None:
    whole = bytearray(reused(bodies, bytes(300)))
    end = len(journal(bodies, REUSED))
    whole[data.draw(st.integers(end, end + GROUP_HEADER_SIZE - 1))] ^= data.draw(
        st.integers(1, 255)
    )
    cut = bytes(whole[: data.draw(st.integers(end, end + GROUP_HEADER_SIZE - 1))])
    for damaged in (bytes(whole), cut):
        *groups, bad = scan_commit_groups(damaged, REUSED)
        number = REUSED.first_group + len(bodies)
        assert bad == BadCommitGroup(end, number, len(damaged), followed=False)
        assert len(groups) == len(bodies)


def test_a_lost_header_is_guessed_from_the_first_round() -> None:
    data = journal([b"x"], HEADER)
    guessed = guess_file_header(data, 7)
    assert (guessed.first_group, guessed.salt) == (HEADER.first_group, HEADER.salt)
    assert [type(item) for item in scan_commit_groups(data, guessed)] == [CommitGroup]
    assert guess_file_header(data[:50], 7).salt == 0


def test_salvage_takes_only_what_is_certain() -> None:
    kept = [entry_record(1, Entry(n, n, 0, 1, 1, b"payload %d" % n)) for n in range(4)]
    body = bytearray(b"".join(map(pack, kept)) + pack_reset(3, 4))
    whole = pack_group_header(1, 2, [bytes(body)]) + body
    size = len(pack(kept[0]))
    start = len(whole) - len(body)
    for damaged, certain in ((start + size + 30, [0, 2, 3]), (start + size + 12, [0])):
        data = bytearray(whole)
        data[damaged] ^= 0xFF  # in a payload; in a length
        found = salvage(bytes(data), 0, len(data))
        assert found == [kept[n] for n in certain]


@pytest.mark.parametrize("length", [0, 28, MAX_PAYLOAD + 30, 2**32 - 1])
def test_a_length_that_no_record_has_is_not_followed(length: int) -> None:
    data = length.to_bytes(4, "big") + bytes(60)
    assert record_size(data, 0) is None
    assert read_record(data, 0) is None
