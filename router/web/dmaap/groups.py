"""The groups of a topic over HTTP: where they stand, moving them, ending them.

The original had no such calls; their answers and refusals follow the other ones of `/topics`.
Looking needs what looking at the topic needs; what changes a group needs the right to manage the
topic, because it decides what others receive.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import structlog
from flask import Response, request

from router.errors import BadReadOptionError
from router.model import Principal, Subscription
from router.services.dead_letters.dead_letter import MAX_BATCH, read_dead_letter_ids, read_marks
from router.services.dead_letters.service import DeadLetters, DeadLetterSelection
from router.services.group_details import GroupInspection, shown_target
from router.services.groups import TopicGroup, TopicGroups
from router.services.manage import TopicManagement
from router.web import forms
from router.web.access import Right
from router.web.openapi import description as api
from router.web.requests import CHANGES_NOTHING, MAX_NUMBER, MILLISECONDS, Query, group_name
from router.web.topic_access import TopicAccess

_log = structlog.get_logger(__name__)


_PART: Final = {"backlog": int, "consumers": int}
_ON_PARTITION: Final = [api.shape({"partition": int, **_PART})]
_GROUP: Final = api.shape({"name": str, **_PART, "durable": bool, "partitions": _ON_PARTITION})
_GROUPS: Final = api.shape({"topic": str, "groups": [_GROUP]})
_MOVED: Final = api.shape({"topic": str, "group": str, "to": object})
_DETAILS: Final = api.shape(
    {"topic": str, "name": str, "backlog": int, "consumers": int, "durable": bool}
    | {"partitions": [api.shape({"partition": int, "backlog": int, "consumers": int})]},
    {"last_used": int | None, "members": list | None, "more_members": bool},
)
_FAILS: Final = (*api.TOPIC, *api.STORE, "not-allowed", "not-supported")
_GROUP_FAILS: Final = (*_FAILS, "subscription-not-found")
_COUNTED: Final[api.Schema] = {"type": ["integer", "null"], "minimum": 0}
_TOPICS: Final = api.shape(
    {"topics": [api.shape({"topic": str, "waiting": _COUNTED, "stored": _COUNTED})]}
)
_DEAD_LETTER: Final = api.shape(
    {"id": str, "from": str | None, "from_partition": str, "from_position": str}
    | {"reason": str, "obstacle": str, "message": dict}
)
_WAITING: Final = api.shape({"topic": str, "letters": [_DEAD_LETTER], "behind": str, "more": bool})
_DONE: Final = api.shape(
    {"topic": str, "done": int, "refused": dict, "failure": str}
    | {"more": bool, "behind": str, "before": _COUNTED}
)
_PAGE: Final = (
    api.number("limit", f"At most so many, up to {MAX_BATCH}."),
    api.text("behind", "Where the last call ended, as it answered."),
    api.number("before", "Letters that were stored by then, in ms since 1970."),
)
DEAD_LETTER_ID: Final = "[0-9]{1,9}:[0-9]{1,9}:[0-9]{1,4}(:[0-9]{1,4})?"
DEAD_LETTER_IDS: Final = rf"^({DEAD_LETTER_ID}(,{DEAD_LETTER_ID})*)?$"
_CHOOSING: Final = (
    api.text("position", "Letters by their `id`, with commas between them.", DEAD_LETTER_IDS),
    api.flag("all", "All letters that wait, some at a time."),
    *_PAGE,
)


@dataclass(frozen=True, slots=True)
class GroupViews:
    """The views of `/topics/<topic>/groups`."""

    callers: TopicAccess
    groups: TopicGroups
    inspection: GroupInspection

    @api.reads("/topics/<topic>/groups", _GROUPS, "The groups.", fails=_FAILS)
    def listed(self, topic: str) -> Response:
        """Answer what waits for each group, on each partition."""
        _, name = self.callers.authorized(topic, Right.VIEW)
        groups = [_group_json(group) for group in self.groups.listed(name)]
        return forms.answer({"topic": name.local, "groups": groups})

    @api.reads("/topics/<topic>/groups/<group>", _DETAILS, "The group.", fails=_GROUP_FAILS)
    def described(self, topic: str, group: str) -> Response:
        """Answer one group: members, and committed position and lease of each partition."""
        _, name = self.callers.authorized(topic, Right.VIEW)
        subscription = Subscription(name, group_name(group))
        return forms.answer({"topic": name.local} | self.inspection.details(subscription).as_json())

    @api.operation(
        "POST /topics/<topic>/groups/<group>/reset",
        api.required(api.target("to", "Where the group goes.")),
        api.flag("preview", "Say what would change, and change nothing."),
        answers=api.answers_json(_MOVED, "The group is moved, or would be."),
        fails=(*_GROUP_FAILS, "subscription-busy"),
    )
    def reset(self, topic: str, group: str) -> Response:
        """Move a group to the beginning, the end, a time or positions; or say what that does."""
        principal, subscription = self._managed(topic, group)
        query = Query(request.environ)
        to, preview = query.target("to"), query.flag("preview", default=False)
        if to is None:
            raise BadReadOptionError("to: say where, such as ?to=earliest.")
        fields = {
            "topic": subscription.topic.local,
            "group": subscription.name,
            "to": shown_target(to),
        }
        if preview:
            request.environ[CHANGES_NOTHING] = True
            return forms.answer(fields | {"preview": asdict(self.groups.preview(subscription, to))})
        self.groups.reset(subscription, to)
        _log.info("group-reset", **fields, user=principal.name)
        return forms.answer(fields)

    @api.operation(
        "DELETE /topics/<topic>/groups/<group>",
        answers={200: api.ReplyDescription("The group is deleted.", {api.HTML: str})},
        fails=(*_GROUP_FAILS, "subscription-busy"),
    )
    def delete(self, topic: str, group: str) -> Response:
        """End a group that has no readers."""
        principal, subscription = self._managed(topic, group)
        self.groups.delete(subscription)
        names = {"topic": subscription.topic.local, "group": subscription.name}
        _log.info("group-deleted", **names, user=principal.name)
        fields = f"Group [{subscription.name}] of topic [{subscription.topic.local}]"
        return Response(f"{fields} deleted successfully", mimetype="text/html")

    def _managed(self, topic: str, group: str) -> tuple[Principal, Subscription]:
        principal, name = self.callers.authorized(topic, Right.MANAGE)
        return principal, Subscription(name, group_name(group))


def _group_json(group: TopicGroup) -> dict[str, Any]:
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


@dataclass(frozen=True, slots=True)
class DeadLetterViews:
    """The views of `/dead-letters`."""

    callers: TopicAccess
    topics: TopicManagement
    dead_letters: DeadLetters

    @api.reads("/dead-letters", _TOPICS, "The dead-letter topics.")
    def listed(self) -> Response:
        """Answer the dead-letter topics that the caller may see, with how many messages wait."""
        visible = self.callers.visible(self.callers.principal(), self.topics)
        names = self.dead_letters.among(visible)
        return forms.answer({"topics": self.dead_letters.counted(names)})

    @api.reads("/dead-letters/<topic>", _WAITING, "Letters that wait.", *_PAGE, fails=_FAILS)
    def waiting(self, topic: str) -> Response:
        """Answer dead letters that wait."""
        _, name = self.callers.authorized(topic, Right.SUBSCRIBE)
        page = self.dead_letters.page(name, self._all(Query(request.environ), None))
        return forms.answer({"topic": name.local} | page.as_json())

    @api.operation(
        "POST /dead-letters/<topic>/requeue",
        *_CHOOSING,
        answers=api.answers_json(_DONE, "Letters are published again."),
        fails=(*_FAILS, "subscription-busy"),
    )
    def requeue(self, topic: str) -> Response:
        """Publish dead letters to the topics that they came from."""
        principal, name = self.callers.authorized(topic, Right.SUBSCRIBE, Right.MANAGE)
        chosen = self._chosen()
        outcome = self.dead_letters.requeue(
            name,
            chosen,
            lambda to: self.callers.may(principal, to, Right.PUBLISH),
            principal.name,
        )
        _log.info("dead-letters-requeue", topic=name.local, count=outcome.done, user=principal.name)
        return forms.answer({"topic": name.local} | outcome.as_json(chosen))

    @api.operation(
        "POST /dead-letters/<topic>/discard",
        *_CHOOSING,
        answers=api.answers_json(_DONE, "Letters wait no more."),
        fails=(*_FAILS, "subscription-busy"),
    )
    def discard(self, topic: str) -> Response:
        """Discard dead letters."""
        principal, name = self.callers.authorized(topic, Right.MANAGE)
        chosen = self._chosen()
        outcome = self.dead_letters.discard(
            name, chosen, lambda to: self.callers.may(principal, to, Right.VIEW), principal.name
        )
        _log.info("dead-letters-discard", topic=name.local, count=outcome.done, user=principal.name)
        return forms.answer({"topic": name.local} | outcome.as_json(chosen))

    def _chosen(self) -> DeadLetterSelection:
        query = Query(request.environ)
        whole = self._all(query, self.dead_letters.now_ms())
        every, named = query.flag("all", default=False), query.text("position")
        if named:
            return DeadLetterSelection(read_dead_letter_ids("position", named))
        if not every:
            raise BadReadOptionError(
                "position: name letters, such as ?position=5:17:0, or say ?all."
            )
        return whole

    def _all(self, query: Query, now_ms: int | None) -> DeadLetterSelection:
        before = query.number("before", -1, MAX_NUMBER, MILLISECONDS)
        limit = query.number("limit", MAX_BATCH, MAX_BATCH)
        after = read_marks("behind", query.text("behind") or "")
        return DeadLetterSelection(None, after, now_ms if before < 0 else before, limit)
