"""The pages of users and their permissions, and of topics' owners and access lists."""

from __future__ import annotations

from typing import Any, Final

from flask import Blueprint, Response, request

from router.errors import BadRequestError
from router.model import Principal, TopicInfo, TopicName
from router.quoting import quoted
from router.services.manage import Topics
from router.services.rights import NOBODY, TopicRights
from router.web.access import AccessLists, Right
from router.web.addresses import root
from router.web.console import commands
from router.web.console.described import action, page
from router.web.console.fields import Fields
from router.web.console.parts import Parts, paged, words
from router.web.names import consumer_name
from router.web.openapi.description import number, text
from router.web.parameters import Query

PAGE_ROWS: Final = 50
ANYBODY: Final = "*"
ROLES: Final = {"producers": False, "consumers": True}
"""The lists of a topic, and whether their members read."""
CHANGES: Final = {"add": True, "remove": False}


class AccessViews:
    """The views of `/console/access` and of its topics."""

    def __init__(self, parts: Parts, topics: Topics, lists: AccessLists) -> None:
        self._parts = parts
        self._topics = topics
        self._lists = lists

    def add(self, routes: Blueprint) -> None:
        """Add the routes."""
        routes.get("/console/access", endpoint="access")(self.users)
        routes.get("/console/access/topics", endpoint="access_topics")(self.topics)
        routes.get("/console/access/topics/<topic>", endpoint="access_topic")(self.topic)
        routes.post("/console/access/topics/<topic>/<role>", endpoint="access_change")(self.change)

    @page(text("q", "Users whose names hold this."), number("page", "Which page, from 1 on."))
    def users(self) -> Response:
        """Answer all users with their permissions to administrators, and to others their own."""
        principal, query = self._parts.principal(), Query(request.environ)
        access, search = self._parts.access, words(query, "q")
        administers = access.may_administer(principal, request.environ)
        rules = access.rules()
        known = set(self._users()) | {user for user, _ in rules or ()} - {ANYBODY}
        if not administers:
            known &= {principal.name}
        found = sorted(name for name in known if search.lower() in name.lower())
        page = paged(query, found, PAGE_ROWS)
        data = page.data() | {
            "search": search,
            "asks": access.asks,
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
        return self._parts.pages.answer("access_users.html", data)

    @page(text("q", "Topics whose names hold this."), number("page", "Which page, from 1 on."))
    def topics(self) -> Response:
        """Answer owners and lists of the topics that the caller may see."""
        principal, query = self._parts.principal(), Query(request.environ)
        search = words(query, "q")
        found = [
            info
            for info in self._parts.visible(principal, self._topics)
            if search.lower() in info.topic.local.lower()
        ]
        page, rights = paged(query, found, PAGE_ROWS), self._lists.all()
        data = page.data() | {
            "search": search,
            "enforced": self._parts.access.enforced,
            "topics": [_row(info, rights) for info in page.rows],
            "commands": _showing(principal, "TOPIC"),
        }
        return self._parts.pages.answer("access_topics.html", data)

    @page()
    def topic(self, topic: str) -> Response:
        """Answer owner and lists of a topic."""
        principal, name = self._parts.principal(), self._parts.topic_name(topic)
        rights = self._lists.rights(principal, name)
        data = _shown(name, rights) | {
            "permitted": {role: self._permitted(name, rights, role) for role in ROLES},
            "enforced": self._parts.access.enforced,
            "may_change": self._lists.may_change(principal, name, rights),
            "commands": _showing(principal, commands.segment(name.local)),
        }
        return self._parts.pages.answer("access_topic.html", data)

    @action("change", "name", fails=("conflict",))
    def change(self, topic: str, role: str) -> Response:
        """Put a name on a list of a topic, or take it off."""
        principal, name = self._parts.principal(), self._parts.topic_name(topic)
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
        self._lists.change(principal, name, other, reader=ROLES[role], listed=listed)
        data = {
            "topic": name.local,
            "list": role,
            "name": other,
            "listed": listed,
            "commands": [_changing(principal, name, role, other, listed=listed)],
        }
        path = f"/console/access/topics/{commands.segment(name.local)}"
        return self._parts.pages.done(data, path)

    def _permitted(self, topic: TopicName, rights: TopicRights, role: str) -> list[str]:
        """Return whom the file of permissions names, where lists leave it to that."""
        right = Right.SUBSCRIBE if ROLES[role] else Right.PUBLISH
        own = rights.readers if ROLES[role] else rights.writers
        return [] if own or rights.owner else self._parts.access.users(topic, right)

    def _users(self) -> list[str]:
        sessions = self._parts.visitors.sessions
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
    return _shown(info.topic, rights.get(str(info.topic), NOBODY))


def _shown(topic: TopicName, rights: TopicRights) -> dict[str, Any]:
    return {
        "topic": topic.local,
        "owner": rights.owner,
        "producers": sorted(rights.writers),
        "consumers": sorted(rights.readers),
    }


def _showing(principal: Principal, topic: str) -> list[str]:
    url = f"{root(request.environ)}/topics/{topic}"
    return [
        *(commands.curl(principal, f"{url}/{role}") for role in ROLES),
        *(commands.curl(principal, f"{url}/{role}/NAME", "-X", "PUT") for role in ROLES),
        *(commands.curl(principal, f"{url}/{role}/NAME", "-X", "DELETE") for role in ROLES),
    ]


def _changing(principal: Principal, topic: TopicName, role: str, name: str, *, listed: bool) -> str:
    path = f"/topics/{commands.segment(topic.local)}/{role}/{commands.segment(name)}"
    method = "PUT" if listed else "DELETE"
    return commands.curl(principal, root(request.environ) + path, "-X", method)
