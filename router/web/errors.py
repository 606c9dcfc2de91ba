"""Every answer outside 2xx: failures become bodies of the dialect, and refusals lines of the log.

Clients decide how many refusals there are, so a process logs a bounded number in a second; the next
line after that says how many were left out. No line has a password or a token.
"""

from __future__ import annotations

import base64
import binascii
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final
from wsgiref.types import WSGIEnvironment

import orjson
import structlog
from flask import Blueprint, Flask, Response, current_app, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from router.errors import (
    BadRequestError,
    BatchTooLargeError,
    ForbiddenError,
    MethodNotAllowedError,
    PathNotFoundError,
    RouterError,
    TooManyRequestsError,
    UnauthenticatedError,
    UnsupportedEncodingError,
)
from router.log import LineLimit
from router.metrics import Metrics
from router.services.consume import ClientGoneError
from router.web.addresses import USER
from router.web.dmaap.errors import ErrorTexts, retry_after
from router.web.openapi.description import described
from router.web.requests import TRANSACTION, DmaapTransactionIds

PROBLEMS: Final = "router.problems"
"""Where an application's extensions have what answers failures as problem documents."""
JETSTREAM: Final = "router.jetstream"
"""Where an application's extensions have what answers failures below `/jetstream/`."""
PAGES: Final = frozenset({"/", "/console", "/docs", "/favicon.ico", "/openapi.json"})
"""Paths whose failures are problem documents, with what is below PAGES_BELOW."""
PAGES_BELOW: Final = ("/console/", "/docs/")
CHALLENGES: Final = "router.challenges"
"""Where an application's extensions have which credentials it takes."""
BASIC: Final = 'Basic realm="Dragoman", charset="UTF-8"'
BEARER: Final = 'Bearer realm="Dragoman"'
_OF_STATUS: Final[Mapping[int, type[RouterError]]] = {
    400: BadRequestError,
    404: PathNotFoundError,
    405: MethodNotAllowedError,
    413: BatchTooLargeError,
}

MAX_NAME_CHARACTERS: Final = 100
MAX_PATH_CHARACTERS: Final = 200
MAX_REASON_CHARACTERS: Final = 300
_CREDENTIALS: Final = ("HTTP_AUTHORIZATION", "HTTP_X_CAMBRIAAUTH", "HTTP_X_AUTH")

METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")

_log = structlog.get_logger(__name__)


class FailureAnswers(ABC):
    """Turns what views raise into answers of their dialect."""

    def register(self, routes: Flask | Blueprint) -> None:
        """Handle what these views raise."""
        routes.register_error_handler(RouterError, self.failed)
        routes.register_error_handler(ClientGoneError, self.left)
        routes.register_error_handler(Exception, self.broke)

    @abstractmethod
    def failed(self, error: RouterError) -> Response:
        """Answer a failure."""

    def left(self, _error: ClientGoneError) -> Response:
        """Return an empty answer: the client has closed its connection."""
        return Response(b"{}", mimetype="application/json")

    def broke(self, error: Exception) -> Response:
        """Answer a failure of ours: it is logged, and the client learns no more than that."""
        _log.error("request failed", method=request.method, path=request.path, exc_info=error)
        return self.failed(RouterError("The request could not be served; the log says why."))


class Errors(FailureAnswers):
    """Turns all failures of an application into answers."""

    def __init__(
        self, texts: ErrorTexts, transactions: DmaapTransactionIds, metrics: Metrics
    ) -> None:
        self._texts = texts
        self._transactions = transactions
        self._metrics = metrics

    def register(self, routes: Flask | Blueprint) -> None:
        """Handle all that views raise, and what Flask refuses."""
        super().register(routes)
        routes.register_error_handler(HTTPException, self.refused)

    def failed(self, error: RouterError) -> Response:
        """Answer a failure that is in the table, in the form of the path's dialect."""
        problems = current_app.extensions.get(PROBLEMS)
        if problems is not None and _is_page(request.path):
            answer: Response = problems(error)
            return answer
        if request.path.startswith("/jetstream/"):
            light: Callable[[RouterError], Response] | None = current_app.extensions.get(JETSTREAM)
            if light is not None:
                return light(error)
        return self._answer(error)

    def _answer(self, error: RouterError) -> Response:
        row = self._texts.row(error, request.endpoint)
        environ = request.environ
        transaction = environ.get(TRANSACTION) or self._transactions.next(
            environ.get("REMOTE_ADDR", "")
        )
        body = self._texts.body(error.code, row, str(error), transaction)
        answer = failure_answer(row.status, body, retry_after(error, row))
        answer.headers["transactionId"] = transaction
        if isinstance(error, UnsupportedEncodingError):
            answer.headers["Accept-Encoding"] = "gzip, deflate, identity"
        if request.method == "POST" and request.path.startswith("/events/"):
            self._metrics.inc("router_publish_refused_total", code=error.code)
        return answer

    def refused(self, error: HTTPException) -> Response:
        """Answer what Flask refuses: unknown paths, wrong methods."""
        kind = _OF_STATUS.get(error.code or 500)
        if kind is None:
            return self.broke(error)
        if isinstance(error, MethodNotAllowed) and not allowed(current_app):
            kind = PathNotFoundError
        return self.failed(kind(f"{request.method} {request.path}"[:200]))

    def unread(self, status: int, sentence: str) -> tuple[bytes, str]:
        """Return body and transaction id for a request that the server could not even read.

        It is counted here: no view sees it.
        """
        self._metrics.inc("router_http_refused_total", status=str(status))
        error = BadRequestError()
        row = replace(self._texts.row(error), status=status)
        transaction = self._transactions.next("")
        body = self._texts.body(error.code, row, sentence, transaction)
        return orjson.dumps(body), transaction


def _is_page(path: str) -> bool:
    return (path.rstrip("/") or "/") in PAGES or path.startswith(PAGES_BELOW)


def failure_answer(status: int, body: Mapping[str, object], after: str | None) -> Response:
    """Return the answer to a failure; `after`: the seconds until a retry may help."""
    answer = Response(orjson.dumps(body), status=status, mimetype="application/json")
    if after is not None:
        answer.headers["Retry-After"] = after
    if status == 401:
        for challenge in challenges():
            answer.headers.add("WWW-Authenticate", challenge)
    return answer


def challenges() -> tuple[str, ...]:
    """Return which credentials the application takes, as `WWW-Authenticate` names them."""
    found: tuple[str, ...] = current_app.extensions.get(CHALLENGES, (BASIC,))
    return found


class RefusalLog:
    """Logs refusals; callable from many threads or greenlets. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._limit = LineLimit(clock)

    def note(self, error: RouterError, environ: WSGIEnvironment) -> None:
        """Log a failure if it refuses the client: a login, a right, too many requests."""
        if not isinstance(error, UnauthenticatedError | ForbiddenError | TooManyRequestsError):
            return
        left_out = self._limit.admit()
        if left_out is None:
            return
        known = environ.get(USER)
        credentials = any(name in environ for name in _CREDENTIALS)
        # A client that is refused before it is known fails to log in; without credentials it is
        # challenged for them, as browsers and curl expect.
        failed = known is None and credentials and not isinstance(error, ForbiddenError)
        _log.log(
            logging.WARNING if failed or isinstance(error, ForbiddenError) else logging.INFO,
            "login-refused" if failed else "request-refused",
            address=environ.get("REMOTE_ADDR", ""),
            user=known or _claimed(environ.get("HTTP_AUTHORIZATION", "")),
            code=error.code,
            reason=str(error)[:MAX_REASON_CHARACTERS],
            method=environ.get("REQUEST_METHOD", ""),
            path=environ.get("PATH_INFO", "")[:MAX_PATH_CHARACTERS],
            **left_out,
        )


def _claimed(authorization: str) -> str | None:
    """Return the name that a Basic header claims, if it can be read."""
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, _ = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (ValueError, binascii.Error):
        return None
    return name[:MAX_NAME_CHARACTERS] if colon else None


def allowed(app: Flask) -> list[str]:
    """Return the methods of this request's path, none if there is no such path."""
    adapter = app.create_url_adapter(request)
    if adapter is None:
        return []
    found = []
    for method in METHODS:
        try:
            endpoint, _ = adapter.match(method=method)
        except HTTPException:
            continue
        operation = described(app.view_functions[endpoint])
        if operation is None or not operation.hidden:
            found.append(method)
    return sorted({*found, "OPTIONS", *(["HEAD"] if "GET" in found else [])}) if found else []
