"""What `/events` takes and answers, as OpenAPI describes it: bodies, headers, failures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from router.web.media import Format
from router.web.openapi import description as api
from router.wire import ndjson

_ATTRIBUTE: Final = {"type": ["string", "boolean", "integer"], "minLength": 1}
_EVENT: Final = api.shape(
    {"specversion": {"const": "1.0"}, "id": _ATTRIBUTE, "source": _ATTRIBUTE, "type": _ATTRIBUTE}
)
MESSAGES: Final = api.BodyDescription(
    {
        "text/plain": str,
        api.JSON: {"anyOf": [api.schema(dict), api.schema([dict])]},
        "application/cambria": str,
        "application/cambria-zip": str,
        "application/cloudevents+json": _EVENT,
        Format.EVENTS.value: [_EVENT],
        ndjson.KIND: str,
        "application/octet-stream": str,
    },
    "Text: each line is a message. JSON: each object is one. Cambria:"
    " `<key length>.<message length>.<key><message>`, again and again; `cambria-zip` is the same"
    " in gzip. Lines of NDJSON with key, value and properties are those that polls answer."
    " CloudEvents are read in structured and batched mode, and"
    " in binary mode by the headers `ce-*`. Of any other type the whole body is one message.",
    required=False,
    examples={
        "text/plain": "first\nsecond",
        api.JSON: [{"id": 1}],
        "application/cambria": "1.5.khello",
        ndjson.KIND: '{"key":"k","value":"hello","properties":{"source":"shop"}}',
    },
)
SENDING: Final = (
    api.text("partitionKey", "Key of the messages whose format gives them none."),
    api.header("Idempotency-Key", "A repeat with the same key is not stored again."),
    api.header("Nats-Subject", "Subject, for NATS clients, of the messages that name none."),
    api.header("Content-Encoding", "`gzip`, `deflate` or `identity`."),
    *api.TRACED,
)
PUBLISH_FAILS: Final = (
    *api.TOPIC,
    *api.STORE,
    *api.APPEND,
    "bad-framing",
    "bad-json",
    "bad-cloud-event",
    "not-allowed",
    "partial-publish",
)
POLL_FAILS: Final = (
    "not-acceptable",
    "read-body-too-large",
    "message-over-max-bytes",
    "subscription-busy",
    "subscription-limit",
    "not-allowed",
    "read-failed",
    "conflict",
)


def publish_replies(
    more: Mapping[str, api.Form] | None = None,
) -> Mapping[int, api.ReplyDescription]:
    """Return the replies of a publish; `more`: further fields of its answer."""
    fields: dict[str, api.Form] = {"serverTimeMs": int, "count": int, **(more or {})}
    return {200: api.ReplyDescription("The messages are on disk.", {api.JSON: api.shape(fields)})}
