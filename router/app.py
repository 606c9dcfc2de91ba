"""The application factory: the one place where the parts of the front are put together."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog
from flask import Flask

from router import log
from router.access.grants import known, takes_tokens
from router.access.reloading import reload_all
from router.backends import Backend, Node
from router.backends.opening import open_administration, open_backend, open_node
from router.build import VERSION
from router.errors import RouterError, SettingError
from router.metrics import Metrics
from router.services.blacklist import Blacklist
from router.services.consume import ConsumeOptions, Subscriber
from router.services.dead_letters import DeadLetters
from router.services.directory import Directory
from router.services.ended_sessions import EndedSessions
from router.services.fetch import Fetcher, FetchOptions
from router.services.group_details import GroupInspection
from router.services.groups import Groups
from router.services.history import Histories
from router.services.idempotency import RequestNames
from router.services.keys import Keys
from router.services.manage import Topics
from router.services.memory_budget import MemoryBudget
from router.services.pipelines import Pipelines
from router.services.produce import Producing
from router.services.publish import Publisher, PublishOptions
from router.services.read import Reading, ReadOptions
from router.services.replay import Replay
from router.services.rights import Rights
from router.services.shared_secret import SharedSecret
from router.services.topic_schemas import TopicSchemas
from router.settings import Settings, config_file, load
from router.web import offload
from router.web.access import Access, AccessLists, ApiKeys, Passwords, Sessions, Signatures
from router.web.access.authorization import Authorization
from router.web.access.sessions import RECORD
from router.web.addresses import Forwarded, trusted
from router.web.bodies import BodyReader, Bounds
from router.web.console import Console, ConsoleServices
from router.web.cors import Cors
from router.web.dmaap import EventOptions, Events
from router.web.dmaap_acls import AclViews
from router.web.dmaap_admin import AdminViews
from router.web.dmaap_dead_letters import DeadLetterViews
from router.web.dmaap_errors import ErrorTexts
from router.web.dmaap_groups import GroupViews
from router.web.dmaap_keys import KeyViews
from router.web.dmaap_metrics import Clock, MetricViews
from router.web.dmaap_stream import EventStreams
from router.web.dmaap_topics import TopicViews
from router.web.errors import Errors
from router.web.front import Front
from router.web.hosts import Hosts
from router.web.names import RawPaths, topic_names
from router.web.openapi.views import OpenApi
from router.web.ops import MetricsOwner, Ops
from router.web.pulsar_admin import Keepers, PulsarAdmin
from router.web.pulsar_rest import FetchDefaults, Parts, PulsarRest
from router.web.pulsar_rest.errors import Failures
from router.web.tracing import NoTracing
from router.web.transaction import TransactionIds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _typeshed.wsgi import WSGIApplication
    from flask import Blueprint

    from router.access.tokens import Tokens
    from router.web.spans import Spans

    class Views(Protocol):
        """What has routes."""

        def blueprint(self) -> Blueprint:
            """Return the routes."""
            ...


READY_TIMEOUT: Final = 5.0
CLOCK: Final = time.monotonic

_log = structlog.get_logger(__name__)


def create_app(
    settings: Settings | None = None,
    backend: Backend | None = None,
    node: Node | None = None,
    *,
    only_admin: bool = False,
) -> Flask:
    """Build the application; raise SettingError where settings do not go together.

    `only_admin`: it serves Pulsar's administration and lookups and nothing else.

    Without settings they come from the configuration file and the ROUTER_* variables. A backend or
    node that is handed in stays the caller's to close. `extensions` has `router.stop`, which
    answers waiting polls (requests are served on), `router.close`, which ends everything,
    `router.reload`, which has files and the blacklist read again, and
    `router.unread`, which words the answer to a request that the server cannot read.
    """
    if settings is None:
        settings = load(config_file(os.environ), os.environ)
        log.begin("worker", settings.text("log.level"), settings.text("log.format"))
    made: list[Backend | Node] = []
    if node is None:
        made.append(node := open_node(settings))
    if backend is None:
        made.append(backend := open_backend(settings, node))
    app = _put_together(settings, backend, node, only_admin)
    close = app.extensions["router.close"]
    app.extensions["router.close"] = lambda: (close(), *(part.close() for part in reversed(made)))
    return app


def _put_together(settings: Settings, backend: Backend, node: Node, only_admin: bool) -> Front:
    timeout = settings.seconds("backend.timeout")
    metrics, transactions = Metrics(), TransactionIds(_wall_ms)
    blacklist = Blacklist(node.registry, timeout)
    cors, hosts = Cors(settings.words("cors.origins")), Hosts.from_settings(settings)
    app = Front(cors, hosts, transactions, metrics, blacklist, CLOCK)
    owner = MetricsOwner(metrics, node, timeout, app.count)
    errors = Errors(_error_texts(settings), transactions, metrics)
    errors.register(app)
    services = Services(settings, backend, node, metrics)
    access = services.access()
    keepers = Keepers(access, blacklist, services.rights, services.topics)
    administration = open_administration(settings, node)
    app.register_blueprint(PulsarAdmin(settings, keepers, administration, _wall_ms).blueprint())
    if not only_admin:
        for views in _views(settings, services, keepers, transactions, owner):
            app.register_blueprint(views.blueprint())
    app.wsgi_app = _wrapped(settings, app.wsgi_app)  # type: ignore[assignment, method-assign] # as Flask documents it
    app.extensions["router.stop"] = services.stop
    app.extensions["router.close"] = partial(_close, blacklist, owner, services)
    app.extensions["router.reload"] = partial(_reload, blacklist)
    app.extensions["router.unread"] = errors.unread
    owner.start()
    blacklist.start()
    return app


def _views(
    settings: Settings,
    services: Services,
    keepers: Keepers,
    transactions: TransactionIds,
    owner: MetricsOwner,
) -> Iterator[Views]:
    """Yield the views of the router's own dialects, and of its operation."""
    backend, node, timeout = services.backend, services.node, settings.seconds("backend.timeout")
    access, topics, rights = keepers.access, services.topics, services.rights
    names = topic_names(
        settings.text("names.tenant"),
        settings.text("names.namespace"),
        settings.number("names.max_length"),
    )
    reader, options = services.bodies(), EventOptions.of(settings)
    patience = settings.seconds("stream.write_timeout")
    figures = MetricViews(node, owner, VERSION, timeout, Clock(CLOCK, _wall_ms))
    publishing = reader, services.publisher
    parts = access, publishing, services.subscriber, names, options, transactions
    spans = services.spans
    yield Events(*parts) if spans is None else _traced_events(spans, *parts)
    yield (tails := EventStreams(access, services.reading, names, options.start, patience))
    yield PulsarRest(
        Parts(
            *(access, services.schemas, reader, services.subscriber.unsent, _wall_ms),
            NoTracing() if spans is None else spans,
        ),
        (services.producing, services.reading, services.fetcher),
        FetchDefaults.of(settings),
        Failures(int(settings.text("auth.forbidden_status"))),
    )
    yield TopicViews(access, topics, rights, names)
    lists = AccessLists(access, topics, rights)
    yield AclViews(access, lists, names)
    groups, inspection = Groups(backend, timeout), GroupInspection(backend, node, timeout)
    yield GroupViews(access, groups, inspection, names)
    yield DeadLetterViews(access, topics, services.dead_letters, names)
    keys = ApiKeys(access, services.keys, node, timeout)
    yield KeyViews(access, keys)
    yield AdminViews(access, topics, keepers.blacklist, names)
    texts, reading = _error_texts(settings), services.reading
    console = Console(
        (access, services.sessions(), names),
        ConsoleServices(
            topics,
            groups,
            inspection,
            services.dead_letters,
            rights,
            reading,
            services.schemas,
            Replay(services.reading, services.producing, services.schemas),
            publishing,
            tails,
            lists,
            keys,
            services.pipelines,
            Histories(_wall_ms),
        ),
        settings,
        texts,
        partial(backend.ready, READY_TIMEOUT),
    )
    yield console
    yield OpenApi(texts, console.failures, anonymous=not known(settings))
    yield Ops(backend, node, owner, READY_TIMEOUT, figures.all)
    yield figures


class Services:
    """The parts behind the views, over one backend and one node."""

    def __init__(self, settings: Settings, backend: Backend, node: Node, metrics: Metrics) -> None:
        timeout = settings.seconds("backend.timeout")
        partitions = settings.number("topics.auto_partitions")
        publishing, consuming = PublishOptions.of(settings), ConsumeOptions.of(settings)
        self._settings = settings
        self.spans = _spans(settings)
        self.backend, self.node = backend, node
        self.keys = Keys(node.registry, timeout, CLOCK)
        self.rights = Rights(node.registry, timeout, CLOCK)
        most = settings.number("topics.auto_max_topics")
        directory = Directory(backend, partitions, timeout, CLOCK, self.rights.begin, most)
        self.topics = Topics(backend, directory, partitions, timeout)
        # One thread: what it does is Python code, and holds the interpreter's lock for most of it.
        self.offload = offload.Pool(1)
        names = RequestNames(node.registry, timeout)
        parts = backend, directory, names
        self.publisher = Publisher(parts, publishing, metrics, CLOCK, offload=self.offload)
        self.subscriber = Subscriber(backend, node, directory, consuming, metrics, CLOCK)
        letters = backend, directory, self.publisher
        self.dead_letters = DeadLetters(letters, consuming.dead_letter_topic, timeout, _wall_ms)
        declared, data = settings.text("pipelines.folder"), settings.text("data.dir")
        self.pipelines = Pipelines(Path(declared), Path(data), node, timeout)
        self.schemas = TopicSchemas(backend, timeout, CLOCK)
        self.reading = Reading(backend, directory, ReadOptions.of(settings), CLOCK)
        making = replace(publishing, auto_create=settings.flag("pip64.auto_create"))
        self.producing = Producing(backend, directory, self.publisher, making, CLOCK)
        fetching = FetchOptions.of(settings)
        self.fetcher = Fetcher((backend, node, directory), fetching, metrics, CLOCK, _wall_ms)
        has_users = bool(settings.text("auth.users"))
        self._passwords = Passwords(settings, node, metrics, CLOCK) if has_users else None

    def bodies(self) -> BodyReader:
        """Return what reads the bodies of publishers."""
        settings = self._settings
        budget = MemoryBudget(settings.number("publish.max_in_flight"), CLOCK)
        timeout = settings.seconds("publish.timeout")
        return BodyReader(Bounds.from_settings(settings), budget, self.offload, timeout, CLOCK)

    def stop(self) -> None:
        """Answer all that waits, and end all streams."""
        for waiting in (self.subscriber, self.fetcher, self.reading):
            waiting.stop()

    def access(self) -> Access:
        """Return who may do what."""
        settings = self._settings
        secret, window = settings.text("auth.admin_secret"), settings.seconds("auth.hmac_window")
        signatures = Signatures(self.keys, secret, window, _wall_ms)
        return Access(settings, self._credentials(), signatures, self.rights, CLOCK)

    def sessions(self) -> Sessions | None:
        """Return the sessions of the console, None: there are no users who could sign in."""
        if self._passwords is None:
            return None
        settings = self._settings
        registry, timeout = self.node.registry, settings.seconds("backend.timeout")
        secret = SharedSecret(registry, RECORD, timeout)
        ended = EndedSessions(registry, timeout, CLOCK, _wall_ms)
        return Sessions(self._passwords, secret, ended, settings.seconds("auth.session"), _wall_ms)

    def _credentials(self) -> Authorization | None:
        """Return what reads the header Authorization, None: clients are anonymous."""
        if not known(self._settings):
            return None
        return Authorization(self._passwords, _tokens(self._settings))


def _tokens(settings: Settings) -> Tokens | None:
    """Return what checks tokens; a start without any does not pay for what they need."""
    if not takes_tokens(settings):
        return None
    from router.access.tokens import Tokens  # noqa: PLC0415 - see above

    return Tokens(settings, time.time, CLOCK)  # noqa: TID251 - the clock that is passed around


def _reload(blacklist: Blacklist) -> None:
    """Read again what clients are judged by: files, and the blacklist."""
    reload_all()
    try:
        blacklist.look()
    except RouterError as error:
        _log.warning("the blacklist is as it was last read", reason=str(error))


def _close(blacklist: Blacklist, owner: MetricsOwner, services: Services) -> None:
    blacklist.stop()
    owner.stop()
    if services.spans is not None:
        services.spans.close()


def _spans(settings: Settings) -> Spans | None:
    """Return what records traces, None: nothing does; a start without pays for no import."""
    if not settings.flag("tracing.enabled"):
        return None
    try:
        from router.web.spans import Spans, provider_of  # noqa: PLC0415 - see above
    except ImportError as error:
        raise SettingError(
            "tracing.enabled: install message-router with its extra `opentelemetry`, in a checkout"
            " pip install '.[opentelemetry]'."
        ) from error
    return Spans(provider_of(os.environ))


def _traced_events(spans: Spans, *parts: Any) -> Events:
    from router.web.traced import TracedEvents  # noqa: PLC0415 - only a start that traces has it

    return TracedEvents(spans, *parts)


def _wrapped(settings: Settings, application: WSGIApplication) -> WSGIApplication:
    """Return the application behind what reads the raw path and the client's address."""
    raw = RawPaths(application)
    proxies = trusted(settings.words("server.trusted_proxies"))
    return Forwarded(raw, proxies) if proxies else raw


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _error_texts(settings: Settings) -> ErrorTexts:
    return ErrorTexts(
        settings.text("server.help_url"),
        int(settings.text("auth.forbidden_status")),
        settings.text("consume.limit_status") == "503",
    )
