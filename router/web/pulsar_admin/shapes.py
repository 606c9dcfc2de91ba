"""The bodies of Pulsar's administration as the API's description has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

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
RETENTION: Final = shape({"retentionTimeInMinutes": INTEGER, "retentionSizeInMB": INTEGER})
QUOTA: Final = shape({"limitSize": INTEGER, "policy": TEXT}, {"limitTime": INTEGER})
CREATION: Final = shape(
    {"allowAutoTopicCreation": FLAG}, {"topicType": TEXT, "defaultNumPartitions": INTEGER}
)
STRATEGY: Final[Schema] = {"type": ["string", "null"]}
TENANT: Final = shape({"allowedClusters": NAMES}, {"adminRoles": NAMES})
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
PROPERTIES: Final = Body(
    {JSON: {"type": "object", "additionalProperties": TEXT}}, "Properties.", required=False
)
PARTITIONS: Final = Body(
    {JSON: {"anyOf": [INTEGER, shape({"partitions": INTEGER}, {"properties": OBJECT})]}},
    "The number of partitions, or an object with it and properties.",
)
PLACE: Final = Body(
    {JSON: shape({}, {"ledgerId": INTEGER, "entryId": INTEGER, "isExcluded": ANY})},
    "The id of a message.",
    required=False,
)
NEW_SCHEMA: Final = Body(
    {JSON: shape({"type": TEXT, "schema": TEXT}, {"properties": OBJECT})},
    "Type and definition.",
    examples={JSON: {"type": "STRING", "schema": "", "properties": {}}},
)
