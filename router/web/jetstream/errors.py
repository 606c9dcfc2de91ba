"""Failures of the JetStream routes: in the type of the call, or as `-ERR` for light clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import orjson
from flask import Response, request

from router.errors import BadNameError, BadReadOptionError, RouterError
from router.services.jetstream.calls import UNKNOWN, JetStreamCall, call_of
from router.web.dmaap.errors import ErrorTexts, retry_after
from router.web.errors import FailureAnswers, failure_answer
from router.web.jetstream import light
from router.web.jetstream.context import FAILED, FaultError
from router.web.jetstream.fetch import TYPE as FETCH_TYPE
from router.web.jetstream.forms import Fault, Form, Writer, form_of
from router.web.requests import decode
from router.wire.nats.jetstream.errors import ErrorCode

ROOT: Final = "/jetstream/"
_API: Final = f"{ROOT}api/"
_FETCH: Final = f"{ROOT}fetch/"
_PUBLISH: Final = f"{ROOT}publish/"
_LIGHT: Final = (_PUBLISH, *(f"{ROOT}{word}" for word in ("ack", "nak", "term", "in-progress")))
_NO_REASON: Final = RouterError.code
"""Of a failure of ours: there is nothing that the client could do with its reason."""
# Failures whose sentence is no more than the request's line.
_TEXTS: Final = frozenset({"method-not-allowed", "path-not-found"})
# The router's failures that JetStream has a number for.
_NUMBERS: Final[Mapping[str, ErrorCode]] = {
    "bad-json": ErrorCode.INVALID_JSON,
    "disk-full": ErrorCode.STORAGE_RESOURCES_EXCEEDED,
    "message-too-large": ErrorCode.STREAM_MESSAGE_EXCEEDS_MAXIMUM,
    "not-supported": ErrorCode.NOT_ENABLED,
}


class JetStreamFailures(FailureAnswers):
    """Turns what fails below `/jetstream` into answers."""

    def __init__(self, texts: ErrorTexts, writer: Writer) -> None:
        self._texts = texts
        self._writer = writer

    def failed(self, error: RouterError) -> Response:
        """Answer a failure, in the form that the path and the request ask for."""
        status, fault = self.fault(error)
        stream = error.stream if isinstance(error, FaultError) else ""
        if request.path.startswith(_LIGHT):
            answer = self._light(error, fault, stream)
        else:
            body = self._writer.fault(_call(request.path), fault, _form())
            answer = Response(orjson.dumps(body), mimetype="application/json")
        # The headers of every refusal: when a repeat may help, and which credentials are taken.
        after = retry_after(error, self._texts.row(error))
        plain = failure_answer(status, {}, after)
        for name in ("Retry-After", "WWW-Authenticate"):
            for text in plain.headers.getlist(name):
                answer.headers.add(name, text)
        answer.status_code = status
        return answer

    def fault(self, error: RouterError) -> tuple[int, Fault]:
        """Return the status of a failure, and the fault that its answer has."""
        if isinstance(error, FaultError):
            return error.fault.status, error.fault
        row, number = self._texts.row(error), _NUMBERS.get(error.code)
        sentence = f"{row.text} {error}" if error.code in _TEXTS else str(error)
        if number is None:
            return row.status, Fault(row.status, 0, sentence)
        fault = Fault(number.http_status, int(number), sentence)
        return (fault.code if number is ErrorCode.NOT_ENABLED else row.status), fault

    def _light(self, error: RouterError, fault: Fault, stream: str) -> Response:
        if request.path.startswith(_PUBLISH) and _form() is Form.V1:
            members = self._writer.fault(JetStreamCall(UNKNOWN, ""), fault, Form.V1)["error"]
            body = {"error": members, "stream": stream, "seq": 0}
            return Response(orjson.dumps(body), mimetype="application/json")
        fields: dict[str, object] = {}
        if error.code != _NO_REASON:
            fields = {
                "reason": fault.sentence,
                "stream": stream,
                "code": fault.err_code or None,
                **request.environ.get(FAILED, {}),
            }
        return Response(light.err(fields), content_type=light.KIND)


def _form() -> Form:
    try:
        return form_of(request.environ)
    except BadReadOptionError:
        return Form.SEED


def _call(path: str) -> JetStreamCall:
    """Return the call whose type an error has."""
    if path.startswith(_FETCH):
        stream, _, consumer = path.removeprefix(_FETCH).partition("/")
        return JetStreamCall(FETCH_TYPE, "", _decoded(stream), _decoded(consumer))
    if not path.startswith(_API):
        return JetStreamCall(UNKNOWN, "")
    return call_of(_decoded(path.removeprefix(_API)))


def _decoded(segment: str) -> str:
    """Return a segment of the path, or "" for one that cannot be read."""
    try:
        return decode(segment)
    except BadNameError:
        return ""
