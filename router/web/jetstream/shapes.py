"""Parameters, bodies and answers of the JetStream routes, as the description has them."""

from __future__ import annotations

from typing import Final

from router.web.jetstream.forms import Form
from router.web.openapi import description as api

FORM: Final = (
    api.choice("form", [form.value for form in Form], "Form of the answer; `seed` if left out."),
    api.header("Nats-Api-Form", "The same."),
)
_HEADERS: Final = (
    ("Nats-Msg-Id", "A repeat with the same id, in the stream's window, is not stored again."),
    ("Nats-Expected-Stream", "Store it in this stream or not at all."),
    ("Nats-Expected-Last-Sequence", "Store it if this is the stream's last sequence."),
    ("Nats-Expected-Last-Subject-Sequence", "Store it if this is the subject's last sequence."),
    ("Nats-Expected-Last-Msg-Id", "Store it if the stream's last message has this id."),
    ("Nats-Rollup", "`sub` or `all`: delete the messages before it."),
)
PUBLISHING: Final = (
    *(api.header(name, meaning) for name, meaning in _HEADERS),
    api.header("Content-Encoding", "`gzip`, `deflate` or `identity`."),
)
FETCHING: Final = (
    api.number("batch", "Most messages to answer; 1 if left out."),
    api.number("expires", "Milliseconds to wait for a message; 0: none."),
    api.number("max_bytes", "Most bytes of messages to answer."),
)
CALL: Final = api.BodyDescription(
    {api.JSON: dict},
    "What the call takes, as over NATS; no body and `{}` mean the same.",
    required=False,
    examples={api.JSON: {"name": "ORDERS", "subjects": ["orders.*"]}},
)
MESSAGE: Final = api.BodyDescription(
    {"application/octet-stream": str, "text/plain": str, api.JSON: dict},
    "The message, as it is.",
    required=False,
)
_TOKEN: Final = {"type": "string", "minLength": 1}
TOKENS: Final = api.BodyDescription(
    {
        "text/plain": _TOKEN,
        api.JSON: {
            "anyOf": [
                api.shape({"token": _TOKEN}),
                api.shape({"tokens": {"type": "array", "items": _TOKEN, "minItems": 1}}),
            ]
        },
    },
    "The `token` of each message, as it was fetched: one, or lines, or JSON.",
)
REPLY: Final = {
    "description": "`type` is `io.nats.jetstream.api.v1.` and the name of what was called, and in"
    " the form `v1` `_response`.",
    **api.shape({"type": str}),
}
ANSWERED: Final = api.answers_json(REPLY, "What was called for.")
_FETCHED_MESSAGE: Final = api.shape(
    {"subject": str, "value": str, "token": str},
    {
        "sequence": int,
        "consumer_sequence": int,
        "time": str,
        "deliveries": int,
        "pending": int,
        "headers": dict,
        "value_encoding": str,
    },
)
FETCHED: Final = api.answers_json(
    api.shape({"type": str, "messages": [_FETCHED_MESSAGE]}, {"time": str}),
    "Messages, none if there were none in time.",
)
PUBLISHED: Final = {
    200: api.ReplyDescription(
        "`+OK stream=ORDERS&sequence=10`; with `form=v1` the acknowledgement of NATS.",
        {"text/plain": str, api.JSON: dict},
    )
}
ACKNOWLEDGED: Final = {200: api.ReplyDescription("`+OK`.", {"text/plain": str})}
REFUSED: Final = {
    400: "what JetStream refuses, and subjects that are no call",
    404: "no such stream, consumer or message, and no stream with the subject",
    409: "the consumer takes no pull, or does not know the delivery that is acknowledged",
    412: "a condition does not hold",
    429: "too many requests",
    500: "JetStream failed",
    503: "JetStream is off, or a stream is full",
}
