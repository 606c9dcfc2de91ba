"""The console: pages for browsers, below `/console/`, and where `/` leads."""

from __future__ import annotations

from collections.abc import Callable

from flask import Blueprint

from router.model import TopicName
from router.settings import Settings
from router.web.access import RequestAuthorizer, Sessions
from router.web.console.access import AccessViews, KeyPageViews
from router.web.console.administrators import (
    ConnectionViews,
    PipelineViews,
    SettingsViews,
    TransactionPageViews,
)
from router.web.console.audit import AuditViews
from router.web.console.context import ConsoleServices, PageContext
from router.web.console.dead_letters import DeadLetterPageViews
from router.web.console.export import ExportViews, StreamViews
from router.web.console.failures import ConsoleFailures
from router.web.console.groups import GroupDetailViews, GroupPageViews
from router.web.console.home import HomeViews
from router.web.console.jetstream import StreamPageViews
from router.web.console.message_page import MessagePageViews
from router.web.console.overview import OverviewViews
from router.web.console.pages import Assets, Pages
from router.web.console.publish_tab import PublishTab
from router.web.console.replay import ReplayViews
from router.web.console.signin import SignInViews
from router.web.console.topic import SettingsTab, TopicPageViews
from router.web.console.topic_list import TopicListViews
from router.web.console.visitors import Visitors
from router.web.console.watch import WatchViews
from router.web.dmaap.errors import ErrorTexts
from router.web.errors import PROBLEMS
from router.web.openapi.description import add_routes

__all__ = ["Console", "ConsoleServices"]


class Console:
    """The views of the console."""

    def __init__(
        self,
        access: RequestAuthorizer,
        sessions: Sessions | None,
        topic_name: Callable[[str], TopicName],
        services: ConsoleServices,
        settings: Settings,
        texts: ErrorTexts,
        ready: Callable[[], None],
    ) -> None:
        assets, backend = Assets(), settings.text("backend.url").partition(":")[0]
        pages = Pages(assets)
        visitors = Visitors(access, sessions)
        context = PageContext(access, topic_name, pages, visitors, services)
        sign_in = SignInViews(context, texts)
        self.failures = ConsoleFailures(pages, visitors, sign_in, texts)
        self._views = (
            sign_in,
            HomeViews(context, assets, ready, backend),
            OverviewViews(context, settings),
            TopicListViews(context),
            publish := PublishTab(context),
            settings_tab := SettingsTab(context),
            TopicPageViews(context, publish, settings_tab),
            MessagePageViews(context),
            WatchViews(context),
            StreamViews(context),
            ExportViews(context),
            ReplayViews(context),
            GroupPageViews(context),
            GroupDetailViews(context),
            StreamPageViews(context, enabled=settings.flag("jetstream.enabled")),
            AccessViews(context),
            KeyPageViews(context),
            SettingsViews(context, settings),
            PipelineViews(context),
            ConnectionViews(context),
            AuditViews(context),
            TransactionPageViews(context),
            DeadLetterPageViews(context),
        )

    def blueprint(self) -> Blueprint:
        """Return the routes."""
        routes = Blueprint("console", __name__)
        self.failures.register(routes)
        # For what is raised before a view of the console is found.
        problems = {PROBLEMS: self.failures.failed}
        routes.record_once(lambda state: state.app.extensions.update(problems))
        return add_routes(routes, *self._views)
