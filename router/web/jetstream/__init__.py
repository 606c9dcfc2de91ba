"""JetStream over HTTP: its API as JSON, and `+OK` and `-ERR` for clients that read no JSON.

The seed of the specification (003) describes both. What NATS has no words for, fetching and
acknowledging by requests, is written as its API writes the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from flask import Blueprint
from werkzeug.routing import BaseConverter

from router.services.jetstream import JetStream
from router.services.jetstream.calls import READS
from router.services.memory_budget import MemoryBudget
from router.settings import Settings
from router.web.access import RequestAuthorizer
from router.web.bodies import BodyReader
from router.web.dmaap.errors import ErrorTexts
from router.web.errors import JETSTREAM
from router.web.front import DIRECT, JETSTREAM_FETCH, JETSTREAM_PUBLISH
from router.web.jetstream.acks import AckViews
from router.web.jetstream.api import ApiViews
from router.web.jetstream.context import JetStreamContext, JetStreamOptions
from router.web.jetstream.errors import JetStreamFailures
from router.web.jetstream.fetch import FetchViews
from router.web.jetstream.forms import Writer
from router.web.jetstream.publish import PublishViews
from router.web.openapi.description import add_converters, add_routes


class _Read(BaseConverter):
    part_isolating = True
    regex = READS


class JetStreamRoutes:
    """The views of JetStream; `wall_ns` is the time of day in ns since 1970."""

    def __init__(
        self,
        settings: Settings,
        parts: tuple[RequestAuthorizer, JetStream, BodyReader, MemoryBudget],
        texts: ErrorTexts,
        wall_ns: Callable[[], int],
    ) -> None:
        writer = Writer(wall_ns)
        options = JetStreamOptions.from_settings(settings)
        access, streams, reader, unsent = parts
        reader = reader.with_message_limit(options.max_payload)
        context = JetStreamContext(access, streams, reader, unsent, options, writer, wall_ns)
        self._failures = JetStreamFailures(texts, writer)
        self._api = ApiViews(context)
        self._publish = PublishViews(context)
        self._fetch = FetchViews(context)
        self._acks = AckViews(context)

    def blueprints(self) -> Iterator[Blueprint]:
        """Yield the routes: those that answer JSON, and those of light clients."""
        calls = Blueprint("jetstream", __name__)
        add_converters(calls, {"jetstream_read": _Read})
        light = Blueprint("jetstream_light", __name__)
        direct = {
            JETSTREAM_PUBLISH: self._publish.published,
            JETSTREAM_FETCH: self._fetch.fetched,
            **self._acks.direct(),
        }
        calls.record_once(lambda state: state.app.extensions[DIRECT].update(direct))
        failed = {JETSTREAM: self._failures.failed}
        calls.record_once(lambda state: state.app.extensions.update(failed))
        for routes in (calls, light):
            self._failures.register(routes)
        yield add_routes(calls, self._api, self._fetch)
        yield add_routes(light, self._publish, self._acks)
