"""The pages of API keys: all of them, a new one with its secret, and one."""

from __future__ import annotations

from typing import Any, Final

import orjson
from flask import Blueprint, Response, request

from router.errors import ForbiddenError
from router.model import Principal
from router.services.keys import ApiKey
from router.web.access import ApiKeys
from router.web.addresses import root
from router.web.console import commands
from router.web.console.described import FAILS, action, page
from router.web.console.fields import Fields
from router.web.console.parts import Parts, paged, words
from router.web.names import consumer_name
from router.web.openapi.description import number, text
from router.web.parameters import Query

KEYS: Final = "/console/access/keys"
PAGE_ROWS: Final = 50
"""Keys of one page: each is read from the registry."""
_JSON: Final = ("-H", "Content-Type: application/json", "-d")


class KeyPageViews:
    """The views of `/console/access/keys`."""

    def __init__(self, parts: Parts, keys: ApiKeys) -> None:
        self._parts = parts
        self._keys = keys

    def add(self, routes: Blueprint) -> None:
        """Add the routes."""
        routes.get(KEYS, endpoint="keys")(self.listed)
        routes.post(KEYS, endpoint="key_create")(self.create)
        routes.get(f"{KEYS}/<key>", endpoint="key")(self.show)
        routes.post(f"{KEYS}/<key>", endpoint="key_update")(self.update)
        routes.post(f"{KEYS}/<key>/delete", endpoint="key_delete")(self.delete)

    @page(text("q", "Keys whose names hold this."), number("page", "Which page, from 1 on."))
    def listed(self) -> Response:
        """Answer the names of all keys, or of those with a text in them."""
        principal, query = self._parts.principal(), Query(request.environ)
        search = words(query, "q")
        found = sorted(name for name in self._keys.names() if search.lower() in name.lower())
        page = paged(query, found, PAGE_ROWS)
        url = f"{root(request.environ)}/apiKeys"
        data = page.data() | {
            "search": search,
            "keys": page.rows,
            "commands": [commands.curl(principal, url), _creating(principal, "", "")],
        }
        return self._parts.pages.answer("access_keys.html", data)

    @action(optional=("email", "description"), fails=("conflict", "too-many-requests"))
    def create(self) -> Response:
        """Make a key; its secret is in this answer and in no other."""
        principal, fields = self._parts.principal(), Fields(request.environ)
        email, description = fields.text("email", ""), fields.text("description", "")
        made = self._keys.create(request.environ.get("REMOTE_ADDR", ""), email, description)
        data = _shown(made) | {
            "secret": made.secret,
            "commands": [_creating(principal, email, description)],
        }
        return self._parts.pages.answer("access_key_created.html", data)

    @page(fails=(*FAILS, "key-not-found"))
    def show(self, key: str) -> Response:
        """Answer what is known of a key, but not its secret."""
        principal, name = self._parts.principal(), consumer_name(key, "key")
        found = self._keys.get(name)
        url = f"{root(request.environ)}/apiKeys/{commands.segment(name)}"
        data = _shown(found) | {
            "may_change": self._keys.may_change(principal, name),
            "commands": [
                commands.curl(principal, url),
                commands.curl(principal, url, "-X", "PUT", *_body(found.email, found.description)),
                commands.curl(principal, url, "-X", "DELETE"),
            ],
        }
        return self._parts.pages.answer("access_key.html", data)

    @action("email", "description", fails=("conflict", "key-not-found"))
    def update(self, key: str) -> Response:
        """Change address and description of a key."""
        name, fields = self._own(key), Fields(request.environ)
        changed = self._keys.update(name, fields.text("email"), fields.text("description"))
        return self._parts.pages.done(_shown(changed), f"{KEYS}/{commands.segment(name)}")

    @action(fails=("conflict", "key-not-found"))
    def delete(self, key: str) -> Response:
        """Delete a key."""
        name = self._own(key)
        self._keys.delete(name)
        return self._parts.pages.done({"key": name, "deleted": True}, KEYS)

    def _own(self, key: str) -> str:
        """Return the key's name; raise ForbiddenError unless the caller may change it."""
        principal, name = self._parts.principal(), consumer_name(key, "key")
        if not self._keys.may_change(principal, name):
            raise ForbiddenError("A key is changed and deleted by itself and by administrators.")
        return name


def _shown(key: ApiKey) -> dict[str, Any]:
    return {"key": key.name, "email": key.email, "description": key.description}


def _creating(principal: Principal, email: str, description: str) -> str:
    url = f"{root(request.environ)}/apiKeys/create"
    return commands.curl(principal, url, *_body(email, description))


def _body(email: str, description: str) -> tuple[str, ...]:
    # No text of a person begins the body, so --data does not take it for a file.
    return (*_JSON, orjson.dumps({"email": email, "description": description}).decode())
