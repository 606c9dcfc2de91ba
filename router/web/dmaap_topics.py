"""The DMaaP Message Router's `/topics`: list, describe, create, delete.

Shapes are those of the original (its API documentation calls them topic management). What it takes
and ignores works here: partitions, deletion; retention is ours. `replicationCount` is taken and has
no effect: a node keeps one copy, Apache Pulsar decides for itself.

Creating a topic that exists answers 204, as in the original, unless it asks for another number of
partitions, which is 409: the original's silence there would be a lie.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson
from flask import Blueprint, Response, request

from router.errors import BadRequestError
from router.model import Policies, Principal, TopicInfo, TopicName
from router.services.manage import NewTopic, Topics
from router.web import intake
from router.web.access import Access, Right

MAX_BODY: Final = 64 * 1024
_WHOLE: Final = re.compile(r"\s*-?[0-9]{1,18}\s*")
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


class TopicViews:
    """The views of `/topics`."""

    def __init__(
        self, access: Access, topics: Topics, topic_name: Callable[[str], TopicName]
    ) -> None:
        self._access = access
        self._topics = topics
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

    def names(self) -> Response:
        """Answer the names of the topics that the caller may use."""
        return _json({"topics": [info.topic.local for info in self._visible(self._principal())]})

    def list_all(self) -> Response:
        """Answer the same topics with their owners."""
        topics = [
            {
                "topicName": info.topic.local,
                "owner": info.properties.get("owner", ""),
                "txenabled": info.properties.get("transactionEnabled") == "true",
            }
            for info in self._visible(self._principal())
        ]
        return _json({"topics": topics})

    def describe(self, topic: str) -> Response:
        """Answer what a topic is."""
        principal, name = self._principal(), self._topic_name(topic)
        if not self._any_right(principal, name):
            self._access.demand(principal, name, Right.SUBSCRIBE)
        return _json(self._details(self._topics.described(name).info))

    def create(self) -> Response:
        """Create a topic."""
        principal = self._principal()
        wish = _fields(intake.body(request.environ, MAX_BODY))
        new = NewTopic(
            self._topic_name(_text(wish, "topicName").replace("%", "%25")),
            _number(wish, "partitionCount"),
            Policies(
                _number(wish, "retentionMs"),
                _number(wish, "retentionBytes"),
                _number(wish, "backlogBytes"),
                _flag(wish, "deduplication"),
            ),
            _properties(wish, principal),
        )
        _number(wish, "replicationCount")
        self._access.demand(principal, new.topic, Right.MANAGE)
        if not self._topics.create(new):
            return Response(status=204)
        info = TopicInfo(new.topic, new.partitions or 0, new.policies, new.properties)
        return _json(self._details(info))

    def delete(self, topic: str) -> Response:
        """Delete a topic with all that is in it."""
        principal, name = self._principal(), self._topic_name(topic)
        self._access.demand(principal, name, Right.MANAGE)
        self._topics.delete(name)
        return Response(f"Topic [{name.local}] deleted successfully", mimetype="text/html")

    def _principal(self) -> Principal:
        environ = request.environ
        return self._access.principal(
            environ.get("HTTP_AUTHORIZATION"), environ.get("REMOTE_ADDR", "")
        )

    def _visible(self, principal: Principal) -> list[TopicInfo]:
        home = self._topic_name("x")
        listed = self._topics.listed(home.tenant, home.namespace)
        return [info for info in listed if self._any_right(principal, info.topic)]

    def _any_right(self, principal: Principal, topic: TopicName) -> bool:
        return any(self._access.allows(principal, topic, right) for right in Right)

    def _details(self, info: TopicInfo) -> dict[str, Any]:
        policies = info.policies
        return {
            "name": info.topic.local,
            "description": info.properties.get("description", ""),
            "owner": info.properties.get("owner", ""),
            "readerAcl": self._acl(info.topic, Right.SUBSCRIBE),
            "writerAcl": self._acl(info.topic, Right.PUBLISH),
            "partitionCount": max(1, info.partitions),
            "replicationCount": 1,
            "transactionEnabled": info.properties.get("transactionEnabled") == "true",
            "retentionMs": policies.retention_ms,
            "retentionBytes": policies.retention_bytes,
            "backlogBytes": policies.backlog_bytes,
            "deduplication": policies.deduplication,
        }

    def _acl(self, topic: TopicName, right: Right) -> dict[str, Any]:
        return {"enabled": self._access.restricted, "users": self._access.users(topic, right)}


def _json(value: object) -> Response:
    return Response(orjson.dumps(value), mimetype="application/json")


def _fields(body: bytes) -> dict[str, Any]:
    try:
        wish = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f"Incorrect JSON object: {error}.") from error
    if not isinstance(wish, dict):
        raise BadRequestError("Incorrect JSON object: expected an object with topicName.")
    for name in wish:
        if name not in FIELDS:
            raise BadRequestError(
                f"Unrecognized field {name[:80]!r}; known are {', '.join(FIELDS)}."
            )
    return wish


def _text(wish: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = wish.get(name, default)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise BadRequestError(f"{name}: expected a text.")
    return value


def _number(wish: Mapping[str, Any], name: str) -> int | None:
    value = wish.get(name)
    if value is None:
        return None
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value < 1 << 63:
        raise BadRequestError(f"{name}: expected a whole number.")
    return value


def _flag(wish: Mapping[str, Any], name: str) -> bool | None:
    value = wish.get(name)
    if isinstance(value, str):
        value = {"true": True, "false": False}.get(value.strip().lower(), value)
    if value is not None and not isinstance(value, bool):
        raise BadRequestError(f"{name}: expected true or false.")
    return value


def _properties(wish: Mapping[str, Any], principal: Principal) -> dict[str, str]:
    properties = {"description": _text(wish, "topicDescription", ""), "owner": principal.name}
    if _flag(wish, "transactionEnabled"):
        properties["transactionEnabled"] = "true"
    return {name: value for name, value in properties.items() if value}
