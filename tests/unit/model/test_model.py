"""Names of topics, namespaces and partitions."""

from __future__ import annotations

import pytest

from router.errors import BadNameError
from router.model import NOT_PARTITIONED, TopicName, check_namespace, partition_name

TOPIC = TopicName("t", "n", "orders")


@pytest.mark.parametrize("index", [0, 7, 10, 999_999])
def test_partition_leads_back_to_its_topic(index: int) -> None:
    part = TOPIC.partition(index)
    assert part.parent() == (TOPIC, index)
    assert str(part) == partition_name(str(TOPIC), index)
    assert TOPIC.partition(NOT_PARTITIONED) == TOPIC


@pytest.mark.parametrize(
    "local",
    ["orders", "orders-partition-", "orders-partition-01", "orders-partition-x", "-partition-1"],
)
def test_other_names_are_no_partitions(local: str) -> None:
    assert TopicName("t", "n", local).parent() is None


@pytest.mark.parametrize("text", ["persistent://t/n/orders", "t/n/orders", "orders"])
def test_topic_is_read_in_all_its_forms(text: str) -> None:
    assert TopicName.parse(text, "t", "n") == TOPIC


def test_segments_of_a_path_hold_no_slash() -> None:
    assert TopicName.from_segments("persistent", "t", "n", "orders") == TOPIC
    for segments in (("t/n", "n", "orders"), ("t", "n", "a/b"), ("t", "n", "")):
        with pytest.raises(BadNameError):
            TopicName.from_segments("persistent", *segments)


@pytest.mark.parametrize("text", ["", "t", "t/", "/n", "t/n/x", "t/..", "t/a b"])
def test_namespace_has_two_segments(text: str) -> None:
    with pytest.raises(BadNameError):
        check_namespace(text)
    assert check_namespace("t/n") == ("t", "n")
