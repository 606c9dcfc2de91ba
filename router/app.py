"""The application factory: the one place where the parts of the front are put together."""

from __future__ import annotations

import os
import time

from flask import Flask

from router import log
from router.backends import Backend, Node
from router.backends.opening import open_backend, open_node
from router.metrics import Metrics
from router.services.consume import ConsumeOptions, Subscriber
from router.services.directory import Directory
from router.services.manage import Topics
from router.services.publish import Publisher, PublishOptions
from router.settings import Settings, config_file, load
from router.web.access import Access
from router.web.cors import Cors
from router.web.dmaap import EventOptions, Events
from router.web.dmaap_errors import ErrorTexts
from router.web.dmaap_topics import TopicViews
from router.web.errors import Errors
from router.web.front import Front
from router.web.names import RawPaths, topic_names
from router.web.ops import MetricsOwner, Ops
from router.web.transaction import TransactionIds

READY_TIMEOUT = 5.0


def create_app(
    settings: Settings | None = None, backend: Backend | None = None, node: Node | None = None
) -> Flask:
    """Build the application; raise SettingError where settings do not go together.

    Without settings they come from the configuration file and the ROUTER_* variables. A backend or
    node that is handed in stays the caller's to close. `extensions` has `router.stop`, which
    answers waiting polls (requests are served on), `router.close`, which ends everything, and
    `router.unread`, which words the answer to a request that the server cannot read.
    """
    if settings is None:
        settings = load(config_file(os.environ), os.environ)
        log.configure(settings.text("log.level"), settings.text("log.format"))
    made: list[Backend | Node] = []
    if node is None:
        made.append(node := open_node(settings))
    if backend is None:
        made.append(backend := open_backend(settings, node))
    app = _put_together(settings, backend, node)
    close = app.extensions["router.close"]
    app.extensions["router.close"] = lambda: (close(), *(part.close() for part in reversed(made)))
    return app


def _put_together(settings: Settings, backend: Backend, node: Node) -> Front:
    clock, timeout = time.monotonic, settings.seconds("backend.timeout")
    metrics = Metrics()
    transactions = TransactionIds(_wall_ms)
    cors = Cors(settings.words("cors.origins"))
    app = Front(cors, transactions, metrics, clock)
    access = Access(settings, node, metrics, clock)
    auto_partitions = settings.number("topics.auto_partitions")
    directory = Directory(backend, auto_partitions, timeout, clock)
    publisher = Publisher(backend, directory, PublishOptions.of(settings), metrics, clock)
    subscriber = Subscriber(backend, node, directory, ConsumeOptions.of(settings), metrics, clock)
    topics = Topics(backend, directory, auto_partitions, timeout)
    names = topic_names(
        settings.text("names.tenant"),
        settings.text("names.namespace"),
        settings.number("names.max_length"),
    )
    owner = MetricsOwner(metrics, node, timeout, app.count)
    errors = Errors(_error_texts(settings), transactions, metrics)
    errors.register(app)
    events = Events(access, publisher, subscriber, names, EventOptions.of(settings), _wall_ms)
    app.register_blueprint(events.blueprint())
    app.register_blueprint(TopicViews(access, topics, names).blueprint())
    app.register_blueprint(Ops(backend, node, owner, READY_TIMEOUT).blueprint())
    app.wsgi_app = RawPaths(app.wsgi_app)  # type: ignore[assignment, method-assign] # as Flask documents it
    app.extensions["router.stop"] = subscriber.stop
    app.extensions["router.close"] = owner.stop
    app.extensions["router.unread"] = errors.unread
    owner.start()
    return app


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _error_texts(settings: Settings) -> ErrorTexts:
    return ErrorTexts(
        settings.text("server.help_url"),
        int(settings.text("auth.forbidden_status")),
        settings.text("consume.limit_status") == "503",
    )
