"""Acknowledging over HTTP what was fetched: ack, nak, term and in progress, by the token."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final
from wsgiref.types import WSGIEnvironment

import orjson
from flask import Response, request

from router.clocks.steps import Steps, run_blocking
from router.errors import BadRequestError
from router.errors.quoting import quoted
from router.services.jetstream import AckRequest
from router.web.front import JETSTREAM_ACKS, Direct, DirectAnswer
from router.web.jetstream import light, shapes
from router.web.jetstream.context import FAILED, MAX_BODY_BYTES, JetStreamContext
from router.web.openapi import description as api
from router.web.requests import MILLISECONDS, Query

Payload = Callable[[WSGIEnvironment], bytes]
"""Returns what the acknowledgements of a request say."""

MAX_TOKENS: Final = 1_000
MAX_DELAY_MS: Final = 30 * 86_400_000
MAX_REASON_BYTES: Final = 500
_FAILS: Final = (*api.STORE, "bad-json", "outcome-unknown")
# Behind `$JS.ACK` stream and consumer, before which there may be a domain and an account; then how
# often it was delivered, both sequences, the time and what is left. See `fetch.ack_fields`.
_TOKEN: Final = re.compile(
    r"\$JS\.ACK(?:(?:\.[^\0- .]+){2}(?:\.[0-9]{1,20}){5}"
    r"|(?:\.[^\0- .]+){4}(?:\.[0-9]{1,20}){5}(?:\.[^\0- ]*)?)"
)


def _acknowledges(word: str, *parameters: api.Parameter) -> Callable[[api.View], api.View]:
    """Return a decorator that describes a view that takes tokens of fetched messages."""
    return api.operation(
        f"POST /jetstream/{word}",
        *parameters,
        body=shapes.TOKENS,
        answers=shapes.ACKNOWLEDGED,
        fails=_FAILS,
        refuses=shapes.REFUSED,
    )


class AckViews:
    """The views that acknowledge."""

    def __init__(self, context: JetStreamContext) -> None:
        self._context = context

    @_acknowledges("ack")
    def ack(self) -> Response:
        """Acknowledge messages: they are not given again."""
        return self._acknowledge("ack")

    @_acknowledges(
        "nak", api.number("delay", "Milliseconds after which the messages are given again.")
    )
    def nak(self) -> Response:
        """Give messages back: they are given again."""
        return self._acknowledge("nak")

    @_acknowledges("term", api.text("reason", "Why; the consumer's advisories have it."))
    def term(self) -> Response:
        """End messages that cannot be handled: they are not given again."""
        return self._acknowledge("term")

    @_acknowledges("in-progress")
    def in_progress(self) -> Response:
        """Say that messages are being handled: their `ack_wait` begins anew."""
        return self._acknowledge("in-progress")

    def direct(self) -> Mapping[tuple[str, str], Direct]:
        """Return what answers each of the routes as its view does."""
        return {
            route: partial(self._acknowledged, payload=_PAYLOADS[word])
            for word, route in JETSTREAM_ACKS.items()
        }

    def _acknowledge(self, word: str) -> Response:
        return run_blocking(self._acknowledged(request.environ, _PAYLOADS[word])).response()

    def _acknowledged(self, environ: WSGIEnvironment, payload: Payload) -> Steps[DirectAnswer]:
        context = self._context
        principal, kind = context.principal(environ), payload(environ)
        tokens = _tokens(context.body(environ, MAX_BODY_BYTES))
        environ[FAILED] = {"token": tokens[0], "done": 0}
        acks = AckRequest(principal, tokens, kind, context.options.timeout)
        done, failure = yield from context.streams.acknowledge(acks)
        if failure is not None:
            # What was done before a failure stands; the client learns how much that is.
            environ[FAILED] = {"token": tokens[done], "done": done}
            raise failure
        return DirectAnswer.whole(_OK, light.KIND)


def _delayed(environ: WSGIEnvironment) -> bytes:
    delay = Query(environ).number("delay", 0, MAX_DELAY_MS, MILLISECONDS)
    return b'-NAK {"delay": %d}' % (delay * 1_000_000) if delay else b"-NAK"


def _reasoned(environ: WSGIEnvironment) -> bytes:
    reason = (Query(environ).text("reason") or "").encode()
    return b"+TERM " + reason[:MAX_REASON_BYTES] if reason else b"+TERM"


_OK: Final = light.ok().encode()
_PAYLOADS: Final[Mapping[str, Payload]] = {
    "ack": lambda _: b"+ACK",
    "nak": _delayed,
    "term": _reasoned,
    "in-progress": lambda _: b"+WPI",
}


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
        if not isinstance(token, str) or _TOKEN.fullmatch(token) is None:
            raise BadRequestError(f"{quoted(str(token), 80)} is no token of a fetched message.")
    return found
