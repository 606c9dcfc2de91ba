"""The page of one message: its value in several forms, headers, groups, and sending it again."""

from __future__ import annotations

import base64
from dataclasses import replace
from json import dumps
from typing import Any, Final

import structlog
from flask import Response, request

from router.clocks.steps import run_blocking
from router.errors import (
    BadRequestError,
    NotAllowedError,
    NotSupportedError,
    RouterError,
    ValueNotFoundError,
)
from router.model import UNDECODED, Message, Position, Principal, Stored, TopicName, TopicStats
from router.services import message_details as details
from router.services import messagepack
from router.services.dead_letters.dead_letter import ORIGINAL_TIME, origin
from router.services.dead_letters.tracing import LONG, QUICK
from router.services.message_history import SENT_AGAIN
from router.services.position_texts import write_position
from router.services.publish import timeouts_of_publish
from router.web.access import Right
from router.web.console import commands, shown
from router.web.console.context import PageContext, PageViews
from router.web.console.fields import Fields
from router.web.console.masking import REASON, VisibleMessage
from router.web.console.message_story import MessageStory
from router.web.console.message_tab import position_url
from router.web.console.pages import FAILS, HEADERS, NO_STORE, SIGN_IN, action, page
from router.web.console.publish_tab import PUBLISH_FAILS, read_headers
from router.web.openapi.description import ReplyDescription, choice, number, operation
from router.web.pulsar_rest import ids
from router.web.requests import Query, decode, source_of

FORMS: Final = ("auto", "schema", "json", "messagepack", "text", "hex", "base64")
MAX_CHARACTERS: Final = 1_000_000
"""Of a value in a page; a download has all of it."""
MAX_NODES: Final = 5_000
RAW: Final = "application/octet-stream"
MAX_SENT: Final = 1_000_000
MAX_TIME_DIGITS: Final = 18
"""Of a time that a header says: any text is a header, and Python refuses to read 5,000 digits."""
PROTOCOLS: Final = {"http": "HTTP", "kafka": "Kafka", "nats": "NATS", "pulsar": "Pulsar"}
TRACES: Final = {"quick": QUICK, "long": LONG}
TEXT_SCHEMAS: Final = ("JSON", "STRING")
"""Schemas whose values people can write."""
_FAILS: Final = (*FAILS, "value-not-found", "read-failed")

_log = structlog.get_logger(__name__)


class MessagePageViews(PageViews):
    """The views of `/console/topics/<topic>/messages/<message>`."""

    def __init__(self, context: PageContext) -> None:
        super().__init__(context)
        self._story = MessageStory(context)

    @page(
        "GET /console/topics/<topic>/messages/<message>",
        choice("as", FORMS, "How the value is shown."),
        number("sent", "How many messages were sent, which the page says."),
        choice("letters", tuple(TRACES), "How long the dead letters of the message are searched."),
        fails=_FAILS,
    )
    def message(self, topic: str, message: str) -> Response:
        """Answer one message in full."""
        principal, name = self._context.authorized(topic, Right.BROWSE)
        query = Query(request.environ)
        form = query.choice("as", FORMS, FORMS[0])
        depth = query.choice("letters", tuple(TRACES), "quick")
        stored = self._find(name, message)
        stats = self._stats(name)
        one = self._context.mask(principal, name, stats).shown(stored)
        sent = query.number("sent", 0, MAX_SENT)
        data = {
            "topic": name.local,
            "may": {"publish": self._context.may(principal, name, Right.PUBLISH)},
            "status": f"{sent} message sent." if sent else "",
            "commands": [_curl(principal, name, stored.position)],
            "groups": self._groups(stats, stored.position),
            "letter": None if one.masked else _dead_letter(name, stored.message),
            "published_by": {} if one.masked else self._publisher_of(principal, name, stored),
            "story": None
            if one.masked
            else self._story.data(principal, name, stored, stats, TRACES[depth]),
            "letters": depth,
            "masked": REASON if one.masked else "",
        }
        data |= described(one) | self._value(name, one, form)
        return self._context.pages.answer("message.html", data)

    @operation(
        "GET /console/topics/<topic>/messages/<message>/value",
        answers={200: ReplyDescription("The value, as it is stored.", {RAW: str}), **SIGN_IN},
        fails=_FAILS,
    )
    def value(self, topic: str, message: str) -> Response:
        """Answer the value of a message as a file."""
        _, name = self._context.authorized(topic, Right.SUBSCRIBE)
        stored = self._find(name, message)
        answer = Response(stored.message.value, content_type=RAW, headers=HEADERS | NO_STORE)
        file = f"{name.local}-{ids.write_colons(stored.position).replace(':', '-')}"
        answer.headers["Content-Disposition"] = f'attachment; filename="{file}.bin"'
        answer.headers["X-Content-Type-Options"] = "nosniff"
        return answer

    @action(
        "POST /console/topics/<topic>/messages/<message>/send",
        optional=("edited", "value", "null", "key", "headers"),
        fails=(*PUBLISH_FAILS, "value-not-found", "read-failed"),
    )
    def send_again(self, topic: str, message: str) -> Response:
        """Publish a message to its topic again: as it is, or with `edited` as the fields say."""
        principal, name = self._context.authorized(topic, Right.SUBSCRIBE, Right.PUBLISH)
        fields = Fields(request.environ)
        stored = self._find(name, message)
        sent = stored.message._replace(deliver_at=None, sequence=None, replicate_to=())
        if UNDECODED in sent.properties:
            raise BadRequestError("The value is not what was sent, and cannot be sent again.")
        if fields.text("edited", ""):
            sent = self._edited(name, sent, fields)
        with timeouts_of_publish():
            source = source_of(request.environ, principal.name)
            publishing = self._services.publisher.publish_steps(
                name, [sent], principal, None, source
            )
            count = run_blocking(publishing).count
        place = stored.position
        history = self._services.history
        history.record(name, [(place, place)], SENT_AGAIN, name, principal.name)
        _log.info("message-sent-again", topic=str(name), user=principal.name)
        path = commands.path("console", "topics", name.local, "messages", decode(message))
        status = f"{count} message sent."
        return self._context.pages.done({"sent": count, "status": status}, path, sent=str(count))

    def _edited(self, name: TopicName, message: Message, fields: Fields) -> Message:
        if not self._may_edit(name, message):
            raise BadRequestError("value: expected text, which the message does not have.")
        headers = read_headers(fields.text("headers", ""))
        null = bool(fields.text("null", ""))
        return message._replace(
            value=b"" if null else fields.text("value", "").encode(),
            key=fields.text("key", "").encode() or None,
            properties=details.with_headers(message, headers),
            null=null,
        )

    def _may_edit(self, name: TopicName, message: Message) -> bool:
        if not (shown.text(message.value)[1] and shown.text(message.key or b"")[1]):
            return False
        if not message.schema_version:
            return True
        schema = self._services.schemas.find(name, message.schema_version)
        return schema is not None and schema.type.name in TEXT_SCHEMAS

    def _find(self, name: TopicName, written: str) -> Stored:
        reading = self._services.reading
        position = _in_partitions(ids.read(decode(written)), reading.partitions(name))
        return details.find_message(reading, name, position)

    def _stats(self, name: TopicName) -> TopicStats | None:
        try:
            return self._services.topics.described(name)
        except (NotSupportedError, NotAllowedError):
            return None

    def _publisher_of(
        self, principal: Principal, name: TopicName, stored: Stored
    ) -> dict[str, str]:
        """Return what is known of who published a message; the address is for administrators."""
        try:
            found = self._services.activities.publish_source(name, stored.position)
        except RouterError as error:
            _log.warning("publish-source-unknown", reason=str(error))
            return {}
        if found is None:
            return {}
        known = {
            "user": found.principal,
            "protocol": PROTOCOLS.get(found.protocol, found.protocol),
            "client": found.client,
        }
        if self._context.access.may_administer(principal, request.environ):
            known["address"] = found.address
        return {field: value for field, value in known.items() if value}

    def _groups(self, stats: TopicStats | None, position: Position) -> list[dict[str, str]]:
        if stats is None:
            return []
        found = self._services.message_groups.progress(stats, position)
        return [{"group": one.group, "state": one.state} for one in found]

    def _value(self, name: TopicName, one: VisibleMessage, form: str) -> dict[str, Any]:
        """Return the value in a form, or in the one that suits it; `value` is None without one."""
        message = one.stored.message
        editable = not one.masked and self._may_edit(name, message)
        plain = details.unpacked(message.value)
        schemas = self._services.schemas
        read = None if one.masked else details.decoded(schemas, name, message)
        text, is_text = shown.text(message.value if plain is None else plain)
        readable = is_text or (read is not None and not read.failure)
        data = {
            "schema": "" if read is None else read.schema,
            "schema_failure": "" if read is None else read.failure,
            "unpacked": None if plain is None else len(plain),
            "editable": editable,
        }
        json = shown.tree(text, MAX_NODES) if is_text else None
        packed = (
            None if is_text else messagepack.structure(message.value if plain is None else plain)
        )
        if form == "auto":
            # A small record of Avro is often UTF-8 too.
            named = bool(message.schema_version) and data["schema"] not in TEXT_SCHEMAS
            binary = read is not None and not read.failure and (named or not is_text)
            packing = "hex" if packed is None else "messagepack"
            form = "schema" if binary else "json" if json else "text" if readable else packing
        if form == "schema" and read is not None and not read.failure:
            text, json = read.text, shown.tree(read.text, MAX_NODES)
        elif form == "messagepack" and packed is not None:
            text = dumps(packed, ensure_ascii=False, indent=2)
            json = shown.tree(text, MAX_NODES)
        elif form == "hex":
            text = shown.hexdump(message.value, MAX_CHARACTERS // 16)
        elif form == "base64":
            text = base64.b64encode(message.value).decode()
        tree = json if form in {"json", "schema", "messagepack"} else None
        absent = {"schema" if read is None else "", "messagepack" if packed is None else ""}
        return data | {
            "as": form,
            "forms": [each for each in FORMS[1:] if each not in absent],
            "value": None if message.null else text[:MAX_CHARACTERS],
            "left_out": max(0, len(text) - MAX_CHARACTERS),
            "tree": tree,
            "raw": shown.text(message.value)[0] if editable else None,
        }


def described(one: VisibleMessage) -> dict[str, Any]:
    """Return what is known of a message beside its value."""
    stored = one.stored
    message, position = stored.message, stored.position
    key, key_is_text = shown.text(message.key or b"")
    return {
        "id": ids.write_colons(position),
        "partition": max(0, position.partition),
        "position": write_position(position, with_index=True),
        "time": shown.at(stored.publish_time),
        "event_time": "" if message.event_time is None else shown.at(message.event_time),
        "bytes": one.bytes,
        "size": one.size,
        "key": None if message.key is None else key,
        "key_is_text": key_is_text,
        "headers": [list(pair) for pair in details.headers_of(message).pairs],
        "notes": delivery_notes(message),
    }


def delivery_notes(message: Message) -> dict[str, str]:
    """Return what the router or a client keeps beside the headers of a message, for people."""
    notes = dict(details.headers_of(message).notes)
    published = notes.get(ORIGINAL_TIME, "")
    if published.isdecimal() and len(published) <= MAX_TIME_DIGITS:
        notes[ORIGINAL_TIME] = shown.at(int(published))
    return notes


def _dead_letter(name: TopicName, message: Message) -> dict[str, str] | None:
    """Return where a dead letter was before, None: it is none."""
    came = origin(message, name)
    if came.topic is None:
        return None
    return {
        "topic": came.topic.local,
        "position": came.position,
        "reason": came.reason,
        "id": "" if came.at is None else ids.write_colons(came.at),
    }


def _in_partitions(position: Position, partitions: list[int]) -> Position:
    """Return a position as the store numbers it; raise ValueNotFoundError."""
    if len(partitions) == 1 and position.partition in {0, -1}:
        return replace(position, partition=partitions[0])
    if position.partition not in partitions:
        raise ValueNotFoundError("The topic has no such partition.")
    return position


def _curl(principal: Principal, name: TopicName, position: Position) -> str:
    url = position_url(name, position.partition, position, 1)
    return commands.curl(principal, url)
