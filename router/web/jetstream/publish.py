"""Publishing for light clients: a POST stores a message, and its answer is `+OK` or `-ERR`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from wsgiref.types import WSGIEnvironment

import orjson
from flask import Response, request

from router.clocks.steps import Steps, run_blocking
from router.errors import BadRequestError, MessageTooLargeError, OutcomeUnknownError
from router.services.publish import timeouts_of_publish
from router.web import bodies, requests, tracing
from router.web.front import DirectAnswer
from router.web.jetstream import light, shapes
from router.web.jetstream.context import FaultError, JetStreamContext, check_subject, status_of
from router.web.jetstream.forms import FORM_HEADER, Fault, Form, form_of
from router.web.openapi import description as api
from router.wire.nats.headers import NO_RESPONDERS, build
from router.wire.nats.message import NatsMessage

HEADER_PREFIX: Final = "HTTP_NATS_"
"""Of headers, as the environment names them, that become headers of the message."""
# Names that are not written as HTTP servers give them back.
_NAMES: Final = {"HTTP_NATS_TTL": "Nats-TTL", "HTTP_KV_OPERATION": "KV-Operation"}
_SERVICES: Final = "$JS."
_NO_STREAM: Final = "no stream has this subject"


class PublishViews:
    """The views that publish."""

    def __init__(self, context: JetStreamContext) -> None:
        self._context = context

    @api.operation(
        "POST /jetstream/publish/<subject>",
        *shapes.FORM,
        *shapes.PUBLISHING,
        *api.TRACED,
        body=shapes.MESSAGE,
        answers=shapes.PUBLISHED,
        fails=(*api.STORE, *api.APPEND),
        refuses=shapes.REFUSED,
        notes="The body is the message, whatever its type. The first byte says it all: `+`, the"
        " message is on disk; `-`, it is not, or that is unknown.",
    )
    def publish(self, subject: str) -> Response:
        """Store a message in the stream that has the subject; answer when it is durable."""
        return run_blocking(self.published(request.environ, subject)).response()

    def published(self, environ: WSGIEnvironment, subject: str) -> Steps[DirectAnswer]:
        """Store a message as `publish` does."""
        with timeouts_of_publish():
            return (yield from self._published(environ, subject))

    def _published(self, environ: WSGIEnvironment, subject: str) -> Steps[DirectAnswer]:
        context = self._context
        form = form_of(environ)
        caller = context.caller(environ)
        subject = check_subject(requests.decode(subject))
        if subject.startswith(_SERVICES):
            raise BadRequestError(
                "$JS.API is served below /jetstream/api, tokens by /jetstream/ack."
            )
        encoding = environ.get("HTTP_CONTENT_ENCODING", "")
        body = bodies.PublishBody("", encoding, requests.body(environ, context.reader.bounds.batch))
        messages, reserved = yield from context.reader.messages(body)
        del body
        with reserved:
            payload = messages[0].value if messages else b""
            headers, limit = message_headers(environ), context.options.max_payload
            if len(headers) + len(payload) > limit:
                raise MessageTooLargeError(f"The limit is {limit} bytes, headers included.")
            message = NatsMessage(subject, headers=headers, payload=payload)
            replies = yield from context.ask(environ, caller, message)
        if not replies:
            raise OutcomeUnknownError
        if status_of(replies[0])[0] == NO_RESPONDERS:
            raise FaultError.of_status(404, _NO_STREAM)
        if form is Form.V1:
            _acknowledged(replies[0].payload)
            return DirectAnswer.whole(replies[0].payload, api.JSON)
        return DirectAnswer.whole(light.ok(_acknowledged(replies[0].payload)).encode(), light.KIND)


def message_headers(environ: WSGIEnvironment) -> bytes:
    """Return the headers of the message that a request publishes, as NATS writes them."""
    return build([*_own_headers(environ), *tracing.of_request(environ).items()])


def _own_headers(environ: WSGIEnvironment) -> Iterator[tuple[str, str]]:
    for key, value in environ.items():
        if key in _NAMES:
            name = _NAMES[key]
        elif key.startswith(HEADER_PREFIX) and key != FORM_HEADER:
            name = key.removeprefix("HTTP_").replace("_", "-").title()
        else:
            continue
        yield name, value.encode("latin-1").decode(errors="replace")


def _acknowledged(payload: bytes) -> Mapping[str, object]:
    """Return the fields of `+OK`; raise FaultError for a refusal.

    None, if not a stream but a service answered.
    """
    try:
        found: Any = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return {}
    if not isinstance(found, dict):
        return {}
    if "error" in found:
        raise FaultError(Fault.of_json(found["error"]), found.get("stream", ""))
    fields: dict[str, object] = {"stream": found.get("stream"), "sequence": found.get("seq")}
    if found.get("duplicate"):
        fields["duplicate"] = "true"
    return fields
