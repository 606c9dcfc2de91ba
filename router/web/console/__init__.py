"""The console: pages for browsers, below `/console/`, and where `/` leads."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from flask import Blueprint

from router.model import TopicName
from router.services.dead_letters import DeadLetters
from router.services.group_details import GroupInspection
from router.services.groups import Groups
from router.services.history import Histories
from router.services.manage import Topics
from router.services.pipelines import Pipelines
from router.services.publish import Publisher
from router.services.rates import Rates
from router.services.read import Reading
from router.services.replay import Replay
from router.services.rights import Rights
from router.services.topic_schemas import TopicSchemas
from router.settings import Settings
from router.web.access import Access, AccessLists, ApiKeys, Sessions
from router.web.bodies import BodyReader
from router.web.console.access import AccessViews
from router.web.console.assets import Assets
from router.web.console.dead_letters import DeadLetterPageViews
from router.web.console.export import ExportViews
from router.web.console.failures import ConsoleFailures
from router.web.console.group import GroupDetailViews
from router.web.console.groups import GroupPageViews
from router.web.console.home import HomeViews
from router.web.console.keys import KeyPageViews
from router.web.console.pages import Pages
from router.web.console.parts import Parts
from router.web.console.pipelines import PipelineViews
from router.web.console.publish_tab import PublishTab
from router.web.console.replay import ReplayViews
from router.web.console.settings import SettingsViews
from router.web.console.signin import SignInViews
from router.web.console.stream import StreamViews
from router.web.console.topic import TopicPageViews
from router.web.console.topic_list import TopicListViews
from router.web.console.topic_settings import SettingsTab
from router.web.console.visitors import Visitors
from router.web.dmaap_errors import ErrorTexts
from router.web.dmaap_stream import EventStreams

__all__ = ["Console", "ConsoleServices"]


@dataclass(frozen=True, slots=True)
class ConsoleServices:
    """The services behind the pages."""

    topics: Topics
    groups: Groups
    inspection: GroupInspection
    dead_letters: DeadLetters
    rights: Rights
    reading: Reading
    schemas: TopicSchemas
    replay: Replay
    publishing: tuple[BodyReader, Publisher]
    streams: EventStreams
    lists: AccessLists
    keys: ApiKeys
    pipelines: Pipelines
    histories: Histories


class Console:
    """The views of the console."""

    def __init__(
        self,
        asking: tuple[Access, Sessions | None, Callable[[str], TopicName]],
        services: ConsoleServices,
        settings: Settings,
        texts: ErrorTexts,
        ready: Callable[[], None],
    ) -> None:
        assets, backend = Assets(), settings.text("backend.url").partition(":")[0]
        pages = Pages(assets)
        access, sessions, topic_name = asking
        visitors = Visitors(access, sessions)
        parts = Parts(pages, visitors, access, topic_name)
        sign_in = SignInViews(parts, texts)
        self.failures = ConsoleFailures(pages, visitors, sign_in, texts)
        self._views = (
            sign_in,
            HomeViews(parts, assets, ready, backend),
            TopicListViews(
                parts,
                services.topics,
                services.rights,
                (Rates(time.monotonic), services.histories),
            ),
            publish := PublishTab(parts, services.schemas, services.publishing),
            settings_tab := SettingsTab(parts, services.topics),
            TopicPageViews(
                parts,
                services.topics,
                services.reading,
                (publish, settings_tab),
                services.histories,
            ),
            StreamViews(parts, services.streams),
            ExportViews(parts, services.topics, services.reading),
            ReplayViews(parts, services.topics, services.reading, services.replay),
            GroupPageViews(parts, services.topics, services.groups),
            GroupDetailViews(parts, services.groups, services.inspection, services.histories),
            AccessViews(parts, services.topics, services.lists),
            KeyPageViews(parts, services.keys),
            SettingsViews(parts, settings),
            PipelineViews(parts, services.pipelines),
            DeadLetterPageViews(parts, services.topics, services.dead_letters),
        )

    def blueprint(self) -> Blueprint:
        """Return the routes."""
        routes = Blueprint("console", __name__)
        self.failures.register(routes)
        for views in self._views:
            views.add(routes)
        return routes
