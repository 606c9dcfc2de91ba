"""PIP 64 over HTTP: produce, read, consume and acknowledge with JSON, on every store.

PIP 64 of Apache Pulsar describes these endpoints; Apache Pulsar implemented its produce, in words
of its own, and none of the rest. Both vocabularies are understood (`dialects`). What Apache Pulsar
gets wrong is right here: a message that does not fit its schema is refused, delays delay, keys
route, and clients' errors are answered as such.
"""

from __future__ import annotations

from flask import Blueprint

from router.services.fetch.fetcher import Fetcher
from router.services.publish import Publisher
from router.services.read import Reading
from router.web.openapi.description import add_converters
from router.web.pulsar_rest import paths
from router.web.pulsar_rest.consumers import ConsumerViews, CursorViews
from router.web.pulsar_rest.errors import Failures
from router.web.pulsar_rest.produce import ProduceViews, RestContext
from router.web.pulsar_rest.read import FetchDefaults, ReadViews

__all__ = ["FetchDefaults", "PulsarRest", "RestContext"]


class PulsarRest:
    """The views of PIP 64."""

    def __init__(
        self,
        context: RestContext,
        services: tuple[Publisher, Reading, Fetcher],
        defaults: FetchDefaults,
        failures: Failures,
    ) -> None:
        publisher, reading, fetcher = services
        self._failures = failures
        self._views = (
            ProduceViews(context, publisher),
            ReadViews(context, reading, defaults),
            ConsumerViews(context, fetcher, reading, defaults),
            CursorViews(context, fetcher, reading),
        )

    def blueprint(self) -> Blueprint:
        """Return the routes."""
        routes = Blueprint("pulsar_rest", __name__)
        add_converters(routes, paths.CONVERTERS)
        for views in self._views:
            paths.add(routes, views)
        self._failures.register(routes)
        return routes
