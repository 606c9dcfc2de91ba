"""The page of the settings in force, and where each came from."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, request

from router.errors import ForbiddenError
from router.settings import BY_NAME, DEFAULT, Settings, Value, shown
from router.web.addresses import root
from router.web.console import commands
from router.web.console.described import page
from router.web.console.parts import Parts, words
from router.web.openapi.description import flag, text
from router.web.parameters import Query


class SettingsViews:
    """The view of `/console/settings`."""

    def __init__(self, parts: Parts, settings: Settings) -> None:
        self._parts = parts
        self._settings = settings

    def add(self, routes: Blueprint) -> None:
        """Add the route."""
        routes.get("/console/settings", endpoint="settings")(self.listed)

    @page(text("q", "Settings that hold this."), flag("changed", "Those that are not the default."))
    def listed(self) -> Response:
        """Answer the settings of this node that a search finds, secrets masked."""
        principal, query = self._parts.principal(), Query(request.environ)
        if not self._parts.access.may_administer(principal, request.environ):
            raise ForbiddenError(
                "Settings are for administrators: the key admin, and users who may manage * by the"
                " file of permissions."
            )
        search, changed = words(query, "q"), query.flag("changed", default=False)
        rows = [
            row
            for name, value in self._settings.values.items()
            if not changed or value.origin != DEFAULT
            if _matches(row := _row(name, value), search)
        ]
        url = f"{root(request.environ)}/console/settings?format=json"
        data = {
            "search": search,
            "changed": changed,
            "settings": rows,
            "commands": [
                commands.curl(principal, url),
                commands.router("check", *(["--changed"] if changed else [])),
            ],
        }
        return self._parts.pages.answer("settings.html", data)


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
