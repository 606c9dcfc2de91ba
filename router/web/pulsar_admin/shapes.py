"""The bodies of Pulsar's administration as the API's description has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Unpack

from router.model import SchemaType
from router.web.openapi import description as api

INTEGER: Final[api.Schema] = {"type": "integer"}
PERSISTENT_ONLY: Final = api.Parameter(
    "domain", "Domain.", api.ParameterKind.CHOICE, ("persistent",), place="path"
)
"""Of calls that only topics of the log have."""
NAMES: Final = [str]
READ_FAILS: Final = (*api.TOPIC, *api.STORE, "not-allowed", "not-supported")
CHANGE_FAILS: Final = (
    *READ_FAILS,
    "bad-json",
    "topic-exists",
    "conflict",
    "subscription-not-found",
    "subscription-busy",
    "subscription-limit",
)
POLICY_FAILS: Final = (*api.STORE, "namespace-not-found", "not-allowed", "bad-json", "conflict")
NO_NAME: Final = {412: "The name is not allowed."}
REFUSED: Final = {409: "It exists already."}
IN_USE: Final = {412: "It is in use.", 409: "It is not empty."}
ONE: Final = {404: "There is no such message.", 405: "The topic is partitioned: name a partition."}
NO_CLUSTER: Final = {412: "The clusters are not `standalone`."}
ONE_CLUSTER: Final = {404: "There is no such cluster."}
TOO_FEW: Final = {406: "There has to be a partition."}
CLUSTERS: Final[api.Schema] = {
    "type": "array",
    "items": api.one_of(["standalone"]),
    "minItems": 1,
    "maxItems": 1,
}
MESSAGE_ID: Final = api.shape(
    {"ledgerId": INTEGER, "entryId": INTEGER, "partitionIndex": INTEGER, "batchIndex": INTEGER}
)
_BOUND: Final[api.Schema] = {
    "type": "integer",
    "description": "-1: without bound; 0 is refused.",
    "anyOf": [{"const": -1}, {"minimum": 1, "maximum": 2**42}],
}
_PART: Final[api.Schema] = {"type": "integer", "minimum": -1, "maximum": 2**63 - 1}
_INDEX: Final[api.Schema] = {"type": "integer", "minimum": -1}
_COUNT: Final[api.Schema] = {"type": "integer", "minimum": 1, "maximum": 1_000}
RETENTION: Final = api.shape({"retentionTimeInMinutes": _BOUND, "retentionSizeInMB": _BOUND})
QUOTA: Final = api.shape(
    {"limitSize": INTEGER, "policy": api.one_of(["consumer_backlog_eviction"])},
    {"limitTime": {"const": -1}},
)
_CREATES: Final[Mapping[str, api.Form]] = {"allowAutoTopicCreation": bool}
CREATION: Final[api.Schema] = {
    "anyOf": [
        api.shape(
            {
                **_CREATES,
                "topicType": {"const": "partitioned"},
                "defaultNumPartitions": _COUNT,
            }
        ),
        api.shape({**_CREATES, "topicType": {"const": "non-partitioned"}}),
    ]
}
THRESHOLD: Final[api.Schema] = {"type": "integer", "minimum": 0}
LIMIT: Final[api.Schema] = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
STRATEGY: Final[api.Schema] = {
    "type": ["string", "null"],
    "examples": ["FULL", "BACKWARD", "FORWARD", "ALWAYS_COMPATIBLE", "UNDEFINED"],
}
TENANT: Final = api.shape(
    {"allowedClusters": {"type": "array", "items": api.one_of(["standalone"]), "minItems": 1}},
    {"adminRoles": {"type": ["array", "null"], "items": {"type": "string"}}},
)
COMPACTION: Final = api.shape(
    {"status": api.one_of(["NOT_RUN", "RUNNING", "SUCCESS", "ERROR"]), "lastError": str}
)
SCHEMA: Final = api.shape(
    {"version": INTEGER, "type": str, "timestamp": INTEGER, "data": str, "properties": dict}
)


def reads(
    path: str, form: api.Form, meaning: str, *parameters: api.Parameter, **more: Unpack[api.More]
) -> Callable[[api.View], api.View]:
    """Return a decorator that describes a view of a path that answers in JSON."""
    more.setdefault("fails", READ_FAILS)
    return api.reads(path, form, meaning, *parameters, **more)


def changes(
    *about: str | api.Parameter, **more: Unpack[api.More]
) -> Callable[[api.View], api.View]:
    """Return a decorator that describes a view that changes something, and answers nothing."""
    fields: api.More = {"fails": CHANGE_FAILS, "answers": api.answers_nothing(), **more}
    return api.operation(*about, **fields)


NEW_TENANT: Final = api.BodyDescription({api.JSON: TENANT})
POLICIES: Final = api.BodyDescription({api.JSON: dict}, "The namespace's policies.", required=False)
_PROPERTIES: Final = dict[str, str]
PROPERTIES: Final = api.BodyDescription({api.JSON: _PROPERTIES}, "Properties.", required=False)
PARTITION_COUNT: Final = api.BodyDescription(
    {api.JSON: _COUNT}, "How many partitions the topic has then."
)
PARTITIONS: Final = api.BodyDescription(
    {api.JSON: {"anyOf": [_COUNT, api.shape({"partitions": _COUNT}, {"properties": _PROPERTIES})]}},
    "The number of partitions, or an object with it and properties.",
)
PLACE: Final = api.BodyDescription(
    {
        api.JSON: api.shape(
            {"ledgerId": _PART, "entryId": _PART},
            {"batchIndex": _INDEX, "isExcluded": object, "excluded": object},
        )
    },
    "The id of a message.",
)
_TYPES: Final = [kind.name for kind in SchemaType if kind < SchemaType.AUTO_CONSUME]
NEW_SCHEMA: Final = api.BodyDescription(
    {api.JSON: api.shape({"type": api.one_of(_TYPES), "schema": str}, {"properties": _PROPERTIES})},
    "Type and definition.",
    examples={api.JSON: {"type": "STRING", "schema": "", "properties": {}}},
)
