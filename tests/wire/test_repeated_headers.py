"""Headers of which names repeat as properties, and back: nothing is lost, nothing is made up."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.wire.repeated_headers import HEADERS, as_pairs, as_properties

NAMES = st.sampled_from(["a", "b", "ü", "Nats-Subject", HEADERS, "router-nats-headers"])
PAIRS = st.lists(st.tuples(NAMES, st.text(max_size=3)), max_size=5)
LISTS = PAIRS.map(lambda pairs: json.dumps(pairs, separators=(",", ":"), ensure_ascii=False))
TEXTS = LISTS | st.sampled_from(["", "[", "{}", "1", '[["a"]]', '[["a",1],["a",2]]', "[[],[]]"])
PROPERTIES = st.dictionaries(NAMES, st.text(max_size=3), max_size=3)


@given(properties=PROPERTIES, text=TEXTS)
@example({"a": "2"}, '[["a","1"],["a","2"]]')
@example({"a": "2"}, '[["a","1"], ["a","2"]]')
@example({"a": "2", "b": "3"}, '[["a","1"],["a","2"]]')
def test_properties_come_back_through_headers(properties: dict[str, str], text: str) -> None:
    properties = properties | {HEADERS: text}
    assert as_properties(as_pairs(properties)) == (properties, True)


@given(pairs=PAIRS)
def test_headers_come_back_through_properties(pairs: list[tuple[str, str]]) -> None:
    properties, exact = as_properties(pairs)
    assert properties.items() >= {n: v for n, v in pairs if n != HEADERS}.items()
    if exact and HEADERS not in dict(pairs):
        again = as_pairs(properties)
        assert sorted(again) == sorted(pairs)
        # Where the subject stands among the others is nothing that NATS has.
        listed = [one for one in pairs if one[0] in {"a", "b", "ü"}]
        assert [one for one in again if one[0] in {"a", "b", "ü"}] == listed


@pytest.mark.parametrize(
    ("pairs", "exact"),
    [
        ([("a", "1"), ("a", "2"), ("Nats-Subject", "s")], True),
        ([("Nats-Subject", "s"), ("Nats-Subject", "t")], False),
        ([("a", "1"), ("a", "2"), (HEADERS, "x")], False),
    ],
)
def test_what_the_list_cannot_hold_is_known(pairs: list[tuple[str, str]], exact: bool) -> None:
    assert as_properties(pairs)[1] is exact
