"""PIP 64 over HTTP: produce, read, consume and acknowledge with JSON, on every store.

PIP 64 of Apache Pulsar describes these endpoints; Apache Pulsar implemented its produce, in words
of its own, and none of the rest. Both vocabularies are understood (`dialects`). What Apache Pulsar
gets wrong is right here: a message that does not fit its schema is refused, delays delay, keys
route, and clients' errors are answered as such.
"""

from __future__ import annotations

from flask import Blueprint

from router.services.fetch import Fetcher
from router.services.produce import Producing
from router.services.read import Reading
from router.web.pulsar_rest import paths
from router.web.pulsar_rest.consumers import ConsumerViews
from router.web.pulsar_rest.cursor import CursorViews
from router.web.pulsar_rest.errors import Failures
from router.web.pulsar_rest.produce import Parts, ProduceViews
from router.web.pulsar_rest.read import FetchDefaults, ReadViews

__all__ = ["FetchDefaults", "Parts", "PulsarRest"]


class PulsarRest:
    """The views of PIP 64."""

    def __init__(
        self,
        parts: Parts,
        services: tuple[Producing, Reading, Fetcher],
        defaults: FetchDefaults,
        failures: Failures,
    ) -> None:
        producing, reading, fetcher = services
        self._failures = failures
        self._views = (
            ProduceViews(parts, producing),
            ReadViews(parts, reading, defaults),
            ConsumerViews(parts, fetcher, reading, defaults),
            CursorViews(parts, fetcher, reading),
        )

    def blueprint(self) -> Blueprint:
        """Return the routes."""
        routes = Blueprint("pulsar_rest", __name__)
        paths.converters(routes)
        for views in self._views:
            views.add(routes)
        self._failures.register(routes)
        return routes
