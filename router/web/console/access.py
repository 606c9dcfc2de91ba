"""The pages of users and their permissions, and of topics' owners and access lists."""

from __future__ import annotations

from typing import Any, Final

import orjson
from flask import Response, request

from router.errors import BadRequestError, ForbiddenError
from router.errors.quoting import quoted
from router.model import Principal, TopicInfo, TopicName
from router.services.keys import ApiKey
from router.services.rights import NO_OWNER, TopicRights
from router.web.access import Right
from router.web.console import commands
from router.web.console.context import PageViews, paged, words
from router.web.console.fields import Fields
from router.web.console.pages import FAILS, PAGED, action, page
from router.web.openapi.description import MEMBER, one_of, text
from router.web.requests import Query, consumer_name

PAGE_ROWS: Final = 50
ANYBODY: Final = "*"
ROLES: Final = {"producers": False, "consumers": True}
"""The lists of a topic, and whether their members read."""
CHANGES: Final = {"add": True, "remove": False}
KEYS: Final = "/console/access/keys"
_JSON: Final = ("-H", "Content-Type: application/json", "-d")


class AccessViews(PageViews):
    """The views of `/console/access` and of its topics."""

    @page("GET /console/access", text("q", "Users whose names hold this."), PAGED)
    def access(self) -> Response:
        """Answer all users with their permissions to administrators, and to others their own."""
        principal, query = self._context.principal(), Query(request.environ)
        access, search = self._context.access, words(query, "q")
        administers = access.may_administer(principal, request.environ)
        rules = access.rules()
        known = set(self._users()) | {user for user, _ in rules or ()} - {ANYBODY}
        if not administers:
            known &= {principal.name}
        found = sorted(name for name in known if search.lower() in name.lower())
        page = paged(query, found, PAGE_ROWS)
        data = page.data() | {
            "search": search,
            "asks": access.authentication_required,
            "administers": administers,
            "has_permissions": rules is not None,
            "enforced": access.enforced,
            "everybody": _rules(rules, ANYBODY),
            "users": [self._user(name, rules) for name in page.rows],
            "commands": [
                commands.router("user", "list"),
                commands.router("user", "add", "NAME"),
                commands.router("user", "remove", "NAME"),
            ],
        }
        return self._context.pages.answer("access_users.html", data)

    @page("GET /console/access/topics", text("q", "Topics whose names hold this."), PAGED)
    def access_topics(self) -> Response:
        """Answer owners and lists of the topics that the caller may see."""
        principal, query = self._context.principal(), Query(request.environ)
        search = words(query, "q")
        found = [
            info
            for info in self._context.visible(principal, self._services.topics)
            if search.lower() in info.topic.local.lower()
        ]
        page, rights = paged(query, found, PAGE_ROWS), self._services.lists.all()
        data = page.data() | {
            "search": search,
            "enforced": self._context.access.enforced,
            "topics": [_row(info, rights) for info in page.rows],
            "commands": _showing(principal, "TOPIC"),
        }
        return self._context.pages.answer("access_topics.html", data)

    @page("GET /console/access/topics/<topic>")
    def access_topic(self, topic: str) -> Response:
        """Answer owner and lists of a topic."""
        principal, name = self._context.principal(), self._context.topic_name(topic)
        rights = self._services.lists.rights(principal, name)
        data = _rights_data(name, rights) | {
            "permitted": {role: self._permitted(name, rights, role) for role in ROLES},
            "enforced": self._context.access.enforced,
            "may_change": self._services.lists.may_change(principal, name, rights),
            "commands": _showing(principal, name.local),
        }
        return self._context.pages.answer("access_topic.html", data)

    @action(
        "POST /console/access/topics/<topic>/<role>",
        "change",
        "name",
        kinds={"change": one_of(CHANGES), "name": {"type": "string", "pattern": MEMBER}},
        fails=("conflict",),
    )
    def access_change(self, topic: str, role: str) -> Response:
        """Put a name on a list of a topic, or take it off."""
        principal, name = self._context.principal(), self._context.topic_name(topic)
        fields = Fields(request.environ)
        change, given = fields.text("change"), fields.text("name").strip()
        if role not in ROLES:
            known = ", ".join(ROLES)
            raise BadRequestError(f"A topic has the lists {known}, not {quoted(role, 40)}.")
        if change not in CHANGES:
            raise BadRequestError(f"change: expected add or remove, not {quoted(change, 40)}.")
        # A name in a form is as it is: nothing in it is an escape.
        other = consumer_name(commands.segment(given), "key")
        listed = CHANGES[change]
        self._services.lists.change(principal, name, other, reader=ROLES[role], listed=listed)
        data = {
            "topic": name.local,
            "list": role,
            "name": other,
            "listed": listed,
            "commands": [_changing(principal, name, role, other, listed=listed)],
        }
        path = commands.path("console", "access", "topics", name.local)
        return self._context.pages.done(data, path)

    def _permitted(self, topic: TopicName, rights: TopicRights, role: str) -> list[str]:
        """Return whom the file of permissions names, where lists leave it to that."""
        right = Right.SUBSCRIBE if ROLES[role] else Right.PUBLISH
        own = rights.readers if ROLES[role] else rights.writers
        return [] if own or rights.owner else self._context.access.users(topic, right)

    def _users(self) -> list[str]:
        sessions = self._context.visitors.sessions
        return [] if sessions is None else sessions.users()

    def _user(self, name: str, rules: list[tuple[str, str]] | None) -> dict[str, Any]:
        return {
            "name": name,
            "has_password": name in self._users(),
            "permissions": _rules(rules, name),
        }


def _rules(rules: list[tuple[str, str]] | None, name: str) -> list[str]:
    return [text for user, text in rules or () if user == name]


def _row(info: TopicInfo, rights: dict[str, TopicRights]) -> dict[str, Any]:
    return _rights_data(info.topic, rights.get(str(info.topic), NO_OWNER))


def _rights_data(topic: TopicName, rights: TopicRights) -> dict[str, Any]:
    return {
        "topic": topic.local,
        "owner": rights.owner,
        "producers": sorted(rights.writers),
        "consumers": sorted(rights.readers),
    }


def _showing(principal: Principal, topic: str) -> list[str]:
    url = commands.url("topics", topic)
    return [
        *(commands.curl(principal, f"{url}/{role}") for role in ROLES),
        *(commands.curl(principal, f"{url}/{role}/NAME", "-X", "PUT") for role in ROLES),
        *(commands.curl(principal, f"{url}/{role}/NAME", "-X", "DELETE") for role in ROLES),
    ]


def _changing(principal: Principal, topic: TopicName, role: str, name: str, *, listed: bool) -> str:
    url = commands.url("topics", topic.local, role, name)
    return commands.curl(principal, url, "-X", "PUT" if listed else "DELETE")


class KeyPageViews(PageViews):
    """The views of `/console/access/keys`."""

    @page(f"GET {KEYS}", text("q", "Keys whose names hold this."), PAGED)
    def keys(self) -> Response:
        """Answer the names of all keys, or of those with a text in them."""
        principal, query = self._context.principal(), Query(request.environ)
        search = words(query, "q")
        found = sorted(
            name for name in self._services.keys.names() if search.lower() in name.lower()
        )
        page = paged(query, found, PAGE_ROWS)
        url = commands.url("apiKeys")
        data = page.data() | {
            "search": search,
            "keys": page.rows,
            "commands": [commands.curl(principal, url), _creating(principal, "", "")],
        }
        return self._context.pages.answer("access_keys.html", data)

    @action(
        f"POST {KEYS}", optional=("email", "description"), fails=("conflict", "too-many-requests")
    )
    def key_create(self) -> Response:
        """Make a key; its secret is in this answer and in no other."""
        principal, fields = self._context.principal(), Fields(request.environ)
        email, description = fields.text("email", ""), fields.text("description", "")
        made = self._services.keys.create(
            request.environ.get("REMOTE_ADDR", ""), email, description
        )
        data = _key_data(made) | {
            "secret": made.secret,
            "commands": [_creating(principal, email, description)],
        }
        return self._context.pages.answer("access_key_created.html", data)

    @page(f"GET {KEYS}/<key>", fails=(*FAILS, "key-not-found"))
    def key(self, key: str) -> Response:
        """Answer what is known of a key, but not its secret."""
        principal, name = self._context.principal(), consumer_name(key, "key")
        found = self._services.keys.get(name)
        url = commands.url("apiKeys", name)
        data = _key_data(found) | {
            "may_change": self._services.keys.may_change(principal, name),
            "commands": [
                commands.curl(principal, url),
                commands.curl(principal, url, "-X", "PUT", *_body(found.email, found.description)),
                commands.curl(principal, url, "-X", "DELETE"),
            ],
        }
        return self._context.pages.answer("access_key.html", data)

    @action(f"POST {KEYS}/<key>", "email", "description", fails=("conflict", "key-not-found"))
    def key_update(self, key: str) -> Response:
        """Change address and description of a key."""
        name, fields = self._own(key), Fields(request.environ)
        changed = self._services.keys.update(name, fields.text("email"), fields.text("description"))
        path = commands.path("console", "access", "keys", name)
        return self._context.pages.done(_key_data(changed), path)

    @action(f"POST {KEYS}/<key>/delete", fails=("conflict", "key-not-found"))
    def key_delete(self, key: str) -> Response:
        """Delete a key."""
        name = self._own(key)
        self._services.keys.delete(name)
        return self._context.pages.done({"key": name, "deleted": True}, KEYS)

    def _own(self, key: str) -> str:
        """Return the key's name; raise ForbiddenError unless the caller may change it."""
        principal, name = self._context.principal(), consumer_name(key, "key")
        if not self._services.keys.may_change(principal, name):
            raise ForbiddenError("A key is changed and deleted by itself and by administrators.")
        return name


def _key_data(key: ApiKey) -> dict[str, Any]:
    return {"key": key.name, "email": key.email, "description": key.description}


def _creating(principal: Principal, email: str, description: str) -> str:
    url = commands.url("apiKeys", "create")
    return commands.curl(principal, url, *_body(email, description))


def _body(email: str, description: str) -> tuple[str, ...]:
    # No text of a person begins the body, so --data does not take it for a file.
    return (*_JSON, orjson.dumps({"email": email, "description": description}).decode())
