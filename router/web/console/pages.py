"""Pages and their JSON twins: what every answer of the console has in common.

A view returns a page's name and its data; what a browser gets is the template with the data in it,
and `?format=json` gets the data. Jinja escapes all that is put into a page, scripts get data by
`textContent` alone, and the policy of each page allows scripts and styles of this router and no
others, none of them inline: so a name or message that holds markup is shown as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode, urlsplit

import orjson
from flask import Response, request
from jinja2 import Environment, PackageLoader, StrictUndefined

from router.build import VERSION
from router.web.addresses import root
from router.web.console.assets import Assets
from router.web.console.commands import segment
from router.web.console.formats import json_wanted, problem_wanted
from router.web.console.shown import at, size, visible, written
from router.web.console.visitors import current
from router.web.transaction import USER

if TYPE_CHECKING:
    pass

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    # With no-referrer a browser would send `Origin: null` with a form, which is a foreign origin.
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
NO_STORE: Final = {"Cache-Control": "no-store"}
NAVIGATION: Final = (
    ("Topics", "/console/topics"),
    ("Groups", "/console/groups"),
    ("Pipelines", "/console/pipelines"),
    ("Access", "/console/access"),
    ("Settings", "/console/settings"),
)
PROBLEM: Final = "application/problem+json"


class Pages:
    """Writes pages, and sends on to them."""

    def __init__(self, assets: Assets) -> None:
        self._assets = assets
        self._templates = Environment(
            loader=PackageLoader(__package__),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._templates.filters |= {
            "size": size,
            "at": at,
            "segment": segment,
            "json": _in_json,
            "visible": visible,
            "written": written,
        }
        # A global: macros do not see what a page is made with.
        self._templates.globals["csrf_token"] = _token

    def answer(self, name: str, data: Mapping[str, Any], status: int = 200) -> Response:
        """Return a page, or its data for those who ask for that."""
        if json_wanted(request.environ):
            return _json(data, "application/json", status)
        return self._page(name, data, status)

    def problem(self, problem: Mapping[str, Any], status: int) -> Response:
        """Return a failure: a page for a browser, else a problem document (RFC 9457)."""
        if problem_wanted(request.environ):
            return _json(problem, PROBLEM, status)
        return self._page("error.html", problem, status)

    def done(self, data: Mapping[str, Any], path: str, **query: str) -> Response:
        """Return what an action did; a form without script is sent on to a page that shows it."""
        if json_wanted(request.environ):
            return _json(data, "application/json", 200)
        answer = Response(status=303, headers=HEADERS | NO_STORE)
        answer.headers["Location"] = base() + path + ("?" + urlencode(query) if query else "")
        return answer

    def _page(self, name: str, data: Mapping[str, Any], status: int) -> Response:
        session = current(request.environ)
        text = self._templates.get_template(name).render(
            data=data,
            user=request.environ.get(USER, ""),
            may_sign_out=session is not None,
            base=base(),
            here=request.path.rstrip("/"),
            navigation=NAVIGATION,
            static=f"{base()}/console/static/{self._assets.digest}",
            version=VERSION,
        )
        return Response(text, status=status, mimetype="text/html", headers=HEADERS | NO_STORE)


def base() -> str:
    """Return what comes before the paths of addresses, as the client sees them; mostly nothing."""
    return urlsplit(root(request.environ)).path.rstrip("/")


def _token() -> str:
    session = current(request.environ)
    return "" if session is None else session.token


def _in_json(value: object) -> str:
    """Return a value as an attribute has it for scripts, before it is escaped."""
    return orjson.dumps(value).decode()


def _json(data: Mapping[str, Any], kind: str, status: int) -> Response:
    body = orjson.dumps(data, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    return Response(body, status=status, mimetype=kind, headers=HEADERS | NO_STORE)
