"""The commands' connection to the store that settings name, on the data folder as it comes."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, Final

from router import log
from router.backends import ResetTarget, Start, opening
from router.cli.connection import Consumption, ListedTopic, Tail, TopicDetails
from router.cli.store import CommandStore
from router.clocks import wall_ms
from router.errors import (
    BackendUnavailableError,
    BadReadOptionError,
    BadRequestError,
    NotSupportedError,
)
from router.metrics import Metrics
from router.model import Message, Principal, Stored, Subscription, TopicInfo, TopicName
from router.model.policies import Policies
from router.services.consume import (
    AnsweredPoll,
    ConnectedClient,
    ConsumeOptions,
    PollMailbox,
    PollRequest,
    PollServer,
)
from router.services.dead_letters.dead_letter import read_dead_letter_ids, read_marks
from router.services.dead_letters.service import DeadLetters, DeadLetterSelection
from router.services.group_details import GroupInspection
from router.services.groups import Preview, TopicGroup, TopicGroups, grouped
from router.services.jetstream import BrokerStreams
from router.services.jetstream.management import StreamCalls
from router.services.latest import LatestValues
from router.services.publish import Publisher, PublishOptions
from router.services.read import ReadOptions, StartPosition, TopicReader, placed
from router.services.shared_secret import RequestNames
from router.services.transactions import OpenTransactions

POLL_SECONDS: Final = 0.5
"""How often a tail that finds nothing says so, and looks for a broker that is away."""
RESUME_SECONDS: Final = 30.0
"""How long a tail waits for a broker that was there."""


class LocalConnection:
    """A connection over the services of this process."""

    def __init__(self, store: CommandStore) -> None:
        self._store = store
        self._settings, self._backend, self._timeout = store.settings, store.backend, store.timeout
        self._publisher: Publisher | None = None
        # What is logged must not get between messages.
        log.configure(store.settings.text("log.level"), store.settings.text("log.format"))

    def topics(self, *, internal: bool = False) -> list[ListedTopic]:
        """Return the topics of all namespaces; internal ones only with `internal`."""
        return [
            ListedTopic(self._settings.shortest_name(info.topic), info.partitions, info.internal)
            for info in self._backend.list_topics(self._timeout, internal=internal)
        ]

    def topic_names(self) -> list[str]:
        """Return the names of the topics."""
        return [topic.name for topic in self.topics()]

    def create_topic(self, name: str, partitions: int, cleanup: str | None = None) -> str:
        """Create a topic."""
        topic = self._settings.topic(name)
        policies = Policies(cleanup_policy=cleanup)
        self._backend.create_topic(TopicInfo(topic, partitions, policies), self._timeout)
        return str(topic)

    def delete_topic(self, name: str) -> str:
        """Delete a topic."""
        topic = self._settings.topic(name)
        self._backend.delete_topic(topic, self._timeout)
        return str(topic)

    def describe_topic(self, name: str) -> TopicDetails:
        """Return what a topic is and holds."""
        stats = self._backend.describe_topic(self._settings.topic(name), self._timeout)
        info = stats.info
        return TopicDetails(
            self._settings.shortest_name(info.topic),
            str(info.topic),
            info.partitions,
            dict(info.properties),
            stats.partitions,
            grouped(stats.subscriptions),
        )

    def latest_value(self, topic: str, key: bytes) -> dict[str, Any]:
        """Return the newest message of a key."""
        return self._latest().value(self._settings.topic(topic), key)

    def latest_values(self, topic: str, after: str | None, limit: int) -> dict[str, Any]:
        """Return a page of the newest messages."""
        return self._latest().page(self._settings.topic(topic), after, limit)

    def groups(self, topic: str) -> list[TopicGroup]:
        """Return the groups of a topic."""
        return self._groups().listed(self._settings.topic(topic))

    def describe_group(self, topic: str, group: str) -> dict[str, Any]:
        """Return a group, its members and partitions."""
        inspection = GroupInspection(self._backend, self._store.node, self._timeout)
        return inspection.details(Subscription(self._settings.topic(topic), group)).as_json()

    def preview_reset(self, topic: str, group: str, to: ResetTarget) -> Preview:
        """Return what a reset would change."""
        return self._groups().preview(Subscription(self._settings.topic(topic), group), to)

    def reset_group(self, topic: str, group: str, to: ResetTarget) -> str:
        """Move a group."""
        subscription = Subscription(self._settings.topic(topic), group)
        self._groups().reset(subscription, to)
        return str(subscription.topic)

    def delete_group(self, topic: str, group: str) -> str:
        """End a group."""
        subscription = Subscription(self._settings.topic(topic), group)
        self._groups().delete(subscription)
        return str(subscription.topic)

    def dead_letter_topics(self) -> list[dict[str, Any]]:
        """Return the topics of dead letters of all namespaces."""
        dead_letters = self._dead_letter_service()
        return dead_letters.counted(dead_letters.among(self._backend.list_topics(self._timeout)))

    def dead_letters(self, topic: str, after: str) -> dict[str, Any]:
        """Return dead letters that wait behind a place."""
        chosen = DeadLetterSelection(None, read_marks("behind", after))
        return self._dead_letter_service().page(self._settings.topic(topic), chosen).as_json()

    def handle_dead_letters(
        self, topic: str, action: str, fields: Mapping[str, str]
    ) -> dict[str, Any]:
        """Requeue or discard some dead letters."""
        dead_letters, name = self._dead_letter_service(), self._settings.topic(topic)
        if (named := fields.get("position")) is not None:
            chosen = DeadLetterSelection(read_dead_letter_ids("--position", named))
        else:
            before = int(fields.get("before", dead_letters.now_ms()))
            chosen = DeadLetterSelection(
                None, read_marks("behind", fields.get("behind", "")), before
            )
        handle = dead_letters.requeue if action == "requeue" else dead_letters.discard
        return handle(name, chosen, lambda _: True).as_json(chosen)

    def transactions(self) -> dict[str, Any]:
        """Return the open transactions."""
        return self._transactions().listed()

    def describe_transaction(self, name: str) -> dict[str, Any]:
        """Return an open transaction."""
        return self._transactions().described(name)

    def abort_transaction(self, name: str) -> dict[str, Any]:
        """Abort an open transaction."""
        return self._transactions().abort(name)

    def jetstream(self, subject: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer of the broker's streams."""
        found = self._store
        road = opening.open_nats(found.settings, found.node)
        if road is None:
            raise NotSupportedError(
                "Messages live in another store than the broker's: ask a router, with --server."
            )
        streams = BrokerStreams(road, found.timeout)
        return StreamCalls(streams, Principal(), administers=True).call(subject, body)

    def publish(self, topic: str, messages: Sequence[Message], request: str | None) -> int:
        """Store messages; the backend's own producer tells its retries apart."""
        del request
        return self._publishing().publish(self._settings.topic(topic), messages, Principal()).count

    def tail(self, topic: str, tail: Tail) -> Iterator[list[Stored]]:
        """Yield what is read without a group."""
        name = self._settings.topic(topic)
        every = POLL_SECONDS if tail.silence is None else min(POLL_SECONDS, tail.silence)
        configured = ReadOptions.from_settings(self._settings)
        options = replace(configured, heartbeat=every, longest=math.inf, streams=1)
        reading = TopicReader(self._backend, self._store.directory(), options, time.monotonic)
        tailing = _Tailing(reading, name, _starts(tail.start, reading.partitions(name)))
        yield from tailing.batches(math.inf if tail.silence is None else tail.silence)

    def consume(self, topic: str, group: str, consumer: str, start: Start | int) -> Consumption:
        """Open a consumer of a group."""
        options = ConsumeOptions.from_settings(self._settings)
        directory = self._store.directory()
        subscriber = PollServer(
            self._backend, self._store.node, directory, options, Metrics(), time.monotonic
        )
        request = PollRequest(
            Subscription(self._settings.topic(topic), group), consumer, 0.0, 1, start=start
        )
        return _Polls(subscriber, request)

    def sibling(self) -> LocalConnection:
        """Return another connection over the same store, which threads may share."""
        return LocalConnection(self._store)

    def close(self) -> None:
        """Do nothing: the store is closed by who opened it."""

    def _publishing(self) -> Publisher:
        if self._publisher is None:
            self._publisher = _publisher(self._store)
        return self._publisher

    def _dead_letter_service(self) -> DeadLetters:
        found = self._store
        configured = ConsumeOptions.from_settings(found.settings).dead_letter_topic
        directory, publisher = found.directory(), self._publishing()
        return DeadLetters(found.backend, directory, publisher, configured, found.timeout, wall_ms)

    def _latest(self) -> LatestValues:
        return LatestValues(opening.open_administration(self._settings, self._store.node))

    def _transactions(self) -> OpenTransactions:
        return OpenTransactions(opening.open_administration(self._settings, self._store.node))

    def _groups(self) -> TopicGroups:
        return TopicGroups(self._backend, self._timeout)


class _Tailing:
    """A stream that goes on where it was after the broker was away."""

    def __init__(
        self, reading: TopicReader, topic: TopicName, starts: Mapping[int, StartPosition]
    ) -> None:
        self._reading = reading
        self._topic = topic
        self._starts = starts
        self._alive_at = -math.inf

    def batches(self, silence: float) -> Iterator[list[Stored]]:
        """Yield messages, or nothing as a sign of life, until nothing came for so long.

        Raises BackendUnavailableError if there is no broker, or none for RESUME_SECONDS.
        """
        message_at = time.monotonic()
        while True:
            try:
                for found in self._stream():
                    if found:
                        message_at = time.monotonic()
                    elif time.monotonic() - message_at >= silence:
                        return
                    yield found
            except BackendUnavailableError:
                if time.monotonic() - self._alive_at > RESUME_SECONDS:
                    raise
                time.sleep(POLL_SECONDS)

    def _stream(self) -> Iterator[list[Stored]]:
        opened = self._reading.stream(self._topic, self._starts, PollMailbox(), ConnectedClient())
        with closing(opened) as stream:
            self._starts = stream.feed.positions
            for found in stream:
                self._alive_at = time.monotonic()
                for stored in found:
                    stream.feed.had(stored)
                yield found


class _Polls:
    """A consumer of a group: one poll at a time, which holds what it was given."""

    def __init__(self, subscriber: PollServer, request: PollRequest) -> None:
        self._subscriber = subscriber
        self._request = request
        self._poll: AnsweredPoll | None = None

    def fetch(self, limit: int, timeout: float) -> list[Stored]:
        self.close()
        request = replace(self._request, limit=limit, timeout=timeout)
        self._poll = self._subscriber.poll(request, PollMailbox(), ConnectedClient())
        return self._poll.messages

    def acknowledge(self) -> None:
        if self._poll is not None:
            self._poll.delivered()

    def close(self) -> None:
        if self._poll is not None:
            self._poll.abandon()
            self._poll = None


def _starts(start: Start | int | str, partitions: list[int]) -> dict[int, StartPosition]:
    """Return where each partition is read from; raise BadReadOptionError."""
    if not isinstance(start, str):
        return dict.fromkeys(partitions, start)
    from router.web.pulsar_rest import ids  # noqa: PLC0415 - loads protobuf and Flask

    try:
        marks = ids.read_marks(start)
    except BadRequestError as error:
        raise BadReadOptionError(f"--from: {error}.") from error
    if len(marks) != len(partitions):
        raise BadReadOptionError(
            f"--from: the topic has {len(partitions)} partitions; a place in each is expected, with"
            " commas between them."
        )
    return {
        partition: placed(mark, partition)
        for partition, mark in zip(partitions, marks, strict=True)
    }


def _publisher(store: CommandStore) -> Publisher:
    options = PublishOptions.from_settings(store.settings)
    names = RequestNames(store.node.registry, store.settings.seconds("backend.timeout"))
    return Publisher(store.backend, store.directory(), names, options, Metrics(), time.monotonic)
