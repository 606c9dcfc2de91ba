"""Subjects and wildcards, against regular expressions and by enumeration; many patterns at once."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router.wire.nats.subjects import (
    SubjectTrie,
    is_literal,
    is_subset,
    is_valid,
    matches,
    overlaps,
)
from tests.wire.nats.reference import literals, pattern_of

TOKENS = ["a", "b", "*"]
PATTERNS = [
    ".".join([*tokens, *rest])
    for length in range(4)
    for tokens in product(TOKENS, repeat=length)
    for rest in ([], [">"])
    if tokens or rest
]
# "c" stands for all tokens that no pattern names; one token more than the longest pattern has.
LITERALS = literals("abc", 4)
MATCHED = {
    pattern: frozenset(filter(pattern_of(pattern).fullmatch, LITERALS)) for pattern in PATTERNS
}
SOME_PATTERNS = st.sampled_from([one for one in PATTERNS if one.count(".") < 3])
SOME_LITERALS = st.sampled_from([one for one in LITERALS if one.count(".") < 3])


def test_a_pattern_matches_what_its_expression_does() -> None:
    for pattern in PATTERNS:
        assert {one for one in LITERALS if matches(pattern, one)} == MATCHED[pattern], pattern


def test_patterns_overlap_and_contain_each_other_as_what_they_match_does() -> None:
    for first, second in product(PATTERNS, repeat=2):
        assert overlaps(first, second) is bool(MATCHED[first] & MATCHED[second]), (first, second)
        contained = MATCHED[first] <= MATCHED[second]
        assert is_subset(first, second) is contained, (first, second)


@pytest.mark.parametrize(
    ("subject", "valid", "literal"),
    [
        ("a", True, True),
        ("a.b", True, True),
        ("größe.ü", True, True),
        ("a.*", True, False),
        ("*", True, False),
        (">", True, False),
        ("a.>", True, False),
        ("*.>", True, False),
        ("a*.b>", True, True),
        ("a.**", True, True),
        ("$JS.API.>", True, False),
        ("", False, False),
        (".", False, False),
        ("a.", False, False),
        (".a", False, False),
        ("a..b", False, False),
        (">.a", False, False),
        ("a.>.b", False, False),
        ("a b", False, False),
        ("a\tb", False, False),
        ("a\r\n", False, False),
    ],
)
def test_which_subjects_are_valid(subject: str, valid: bool, literal: bool) -> None:
    assert (is_valid(subject), is_literal(subject)) == (valid, literal)


@given(patterns=st.lists(SOME_PATTERNS, max_size=12), subject=SOME_LITERALS)
def test_a_trie_finds_every_pattern_that_matches(patterns: list[str], subject: str) -> None:
    trie: SubjectTrie[tuple[int, str]] = SubjectTrie()
    for item in enumerate(patterns):
        trie.insert(item[1], item)
    wanted = [item for item in enumerate(patterns) if subject in MATCHED[item[1]]]
    assert sorted(trie.match(subject)) == wanted
    assert sorted(trie.values()) == sorted((item[1], item) for item in enumerate(patterns))


class TrieMachine(RuleBasedStateMachine):
    """Insertions, removals and lookups in any order, with a cache that is too small."""

    def __init__(self) -> None:
        super().__init__()
        self.trie: SubjectTrie[int] = SubjectTrie(max_cached=6)
        self.kept: set[tuple[str, int]] = set()

    @rule(pattern=SOME_PATTERNS, value=st.integers(0, 2))
    def insert(self, pattern: str, value: int) -> None:
        self.trie.insert(pattern, value)
        self.kept.add((pattern, value))

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.kept:
            pattern, value = data.draw(st.sampled_from(sorted(self.kept)))
            self.trie.remove(pattern, value)
            self.kept.remove((pattern, value))

    @rule(pattern=SOME_PATTERNS)
    def remove_what_is_not_there(self, pattern: str) -> None:
        with pytest.raises(KeyError):
            self.trie.remove(pattern, 99)

    @rule(subject=SOME_LITERALS, again=st.integers(1, 2))
    def match(self, subject: str, again: int) -> None:
        for _ in range(again):
            wanted = sorted(value for pattern, value in self.kept if subject in MATCHED[pattern])
            assert sorted(self.trie.match(subject)) == wanted

    @rule(subject=SOME_LITERALS, again=st.integers(1, 2))
    def match_fresh(self, subject: str, again: int) -> None:
        for _ in range(again):
            wanted = sorted(value for pattern, value in self.kept if subject in MATCHED[pattern])
            assert sorted(self.trie.match_fresh(subject)) == wanted

    @invariant()
    def holds_what_was_inserted(self) -> None:
        assert len(self.trie) == len(self.kept)
        assert set(self.trie.values()) == self.kept
        for cached in (self.trie._cached, self.trie._older):
            assert sum(1 + len(found) for found in cached.values()) <= 6
        if not self.kept:
            assert not self.trie._root.children


TestTrie = TrieMachine.TestCase
TestTrie.settings = settings(max_examples=30, deadline=None)


def test_a_subject_of_many_tokens_is_no_recursion() -> None:
    trie: SubjectTrie[str] = SubjectTrie()
    long = ".".join("a" * 2000)
    trie.insert(long, "one")
    trie.insert(".".join(["*"] * 2000), "two")
    assert trie.match(long) == ["one", "two"]
    trie.remove(long, "one")
    assert list(trie.values()) == [(".".join(["*"] * 2000), "two")]


def test_what_is_looked_up_again_stays_in_the_cache() -> None:
    trie: SubjectTrie[str] = SubjectTrie(max_cached=10)
    trie.insert("hot", "x")
    found = trie.match("hot")
    for number in range(100):
        trie.match(f"_INBOX.{number}")
        assert trie.match("hot") is found


@pytest.mark.parametrize(
    ("subject", "found"),
    [("a.*", ["a.*", "a.>"]), ("a.>", ["a.*", "a.>"]), ("a.b", ["a.*", "a.>", "a.b"]), ("a", [])],
)
def test_a_pattern_is_found_once_by_itself(subject: str, found: list[str]) -> None:
    """As nats-server delivers what a client publishes to a subject with wildcards."""
    trie: SubjectTrie[str] = SubjectTrie()
    for pattern in ("a.*", "a.>", "a.b"):
        trie.insert(pattern, pattern)
    assert sorted(trie.match(subject)) == found


@pytest.mark.parametrize("pattern", ["a.b", "a.*", ">"])
@pytest.mark.parametrize("aged", [0, 1])
def test_what_was_found_is_forgotten_when_it_changes(pattern: str, aged: int) -> None:
    """In both generations of the cache: the second lookup makes `a.b` one of the older."""
    trie: SubjectTrie[str] = SubjectTrie(max_cached=4)
    trie.insert("a.>", "first")
    assert trie.match("a.b") == ["first"]
    for number in range(2 * aged):
        trie.match(f"other.{number}.with.much" if aged else "a.c")
        trie.match(f"a.x{number}")
    trie.insert(pattern, "second")
    assert sorted(trie.match("a.b")) == ["first", "second"]
    for number in range(2 * aged):
        trie.match(f"a.y{number}")
    trie.remove(pattern, "second")
    assert trie.match("a.b") == ["first"]


def test_what_is_forgotten_leaves_its_place_in_the_cache() -> None:
    trie: SubjectTrie[str] = SubjectTrie(max_cached=6)
    trie.insert("b", "b")
    kept = trie.match("b")
    for _ in range(20):
        trie.match("a")
        trie.insert("a", "x")
        trie.match("a")
        trie.remove("a", "x")
    assert trie.match("b") is kept
    assert trie._cached["b"] is kept
    assert not trie._older


@given(patterns=st.lists(SOME_PATTERNS, max_size=4), subject=SOME_LITERALS, other=SOME_LITERALS)
def test_what_is_kept_by_the_beginning_of_a_subject_ends_with_a_pattern_below_it(
    patterns: list[str], subject: str, other: str
) -> None:
    trie: SubjectTrie[str] = SubjectTrie()
    for pattern in [*patterns, other]:
        trie.match_fresh(subject)
        trie.match_fresh(other)
        trie.insert(pattern, pattern)
        assert sorted(trie.match_fresh(subject)) == sorted(trie.match(subject))
        assert sorted(trie.match_fresh(other)) == sorted(trie.match(other))
    trie.remove(other, other)
    assert sorted(trie.match_fresh(other)) == sorted(trie.match(other))
