"""The live tail of a topic's page: the stream of `/events/{topic}` below `/console/`.

A session counts below `/console/` alone, and a browser's EventSource can send no other credentials.
"""

from __future__ import annotations

from flask import Blueprint, Response

from router.web import streams
from router.web.console.described import SIGN_IN
from router.web.console.parts import Parts
from router.web.dmaap_stream import STREAM_FAILS, STREAMED, EventStreams
from router.web.openapi.description import EVENTS, Reply, operation


class StreamViews:
    """The view of live tails."""

    def __init__(self, parts: Parts, streams: EventStreams) -> None:
        self._parts = parts
        self._streams = streams

    def add(self, routes: Blueprint) -> None:
        """Add the route."""
        routes.get("/console/topics/<topic>/stream")(self.stream)

    @operation(
        *STREAMED,
        answers={
            200: Reply("Messages as server-sent events.", {streams.MIMETYPE: EVENTS}),
            **SIGN_IN,
        },
        fails=STREAM_FAILS,
    )
    def stream(self, topic: str) -> Response:
        """Answer the messages of a topic as they come."""
        return self._streams.stream(self._parts.principal(), self._parts.topic_name(topic))
