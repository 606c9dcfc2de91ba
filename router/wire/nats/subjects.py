"""Owns subjects: which are valid, what wildcards match, and `SubjectTrie`, many patterns at once.

A subject has tokens with dots between. In a pattern `*` stands for any one token, and `>`, the last
token, for one token or more. As in nats-server, `*` and `>` inside of longer tokens mean nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

ANY: Final = "*"
REST: Final = ">"
MAX_CACHED_SUBJECT_CHARACTERS: Final = 256

_SPACES: Final = frozenset("\t\n\f\r ")
T = TypeVar("T", bound=Hashable)


def is_valid(subject: str) -> bool:
    """Return whether this is a subject, or a pattern: what a client may subscribe to."""
    parts = subject.split(".")
    return "" not in parts and REST not in parts[:-1] and _SPACES.isdisjoint(subject)


def is_literal(subject: str) -> bool:
    """Return whether this is a subject without wildcards: what a client may publish to."""
    parts = subject.split(".")
    return not ("" in parts or ANY in parts or REST in parts) and _SPACES.isdisjoint(subject)


def matches(pattern: str, subject: str) -> bool:
    """Return whether a valid pattern matches a literal subject."""
    if pattern == subject:
        return True
    return _is_subset(subject.split("."), pattern.split("."))


def is_subset(subject: str, pattern: str) -> bool:
    """Return whether a pattern matches every literal subject that another one matches."""
    return _is_subset(subject.split("."), pattern.split("."))


def overlaps(first: str, second: str) -> bool:
    """Return whether there is a literal subject that both patterns match."""
    ones, others = first.split("."), second.split(".")
    for one, other in zip(ones, others, strict=False):
        if REST in (one, other):
            return True
        if one != other and ANY not in (one, other):
            return False
    return len(ones) == len(others)


def _is_subset(ones: list[str], pattern: list[str]) -> bool:
    size = len(ones)
    for place, token in enumerate(pattern):
        if place >= size:
            return False
        if token == REST:
            return True
        one = ones[place]
        if one == REST or (token not in (ANY, one)):
            return False
    return size == len(pattern)


class _Node(Generic[T]):
    """Where patterns stand that begin with the same tokens; `values` are of those that end here."""

    __slots__ = ("children", "values")

    def __init__(self) -> None:
        self.children: dict[str, _Node[T]] = {}
        self.values: dict[T, None] = {}


class SubjectTrie(Generic[T]):
    """Patterns with values, and the values of all patterns that match a literal subject.

    What was found is cached, in two generations: when the younger is full, it becomes the older,
    and the older is forgotten, so that subjects that are looked up again and again stay. An
    insertion or removal without wildcards is about one subject; one with wildcards clears the
    cache. `max_cached` bounds the values in a generation, a subject counted as one more.
    """

    def __init__(self, max_cached: int = 8192) -> None:
        self._root: _Node[T] = _Node()
        self._max_cached: Final = max_cached
        self._cached: dict[str, list[T]] = {}
        self._older: dict[str, list[T]] = {}
        self._cached_weight = 0
        self._by_beginning: dict[str, list[T]] = {}
        self._size = 0

    def __len__(self) -> int:
        """Return how many values there are, each counted with each of its patterns."""
        return self._size

    def insert(self, pattern: str, value: T) -> None:
        """Add a value to a pattern; it is there once, however often it is added."""
        node = self._root
        for token in pattern.split("."):
            child = node.children.get(token)
            if child is None:
                child = node.children[token] = _Node()
            node = child
        if value not in node.values:
            node.values[value] = None
            self._size += 1
            self._forget(pattern)

    def remove(self, pattern: str, value: T) -> None:
        """Take a value from a pattern; raise KeyError if it is not there."""
        path: list[tuple[_Node[T], str]] = []
        node = self._root
        for token in pattern.split("."):
            path.append((node, token))
            node = node.children[token]
        del node.values[value]
        self._size -= 1
        for parent, token in reversed(path):
            if node.values or node.children:
                break
            del parent.children[token]
            node = parent
        self._forget(pattern)

    def match(self, subject: str) -> list[T]:
        """Return the values of the patterns that match a literal subject; not to be changed.

        A value that has several of them is there as often. A subject that is not literal, as some
        clients publish, is matched by patterns whose wildcards are in the place of any token.
        """
        found = self._cached.get(subject)
        if found is None:
            found = self._older.get(subject)
            if found is None:
                found = self._find(subject.split("."))
            self._keep(subject, found)
        return found

    def match_fresh(self, subject: str) -> list[T]:
        """Return what `match` does for a subject whose last token has not been seen, as of a reply.

        What was found is kept for all subjects that begin with the same tokens, where no pattern
        tells them apart.
        """
        beginning, dot, last = subject.rpartition(".")
        if not dot:
            return self.match(subject)
        found = self._by_beginning.get(beginning)
        if found is None:
            found = self._find(subject.split("."))
            if last not in {ANY, REST} and self._is_same_for_any(beginning.split(".")):
                if len(self._by_beginning) >= self._max_cached:
                    self._by_beginning.clear()
                self._by_beginning[beginning] = found
        return found

    def values(self) -> Iterator[tuple[str, T]]:
        """Yield the patterns with their values, in no order."""
        waiting: list[tuple[str, _Node[T]]] = [("", self._root)]
        while waiting:
            pattern, node = waiting.pop()
            for value in node.values:
                yield pattern, value
            for token, child in node.children.items():
                waiting.append((f"{pattern}.{token}" if pattern else token, child))

    def _find(self, parts: list[str]) -> list[T]:
        found: list[T] = []
        nodes = [self._root]
        for token in parts:
            following: list[_Node[T]] = []
            for node in nodes:
                children = node.children
                one, rest = children.get(ANY), children.get(REST)
                child = children.get(token)
                # A client may publish to a subject with a wildcard; it stands for itself then.
                if child is not None and child is not one and child is not rest:
                    following.append(child)
                if one is not None:
                    following.append(one)
                if rest is not None:
                    found += rest.values
            nodes = following
            if not nodes:
                return found
        for node in nodes:
            found += node.values
        return found

    def _is_same_for_any(self, parts: list[str]) -> bool:
        """Return whether subjects of one more token are matched alike, whatever that token is."""
        nodes = [self._root]
        for token in parts:
            nodes = [
                child
                for node in nodes
                for name in {token, ANY}
                if (child := node.children.get(name)) is not None
            ]
        return all(node.children.keys() <= {ANY, REST} for node in nodes)

    def _keep(self, subject: str, found: list[T]) -> None:
        weight = 1 + len(found)
        if weight > self._max_cached or len(subject) > MAX_CACHED_SUBJECT_CHARACTERS:
            return
        if self._cached_weight + weight > self._max_cached:
            self._older, self._cached = self._cached, {}
            self._cached_weight = 0
        self._cached[subject] = found
        self._cached_weight += weight

    def _forget(self, pattern: str) -> None:
        """Forget what was found and may be different now."""
        parts = pattern.split(".")
        if ANY in parts or parts[-1] == REST:
            self._cached.clear()
            self._cached_weight = 0
            self._older.clear()
            self._by_beginning.clear()
            return
        self._by_beginning.pop(pattern.rpartition(".")[0], None)
        found = self._cached.pop(pattern, None)
        if found is not None:
            self._cached_weight -= 1 + len(found)
        self._older.pop(pattern, None)


def api_change(subject: str) -> tuple[str, str]:
    """Return what a call of JetStream's API changes, such as `create-stream`, and of what.

    `subject`: without its prefix, with a stream and a consumer at its end or without.
    """
    kind, *words = subject.split(".")
    if words[0] in {"MSG", "DURABLE"}:
        kind = "message" if words[0] == "MSG" else kind
        words = words[1:]
    return f"{words[0]}-{kind}".lower(), "/".join(words[1:3])
