"""`/admin/v2/persistent` and `/non-persistent`: topics listed, made, grown, ended, deleted.

A topic that is not persistent comes into being by being used and cannot be made here; everything
else that makes no sense without a log is refused by the broker with 405.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog
from flask import Blueprint, Response

from router.backends.embedded.administration import Administration
from router.errors import BadRequestError, TopicNotFoundError
from router.model import TopicName
from router.services.manage import Topics
from router.services.rights import Rights, TopicRights
from router.web.access import Right
from router.web.openapi.description import (
    OBJECT,
    answers_json,
    answers_nothing,
    operation,
)
from router.web.openapi.description import flag as flag_of
from router.web.pulsar_admin import shapes, stats
from router.web.pulsar_admin.door import Door, Entered
from router.web.pulsar_admin.errors import RefusedError
from router.web.pulsar_admin.paths import (
    TOPIC,
    TOPICS,
    answer,
    done,
    flag,
    given,
    namespace_name,
    texts,
    whole,
)
from router.wire.pulsar import pulsar_pb2 as pb

MOST_PARTITIONS = 1_000

_log = structlog.get_logger(__name__)


class TopicViews:
    """The views of topics."""

    def __init__(
        self, door: Door, administration: Administration, rights: Rights, topics: Topics
    ) -> None:
        self._door = door
        self._administration = administration
        self._looking = stats.Looking(administration)
        self._rights = rights
        self._topics = topics

    def add(self, routes: Blueprint) -> None:
        """Add the routes."""
        routes.get(TOPICS)(self.topics)
        routes.get(f"{TOPICS}/partitioned")(self.partitioned_topics)
        routes.put(TOPIC)(self.create_topic)
        routes.delete(TOPIC)(self.delete_topic)
        routes.get(f"{TOPIC}/partitions")(self.partitions)
        routes.put(f"{TOPIC}/partitions")(self.create_partitioned)
        routes.post(f"{TOPIC}/partitions")(self.update_partitions)
        routes.delete(f"{TOPIC}/partitions")(self.delete_partitioned)
        routes.get(f"{TOPIC}/properties")(self.topic_properties)
        routes.get(f"{TOPIC}/stats")(self.topic_stats)
        routes.get(f"{TOPIC}/partitioned-stats")(self.partitioned_stats)
        routes.get(f"{TOPIC}/internalStats")(self.internal_stats)
        routes.get(f"{TOPIC}/partitioned-internalStats")(self.partitioned_internal_stats)
        routes.post(f"{TOPIC}/terminate")(self.terminate)
        routes.post(f"{TOPIC}/terminate/partitions")(self.terminate_partitions)
        routes.put(f"{TOPIC}/unload")(self.unload)

    @operation(answers=answers_json(shapes.NAMES, "The names."), fails=shapes.LOOKING)
    def topics(self, domain: str, **path: str) -> Response:
        """Answer the topics of a namespace that the caller may see, partitions by their names."""
        principal, name = self._door.principal(), namespace_name(**path)
        self._administration.ask(pb.CommandAdmin(get_namespace=name))
        mode = "PERSISTENT" if domain == "persistent" else "NON_PERSISTENT"
        return answer(self._door.shown(principal, self._administration.names(name, mode)))

    @operation(answers=answers_json(shapes.NAMES, "The names."), fails=shapes.LOOKING)
    def partitioned_topics(self, domain: str, **path: str) -> Response:
        """Answer the partitioned topics of a namespace that the caller may see."""
        principal, name = self._door.principal(), namespace_name(**path)
        self._administration.ask(pb.CommandAdmin(get_namespace=name))
        asked, more, found = pb.ListTopics(namespace=name), domain == "persistent", list[str]()
        while more:
            page = self._administration.ask(pb.CommandAdmin(list_topics=asked))
            found += [info.topic for info in page.topics if info.partitions]
            if more := page.more:
                asked.after = page.topics[-1].topic
        return answer(self._door.shown(principal, found))

    @operation(
        body=shapes.PROPERTIES,
        answers=answers_nothing(),
        fails=shapes.MANAGING,
        refuses=shapes.REFUSED,
    )
    def create_topic(self, **path: str) -> Response:
        """Make a topic without partitions, with the properties in the body."""
        entered = self._enter(Right.CREATE, path)
        self._create(entered, 0, texts(given() or {}, "the body"))
        return done()

    @operation(
        body=shapes.PARTITIONS,
        answers=answers_nothing(),
        fails=shapes.MANAGING,
        refuses=shapes.REFUSED | shapes.TOO_FEW,
    )
    def create_partitioned(self, **path: str) -> Response:
        """Make a partitioned topic: the body is a number, or a number with properties."""
        entered = self._enter(Right.CREATE, path)
        wish, properties = given(), {}
        if isinstance(wish, dict):
            properties = texts(wish.get("properties") or {}, "properties")
            wish = wish.get("partitions")
        self._create(entered, _partitions(wish), properties)
        return done()

    @operation(
        body=shapes.PARTITION_COUNT,
        answers=answers_nothing(),
        fails=shapes.MANAGING,
        refuses=shapes.TOO_FEW | {409: "The topic is not partitioned.", 422: "The topic has more."},
    )
    def update_partitions(self, **path: str) -> Response:
        """Give a partitioned topic more partitions."""
        principal, name = self._enter(Right.MANAGE, path)
        wanted = _partitions(given())
        try:
            has = self._looking.info(name).partitions
        except TopicNotFoundError:
            has = 0
        if not has:
            raise RefusedError(409, f"Topic {name} is not the partitioned topic.")
        if wanted < has:
            raise RefusedError(
                422, f"Desired partitions {wanted} can't be less than the current partitions {has}."
            )
        grown = pb.UpdatePartitions(topic=str(name), partitions=wanted)
        self._administration.ask(pb.CommandAdmin(update_partitions=grown))
        self._topics.forget(name)
        _log.info("topic-grown", topic=str(name), partitions=wanted, user=principal.name)
        return done()

    @operation(
        flag_of("force", "Delete it while it is used."),
        answers=answers_nothing(),
        fails=shapes.MANAGING,
        refuses=shapes.IN_USE | {409: "The topic is partitioned."},
    )
    def delete_topic(self, **path: str) -> Response:
        """Delete a topic without partitions that nobody uses, by force also one in use."""
        entered = self._enter(Right.DELETE, path)
        if self._looking.info(entered.topic).partitions:
            raise RefusedError(
                409, f"Topic {entered.topic} is partitioned: …/partitions deletes it"
            )
        return self._delete(entered, force=flag("force"))

    @operation(
        flag_of("force", "Delete it while it is used."),
        answers=answers_nothing(),
        fails=shapes.MANAGING,
        refuses=shapes.IN_USE,
    )
    def delete_partitioned(self, **path: str) -> Response:
        """Delete a partitioned topic that nobody uses, by force also one in use."""
        entered = self._enter(Right.DELETE, path)
        force = flag("force")
        if not self._looking.info(entered.topic).partitions:
            raise RefusedError(404, f"Partitioned Topic {entered.topic} not found")
        return self._delete(entered, force=force)

    @operation(
        flag_of(
            "checkAllowAutoCreation", "Answer for a missing topic what its first use would make."
        ),
        answers=answers_json(OBJECT, "The number."),
        fails=shapes.LOOKING,
    )
    def partitions(self, **path: str) -> Response:
        """Answer how many partitions a topic has; that is also how clients look for it."""
        name = self._enter(Right.VIEW, path).topic
        count = self._administration.partitions(str(name), create=flag("checkAllowAutoCreation"))
        if count:
            return answer(stats.metadata(self._looking.info(name)))
        return answer({"partitions": 0, "deleted": False})

    @operation(answers=answers_json(OBJECT, "The properties."), fails=shapes.LOOKING)
    def topic_properties(self, **path: str) -> Response:
        """Answer the properties that a topic was made with."""
        info = self._looking.info(self._enter(Right.VIEW, path).topic)
        return answer({pair.key: pair.value for pair in info.properties})

    @operation(answers=answers_json(OBJECT, "The statistics."), fails=shapes.LOOKING)
    def topic_stats(self, **path: str) -> Response:
        """Answer what a topic or a partition holds, and who uses it."""
        return answer(stats.topic_stats(self._looking.one(self._enter(Right.VIEW, path).topic)))

    @operation(
        flag_of("perPartition", "Answer those of each partition too."),
        answers=answers_json(OBJECT, "The statistics."),
        fails=shapes.LOOKING,
    )
    def partitioned_stats(self, **path: str) -> Response:
        """Answer what a partitioned topic holds, all in all and by partition."""
        each = flag("perPartition", default=True)
        name, found = self._partitioned(path)
        return answer(stats.partitioned_stats(name, found, each=each))

    @operation(answers=answers_json(OBJECT, "The statistics."), fails=shapes.LOOKING)
    def internal_stats(self, **path: str) -> Response:
        """Answer where a topic or a partition and its cursors stand."""
        return answer(stats.internal_stats(self._looking.one(self._enter(Right.VIEW, path).topic)))

    @operation(answers=answers_json(OBJECT, "The statistics."), fails=shapes.LOOKING)
    def partitioned_internal_stats(self, **path: str) -> Response:
        """Answer where the partitions of a topic and their cursors stand."""
        return answer(stats.partitioned_internal_stats(*self._partitioned(path)))

    @operation(
        answers=answers_json(shapes.MESSAGE_ID, "The last message's id."),
        fails=shapes.MANAGING,
        refuses={405: "The topic is partitioned."},
    )
    def terminate(self, **path: str) -> Response:
        """Let a topic take no more messages; answer the last one."""
        entered = self._enter(Right.MANAGE, path)
        if self._administration.partitions(str(entered.topic)):
            raise RefusedError(405, "Termination of a partitioned topic is not allowed")
        (last,) = self._terminate(entered)
        return answer(message_id(last))

    @operation(
        answers=answers_json(OBJECT, "The last message's id by partition."),
        fails=shapes.MANAGING,
        refuses={405: "The topic is not partitioned."},
    )
    def terminate_partitions(self, **path: str) -> Response:
        """Let a partitioned topic take no more messages; answer the last one of each partition."""
        entered = self._enter(Right.MANAGE, path)
        if not self._administration.partitions(str(entered.topic)):
            raise RefusedError(405, f"Topic {entered.topic} is not partitioned")
        return answer({str(last.partition): message_id(last) for last in self._terminate(entered)})

    @operation(answers=answers_nothing(), fails=shapes.MANAGING)
    def unload(self, **path: str) -> Response:
        """Do nothing, successfully: no other broker could serve the topic."""
        self._looking.one(self._enter(Right.MANAGE, path).topic)
        return done()

    def _enter(self, right: Right, path: Mapping[str, str]) -> Entered:
        return self._door.topic(right, path)

    def _partitioned(self, path: Mapping[str, str]) -> tuple[TopicName, stats.Found]:
        name = self._enter(Right.VIEW, path).topic
        found = self._looking.whole(name)
        if not found.info.partitions:
            raise RefusedError(404, f"Partitioned Topic {name} not found")
        return name, found

    def _create(self, entered: Entered, partitions: int, properties: Mapping[str, str]) -> None:
        principal, name = entered
        made = pb.CreateTopic(
            topic=str(name),
            partitions=partitions,
            properties=[pb.KeyValue(key=key, value=value) for key, value in properties.items()],
        )

        def make() -> bool:
            self._administration.ask(pb.CommandAdmin(create_topic=made), again=False)
            return True

        owner = TopicRights(principal.name)
        try:
            self._rights.create(name, owner, lambda: self._topics.exists(name), make)
        finally:
            self._topics.forget(name)
        _log.info("topic-created", topic=str(name), partitions=partitions, user=principal.name)

    def _delete(self, entered: Entered, *, force: bool) -> Response:
        principal, name = entered
        if not force:
            found = self._looking.whole(name)
            if found.clients:
                raise RefusedError(412, "Topic has active producers/subscriptions")
        command = pb.CommandAdmin(delete_topic=pb.TopicRef(topic=str(name)))
        try:
            self._rights.delete(name, lambda: self._administration.ask(command, again=False))
        finally:
            self._topics.forget(name)
        _log.info("topic-deleted", topic=str(name), user=principal.name)
        return done()

    def _terminate(self, entered: Entered) -> Any:
        principal, name = entered
        command = pb.CommandAdmin(terminate_topic=pb.TopicRef(topic=str(name)))
        last = self._administration.ask(command).last_positions
        _log.info("topic-terminated", topic=str(name), user=principal.name)
        return last


def message_id(place: Any, batch_index: int = -1) -> dict[str, int]:
    """Return Pulsar's MessageIdImpl; entry -1 where there is none."""
    entry = place.entryId if place.entryId < 2**63 else -1
    return {
        "ledgerId": place.ledgerId,
        "entryId": entry,
        "partitionIndex": place.partition,
        "batchIndex": batch_index,
        "batchSize": 0,
    }


def _partitions(value: object) -> int:
    """Return a number of partitions; raise RefusedError, BadRequestError."""
    count = whole(value, "partitions")
    if count < 1:
        raise RefusedError(406, "Number of partitions should be more than 0")
    if count > MOST_PARTITIONS:
        raise BadRequestError(f"a topic has at most {MOST_PARTITIONS} partitions, not {count}")
    return count
