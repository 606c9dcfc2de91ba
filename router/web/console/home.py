"""Where browsers and others begin: `/`, the icon, static files, the theme, the page About."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

from flask import Response, current_app, request

from router.errors import (
    BadRequestError,
    MethodNotAllowedError,
    PathNotFoundError,
    RouterError,
)
from router.process.build import VERSION
from router.web import forms
from router.web.addresses import root
from router.web.console import themes
from router.web.console.context import PageContext, PageViews
from router.web.console.fields import Fields
from router.web.console.pages import (
    AGAIN,
    HEADERS,
    TYPES,
    Assets,
    Pages,
    action,
    base,
    page,
    wants_html,
    wants_json_page,
)
from router.web.console.signin import own_page
from router.web.errors import allowed
from router.web.openapi.description import JSON, ReplyDescription, one_of, operation

NAME: Final = "dragoman"


class HomeViews(PageViews):
    """The views that need no topic."""

    def __init__(
        self, context: PageContext, assets: Assets, ready: Callable[[], None], backend: str
    ) -> None:
        super().__init__(context)
        self._pages: Pages = context.pages
        self._assets = assets
        self._ready = ready
        self._backend = backend

    @operation(
        "GET /",
        answers={
            200: ReplyDescription("What runs here and where to go.", {JSON: dict}),
            302: ReplyDescription("For a browser: `Location` is the console."),
        },
        fails=(),
        public=True,
    )
    def root(self) -> Response:
        """Send a browser to the console, and answer other clients what runs here."""
        if wants_html(request.environ):
            answer = Response(status=302, headers=HEADERS)
            answer.headers["Location"] = base() + "/console/"
        else:
            answer = forms.answer(_directory(root(request.environ)))
        answer.headers["Vary"] = "Accept"
        answer.headers["Cache-Control"] = "no-cache"
        return answer

    @operation(
        "GET /favicon.ico",
        answers={200: ReplyDescription("The icon.", {"image/svg+xml": str})},
        fails=(),
        public=True,
    )
    def icon(self) -> Response:
        """Answer the icon, which browsers ask for by themselves."""
        return self._file("icon.svg", AGAIN)

    @operation(
        "GET /console/static/<digest>/<name>",
        answers={
            200: ReplyDescription(
                "The file.", {kind.partition(";")[0]: str for kind in TYPES.values()}
            )
        },
        fails=("path-not-found",),
        public=True,
    )
    def static(self, digest: str, name: str) -> Response:
        """Answer a file of the console."""
        return self._file(name, self._assets.caching(digest))

    @action("POST /console/theme", "theme", kinds={"theme": one_of(themes.THEMES)})
    def theme(self) -> Response:
        """Keep a theme in the browser; a form without script goes back to its page."""
        environ = request.environ
        wants_json_page(environ)  # a format that is none is refused before anything is done
        self._context.visitors.session(environ)
        chosen = Fields(environ).text("theme")
        if chosen not in themes.THEMES:
            raise BadRequestError(f"theme: expected {', '.join(themes.THEMES)}.")
        came = urlsplit(environ.get("HTTP_REFERER", ""))
        back = own_page(came.path.removeprefix(base()) + (came.query and "?" + came.query))
        answer = self._pages.done({"theme": chosen}, back)
        answer.headers["Set-Cookie"] = themes.cookie(environ, chosen)
        return answer

    @page("GET /console/about")
    def about(self) -> Response:
        """Say what runs here, and whether it is well."""
        principal = self._context.principal()
        data = {
            "version": VERSION,
            "backend": self._backend,
            "health": self._health(),
            "user": principal.name,
            "address": root(request.environ),
            "topic": "orders",
        }
        return self._pages.answer("about.html", data)

    @operation("GET /console/<path:rest>", hidden=True)
    def unknown(self, rest: str) -> Response:
        """Refuse a path that is none of the console's, or that takes forms and has no page."""
        kind = MethodNotAllowedError if allowed(current_app) else PathNotFoundError
        raise kind(f"GET /console/{rest}"[:200])

    def _health(self) -> dict[str, str]:
        try:
            self._ready()
        except RouterError as error:
            return {"status": "not ready", "reason": str(error)}
        return {"status": "ready", "reason": ""}

    def _file(self, name: str, caching: str) -> Response:
        found = self._assets.get(name)
        if found is None:
            raise PathNotFoundError(f"GET {request.path}"[:200])
        answer = Response(found.data, content_type=found.kind, headers=HEADERS)
        answer.headers["Cache-Control"] = caching
        return answer


def _directory(address: str) -> dict[str, Any]:
    return {
        "name": NAME,
        "version": VERSION,
        "console": f"{address}/console/",
        "docs": f"{address}/docs",
        "openapi": f"{address}/openapi.json",
        "publish": f"{address}/events/{{topic}}",
        "poll": f"{address}/events/{{topic}}/{{group}}/{{id}}",
        "stream": f"{address}/events/{{topic}}?stream",
        "topics": f"{address}/topics",
        "health": f"{address}/health",
        "ready": f"{address}/ready",
        "metrics": f"{address}/metrics",
    }
