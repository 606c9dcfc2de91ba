"""`/admin/v2/persistent` and `/non-persistent`: topics listed, made, grown, ended, deleted.

A topic that is not persistent is created by its first use and cannot be made here; everything
else that makes no sense without a log is refused by the broker with 405.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import structlog
from flask import Response

from router.errors import BadRequestError, TopicNotFoundError
from router.model import PERSISTENT, Position, TopicName
from router.services.rights import TopicRights
from router.web.access import Right
from router.web.forms import answer
from router.web.openapi.description import answers_json, operation
from router.web.openapi.description import flag as flag_of
from router.web.pulsar_admin import shapes, stats
from router.web.pulsar_admin.context import AuthorizedTopic, ResourceViews
from router.web.pulsar_admin.shapes import CHANGE_FAILS, changes, reads
from router.web.pulsar_admin.views import (
    TOPIC,
    TOPICS,
    AdminRefusedError,
    body_json,
    done,
    flag,
    namespace_name,
    texts,
    whole,
)

MAX_PARTITIONS: Final = 1_000
_EARLIEST: Final = flag_of(
    "getEarliestTimeInBacklog", "Answer when the first message of each backlog was stored."
)
_FORCE: Final = flag_of("force", "Delete it while it is used.")

_log = structlog.get_logger(__name__)


class AdminTopicViews(ResourceViews):
    """The views of topics."""

    @reads(TOPICS, shapes.NAMES, "The names.")
    def topics(self, domain: str, **path: str) -> Response:
        """Answer the topics of a namespace that the caller may see, partitions by their names."""
        principal, name = self._authorizer.principal(), namespace_name(**path)
        mode = "PERSISTENT" if domain == PERSISTENT else "NON_PERSISTENT"
        return answer(self._authorizer.visible(principal, self._administration.names(name, mode)))

    @reads(f"{TOPICS}/partitioned", shapes.NAMES, "The names.")
    def partitioned_topics(self, domain: str, **path: str) -> Response:
        """Answer the partitioned topics of a namespace that the caller may see."""
        principal, listed = (
            self._authorizer.principal(),
            self._administration.topics(namespace_name(**path)),
        )
        # Only persistent topics are listed.
        found = [str(info.topic) for info in listed if info.partitions and domain == PERSISTENT]
        return answer(self._authorizer.visible(principal, found))

    @changes(f"PUT {TOPIC}", shapes.PERSISTENT_ONLY, body=shapes.PROPERTIES, refuses=shapes.REFUSED)
    def create_topic(self, **path: str) -> Response:
        """Make a topic without partitions, with the properties in the body."""
        authorized = self._authorizer.topic(Right.CREATE, path)
        return self._create(authorized, 0, texts(body_json() or {}, "the body"))

    @changes(
        f"PUT {TOPIC}/partitions",
        shapes.PERSISTENT_ONLY,
        body=shapes.PARTITIONS,
        refuses=shapes.REFUSED | shapes.TOO_FEW,
    )
    def create_partitioned(self, **path: str) -> Response:
        """Make a partitioned topic: the body is a number, or a number with properties."""
        authorized = self._authorizer.topic(Right.CREATE, path)
        values, properties = body_json(), {}
        if isinstance(values, dict):
            properties = texts(values.get("properties") or {}, "properties")
            values = values.get("partitions")
        return self._create(authorized, _partitions(values), properties)

    @changes(
        f"POST {TOPIC}/partitions",
        body=shapes.PARTITION_COUNT,
        refuses=shapes.TOO_FEW | {409: "The topic is not partitioned.", 422: "The topic has more."},
    )
    def update_partitions(self, **path: str) -> Response:
        """Give a partitioned topic more partitions."""
        principal, name = self._authorizer.topic(Right.MANAGE, path)
        count = _partitions(body_json())
        try:
            has = self._administration.describe(name).info.partitions
        except TopicNotFoundError:
            has = 0
        if not has:
            raise AdminRefusedError(409, f"Topic {name} is not the partitioned topic.")
        if count < has:
            raise AdminRefusedError(
                422, f"Desired partitions {count} can't be less than the current partitions {has}."
            )
        self._administration.grow(name, count)
        self._context.topics.forget(name)
        _log.info("topic-grown", topic=str(name), partitions=count, user=principal.name)
        return done()

    @changes(
        f"DELETE {TOPIC}",
        _FORCE,
        refuses=shapes.IN_USE | {409: "The topic is partitioned."},
    )
    def delete_topic(self, **path: str) -> Response:
        """Delete a topic without partitions; with `force`, one that is in use too."""
        authorized = self._authorizer.topic(Right.DELETE, path)
        name = authorized.topic
        if self._administration.describe(name).info.partitions:
            raise AdminRefusedError(409, f"Topic {name} is partitioned: …/partitions deletes it")
        return self._delete(authorized, force=flag("force"))

    @changes(f"DELETE {TOPIC}/partitions", _FORCE, refuses=shapes.IN_USE)
    def delete_partitioned(self, **path: str) -> Response:
        """Delete a partitioned topic; with `force`, one that is in use too."""
        authorized, force = self._authorizer.topic(Right.DELETE, path), flag("force")
        if not self._administration.describe(authorized.topic).info.partitions:
            raise AdminRefusedError(404, f"Partitioned Topic {authorized.topic} not found")
        return self._delete(authorized, force=force)

    @reads(
        f"{TOPIC}/partitions",
        dict,
        "The number.",
        flag_of(
            "checkAllowAutoCreation", "Answer for a missing topic what its first use would make."
        ),
    )
    def partitions(self, **path: str) -> Response:
        """Answer how many partitions a topic has; clients also find it by this."""
        name = self._topic(Right.VIEW, path)
        if self._administration.partitions(name, create=flag("checkAllowAutoCreation")):
            return answer(stats.metadata(self._administration.describe(name).info))
        return answer({"partitions": 0, "deleted": False})

    @reads(f"{TOPIC}/properties", dict, "The properties.")
    def topic_properties(self, **path: str) -> Response:
        """Answer the properties that a topic was made with."""
        info = self._administration.describe(self._topic(Right.VIEW, path)).info
        return answer(info.properties)

    @reads(f"{TOPIC}/stats", dict, "The statistics.", _EARLIEST)
    def topic_stats(self, **path: str) -> Response:
        """Answer what a topic or a partition holds, and which clients it has."""
        name, earliest = self._topic(Right.VIEW, path), flag("getEarliestTimeInBacklog")
        return answer(stats.topic_stats(self._inspection.one(name, earliest=earliest)))

    @reads(
        f"{TOPIC}/partitioned-stats",
        dict,
        "The statistics.",
        flag_of("perPartition", "Answer those of each partition too."),
        _EARLIEST,
    )
    def partitioned_stats(self, **path: str) -> Response:
        """Answer what a partitioned topic holds, all in all and by partition."""
        each = flag("perPartition", default=True)
        name, found = self._partitioned(path, earliest=flag("getEarliestTimeInBacklog"))
        return answer(stats.partitioned_stats(name, found, each=each))

    @reads(f"{TOPIC}/internalStats", dict, "The statistics.")
    def internal_stats(self, **path: str) -> Response:
        """Answer where a topic or a partition and its cursors stand."""
        return answer(stats.internal_stats(self._inspection.one(self._topic(Right.VIEW, path))))

    @reads(f"{TOPIC}/partitioned-internalStats", dict, "The statistics.")
    def partitioned_internal_stats(self, **path: str) -> Response:
        """Answer where the partitions of a topic and their cursors stand."""
        return answer(stats.partitioned_internal_stats(*self._partitioned(path)))

    @operation(
        f"POST {TOPIC}/terminate",
        answers=answers_json(shapes.MESSAGE_ID, "The last message's id."),
        fails=CHANGE_FAILS,
        refuses={405: "The topic is partitioned."},
    )
    def terminate(self, **path: str) -> Response:
        """Let a topic take no more messages; answer the last one."""
        authorized = self._authorizer.topic(Right.MANAGE, path)
        if self._administration.partitions(authorized.topic):
            raise AdminRefusedError(405, "Termination of a partitioned topic is not allowed")
        (last,) = self._terminate(authorized)
        return answer(message_id(last))

    @operation(
        f"POST {TOPIC}/terminate/partitions",
        answers=answers_json(dict, "The last message's id by partition."),
        fails=CHANGE_FAILS,
        refuses={405: "The topic is not partitioned."},
    )
    def terminate_partitions(self, **path: str) -> Response:
        """Let a partitioned topic take no more messages; answer the last one of each partition."""
        authorized = self._authorizer.topic(Right.MANAGE, path)
        if not self._administration.partitions(authorized.topic):
            raise AdminRefusedError(405, f"Topic {authorized.topic} is not partitioned")
        ended = self._terminate(authorized)
        return answer({str(last.partition): message_id(last) for last in ended})

    @changes(f"PUT {TOPIC}/unload")
    def unload(self, **path: str) -> Response:
        """Do nothing, successfully: no other broker could serve the topic."""
        self._inspection.one(self._topic(Right.MANAGE, path))
        return done()

    def _partitioned(
        self, path: Mapping[str, str], *, earliest: bool = False
    ) -> tuple[TopicName, stats.StatsTarget]:
        name = self._topic(Right.VIEW, path)
        found = self._inspection.whole(name, earliest=earliest)
        if not found.info.partitions:
            raise AdminRefusedError(404, f"Partitioned Topic {name} not found")
        return name, found

    def _create(
        self, authorized: AuthorizedTopic, partitions: int, properties: Mapping[str, str]
    ) -> Response:
        principal, name = authorized

        def make() -> bool:
            self._administration.create_topic(name, partitions, properties)
            return True

        rights, topics = self._context.rights, self._context.topics
        try:
            rights.create(name, TopicRights(principal.name), lambda: topics.exists(name), make)
        finally:
            topics.forget(name)
        _log.info("topic-created", topic=str(name), partitions=partitions, user=principal.name)
        return done()

    def _delete(self, authorized: AuthorizedTopic, *, force: bool) -> Response:
        principal, name = authorized
        if not force and self._inspection.whole(name).clients:
            raise AdminRefusedError(412, "Topic has active producers/subscriptions")
        try:
            self._context.rights.delete(name, lambda: self._administration.delete_topic(name))
        finally:
            self._context.topics.forget(name)
        _log.info("topic-deleted", topic=str(name), user=principal.name)
        return done()

    def _terminate(self, authorized: AuthorizedTopic) -> list[Position]:
        principal, name = authorized
        last = self._administration.terminate(name)
        _log.info("topic-terminated", topic=str(name), user=principal.name)
        return last


def message_id(place: Position, batch_index: int = -1) -> dict[str, int]:
    """Return Pulsar's MessageIdImpl."""
    return {
        "ledgerId": place.ledger,
        "entryId": place.entry,
        "partitionIndex": place.partition,
        "batchIndex": batch_index,
        "batchSize": 0,
    }


def _partitions(value: object) -> int:
    """Return a number of partitions; raise RefusedError, BadRequestError."""
    count = whole(value, "partitions")
    if count < 1:
        raise AdminRefusedError(406, "Number of partitions should be more than 0")
    if count > MAX_PARTITIONS:
        raise BadRequestError(f"a topic has at most {MAX_PARTITIONS} partitions, not {count}")
    return count
