"""What became of a message: its dead letters, and what was done with it, as far as is known."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import structlog

from router.errors import BadNameError, RouterError
from router.model import Position, Principal, Stored, TopicName, TopicStats
from router.services.dead_letters.dead_letter import write_dead_letter_id
from router.services.dead_letters.tracing import TraceBounds, TracedDeadLetter
from router.services.groups import grouped
from router.services.message_history import DISCARDED, REQUEUED, MessageAction
from router.web.access import Right
from router.web.console.context import PageContext

MAX_GROUPS: Final = 8
MAX_PIPELINES: Final = 20
"""Groups, and topics that pipelines name, whose dead letters are looked for."""
_ANOTHER: Final = "a topic that you may not see"

_log = structlog.get_logger(__name__)


class MessageStory:
    """Puts together what is known, for one who may subscribe to the topic of the message."""

    def __init__(self, context: PageContext) -> None:
        self._context = context
        self._services = context.services

    def data(
        self,
        principal: Principal,
        name: TopicName,
        stored: Stored,
        stats: TopicStats | None,
        bounds: TraceBounds,
    ) -> dict[str, Any]:
        """Return `dead_letters`, `searched`, `unsearched`, `whole`, `actions` and `since`.

        `searched` are the dead-letter topics that were looked into, `unsearched` those of them that
        were not read back to the message; `whole`: there are none, and no group or pipeline was
        left out. `since` is the time in ms since which all actions are known, None: none are.
        """
        groups = [] if stats is None else [one.name for one in grouped(stats.subscriptions)]
        pipelines = self._of_pipelines(principal, name)
        named = (groups[:MAX_GROUPS], pipelines[:MAX_PIPELINES])
        topics = self._topics(principal, name, stored.position.partition, named)
        trace = self._services.tracer.trace(name, stored, list(topics), bounds)
        actions, since = self._actions(name, stored.position)
        # What was done with a dead letter that was found is its state.
        found = {str(one.topic) for one in trace.dead_letters}
        own = [
            one
            for one in actions
            if one.action not in {REQUEUED, DISCARDED} or one.topic not in found
        ]
        return {
            "dead_letters": [
                _dead_letter(one, topics[one.topic], actions) for one in trace.dead_letters
            ],
            "searched": [topic.local for topic in topics],
            "unsearched": [topic.local for topic in trace.unsearched],
            "whole": not trace.unsearched and named == (groups, pipelines),
            "actions": [self._action(principal, one) for one in own],
            "since": since,
        }

    def _of_pipelines(self, principal: Principal, name: TopicName) -> list[TopicName]:
        """Return the topics for bad records that pipelines name, and that may be read."""
        found = list[TopicName]()
        for written in self._services.pipelines.dead_letter_topics():
            with suppress(BadNameError):
                topic = TopicName.parse(written, name.tenant, name.namespace)
                # Pages are of topics of one namespace.
                is_here = name == replace(topic, local=name.local)
                if is_here and self._context.may(principal, topic, Right.SUBSCRIBE):
                    found.append(topic)
        return found

    def _topics(
        self,
        principal: Principal,
        name: TopicName,
        partition: int,
        named_by: tuple[Sequence[str], Sequence[TopicName]],
    ) -> dict[TopicName, str]:
        """Return the dead-letter topics of a topic that there are, and that may be read.

        Each with the group that it is of, "" if that is not in its name. `named_by`: groups, and
        the topics of pipelines.
        """
        groups, pipelines = named_by
        named = {f"{name.local}.dlq": ""}
        # Clients that consume partitions one by one name a topic for each.
        for local in dict.fromkeys((name.local, name.partition(partition).local)):
            named |= {f"{local}-{group}-DLQ": group for group in groups}
        found = dict[TopicName, str]()
        for local, group in named.items():
            try:
                topic = TopicName.from_segments(name.domain, name.tenant, name.namespace, local)
            except BadNameError:
                continue  # of a group whose name has other characters
            found[topic] = group
        for topic in pipelines:
            found.setdefault(topic, "")
        if (configured := self._services.dead_letters.configured) is not None:
            found.setdefault(configured, "")
        return {
            topic: group
            for topic, group in found.items()
            if topic != name
            and self._context.may(principal, topic, Right.SUBSCRIBE)
            and self._services.topics.exists(topic)
        }

    def _actions(
        self, name: TopicName, position: Position
    ) -> tuple[list[MessageAction], int | None]:
        try:
            found = self._services.history.find(name, position)
        except RouterError as error:
            _log.warning("message-actions-unknown", topic=str(name), reason=str(error))
            found = None
        return ([], None) if found is None else found

    def _action(self, principal: Principal, one: MessageAction) -> dict[str, Any]:
        topic = TopicName.parse(one.topic)
        seen = self._context.may(principal, topic, Right.VIEW)
        return {
            "action": one.action,
            "topic": topic.local if seen else _ANOTHER,
            "user": one.user,
            "at": one.at,
        }


def _dead_letter(one: TracedDeadLetter, group: str, actions: list[MessageAction]) -> dict[str, Any]:
    """Return a dead letter; `state`: waiting, requeued, discarded, or "requeued or discarded"."""
    done = [act for act in actions if act.action in {REQUEUED, DISCARDED}]
    last = next((act.action for act in reversed(done) if act.topic == str(one.topic)), "")
    state = "waiting" if one.waits else last or f"{REQUEUED} or {DISCARDED}"
    return {
        "topic": one.topic.local,
        "id": write_dead_letter_id(one.stored.position),
        "at": one.stored.publish_time,
        "group": one.origin.group or group,
        "pipeline": one.origin.pipeline,
        "reason": one.origin.reason,
        "state": state,
    }
