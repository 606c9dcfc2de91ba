"""The bodies of PIP 64 as the API's description has them."""

from __future__ import annotations

from typing import Final

from router.web.openapi.description import (
    ANY,
    JSON,
    STORE,
    TEXT,
    TOPIC,
    TRACED,
    WHOLE,
    Body,
    Parameter,
    Schema,
    array,
    flag,
    header,
    nullable,
    number,
    one_of,
    shape,
    text,
)
from router.web.openapi.names import MARKS

NUMBERED: Final = (
    "42201, 42202, 42203, 42204 or 42205: the body is not what its schema or this page says."
)
_TIME: Final[Schema] = {"type": ["integer", "string", "null"]}
_PROPERTIES: Final[Schema] = {"type": ["object", "null"], "additionalProperties": TEXT}
_COMMON: Final = {
    "key": ANY,
    "properties": _PROPERTIES,
    "eventTime": _TIME,
    "sequenceId": _TIME,
    "deliverAt": _TIME,
    "deliverAfterMs": _TIME,
    "replicationClusters": {"type": ["array", "null"], "items": TEXT},
    "disableReplication": nullable("boolean"),
}
_SCHEMA: Final = {
    "schema_type": nullable("string"),
    "schema_version": _TIME,
    "key_schema": ANY,
    "value_schema": ANY,
}
PRODUCED: Final = Body(
    {
        JSON: {
            "anyOf": [
                shape(
                    {"messages": array(shape({"value": ANY}, {**_COMMON, "partition": _TIME}))},
                    {**_SCHEMA, "producer_name": nullable("string")},
                ),
                shape(
                    {"messages": array(shape({"payload": ANY}, _COMMON))},
                    {
                        "schemaVersion": _TIME,
                        "keySchema": ANY,
                        "valueSchema": ANY,
                        "producerName": nullable("string"),
                    },
                ),
            ]
        }
    },
    "In PIP 64's words, or in those of Apache Pulsar (`payload`).",
    examples={JSON: {"messages": [{"value": "hello", "key": "k"}]}},
)
STORED: Final[Schema] = {
    "anyOf": [
        shape(
            {
                "schema_version": nullable("integer"),
                "messageIds": array(
                    shape(
                        {
                            "partition": nullable("integer"),
                            "messageId": nullable("string"),
                            "error_code": nullable("integer"),
                            "error": nullable("string"),
                        }
                    )
                ),
            }
        ),
        shape({"messagePublishResults": array({"type": "object"}), "schemaVersion": ANY}),
    ]
}
MESSAGES: Final = shape(
    {
        "messages": array(
            shape(
                {
                    "messageId": TEXT,
                    "key": ANY,
                    "value": ANY,
                    "partition": WHOLE,
                    "properties": {"type": "object", "additionalProperties": TEXT},
                    "eventTime": nullable("integer"),
                    "sequenceId": nullable("integer"),
                    "publishTime": WHOLE,
                    "redeliveryCount": WHOLE,
                    "schemaVersion": nullable("integer"),
                }
            )
        )
    },
    {"schemas": {"type": ["object", "array"]}},
)
CREATED: Final = Body(
    {
        JSON: shape(
            {},
            {
                "name": nullable("string"),
                "id": nullable("string"),
                "start": {"type": ["string", "integer", "null"]},
                **_SCHEMA,
            },
        )
    },
    "The consumer; an empty body has it named by the router.",
    required=False,
    examples={JSON: {"name": "worker-1", "start": "earliest"}},
)
CONSUMER: Final = shape(
    {"id": TEXT, "name": TEXT, "base_uri": TEXT, "schema_version": nullable("integer")}
)
ACKNOWLEDGED: Final = Body(
    {
        JSON: shape(
            {"messageIds": array(nullable("string"))},
            {"type": one_of(("individual", "cumulative"))},
        )
    },
    "The messages, each alone or with all before it in its partition.",
    examples={JSON: {"type": "individual", "messageIds": []}},
)
CURSOR: Final = shape(
    {
        "cursor": shape(
            {
                "backlog": WHOLE,
                "partitions": array(
                    shape(
                        {
                            "partition": WHOLE,
                            "markDelete": nullable("string"),
                            "acknowledged": array(shape({"from": TEXT, "to": TEXT})),
                            "backlog": WHOLE,
                        }
                    )
                ),
            }
        )
    }
)
SENDING: Final = (
    header("Idempotency-Key", "A repeat with the same key is not stored again."),
    header("Content-Encoding", "`gzip`, `deflate` or `identity`."),
    *TRACED,
)
SCHEMA_TYPE: Final = text(
    "schema_type",
    "How values without a schema are read: `bytes`, or a type without a definition, in any case.",
    "^(bytes|NONE|STRING|BOOLEAN|INT8|INT16|INT32|INT64|FLOAT|DOUBLE|DATE|TIME|TIMESTAMP)$",
)
STREAM: Final = flag("stream", "Answer server-sent events.")
FETCHING: Final[tuple[Parameter, ...]] = (
    number("timeout", "Milliseconds to wait for a message, at most `consume.max_timeout`."),
    number("max_messages", "Most messages to answer; 0 is the default, `consume.limit`."),
    number("max_bytes", "Most bytes of messages to answer; 0 is the default."),
    SCHEMA_TYPE,
    STREAM,
)
RESUMING: Final = (
    number("sample", "Messages a second of a stream at most; what is left out is counted."),
    text("last_event_id", "The same as the header `Last-Event-ID`.", MARKS),
    header("Last-Event-ID", "Where to go on: the id of the last event that the client had."),
)
PRODUCE_FAILS: Final = (
    *TOPIC,
    *STORE,
    "message-too-large",
    "not-allowed",
    "publish-refused",
    "disk-full",
    "topic-terminated",
    "topic-held",
    "quota-exceeded",
    "outcome-unknown",
    "incompatible-schema",
)
READ_FAILS: Final = (*TOPIC, *STORE, "not-supported", "not-allowed", "read-failed")
CONSUME_FAILS: Final = (
    *READ_FAILS,
    "subscription-not-found",
    "consumer-not-found",
    "subscription-busy",
    "conflict",
)
