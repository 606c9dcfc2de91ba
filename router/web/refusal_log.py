"""Log lines of refused requests: who was refused, from where, and why.

Clients decide how many of them there are, so a process writes a bounded number in a second; the
next line after that says how many were left out. No line has a password or a token.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog

from router.errors import ForbiddenError, RouterError, TooManyRequestsError, UnauthenticatedError
from router.log import LineLimit
from router.web.transaction import USER

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

MAX_NAME_CHARACTERS: Final = 100
MAX_PATH_CHARACTERS: Final = 200
MAX_REASON_CHARACTERS: Final = 300
_CREDENTIALS: Final = ("HTTP_AUTHORIZATION", "HTTP_X_CAMBRIAAUTH", "HTTP_X_AUTH")

_log = structlog.get_logger(__name__)


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
        # asked for them, as browsers and curl expect.
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
