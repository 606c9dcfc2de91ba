"""Whether a request asks for a page or for data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from router.errors import BadRequestError
from router.web.parameters import Query

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

FORMATS: Final = ("html", "json")


def json_wanted(environ: WSGIEnvironment) -> bool:
    """Return whether a request asks for data: by `format`, else by an Accept without HTML.

    Raises BadRequestError for a query that cannot be read.
    """
    query = Query(environ)
    if wanted := query.choice("format", FORMATS, ""):
        return wanted == "json"
    accepted = environ.get("HTTP_ACCEPT", "").lower()
    return "json" in accepted and "text/html" not in accepted


def problem_wanted(environ: WSGIEnvironment) -> bool:
    """Return whether a failure is told as data: unless `format` or a browser asks for a page."""
    try:
        wanted = Query(environ).choice("format", FORMATS, "")
    except BadRequestError:
        wanted = ""
    return wanted == "json" if wanted else not html_wanted(environ)


def html_wanted(environ: WSGIEnvironment) -> bool:
    """Return whether a browser asks for a page."""
    return "text/html" in environ.get("HTTP_ACCEPT", "").lower()
