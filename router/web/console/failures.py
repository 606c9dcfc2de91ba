"""Failures of the console, as pages and as problem documents."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from flask import Blueprint, Response, request

from router.errors import RouterError, TooManyRequestsError, UnauthenticatedError
from router.web.console.formats import html_wanted, problem_wanted
from router.web.console.hints import HINTS
from router.web.console.pages import Pages
from router.web.console.signin import (
    ENDPOINT,
    FIRST_PAGE,
    SCHEME,
    SIGN_IN,
    SignInViews,
    asked_page,
)
from router.web.console.visitors import Visitors, has_cookie, has_credentials
from router.web.dmaap_errors import ErrorTexts, retry_after
from router.web.errors import PROBLEMS, REALM
from router.web.failures import Failures

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

_EVENTS: Final = "text/event-stream"


class ConsoleFailures(Failures):
    """Turns what the console's views raise into answers, with the statuses of DMaaP's dialect."""

    def __init__(
        self, pages: Pages, visitors: Visitors, sign_in: SignInViews, texts: ErrorTexts
    ) -> None:
        super().__init__(texts.forbidden_status)
        self._pages = pages
        self._visitors = visitors
        self._sign_in = sign_in
        self._texts = texts

    def register(self, routes: Blueprint) -> None:
        """Handle what these views raise, and what is raised before a view is found."""
        super().register(routes)
        routes.record_once(lambda state: state.app.extensions.update({PROBLEMS: self.failed}))

    def failed(self, error: RouterError) -> Response:
        """Answer a failure; a browser without credentials is sent to the sign-in page."""
        environ = request.environ
        unknown = isinstance(error, UnauthenticatedError)
        if request.endpoint == ENDPOINT and not problem_wanted(environ):
            if isinstance(error, UnauthenticatedError | TooManyRequestsError):
                return self._sign_in.refused(error)
        elif unknown and self._visitors.sessions is not None and _may_sign_in(environ):
            return self._to_sign_in(environ)
        row = self._texts.row(error)
        problem = {
            "type": "about:blank",
            "title": HTTPStatus(row.status).phrase,
            "status": row.status,
            "detail": f"{row.text} {error}".strip(),
            "code": error.code,
            "hint": HINTS[error.code],
        }
        answer = self._pages.problem(problem, row.status)
        if (after := retry_after(error, row)) is not None:
            answer.headers["Retry-After"] = after
        if unknown:
            answer.headers["WWW-Authenticate"] = SCHEME if _is_script(environ) else REALM
        return answer

    def _to_sign_in(self, environ: WSGIEnvironment) -> Response:
        if environ["REQUEST_METHOD"] not in {"GET", "HEAD"}:
            return self._pages.done({}, SIGN_IN, next=FIRST_PAGE)
        if environ.get("HTTP_SEC_FETCH_SITE") == "cross-site" and not has_cookie(environ):
            # A strict cookie does not come along with a link of another site: the browser asks
            # once more, and then from a page of ours.
            return self._pages.answer("again.html", {"path": asked_page()})
        return self._pages.done({}, SIGN_IN, next=asked_page())


def _may_sign_in(environ: WSGIEnvironment) -> bool:
    """Return whether a request of a browser for a page shows no credentials.

    A browser goes on sending a wrong password of HTTP Basic until it is asked for another one.
    """
    return html_wanted(environ) and not problem_wanted(environ) and not has_credentials(environ)


def _is_script(environ: WSGIEnvironment) -> bool:
    """Return whether a page's script asks, for which a browser must not open a dialog."""
    mode = environ.get("HTTP_SEC_FETCH_MODE", "navigate")
    return (
        mode != "navigate"
        or "HTTP_X_CSRF_TOKEN" in environ
        or environ.get("HTTP_ACCEPT", "").startswith(_EVENTS)
        or has_cookie(environ)
    )
