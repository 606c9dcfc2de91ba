"""Acknowledging over HTTP what was fetched: ack, nak, term and in progress, by the token."""

from __future__ import annotations

from typing import Any, Final
from wsgiref.types import WSGIEnvironment

import orjson
from flask import Response, request

from router.errors import BadRequestError, OutcomeUnknownError
from router.quoting import quoted
from router.steps import Steps, run_blocking
from router.web.jetstream import light, shapes
from router.web.jetstream.context import (
    FAILED,
    MAX_BODY_BYTES,
    FaultError,
    JetStreamContext,
    status_of,
)
from router.web.jetstream.fetch import ack_fields
from router.web.openapi import description as api
from router.web.requests import MILLISECONDS, Query
from router.wire.nats.headers import NO_RESPONDERS
from router.wire.nats.message import NatsMessage

MAX_TOKENS: Final = 1_000
MAX_DELAY_MS: Final = 30 * 86_400_000
MAX_REASON_BYTES: Final = 500
_FAILS: Final = (*api.STORE, "bad-json", "outcome-unknown")


class AckViews:
    """The views that acknowledge."""

    def __init__(self, context: JetStreamContext) -> None:
        self._context = context

    @api.operation(
        "POST /jetstream/ack",
        body=shapes.TOKENS,
        answers=shapes.ACKNOWLEDGED,
        fails=_FAILS,
        refuses=shapes.REFUSED,
    )
    def ack(self) -> Response:
        """Acknowledge messages: they are not given again."""
        return self._acknowledge(b"+ACK")

    @api.operation(
        "POST /jetstream/nak",
        api.number("delay", "Milliseconds after which the messages are given again."),
        body=shapes.TOKENS,
        answers=shapes.ACKNOWLEDGED,
        fails=_FAILS,
        refuses=shapes.REFUSED,
    )
    def nak(self) -> Response:
        """Give messages back: they are given again."""
        delay = Query(request.environ).number("delay", 0, MAX_DELAY_MS, MILLISECONDS)
        return self._acknowledge(b'-NAK {"delay": %d}' % (delay * 1_000_000) if delay else b"-NAK")

    @api.operation(
        "POST /jetstream/term",
        api.text("reason", "Why; the consumer's advisories have it."),
        body=shapes.TOKENS,
        answers=shapes.ACKNOWLEDGED,
        fails=_FAILS,
        refuses=shapes.REFUSED,
    )
    def term(self) -> Response:
        """End messages that cannot be handled: they are not given again."""
        reason = (Query(request.environ).text("reason") or "").encode()
        return self._acknowledge(b"+TERM " + reason[:MAX_REASON_BYTES] if reason else b"+TERM")

    @api.operation(
        "POST /jetstream/in-progress",
        body=shapes.TOKENS,
        answers=shapes.ACKNOWLEDGED,
        fails=_FAILS,
        refuses=shapes.REFUSED,
    )
    def in_progress(self) -> Response:
        """Say that messages are being handled: their `ack_wait` begins anew."""
        return self._acknowledge(b"+WPI")

    def _acknowledge(self, kind: bytes) -> Response:
        line = run_blocking(self._acknowledged(request.environ, kind))
        return Response(line, content_type=light.KIND)

    def _acknowledged(self, environ: WSGIEnvironment, kind: bytes) -> Steps[str]:
        context = self._context
        asked = context.principal(environ)
        for done, token in enumerate(_tokens(context.body(environ, MAX_BODY_BYTES))):
            # What was done before a failure stands; the client learns how much that is.
            environ[FAILED] = {"token": token, "done": done}
            message = NatsMessage(token, payload=kind)
            _check((yield from context.ask(environ, asked, message)))
        return light.ok()


def _check(replies: list[NatsMessage]) -> None:
    if not replies:
        raise OutcomeUnknownError
    if status_of(replies[0])[0] == NO_RESPONDERS:
        raise FaultError.of_status(404, "the consumer of this token does not exist any more")


def _tokens(body: bytes) -> list[str]:
    """Return the tokens of a body: JSON with `token` or `tokens`, or lines.

    Raises BadRequestError.
    """
    text = body.strip()
    found: Any
    if text.startswith(b"{"):
        try:
            members = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise BadRequestError(f"The body is no JSON: {error}.") from error
        found = members.get("tokens", [members.get("token")])
    else:
        found = text.decode("utf-8", "replace").split()
    if not isinstance(found, list) or not found:
        raise BadRequestError("The body has no token: expected one, or lines, or JSON with tokens.")
    if len(found) > MAX_TOKENS:
        raise BadRequestError(f"The limit is {MAX_TOKENS} tokens.")
    for token in found:
        if not isinstance(token, str) or any(c <= " " for c in token) or not ack_fields(token):
            raise BadRequestError(f"{quoted(str(token), 80)} is no token of a fetched message.")
    return found
