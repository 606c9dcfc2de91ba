"""The bodies of Pulsar's administration as the API's description has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from router.model import SchemaType
from router.web.openapi.description import (
    ANY,
    JSON,
    OBJECT,
    STORE,
    TEXT,
    TOPIC,
    Body,
    Reply,
    Schema,
    array,
    one_of,
    shape,
)

INTEGER: Final[Schema] = {"type": "integer"}
FLAG: Final[Schema] = {"type": "boolean"}
NAMES: Final = array(TEXT)
LOOKING: Final = (*TOPIC, *STORE, "not-allowed", "not-supported")
MANAGING: Final = (
    *LOOKING,
    "bad-json",
    "topic-exists",
    "conflict",
    "subscription-not-found",
    "subscription-busy",
    "subscription-limit",
)
POLICY: Final = (*STORE, "namespace-not-found", "not-allowed", "bad-json", "conflict")
NO_NAME: Final = {412: "The name is not allowed."}
REFUSED: Final = {409: "It exists already."}
IN_USE: Final = {412: "It is in use.", 409: "It is not empty."}
ONE: Final = {404: "There is no such message.", 405: "The topic is partitioned: name a partition."}
TOO_FEW: Final = {406: "There has to be a partition."}
MESSAGE_ID: Final = shape(
    {"ledgerId": INTEGER, "entryId": INTEGER, "partitionIndex": INTEGER, "batchIndex": INTEGER}
)
_BOUND: Final[Schema] = {
    "type": "integer",
    "description": "-1: without bound; 0 is refused.",
    "anyOf": [{"const": -1}, {"minimum": 1, "maximum": 2**42}],
}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": 1_000}
RETENTION: Final = shape({"retentionTimeInMinutes": _BOUND, "retentionSizeInMB": _BOUND})
QUOTA: Final = shape(
    {"limitSize": INTEGER, "policy": one_of(["consumer_backlog_eviction"])},
    {"limitTime": {"const": -1}},
)
CREATION: Final = shape(
    {"allowAutoTopicCreation": FLAG, "topicType": one_of(["partitioned", "non-partitioned"])},
    {"defaultNumPartitions": _COUNT},
)
STRATEGY: Final[Schema] = {
    "type": ["string", "null"],
    "examples": ["FULL", "BACKWARD", "FORWARD", "ALWAYS_COMPATIBLE", "UNDEFINED"],
}
TENANT: Final = shape(
    {"allowedClusters": {"type": "array", "items": one_of(["standalone"]), "minItems": 1}},
    {"adminRoles": NAMES},
)
SCHEMA: Final = shape(
    {"version": INTEGER, "type": TEXT, "timestamp": INTEGER, "data": TEXT, "properties": OBJECT}
)


def body(schema: Schema) -> Body:
    """Return a body in JSON."""
    return Body({JSON: schema})


def may_be_unset(schema: Schema) -> Mapping[int, Reply]:
    """Return the answer that tells a policy, or has no body where the namespace has none."""
    return {200: Reply("The policy; no body where the namespace has none.", {JSON: schema})}


POLICIES: Final = Body({JSON: OBJECT}, "The namespace's policies.", required=False)
_PROPERTIES: Final[Schema] = {"type": "object", "additionalProperties": TEXT}
PROPERTIES: Final = Body({JSON: _PROPERTIES}, "Properties.", required=False)
PARTITION_COUNT: Final = Body({JSON: _COUNT}, "How many partitions the topic has then.")
PARTITIONS: Final = Body(
    {JSON: {"anyOf": [_COUNT, shape({"partitions": _COUNT}, {"properties": _PROPERTIES})]}},
    "The number of partitions, or an object with it and properties.",
)
PLACE: Final = Body(
    {JSON: shape({}, {"ledgerId": INTEGER, "entryId": INTEGER, "isExcluded": ANY})},
    "The id of a message.",
    required=False,
)
_TYPES: Final = [kind.name for kind in SchemaType if kind < SchemaType.AUTO_CONSUME]
NEW_SCHEMA: Final = Body(
    {JSON: shape({"type": one_of(_TYPES), "schema": TEXT}, {"properties": _PROPERTIES})},
    "Type and definition.",
    examples={JSON: {"type": "STRING", "schema": "", "properties": {}}},
)
