"""Failures as Pulsar's administration tells them: a status, and `{"reason": "…"}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import orjson
import structlog
from flask import Blueprint, Response, request

from router.errors import BadRequestError, RouterError, UnauthenticatedError
from router.services.consume import ClientGoneError
from router.web.dmaap_errors import TABLE, retry_after
from router.web.errors import REALM

# Where Pulsar's status is another than that of the DMaaP Message Router.
STATUS: Final[Mapping[str, int]] = {
    "bad-name": 412,
    "invalid-schema": 422,
    "not-allowed": 405,
    "not-supported": 405,
    "subscription-busy": 412,
    "subscription-limit": 412,
}

_log = structlog.get_logger(__name__)


class RefusedError(BadRequestError):
    """The request cannot be served, for a reason that has a status of its own in Pulsar."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def status_of(error: RouterError) -> int:
    """Return the status of a failure."""
    if isinstance(error, RefusedError):
        return error.status
    found = STATUS.get(error.code)
    return TABLE[error.code].status if found is None else found


class Failures:
    """Turns what the views of the administration raise into answers."""

    def __init__(self, forbidden_status: int) -> None:
        self._forbidden = forbidden_status

    def register(self, routes: Blueprint) -> None:
        """Handle what these views raise."""
        routes.register_error_handler(RouterError, self.failed)
        routes.register_error_handler(ClientGoneError, self.left)
        routes.register_error_handler(Exception, self.broke)

    def failed(self, error: RouterError) -> Response:
        """Answer a failure."""
        status = status_of(error)
        if status == 403:
            status = self._forbidden
        body = orjson.dumps({"reason": str(error)})
        answer = Response(body, status=status, mimetype="application/json")
        after = retry_after(error, TABLE[error.code])
        if after is not None and status in {429, 503}:
            answer.headers["Retry-After"] = after
        if isinstance(error, UnauthenticatedError):
            answer.headers["WWW-Authenticate"] = REALM
        return answer

    def left(self, _error: ClientGoneError) -> Response:
        """Answer nobody."""
        return Response(b"{}", mimetype="application/json")

    def broke(self, error: Exception) -> Response:
        """Answer a failure of ours: it is logged, and the client is told no more than that."""
        _log.error("request failed", method=request.method, path=request.path, exc_info=error)
        return self.failed(RouterError("The request could not be served; the log says why."))
