"""The DMaaP Message Router's `/apiKeys`: make keys, show them, change and delete one's own.

The original mails the secret to whom gave an address, and then does not answer it. Here it is
always in the answer, once: no mail is sent, and nobody can ask for a secret again.
"""

from __future__ import annotations

from typing import Any, Final

from flask import Blueprint, Response, request

from router.errors import KeyNotFoundError
from router.services.keys import ApiKey
from router.web import forms, intake
from router.web.access import Access, ApiKeys
from router.web.names import consumer_name
from router.web.openapi.description import (
    HTML,
    JSON,
    STORE,
    TEXT,
    Body,
    Reply,
    answers_json,
    array,
    nullable,
    operation,
    shape,
)

FIELDS: Final = ("email", "description")


_KEY: Final = {"key": TEXT, "aux": shape({"email": TEXT, "description": TEXT})}
_ABOUT: Final = Body(
    {JSON: shape({}, {"email": nullable("string"), "description": nullable("string")})},
    "What the key is for.",
    examples={JSON: {"email": "anna@example.com", "description": "orders of the shop"}},
)


class KeyViews:
    """The views of `/apiKeys` and `/v1/apiKeys`."""

    def __init__(self, access: Access, keys: ApiKeys) -> None:
        self._access = access
        self._keys = keys

    def blueprint(self) -> Blueprint:
        """Return the routes."""
        routes = Blueprint("keys", __name__)
        for root in ("/apiKeys", "/v1/apiKeys"):
            routes.get(root)(self.names)
            routes.post(f"{root}/create")(self.create)
            routes.get(f"{root}/<key>")(self.show)
            # The original takes PUT, its own Java client sends PATCH.
            routes.route(f"{root}/<key>", methods=["PUT", "PATCH"])(self.update)
            routes.delete(f"{root}/<key>")(self.delete)
        return routes

    @operation(answers=answers_json(shape({"apiKeys": array(TEXT)}), "The names."))
    def names(self) -> Response:
        """Answer the names of all keys."""
        self._access.principal(request.environ)
        return forms.answer({"apiKeys": self._keys.names()})

    @operation(answers=answers_json(shape(_KEY), "The key."), fails=(*STORE, "key-not-found"))
    def show(self, key: str) -> Response:
        """Answer what is known of a key, but not its secret."""
        self._access.principal(request.environ)
        return forms.answer(_shown(self._keys.get(consumer_name(key, "key"))))

    @operation(
        body=_ABOUT,
        answers=answers_json(shape({**_KEY, "secret": TEXT}), "The key, with its secret."),
        fails=(*STORE, "too-many-requests", "conflict"),
    )
    def create(self) -> Response:
        """Make a key; its secret is in this answer and in no other."""
        environ = request.environ
        self._access.principal(environ)
        wish = forms.fields(environ, FIELDS)
        email, description = (forms.text(wish, name, "") for name in FIELDS)
        made = self._keys.create(environ.get("REMOTE_ADDR", ""), email, description)
        answer = forms.answer({**_shown(made), "secret": made.secret})
        answer.headers["Cache-Control"] = "no-store"
        return answer

    @operation(
        body=_ABOUT,
        answers=answers_json(shape(_KEY), "The key."),
        fails=(*STORE, "key-not-found", "conflict"),
    )
    def update(self, key: str) -> Response:
        """Change address or description of the key that signed."""
        name = self._own(key, "You must authenticate with the key you'd like to update.")
        wish = forms.fields(request.environ, FIELDS)
        email, description = (
            None if wish.get(field) is None else forms.text(wish, field) for field in FIELDS
        )
        return forms.answer(_shown(self._keys.update(name, email, description)))

    @operation(
        answers={200: Reply("The key is deleted.", {HTML: TEXT})},
        fails=(*STORE, "key-not-found", "conflict", "read-body-too-large"),
    )
    def delete(self, key: str) -> Response:
        """Delete the key that signed."""
        name = self._own(key, "You don't own the API key.")
        intake.no_body(request.environ, forms.MAX_BODY)
        self._keys.delete(name)
        return forms.sentence(f"Api key [{name}] deleted successfully.")

    def _own(self, key: str, otherwise: str) -> str:
        """Return the key's name if it, or an administrator, signed; raise KeyNotFoundError."""
        name = consumer_name(key, "key")
        principal = self._access.principal(request.environ)
        if not self._keys.may_change(principal, name):
            raise KeyNotFoundError(otherwise)
        return name


def _shown(key: ApiKey) -> dict[str, Any]:
    return {"key": key.name, "aux": {"email": key.email, "description": key.description}}
