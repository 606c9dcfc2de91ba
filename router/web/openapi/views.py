"""`/openapi.json`, and Swagger UI over it at `/docs`.

Both are as open as `/`: they say what every router of this build has, and ask for no credentials.
Swagger UI comes from the package `flask-swagger-ui`, of which nothing but the files is used. It
needs inline styles, so its page has a policy of its own; its scripts are files, as the console's.
"""

from __future__ import annotations

from hashlib import blake2b
from html import escape
from importlib import resources
from importlib.resources.abc import Traversable
from string import Template
from typing import Any, Final

import orjson
from flask import Blueprint, Response, current_app, request
from werkzeug.http import quote_etag

from router.errors import PathNotFoundError
from router.web.console.pages import AGAIN, FOREVER, HEADERS, TYPES, base
from router.web.console.themes import theme
from router.web.dmaap.errors import ErrorTexts
from router.web.errors import FailureAnswers
from router.web.openapi.description import HTML, JSON, ReplyDescription, add_routes, operation
from router.web.openapi.dialects import dialects
from router.web.openapi.document import document, routes

SWAGGER_UI: Final = "flask_swagger_ui"
FILES: Final = frozenset(
    {"swagger-ui.css", "swagger-ui-bundle.js", "docs.css", "docs.js", "theme.js"}
)
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'"
)


class OpenApi:
    """The views of the description."""

    def __init__(self, texts: ErrorTexts, failures: FailureAnswers, *, anonymous: bool) -> None:
        self._texts = texts
        self._failures = failures
        self._anonymous = anonymous
        self._made: dict[str, Any] = {}
        self._digest = ""

    def blueprint(self) -> Blueprint:
        """Return the routes."""
        views = Blueprint("openapi", __name__)
        self._failures.register(views)
        return add_routes(views, self)

    @operation(
        "GET /openapi.json",
        answers={
            200: ReplyDescription("The description.", {JSON: dict}),
            304: ReplyDescription("It is what `If-None-Match` names."),
        },
        fails=(),
        public=True,
    )
    def description(self) -> Response:
        """Answer what you read: every route, in OpenAPI 3.1."""
        body, tag = self._document(base())
        headers = HEADERS | {"Cache-Control": AGAIN, "ETag": quote_etag(tag)}
        if request.if_none_match.contains_weak(tag):
            return Response(status=304, headers=headers)
        return Response(body, mimetype=JSON, headers=headers)

    @operation(
        "GET /docs",
        answers={200: ReplyDescription("The page.", {HTML: str})},
        fails=(),
        public=True,
    )
    def docs(self) -> Response:
        """Answer Swagger UI, which shows the description and tries routes out."""
        text = Template((_own() / "docs.html").read_text(encoding="utf-8")).substitute(
            base=escape(base()),
            theme=theme(request.environ),
            static=escape(f"{base()}/docs/static/{self._version()}"),
        )
        headers = HEADERS | {"Content-Security-Policy": POLICY, "Cache-Control": AGAIN}
        return Response(text, mimetype=HTML, headers=headers)

    @operation(
        "GET /docs/static/<digest>/<name>",
        answers={200: ReplyDescription("The file.", {"text/css": str, "text/javascript": str})},
        fails=("path-not-found",),
        public=True,
    )
    def file(self, digest: str, name: str) -> Response:
        """Answer a file of Swagger UI."""
        if name not in FILES:
            raise PathNotFoundError(f"GET {request.path}"[:200])
        kind = TYPES[name[name.rindex(".") :]]
        answer = Response(_found(name).read_bytes(), content_type=kind, headers=HEADERS)
        answer.headers["Cache-Control"] = FOREVER if digest == self._version() else AGAIN
        return answer

    def _document(self, where: str) -> tuple[bytes, str]:
        """Return the description for clients that see the router at a base path, and its tag."""
        if not self._made:
            found = routes(current_app.url_map, current_app.view_functions)
            self._made = document(found, dialects(self._texts), anonymous=self._anonymous)
        body = orjson.dumps(self._made | {"servers": [{"url": where or "/"}]})
        return body, blake2b(body, digest_size=16).hexdigest()

    def _version(self) -> str:
        """Return what changes with any of the files."""
        if not self._digest:
            whole = b"".join(_found(name).read_bytes() for name in sorted(FILES))
            self._digest = blake2b(whole, digest_size=8).hexdigest()
        return self._digest


def _own() -> Traversable:
    return resources.files(__package__) / "static"


def _found(name: str) -> Traversable:
    mine = _own() / name
    return mine if mine.is_file() else resources.files(SWAGGER_UI) / "dist" / name
