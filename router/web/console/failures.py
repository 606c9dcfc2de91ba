"""Failures of the console, as pages and as problem documents."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final
from wsgiref.types import WSGIEnvironment

from flask import Response, current_app, request

from router.errors import BadRequestError, RouterError, TooManyRequestsError, UnauthenticatedError
from router.errors.catalogue import ADVICE
from router.web.console.fields import MAX_FORM_BYTES, fields_read
from router.web.console.pages import Pages, wants_html, wants_problem
from router.web.console.signin import (
    ENDPOINT,
    FIRST_PAGE,
    SCHEME,
    SIGN_IN,
    SignInViews,
    current_page,
)
from router.web.console.visitors import FIELD, Visitors, has_cookie, has_credentials
from router.web.dmaap.errors import ErrorTexts, retry_after
from router.web.errors import FailureAnswers, challenges
from router.web.openapi.description import described
from router.web.requests import recorded

_EVENTS: Final = "text/event-stream"
_CORRECTABLE: Final = frozenset({400, 404, 409, 413, 422})
_SELF_EXPLANATORY: Final = ("bad-request", "bad-read-option")
_NEVER_SHOWN: Final = frozenset({FIELD, "password", "format"})


class ConsoleFailures(FailureAnswers):
    """Turns what the console's views raise into answers, with the statuses of DMaaP's dialect."""

    def __init__(
        self, pages: Pages, visitors: Visitors, sign_in: SignInViews, texts: ErrorTexts
    ) -> None:
        self._pages = pages
        self._visitors = visitors
        self._sign_in = sign_in
        self._texts = texts

    def failed(self, error: RouterError) -> Response:
        """Answer a failure; a browser without credentials is sent to the sign-in page."""
        environ = request.environ
        unknown = isinstance(error, UnauthenticatedError)
        if request.endpoint == ENDPOINT and not wants_problem(environ):
            if isinstance(error, UnauthenticatedError | TooManyRequestsError):
                return self._sign_in.refused(error)
        elif unknown and self._visitors.sessions is not None and _may_sign_in(environ):
            return self._to_sign_in(environ)
        row = self._texts.row(error)
        problem = {
            "type": "about:blank",
            "title": HTTPStatus(row.status).phrase,
            "status": row.status,
            "detail": _sentence(row.text, error),
            "code": error.code,
            "hint": ADVICE[error.code].remedy,
        }
        answer = self._pages.problem(problem, row.status, _refused_fields(environ, row.status))
        if (after := retry_after(error, row)) is not None:
            answer.headers["Retry-After"] = after
        if row.status == 401:
            for challenge in (SCHEME,) if _is_script(environ) else challenges():
                answer.headers.add("WWW-Authenticate", challenge)
        return answer

    def _to_sign_in(self, environ: WSGIEnvironment) -> Response:
        if environ["REQUEST_METHOD"] not in {"GET", "HEAD"}:
            return self._pages.done({}, SIGN_IN, next=FIRST_PAGE)
        if environ.get("HTTP_SEC_FETCH_SITE") == "cross-site" and not has_cookie(environ):
            # A strict cookie does not come along with a link of another site: the browser asks
            # once more, and then from a page of ours.
            return self._pages.answer("again.html", {"path": current_page()})
        return self._pages.done({}, SIGN_IN, next=current_page())


def _sentence(text: str, error: RouterError) -> str:
    """Return what went wrong; of a bad request what is wrong with it, and not only that it is."""
    own = str(error)
    return (
        own
        if own and error.code in _SELF_EXPLANATORY
        else f"{text.removesuffix('-')} {own}".strip()
    )


def _may_sign_in(environ: WSGIEnvironment) -> bool:
    """Return whether a request of a browser for a page shows no credentials.

    A browser repeats a wrong password of HTTP Basic until it gets a challenge for another one.
    """
    return wants_html(environ) and not wants_problem(environ) and not has_credentials(environ)


def _refused_fields(environ: WSGIEnvironment, status: int) -> dict[str, str]:
    """Return the fields of a form that may be corrected; none where a file was among them.

    Nor of a request of another page: it is refused as forbidden, or has no token for the next one.
    """
    if status not in _CORRECTABLE or wants_problem(environ):
        return {}
    if environ["REQUEST_METHOD"] == "GET":
        found = _page_parameters(environ) if status == 400 else {}
    else:
        form = fields_read(environ)
        found = {} if form is None or form.has_upload else form.texts()
    shown = {name: text for name, text in found.items() if name not in _NEVER_SHOWN}
    return shown if sum(map(len, shown.values())) <= MAX_FORM_BYTES else {}


def _page_parameters(environ: WSGIEnvironment) -> dict[str, str]:
    """Return the parameters of a page that its address has, and no others.

    A link of another site could label a field as it likes.
    """
    page = described(current_app.view_functions.get(request.endpoint or ""))
    if page is None:
        return {}
    try:
        return recorded(environ, [one.name for one in page.parameters])
    except BadRequestError:
        return {}  # too many: it may be what failed


def _is_script(environ: WSGIEnvironment) -> bool:
    """Return whether a page's script asks, for which a browser must not open a dialog."""
    mode = environ.get("HTTP_SEC_FETCH_MODE", "navigate")
    return (
        mode != "navigate"
        or "HTTP_X_CSRF_TOKEN" in environ
        or environ.get("HTTP_ACCEPT", "").startswith(_EVENTS)
        or has_cookie(environ)
    )
