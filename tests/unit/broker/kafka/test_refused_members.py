"""What a group of both protocols refuses changes nothing in it."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from router.broker.kafka.consumer_group_values import AWAY, JOINING, Heartbeat, TopicShape
from router.broker.kafka.failures import KafkaError
from router.broker.kafka.group_values import GroupLimits, JoinRequest
from router.broker.kafka.mixed_group import MixedGroup
from router.sharing.registry import MAX_GROUP_RECORD_BYTES
from router.wire.kafka.error_codes import ErrorCode
from tests.unit.broker.kafka.grouping import subscription

LIMITS = GroupLimits(metadata_bytes=5_000)


class Topics:
    """Of each name a topic with two partitions."""

    version = 0

    def shape(self, name: str) -> TopicShape | None:
        return TopicShape(name.encode().ljust(16, b"\0"), 2)


class Missing(Topics):
    """No topic is there."""

    def shape(self, name: str) -> TopicShape | None:
        return None


def no_pattern(_: str) -> frozenset[str]:
    raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION)


def beat(group: MixedGroup[str], member: str, epoch: int, **fields: Any) -> Any:
    given: dict[str, Any] = {"rebalance_seconds": 5.0, "owned": frozenset(), **fields}
    group.beat(Heartbeat(member, epoch, "c", "h", no_pattern, **given), member, 0.0)
    ((_, result),) = group.answers()
    return result


def join(group: MixedGroup[str], member: str = "", session: float = 10.0, size: int = 0) -> Any:
    protocols = (("range", subscription("a") + bytes(size)),)
    group.join(JoinRequest(member, None, "c", "h", session, 5.0, "consumer", protocols), "", 0.0)
    ((_, result),) = group.answers()
    return result


@pytest.fixture
def group() -> MixedGroup[str]:
    """Return a group with the member `a`."""
    ids = count(1)
    made = MixedGroup[str](Topics(), lambda name: f"{name}-{next(ids)}", LIMITS)
    beat(made, "a", JOINING, names=frozenset({"a"}))
    return made


@pytest.mark.parametrize("seconds", [-1.0, 0.5, 1_801.0])
def test_a_classic_member_has_a_session_of_the_length_that_it_may_have_elsewhere(
    group: MixedGroup[str], seconds: float
) -> None:
    assert join(group, session=seconds).error is ErrorCode.INVALID_SESSION_TIMEOUT
    assert list(group.members) == ["a"]


def test_a_classic_member_that_joins_again_brings_no_more_than_a_group_may_have(
    group: MixedGroup[str],
) -> None:
    joined = join(group)
    before = group.size_bytes
    assert join(group, joined.member_id, size=4_000).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert group.size_bytes == before
    assert join(group, joined.member_id, size=100).error is ErrorCode.NONE
    assert group.size_bytes == before + 100


def test_an_instance_may_come_back_after_it_was_refused(group: MixedGroup[str]) -> None:
    static = {"instance_id": "i", "names": frozenset({"a"})}
    beat(group, "s1", JOINING, **static)
    beat(group, "s1", AWAY, instance_id="i")
    refused = beat(group, "s2", JOINING, **static, pattern="(")
    assert refused.error is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert list(group.members) == ["a", "s1"]
    assert beat(group, "s3", JOINING, **static).error is ErrorCode.NONE


def test_a_classic_member_stays_one_when_its_heartbeat_is_refused(group: MixedGroup[str]) -> None:
    joined = join(group)
    beat(group, joined.member_id, JOINING, names=frozenset({"a"}), pattern="(")
    assert group.members[joined.member_id].classic is not None
    revision = group.revision
    beat(group, joined.member_id, JOINING, names=frozenset({"a"}))
    assert group.members[joined.member_id].classic is None
    assert group.revision > revision  # the record on disk says so as well


@pytest.mark.parametrize("character", ["a", "\\", "\1", "\u00e4", "\U0001f600"])
def test_what_a_group_may_have_fits_into_its_record(character: str) -> None:
    group = MixedGroup[str](Missing(), lambda name: f"{name}-1", GroupLimits())
    first = beat(group, "first", JOINING, names=frozenset({"a"}))
    for number in range(40):
        names = frozenset(character * 10_000 + f"{number}-{n}" for n in range(30))
        found = beat(group, f"m{number}", JOINING, names=names)
        if found.error is not ErrorCode.NONE:
            assert found.error is ErrorCode.GROUP_MAX_SIZE_REACHED
            break
    record = group.recorder()()
    assert record is not None
    assert MAX_GROUP_RECORD_BYTES / 4 < len(record) <= MAX_GROUP_RECORD_BYTES
    # Who was there stays there.
    assert beat(group, "first", first.epoch).error is ErrorCode.NONE


def test_members_that_read_nothing_count_as_well(group: MixedGroup[str]) -> None:
    results = [beat(group, f"m{n}", JOINING, names=frozenset()).error for n in range(5)]
    assert results == [ErrorCode.NONE] * 3 + [ErrorCode.GROUP_MAX_SIZE_REACHED] * 2
