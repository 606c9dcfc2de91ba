"""What all views of the console use: pages, services, rights, names of topics, paging."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from flask import request

from router.errors import ForbiddenError, NotAllowedError, NotSupportedError
from router.model import Principal, TopicName, TopicStats
from router.services.activity import Activities
from router.services.compaction import Compaction
from router.services.dead_letters.service import DeadLetters
from router.services.dead_letters.tracing import DeadLetterTracer
from router.services.group_details import GroupInspection
from router.services.groups import TopicGroups
from router.services.history import Histories
from router.services.jetstream import JetStream
from router.services.manage import TopicManagement
from router.services.message_groups import MessageGroups
from router.services.message_history import MessageHistory
from router.services.message_offsets import MessageOffsets
from router.services.pipelines import Pipelines
from router.services.publish import Publisher
from router.services.read import TopicReader
from router.services.replay import Replayer
from router.services.rights import Rights
from router.services.topic_schemas import TopicSchemas
from router.services.transactions import OpenTransactions
from router.web.access import AccessLists, ApiKeys, Right
from router.web.bodies import BodyReader
from router.web.console.masking import HIDE_ALL, HIDE_NOTHING, PROPERTY, Mask, MaskProperty
from router.web.console.pages import Pages, wants_json_page
from router.web.console.visitors import Visitors
from router.web.dmaap.stream import EventStreams
from router.web.requests import Query
from router.web.topic_access import TopicAccess

T = TypeVar("T")
MAX_PAGES: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class TablePage(Generic[T]):
    """Some rows of many; pages are counted from 1."""

    page: int
    pages: int
    found: int
    rows: Sequence[T]

    def data(self) -> dict[str, Any]:
        """Return what a page says of its place among others."""
        return {"page": self.page, "pages": self.pages, "found": self.found}


@dataclass(frozen=True, slots=True)
class ConsoleServices:
    """The services behind the pages."""

    topics: TopicManagement
    compaction: Compaction
    masks: MaskProperty
    groups: TopicGroups
    inspection: GroupInspection
    message_groups: MessageGroups
    history: MessageHistory
    dead_letters: DeadLetters
    tracer: DeadLetterTracer
    rights: Rights
    reading: TopicReader
    schemas: TopicSchemas
    replay: Replayer
    reader: BodyReader
    publisher: Publisher
    streams: EventStreams
    lists: AccessLists
    keys: ApiKeys
    pipelines: Pipelines
    histories: Histories
    activities: Activities
    transactions: OpenTransactions
    offsets: MessageOffsets
    jetstream: JetStream


@dataclass(frozen=True, slots=True)
class PageContext(TopicAccess):
    """What all views use."""

    pages: Pages
    visitors: Visitors
    services: ConsoleServices

    def principal(self) -> Principal:
        """Return who makes this request; raise what `Visitors.principal` raises.

        Raises BadReadOptionError for a `format` that cannot be read, before anything is done.
        """
        wants_json_page(request.environ)
        return self.visitors.principal(request.environ)

    def mask(self, principal: Principal, topic: TopicName, stats: TopicStats | None = None) -> Mask:
        """Return what is masked for one who may browse a topic: nothing if they may subscribe.

        All of a topic whose store keeps no properties. `stats` are the topic's, if they are known.
        """
        if self.may(principal, topic, Right.SUBSCRIBE):
            return HIDE_NOTHING
        try:
            found = self.services.topics.described(topic) if stats is None else stats
        except (NotSupportedError, NotAllowedError):
            return HIDE_ALL
        return Mask.read(found.info.properties.get(PROPERTY, ""))

    def administrator(self, subject: str) -> Principal:
        """Return who makes this request; raise ForbiddenError unless they may administer."""
        principal = self.principal()
        if not self.access.may_administer(principal, request.environ):
            raise ForbiddenError(
                f"{subject} are for administrators: the key admin, and users who may manage * by"
                " the file of permissions."
            )
        return principal


class PageViews:
    """The views of one subject."""

    def __init__(self, context: PageContext) -> None:
        self._context = context
        self._services = context.services


def paged(query: Query, found: Sequence[T], size: int) -> TablePage[T]:
    """Return the page that `?page=` asks for."""
    page = max(query.number("page", 1, MAX_PAGES), 1)
    first = (page - 1) * size
    return TablePage(page, max(1, -(-len(found) // size)), len(found), found[first : first + size])


def words(query: Query, name: str) -> str:
    """Return a parameter that people write, empty if there is none."""
    return query.text(name) or ""
