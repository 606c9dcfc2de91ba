"""Trace contexts of requests, and of the messages that carry them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final
from wsgiref.types import WSGIEnvironment

from router.model import NO_PROPERTIES, Message

TRACE_HEADER: Final = "HTTP_TRACEPARENT"
"""In the environment of a request that has a trace context."""
TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
MAX_STATE_CHARS: Final = 512
MAX_STATE_MEMBERS: Final = 32
LONG_MEMBER_CHARS: Final = 128
"""Members of a state that is too long are left out if they are longer than that, and go first."""
_PARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_MEMBER: Final = re.compile(
    r"((?:[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})|[a-z0-9][a-z0-9_*/-]{0,255})"
    r"=[ -+\--<>-~]{0,255}[!-+\--<>-~]"
)
_NO_TRACE: Final = "0" * 32
_NO_SPAN: Final = "0" * 16
_VERSION: Final = "00"
_SAMPLED: Final = 1


def of_request(environ: WSGIEnvironment) -> Mapping[str, str]:
    """Return the properties that carry the context of a request; none where it has no valid one."""
    given = environ.get(TRACE_HEADER)
    if given is None:
        return NO_PROPERTIES
    parent = read_parent(given)
    if parent is None:
        return NO_PROPERTIES
    state = read_state(environ.get("HTTP_TRACESTATE", ""))
    return {TRACEPARENT: parent, TRACESTATE: state} if state else {TRACEPARENT: parent}


def read_parent(text: str) -> str | None:
    """Return a `traceparent` as version 00 has it, None: it is not valid."""
    found = _PARENT.fullmatch(text)
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == "ff" or trace == _NO_TRACE or span == _NO_SPAN:
        return None
    if version == _VERSION:
        return None if more else text
    # Of a later version this much is known, and no other flag.
    return f"{_VERSION}-{trace}-{span}-{int(flags, 16) & _SAMPLED:02x}"


def read_state(text: str) -> str:
    """Return a `tracestate` within its bounds, an empty one where it is not valid."""
    members = [member for part in text.split(",") if (member := part.strip(" \t"))]
    if len(members) > MAX_STATE_MEMBERS:
        return ""
    found = [_MEMBER.fullmatch(member) for member in members]
    names = {match[1] for match in found if match is not None}
    if len(names) < len(members):
        return ""
    if len(",".join(members)) > MAX_STATE_CHARS:
        members = [member for member in members if len(member) <= LONG_MEMBER_CHARS]
    while len(",".join(members)) > MAX_STATE_CHARS:
        members.pop()
    return ",".join(members)


def add(messages: Sequence[Message], context: Mapping[str, str], longest: int) -> list[Message]:
    """Return messages that carry a context; those that carry one, or that it makes too large, not.

    `longest`: the bytes that a message may have.
    """
    size = sum(len(name) + len(value) for name, value in context.items())
    return [
        message if message.size() + size > longest else with_context(message, context)
        for message in messages
    ]


def with_context(message: Message, context: Mapping[str, str]) -> Message:
    """Return a message that carries a context, unless it carries one."""
    properties = message.properties
    if not properties:
        return message._replace(properties=context)
    if TRACEPARENT in properties or TRACESTATE in properties:
        return message
    return message._replace(properties={**properties, **context})
