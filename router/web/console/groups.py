"""The page of all groups, with their lag."""

from __future__ import annotations

from typing import Any, Final

from flask import Blueprint, Response, request

from router.errors import NotAllowedError, NotSupportedError, TopicNotFoundError
from router.model import Principal, TopicName
from router.services.groups import Groups
from router.services.manage import Topics
from router.web.access import Right
from router.web.addresses import root
from router.web.console import commands
from router.web.console.described import page
from router.web.console.group import PLACES
from router.web.console.parts import Parts, words
from router.web.openapi.description import number, text
from router.web.parameters import Query

PAGE_TOPICS: Final = 50
"""Topics whose groups are on one page: each is described by the store."""
PAGE_GROUPS: Final = 500
"""Groups of one page: of more it says how many are left out."""
MOST_PAGES: Final = 1_000_000


class GroupPageViews:
    """The views of `/console/groups`."""

    def __init__(self, parts: Parts, topics: Topics, groups: Groups) -> None:
        self._parts = parts
        self._topics = topics
        self._groups = groups

    def add(self, routes: Blueprint) -> None:
        """Add the route."""
        routes.get("/console/groups", endpoint="groups")(self.listed)

    @page(
        text("q", "Groups whose names hold this."),
        text("topic", "Groups of this topic."),
        number("page", "Which page, from 1 on."),
    )
    def listed(self) -> Response:
        """Answer the groups of the topics that the caller may see, with their lag."""
        principal, query = self._parts.principal(), Query(request.environ)
        search, only = words(query, "q"), words(query, "topic")
        page = max(query.number("page", 1, MOST_PAGES), 1)
        topics = [
            i for i in self._parts.visible(principal, self._topics) if only in {"", i.topic.local}
        ]
        first = (page - 1) * PAGE_TOPICS
        rows, reasons = list[dict[str, Any]](), set[str]()
        for info in topics[first : first + PAGE_TOPICS]:
            rows += self._rows(principal, info.topic, search.lower(), reasons)
        url = f"{root(request.environ)}/topics/{commands.segment(only) or 'TOPIC'}/groups"
        data = {
            "search": search,
            "topic": only,
            "page": page,
            "pages": max(1, -(-len(topics) // PAGE_TOPICS)),
            "groups": rows[:PAGE_GROUPS],
            "left_out": max(0, len(rows) - PAGE_GROUPS),
            "note": " ".join(sorted(reasons)),
            "places": PLACES,
            "commands": [
                commands.curl(principal, url),
                commands.router("groups", "list", only or "TOPIC"),
            ],
        }
        return self._parts.pages.answer("groups.html", data)

    def _rows(
        self, principal: Principal, topic: TopicName, search: str, reasons: set[str]
    ) -> list[dict[str, Any]]:
        try:
            found = self._groups.listed(topic)
        except (NotSupportedError, NotAllowedError) as error:
            reasons.add(f"This store does not tell which groups there are: {error}.")
            return []
        except TopicNotFoundError:
            return []  # it was deleted since the list was made
        managed = bool(found) and self._parts.may(principal, topic, Right.MANAGE)
        return [
            {
                "group": group.name,
                "topic": topic.local,
                "lag": group.backlog,
                "members": group.consumers,
                "may_reset": managed,
            }
            for group in found
            if group.durable and search in group.name.lower()
        ]
