"""A comparison names what the source holds and the target does not, whoever deleted what."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.backends import Batch, Start
from router.clocks import wall_ms
from router.model import NOT_PARTITIONED, Message, TopicInfo
from router.services.copying.verify import How, Verification, Verifier
from tests.unit.services.copying.bench import TIMEOUT, TOPIC, Bench, Source

NUMBERS = st.sets(st.integers(0, 11))


def compared(bench: Bench, how: How, since: Start | int = Start.EARLIEST) -> Verification:
    verifier = Verifier(
        bench.source, bench.target, bench.state, TIMEOUT, lambda count: None, since=since
    )
    return verifier.run(bench.state.topics(), how, groups=False)


class Deleting(Bench):
    """A bench whose target deletes messages, too."""

    def __init__(self, folder: Path, batch: int) -> None:
        super().__init__(folder, batch_messages=batch)
        self.there = Source()
        self.target = self.there  # type: ignore[assignment] # no faults


@pytest.mark.parametrize("how", ["sample", "all"])
@given(
    copied=st.integers(0, 8),
    batch=st.integers(1, 4),
    later=st.integers(0, 3),
    here=NUMBERS,
    there=NUMBERS,
    others=st.integers(0, 3),
)
@settings(max_examples=40, deadline=None)
def test_each_message_that_only_the_source_holds_is_a_difference(
    how: How,
    copied: int,
    batch: int,
    later: int,
    here: set[int],
    there: set[int],
    others: int,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bench = Deleting(Path(folder), batch)
        try:
            values = [b"%d" % number for number in range(copied + later)]
            for value in values[:copied] or [b"x"]:
                bench.publish([Message(value)])
            bench.run()
            for value in values[copied:]:
                bench.publish([Message(value)])
            for number in range(others):
                foreign = Batch(TOPIC, NOT_PARTITIONED, [Message(b"other %d" % number)])
                bench.target.publish(foreign, TIMEOUT)
            bench.source.deleted = {b"%d" % number for number in here}
            bench.there.deleted = {b"%d" % number for number in there}
            held = set(values) - bench.source.deleted
            lacking = len(held - (set(values[:copied]) - bench.there.deleted))
            found = compared(bench, how)
            (one,) = found.partitions
            assert one.lacking == lacking
            assert one.others == (others if how == "all" else None)
            if lacking:
                assert not found.ok
                assert found.sentences()
            elif not there:
                assert found.ok, found.sentences()
        finally:
            bench.close()


@pytest.mark.parametrize("how", ["sample", "all"])
def test_what_both_deleted_in_time_is_no_difference(tmp_path: Path, how: How) -> None:
    bench = Deleting(tmp_path, 2)
    try:
        for number in range(6):
            bench.publish([Message(b"%d" % number)])
        bench.run()
        bench.source.deleted = {b"0", b"1", b"2"}
        bench.there.deleted = {b"0", b"1"}
        found = compared(bench, how)
        assert found.ok
        (one,) = found.partitions
        assert (one.gone, one.expired) == ((3, 2) if how == "all" else (None, None))
        bench.there.deleted = {b"0", b"1", b"2", b"3"}
        (difference,) = compared(bench, how).differences
        assert difference.sequence == 1
        assert difference.what == (
            "1 of 2 messages are not at the target: it deleted them, and the source holds them"
        )
    finally:
        bench.close()


def test_what_was_published_before_the_given_time_is_not_missed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    try:
        bench.source.create_topic(TopicInfo(TOPIC, 2), TIMEOUT)
        bench.publish([Message(b"0")], 0)
        bench.run()
        bench.publish([Message(b"1")], 1)
        assert not compared(bench, "sample").ok
        assert compared(bench, "sample", since=wall_ms() + 3_600_000).ok
    finally:
        bench.close()
