"""The lists of topics that clients watch: one a namespace and pattern, however many watch it.

A list is updated as topics are created and deleted, and its hash is made when it is sent. A list
for each watcher, the alternative, would hold ten thousand names a thousand times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from router.broker.pulsar.patterns import Matcher, matcher, topics_hash
from router.broker.topics.topics import Topics
from router.errors import NotAllowedError

MAX_LISTS: Final = 1_000
"""A client that is refused reads the list periodically instead."""


class Watcher(Protocol):
    """Who watches a list."""

    def changed(self, created: Sequence[str], deleted: Sequence[str]) -> None:
        """Learn what came and what went. Must not wait."""
        ...


class TopicList:
    """The names of all partitions of the topics that match a pattern."""

    def __init__(self, prefix: str, matches: Matcher, names: Sequence[str]) -> None:
        self.names = set(names)
        self.watchers: set[Watcher] = set()
        self._prefix = prefix
        self._matches = matches
        self._hash: str | None = None

    @property
    def hash(self) -> str:
        """Return the hash of the names."""
        if self._hash is None:
            self._hash = topics_hash(self.names)
        return self._hash

    def change(self, name: str, created: Sequence[str], deleted: Sequence[str]) -> None:
        """Apply a change of a topic, and notify the watchers if it is on the list."""
        if not name.startswith(self._prefix) or not self._matches(name):
            return
        self._hash = None
        self.names.difference_update(deleted)
        self.names.update(created)
        for watcher in tuple(self.watchers):
            watcher.changed(created, deleted)


class TopicLists:
    """All lists that are watched."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._lists: dict[tuple[str, str], TopicList] = {}

    def join(self, namespace: str, pattern: str, watcher: Watcher) -> TopicList:
        """Watch a list; raise PatternError, NotAllowedError."""
        found = self._lists.get((namespace, pattern))
        if found is None:
            if len(self._lists) >= MAX_LISTS:
                raise NotAllowedError(f"clients watch {MAX_LISTS} lists of topics already")
            matches = matcher(pattern)
            prefix = f"persistent://{namespace}/"
            found = TopicList(prefix, matches, self._topics.names(namespace, matches))
            self._lists[namespace, pattern] = found
            self._topics.observers.add(self._changed)
        found.watchers.add(watcher)
        return found

    def leave(self, namespace: str, pattern: str, watcher: Watcher) -> None:
        """Watch no more."""
        found = self._lists.get((namespace, pattern))
        if found is None:
            return
        found.watchers.discard(watcher)
        if not found.watchers:
            del self._lists[namespace, pattern]
        if not self._lists:
            self._topics.observers.discard(self._changed)

    def _changed(self, name: str, created: Sequence[str], deleted: Sequence[str]) -> None:
        for watched in tuple(self._lists.values()):
            watched.change(name, created, deleted)
