"""What a folder must hold after a crash, by what clients knew then; each breach is a sentence.

A place of a recording is how many of its events happened. What was answered before it is certain,
what was begun before it may be there, and nothing else may.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from tests.crash_images.contents import STREAMS, Contents, Group, Message, Partition
from tests.crash_images.facts import Fact, key_of
from tests.crash_images.load import COMPACTED, KEPT_OF_LIMITED

TENANT: Final = "persistent://public/default/"
LIMITED: Final = "limited"
WITH_RETENTION: Final = "short"
_PARTITION: Final = "-partition-"


def breaches(facts: Sequence[Fact], place: int, contents: Contents) -> list[str]:
    """Return what contents lack, or have too much, after so many events of the recording."""
    return [breach for topic in _Topic.all(facts, place, contents) for breach in topic.breaches()]


class _Topic:
    """A topic, with what was begun and what was done of it; None: it is not there."""

    def __init__(
        self, name: str, facts: Sequence[Fact], place: int, found: list[Partition] | None
    ) -> None:
        self._name = name
        self._begun = [fact for fact in facts if fact.begun < place]
        self._done = [f for f in self._begun if f.done is not None and f.done <= place]
        self._found = found
        self._partitions = found or []
        self._messages = [message for part in self._partitions for message in part.messages]
        self._visible = {message.name for message in self._messages}
        # Numbers have as many digits each, so names of a key are in their order.
        self._newest = {key_of(name): name for name in sorted(self._visible)}

    @classmethod
    def all(cls, facts: Sequence[Fact], place: int, contents: Contents) -> Iterator[_Topic]:
        """Yield the topics that clients know, and those that are there."""
        of_topics: dict[str, list[Fact]] = {
            name.removeprefix(TENANT): [] for name in contents.topics
        }
        for fact in facts:
            of_topics.setdefault(fact.topic.partition(_PARTITION)[0], []).append(fact)
        for name, own in of_topics.items():
            topic = cls(name, own, place, contents.topics.get(TENANT + name))
            topic.is_recorded = TENANT + name in contents.records[STREAMS]
            yield topic

    is_recorded = False
    """Whether the registry has a stream of this name."""

    def breaches(self) -> Iterator[str]:
        """Yield what is wrong."""
        for breach in (*self._of_topic(), *self._of_messages(), *self._of_groups()):
            yield f"{self._name}: {breach}"

    def _of_topic(self) -> Iterator[str]:
        begun, done = self._kinds(self._begun), self._kinds(self._done)
        is_created = {"create-topic", "create-stream"}
        if self._found is None and done & is_created and "delete-topic" not in begun:
            yield "it was created and is not there"
        if self._found is not None and not begun & is_created:
            yield "it is there and was not created"
        if self._found is not None and "delete-topic" in done:
            yield "it was deleted and is there"
        if "create-stream" in done and not self.is_recorded:
            yield "its stream was created and is not there"

    def _of_messages(self) -> Iterator[str]:
        published = {f.value for f in self._begun if f.kind == "publish"}
        if unknown := self._visible - published:
            yield f"there are messages that were not published: {sorted(unknown)}"
        twice = [
            name for name, count in Counter(m.name for m in self._messages).items() if count > 1
        ]
        if twice:
            yield f"there is more than one of {twice}"
        for partition in self._partitions:
            if partition.damage:
                yield f"entries cannot be read: {partition.damage}"
            if partition.next_entry <= max(partition.producers.values(), default=-1):
                yield f"producers are remembered whose messages are gone: {partition.producers}"
            yield from _disorder(partition.messages)
        if self._found is None:
            return
        required = [f.value for f in self._done if f.kind == "publish"]
        missing = [name for name in required if not self._may_be_missing(name)]
        if lost := missing[self._removable(required, missing) :]:
            yield f"there were {len(lost)} messages that are not there: {lost[:3]} to {lost[-1]}"
        back = self._values(self._done, "delete") & self._visible
        if back:
            yield f"deleted messages are back: {sorted(back)}"
        first = min((m.number for m in self._messages), default=1 << 62)
        deleted = max(self._numbers(self._done, "delete-before"), default=0)
        if first < deleted:
            yield f"message {first} is back; all before {deleted} were deleted"

    def _may_be_missing(self, name: str) -> bool:
        """Return whether a message is there, or a client deleted it, or a newer one of its key."""
        if name in self._visible or name in self._values(self._begun, "delete"):
            return True
        return self._name == COMPACTED and name < self._newest.get(key_of(name), "")

    def _removable(self, required: list[str], missing: list[str]) -> int:
        """Return how many of the missing messages, from the first, may have been removed."""
        if self._name == WITH_RETENTION or self._name == LIMITED:
            # The oldest may go: no message that is there may be older than one that is gone.
            oldest = min((required.index(n) for n in self._visible if n in required), default=None)
            limit = len(required) if oldest is None else oldest
            if self._name == LIMITED:
                sent = sum(fact.kind == "publish" for fact in self._begun)
                limit = min(limit, max(0, sent - KEPT_OF_LIMITED))
            return sum(required.index(name) < limit for name in missing)
        return max(self._numbers(self._begun, "delete-before"), default=0)

    def _of_groups(self) -> Iterator[str]:
        for name in {fact.group for fact in self._begun if fact.group}:
            groups = [part.groups.get(name) for part in self._partitions]
            own = [fact for fact in self._begun if fact.group == name]
            done = [fact for fact in self._done if fact.group == name]
            if self._partitions and self._kinds(own) - {"publish"}:
                yield from self._of_group(name, groups, done, own)

    def _of_group(
        self, name: str, groups: list[Group | None], done: list[Fact], own: list[Fact]
    ) -> Iterator[str]:
        if all(group is None for group in groups):
            if done:
                yield f"group {name} is not there"
            return
        acknowledged = {
            message.name
            for part, group in zip(self._partitions, groups, strict=True)
            for message in part.messages
            if group is not None and (message.entry, message.number) in group.acknowledged
        }
        required = self._values(done, "acknowledge") & self._visible
        if back := required - acknowledged:
            yield f"group {name} acknowledged {sorted(back)}, which come again"
        commits = self._numbers(done, "commit"), self._numbers(own, "commit")
        if not commits[1]:
            if passed := acknowledged - self._values(own, "acknowledge"):
                yield f"group {name} passes over {sorted(passed)}"
            return
        commit = groups[0].commit if groups[0] is not None else None
        number = 0 if commit is None else commit
        if not max(commits[0], default=0) <= number <= max(commits[1]):
            yield f"group {name} has the commit {commit} after {max(commits[0], default=0)}"

    @staticmethod
    def _kinds(facts: Sequence[Fact]) -> set[str]:
        return {fact.kind for fact in facts}

    @staticmethod
    def _values(facts: Sequence[Fact], kind: str) -> set[str]:
        return {name for fact in facts if fact.kind == kind for name in fact.value.split(",")}

    @staticmethod
    def _numbers(facts: Sequence[Fact], kind: str) -> list[int]:
        return [int(fact.value) for fact in facts if fact.kind == kind]


def _disorder(messages: Sequence[Message]) -> Iterator[str]:
    """Yield publishers whose messages are not in their order."""
    of_labels: dict[str, list[int]] = {}
    for message in messages:
        of_labels.setdefault(message.name.partition(":")[0], []).append(_count(message.name))
    for label, counts in of_labels.items():
        if any(before >= after for before, after in pairwise(counts)):
            yield f"messages of {label} are not in their order: {counts}"


def _count(name: str) -> int:
    return int(name.rpartition(":")[2])
