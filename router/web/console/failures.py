"""Failures of the console, as pages and as problem documents."""

from __future__ import annotations

from flask import Response

from router.errors import RouterError, UnauthenticatedError
from router.web.console.pages import Pages
from router.web.dmaap_errors import ErrorTexts, retry_after
from router.web.errors import REALM
from router.web.failures import Failures


class ConsoleFailures(Failures):
    """Turns what the console's views raise into answers, with the statuses of DMaaP's dialect."""

    def __init__(self, pages: Pages, texts: ErrorTexts) -> None:
        super().__init__(texts.forbidden_status)
        self._pages = pages
        self._texts = texts

    def failed(self, error: RouterError) -> Response:
        """Answer a failure."""
        row = self._texts.row(error)
        problem = {
            "type": "about:blank",
            "title": error.code.replace("-", " ").capitalize(),
            "status": row.status,
            "detail": f"{row.text} {error}".strip(),
            "code": error.code,
            "hint": (type(error).__doc__ or "").strip().partition("\n")[0],
        }
        answer = self._pages.problem(problem, row.status)
        if (after := retry_after(error, row)) is not None:
            answer.headers["Retry-After"] = after
        if isinstance(error, UnauthenticatedError):
            answer.headers["WWW-Authenticate"] = REALM
        return answer
