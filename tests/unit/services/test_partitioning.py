"""Which partition a key goes to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.model import NOT_PARTITIONED
from router.services.partitioning import murmur2, partition_of


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        # From Kafka's own test of its clients, UtilsTest.testMurmur2.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_hash_is_the_one_of_kafkas_clients(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed & 0xFFFFFFFF


@given(key=st.binary(max_size=100), partitions=st.integers(2, 50))
def test_partition_is_one_of_the_topics_and_stays(key: bytes, partitions: int) -> None:
    assert partition_of(key, partitions) in range(partitions)
    assert partition_of(key, partitions) == (murmur2(key) & 0x7FFFFFFF) % partitions


@given(key=st.binary(max_size=9))
def test_partition_needs_no_choice_when_there_is_one_or_none(key: bytes) -> None:
    assert partition_of(key, 0) == NOT_PARTITIONED
    assert partition_of(key, 1) == 0
