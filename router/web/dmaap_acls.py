"""The DMaaP Message Router's access lists: who may publish to a topic, and who may read it.

Lists are kept whether they count or not (`acl.enforce`), unlike in the original, which answers 200
and keeps nothing until it is told to. So they can be made ready before they are switched on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from flask import Blueprint, Response, request

from router.model import TopicName
from router.web import forms, intake
from router.web.access import Access, AccessLists, Right
from router.web.dmaap_topics import listed
from router.web.names import consumer_name
from router.web.openapi.description import (
    HTML,
    STORE,
    TEXT,
    TOPIC,
    Reply,
    answers_json,
    array,
    operation,
    shape,
)

_LIST: Final = shape({"enabled": {"type": "boolean"}, "users": array(TEXT)})
_CHANGED: Final = {200: Reply("The list is changed.", {HTML: TEXT})}
_CHANGE_FAILS: Final = (*TOPIC, *STORE, "conflict", "read-body-too-large")


class AclViews:
    """The views of `/topics/{topic}/producers` and `/topics/{topic}/consumers`."""

    def __init__(
        self, access: Access, lists: AccessLists, topic_name: Callable[[str], TopicName]
    ) -> None:
        self._access = access
        self._lists = lists
        self._topic_name = topic_name

    def blueprint(self) -> Blueprint:
        """Return the routes."""
        routes = Blueprint("acls", __name__)
        routes.get("/topics/<topic>/producers")(self.producers)
        routes.put("/topics/<topic>/producers/<key>")(self.permit_producer)
        routes.delete("/topics/<topic>/producers/<key>")(self.revoke_producer)
        routes.get("/topics/<topic>/consumers")(self.consumers)
        routes.put("/topics/<topic>/consumers/<key>")(self.permit_consumer)
        routes.delete("/topics/<topic>/consumers/<key>")(self.revoke_consumer)
        return routes

    @operation(answers=answers_json(_LIST, "The list."), fails=(*TOPIC, *STORE))
    def producers(self, topic: str) -> Response:
        """Answer who may publish."""
        return self._shown(topic, Right.PUBLISH)

    @operation(answers=answers_json(_LIST, "The list."), fails=(*TOPIC, *STORE))
    def consumers(self, topic: str) -> Response:
        """Answer who may read."""
        return self._shown(topic, Right.SUBSCRIBE)

    @operation(answers=_CHANGED, fails=_CHANGE_FAILS)
    def permit_producer(self, topic: str, key: str) -> Response:
        """Let a key publish."""
        self._change(topic, key, reader=False, on_list=True)
        return forms.sentence("Write access has been granted to publisher.")

    @operation(answers=_CHANGED, fails=_CHANGE_FAILS)
    def revoke_producer(self, topic: str, key: str) -> Response:
        """Let a key publish no more."""
        self._change(topic, key, reader=False, on_list=False)
        return forms.sentence("Write access has been revoked for publisher.")

    @operation(answers=_CHANGED, fails=_CHANGE_FAILS)
    def permit_consumer(self, topic: str, key: str) -> Response:
        """Let a key read."""
        name, consumer = self._change(topic, key, reader=True, on_list=True)
        return forms.sentence(
            f"Read access has been granted for consumer [{consumer}] for topic [{name.local}]."
        )

    @operation(answers=_CHANGED, fails=_CHANGE_FAILS)
    def revoke_consumer(self, topic: str, key: str) -> Response:
        """Let a key read no more."""
        name, consumer = self._change(topic, key, reader=True, on_list=False)
        return forms.sentence(
            f"Read access has been revoked for consumer [{consumer}] for topic [{name.local}]."
        )

    def _shown(self, topic: str, right: Right) -> Response:
        principal, name = self._access.principal(request.environ), self._topic_name(topic)
        rights = self._lists.rights(principal, name)
        return forms.answer(listed(self._access, name, rights, right))

    def _change(
        self, topic: str, key: str, *, reader: bool, on_list: bool
    ) -> tuple[TopicName, str]:
        principal, name = self._access.principal(request.environ), self._topic_name(topic)
        other = consumer_name(key, "key")
        intake.no_body(request.environ, forms.MAX_BODY)
        self._lists.change(principal, name, other, reader=reader, listed=on_list)
        return name, other
