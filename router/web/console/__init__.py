"""The console: pages for browsers, below `/console/`, and where `/` leads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flask import Blueprint

from router.model import TopicName
from router.services.groups import Groups
from router.services.manage import Topics
from router.services.publish import Publisher
from router.services.read import Reading
from router.services.rights import Rights
from router.web.access import Access
from router.web.bodies import BodyReader
from router.web.console.assets import Assets
from router.web.console.export import ExportViews
from router.web.console.failures import ConsoleFailures
from router.web.console.groups import GroupPageViews
from router.web.console.home import HomeViews
from router.web.console.pages import Pages
from router.web.console.parts import Parts
from router.web.console.topic import TopicPageViews
from router.web.console.topic_list import TopicListViews
from router.web.dmaap_errors import ErrorTexts

__all__ = ["Console", "ConsoleServices"]


@dataclass(frozen=True, slots=True)
class ConsoleServices:
    """The services behind the pages."""

    topics: Topics
    groups: Groups
    rights: Rights
    reading: Reading
    publishing: tuple[BodyReader, Publisher]


class Console:
    """The views of the console."""

    def __init__(
        self,
        asking: tuple[Access, Callable[[str], TopicName]],
        services: ConsoleServices,
        texts: ErrorTexts,
        ready: Callable[[], None],
        backend: str,
    ) -> None:
        assets = Assets()
        pages = Pages(assets)
        parts = Parts(pages, *asking)
        self._failures = ConsoleFailures(pages, texts)
        self._views = (
            HomeViews(parts, assets, ready, backend),
            TopicListViews(parts, services.topics, services.rights),
            TopicPageViews(parts, services.topics, services.reading, services.publishing),
            ExportViews(parts, services.topics, services.reading),
            GroupPageViews(parts, services.topics, services.groups),
        )

    def blueprint(self) -> Blueprint:
        """Return the routes."""
        routes = Blueprint("console", __name__)
        self._failures.register(routes)
        for views in self._views:
            views.add(routes)
        return routes
