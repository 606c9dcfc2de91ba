"""Where a topic of Kafka ends behind what was copied to it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from router.model import NOT_PARTITIONED, PartitionStats, Position, TopicName
from router.services.copying import groups
from router.services.copying.groups import _TargetTopic

LAST = Position(0, 7, 3)


class Target:
    """A store whose partition ends at each of these entries in turn, then at the last of them."""

    def __init__(self, *ends: int) -> None:
        self.ends = list(ends)

    def partitions(self, _topic: TopicName, _timeout: float) -> int:
        return 0

    def describe_topic(self, _topic: TopicName, _timeout: float) -> Any:
        end = self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]
        return SimpleNamespace(partitions=[PartitionStats(NOT_PARTITIONED, next_entry=end)])


class NothingCopied:
    """A state without batches."""

    def batches(self, *_: object) -> list[Any]:
        return []


@pytest.mark.parametrize(
    ("ends", "marker"),
    [
        ((9,), True),
        ((7, 7, 9), True),  # the transaction was not marked yet
        ((7, 7, 10), False),  # another publisher was first
        ((8,), False),  # a batch without a transaction
        ((7,), False),  # never marked
    ],
)
def test_a_marker_that_is_still_to_be_written_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, ends: tuple[int, ...], marker: bool
) -> None:
    if len(set(ends)) == 1:
        monkeypatch.setattr(groups, "MARKER_SECONDS", 0.1)
    monkeypatch.setattr(groups, "MARKER_PAUSE_SECONDS", 0.001)
    name = TopicName.parse("t")
    topic = _TargetTopic(cast(Any, Target(*ends)), name, 1.0)
    topic.extend(cast(Any, NothingCopied()), name, 3)
    assert topic.ends_with_marker(3, LAST) is marker
