"""Who opens a page: a signed-in user by the cookie of a session, all others as in the API.

The cookie counts here alone: the API's views do not read it. Under HTTPS its name begins with
`__Secure-`, so that no page without TLS can set it. A request that a browser marks as coming from
another origin is not the user's, whatever `cors.origins` says, and a change needs the session's
token, in a field of the form or in a header. Requests with credentials in their headers need none.
"""

from __future__ import annotations

import hmac
from itertools import islice
from typing import Final
from urllib.parse import urlsplit
from wsgiref.types import WSGIEnvironment

from router.errors import ForeignPageError
from router.model import Principal
from router.web.access import ConsoleSession, RequestAuthorizer, Sessions
from router.web.addresses import USER, root
from router.web.console.fields import FORM, MULTIPART, Fields
from router.web.media import media_type
from router.web.origins import is_foreign

COOKIE: Final = "router-session"
PREFIX: Final = "__Secure-"
FIELD: Final = "csrf_token"
_HEADER: Final = "HTTP_X_CSRF_TOKEN"
_SESSION: Final = "router.console.session"
_CREDENTIALS: Final = ("HTTP_AUTHORIZATION", "HTTP_X_CAMBRIAAUTH", "HTTP_X_AUTH")
_READING: Final = frozenset({"GET", "HEAD"})
MAX_COOKIES: Final = 50
"""Cookies of a request that are looked at."""


class Visitors:
    """Answers who makes a request for a page; `sessions` is None where there are no users."""

    def __init__(self, access: RequestAuthorizer, sessions: Sessions | None) -> None:
        self._access = access
        self.sessions = sessions

    def principal(self, environ: WSGIEnvironment) -> Principal:
        """Return who makes a request; raise ForeignPageError or as `RequestAuthorizer`."""
        session = self.session(environ)
        if session is None:
            return self._access.principal(environ)
        return Principal(session.user)

    def session(self, environ: WSGIEnvironment) -> ConsoleSession | None:
        """Return the session of a request, None: it has none, or other credentials.

        Raises ForeignPageError for a page of another origin, and for a change without the token.
        """
        if self.sessions is None or has_credentials(environ):
            return None
        found = {
            session
            for text in _cookies(environ)
            if (session := self.sessions.read(text)) is not None
        }
        if len(found) != 1:
            return None  # of several, any but one may have been set by a neighbour of this host
        [session] = found
        if is_foreign(environ):
            raise ForeignPageError("Pages of another origin may not use a session of the console.")
        environ[_SESSION], environ[USER] = session, session.user
        if environ["REQUEST_METHOD"] not in _READING:
            _check_token(environ, session)
        return session


def current(environ: WSGIEnvironment) -> ConsoleSession | None:
    """Return the session that a request was found to have."""
    found: ConsoleSession | None = environ.get(_SESSION)
    return found


def has_credentials(environ: WSGIEnvironment) -> bool:
    """Return whether a request says in its headers who makes it."""
    return any(header in environ for header in _CREDENTIALS)


def has_cookie(environ: WSGIEnvironment) -> bool:
    """Return whether a request has the cookie of a session, good or not."""
    return any(True for _ in _cookies(environ))


def cookie(environ: WSGIEnvironment, text: str | None) -> str:
    """Return the Set-Cookie header that keeps a session in the browser; None: that removes it."""
    path = urlsplit(root(environ)).path.rstrip("/") + "/console"
    value = "; Max-Age=0" if text is None else ""
    secure = "; Secure" if _is_secure(environ) else ""
    return f"{_name(environ)}={text or ''}; Path={path}; HttpOnly; SameSite=Strict{secure}{value}"


def _cookies(environ: WSGIEnvironment) -> list[str]:
    name = _name(environ)
    pairs = (part.strip().partition("=") for part in environ.get("HTTP_COOKIE", "").split(";"))
    return [value for key, _, value in islice(pairs, MAX_COOKIES) if key == name]


def _name(environ: WSGIEnvironment) -> str:
    return PREFIX + COOKIE if _is_secure(environ) else COOKIE


def _is_secure(environ: WSGIEnvironment) -> bool:
    return root(environ).startswith("https:")


def _check_token(environ: WSGIEnvironment, session: ConsoleSession) -> None:
    given = environ.get(_HEADER, "")
    if not given and media_type(environ.get("CONTENT_TYPE", "")) in {FORM, MULTIPART}:
        given = Fields(environ).text(FIELD, "")
    if not hmac.compare_digest(given.encode(), session.token.encode()):
        raise ForeignPageError(
            "The session's token is missing or of another session: load the page again"
            f" ({FIELD} in a form, X-CSRF-Token in a header)."
        )
