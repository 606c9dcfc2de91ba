"""Policies of namespaces and topics: one table of them, in Pulsar's terms and in the router's.

Pulsar's retention is about messages that every subscription acknowledged, and 0 has them deleted at
once. Here it is about all messages, so that 0 would delete unread messages: it is refused.
Pulsar's backlog quota has three ways to deal with what is too much; here the oldest messages are
deleted, which it calls consumer_backlog_eviction, and the others are refused rather than ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from router.errors import BadJsonError, BadRequestError
from router.model.administration import NamespacePolicies
from router.settings import Settings
from router.web.openapi.description import Form
from router.web.pulsar_admin import shapes
from router.web.pulsar_admin.views import AdminRefusedError, whole

MINUTE: Final = 60_000
MB: Final = 1 << 20
EVICTION: Final = "consumer_backlog_eviction"
STORAGE: Final = "destination_storage"
QUOTAS: Final = (STORAGE, "message_age")
UNDEFINED: Final = "UNDEFINED"
MAX_LIMIT: Final = 2**31 - 1
MAX_POLICY_VALUE: Final = 2**42
"""Minutes, megabytes; no number above it fits when it is turned into milliseconds or bytes."""

Change = dict[str, Any]
"""Fields of NamespacePolicies with their new values; None: as settings say."""


class Defaults(NamedTuple):
    """What settings say where a namespace does not."""

    retention_ms: int
    retention_bytes: int
    strategy: str

    @classmethod
    def from_settings(cls, settings: Settings) -> Defaults:
        """Return what settings say."""
        return cls(
            round(settings.seconds("retention.time") * 1000),
            settings.number("retention.size"),
            settings.text("schemas.compatibility"),
        )


class Policy(NamedTuple):
    """A policy as Pulsar's paths and JSON have it; `fields` are those of NamespacePolicies.

    `key` is its name in Pulsar's Policies, `subject` what it decides, in words. `read` returns the
    change that a JSON value asks for, and raises BadRequestError; its second argument names the
    value. `show` returns the JSON value, None: there is none of its own. `setter` is the method
    that sets it of a namespace, a topic's is set by POST. `clears`: DELETE clears it. `shown` are
    path and endpoint of GET, where they are others. `kinds`: a query parameter of this policy,
    which names the kind that a body is of; in Policies and in answers the value is an object by
    kind. `of_topic` is the path below a topic, None: namespaces alone have it; `parameter`: there
    the value is in this query parameter. `applied` is the answer to what
    holds for a topic if there is no such policy.
    """

    key: str
    fields: tuple[str, ...]
    path: str
    name: str
    subject: str
    body: Form
    read: Callable[[object, str], Change]
    show: Callable[[NamespacePolicies, Defaults], object]
    setter: str = "POST"
    clears: bool = True
    shown: tuple[str, str] | None = None
    answer: str = "The policy; no body where there is none."
    answer_form: Form | None = None
    kinds: tuple[str, ...] = ()
    of_topic: str | None = None
    parameter: str = ""
    applied: object = None

    def routes(self, *, of_topic: bool) -> Iterator[tuple[str, str, str, str]]:
        """Yield method, path below a namespace or topic, endpoint and summary of each route."""
        path, name, subject = self.path, self.name, self.subject
        shown = self.shown or (path, name)
        if of_topic:
            if self.of_topic is None:
                return
            path, name, subject = self.of_topic, f"topic_{name}", f"{subject} of a topic"
            shown = (shown[0] if self.shown else path), f"topic_{shown[1]}"
        yield "GET", *shown, f"Answer {subject}."
        yield "POST" if of_topic else self.setter, path, f"set_{name}", f"Set {subject}."
        if self.clears:
            elsewhere = "its namespace" if of_topic else "settings"
            yield "DELETE", path, f"clear_{name}", f"Let {elsewhere} decide {subject}."


def _object(value: object, what: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise BadJsonError(f"{what}: expected a JSON object")
    return value


def _read_retention(value: object, what: str) -> Change:
    fields = _object(value, what)
    minutes = whole(fields.get("retentionTimeInMinutes"), "retentionTimeInMinutes")
    megabytes = whole(fields.get("retentionSizeInMB"), "retentionSizeInMB")
    if 0 in {minutes, megabytes}:
        raise BadRequestError(
            "Invalid retention policy: retention is about all messages here, so that 0 would delete"
            " unread messages; -1 is without bound"
        )
    if max(minutes, megabytes) > MAX_POLICY_VALUE:
        raise BadRequestError("Invalid retention policy: use -1 for no bound")
    return {
        "retention_ms": minutes * MINUTE if minutes > 0 else -1,
        "retention_bytes": megabytes * MB if megabytes > 0 else -1,
    }


def _show_retention(policies: NamespacePolicies, defaults: Defaults) -> object:
    ms, size = policies.retention_ms, policies.retention_bytes
    if ms is None and size is None:
        return None
    ms = defaults.retention_ms if ms is None else ms
    size = defaults.retention_bytes if size is None else size
    return {
        "retentionTimeInMinutes": -1 if ms < 0 else -(-ms // MINUTE),
        "retentionSizeInMB": -1 if size < 0 else -(-size // MB),
    }


def read_quota(value: object, kind: str = STORAGE) -> Change:
    """Return the change that Pulsar's BacklogQuota of a kind is; raise BadRequestError."""
    fields = _object(value, kind)
    time = fields.get("limitTime")
    timed = time is not None and whole(time, "limitTime") > 0
    if kind != STORAGE or fields.get("policy") != EVICTION or timed:
        raise AdminRefusedError(
            412,
            f"a backlog is limited by its size alone ({STORAGE}), and then the oldest messages are"
            f" deleted ({EVICTION})",
        )
    return {"backlog_bytes": whole(fields.get("limitSize", fields.get("limit")), "limitSize")}


def _read_quotas(value: object, what: str) -> Change:
    change: Change = {}
    for kind, quota in _object(value, what).items():
        change |= read_quota(quota, kind)
    return change


def _show_quotas(policies: NamespacePolicies, _: Defaults) -> object:
    size = policies.backlog_bytes
    if size is None:
        return {}
    return {STORAGE: {"limit": size, "limitSize": size, "limitTime": -1, "policy": EVICTION}}


def _read_creation(value: object, what: str) -> Change:
    fields = _object(value, what)
    allowed, kind = fields.get("allowAutoTopicCreation"), fields.get("topicType")
    if not isinstance(allowed, bool) or (
        allowed and kind not in {"partitioned", "non-partitioned"}
    ):
        raise BadRequestError("allowAutoTopicCreation: expected true or false, and a topicType")
    partitions = 0
    if kind == "partitioned":
        partitions = whole(fields.get("defaultNumPartitions"), "defaultNumPartitions", 1)
    return {"auto_create": allowed, "auto_partitions": min(partitions, 2**31)}


def _show_creation(policies: NamespacePolicies, _: Defaults) -> object:
    if policies.auto_create is None:
        return None
    fields: dict[str, Any] = {"allowAutoTopicCreation": policies.auto_create}
    if policies.auto_create:
        partitions = policies.auto_partitions
        fields["topicType"] = "partitioned" if partitions else "non-partitioned"
        if partitions:
            fields["defaultNumPartitions"] = partitions
    return fields


def _read_strategy(value: object, what: str) -> Change:
    if value in (None, UNDEFINED):
        return {"schema_compatibility": None}
    if not isinstance(value, str):
        raise BadRequestError(f"{what}: expected the name of a strategy")
    return {"schema_compatibility": value}


def _read_number(field: str) -> Callable[[object, str], Change]:
    def read(value: object, what: str) -> Change:
        if (limit := whole(value, what, 0)) > MAX_LIMIT:
            raise BadRequestError(f"{what}: expected at most {MAX_LIMIT}")
        return {field: limit}

    return read


def _read_threshold(value: object, what: str) -> Change:
    if isinstance(value, int) and value < 0:
        raise AdminRefusedError(412, "compactionThreshold must be 0 or more")
    return {"compaction_threshold": whole(value, what, 0)}


def _read_flag(field: str) -> Callable[[object, str], Change]:
    def read(value: object, what: str) -> Change:
        if not isinstance(value, bool):
            raise BadRequestError(f"{what}: expected true or false")
        return {field: value}

    return read


LIMITS: Final = (
    (
        *("max_producers_per_topic", "max_producers", "maxProducersPerTopic", "maxProducers"),
        "producers a topic or partition may have",
    ),
    (
        *("max_consumers_per_topic", "max_consumers", "maxConsumersPerTopic", "maxConsumers"),
        "consumers a topic or partition may have",
    ),
    (
        *("max_consumers_per_subscription", "max_consumers_per_subscription"),
        *("maxConsumersPerSubscription", "maxConsumersPerSubscription"),
        "consumers a subscription may have on a topic or partition",
    ),
)
"""Key, field, path below a namespace and below a topic, and meaning of each limit."""

POLICIES: Final = (
    Policy(
        "retention_policies",
        ("retention_ms", "retention_bytes"),
        *("retention", "retention", "the retention"),
        shapes.RETENTION,
        _read_retention,
        _show_retention,
        of_topic="retention",
    ),
    Policy(
        "message_ttl_in_seconds",
        ("ttl_seconds",),
        *("messageTTL", "ttl", "after how many seconds messages count as acknowledged"),
        shapes.LIMIT,
        _read_number("ttl_seconds"),
        lambda policies, _: policies.ttl_seconds,
        of_topic="messageTTL",
        parameter="messageTTL",
    ),
    Policy(
        "deduplicationEnabled",
        ("deduplication",),
        *("deduplication", "deduplication", "whether messages are deduplicated"),
        bool,
        _read_flag("deduplication"),
        lambda policies, _: policies.deduplication,
        of_topic="deduplicationEnabled",
    ),
    *(
        Policy(
            key,
            (field,),
            *(path, field, f"how many {what}, 0: any number"),
            shapes.LIMIT,
            _read_number(field),
            lambda policies, _, field=field: getattr(policies, field),  # type: ignore[misc] # bound
            of_topic=of_topic,
        )
        for key, field, path, of_topic, what in LIMITS
    ),
    Policy(
        "compaction_threshold",
        ("compaction_threshold",),
        *("compactionThreshold", "compaction_threshold"),
        "after how many new bytes topics are compacted",
        shapes.THRESHOLD,
        _read_threshold,
        lambda policies, _: policies.compaction_threshold,
        setter="PUT",
        of_topic="compactionThreshold",
        applied=0,
    ),
    Policy(
        "autoTopicCreationOverride",
        ("auto_create", "auto_partitions"),
        *("autoTopicCreation", "creation", "how topics are created by their first use"),
        shapes.CREATION,
        _read_creation,
        _show_creation,
    ),
    Policy(
        "backlog_quota_map",
        ("backlog_bytes",),
        *("backlogQuota", "quota", "the quota of backlogs"),
        shapes.QUOTA,
        _read_quotas,
        _show_quotas,
        shown=("backlogQuotaMap", "quotas"),
        answer="The quota.",
        answer_form=dict,
        kinds=QUOTAS,
        of_topic="backlogQuota",
    ),
    Policy(
        "schema_compatibility_strategy",
        ("schema_compatibility",),
        *("schemaCompatibilityStrategy", "strategy", "which schemas may follow one another"),
        shapes.STRATEGY,
        _read_strategy,
        lambda policies, _: policies.schema_compatibility or UNDEFINED,
        setter="PUT",
        clears=False,
        answer="The strategy.",
        answer_form=str,
    ),
    Policy(
        "is_allow_auto_update_schema",
        ("schema_auto_update",),
        *("isAllowAutoUpdateSchema", "auto_update", "whether clients may add schemas"),
        bool,
        _read_flag("schema_auto_update"),
        lambda policies, _: policies.schema_auto_update is not False,
        clears=False,
        answer="Whether they may.",
    ),
    Policy(
        "schema_validation_enforced",
        ("schema_validation_enforced",),
        *("schemaValidationEnforced", "enforced", "whether producers need a topic's schema"),
        bool,
        _read_flag("schema_validation_enforced"),
        lambda policies, _: bool(policies.schema_validation_enforced),
        clears=False,
        answer="Whether they do.",
    ),
)


def read_all(body: Mapping[str, Any]) -> NamespacePolicies:
    """Return the policies of a new namespace from Pulsar's Policies; raise BadRequestError.

    What means nothing here (bundles, clusters, rates) is ignored.
    """
    change: Change = {}
    for policy in POLICIES:
        if (value := body.get(policy.key)) is not None:
            change |= policy.read(value, policy.key)
    return NamespacePolicies(**change)


def pulsar_policies(policies: NamespacePolicies, defaults: Defaults) -> dict[str, Any]:
    """Return a namespace's policies as Pulsar's Policies."""
    fields = {policy.key: policy.show(policies, defaults) for policy in POLICIES}
    return {
        "replication_clusters": ["standalone"],
        "bundles": {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1},
        "deleted": False,
    } | {key: value for key, value in fields.items() if value is not None}
