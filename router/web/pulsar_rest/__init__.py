"""PIP 64 over HTTP: produce, read, consume and acknowledge with JSON, on every store.

PIP 64 of Apache Pulsar describes these endpoints; Apache Pulsar implemented its produce, in words
of its own, and none of the rest. Both vocabularies are understood (`dialects`). What Apache Pulsar
gets wrong is right here: a message that does not fit its schema is refused, delays delay, keys
route, and clients' errors are answered as such.
"""

from __future__ import annotations

from flask import Blueprint

from router.services.fetch.fetcher import Fetcher
from router.services.producing import MessageProducer
from router.services.read import TopicReader
from router.web.front import (
    DIRECT,
    PIP64_ACKNOWLEDGE,
    PIP64_FETCH,
    PIP64_PRODUCE,
    PIP64_TOPICS,
    Direct,
)
from router.web.openapi.description import add_converters
from router.web.pulsar_rest import paths
from router.web.pulsar_rest.consumers import ConsumerViews, CursorViews
from router.web.pulsar_rest.errors import PulsarRestFailures
from router.web.pulsar_rest.produce import ProduceViews, RestContext
from router.web.pulsar_rest.read import FetchDefaults, ReadViews

__all__ = ["FetchDefaults", "PulsarRest", "RestContext"]


class PulsarRest:
    """The views of PIP 64."""

    def __init__(
        self,
        context: RestContext,
        producer: MessageProducer,
        reading: TopicReader,
        fetcher: Fetcher,
        defaults: FetchDefaults,
        failures: PulsarRestFailures,
    ) -> None:
        self._failures = failures
        produce = ProduceViews(context, producer)
        consumers = ConsumerViews(context, fetcher, reading, defaults)
        cursors = CursorViews(context, fetcher, reading)
        self._views = (produce, ReadViews(context, reading, defaults), consumers, cursors)
        self._direct: dict[tuple[str, str], Direct] = {
            PIP64_PRODUCE: produce.produced,
            PIP64_FETCH: consumers.fetched,
            PIP64_ACKNOWLEDGE: cursors.acknowledged,
        }

    def blueprint(self) -> Blueprint:
        """Return the routes; the application keeps which of them are direct."""
        routes = Blueprint("pulsar_rest", __name__)
        add_converters(routes, paths.CONVERTERS)
        for views in self._views:
            paths.add(routes, views)
        direct = {
            (method, topic + below): view
            for (method, below), view in self._direct.items()
            for topic in PIP64_TOPICS.values()
        }
        routes.record_once(lambda state: state.app.extensions[DIRECT].update(direct))
        self._failures.register(routes)
        return routes
