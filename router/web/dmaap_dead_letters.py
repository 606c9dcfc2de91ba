"""Dead letters over HTTP: what waits in a dead-letter topic, requeueing it, discarding it.

Looking needs the right to read the topic. Requeueing and discarding move a group of the topic,
which needs the right to manage it; requeueing publishes too, and needs that right on each topic
that a letter came from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import orjson
import structlog
from flask import Blueprint, Response, request

from router.errors import BadReadOptionError, ForbiddenError
from router.model import Principal, TopicName
from router.services.dead_letters import (
    MAX_BATCH,
    Chosen,
    DeadLetters,
    outcome_told,
    page_told,
    read_letters,
    read_marks,
)
from router.services.manage import Topics
from router.web.access import Access, Right
from router.web.openapi.description import (
    OBJECT,
    STORE,
    TEXT,
    TOPIC,
    WHOLE,
    Schema,
    answers_json,
    array,
    flag,
    number,
    operation,
    shape,
    text,
)
from router.web.parameters import MAX_NUMBER, MILLISECONDS, Query

_COUNTED: Final[Schema] = {"type": ["integer", "null"], "minimum": 0}
_TOPICS: Final = shape(
    {"topics": array(shape({"topic": TEXT, "waiting": _COUNTED, "stored": _COUNTED}))}
)
_TOLD: Final[Schema] = {"type": ["string", "null"]}
_LETTER: Final = shape(
    {"id": TEXT, "from": _TOLD, "from_partition": TEXT, "from_position": TEXT}
    | {"reason": TEXT, "obstacle": TEXT, "message": OBJECT}
)
_FLAG: Final[Schema] = {"type": "boolean"}
_WAITING: Final = shape({"topic": TEXT, "letters": array(_LETTER), "behind": TEXT, "more": _FLAG})
_DONE: Final = shape(
    {"topic": TEXT, "done": WHOLE, "refused": OBJECT, "failure": TEXT}
    | {"more": _FLAG, "behind": TEXT, "before": _COUNTED}
)
_UNTOLD: Final = ("not-allowed", "not-supported")
_BEHIND: Final = text("behind", "Where the last call ended, as it answered.")
_BEFORE: Final = number("before", "Letters that were stored by then, in ms since 1970.")
_CHOOSING: Final = (
    text("position", "Letters by their `id`, with commas between them."),
    flag("all", "All letters that wait, some at a time."),
    number("limit", f"At most so many, up to {MAX_BATCH}."),
    _BEHIND,
    _BEFORE,
)

_log = structlog.get_logger(__name__)


class DeadLetterViews:
    """The views of `/dead-letters`."""

    def __init__(
        self,
        access: Access,
        topics: Topics,
        letters: DeadLetters,
        topic_name: Callable[[str], TopicName],
    ) -> None:
        self._access = access
        self._topics = topics
        self._letters = letters
        self._topic_name = topic_name

    def blueprint(self) -> Blueprint:
        """Return the routes."""
        routes = Blueprint("dead_letters", __name__)
        routes.get("/dead-letters")(self.listed)
        routes.get("/dead-letters/<topic>")(self.waiting)
        routes.post("/dead-letters/<topic>/requeue")(self.requeue)
        routes.post("/dead-letters/<topic>/discard")(self.discard)
        return routes

    @operation(answers=answers_json(_TOPICS, "The dead-letter topics."))
    def listed(self) -> Response:
        """Answer the dead-letter topics that the caller may see, with how many letters wait."""
        principal, home = self._principal(), self._topic_name("x")
        listed = self._topics.listed(home.tenant, home.namespace)
        names = [
            name
            for name in self._letters.among(listed)
            if self._access.allows(principal, name, Right.VIEW)
        ]
        return _json({"topics": self._letters.counted(names)})

    @operation(
        number("limit", f"At most so many, up to {MAX_BATCH}."),
        _BEHIND,
        _BEFORE,
        answers=answers_json(_WAITING, "Letters that wait."),
        fails=(*TOPIC, *STORE, *_UNTOLD),
    )
    def waiting(self, topic: str) -> Response:
        """Answer letters that wait."""
        principal, name = self._principal(), self._topic_name(topic)
        self._access.demand(principal, name, Right.SUBSCRIBE)
        page = self._letters.look(name, self._all(Query(request.environ), None))
        return _json({"topic": name.local} | page_told(page))

    @operation(
        *_CHOOSING,
        answers=answers_json(_DONE, "Letters are published again."),
        fails=(*TOPIC, *STORE, *_UNTOLD, "subscription-busy"),
    )
    def requeue(self, topic: str) -> Response:
        """Publish letters to the topics that they came from."""
        principal, name = self._principal(), self._topic_name(topic)
        for right in (Right.SUBSCRIBE, Right.MANAGE):
            self._access.demand(principal, name, right)
        chosen = self._chosen()
        outcome = self._letters.requeue(name, chosen, publishing(self._access, principal))
        _log.info("dead-letters-requeue", topic=name.local, count=outcome.done, user=principal.name)
        return _json({"topic": name.local} | outcome_told(outcome, chosen))

    @operation(
        *_CHOOSING,
        answers=answers_json(_DONE, "Letters wait no more."),
        fails=(*TOPIC, *STORE, *_UNTOLD, "subscription-busy"),
    )
    def discard(self, topic: str) -> Response:
        """Have letters wait no more."""
        principal, name = self._principal(), self._topic_name(topic)
        self._access.demand(principal, name, Right.MANAGE)
        chosen = self._chosen()
        outcome = self._letters.discard(name, chosen)
        _log.info("dead-letters-discard", topic=name.local, count=outcome.done, user=principal.name)
        return _json({"topic": name.local} | outcome_told(outcome, chosen))

    def _chosen(self) -> Chosen:
        query = Query(request.environ)
        whole = self._all(query, self._letters.now_ms())
        every, named = query.flag("all", default=False), query.text("position")
        if named is not None:
            return Chosen(read_letters("position", named))
        if not every:
            raise BadReadOptionError(
                "position: name letters, such as ?position=5:17:0, or say ?all."
            )
        return whole

    def _all(self, query: Query, now_ms: int | None) -> Chosen:
        before = query.number("before", -1, MAX_NUMBER, MILLISECONDS)
        limit = query.number("limit", MAX_BATCH, MAX_BATCH)
        after = read_marks("behind", query.text("behind") or "")
        return Chosen(None, after, now_ms if before < 0 else before, limit)

    def _principal(self) -> Principal:
        return self._access.principal(request.environ)


def publishing(access: Access, principal: Principal) -> Callable[[TopicName], bool]:
    """Return what says whether a principal may publish to a topic."""

    def may(topic: TopicName) -> bool:
        try:
            access.demand(principal, topic, Right.PUBLISH)
        except ForbiddenError:
            return False
        return True

    return may


def _json(value: object) -> Response:
    return Response(orjson.dumps(value), mimetype="application/json")
