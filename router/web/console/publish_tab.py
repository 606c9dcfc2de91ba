"""The tab Publish of a topic's page: from a form to stored messages, and the same as commands."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import orjson
from flask import Response, request

from router.clocks.steps import Steps, run_blocking
from router.errors import BadJsonError, BadRequestError, BatchTooLargeError
from router.errors.quoting import quoted
from router.model import Message, Principal, TopicName
from router.services.publish import PublishResult, timeouts_of_publish
from router.services.schema_values import example_text, schema_messages
from router.web import bodies
from router.web.access import Right
from router.web.console import commands
from router.web.console.context import PageContext, PageViews
from router.web.console.fields import Fields, Upload
from router.web.console.pages import action
from router.web.openapi.description import APPEND, one_of
from router.web.requests import Query, source_of

FORMATS: Final = {
    "Text": "text/plain",
    "JSON": "application/json",
    "Cambria": "application/cambria",
}
RAW: Final = "application/octet-stream"
MAX_REPEATED: Final = 10_000
"""Messages that one form stores when it repeats them."""
MAX_HEADERS: Final = 100
MAX_HEADER_BYTES: Final = 64 * 1024
LINE_CHARACTERS: Final = 20_000
"""Of a message that is repeated in a command."""
LINE_MESSAGES: Final = 20
MAX_STORED: Final = 1_000_000
PUBLISH_FAILS: Final = (
    *APPEND,
    "bad-framing",
    "bad-json",
    "batch-too-large",
    "partial-publish",
)
_AT: Final = re.compile(r"at character ([0-9]+)")


@dataclass(frozen=True, slots=True)
class _Form:
    """What the form says; `upload` takes the place of `message`."""

    format: str
    key: str
    message: str
    headers: Mapping[str, str]
    upload: Upload | None
    whole: bool
    null: bool
    by_schema: bool
    repeat: int

    @classmethod
    def read(cls, fields: Fields) -> _Form:
        """Read the fields; raise BadRequestError."""
        chosen = fields.text("format", "Text")
        if chosen not in FORMATS:
            known = ", ".join(FORMATS)
            raise BadRequestError(f"format: expected one of {known}, not {quoted(chosen, 40)}.")
        repeat = fields.number("repeat")
        if repeat is not None and not 1 <= repeat <= MAX_REPEATED:
            raise BadRequestError(f"repeat: expected 1 to {MAX_REPEATED}, not {repeat}.")
        return cls(
            chosen,
            fields.text("key", ""),
            fields.text("message", ""),
            read_headers(fields.text("headers", "")),
            fields.upload("file"),
            bool(fields.text("whole", "")),
            bool(fields.text("null", "")),
            bool(fields.text("schema", "")),
            repeat or 1,
        )

    def without_body(self) -> Message | None:
        """Return the message of no value, or of an empty one; None: the body has the messages.

        Raises BadRequestError for a message with a value that is to have none.
        """
        empty = not (self.message or (self.upload and self.upload.data))
        if self.null and not empty:
            raise BadRequestError("null: a message without a value has no text and no file.")
        if not empty or not (self.null or self.whole):
            return None
        return Message(b"", self.key.encode() or None, null=self.null)

    def body(self) -> bodies.PublishBody:
        data = self.message.encode() if self.upload is None else self.upload.data
        kind = RAW if self.whole else FORMATS[self.format]
        return bodies.PublishBody(kind, "", data, self.key.encode() or None)


class PublishTab(PageViews):
    """What the tab shows, and what its form does."""

    def __init__(self, context: PageContext) -> None:
        super().__init__(context)
        self._reader, self._publisher = self._services.reader, self._services.publisher

    def data(self, name: TopicName, query: Query) -> dict[str, Any]:
        """Return the data of the page."""
        count = query.number("stored", -1, MAX_STORED)
        schema = self._services.schemas.newest(name)
        return {
            "formats": list(FORMATS),
            "format": query.choice("with", tuple(FORMATS), "Text"),
            "status": "" if count < 0 else _stored(count),
            "schema": None if schema is None else schema.type.name,
            "example": "" if schema is None else example_text(schema),
            "max_repeated": MAX_REPEATED,
        }

    @action(
        "POST /console/topics/<topic>/publish",
        optional=(
            "format",
            "key",
            "message",
            "headers",
            "file",
            "whole",
            "null",
            "schema",
            "repeat",
        ),
        kinds={
            "format": one_of(FORMATS),
            "repeat": {"type": "string", "pattern": "^([1-9][0-9]{0,3}|10000)?$"},
        },
        fails=(*PUBLISH_FAILS, "payload-mismatch", "invalid-schema"),
        multipart=True,
    )
    def publish(self, topic: str) -> Response:
        """Store what a form holds."""
        with timeouts_of_publish():
            return self._publish(topic)

    def _publish(self, topic: str) -> Response:
        principal, name = self._context.authorized(topic, Right.PUBLISH)
        form = _Form.read(Fields(request.environ))
        try:
            messages, count = run_blocking(self._published(principal, name, form))
        except BadJsonError as error:
            raise BadJsonError(_placed(str(error), form)) from error
        data = {
            "stored": count,
            "status": _stored(count),
            "commands": _commands(principal, name, form, messages),
        }
        path = commands.path("console", "topics", name.local)
        return self._context.pages.done(data, path, stored=str(count), **{"with": form.format})

    def _published(
        self, principal: Principal, name: TopicName, form: _Form
    ) -> Steps[tuple[Sequence[Message], int]]:
        """Store the messages of a form; return the first of them, and how many there are."""
        if (bare := form.without_body()) is not None:
            stored = yield from self._store(principal, name, form, [bare])
            return [bare], stored.count
        if form.by_schema:
            made = schema_messages(self._services.schemas, name, form.body().data)
            stored = yield from self._store(principal, name, form, made)
            return made[:LINE_MESSAGES], stored.count
        messages, reserved = yield from self._reader.messages(form.body())
        with reserved:
            stored = yield from self._store(principal, name, form, messages)
        return messages[:LINE_MESSAGES], stored.count

    def _store(
        self, principal: Principal, name: TopicName, form: _Form, messages: Sequence[Message]
    ) -> Steps[PublishResult]:
        if form.headers:
            messages = [message._replace(properties=form.headers) for message in messages]
        if form.repeat > 1:
            messages = _repeated(messages, form.repeat, self._reader.bounds.batch)
        source = source_of(request.environ, principal.name)
        return (yield from self._publisher.publish_steps(name, messages, principal, None, source))


def read_headers(written: str) -> dict[str, str]:
    """Return headers from lines `name: value`; raise BadRequestError."""
    found: dict[str, str] = {}
    if len(written.encode()) > MAX_HEADER_BYTES:
        raise BadRequestError(f"headers: expected at most {MAX_HEADER_BYTES} bytes.")
    for line in filter(str.strip, written.split("\n")):
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise BadRequestError(f"headers: expected lines `name: value`, not {quoted(line, 40)}.")
        found[name.strip()] = value.strip()
    if len(found) > MAX_HEADERS:
        raise BadRequestError(f"headers: expected at most {MAX_HEADERS}, not {len(found)}.")
    return found


def _repeated(messages: Sequence[Message], times: int, max_bytes: int) -> list[Message]:
    if len(messages) * times > MAX_REPEATED:
        raise BatchTooLargeError(f"The limit is {MAX_REPEATED} messages when they are repeated.")
    if sum(message.size() for message in messages) * times > max_bytes:
        raise BatchTooLargeError(f"The limit is {max_bytes} bytes.")
    return [*messages] * times


def _placed(sentence: str, form: _Form) -> str:
    """Return what is wrong with JSON with its line and column, as editors count them."""
    found = _AT.search(sentence)
    if found is None:
        return sentence
    text = form.body().data.decode("utf-8", "replace")
    at = min(int(found[1]), len(text))
    line = text.count("\n", 0, at) + 1
    column = at - (text.rfind("\n", 0, at) + 1) + 1
    return f"{sentence} That is line {line}, column {column}."


def _stored(count: int) -> str:
    return f"{count} message stored" if count == 1 else f"{count} messages stored"


def _commands(
    principal: Principal, name: TopicName, form: _Form, messages: Sequence[Message]
) -> list[str]:
    """Return the lines that publish the same, for what fits into a line."""
    if len(form.message) > LINE_CHARACTERS or form.without_body() is not None:
        return []
    lines = [_pip64(principal, name, form, messages)]
    if not (form.headers or form.by_schema):
        lines = [_events(principal, name, form)]
    if not form.by_schema:
        lines.append(_router(name, form))
    again = f"for n in $(seq {form.repeat}); do " if form.repeat > 1 else ""
    return [f"{again}{line}; done" if again else line for line in lines if line]


def _events(principal: Principal, name: TopicName, form: _Form) -> str:
    query = f"?partitionKey={quote(form.key, safe='')}" if form.key else ""
    url = commands.url("events", name.local) + query
    kind = f"Content-Type: {RAW if form.whole else FORMATS[form.format]}"
    if form.upload is not None:
        return commands.curl(
            principal, url, "-H", kind, "--data-binary", f"@{form.upload.file_name}"
        )
    # --data would read a file for a text that begins with @.
    return commands.curl(principal, url, "-H", kind, "--data-raw", form.message)


def _pip64(principal: Principal, name: TopicName, form: _Form, messages: Sequence[Message]) -> str:
    """Return PIP 64's request, which has headers and schemas; its JSON carries no bytes."""
    if form.upload is not None or not 0 < len(messages) < LINE_MESSAGES:
        return ""
    body: dict[str, Any] = {}
    if form.by_schema:
        body["schema_version"] = int.from_bytes(messages[0].schema_version)
    try:
        values = (
            _listed(orjson.loads(form.message))
            if form.by_schema
            else [message.value.decode() for message in messages]
        )
    except ValueError:  # bytes that are no text, or several values of a schema
        return ""
    body["messages"] = [
        {"value": value}
        | ({"key": message.key.decode("utf-8", "replace")} if message.key else {})
        | ({"properties": dict(form.headers)} if form.headers else {})
        for value, message in zip(values, messages, strict=True)
    ]
    url = commands.url("topics", name.tenant, name.namespace, name.local)
    kind = ("-H", "Content-Type: application/json")
    return commands.curl(principal, url, *kind, "--data-raw", orjson.dumps(body).decode())


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _router(name: TopicName, form: _Form) -> str:
    chosen = "raw" if form.whole else form.format.lower()
    words = ["pub", name.local]
    words += [] if chosen == "text" else ["--format", chosen]
    words += ["--key", form.key] if form.key else []
    for header, value in form.headers.items():
        words += ["--header", f"{header}={value}"]
    if form.upload is not None:
        return f"{commands.router(*words)} < {commands.word('./' + form.upload.file_name)}"
    if chosen == "text":
        return commands.piped(form.message, words)
    return f"printf %s {commands.word(form.message)} | {commands.router(*words)}"
