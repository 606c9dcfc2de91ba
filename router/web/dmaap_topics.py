"""The DMaaP Message Router's `/topics`: list, describe, create, delete.

Shapes are those of the original (its API documentation calls them topic management). What it takes
and ignores works here: partitions, replicas where Kafka keeps the messages, deletion; retention is
ours. A node of its own keeps one copy, and Apache Pulsar decides for itself.

Creating a topic that exists answers 204, as in the original, unless it asks for another number of
partitions, which is 409: the original's silence there would be a lie.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from flask import Blueprint, Response, request

from router.model import Policies, Principal, TopicInfo, TopicName
from router.services.manage import NewTopic, Topics
from router.services.rights import NOBODY, Rights, TopicRights
from router.web import forms
from router.web.access import Access, Right
from router.web.openapi.description import (
    HTML,
    JSON,
    STORE,
    TEXT,
    TOPIC,
    WHOLE,
    Body,
    Reply,
    Schema,
    answers_json,
    array,
    nullable,
    operation,
    shape,
)

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
)


_FLAG: Final[Schema] = {"type": "boolean"}
_LIST: Final = shape({"enabled": _FLAG, "users": array(TEXT)})
_DETAILS: Final = shape(
    {
        "name": TEXT,
        "description": TEXT,
        "owner": TEXT,
        "readerAcl": _LIST,
        "writerAcl": _LIST,
        "partitionCount": WHOLE,
        "replicationCount": WHOLE,
        "transactionEnabled": _FLAG,
        "retentionMs": nullable("integer"),
        "retentionBytes": nullable("integer"),
        "backlogBytes": nullable("integer"),
        "deduplication": nullable("boolean"),
    }
)
_NUMBER: Final[Schema] = {"type": ["integer", "string", "null"]}
_CHOICE: Final[Schema] = {"type": ["boolean", "string", "null"]}
_NEW: Final = shape(
    {"topicName": TEXT},
    {
        "topicDescription": nullable("string"),
        "partitionCount": _NUMBER,
        "replicationCount": _NUMBER,
        "transactionEnabled": _CHOICE,
        "retentionMs": _NUMBER,
        "retentionBytes": _NUMBER,
        "backlogBytes": _NUMBER,
        "deduplication": _CHOICE,
    },
)
_UNTOLD: Final = ("not-allowed", "not-supported")


class TopicViews:
    """The views of `/topics`."""

    def __init__(
        self,
        access: Access,
        topics: Topics,
        rights: Rights,
        topic_name: Callable[[str], TopicName],
    ) -> None:
        self._access = access
        self._topics = topics
        self._rights = rights
        self._topic_name = topic_name

    def blueprint(self) -> Blueprint:
        """Return the routes."""
        routes = Blueprint("topics", __name__)
        routes.get("/topics")(self.names)
        routes.get("/topics/listAll")(self.list_all)
        routes.get("/topics/<topic>")(self.describe)
        routes.post("/topics/create")(self.create)
        routes.delete("/topics/<topic>")(self.delete)
        return routes

    @operation(answers=answers_json(shape({"topics": array(TEXT)}), "The names."))
    def names(self) -> Response:
        """Answer the names of the topics that the caller may use."""
        principal = self._access.principal(request.environ)
        return forms.answer({"topics": [info.topic.local for info in self._visible(principal)]})

    @operation(
        answers=answers_json(
            shape({"topics": array(shape({"topicName": TEXT, "owner": TEXT, "txenabled": _FLAG}))}),
            "The topics.",
        )
    )
    def list_all(self) -> Response:
        """Answer the same topics with their owners."""
        visible = self._visible(self._access.principal(request.environ))
        rights = self._rights.all()
        topics = [
            {
                "topicName": info.topic.local,
                "owner": (known := rights.get(str(info.topic), NOBODY)).owner,
                "txenabled": _transactional(info, known),
            }
            for info in visible
        ]
        return forms.answer({"topics": topics})

    @operation(answers=answers_json(_DETAILS, "The topic."), fails=(*TOPIC, *STORE, *_UNTOLD))
    def describe(self, topic: str) -> Response:
        """Answer what a topic is."""
        principal, name = self._access.principal(request.environ), self._topic_name(topic)
        self._access.demand(principal, name, Right.VIEW)
        info = self._topics.described(name).info
        return forms.answer(self._details(info, self._rights.read(name)))

    @operation(
        body=Body(
            {JSON: _NEW},
            "Numbers and booleans may be sent as text; other fields are refused.",
            examples={JSON: {"topicName": "orders", "partitionCount": 4}},
        ),
        answers={
            200: Reply("The topic, which now exists.", {JSON: _DETAILS}),
            204: Reply("The topic exists already, and is left as it is."),
        },
        fails=(*TOPIC, *STORE, *_UNTOLD, "topic-exists", "conflict"),
    )
    def create(self) -> Response:
        """Create a topic, which is then its creator's."""
        principal = self._access.principal(request.environ)
        wish = forms.fields(request.environ, FIELDS)
        rights = TopicRights(
            principal.name,
            description=forms.text(wish, "topicDescription", ""),
            transactional=forms.flag(wish, "transactionEnabled") or False,
        )
        new = NewTopic(
            self._topic_name(forms.text(wish, "topicName").replace("%", "%25")),
            forms.number(wish, "partitionCount"),
            Policies(
                forms.number(wish, "retentionMs"),
                forms.number(wish, "retentionBytes"),
                forms.number(wish, "backlogBytes"),
                forms.flag(wish, "deduplication"),
                forms.number(wish, "replicationCount"),
            ),
            _properties(rights),
        )
        self._access.demand(principal, new.topic, Right.CREATE)
        self._topics.check(new)
        made = self._rights.create(
            new.topic,
            rights,
            lambda: self._topics.exists(new.topic),
            lambda: self._topics.create(new),
        )
        if not made:
            return Response(status=204)
        # As it has become: partitions may be a default, and copies are at most one a server.
        return forms.answer(self._details(self._topics.described(new.topic).info, rights))

    @operation(
        answers={200: Reply("The topic is deleted.", {HTML: TEXT})},
        fails=(*TOPIC, *STORE, *_UNTOLD, "conflict"),
    )
    def delete(self, topic: str) -> Response:
        """Delete a topic with all that is in it."""
        principal, name = self._access.principal(request.environ), self._topic_name(topic)
        self._access.demand(principal, name, Right.DELETE)
        self._rights.delete(name, lambda: self._topics.delete(name))
        return forms.sentence(f"Topic [{name.local}] deleted successfully")

    def _visible(self, principal: Principal) -> list[TopicInfo]:
        home = self._topic_name("x")
        listed = self._topics.listed(home.tenant, home.namespace)
        return [i for i in listed if self._access.allows(principal, i.topic, Right.VIEW)]

    def _details(self, info: TopicInfo, rights: TopicRights) -> dict[str, Any]:
        policies = info.policies
        return {
            "name": info.topic.local,
            "description": rights.description or info.properties.get("description", ""),
            "owner": rights.owner,
            "readerAcl": listed(self._access, info.topic, rights, Right.SUBSCRIBE),
            "writerAcl": listed(self._access, info.topic, rights, Right.PUBLISH),
            "partitionCount": max(1, info.partitions),
            "replicationCount": max(1, policies.replicas or 1),
            "transactionEnabled": _transactional(info, rights),
            "retentionMs": policies.retention_ms,
            "retentionBytes": policies.retention_bytes,
            "backlogBytes": policies.backlog_bytes,
            "deduplication": policies.deduplication,
        }


def listed(access: Access, topic: TopicName, rights: TopicRights, right: Right) -> dict[str, Any]:
    """Return an access list in the original's shape, in which `enabled` is always true.

    A topic with neither owner nor list shows whom the file of permissions names, if there is one.
    """
    own = rights.readers if right is Right.SUBSCRIBE else rights.writers
    users = sorted(own) if own or rights.owner else access.users(topic, right)
    return {"enabled": True, "users": users}


def _transactional(info: TopicInfo, rights: TopicRights) -> bool:
    return rights.transactional or info.properties.get("transactionEnabled") == "true"


def _properties(rights: TopicRights) -> Mapping[str, str]:
    """Return what the store is told, for those who look there; rights are not its business."""
    properties = {"description": rights.description} if rights.description else {}
    return properties | ({"transactionEnabled": "true"} if rights.transactional else {})
