"""Signing in to the console with a user's name and password, and out."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

import structlog
from flask import Response, request

from router.errors import (
    ForeignPageError,
    NotSupportedError,
    TooManyRequestsError,
    UnauthenticatedError,
)
from router.web.console.context import PageContext, PageViews, words
from router.web.console.fields import Fields
from router.web.console.pages import Pages, action, page, wants_json_page
from router.web.console.visitors import cookie
from router.web.dmaap.errors import ErrorTexts, retry_after
from router.web.openapi.description import text
from router.web.origins import is_foreign
from router.web.requests import Query

FIRST_PAGE: Final = "/console/"
SIGN_IN: Final = "/console/signin"
SCHEME: Final = 'Session realm="Dragoman"'
"""A challenge that no browser answers with a dialog of its own."""
ENDPOINT: Final = "console.sign_in"
MAX_SIGN_IN_BYTES: Final = 32 * 1024
"""Of the form, which needs no credentials."""
MAX_NEXT_CHARACTERS: Final = 2_000
_PATH_CHARACTERS: Final = r"A-Za-z0-9._~%!$&'()*+,;=:@\-"
_OWN: Final = re.compile(
    rf"/console(?:/[{_PATH_CHARACTERS}]*)*(?:\?[{_PATH_CHARACTERS}/?]*)?", re.ASCII
)
# Browsers take these out of a path, escaped or not, and so may leave /console/.
_DOTS: Final = re.compile(r"(?:\.|%2e){1,2}", re.I)
_UNESCAPED: Final = "/?%!$&'()*+,;=:@~"

_log = structlog.get_logger(__name__)


class SignInViews(PageViews):
    """The views of `/console/signin` and `/console/signout`."""

    def __init__(self, context: PageContext, texts: ErrorTexts) -> None:
        super().__init__(context)
        self._pages: Pages = context.pages
        self._texts = texts

    @page(f"GET {SIGN_IN}", text("next", "The page of the console that follows."), fails=())
    def form(self) -> Response:
        """Answer the form."""
        session = self._context.visitors.session(request.environ)
        return self._form(
            own_page(words(Query(request.environ), "next")),
            user="" if session is None else session.user,
        )

    @action(
        f"POST {SIGN_IN}",
        "user",
        "password",
        optional=("next",),
        fails=("unauthenticated", "too-many-requests"),
    )
    def sign_in(self) -> Response:
        """Begin a session of the console."""
        environ = request.environ
        wants_json_page(environ)  # a format that is none is refused before anything is done
        fields = Fields(environ, MAX_SIGN_IN_BYTES)
        sessions = self._context.visitors.sessions
        if sessions is None:
            raise NotSupportedError("This router has no users (auth.users) who could sign in.")
        if is_foreign(environ):
            raise ForeignPageError("Pages of another origin may not sign in.")
        user, password = fields.text("user"), fields.text("password")
        goal = own_page(fields.text("next", ""))
        address, client = environ.get("REMOTE_ADDR", ""), environ.get("gunicorn.socket")
        session = sessions.begin(user, password, address, client)
        _log.info("signed in to the console", user=user, address=address)
        answer = self._pages.done({"user": user, "next": goal}, goal)
        answer.headers["Set-Cookie"] = cookie(environ, session)
        return answer

    @action("POST /console/signout")
    def sign_out(self) -> Response:
        """End the session, and remove it from the browser."""
        visitors, session = self._context.visitors, self._context.visitors.session(request.environ)
        if session is not None and visitors.sessions is not None:
            visitors.sessions.end(session)
            _log.info("signed out of the console", user=session.user)
        answer = self._pages.done({"signed_in": False}, SIGN_IN)
        answer.headers["Set-Cookie"] = cookie(request.environ, None)
        return answer

    def refused(self, error: UnauthenticatedError | TooManyRequestsError) -> Response:
        """Answer the form once more, and why no session is begun."""
        fields = Fields(request.environ)
        goal, user = own_page(fields.text("next", "")), fields.text("user", "")
        row = self._texts.row(error)
        after = retry_after(error, row)
        again = "" if after is None else f" Try again in {after} seconds."
        answer = self._form(goal, name=user, failure=f"{error}{again}", status=row.status)
        if after is not None:
            answer.headers["Retry-After"] = after
        if isinstance(error, UnauthenticatedError):
            answer.headers["WWW-Authenticate"] = SCHEME
        return answer

    def _form(
        self, goal: str, *, user: str = "", name: str = "", failure: str = "", status: int = 200
    ) -> Response:
        data = {
            "next": goal,
            "user": user,
            "name": name,
            "failure": failure,
            "has_users": self._context.visitors.sessions is not None,
        }
        return self._pages.answer("signin.html", data, status)


def own_page(path: str) -> str:
    """Return a path of the console's as it was given, FIRST_PAGE for any other text."""
    if len(path) > MAX_NEXT_CHARACTERS or not _OWN.fullmatch(path):
        return FIRST_PAGE
    segments = path.partition("?")[0].split("/")
    return FIRST_PAGE if any(map(_DOTS.fullmatch, segments)) else path


def current_page() -> str:
    """Return the page of this request, for going back to it."""
    return own_page(quote(request.full_path.rstrip("?"), safe=_UNESCAPED))
