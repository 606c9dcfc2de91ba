"""What all views of the console use: pages, who asks and whether they may, names of topics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from flask import request

from router.errors import ForbiddenError
from router.model import Principal, TopicInfo, TopicName
from router.services.manage import Topics
from router.web.access import Access, Right
from router.web.console.formats import json_wanted
from router.web.console.pages import Pages
from router.web.console.visitors import Visitors
from router.web.parameters import Query

T = TypeVar("T")
MOST_PAGES: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some rows of many; pages are counted from 1."""

    page: int
    pages: int
    found: int
    rows: Sequence[T]

    def data(self) -> dict[str, Any]:
        """Return what a page says of its place among others."""
        return {"page": self.page, "pages": self.pages, "found": self.found}


@dataclass(frozen=True, slots=True)
class Parts:
    """What all views use."""

    pages: Pages
    visitors: Visitors
    access: Access
    topic_name: Callable[[str], TopicName]

    def principal(self) -> Principal:
        """Return who makes this request; raise what `Visitors.principal` raises.

        Raises BadReadOptionError for a `format` that cannot be read, before anything is done.
        """
        json_wanted(request.environ)
        return self.visitors.principal(request.environ)

    def may(self, principal: Principal, topic: TopicName, right: Right) -> bool:
        """Return whether `Access.demand` would let the principal do this."""
        try:
            self.access.demand(principal, topic, right)
        except ForbiddenError:
            return False
        return True

    def visible(self, principal: Principal, topics: Topics) -> list[TopicInfo]:
        """Return the topics that the principal may see, by name."""
        home = self.topic_name("x")
        listed = topics.listed(home.tenant, home.namespace)
        return [i for i in listed if self.access.allows(principal, i.topic, Right.VIEW)]


def paged(query: Query, found: Sequence[T], size: int) -> Page[T]:
    """Return the page that `?page=` asks for."""
    page = max(query.number("page", 1, MOST_PAGES), 1)
    first = (page - 1) * size
    return Page(page, max(1, -(-len(found) // size)), len(found), found[first : first + size])


def words(query: Query, name: str) -> str:
    """Return a parameter that people write, empty if there is none; it is UTF-8."""
    return (query.text(name) or "").encode("latin-1").decode("utf-8", "replace")
