"""Fetching over HTTP: a long poll is a pull, and its answer has what acknowledges each message.

A pull takes what is there at once; only without a message it waits, for the first one, and then
takes what came with it. So a poll for many messages is answered as soon as there are some.
"""

from __future__ import annotations

import base64
from functools import lru_cache
from typing import Any, Final
from wsgiref.types import WSGIEnvironment

import orjson
from flask import Response, request

from router.clocks.steps import Steps, run_blocking
from router.errors import BadNameError, RouterError
from router.services.jetstream import ACK_PREFIX, API_PREFIX
from router.services.jetstream.calls import call_of
from router.web import requests
from router.web.front import DirectAnswer
from router.web.jetstream import shapes
from router.web.jetstream.context import FaultError, JetStreamCaller, JetStreamContext, status_of
from router.web.jetstream.forms import Fault, form_of
from router.web.openapi import description as api
from router.web.requests import BYTES, MILLISECONDS, Query
from router.wire.nats.headers import NO_RESPONDERS, read
from router.wire.nats.jetstream.errors import ErrorCode
from router.wire.nats.jetstream.times import format_time
from router.wire.nats.message import NatsMessage

TYPE: Final = "consumer_fetch"
MAX_BYTES: Final = 4 << 20
"""Of the messages of an answer: they pass the node protocol in one frame."""
_NOTHING: Final = frozenset({404, 408})
"""Statuses of a pull that ends without a message, or with fewer than it asked for."""
_ACK_TOKENS: Final = 9


class FetchViews:
    """The views that fetch."""

    def __init__(self, context: JetStreamContext) -> None:
        self._context = context

    @api.operation(
        "POST /jetstream/fetch/<stream>/<consumer>",
        *shapes.FORM,
        *shapes.FETCHING,
        answers=shapes.FETCHED,
        fails=(*api.STORE, "not-allowed"),
        refuses=shapes.REFUSED,
        notes="A POST, because it takes the messages: each is given again unless it is"
        " acknowledged in the consumer's `ack_wait`.",
    )
    def fetch(self, stream: str, consumer: str) -> Response:
        """Answer messages of a pull consumer, waiting for some."""
        return run_blocking(self.fetched(request.environ, stream, consumer)).response()

    def fetched(self, environ: WSGIEnvironment, stream: str, consumer: str) -> Steps[DirectAnswer]:
        """Answer as `fetch` does."""
        context, options = self._context, self._context.options
        query = Query(environ)
        form = form_of(environ, query)
        caller = context.caller(environ)
        pull = _Pull(context, environ, caller, requests.decode(stream), requests.decode(consumer))
        limit, default = round(options.max_expires * 1000), round(options.expires * 1000)
        expires = query.number("expires", default, limit, MILLISECONDS) / 1000
        batch = query.number("batch", 1, options.max_fetch) or 1
        largest = min(options.max_bytes, MAX_BYTES)
        max_bytes = query.number("max_bytes", largest, largest, BYTES) or largest
        requests.no_body(environ, context.reader.bounds.batch)
        messages = yield from pull.messages(batch, max_bytes, expires)
        shown = [_shown(message) for message in messages]
        del messages
        body = orjson.dumps(context.writer.written(TYPE, form, {"messages": shown}))
        return DirectAnswer.unsent(context.unsent, body, ("Cache-Control", "no-store"))


class _Pull:
    """The pulls of one request."""

    def __init__(
        self,
        context: JetStreamContext,
        environ: WSGIEnvironment,
        caller: JetStreamCaller,
        stream: str,
        consumer: str,
    ) -> None:
        self._context = context
        self._environ = environ
        self._caller = caller
        self._info = _info_call(stream, consumer)
        self._subject = f"{API_PREFIX}CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._stream = stream

    def messages(self, batch: int, max_bytes: int, expires: float) -> Steps[list[NatsMessage]]:
        """Return at most `batch` messages, after `expires` seconds without any an empty list."""
        found, left = (yield from self._take(batch, max_bytes, 0.0)), max_bytes
        if found or expires <= 0:
            return found
        found = yield from self._take(1, left, expires)
        left -= sum(map(_size, found))
        if found and batch > 1 and left > 0:
            # What is taken already is answered, whatever becomes of the rest.
            try:
                found += yield from self._take(batch - 1, left, 0.0)
            except RouterError:
                pass
        return found

    def _take(self, batch: int, max_bytes: int, expires: float) -> Steps[list[NatsMessage]]:
        """Return the messages of one pull; 0 seconds: those that are there."""
        body: dict[str, Any] = {"batch": batch, "max_bytes": max_bytes}
        if expires > 0:
            body["expires"] = round(expires * 1e9)
        else:
            body["no_wait"] = True
        message = NatsMessage(self._subject, payload=orjson.dumps(body))
        seconds = expires if expires > 0 else self._context.options.timeout
        replies = yield from self._context.ask(
            self._environ,
            self._caller,
            message,
            max_replies=batch,
            seconds=seconds,
            waits=expires > 0,
        )
        status, text = status_of(replies[-1]) if replies else (0, "")
        # Headers of a stored message may have a status as well; it has what acknowledges it.
        found = [
            one for one in replies if one.reply.startswith(ACK_PREFIX) or not status_of(one)[0]
        ]
        if found or not status or status in _NOTHING:
            return found
        if status == NO_RESPONDERS:
            raise (yield from self._absent())
        raise FaultError.of_status(status if 400 <= status < 500 else 500, text, self._stream)

    def _absent(self) -> Steps[FaultError]:
        """Return why the consumer takes no pull."""
        message = NatsMessage(self._info, payload=b"{}")
        replies = yield from self._context.ask(self._environ, self._caller, message)
        if replies and status_of(replies[0])[0] == NO_RESPONDERS:
            return FaultError.of_code(ErrorCode.NOT_ENABLED)
        found: Any = orjson.loads(replies[0].payload) if replies else {}
        if "error" in found:
            return FaultError(Fault.of_json(found["error"]), self._stream)
        if found.get("config", {}).get("deliver_subject"):
            return FaultError.of_status(409, "the consumer pushes its messages", self._stream)
        return FaultError.of_code(ErrorCode.CONSUMER_NOT_FOUND, self._stream)


@lru_cache(maxsize=256)
def _info_call(stream: str, consumer: str) -> str:
    """Return the call that describes a consumer; raise BadNameError for what can be no names."""
    call = call_of(f"CONSUMER.INFO.{stream}.{consumer}")
    if call.fault is not None:
        raise BadNameError(f"stream or consumer: {call.fault.description}")
    return API_PREFIX + call.subject


def _size(message: NatsMessage) -> int:
    return len(message.payload) + len(message.headers) + len(message.subject) + len(message.reply)


def _shown(message: NatsMessage) -> dict[str, Any]:
    shown: dict[str, Any] = {"subject": message.subject}
    if (place := ack_fields(message.reply)) is not None:
        shown |= place
    if headers := _headers(message.headers):
        shown["headers"] = headers
    try:
        shown["value"] = message.payload.decode()
    except UnicodeDecodeError:
        shown["value"] = base64.b64encode(message.payload).decode()
        shown["value_encoding"] = "base64"
    shown["token"] = message.reply
    return shown


def ack_fields(reply: str) -> dict[str, Any] | None:
    """Return what the subject of an acknowledgement says of its message, None: it is none."""
    tokens = reply.split(".")
    if not reply.startswith(ACK_PREFIX) or len(tokens) < _ACK_TOKENS:
        return None
    # Behind `$JS.ACK` there may be a domain and an account, and a random token at the end.
    at = 4 if len(tokens) == _ACK_TOKENS else 6
    try:
        delivered, sequence, place, at_ns, pending = map(int, tokens[at : at + 5])
    except ValueError:
        return None
    return {
        "sequence": sequence,
        "consumer_sequence": place,
        "time": format_time(at_ns),
        "deliveries": delivered,
        "pending": pending,
    }


def _headers(block: bytes) -> dict[str, list[str]]:
    """Return the headers of a message by their names, each with its values."""
    found: dict[str, list[str]] = {}
    for name, value in read(block):
        found.setdefault(name, []).append(value)
    return found
