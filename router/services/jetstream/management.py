"""Streams and consumers for people: calls of the JetStream API, its errors as the router's own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import orjson

from router.clocks.steps import run_blocking
from router.errors import (
    BackendTimeoutError,
    BadRequestError,
    ConflictError,
    NotSupportedError,
    OverloadedError,
    RouterError,
    TopicNotFoundError,
)
from router.model import Principal
from router.services.jetstream import API_PREFIX, JetStream, JetStreamRequest
from router.wire.nats.headers import NO_RESPONDERS, status_code
from router.wire.nats.jetstream.errors import ErrorCode
from router.wire.nats.jetstream.times import ZERO_TIME_NS, format_time
from router.wire.nats.message import NatsMessage

NO_TIME: Final = format_time(ZERO_TIME_NS)
"""What an answer has for a time that there is not, such as that of the first of no messages."""
MAX_PAGES: Final = 1000
"""Pages of one list that are read; each has 256 streams or consumers."""

_PARTITION: Final = re.compile(r"-partition-\d+\Z", re.ASCII)
_CONFLICTS: Final = frozenset(
    {ErrorCode.STREAM_NAME_EXIST, ErrorCode.STREAM_SUBJECT_OVERLAP, ErrorCode.CONSUMER_NAME_EXIST}
)
_OFF: Final = frozenset({ErrorCode.NOT_ENABLED, ErrorCode.NOT_ENABLED_FOR_ACCOUNT})


ApiCall = Callable[[str, Mapping[str, Any]], dict[str, Any]]
"""Makes a call of the API, as `StreamCalls.call` does."""


def stream_name(text: str) -> str:
    """Return the name of a stream, of which a dot may be written as it is in its topic's name."""
    return text.replace(".", "%2E")


def topic_of_stream(stream: str) -> str:
    """Return the short name of a stream's topic, which may have several partitions."""
    return _PARTITION.sub("", stream).replace("%2E", ".").replace("%25", "%")


class StreamCalls:
    """Calls of the JetStream API for one principal."""

    def __init__(self, streams: JetStream, principal: Principal, *, administers: bool) -> None:
        self._streams = streams
        self._principal = principal
        self._administers = administers

    def call(self, subject: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer, of the form `v1`; `subject` is what follows `$JS.API.`.

        Raises the RouterError that stands for an error of the answer, with its description, and
        what a request raises.
        """
        message = NatsMessage(API_PREFIX + subject, payload=orjson.dumps(body))
        request = JetStreamRequest(self._principal, self._administers, message)
        replies = run_blocking(self._streams.request(request))
        if not replies:
            raise BackendTimeoutError
        if status_code(replies[0].headers) == NO_RESPONDERS:
            raise NotSupportedError("JetStream is not enabled.")
        reply: dict[str, Any] = orjson.loads(replies[0].payload)
        if "error" in reply:
            raise failure(reply["error"])
        return reply


def streams(call: ApiCall, subject: str = "") -> Iterator[dict[str, Any]]:
    """Yield all streams that the principal sees, those that store `subject` if it is given."""
    return _listed(call, "STREAM.LIST", "streams", {"subject": subject} if subject else {})


def stream_page(call: ApiCall, offset: int) -> tuple[list[dict[str, Any]], int]:
    """Return the streams from an offset on that one answer has, and how many there are in all."""
    found = call("STREAM.LIST", {"offset": offset})
    return found["streams"] or [], found["total"]


def consumers(call: ApiCall, stream: str) -> Iterator[dict[str, Any]]:
    """Yield the consumers of a stream."""
    return _listed(call, f"CONSUMER.LIST.{stream}", "consumers", {})


def _listed(
    call: ApiCall, subject: str, member: str, criteria: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    offset = 0
    for _ in range(MAX_PAGES):
        page = call(subject, {**criteria, "offset": offset})
        found = page[member] or []
        yield from found
        offset += len(found)
        if not found or offset >= page["total"]:
            return


def failure(members: Mapping[str, Any]) -> RouterError:
    """Return the failure that the member `error` of an answer stands for."""
    number, code = members.get("err_code", 0), members.get("code", 500)
    sentence = f"{members.get('description', '')} ({number})"
    if code == 404:
        return TopicNotFoundError(sentence)
    if number in _CONFLICTS:
        return ConflictError(sentence)
    if number in _OFF:
        return NotSupportedError(sentence)
    if code == 503:
        return OverloadedError(sentence)
    return BadRequestError(sentence)
