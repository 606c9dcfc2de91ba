"""A verification finds what is not the same at the target, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from router.backends import Receipt, Start
from router.model import Subscription
from router.services.copying.verify import How
from tests.contract.conftest import APACHE, KAFKA, WAIT, Opened, open_any, open_with_node
from tests.contract.copied import Copy, opened_state, stored

pytestmark = pytest.mark.contract

BOTH = pytest.mark.parametrize("how", ["sample", "all"])


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    with ExitStack() as stack:
        yield open_with_node("memory", tmp_path_factory.mktemp("source"), stack)


@pytest.fixture(scope="module", params=["embedded", KAFKA, APACHE])
def target(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Opened]:
    with ExitStack() as stack:
        yield open_any(request, tmp_path_factory.mktemp("target"), stack)


@pytest.fixture
def copy(source: Opened, target: Opened, tmp_path: Path) -> Iterator[Copy]:
    """Five batches of three messages on two partitions, all copied, and a group in the middle."""
    with opened_state(tmp_path) as state:
        copy = Copy(source, target, state, partitions=2)
        group = Subscription(copy.topic, "g 1/ä+%")
        source.backend.subscribe(group, Start.EARLIEST, WAIT)
        for number in range(5):
            for partition in copy.partitions:
                texts = [b"%d-%d-%d" % (partition, number, one) for one in range(3)]
                copy.publish(source, texts, partition)
                copy.copy(3, partition)
        middle = stored(source, copy.topic, 1)[8].position
        source.backend.acknowledge(group, [middle], True, WAIT)
        copy.sync()
        yield copy


def differences(copy: Copy, how: How) -> list[tuple[int, int]]:
    """Return the partitions and batches in which something differs."""
    found = copy.verify(how)
    assert found.ok == (not found.differences) == (not found.sentences())
    return [(one.partition, one.sequence) for one in found.differences]


@BOTH
def test_a_copy_is_the_same(copy: Copy, how: How) -> None:
    found = copy.verify(how)
    assert found.ok, found.sentences()
    assert [(one.partition, one.batches, one.copied) for one in found.partitions] == [
        (0, 5, 15),
        (1, 5, 15),
    ]
    assert (found.groups, sum(copy.compared)) == (1, 30)
    unknown = None if how == "sample" else 0
    assert [(one.lacking, one.gone, one.expired, one.others) for one in found.partitions] == [
        (0, unknown, unknown, unknown)
    ] * 2


@BOTH
def test_other_messages_in_the_place_of_copied_ones_are_found(
    source: Opened, copy: Copy, how: How
) -> None:
    last = copy.state.last_copied(copy.topic, 1)
    assert last is not None
    copy.publish(source, [b"1-5-0", b"1-5-1", b"1-5-2"], 1)
    copy.copy(3, 1)
    assert not differences(copy, how)
    # The target's place of the batch before is noted for it.
    newest = copy.state.last_copied(copy.topic, 1)
    assert newest is not None
    assert last.receipt is not None
    copy.state.complete(copy.topic, newest, last.receipt)
    assert differences(copy, how) == [(1, 5)]


@BOTH
def test_messages_that_are_not_at_the_target_are_found(copy: Copy, how: How) -> None:
    last = copy.state.last_copied(copy.topic, 0)
    assert last is not None
    assert last.receipt is not None
    copy.state.complete(copy.topic, last, _behind(last.receipt))
    assert differences(copy, how) == [(0, 4)]


def _behind(receipt: Receipt) -> Receipt:
    at = receipt.position
    return replace(receipt, position=replace(at, entry=at.entry + 1_000))


def test_a_batch_that_is_stored_twice_and_messages_left_out_are_found(
    source: Opened, target: Opened, copy: Copy
) -> None:
    copy.publish(target, [b"1-4-0", b"1-4-1", b"1-4-2"], 1)
    copy.publish(source, [b"1-5-0", b"1-5-1"], 1)
    copy.leave_out(1, 1)
    copy.copy(1, 1)
    found = copy.verify("all")
    assert [(one.partition, one.sequence) for one in found.differences] == [(1, 4), (1, 5)]
    assert [one.others for one in found.partitions] == [0, 3]
    twice, left_out = found.sentences()
    assert "twice" in twice
    assert "not copied" in left_out


def test_other_traffic_at_the_target_is_no_difference(
    source: Opened, target: Opened, copy: Copy
) -> None:
    copy.publish(target, [b"new-1", b"new-2"], 0)
    copy.publish(source, [b"0-5-0"], 0)
    copy.copy(1, 0)
    copy.publish(target, [b"new-3"], 0)
    found = copy.verify("all")
    assert found.ok, found.sentences()
    assert [(one.others, one.lacking) for one in found.partitions] == [(3, 0), (0, 0)]


@BOTH
def test_what_the_source_holds_behind_the_copy_is_found(
    source: Opened, copy: Copy, how: How
) -> None:
    copy.publish(source, [b"0-5-0", b"0-5-1"], 0)
    found = copy.verify(how)
    assert [(one.partition, one.what) for one in found.differences] == [
        (0, "the source holds 2 messages behind the last that was copied")
    ]
    assert [one.lacking for one in found.partitions] == [2, 0]


@BOTH
def test_a_partition_that_was_never_copied_is_found(
    source: Opened, target: Opened, tmp_path: Path, how: How
) -> None:
    with opened_state(tmp_path) as state:
        copy = Copy(source, target, state, partitions=2)
        copy.publish(source, [b"0-0"], 0)
        copy.copy(1, 0)
        copy.publish(source, [b"1-0"], 1)
        found = copy.verify(how)
        assert [(one.partition, one.what) for one in found.differences] == [
            (1, "the source holds 1 message, and none is copied")
        ]
        assert [one.lacking for one in found.partitions] == [0, 1]


@BOTH
def test_what_the_source_holds_before_the_first_copied_message_is_found(
    source: Opened, target: Opened, tmp_path: Path, how: How
) -> None:
    with opened_state(tmp_path) as state:
        copy = Copy(source, target, state, partitions=2)
        copy.publish(source, [b"0-0", b"0-1", b"0-2"], 0)
        copy.leave_out(2, 0)
        copy.copy(1, 0)
        found = copy.verify(how)
        assert [(one.partition, one.what) for one in found.differences] == [
            (0, "the source holds 2 messages before the first that was copied")
        ]


@BOTH
def test_a_group_that_is_behind_or_missing_is_found(source: Opened, copy: Copy, how: How) -> None:
    group = Subscription(copy.topic, "g 1/ä+%")
    last = stored(source, copy.topic, 1)[-1].position
    source.backend.acknowledge(group, [last], True, WAIT)
    assert differences(copy, how) == [(1, -1)]
    source.backend.subscribe(Subscription(copy.topic, "other"), Start.EARLIEST, WAIT)
    assert sorted(differences(copy, how)) == [(-1, -1), (1, -1)]
    parts = [stored(source, copy.topic, 0)[place].position for place in (4, 5, 14)]
    source.backend.acknowledge(group, parts, False, WAIT)
    copy.sync()
    assert not differences(copy, how)


@BOTH
def test_a_topic_that_is_not_at_the_target_is_found(target: Opened, copy: Copy, how: How) -> None:
    target.backend.delete_topic(copy.to, WAIT)
    found = copy.verify(how, groups=False)
    assert [one.what for one in found.differences] == ["it is not at the target"]


@BOTH
def test_a_topic_that_is_not_at_the_source_is_found(source: Opened, copy: Copy, how: How) -> None:
    source.backend.delete_topic(copy.topic, WAIT)
    found = copy.verify(how)
    assert [one.what for one in found.differences] == ["it is no more at the source"]
