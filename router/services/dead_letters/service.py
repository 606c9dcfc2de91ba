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
from router.services.dead_letters.dead_letter import (
    MAX_BATCH,
    DeadLetter,
    Marks,
    as_it_was,
    is_undecoded,
    origin,
    write_dead_letter_id,
    write_marks,
)
from router.services.dead_letters.scan import DeadLetterScan
from router.services.message_history import DISCARDED, REQUEUED, MessageHistory
from router.services.publish import Publisher
from router.services.topic_metadata import TopicMetadataCache

GROUP: Final = "router-dead-letters"
SUFFIXES: Final = (".dlq", "-DLQ")
MAX_BYTES: Final = 8 * 1024 * 1024
"""Of the dead letters of one call."""
# No user has such a name, so no request of a user's shares a producer with a requeued dead letter.
_REQUEUER: Final = Principal("\x00dead-letters")

_UNAVAILABLE: Final = (BackendUnavailableError, BackendTimeoutError)


@dataclass(frozen=True, slots=True)
class DeadLetterSelection:
    """Which dead letters are meant: those at `positions`, None: all that follow `after`.

    `before_ms`: none that was published later. `limit` of them at most.
    """

    positions: tuple[Position, ...] | None = None
    after: Marks = field(default_factory=dict)
    before_ms: int | None = None
    limit: int = MAX_BATCH


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """Dead letters that wait; `after` is where the look ended, `more`: it did not see the end."""

    dead_letters: tuple[DeadLetter, ...]
    after: Marks
    more: bool

    def as_json(self) -> dict[str, Any]:
        """Return the page for programs."""
        return {
            "letters": [dead_letter.as_json() for dead_letter in self.dead_letters],
            "behind": write_marks(self.after),
            "more": self.more,
        }


@dataclass(frozen=True, slots=True)
class DeadLetterOutcome:
    """What a call did: how many dead letters are done with, and why others are not, by position.

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
        """Return how many messages wait and are stored, None if the backend cannot say.

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
        """Return a row for each dead-letter topic; deleted ones are left out."""
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
        """Return dead letters that wait, and change nothing; raise TopicNotFoundError."""
        dead_letters, size, more = list[DeadLetter](), 0, False
        with closing(self._scan(topic)) as scan:
            partitions = self._partitions(topic)
            for stored in scan.pending(partitions, chosen.after, chosen.before_ms):
                if len(dead_letters) >= min(chosen.limit, MAX_BATCH) or size >= MAX_BYTES:
                    more = True
                    break
                dead_letters.append(self._dead_letter(topic, stored))
                size += stored.message.size()
                scan.had(stored)
            return DeadLetterPage(tuple(dead_letters), scan.marks, more or scan.exhausted)

    def requeue(
        self,
        topic: TopicName,
        chosen: DeadLetterSelection,
        may_publish: Callable[[TopicName], bool],
        user: str = "",
    ) -> DeadLetterOutcome:
        """Publish dead letters to the topics that they came from, and acknowledge them then.

        Dead letters that cannot be are left, with the reason. `user` has them requeued. Raises
        TopicNotFoundError.
        """
        page, refused = self._chosen(topic, chosen)
        done, failure = list[DeadLetter](), ""
        for dead_letter in page.dead_letters:
            place = dead_letter.stored.position
            try:
                reason = self._publish(topic, dead_letter, may_publish)
            except _UNAVAILABLE as error:
                failure = str(error) or error.code
                break
            if reason:
                refused[write_dead_letter_id(place)] = reason
            else:
                done.append(dead_letter)
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
        """Acknowledge dead letters, so that they do not wait any more; raise TopicNotFoundError.

        It is noted on messages of topics that `user` may see: anyone may write an origin.
        """
        page, refused = self._chosen(topic, chosen)
        self._finish(topic, page.dead_letters, DISCARDED, user, may_see)
        return DeadLetterOutcome(len(page.dead_letters), refused, page.after, page.more)

    def _chosen(
        self, topic: TopicName, chosen: DeadLetterSelection
    ) -> tuple[DeadLetterPage, dict[str, str]]:
        """Return the dead letters that are meant, and why some are not to be had."""
        if chosen.positions is None:
            return self.page(topic, chosen), {}
        single = self._partitions(topic) == [NOT_PARTITIONED]
        dead_letters, missing = list[DeadLetter](), dict[str, str]()
        with closing(self._scan(topic)) as scan:
            for named in chosen.positions[:MAX_BATCH]:
                place = replace(named, partition=NOT_PARTITIONED) if single else named
                stored = scan.one(place)
                if stored is None:
                    missing[write_dead_letter_id(named)] = "It does not wait any more."
                else:
                    dead_letters.append(self._dead_letter(topic, stored))
        return DeadLetterPage(tuple(dead_letters), chosen.after, more=False), missing

    def _scan(self, topic: TopicName) -> DeadLetterScan:
        try:
            cursors = self.backend.cursors(Subscription(topic, GROUP), self.timeout)
        except SubscriptionNotFoundError:
            cursors = []  # nothing was requeued or discarded yet
        states = {state.partition: state for state in cursors}
        return DeadLetterScan(self.backend, topic, states, self.timeout)

    def _partitions(self, topic: TopicName) -> list[int]:
        count = self.topics_cache.partitions(topic)
        return list(range(count)) if count else [NOT_PARTITIONED]

    def _dead_letter(self, topic: TopicName, stored: Stored) -> DeadLetter:
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
        return DeadLetter(stored, found, obstacle)

    def _publish(
        self, topic: TopicName, dead_letter: DeadLetter, may_publish: Callable[[TopicName], bool]
    ) -> str:
        """Publish a dead letter to its original topic; return why it cannot be, "" if it is done.

        Raises _UNAVAILABLE: the next dead letter would meet the same.
        """
        to, stored = dead_letter.origin.topic, dead_letter.stored
        if dead_letter.obstacle or to is None:
            return dead_letter.obstacle
        if not may_publish(to):
            return f"You may not publish to {to.local}."
        # A topic of the same name that was made since begins at the same positions, but later.
        name = f"{topic}:{write_dead_letter_id(stored.position)}:{stored.publish_time}"
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
        done: Sequence[DeadLetter],
        action: str,
        user: str,
        may_note: Callable[[TopicName], bool],
    ) -> None:
        """Acknowledge dead letters, and note on the messages that they were what was done."""
        if not done:
            return
        group = Subscription(topic, GROUP)
        self.backend.subscribe(group, Start.EARLIEST, self.timeout)
        positions = [dead_letter.stored.position for dead_letter in done]
        self.backend.acknowledge(group, positions, False, self.timeout)
        places = defaultdict[TopicName, list[Position]](list)
        for dead_letter in done:
            if (to := dead_letter.origin.topic) is not None and (
                at := dead_letter.origin.at
            ) is not None:
                places[to].append(at)
        for to, found in places.items():
            if not may_note(to):
                continue
            try:
                single = self._partitions(to) == [NOT_PARTITIONED]
            except RouterError:
                continue  # a discarded dead letter of a topic that is gone
            own = [replace(at, partition=NOT_PARTITIONED) if single else at for at in found]
            self.history.record(to, [(at, at) for at in own], action, topic, user)


def _home(topic: TopicName) -> tuple[str, str, str]:
    return topic.domain, topic.tenant, topic.namespace
