"""Patterns of topics and the hash of a list, as Apache Pulsar understands them."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.broker.pulsar.patterns import PatternError, matcher, topics_hash
from router.broker.transport.advertised import NOT_ADVERTISED, Advertised
from router.errors import SettingError

TOPIC = "persistent://public/default/orders-1"


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("public/default/orders-.*", True),
        ("persistent://public/default/orders-.*", True),
        ("non-persistent://public/default/orders-.*", True),
        ("^persistent://public/default/orders-[0-9]$", True),
        ("public/default/orders", False),
        ("orders-1", False),
        (r"public/default/\w+-\d", True),
        ("public/default/(?:orders|bills)-1", True),
    ],
)
def test_pattern_means_the_whole_name_without_its_domain(pattern: str, *, matches: bool) -> None:
    assert matcher(pattern)(TOPIC) is matches


@pytest.mark.parametrize(
    "pattern", ["(?=a)a", r"(a)\1", "(", "http://a", "a" * 1_001, "a{1001}{9}"]
)
def test_pattern_is_refused_when_it_is_not_to_be_evaluated_here(pattern: str) -> None:
    with pytest.raises(PatternError):
        matcher(pattern)


@pytest.mark.parametrize("pattern", ["(a+)+(a|a)*(.*)*b", r"(?i)(\pL|\pN){900}", "(.*a){200}b"])
def test_pattern_takes_little_time_whatever_it_is(pattern: str) -> None:
    began = time.process_time()
    with suppress(PatternError):
        assert not matcher(pattern)(f"persistent://{'a' * 5_000}")
    assert time.process_time() - began < 1


# Made by Guava's Hashing.crc32c, which Apache Pulsar uses.
@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], "00000000"),
        (["persistent://public/default/a"], "e4a876e3"),
        (
            ["persistent://public/default/b-partition-0", "persistent://public/default/a"],
            "abd2b52b",
        ),
    ],
)
def test_hash_is_the_one_that_clients_compare_with(names: list[str], expected: str) -> None:
    assert topics_hash(names) == expected


@given(st.lists(st.text("abc", min_size=1), unique=True).flatmap(st.permutations))
def test_hash_does_not_depend_on_the_order(names: list[str]) -> None:
    assert topics_hash(names) == topics_hash(sorted(names))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", NOT_ADVERTISED),
        ("pulsar://b.example:6650", Advertised("pulsar://b.example:6650", "")),
        ("pulsar+ssl://[::1]:6651", Advertised("", "pulsar+ssl://[::1]:6651")),
        (
            "pulsar://b:1, pulsar+ssl://b:2",
            Advertised("pulsar://b:1", "pulsar+ssl://b:2"),
        ),
    ],
)
def test_advertised_addresses_are_read(text: str, expected: Advertised) -> None:
    assert Advertised.parse(text, "broker.advertised", "pulsar") == expected


@pytest.mark.parametrize(
    "text", ["b:1", "http://b:1", "pulsar://b", "pulsar://b:70000", "pulsar://a:1,pulsar://b:1"]
)
def test_advertised_addresses_are_refused_when_clients_could_not_use_them(text: str) -> None:
    with pytest.raises(SettingError, match=r"broker\.advertised"):
        Advertised.parse(text, "broker.advertised", "pulsar")
