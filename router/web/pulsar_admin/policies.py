"""Policies of namespaces, in Pulsar's words and in ours.

Pulsar's retention is about messages that every subscription acknowledged, and 0 has them go at
once. Here it is about all messages, so that 0 would drop what nobody has read: it is refused.
Pulsar's backlog quota has three ways to deal with what is too much; here the oldest messages go,
which it calls consumer_backlog_eviction, and the others are refused rather than ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from router.errors import BadRequestError
from router.settings import Settings
from router.web.pulsar_admin.errors import RefusedError
from router.web.pulsar_admin.paths import whole
from router.wire.pulsar import pulsar_pb2 as pb

MINUTE: Final = 60_000
MB: Final = 1 << 20
EVICTION: Final = "consumer_backlog_eviction"
STORAGE: Final = "destination_storage"
QUOTAS: Final = (STORAGE, "message_age")
UNDEFINED: Final = "UNDEFINED"
MOST: Final = 2**42
"""Minutes, megabytes; no number above it fits when it is turned into milliseconds or bytes."""


class Defaults(NamedTuple):
    """What settings say where a namespace does not."""

    retention_ms: int
    retention_bytes: int
    strategy: str

    @classmethod
    def of(cls, settings: Settings) -> Defaults:
        """Return what settings say."""
        return cls(
            round(settings.seconds("retention.time") * 1000),
            settings.number("retention.size"),
            settings.text("schemas.compatibility"),
        )


def read_retention(body: Mapping[str, Any]) -> pb.Policies:
    """Return Pulsar's RetentionPolicies as ours; raise BadRequestError."""
    minutes = whole(body.get("retentionTimeInMinutes"), "retentionTimeInMinutes")
    megabytes = whole(body.get("retentionSizeInMB"), "retentionSizeInMB")
    if 0 in {minutes, megabytes}:
        raise BadRequestError(
            "Invalid retention policy: retention is about all messages here, so that 0 would drop"
            " what nobody has read; -1 is without bound"
        )
    if max(minutes, megabytes) > MOST:
        raise BadRequestError("Invalid retention policy: use -1 for no bound")
    return pb.Policies(
        retention_ms=minutes * MINUTE if minutes > 0 else -1,
        retention_bytes=megabytes * MB if megabytes > 0 else -1,
    )


def tell_retention(policies: Any, defaults: Defaults) -> dict[str, int] | None:
    """Return our retention as Pulsar's, None: the namespace has none of its own."""
    if not (policies.HasField("retention_ms") or policies.HasField("retention_bytes")):
        return None
    ms = policies.retention_ms if policies.HasField("retention_ms") else defaults.retention_ms
    size = (
        policies.retention_bytes
        if policies.HasField("retention_bytes")
        else defaults.retention_bytes
    )
    return {
        "retentionTimeInMinutes": -1 if ms < 0 else -(-ms // MINUTE),
        "retentionSizeInMB": -1 if size < 0 else -(-size // MB),
    }


def read_quota(body: Mapping[str, Any], kind: str = STORAGE) -> pb.Policies:
    """Return Pulsar's BacklogQuota as ours; raise BadRequestError."""
    policy, time = body.get("policy"), body.get("limitTime")
    timed = time is not None and whole(time, "limitTime") > 0
    if kind != STORAGE or policy != EVICTION or timed:
        raise RefusedError(
            412,
            f"a backlog is limited by its size alone ({STORAGE}), and then the oldest messages go"
            f" ({EVICTION})",
        )
    size = body.get("limitSize", body.get("limit"))
    return pb.Policies(backlog_bytes=whole(size, "limitSize"))


def tell_quota(policies: Any) -> dict[str, Any]:
    """Return our quota as Pulsar's map."""
    if not policies.HasField("backlog_bytes"):
        return {}
    size = policies.backlog_bytes
    return {STORAGE: {"limit": size, "limitSize": size, "limitTime": -1, "policy": EVICTION}}


def read_auto_creation(body: Mapping[str, Any]) -> pb.Policies:
    """Return Pulsar's AutoTopicCreationOverride as ours; raise BadRequestError."""
    allowed, kind = body.get("allowAutoTopicCreation"), body.get("topicType")
    if not isinstance(allowed, bool) or (
        allowed and kind not in {"partitioned", "non-partitioned"}
    ):
        raise BadRequestError("allowAutoTopicCreation: expected true or false, and a topicType")
    partitions = 0
    if kind == "partitioned":
        partitions = whole(body.get("defaultNumPartitions"), "defaultNumPartitions", 1)
    return pb.Policies(auto_create=allowed, auto_partitions=min(partitions, 2**31))


def tell_auto_creation(policies: Any) -> dict[str, Any] | None:
    """Return our policies as Pulsar's, None: the namespace has none of its own."""
    if not policies.HasField("auto_create"):
        return None
    told: dict[str, Any] = {"allowAutoTopicCreation": policies.auto_create}
    if policies.auto_create:
        partitions = policies.auto_partitions
        told["topicType"] = "partitioned" if partitions else "non-partitioned"
        if partitions:
            told["defaultNumPartitions"] = partitions
    return told


def tell_strategy(policies: Any) -> str:
    """Return a namespace's own strategy for schemas."""
    return str(policies.schema_compatibility) or UNDEFINED


def read_all(body: Mapping[str, Any]) -> pb.Policies:
    """Return what a new namespace is given of Pulsar's Policies; raise BadRequestError.

    What means nothing here (bundles, clusters, rates) is left out of account.
    """
    made = pb.Policies()
    if body.get("retention_policies") is not None:
        made.MergeFrom(read_retention(_object(body, "retention_policies")))
    for kind in _object(body, "backlog_quota_map"):
        made.MergeFrom(read_quota(_object(_object(body, "backlog_quota_map"), kind), kind))
    if body.get("autoTopicCreationOverride") is not None:
        made.MergeFrom(read_auto_creation(_object(body, "autoTopicCreationOverride")))
    strategy = body.get("schema_compatibility_strategy")
    if strategy is not None and strategy != UNDEFINED:
        made.schema_compatibility = str(strategy)
    for theirs, ours in _FLAGS.items():
        if isinstance(value := body.get(theirs), bool):
            setattr(made, ours, value)
    return made


def tell_all(policies: Any, defaults: Defaults) -> dict[str, Any]:
    """Return a namespace's policies as Pulsar's Policies."""
    told: dict[str, Any] = {
        "replication_clusters": ["standalone"],
        "bundles": {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1},
        "backlog_quota_map": tell_quota(policies),
        "schema_compatibility_strategy": tell_strategy(policies),
        "is_allow_auto_update_schema": updates(policies),
        "schema_validation_enforced": policies.schema_validation_enforced,
        "deleted": False,
    }
    if (retention := tell_retention(policies, defaults)) is not None:
        told["retention_policies"] = retention
    if policies.HasField("deduplication"):
        told["deduplicationEnabled"] = policies.deduplication
    if (auto := tell_auto_creation(policies)) is not None:
        told["autoTopicCreationOverride"] = auto
    return told


def updates(policies: Any) -> bool:
    """Return whether clients may bring new schemas."""
    return not policies.HasField("schema_auto_update") or bool(policies.schema_auto_update)


def _object(body: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    value = body.get(field) or {}
    if not isinstance(value, Mapping):
        raise BadRequestError(f"{field}: expected an object")
    return value


_FLAGS: Final = {
    "deduplicationEnabled": "deduplication",
    "is_allow_auto_update_schema": "schema_auto_update",
    "schema_validation_enforced": "schema_validation_enforced",
}
