"""The application factory: the one place where the parts of the front are put together."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from wsgiref.types import WSGIApplication

import structlog
from flask import Blueprint, Flask

from router import log
from router.access.authorizer import accepts_tokens, requires_authentication
from router.access.watched import reload_all
from router.backends import Backend
from router.backends.opening import (
    open_administration,
    open_backend,
    open_nats,
    open_node,
    scheme,
)
from router.clocks import wall_ms
from router.errors import RouterError, SettingError
from router.metrics import Metrics
from router.node import Node
from router.process.build import VERSION
from router.services.activity import Activities
from router.services.blacklist import WorkerBlacklist
from router.services.compaction import Compaction
from router.services.consume import ConsumeOptions, PollServer
from router.services.dead_letters.service import DeadLetters
from router.services.dead_letters.tracing import DeadLetterTracer
from router.services.fetch.consumers import FetchOptions
from router.services.fetch.fetcher import Fetcher
from router.services.group_details import GroupInspection
from router.services.groups import TopicGroups
from router.services.history import Histories
from router.services.jetstream import BrokerStreams, JetStream
from router.services.keys import Keys
from router.services.latest import LatestValues
from router.services.manage import TopicManagement
from router.services.memory_budget import MemoryBudget
from router.services.message_groups import MessageGroups
from router.services.message_history import MessageHistory
from router.services.message_offsets import MessageOffsets
from router.services.pipelines import Pipelines
from router.services.producing import MessageProducer
from router.services.publish import Publisher, PublishOptions
from router.services.read import ReadOptions, TopicReader
from router.services.replay import Replayer
from router.services.rights import Rights
from router.services.shared_secret import RequestNames, SharedSecret
from router.services.topic_metadata import TopicMetadataCache
from router.services.topic_schemas import TopicSchemas
from router.services.transactions import OpenTransactions
from router.settings import Settings, config_file, load
from router.web import offload
from router.web.access import (
    AccessLists,
    ApiKeys,
    RequestAuthorizer,
    Sessions,
    Signatures,
    WorkerPasswords,
)
from router.web.access.sessions import RECORD, EndedSessions
from router.web.addresses import Forwarded, trusted
from router.web.audit import Audit
from router.web.bodies import BodyReader, PublishBounds
from router.web.console import Console, ConsoleServices
from router.web.console.masking import MaskProperty
from router.web.dmaap.admin import AdminViews, KeyViews
from router.web.dmaap.errors import ErrorTexts
from router.web.dmaap.events import EventOptions, Events
from router.web.dmaap.groups import DeadLetterViews, GroupViews
from router.web.dmaap.latest import LatestViews
from router.web.dmaap.metrics import MetricViews
from router.web.dmaap.stream import EventStreams
from router.web.dmaap.topics import AclViews, DmaapTopicViews
from router.web.dmaap.transactions import TransactionViews
from router.web.errors import BASIC, BEARER, CHALLENGES, Errors
from router.web.front import Front
from router.web.health import MetricsOwner, Ops
from router.web.jetstream import JetStreamRoutes
from router.web.openapi.description import add_routes
from router.web.openapi.views import OpenApi
from router.web.origins import Cors, Hosts
from router.web.pulsar_admin import AccessContext, PulsarAdmin
from router.web.pulsar_rest import FetchDefaults, PulsarRest, RestContext
from router.web.pulsar_rest.errors import PulsarRestFailures
from router.web.requests import DmaapTransactionIds, RawPaths, topic_names
from router.web.topic_access import TopicAccess

if TYPE_CHECKING:
    from router.web.spans import Spans


READY_TIMEOUT: Final = 5.0
CLOCK: Final = time.monotonic
NUMBERED_STORES: Final = frozenset({"memory", "kafka"})
"""Stores whose entries are messages, numbered without gaps: JetStream's sequences are theirs."""

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
    metrics, transactions = Metrics(), DmaapTransactionIds(time.time_ns)
    blacklist = WorkerBlacklist(node.registry, timeout)
    cors, hosts = Cors(settings.words("cors.origins")), Hosts.from_settings(settings)
    app = Front(cors, hosts, transactions, metrics, blacklist, CLOCK)
    owner = MetricsOwner(metrics, node, timeout)
    errors = Errors(_error_texts(settings), transactions, metrics)
    errors.register(app)
    services = Services(settings, backend, node, metrics)
    access = services.access()
    context = AccessContext(access, blacklist, services.rights, services.topics)
    administration = open_administration(settings, node)
    app.audit = Audit(activities := Activities(administration))
    app.register_blueprint(PulsarAdmin(settings, context, administration, wall_ms).blueprint())
    if not only_admin:
        for blueprint in _blueprints(settings, services, context, transactions, owner, activities):
            app.register_blueprint(blueprint)
    app.wsgi_app = _wrapped(settings, app.wsgi_app)  # type: ignore[assignment, method-assign] # as Flask documents it
    app.extensions["router.stop"] = services.stop
    app.extensions["router.close"] = partial(_close, blacklist, owner, services)
    app.extensions["router.reload"] = partial(_reload, blacklist)
    app.extensions["router.unread"] = errors.unread
    app.extensions[CHALLENGES] = _challenges(settings)
    owner.start()
    blacklist.start()
    return app


def _blueprints(
    settings: Settings,
    services: Services,
    context: AccessContext,
    transactions: DmaapTransactionIds,
    owner: MetricsOwner,
    activities: Activities,
) -> Iterator[Blueprint]:
    """Yield the routes of the router's own dialects, and of its operation."""
    backend, node, timeout = services.backend, services.node, settings.seconds("backend.timeout")
    access, topics, rights = context.access, services.topics, services.rights
    names = topic_names(
        settings.text("names.tenant"),
        settings.text("names.namespace"),
        settings.number("names.max_length"),
    )
    reader, options = services.bodies(), EventOptions.from_settings(settings)
    write_timeout = settings.seconds("stream.write_timeout")
    figures = MetricViews(node, owner, VERSION, timeout, CLOCK, wall_ms)
    publishing = reader, services.publisher
    parts = access, publishing, services.subscriber, names, options, transactions
    spans = services.spans
    events = Events(*parts) if spans is None else _traced_events(spans, *parts)
    yield events.blueprint()
    callers = TopicAccess(access, names)
    tails = EventStreams(callers, services.reading, options.start, write_timeout)
    yield _routes("event_streams", tails)
    yield PulsarRest(
        RestContext(
            *(access, services.schemas, reader, services.subscriber.context.unsent, wall_ms),
            spans,
        ),
        services.producer,
        services.reading,
        services.fetcher,
        FetchDefaults.from_settings(settings),
        PulsarRestFailures(int(settings.text("auth.forbidden_status"))),
    ).blueprint()
    streams = services.streams(access)
    unsent = services.subscriber.context.unsent
    jetstream = JetStreamRoutes(
        settings, (access, streams, reader, unsent), _error_texts(settings), time.time_ns
    )
    yield from jetstream.blueprints()
    yield _routes("topics", DmaapTopicViews(callers, topics, rights))
    lists = AccessLists(access, topics, rights)
    yield _routes("acls", AclViews(callers, lists))
    groups, inspection = TopicGroups(backend, timeout), GroupInspection(backend, node, timeout)
    yield _routes("groups", GroupViews(callers, groups, inspection))
    latest = LatestValues(open_administration(settings, node))
    yield _routes("latest", LatestViews(callers, latest))
    yield _routes("dead_letters", DeadLetterViews(callers, topics, services.dead_letters))
    opened = TransactionViews(access, context.blacklist, services.transactions)
    yield _routes("transactions", opened)
    keys = ApiKeys(access, services.keys, node, timeout)
    yield _routes("keys", KeyViews(access, keys))
    yield _routes("admin", AdminViews(callers, topics, context.blacklist))
    texts, reading = _error_texts(settings), services.reading
    console = Console(
        access,
        services.sessions(),
        names,
        ConsoleServices(
            topics,
            services.compaction,
            MaskProperty(activities.administration),
            groups,
            inspection,
            MessageGroups(backend, timeout),
            services.history,
            services.dead_letters,
            DeadLetterTracer(backend, reading, timeout),
            rights,
            reading,
            services.schemas,
            Replayer(services.reading, services.producer, services.schemas, services.history),
            reader,
            services.publisher,
            tails,
            lists,
            keys,
            services.pipelines,
            Histories(wall_ms),
            activities,
            services.transactions,
            MessageOffsets(
                open_administration(settings, node),
                settings.text("backend.url").startswith("kafka"),
            ),
            streams,
        ),
        settings,
        texts,
        partial(backend.ready, READY_TIMEOUT),
    )
    yield console.blueprint()
    anonymous = not requires_authentication(settings)
    yield OpenApi(texts, console.failures, anonymous=anonymous).blueprint()
    yield _routes("ops", Ops(backend, node, owner, READY_TIMEOUT, figures.all))
    yield _routes("metrics", figures)


def _routes(name: str, views: object) -> Blueprint:
    return add_routes(Blueprint(name, __name__), views)


class Services:
    """The parts behind the views, over one backend and one node."""

    def __init__(self, settings: Settings, backend: Backend, node: Node, metrics: Metrics) -> None:
        timeout = settings.seconds("backend.timeout")
        partitions = settings.number("topics.auto_partitions")
        publishing = PublishOptions.from_settings(settings)
        consuming = ConsumeOptions.from_settings(settings)
        self._settings = settings
        self.spans = _spans(settings)
        self.backend, self.node = backend, node
        self.keys = Keys(node.registry, timeout, CLOCK)
        self.rights = Rights(node.registry, timeout, CLOCK)
        limit = settings.number("topics.auto_max_topics")
        directory = TopicMetadataCache(
            backend, partitions, timeout, CLOCK, self.rights.begin, limit
        )
        self.topics = TopicManagement(backend, directory, partitions, timeout)
        # One thread: what it does is Python code, and holds the interpreter's lock for most of it.
        self.offload = offload.NativeThreadPool(1)
        names = RequestNames(node.registry, timeout)
        self.publisher = Publisher(
            backend, directory, names, publishing, metrics, CLOCK, offload=self.offload
        )
        self.subscriber = PollServer(backend, node, directory, consuming, metrics, CLOCK)
        self.history = MessageHistory(open_administration(settings, node))
        self.dead_letters = DeadLetters(
            backend,
            directory,
            self.publisher,
            consuming.dead_letter_topic,
            timeout,
            wall_ms,
            self.history,
        )
        declared, data = settings.text("pipelines.folder"), settings.text("data.dir")
        self.pipelines = Pipelines(Path(declared), Path(data), node, timeout)
        self.schemas = TopicSchemas(backend, timeout, CLOCK)
        self.compaction = Compaction(open_administration(settings, node))
        self.transactions = OpenTransactions(open_administration(settings, node))
        self.reading = TopicReader(backend, directory, ReadOptions.from_settings(settings), CLOCK)
        making = replace(publishing, auto_create=settings.flag("pip64.auto_create"))
        self.producer = MessageProducer(
            backend, directory, names, making, metrics, CLOCK, offload=self.offload
        )
        fetching = FetchOptions.from_settings(settings)
        self.fetcher = Fetcher((backend, node, directory), fetching, metrics, CLOCK, wall_ms)
        has_users = bool(settings.text("auth.users"))
        self._passwords = WorkerPasswords(settings, node, metrics, CLOCK) if has_users else None
        self._streams: list[JetStream] = []

    def bodies(self) -> BodyReader:
        """Return what reads the bodies of publishers."""
        settings = self._settings
        budget = MemoryBudget(settings.number("publish.max_in_flight"), CLOCK)
        timeout = settings.seconds("publish.timeout")
        return BodyReader(
            PublishBounds.from_settings(settings), budget, self.offload, timeout, CLOCK
        )

    def stop(self) -> None:
        """Answer all that waits, and end all streams."""
        for waiting in (self.subscriber, self.fetcher, self.reading):
            waiting.stop()
        for streams in self._streams:
            streams.stop()

    def streams(self, access: RequestAuthorizer) -> JetStream:
        """Return what answers JetStream: the node's broker, or a store of topics."""
        settings = self._settings
        made: JetStream
        if (road := open_nats(settings, self.node)) is not None:
            made = BrokerStreams(road, settings.seconds("backend.timeout"))
        else:
            # Imported when it is the one: the node's broker has streams of its own.
            from router.services.jetstream import topics  # noqa: PLC0415

            home = settings.text("names.tenant"), settings.text("names.namespace")
            kind = scheme(settings)
            services = self.topics, self.producer, self.reading
            store = topics.TopicStore(kind, kind in NUMBERED_STORES, *services, *home)
            made = topics.TopicStreams(store, access, time.time_ns)
        self._streams.append(made)
        return made

    def access(self) -> RequestAuthorizer:
        """Return who may do what."""
        settings = self._settings
        secret, window = settings.text("auth.admin_secret"), settings.seconds("auth.hmac_window")
        signatures = Signatures(self.keys, secret, window, wall_ms)
        clocks = time.time, CLOCK  # noqa: TID251 - the clock that is passed around
        return RequestAuthorizer(settings, self._passwords, signatures, self.rights, clocks)

    def sessions(self) -> Sessions | None:
        """Return the sessions of the console, None: there are no users who could sign in."""
        if self._passwords is None:
            return None
        settings = self._settings
        registry, timeout = self.node.registry, settings.seconds("backend.timeout")
        secret = SharedSecret(registry, RECORD, timeout)
        ended = EndedSessions(registry, timeout, CLOCK, wall_ms)
        return Sessions(self._passwords, secret, ended, settings.seconds("auth.session"), wall_ms)


def _reload(blacklist: WorkerBlacklist) -> None:
    """Read again what clients are judged by: files, and the blacklist."""
    reload_all()
    try:
        blacklist.refresh()
    except RouterError as error:
        _log.warning("the blacklist is as it was last read", reason=str(error))


def _close(blacklist: WorkerBlacklist, owner: MetricsOwner, services: Services) -> None:
    blacklist.stop()
    owner.stop()
    services.subscriber.close()
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
            "tracing.enabled: install dragoman with its extra `opentelemetry`, in a checkout"
            " pip install '.[opentelemetry]'."
        ) from error
    return Spans(provider_of(os.environ))


def _traced_events(spans: Spans, *parts: Any) -> Events:
    from router.web.spans import TracedEvents  # noqa: PLC0415 - only a start that traces has it

    return TracedEvents(spans, *parts)


def _wrapped(settings: Settings, application: WSGIApplication) -> WSGIApplication:
    """Return the application behind what reads the raw path and the client's address."""
    raw = RawPaths(application)
    proxies = trusted(settings.words("server.trusted_proxies"))
    return Forwarded(raw, proxies) if proxies else raw


def _challenges(settings: Settings) -> tuple[str, ...]:
    """Return which credentials clients are asked for."""
    basic = (BASIC,) if settings.text("auth.users") or not accepts_tokens(settings) else ()
    return (*basic, BEARER) if accepts_tokens(settings) else basic


def _error_texts(settings: Settings) -> ErrorTexts:
    return ErrorTexts(
        settings.text("server.help_url"),
        int(settings.text("auth.forbidden_status")),
        settings.text("consume.limit_status") == "503",
    )
