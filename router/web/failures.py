"""Failures as the JSON of one group of routes, for dialects whose answers are not DMaaP's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import orjson
import structlog
from flask import Blueprint, Response, request

from router.errors import RouterError, UnauthenticatedError
from router.services.consume import ClientGoneError
from router.web.errors import REALM

_log = structlog.get_logger(__name__)


class Failures(ABC):
    """Turns what the views of a dialect raise into answers."""

    def __init__(self, forbidden_status: int) -> None:
        self._forbidden = forbidden_status

    def register(self, routes: Blueprint) -> None:
        """Handle what these views raise."""
        routes.register_error_handler(RouterError, self.failed)
        routes.register_error_handler(ClientGoneError, self.left)
        routes.register_error_handler(Exception, self.broke)

    @abstractmethod
    def failed(self, error: RouterError) -> Response:
        """Answer a failure."""

    def left(self, _error: ClientGoneError) -> Response:
        """Answer nobody."""
        return Response(b"{}", mimetype="application/json")

    def broke(self, error: Exception) -> Response:
        """Answer a failure of ours: it is logged, and the client is told no more than that."""
        _log.error("request failed", method=request.method, path=request.path, exc_info=error)
        return self.failed(RouterError("The request could not be served; the log says why."))


def told(
    error: RouterError, status: int, body: Mapping[str, object], after: str | None
) -> Response:
    """Return the answer that tells of a failure; `after`: the seconds until a retry may help."""
    answer = Response(orjson.dumps(body), status=status, mimetype="application/json")
    if after is not None:
        answer.headers["Retry-After"] = after
    if isinstance(error, UnauthenticatedError):
        answer.headers["WWW-Authenticate"] = REALM
    return answer
