"""The service behind dead-letter topics; the package says how it works."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Final

from router.backends import Backend, Start
from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    NotAllowedError,
    NotSupportedError,
    RouterError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from router.model import (
    NOT_PARTITIONED,
    Position,
    Principal,
    Stored,
    Subscription,
    TopicInfo,
    TopicName,
)
from router.model.publish_source import encode_source
from router.services.dead_letters.letters import (
    MAX_BATCH,
    Letter,
    Marks,
    as_it_was,
    is_undecoded,
    origin,
    write_letter,
    write_marks,
)
from router.services.dead_letters.scan import LetterScan
from router.services.message_history import DISCARDED, REQUEUED, MessageHistory
from router.services.publish import Publisher
from router.services.topic_metadata import TopicMetadataCache

GROUP: Final = "router-dead-letters"
SUFFIXES: Final = (".dlq", "-DLQ")
MAX_BYTES: Final = 8 * 1024 * 1024
"""Of the letters of one call."""
# No user has such a name, so no request of a user's shares a producer with a requeued letter.
_REQUEUER: Final = Principal("\x00dead-letters")

_UNAVAILABLE: Final = (BackendUnavailableError, BackendTimeoutError)


@dataclass(frozen=True, slots=True)
class DeadLetterSelection:
    """Which letters are meant: those at `positions`, None: all behind `after`, from the first on.

    `before_ms`: none that was published later. `limit` of them at most.
    """

    positions: tuple[Position, ...] | None = None
    after: Marks = field(default_factory=dict)
    before_ms: int | None = None
    limit: int = MAX_BATCH


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """Letters that wait; `after` is where the look ended, `more`: it did not see the end."""

    letters: tuple[Letter, ...]
    after: Marks
    more: bool

    def as_json(self) -> dict[str, Any]:
        """Return the page for programs."""
        return {
            "letters": [letter.as_json() for letter in self.letters],
            "behind": write_marks(self.after),
            "more": self.more,
        }


@dataclass(frozen=True, slots=True)
class DeadLetterOutcome:
    """What a call did: how many letters are done with, and why others are not, by position.

    `failure` is what ended the call before its time, "" if nothing did.
    """

    done: int
    refused: Mapping[str, str]
    after: Marks
    more: bool
    failure: str = ""

    def as_json(self, chosen: DeadLetterSelection) -> dict[str, Any]:
        """Return the outcome for programs; `behind` and `before` are for the next call."""
        return {
            "done": self.done,
            "refused": dict(self.refused),
            "failure": self.failure,
            "more": self.more,
            "behind": write_marks(self.after),
            "before": chosen.before_ms,
        }


@dataclass(eq=False, slots=True)
class DeadLetters:
    """Dead-letter topics; calls block, and may be made from many threads or greenlets.

    `configured` is the topic that settings name. `now_ms` returns ms since 1970.
    """

    backend: Backend
    topics_cache: TopicMetadataCache
    publisher: Publisher
    configured: TopicName | None
    timeout: float
    now_ms: Callable[[], int]
    history: MessageHistory = field(default_factory=MessageHistory)

    def among(self, topics: Sequence[TopicInfo]) -> list[TopicName]:
        """Return those of the topics that are for dead letters, by their names."""
        return [
            info.topic
            for info in topics
            if info.topic == self.configured or info.topic.local.endswith(SUFFIXES)
        ]

    def count(self, topic: TopicName) -> tuple[int, int] | None:
        """Return how many letters wait and how many messages are stored, None: it is not told.

        Raises TopicNotFoundError.
        """
        try:
            stats = self.backend.describe_topic(topic, self.timeout)
        except (NotSupportedError, NotAllowedError):
            return None
        stored = sum(partition.messages for partition in stats.partitions)
        own = [one.backlog for one in stats.subscriptions if one.name == GROUP]
        return (sum(own) if own else stored), stored

    def counted(self, topics: Sequence[TopicName]) -> list[dict[str, Any]]:
        """Return what is told of dead-letter topics; those that are gone by now are left out."""
        rows = list[dict[str, Any]]()
        for topic in topics:
            try:
                counted = self.count(topic)
            except TopicNotFoundError:
                continue
            waiting, stored = (None, None) if counted is None else counted
            rows.append({"topic": topic.local, "waiting": waiting, "stored": stored})
        return rows

    def page(self, topic: TopicName, chosen: DeadLetterSelection) -> DeadLetterPage:
        """Return letters that wait, and change nothing; raise TopicNotFoundError."""
        letters, size, more = list[Letter](), 0, False
        with closing(self._scan(topic)) as scan:
            partitions = self._partitions(topic)
            for stored in scan.pending(partitions, chosen.after, chosen.before_ms):
                if len(letters) >= min(chosen.limit, MAX_BATCH) or size >= MAX_BYTES:
                    more = True
                    break
                letters.append(self._letter(topic, stored))
                size += stored.message.size()
                scan.had(stored)
            return DeadLetterPage(tuple(letters), scan.marks, more or scan.exhausted)

    def requeue(
        self,
        topic: TopicName,
        chosen: DeadLetterSelection,
        may_publish: Callable[[TopicName], bool],
        user: str = "",
    ) -> DeadLetterOutcome:
        """Publish letters to the topics that they came from, and acknowledge them then.

        Letters that cannot be are left, with the reason. `user` has them requeued. Raises
        TopicNotFoundError.
        """
        page, refused = self._chosen(topic, chosen)
        done, failure = list[Letter](), ""
        for letter in page.letters:
            place = letter.stored.position
            try:
                reason = self._publish(topic, letter, may_publish)
            except _UNAVAILABLE as error:
                failure = str(error) or error.code
                break
            if reason:
                refused[write_letter(place)] = reason
            else:
                done.append(letter)
        self._finish(topic, done, REQUEUED, user, may_publish)
        if failure:
            return DeadLetterOutcome(len(done), refused, chosen.after, more=False, failure=failure)
        return DeadLetterOutcome(len(done), refused, page.after, page.more)

    def discard(
        self,
        topic: TopicName,
        chosen: DeadLetterSelection,
        may_see: Callable[[TopicName], bool],
        user: str = "",
    ) -> DeadLetterOutcome:
        """Acknowledge letters, so that they do not wait any more; raise TopicNotFoundError.

        It is noted on messages of topics that `user` may see: anyone may write a letter's origin.
        """
        page, refused = self._chosen(topic, chosen)
        self._finish(topic, page.letters, DISCARDED, user, may_see)
        return DeadLetterOutcome(len(page.letters), refused, page.after, page.more)

    def _chosen(
        self, topic: TopicName, chosen: DeadLetterSelection
    ) -> tuple[DeadLetterPage, dict[str, str]]:
        """Return the letters that are meant, and why some are not to be had."""
        if chosen.positions is None:
            return self.page(topic, chosen), {}
        single = self._partitions(topic) == [NOT_PARTITIONED]
        letters, missing = list[Letter](), dict[str, str]()
        with closing(self._scan(topic)) as scan:
            for named in chosen.positions[:MAX_BATCH]:
                place = replace(named, partition=NOT_PARTITIONED) if single else named
                stored = scan.one(place)
                if stored is None:
                    missing[write_letter(named)] = "It does not wait any more."
                else:
                    letters.append(self._letter(topic, stored))
        return DeadLetterPage(tuple(letters), chosen.after, more=False), missing

    def _scan(self, topic: TopicName) -> LetterScan:
        try:
            cursors = self.backend.cursors(Subscription(topic, GROUP), self.timeout)
        except SubscriptionNotFoundError:
            cursors = []  # nothing was requeued or discarded yet
        states = {state.partition: state for state in cursors}
        return LetterScan(self.backend, topic, states, self.timeout)

    def _partitions(self, topic: TopicName) -> list[int]:
        count = self.topics_cache.partitions(topic)
        return list(range(count)) if count else [NOT_PARTITIONED]

    def _letter(self, topic: TopicName, stored: Stored) -> Letter:
        found = origin(stored.message, topic)
        obstacle = ""
        if is_undecoded(stored.message):
            obstacle = "Its value is not what was sent, but its stored form."
        elif found.topic is None:
            obstacle = "Its properties do not name the topic that it came from."
        elif found.topic == topic:
            obstacle = "It came from this topic itself."
        elif _home(found.topic) != _home(topic):
            obstacle = f"It came from another namespace, {found.topic}."
        return Letter(stored, found, obstacle)

    def _publish(
        self, topic: TopicName, letter: Letter, may_publish: Callable[[TopicName], bool]
    ) -> str:
        """Publish a letter to where it came from; return why that is not to be, "" if it is done.

        Raises what says that the store is away: the next letter would meet the same.
        """
        to, stored = letter.origin.topic, letter.stored
        if letter.obstacle or to is None:
            return letter.obstacle
        if not may_publish(to):
            return f"You may not publish to {to.local}."
        # A topic of the same name that was made since begins at the same positions, but later.
        name = f"{topic}:{write_letter(stored.position)}:{stored.publish_time}"
        try:
            self.topics_cache.partitions(to)
            message = as_it_was(stored.message)
            source = encode_source("", "", "", f"requeued from {topic.local}")
            self.publisher.publish(to, [message], _REQUEUER, name, source)
        except TopicNotFoundError:
            return f"There is no topic {to.local}."
        except _UNAVAILABLE:
            raise
        except RouterError as error:
            return str(error) or error.code
        return ""

    def _finish(
        self,
        topic: TopicName,
        done: Sequence[Letter],
        action: str,
        user: str,
        may_note: Callable[[TopicName], bool],
    ) -> None:
        """Acknowledge letters, and note on the messages that they were what was done."""
        if not done:
            return
        group = Subscription(topic, GROUP)
        self.backend.subscribe(group, Start.EARLIEST, self.timeout)
        positions = [letter.stored.position for letter in done]
        self.backend.acknowledge(group, positions, False, self.timeout)
        places = defaultdict[TopicName, list[Position]](list)
        for letter in done:
            if (to := letter.origin.topic) is not None and (at := letter.origin.at) is not None:
                places[to].append(at)
        for to, found in places.items():
            if not may_note(to):
                continue
            try:
                single = self._partitions(to) == [NOT_PARTITIONED]
            except RouterError:
                continue  # a discarded letter of a topic that is gone
            own = [replace(at, partition=NOT_PARTITIONED) if single else at for at in found]
            self.history.record(to, [(at, at) for at in own], action, topic, user)


def _home(topic: TopicName) -> tuple[str, str, str]:
    return topic.domain, topic.tenant, topic.namespace
