"""Pages for administrators: settings in force with the origin of each, and pipelines."""

from __future__ import annotations

from typing import Any

from flask import Response, request

from router.services.pipelines import MAX_LISTED
from router.settings import BY_NAME, DEFAULT, Settings, Value, shown
from router.web.console import commands
from router.web.console.context import PageContext, PageViews, words
from router.web.console.pages import page
from router.web.openapi.description import flag, text
from router.web.requests import Query


class PipelineViews(PageViews):
    """The view of `/console/pipelines`."""

    @page("GET /console/pipelines")
    def pipelines(self) -> Response:
        """Answer the pipelines that this node knows, with state, lag, rate and last error."""
        principal = self._context.administrator("Pipelines")
        found = self._services.pipelines.listed()
        url = commands.url("console", "pipelines") + "?format=json"
        data = {
            "pipelines": found,
            "full": len(found) == MAX_LISTED,
            "commands": [
                commands.curl(principal, url),
                commands.router("pipeline", "list"),
                *(commands.router("pipeline", "status", one["name"]) for one in found),
            ],
        }
        return self._context.pages.answer("pipelines.html", data)


class SettingsViews(PageViews):
    """The view of `/console/settings`."""

    def __init__(self, context: PageContext, settings: Settings) -> None:
        super().__init__(context)
        self._settings = settings

    @page(
        "GET /console/settings",
        text("q", "Settings that hold this."),
        flag("changed", "Those that are not the default."),
    )
    def settings(self) -> Response:
        """Answer the settings of this node that a search finds, secrets masked."""
        principal, query = self._context.administrator("Settings"), Query(request.environ)
        search, changed = words(query, "q"), query.flag("changed", default=False)
        rows = [
            row
            for name, value in self._settings.values.items()
            if not changed or value.origin != DEFAULT
            if _matches(row := _row(name, value), search)
        ]
        url = commands.url("console", "settings") + "?format=json"
        data = {
            "search": search,
            "changed": changed,
            "settings": rows,
            "commands": [
                commands.curl(principal, url),
                commands.router("check", *(["--changed"] if changed else [])),
            ],
        }
        return self._context.pages.answer("settings.html", data)


def _row(name: str, value: Value) -> dict[str, Any]:
    return {
        "name": name,
        "value": _printable(shown(name, value.text)),
        "origin": _printable(value.origin),
        "default": BY_NAME[name].default,
        "meaning": BY_NAME[name].sentence,
    }


def _printable(text: str) -> str:
    """Return a text without what is no character: bytes of a variable or a file's name."""
    return text.encode(errors="replace").decode()


def _matches(row: dict[str, Any], search: str) -> bool:
    # What is masked is not searched: a search must not find out a secret.
    return any(search.lower() in text.lower() for text in row.values())
