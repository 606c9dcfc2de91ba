"""Failures of the console, as pages and as problem documents."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final
from wsgiref.types import WSGIEnvironment

from flask import Response, request

from router.errors import RouterError, TooManyRequestsError, UnauthenticatedError
from router.web.console.pages import Pages, wants_html, wants_problem
from router.web.console.signin import (
    ENDPOINT,
    FIRST_PAGE,
    SCHEME,
    SIGN_IN,
    SignInViews,
    current_page,
)
from router.web.console.visitors import Visitors, has_cookie, has_credentials
from router.web.dmaap.errors import ErrorTexts, retry_after
from router.web.errors import FailureAnswers, challenges

_EVENTS: Final = "text/event-stream"
_REQUEST: Final = "Compare the request with its description at /docs."
_LATER: Final = "Try again in a moment; /ready says whether the router serves."
_RIGHTS: Final = (
    "Ask the topic's owner or an administrator for the right, or use other credentials."
)
_LIST: Final = "Check the list: it may be deleted, or its name may be spelled in another way."
_SIZE: Final = "Send less at once."
_STORE: Final = "See the page of the topic and the log of the router."
_SCHEMA: Final = "Check the schemas of the topic."

HINTS: Final[Mapping[str, str]] = {
    "internal": "The log of the router says why; the answer's transactionId finds the line.",
    "bad-setting": "`router check` names the setting.",
    "bad-request": _REQUEST,
    "bad-name": "Names are 1 to 249 of A-Z a-z 0-9 . _ - and for groups : @ ~ + as well.",
    "bad-framing": "Cambria is <key length>.<message length>.<key><message>, lengths in bytes.",
    "bad-json": "Send an object, or an array of objects.",
    "bad-cloud-event": "Compare the event with the section CloudEvents of the documentation.",
    "bad-read-option": "Leave the parameter out, or write it as the sentence says.",
    "not-acceptable": "Ask for another format by Accept.",
    "unsupported-encoding": "Send one of the content types and encodings that /docs names.",
    "batch-too-large": _SIZE,
    "message-too-large": _SIZE,
    "read-body-too-large": "Send no body with a request that reads.",
    "message-over-max-bytes": "Ask for more bytes.",
    "unauthenticated": "Send the name and password of a user, or a token.",
    "forbidden": _RIGHTS,
    "access-denied": _RIGHTS,
    "blacklisted": "Ask an administrator to take the address off the blacklist.",
    "key-not-found": _LIST,
    "not-allowed": "The topic or the backend does not take this; the sentence says why.",
    "topic-not-found": _LIST,
    "internal-topic": _LIST,
    "namespace-not-found": _LIST,
    "schema-not-found": _SCHEMA,
    "invalid-schema": _SCHEMA,
    "incompatible-schema": _SCHEMA,
    "payload-mismatch": _SCHEMA,
    "not-supported": "Another backend may do this; the documentation compares them.",
    "topic-exists": "Use the topic that there is, or another name.",
    "subscription-not-found": _LIST,
    "subscription-limit": "Delete groups that are not used.",
    "subscription-busy": "Stop the consumers of the group, or wait until their polls end.",
    "fenced": _LATER,
    "too-many-requests": "Wait as long as Retry-After says.",
    "overloaded": _LATER,
    "publish-refused": _STORE,
    "disk-full": "Free space on the disk of the node, or shorten the retention.",
    "topic-terminated": "Publish to another topic.",
    "topic-held": "Stop the producer that has the topic for itself.",
    "quota-exceeded": "Raise the backlog quota, or let the groups catch up.",
    "partial-publish": "Send what is missing again; the sentence says how many are stored.",
    "backend-unavailable": _LATER,
    "backend-timeout": _LATER,
    "outcome-unknown": "Check whether the messages are stored before you send them again.",
    "coordination-unavailable": _LATER,
    "conflict": "Load the page again and repeat what is still to be done.",
    "consumer-exists": "Use another name.",
    "consumer-not-found": _LIST,
    "value-not-found": _LIST,
    "read-failed": "Run `router check`, which checks the data folder.",
    "method-not-allowed": "Use a method of the header Allow.",
    "missing-consumer": "Add a group and a consumer id to the address.",
    "path-not-found": "Begin at /console/, or see /docs for all paths.",
}


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
            "detail": f"{row.text} {error}".strip(),
            "code": error.code,
            "hint": HINTS[error.code],
        }
        answer = self._pages.problem(problem, row.status)
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


def _may_sign_in(environ: WSGIEnvironment) -> bool:
    """Return whether a request of a browser for a page shows no credentials.

    A browser repeats a wrong password of HTTP Basic until it gets a challenge for another one.
    """
    return wants_html(environ) and not wants_problem(environ) and not has_credentials(environ)


def _is_script(environ: WSGIEnvironment) -> bool:
    """Return whether a page's script asks, for which a browser must not open a dialog."""
    mode = environ.get("HTTP_SEC_FETCH_MODE", "navigate")
    return (
        mode != "navigate"
        or "HTTP_X_CSRF_TOKEN" in environ
        or environ.get("HTTP_ACCEPT", "").startswith(_EVENTS)
        or has_cookie(environ)
    )
