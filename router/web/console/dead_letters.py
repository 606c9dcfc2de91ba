"""The pages of dead-letter topics: how many messages wait, why, requeueing and discarding."""

from __future__ import annotations

from typing import Any, Final

import structlog
from flask import Response, request

from router.errors import BadRequestError, NotAllowedError, NotSupportedError
from router.model import Principal, TopicName
from router.services.dead_letters.dead_letter import (
    MAX_BATCH,
    DeadLetter,
    read_dead_letter_ids,
    read_marks,
    write_dead_letter_id,
    write_marks,
)
from router.services.dead_letters.service import GROUP, DeadLetterOutcome, DeadLetterSelection
from router.services.message_details import headers_of
from router.web.access import Right
from router.web.console import commands, shown
from router.web.console.context import PageViews, words
from router.web.console.fields import Fields
from router.web.console.message_page import delivery_notes
from router.web.console.pages import WHOLE_NUMBER, action, page, wants_json_page
from router.web.openapi.description import number, one_of, text
from router.web.requests import CHANGES_NOTHING, Query

PATH: Final = "/console/dead-letters"
MAX_SHOWN_DEAD_LETTERS: Final = 50
SHOWN_CHARACTERS: Final = 2_000
MAX_TOPICS: Final = 200
"""Topics of the page: each is described by the store."""
MAX_DONE: Final = 1_000_000_000
CHECKBOX_PREFIX: Final = "letter-"
"""Begins the names of the boxes that choose dead letters."""
_FIELDS: Final = ("which", "behind", "before")
_KINDS: Final = {"which": one_of(["selected", "all"]), "before": WHOLE_NUMBER}
_NOT_AVAILABLE: Final = (
    "This store does not say where a group stands, so that no letter can be requeued"
)


_log = structlog.get_logger(__name__)


class DeadLetterPageViews(PageViews):
    """The views of `/console/dead-letters`."""

    @page(f"GET {PATH}")
    def dead_letters(self) -> Response:
        """Answer the dead-letter topics that the caller may see, with how many messages wait."""
        principal = self._context.principal()
        found = self._services.dead_letters.among(
            self._context.visible(principal, self._services.topics)
        )
        data = {
            "topics": self._services.dead_letters.counted(found[:MAX_TOPICS]),
            "left_out": max(0, len(found) - MAX_TOPICS),
            "commands": [
                commands.curl(principal, commands.url("dead-letters")),
                commands.router("dead-letters", "list"),
            ],
        }
        return self._context.pages.answer("dead_letters.html", data)

    @page(
        f"GET {PATH}/<topic>",
        text("behind", "Where the last page ended."),
        number("done", "How many letters an action did."),
        number("left", "How many it could not do."),
    )
    def topic_page(self, topic: str) -> Response:
        """Answer the dead letters of a topic that wait, with why they are there."""
        principal, name = self._context.authorized(topic, Right.SUBSCRIBE)
        query = Query(request.environ)
        after = read_marks("behind", words(query, "behind"))
        done, left = query.number("done", -1, MAX_DONE), query.number("left", 0, MAX_DONE)
        managed = self._context.may(principal, name, Right.MANAGE)
        data: dict[str, Any] = {
            "topic": name.local,
            "group": GROUP,
            "waiting": None,
            "letters": [],
            "behind": "",
            "more": False,
            "no_change": "" if managed else "You may not manage this topic.",
            "status": "" if done < 0 else _done(done, left),
            "commands": _lines(principal, name),
        }
        try:
            found = self._services.dead_letters.page(
                name, DeadLetterSelection(None, after, limit=MAX_SHOWN_DEAD_LETTERS)
            )
            counted = self._services.dead_letters.count(name)
        except (NotSupportedError, NotAllowedError) as error:
            data["no_change"] = f"{_NOT_AVAILABLE}: {error}."
            return self._context.pages.answer("dead_letter_topic.html", data)
        data |= {
            "waiting": None if counted is None else counted[0],
            "letters": [_shown(dead_letter) for dead_letter in found.dead_letters],
            "behind": write_marks(found.after),
            "more": found.more,
        }
        return self._context.pages.answer("dead_letter_topic.html", data)

    @action(
        f"POST {PATH}/<topic>/requeue", optional=_FIELDS, kinds=_KINDS, fails=("subscription-busy",)
    )
    def requeue(self, topic: str) -> Response:
        """Publish dead letters to the topics that they came from."""
        principal, name = self._context.authorized(topic, Right.SUBSCRIBE, Right.MANAGE)
        chosen = self._chosen()
        outcome = self._services.dead_letters.requeue(
            name,
            chosen,
            lambda to: self._context.may(principal, to, Right.PUBLISH),
            principal.name,
        )
        return self._answer(name, chosen, outcome, "requeue")

    @action(
        f"POST {PATH}/<topic>/discard",
        optional=(*_FIELDS, "confirm"),
        kinds=_KINDS,
        fails=("subscription-busy",),
    )
    def discard(self, topic: str) -> Response:
        """Discard dead letters; a form without script confirms that all of them are meant."""
        principal, name = self._context.authorized(topic, Right.MANAGE)
        chosen = self._chosen()
        confirmed = bool(Fields(request.environ).text("confirm", ""))
        if chosen.positions is None and not confirmed and not wants_json_page(request.environ):
            request.environ[CHANGES_NOTHING] = True
            counted = self._services.dead_letters.count(name)
            data = {"topic": name.local, "waiting": None if counted is None else counted[0]}
            return self._context.pages.answer("dead_letter_discard.html", data)
        outcome = self._services.dead_letters.discard(
            name,
            chosen,
            lambda to: self._context.may(principal, to, Right.VIEW),
            principal.name,
        )
        return self._answer(name, chosen, outcome, "discard")

    def _chosen(self) -> DeadLetterSelection:
        fields = Fields(request.environ)
        which = fields.text("which", "selected")
        if which == "all":
            before = fields.number("before")
            after = read_marks("behind", fields.text("behind", ""))
            return DeadLetterSelection(
                None, after, self._services.dead_letters.now_ms() if before is None else before
            )
        named = [name.removeprefix(CHECKBOX_PREFIX) for name in fields.names(CHECKBOX_PREFIX)]
        if which != "selected" or not named:
            raise BadRequestError("which: choose letters, or all of them.")
        return DeadLetterSelection(read_dead_letter_ids("letter", ",".join(named[:MAX_BATCH])))

    def _answer(
        self, name: TopicName, chosen: DeadLetterSelection, outcome: DeadLetterOutcome, what: str
    ) -> Response:
        user = self._context.principal()
        _log.info(f"dead-letters-{what}", topic=name.local, count=outcome.done, user=user.name)
        lines = _doing(user, name, chosen, what)
        data = {"topic": name.local, "commands": lines} | outcome.as_json(chosen)
        path = commands.path("console", "dead-letters", name.local)
        left = len(outcome.refused) + bool(outcome.failure)
        return self._context.pages.done(data, path, done=str(outcome.done), left=str(left))


def _shown(dead_letter: DeadLetter) -> dict[str, Any]:
    """Return a dead letter as a page shows it; bytes that are no UTF-8 are in hexadecimal."""
    message, came = dead_letter.stored.message, dead_letter.origin
    value, plain = shown.text(message.value)
    return {
        "id": write_dead_letter_id(dead_letter.stored.position),
        "time": shown.at(dead_letter.stored.publish_time),
        "stored": dead_letter.stored.publish_time,
        "from": None if came.topic is None else came.topic.local,
        "from_partition": came.partition,
        "from_position": came.position,
        "reason": came.reason,
        "obstacle": dead_letter.obstacle,
        "key": None if message.key is None else shown.text(message.key)[0],
        "value": value[:SHOWN_CHARACTERS],
        "left_out": max(0, len(value) - SHOWN_CHARACTERS),
        "text": plain,
        "headers": dict(headers_of(message).pairs),
        "notes": delivery_notes(message),
    }


def _done(done: int, left: int) -> str:
    rest = f" {left} failed and still wait." if left else ""
    return f"{done} done.{rest}"


def _url(name: TopicName) -> str:
    return commands.url("dead-letters", name.local)


def _lines(principal: Principal, name: TopicName) -> list[str]:
    lines = [
        commands.curl(principal, _url(name)),
        commands.router("dead-letters", "show", name.local),
    ]
    for what in ("requeue", "discard"):
        lines += _doing(principal, name, DeadLetterSelection(), what)
    return lines


def _doing(
    principal: Principal, name: TopicName, chosen: DeadLetterSelection, what: str
) -> list[str]:
    places = ",".join(map(write_dead_letter_id, chosen.positions or ()))
    query, options = (
        (f"position={places}", ["--position", places]) if places else ("all", ["--all"])
    )
    return [
        commands.curl(principal, f"{_url(name)}/{what}?{query}", "-X", "POST"),
        commands.router("dead-letters", what, name.local, *options),
    ]
