"""The bodies of PIP 64 as the API's description has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from router.web import streams
from router.web.openapi import description as api

NUMBERED: Final = {
    422: "42201, 42202, 42203, 42204 or 42205: the body is not what its schema or this page says."
}
_TIME: Final[api.Schema] = {
    "anyOf": [
        {"type": "integer", "minimum": 0, "maximum": 2**63 - 1},
        {"type": "string", "pattern": "^[0-9]{1,18}$"},
        {"type": "null"},
    ]
}
_NAMED: Final[api.Schema] = {
    "anyOf": [{"type": "null"}, {"type": "string", "pattern": api.MEMBER}, {"const": ""}]
}
_PROPERTIES: Final = {**api.schema(dict[str, str]), "type": ["object", "null"]}
_COMMON: Final[Mapping[str, api.Form]] = {
    "key": object,
    "properties": _PROPERTIES,
    "eventTime": _TIME,
    "sequenceId": _TIME,
    "deliverAt": _TIME,
    "deliverAfterMs": _TIME,
    "replicationClusters": {"type": ["array", "null"], "items": api.schema(str)},
    "disableReplication": bool | None,
}
_SCHEMA: Final[Mapping[str, api.Form]] = {
    "schema_type": str | None,
    "schema_version": _TIME,
    "key_schema": object,
    "value_schema": object,
}
PRODUCED: Final = api.BodyDescription(
    {
        api.JSON: {
            "anyOf": [
                api.shape(
                    {"messages": [api.shape({"value": object}, {**_COMMON, "partition": _TIME})]},
                    {**_SCHEMA, "producer_name": str | None},
                ),
                api.shape(
                    {"messages": [api.shape({"payload": object}, _COMMON)]},
                    {
                        "schemaVersion": _TIME,
                        "keySchema": object,
                        "valueSchema": object,
                        "producerName": str | None,
                    },
                ),
            ]
        }
    },
    "In PIP 64's words, or in those of Apache Pulsar (`payload`).",
    examples={api.JSON: {"messages": [{"value": "hello", "key": "k"}]}},
)
STORED: Final[api.Schema] = {
    "anyOf": [
        api.shape(
            {
                "schema_version": int | None,
                "messageIds": [
                    api.shape(
                        {
                            "partition": int | None,
                            "messageId": str | None,
                            "error_code": int | None,
                            "error": str | None,
                        }
                    )
                ],
            }
        ),
        api.shape({"messagePublishResults": [dict], "schemaVersion": object}),
    ]
}
MESSAGES: Final = api.shape(
    {
        "messages": [
            api.shape(
                {
                    "messageId": str,
                    "key": object,
                    "value": object,
                    "partition": int,
                    "properties": dict[str, str],
                    "eventTime": int | None,
                    "sequenceId": int | None,
                    "publishTime": int,
                    "redeliveryCount": int,
                    "schemaVersion": int | None,
                }
            )
        ]
    },
    {"schemas": dict | list},
)
_START: Final[api.Schema] = {
    "anyOf": [
        {"type": "null"},
        {"type": "integer", "minimum": 0, "maximum": 10**15 - 1},
        {"type": "string", "pattern": "^(earliest|latest|[0-9]{1,15})$"},
    ]
}
CREATED: Final = api.BodyDescription(
    {
        api.JSON: api.shape(
            {},
            {"name": _NAMED, "id": _NAMED, "start": _START, **_SCHEMA},
        )
    },
    "The consumer; an empty body has it named by the router.",
    required=False,
    examples={api.JSON: {"name": "worker-1", "start": "earliest"}},
)
CONSUMER: Final = api.shape({"id": str, "name": str, "base_uri": str, "schema_version": int | None})
ACKNOWLEDGED: Final = api.BodyDescription(
    {
        api.JSON: api.shape(
            {"messageIds": [{"type": ["string", "null"], "pattern": f"^{api.ID}$"}]},
            {"type": api.one_of(("individual", "cumulative"))},
        )
    },
    "The messages, each alone or with all before it in its partition.",
    examples={api.JSON: {"type": "individual", "messageIds": []}},
)
CURSOR: Final = api.shape(
    {
        "cursor": api.shape(
            {
                "backlog": int,
                "partitions": [
                    api.shape(
                        {
                            "partition": int,
                            "markDelete": str | None,
                            "acknowledged": [api.shape({"from": str, "to": str})],
                            "backlog": int,
                        }
                    )
                ],
            }
        )
    }
)
ANSWERED: Final = {
    200: api.ReplyDescription("Messages.", {api.JSON: MESSAGES, streams.MIMETYPE: api.EVENTS}),
}
SENDING: Final = (
    api.header("Idempotency-Key", "A repeat with the same key is not stored again."),
    api.header("Content-Encoding", "`gzip`, `deflate` or `identity`."),
    *api.TRACED,
)
SCHEMA_TYPE: Final = api.text(
    "schema_type",
    "How values without a schema are read: `bytes`, or a type without a definition, in any case.",
    "^(bytes|NONE|STRING|BOOLEAN|INT8|INT16|INT32|INT64|FLOAT|DOUBLE|DATE|TIME|TIMESTAMP)$",
)
STREAM: Final = api.flag("stream", "Answer server-sent events.")
FETCHING: Final[tuple[api.Parameter, ...]] = (
    api.number("timeout", "Milliseconds to wait for a message, at most `consume.max_timeout`."),
    api.number("max_messages", "Most messages to answer; 0 is the default, `consume.limit`."),
    api.number("max_bytes", "Most bytes of messages to answer; 0 is the default."),
    SCHEMA_TYPE,
    STREAM,
)
RESUMING: Final = (
    api.number("sample", "Messages a second of a stream at most; what is left out is counted."),
    api.text("last_event_id", "The same as the header `Last-Event-ID`.", api.MARKS),
    api.header("Last-Event-ID", "Where to go on: the id of the last event that the client had."),
)
PRODUCE_FAILS: Final = (*api.TOPIC, *api.STORE, *api.APPEND, "not-allowed", "incompatible-schema")
READ_FAILS: Final = (*api.TOPIC, *api.STORE, "not-supported", "not-allowed", "read-failed")
CONSUME_FAILS: Final = (
    *READ_FAILS,
    "subscription-not-found",
    "consumer-not-found",
    "subscription-busy",
    "conflict",
)
