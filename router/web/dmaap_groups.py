"""The groups of a topic over HTTP: where they stand, moving them, ending them.

The original had no such calls; their answers and refusals follow the other ones of `/topics`.
Looking needs what looking at the topic needs; what changes a group needs the right to manage the
topic, because it decides what others receive.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

import orjson
import structlog
from flask import Blueprint, Response, request

from router.errors import BadReadOptionError
from router.model import Principal, Subscription, TopicName
from router.services.group_details import GroupInspection, shown_target
from router.services.groups import Group, Groups
from router.web.access import Access, Right
from router.web.names import group_name
from router.web.openapi.description import (
    ANY,
    HTML,
    STORE,
    TEXT,
    TOPIC,
    WHOLE,
    Reply,
    Schema,
    answers_json,
    array,
    flag,
    operation,
    shape,
    target,
)
from router.web.parameters import Query

_log = structlog.get_logger(__name__)


_FLAG: Final[Schema] = {"type": "boolean"}
_PART: Final = {"backlog": WHOLE, "consumers": WHOLE}
_ON_PARTITION: Final = array(shape({"partition": WHOLE, **_PART}))
_GROUP: Final = shape({"name": TEXT, **_PART, "durable": _FLAG, "partitions": _ON_PARTITION})
_GROUPS: Final = shape({"topic": TEXT, "groups": array(_GROUP)})
_MOVED: Final = shape({"topic": TEXT, "group": TEXT, "to": ANY})
_COUNTED: Final[Schema] = {"type": ["integer", "null"]}
_DETAILS: Final = shape(
    {"topic": TEXT, "name": TEXT, "backlog": WHOLE, "consumers": WHOLE, "durable": _FLAG}
    | {"partitions": array(shape({"partition": WHOLE, "backlog": WHOLE, "consumers": WHOLE}))},
    {"last_used": _COUNTED, "members": {"type": ["array", "null"]}, "more_members": _FLAG},
)
_UNTOLD: Final = ("not-allowed", "not-supported")


class GroupViews:
    """The views of `/topics/<topic>/groups`."""

    def __init__(
        self,
        access: Access,
        groups: Groups,
        inspection: GroupInspection,
        topic_name: Callable[[str], TopicName],
    ) -> None:
        self._access = access
        self._groups = groups
        self._inspection = inspection
        self._topic_name = topic_name

    def blueprint(self) -> Blueprint:
        """Return the routes."""
        routes = Blueprint("groups", __name__)
        routes.get("/topics/<topic>/groups")(self.listed)
        routes.get("/topics/<topic>/groups/<group>")(self.described)
        routes.post("/topics/<topic>/groups/<group>/reset")(self.reset)
        routes.delete("/topics/<topic>/groups/<group>")(self.delete)
        return routes

    @operation(answers=answers_json(_GROUPS, "The groups."), fails=(*TOPIC, *STORE, *_UNTOLD))
    def listed(self, topic: str) -> Response:
        """Answer what waits for each group, on each partition."""
        principal, name = self._principal(), self._topic_name(topic)
        self._access.demand(principal, name, Right.VIEW)
        groups = [_told(group) for group in self._groups.listed(name)]
        return _json({"topic": name.local, "groups": groups})

    @operation(
        answers=answers_json(_DETAILS, "The group."),
        fails=(*TOPIC, *STORE, *_UNTOLD, "subscription-not-found"),
    )
    def described(self, topic: str, group: str) -> Response:
        """Answer one group: members, and committed position and lease of each partition."""
        principal, name = self._principal(), self._topic_name(topic)
        subscription = Subscription(name, group_name(group))
        self._access.demand(principal, name, Right.VIEW)
        return _json({"topic": name.local} | self._inspection.details(subscription).as_json())

    @operation(
        target("to", "Where the group goes; it has to be there."),
        flag("preview", "Say what would change, and change nothing."),
        answers=answers_json(_MOVED, "The group is moved, or would be."),
        fails=(*TOPIC, *STORE, *_UNTOLD, "subscription-not-found", "subscription-busy"),
    )
    def reset(self, topic: str, group: str) -> Response:
        """Move a group to the beginning, the end, a time or positions; or say what that does."""
        principal, subscription = self._managed(topic, group)
        query = Query(request.environ)
        to, preview = query.target("to"), query.flag("preview", default=False)
        if to is None:
            raise BadReadOptionError("to: say where, such as ?to=earliest.")
        told = {
            "topic": subscription.topic.local,
            "group": subscription.name,
            "to": shown_target(to),
        }
        if preview:
            return _json(told | {"preview": asdict(self._groups.preview(subscription, to))})
        self._groups.reset(subscription, to)
        _log.info("group-reset", **told, user=principal.name)
        return _json(told)

    @operation(
        answers={200: Reply("The group is deleted.", {HTML: TEXT})},
        fails=(*TOPIC, *STORE, *_UNTOLD, "subscription-not-found", "subscription-busy"),
    )
    def delete(self, topic: str, group: str) -> Response:
        """End a group that has no readers."""
        principal, subscription = self._managed(topic, group)
        self._groups.delete(subscription)
        names = {"topic": subscription.topic.local, "group": subscription.name}
        _log.info("group-deleted", **names, user=principal.name)
        told = f"Group [{subscription.name}] of topic [{subscription.topic.local}]"
        return Response(f"{told} deleted successfully", mimetype="text/html")

    def _managed(self, topic: str, group: str) -> tuple[Principal, Subscription]:
        """Return who asks for which group, if they may manage its topic."""
        principal, name = self._principal(), self._topic_name(topic)
        subscription = Subscription(name, group_name(group))
        self._access.demand(principal, name, Right.MANAGE)
        return principal, subscription

    def _principal(self) -> Principal:
        return self._access.principal(request.environ)


def _told(group: Group) -> dict[str, Any]:
    return {
        "name": group.name,
        "backlog": group.backlog,
        "consumers": group.consumers,
        "durable": group.durable,
        "partitions": [
            {"partition": max(one.partition, 0), "backlog": one.backlog, "consumers": one.consumers}
            for one in group.partitions
        ],
    }


def _json(value: object) -> Response:
    return Response(orjson.dumps(value), mimetype="application/json")
