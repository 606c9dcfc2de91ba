"""Pages and their JSON twins: what every answer of the console has in common.

A view returns a page's name and its data; what a browser gets is the template with the data in it,
and `?format=json` gets the data. Jinja escapes all that is put into a page, scripts get data by
`textContent` alone, and the policy of each page allows scripts and styles of this router and no
others, none of them inline: so a name or message that holds markup is shown as text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from importlib import resources
from typing import Any, Final
from urllib.parse import urlencode, urlsplit
from wsgiref.types import WSGIEnvironment

import orjson
from flask import Response, request
from jinja2 import Environment, PackageLoader, StrictUndefined

from router.errors import BadRequestError
from router.process.build import VERSION
from router.web.addresses import USER, root
from router.web.console.commands import segment
from router.web.console.fields import FORM, MULTIPART
from router.web.console.shown import ago, at, count, moment, seconds, size, visible, written
from router.web.console.themes import THEMES, theme
from router.web.console.visitors import current
from router.web.media import PROBLEM
from router.web.openapi import description as api
from router.web.requests import Query

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
    ("Overview", "/console/"),
    ("Topics", "/console/topics"),
    ("Groups", "/console/groups"),
    ("Streams", "/console/streams"),
    ("Pipelines", "/console/pipelines"),
    ("Connections", "/console/connections"),
    ("Transactions", "/console/transactions"),
    ("Access", "/console/access"),
    ("Audit", "/console/audit"),
    ("Settings", "/console/settings"),
)
TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
FOREVER: Final = "public, max-age=31536000, immutable"
AGAIN: Final = "no-cache"
FORMATS: Final = ("html", "json")
FORMAT: Final = api.choice("format", FORMATS, "A page, or its data; `Accept` says it as well.")
PAGED: Final = api.number("page", "Which page, from 1 on.")
SIGN_IN: Final = {
    303: api.ReplyDescription("For a browser without credentials: `Location` is the sign-in page.")
}
_NO_FIELDS: Final[Mapping[str, str]] = {}
_NO_KINDS: Final[Mapping[str, api.Form]] = {}
CONFIRMED: Final = {
    "confirm": {"type": "string", "minLength": 1, "description": "Its name, written once more."}
}
"""The field of forms about what cannot be undone."""
WHOLE_NUMBER: Final = {"type": "string", "pattern": "^[0-9]{0,9}$"}
FAILS: Final = (*api.TOPIC, *api.STORE, "not-allowed", "not-supported")


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
            "ago": ago,
            "moment": moment,
            "at": at,
            "count": count,
            "seconds": seconds,
            "segment": segment,
            "json": _in_json,
            "visible": visible,
            "written": written,
        }
        # A global: macros do not see what a page is made with.
        self._templates.globals["csrf_token"] = _token

    def answer(self, name: str, data: Mapping[str, Any], status: int = 200) -> Response:
        """Return a page, or its data for those who ask for that."""
        if wants_json_page(request.environ):
            return _json(data, "application/json", status)
        return self._page(name, data, status)

    def problem(
        self, problem: Mapping[str, Any], status: int, fields: Mapping[str, str] = _NO_FIELDS
    ) -> Response:
        """Return a failure: a page for a browser, else a problem document (RFC 9457).

        The page has the `fields` of a form that was refused, to be corrected and sent once more.
        """
        if wants_problem(request.environ):
            return _json(problem, PROBLEM, status)
        form = {"method": request.method.lower(), "fields": fields}
        return self._page("error.html", {**problem, **form}, status)

    def done(self, data: Mapping[str, Any], path: str, **query: str) -> Response:
        """Return what an action did; a form without script is sent on to a page that shows it."""
        if wants_json_page(request.environ):
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
            theme=theme(request.environ),
            themes=THEMES,
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


@dataclass(frozen=True, slots=True)
class Asset:
    """One file."""

    data: bytes
    kind: str


class Assets:
    """All files, read once; `digest` changes with any of them, and is part of their addresses."""

    def __init__(self) -> None:
        folder = resources.files(__package__) / "static"
        self._files = {
            found.name: Asset(found.read_bytes(), TYPES["." + found.name.rpartition(".")[2]])
            for found in sorted(folder.iterdir(), key=lambda found: found.name)
        }
        whole = b"".join(name.encode() + asset.data for name, asset in self._files.items())
        self.digest = blake2b(whole, digest_size=8).hexdigest()

    def get(self, name: str) -> Asset | None:
        """Return a file, None: there is none of this name."""
        return self._files.get(name)

    def caching(self, digest: str) -> str:
        """Return how long a file may be kept that was requested under a digest.

        Another digest is of a page of another build, such as a node's that is not yet restarted.
        """
        return FOREVER if digest == self.digest else AGAIN


def wants_json_page(environ: WSGIEnvironment) -> bool:
    """Return whether a request asks for data: by `format`, else by an Accept without HTML.

    Raises BadRequestError for a query that cannot be read.
    """
    query = Query(environ)
    if requested := query.choice("format", FORMATS, ""):
        return requested == "json"
    accepted = environ.get("HTTP_ACCEPT", "").lower()
    return "json" in accepted and "text/html" not in accepted


def wants_problem(environ: WSGIEnvironment) -> bool:
    """Return whether a failure is answered as data, not as a page (by `format` and Accept)."""
    try:
        requested = Query(environ).choice("format", FORMATS, "")
    except BadRequestError:
        requested = ""
    return requested == "json" if requested else not wants_html(environ)


def wants_html(environ: WSGIEnvironment) -> bool:
    """Return whether a browser asks for a page."""
    return "text/html" in environ.get("HTTP_ACCEPT", "").lower()


def page(
    *about: str | api.Parameter, fails: tuple[str, ...] = FAILS
) -> Callable[[api.View], api.View]:
    """Return a decorator that describes a page with a JSON twin: its routes and parameters."""
    return api.operation(
        FORMAT,
        *about,
        answers={
            200: api.ReplyDescription("The page, or its data.", {api.HTML: str, api.JSON: dict}),
            **SIGN_IN,
        },
        fails=fails,
    )


def action(
    route: str,
    *fields: str,
    optional: tuple[str, ...] = (),
    kinds: Mapping[str, api.Form] = _NO_KINDS,
    fails: tuple[str, ...] = (),
    multipart: bool = False,
) -> Callable[[api.View], api.View]:
    """Return a decorator that describes what a form with these fields does.

    `kinds`: fields that are not any text.
    """
    form = api.shape(
        {name: kinds.get(name, str) for name in fields},
        {name: kinds.get(name, str) for name in optional},
    )
    return api.operation(
        route,
        FORMAT,
        body=api.BodyDescription(
            {FORM: form} | ({MULTIPART: form} if multipart else {}),
            required=bool(fields or optional),
        ),
        answers={
            200: api.ReplyDescription("What was done.", {api.JSON: dict, api.HTML: str}),
            303: api.ReplyDescription("Done; `Location` is the page that shows it."),
        },
        fails=(*FAILS, *fails),
    )
