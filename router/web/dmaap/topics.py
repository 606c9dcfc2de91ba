"""The DMaaP Message Router's `/topics`: list, describe, create, delete.

Shapes are those of the original (its API documentation calls them topic management). What it takes
and ignores works here: partitions, replicas where Kafka keeps the messages, deletion; retention is
ours. A node of its own keeps one copy, and Apache Pulsar decides for itself.

Creating a topic that exists answers 204, as in the original, unless it asks for another number of
partitions, which is 409: the original's silence there would be a lie.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from flask import Response, request

from router.model import TopicInfo, TopicName
from router.model.policies import CLEANUP_POLICIES, Policies
from router.services.manage import MAX_PARTITIONS, NewTopic, TopicManagement
from router.services.rights import NO_OWNER, Rights, TopicRights
from router.web import forms, requests
from router.web.access import AccessLists, RequestAuthorizer, Right
from router.web.openapi import description as api
from router.web.requests import Query, consumer_name
from router.web.topic_access import TopicAccess

FIELDS: Final = (
    "topicName",
    "topicDescription",
    "partitionCount",
    "replicationCount",
    "transactionEnabled",
    "retentionMs",
    "retentionBytes",
    "backlogBytes",
    "deduplication",
    "cleanupPolicy",
)


_LIST: Final = api.shape({"enabled": bool, "users": [str]})
_DETAILS: Final = api.shape(
    {
        "name": str,
        "description": str,
        "owner": str,
        "readerAcl": _LIST,
        "writerAcl": _LIST,
        "partitionCount": int,
        "replicationCount": int,
        "transactionEnabled": bool,
        "retentionMs": int | None,
        "retentionBytes": int | None,
        "backlogBytes": int | None,
        "deduplication": bool | None,
        "cleanupPolicy": str,
    }
)
_LISTED: Final = api.shape(
    {"topicName": str, "owner": str, "txenabled": bool},
    {"partitionCount": int, "internal": bool},
)
_INTERNAL: Final = api.flag(
    "internal", "List the internal topics of the store as well, which no request may name."
)
_DIGITS: Final = "^[0-9]{1,18}$"
_FLAG: Final = {"enum": [True, False, "true", "false", None]}


def _number(least: int, limit: int, digits: str) -> api.Schema:
    """Return the schema of a number that may be written as text."""
    number = {"type": "integer", "minimum": least, "maximum": limit}
    return {"anyOf": [number, {"type": "string", "pattern": digits}, {"type": "null"}]}


_NEW: Final = api.shape(
    {"topicName": {"type": "string", "pattern": api.NAME}},
    {
        "topicDescription": str | None,
        "partitionCount": _number(0, MAX_PARTITIONS, "^(0|[1-9][0-9]{0,2})$"),
        "replicationCount": _number(-1, 2**63 - 1, _DIGITS),
        "transactionEnabled": _FLAG,
        "retentionMs": _number(-1, 2**62, _DIGITS),
        "retentionBytes": _number(-1, 2**62, _DIGITS),
        "backlogBytes": _number(-1, 2**62, _DIGITS),
        "deduplication": _FLAG,
        "cleanupPolicy": {"enum": [*CLEANUP_POLICIES, None]},
    },
)
_FAILS: Final = (*api.TOPIC, *api.STORE, "not-allowed", "not-supported")
_CHANGED: Final = {200: api.ReplyDescription("The list is changed.", {api.HTML: str})}
_CHANGE_FAILS: Final = (*api.TOPIC, *api.STORE, "conflict", "read-body-too-large")


@dataclass(frozen=True, slots=True)
class DmaapTopicViews:
    """The views of `/topics`."""

    callers: TopicAccess
    topics: TopicManagement
    rights: Rights

    @api.reads("/topics", api.shape({"topics": [str]}), "The names.", _INTERNAL)
    def names(self) -> Response:
        """Answer the names of the topics that the caller may use."""
        visible, _ = self._listed()
        return forms.answer({"topics": [info.topic.local for info in visible]})

    @api.reads("/topics/listAll", api.shape({"topics": [_LISTED]}), "The topics.", _INTERNAL)
    def list_all(self) -> Response:
        """Answer the same topics with their owners.

        With `internal` each has its number of partitions too, and whether it is internal.
        """
        visible, internal = self._listed()
        rights = self.rights.all()
        topics = []
        for info in visible:
            known = rights.get(str(info.topic), NO_OWNER)
            listed: dict[str, Any] = {
                "topicName": info.topic.local,
                "owner": known.owner,
                "txenabled": _transactional(info, known),
            }
            if internal:
                listed |= {"partitionCount": max(1, info.partitions), "internal": info.internal}
            topics.append(listed)
        return forms.answer({"topics": topics})

    @api.reads("/topics/<topic>", _DETAILS, "The topic.", fails=_FAILS)
    def describe(self, topic: str) -> Response:
        """Answer what a topic is."""
        _, name = self.callers.authorized(topic, Right.VIEW)
        info = self.topics.described(name).info
        return forms.answer(self._details(info, self.rights.read(name)))

    @api.operation(
        "POST /topics/create",
        body=api.BodyDescription(
            {api.JSON: _NEW},
            "Numbers and booleans may be sent as text; other fields are refused.",
            examples={api.JSON: {"topicName": "orders", "partitionCount": 4}},
        ),
        answers={
            200: api.ReplyDescription("The topic, which now exists.", {api.JSON: _DETAILS}),
            204: api.ReplyDescription("The topic exists already, and is left as it is."),
        },
        fails=(*_FAILS, "topic-exists", "conflict"),
    )
    def create(self) -> Response:
        """Create a topic, which is then its creator's."""
        principal = self.callers.principal()
        values = forms.fields(request.environ, FIELDS)
        rights = TopicRights(
            principal.name,
            description=forms.text(values, "topicDescription", ""),
            transactional=forms.flag(values, "transactionEnabled") or False,
        )
        new = NewTopic(
            self.callers.topic_name(forms.text(values, "topicName").replace("%", "%25")),
            forms.number(values, "partitionCount"),
            Policies(
                forms.number(values, "retentionMs"),
                forms.number(values, "retentionBytes"),
                forms.number(values, "backlogBytes"),
                forms.flag(values, "deduplication"),
                forms.number(values, "replicationCount"),
                cleanup_policy=forms.text(values, "cleanupPolicy", "") or None,
            ),
            _properties(rights),
        )
        self.callers.access.authorize(principal, new.topic, Right.CREATE)
        self.topics.check(new)
        made = self.rights.create(
            new.topic,
            rights,
            lambda: self.topics.exists(new.topic),
            lambda: self.topics.create(new),
        )
        if not made:
            return Response(status=204)
        # As it has become: partitions may be a default, and copies are at most one a server.
        return forms.answer(self._details(self.topics.described(new.topic).info, rights))

    @api.operation(
        "DELETE /topics/<topic>",
        answers={200: api.ReplyDescription("The topic is deleted.", {api.HTML: str})},
        fails=(*_FAILS, "conflict"),
    )
    def delete(self, topic: str) -> Response:
        """Delete a topic with all that is in it."""
        _, name = self.callers.authorized(topic, Right.DELETE)
        self.rights.delete(name, lambda: self.topics.delete(name))
        return forms.sentence(f"Topic [{name.local}] deleted successfully")

    def _listed(self) -> tuple[list[TopicInfo], bool]:
        """Return the topics that the caller may see, and whether internal ones are requested."""
        principal = self.callers.principal()
        internal = Query(request.environ).flag("internal", default=False)
        return self.callers.visible(principal, self.topics, internal=internal), internal

    def _details(self, info: TopicInfo, rights: TopicRights) -> dict[str, Any]:
        policies = info.policies
        return {
            "name": info.topic.local,
            "description": rights.description or info.properties.get("description", ""),
            "owner": rights.owner,
            "readerAcl": listed(self.callers.access, info.topic, rights, Right.SUBSCRIBE),
            "writerAcl": listed(self.callers.access, info.topic, rights, Right.PUBLISH),
            "partitionCount": max(1, info.partitions),
            "replicationCount": max(1, policies.replicas or 1),
            "transactionEnabled": _transactional(info, rights),
            "retentionMs": policies.retention_ms,
            "retentionBytes": policies.retention_bytes,
            "backlogBytes": policies.backlog_bytes,
            "deduplication": policies.deduplication,
            "cleanupPolicy": policies.cleanup_policy or "delete",
        }


def listed(
    access: RequestAuthorizer, topic: TopicName, rights: TopicRights, right: Right
) -> dict[str, Any]:
    """Return an access list in the original's shape, in which `enabled` is always true.

    A topic with neither owner nor list shows whom the file of permissions names, if there is one.
    """
    own = rights.readers if right is Right.SUBSCRIBE else rights.writers
    users = sorted(own) if own or rights.owner else access.users(topic, right)
    return {"enabled": True, "users": users}


def _transactional(info: TopicInfo, rights: TopicRights) -> bool:
    return rights.transactional or info.properties.get("transactionEnabled") == "true"


def _properties(rights: TopicRights) -> Mapping[str, str]:
    """Return the properties that the store keeps for its own readers; it checks no rights."""
    properties = {"description": rights.description} if rights.description else {}
    return properties | ({"transactionEnabled": "true"} if rights.transactional else {})


@dataclass(frozen=True, slots=True)
class AclViews:
    """The views of `/topics/{topic}/producers` and `/topics/{topic}/consumers`."""

    callers: TopicAccess
    lists: AccessLists

    @api.reads("/topics/<topic>/producers", _LIST, "The list.", fails=(*api.TOPIC, *api.STORE))
    def producers(self, topic: str) -> Response:
        """Answer who may publish."""
        return self._shown(topic, Right.PUBLISH)

    @api.reads("/topics/<topic>/consumers", _LIST, "The list.", fails=(*api.TOPIC, *api.STORE))
    def consumers(self, topic: str) -> Response:
        """Answer who may read."""
        return self._shown(topic, Right.SUBSCRIBE)

    @api.operation("PUT /topics/<topic>/producers/<key>", answers=_CHANGED, fails=_CHANGE_FAILS)
    def permit_producer(self, topic: str, key: str) -> Response:
        """Let a key publish."""
        self._change(topic, key, reader=False, on_list=True)
        return forms.sentence("Write access has been granted to publisher.")

    @api.operation("DELETE /topics/<topic>/producers/<key>", answers=_CHANGED, fails=_CHANGE_FAILS)
    def revoke_producer(self, topic: str, key: str) -> Response:
        """Let a key publish no more."""
        self._change(topic, key, reader=False, on_list=False)
        return forms.sentence("Write access has been revoked for publisher.")

    @api.operation("PUT /topics/<topic>/consumers/<key>", answers=_CHANGED, fails=_CHANGE_FAILS)
    def permit_consumer(self, topic: str, key: str) -> Response:
        """Let a key read."""
        name, consumer = self._change(topic, key, reader=True, on_list=True)
        return forms.sentence(
            f"Read access has been granted for consumer [{consumer}] for topic [{name.local}]."
        )

    @api.operation("DELETE /topics/<topic>/consumers/<key>", answers=_CHANGED, fails=_CHANGE_FAILS)
    def revoke_consumer(self, topic: str, key: str) -> Response:
        """Let a key read no more."""
        name, consumer = self._change(topic, key, reader=True, on_list=False)
        return forms.sentence(
            f"Read access has been revoked for consumer [{consumer}] for topic [{name.local}]."
        )

    def _shown(self, topic: str, right: Right) -> Response:
        principal, name = self.callers.authorized(topic)
        rights = self.lists.rights(principal, name)
        return forms.answer(listed(self.callers.access, name, rights, right))

    def _change(
        self, topic: str, key: str, *, reader: bool, on_list: bool
    ) -> tuple[TopicName, str]:
        principal, name = self.callers.authorized(topic)
        other = consumer_name(key, "key")
        requests.no_body(request.environ, forms.MAX_BODY)
        self.lists.change(principal, name, other, reader=reader, listed=on_list)
        return name, other
