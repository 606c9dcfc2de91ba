"""Every answer outside 2xx: failures become bodies of the dialect, whoever raised them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import structlog
from flask import Flask, Response, current_app, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from router.errors import (
    BadRequestError,
    BatchTooLargeError,
    MethodNotAllowedError,
    PathNotFoundError,
    RouterError,
    UnauthenticatedError,
    UnsupportedEncodingError,
)
from router.metrics import Metrics
from router.services.consume import ClientGoneError
from router.web.allowed import allowed
from router.web.dmaap_errors import ErrorTexts, retry_after
from router.web.transaction import GIVEN, TransactionIds

PROBLEMS: Final = "router.problems"
"""Where an application's extensions have what tells failures as problem documents."""
PAGES: Final = frozenset({"/", "/console", "/docs", "/favicon.ico", "/openapi.json"})
"""Paths whose failures are problem documents, with what is below PAGES_BELOW."""
PAGES_BELOW: Final = ("/console/", "/docs/")
REALM: Final = 'Basic realm="message router", charset="UTF-8"'
_OF_STATUS: Final[Mapping[int, type[RouterError]]] = {
    400: BadRequestError,
    404: PathNotFoundError,
    405: MethodNotAllowedError,
    413: BatchTooLargeError,
}

_log = structlog.get_logger(__name__)


class Errors:
    """Turns failures into answers."""

    def __init__(self, texts: ErrorTexts, transactions: TransactionIds, metrics: Metrics) -> None:
        self._texts = texts
        self._transactions = transactions
        self._metrics = metrics

    def register(self, app: Flask) -> None:
        """Handle all that views raise."""
        app.register_error_handler(RouterError, self.failed)
        app.register_error_handler(HTTPException, self.refused)
        app.register_error_handler(ClientGoneError, self.left)
        app.register_error_handler(Exception, self.broke)

    def failed(self, error: RouterError) -> Response:
        """Answer a failure that is in the table, in the form of the path's dialect."""
        problems = current_app.extensions.get(PROBLEMS)
        if problems is not None and _is_page(request.path):
            answer: Response = problems(error)
            return answer
        return self._told(error)

    def _told(self, error: RouterError) -> Response:
        row = self._texts.row(error, request.endpoint)
        environ = request.environ
        transaction = environ.get(GIVEN) or self._transactions.next(environ.get("REMOTE_ADDR", ""))
        answer = Response(
            self._texts.body(row, str(error), transaction),
            status=row.status,
            mimetype="application/json",
        )
        answer.headers["transactionId"] = transaction
        if (after := retry_after(error, row)) is not None:
            answer.headers["Retry-After"] = after
        if isinstance(error, UnauthenticatedError):
            answer.headers["WWW-Authenticate"] = REALM
        elif isinstance(error, UnsupportedEncodingError):
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

        It is counted: nobody else sees it.
        """
        self._metrics.inc("router_http_refused_total", status=str(status))
        row = replace(self._texts.row(BadRequestError()), status=status)
        transaction = self._transactions.next("")
        return self._texts.body(row, sentence, transaction), transaction

    def left(self, _error: ClientGoneError) -> Response:
        """Answer nobody."""
        return Response(b"[]", mimetype="application/json")

    def broke(self, error: Exception) -> Response:
        """Answer a failure of ours: it is logged, and the client is told no more than that."""
        _log.error("request failed", method=request.method, path=request.path, exc_info=error)
        return self.failed(RouterError("The request could not be served; the log says why."))


def _is_page(path: str) -> bool:
    return (path.rstrip("/") or "/") in PAGES or path.startswith(PAGES_BELOW)
