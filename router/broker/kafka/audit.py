"""Which requests of Kafka's clients are administrative changes, and what of them the audit has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from router.broker.audit import AuditLog
from router.broker.kafka.alter_configs import ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS
from router.broker.kafka.client import KafkaRequest
from router.broker.kafka.create_partitions import CREATE_PARTITIONS
from router.broker.kafka.create_topics import CREATE_TOPICS
from router.broker.kafka.delete_records import DELETE_RECORDS
from router.broker.kafka.delete_topics import DELETE_TOPICS
from router.broker.kafka.group_administration import DELETE_GROUPS
from router.broker.kafka.group_offsets import OFFSET_DELETE
from router.broker.kafka.transaction_markers import WRITE_TXN_MARKERS
from router.broker.transport.identity import ConnectionIdentity
from router.wire.kafka.runtime import KafkaMessage

CHANGES: Final = {
    api.key: action
    for api, action in (
        (CREATE_TOPICS, "create-topic"),
        (DELETE_TOPICS, "delete-topic"),
        (CREATE_PARTITIONS, "add-partitions"),
        (ALTER_CONFIGS, "change-topic"),
        (INCREMENTAL_ALTER_CONFIGS, "change-topic"),
        (DELETE_RECORDS, "delete-records"),
        (DELETE_GROUPS, "delete-group"),
        (OFFSET_DELETE, "delete-offsets"),
        (WRITE_TXN_MARKERS, "abort-transaction"),
    )
}
"""Actions by the keys of the APIs."""
_LISTS: Final = ("topics", "responses", "results")
_NAMES: Final = ("name", "resource_name", "group_id")


def record(
    audit: AuditLog | None,
    identity: ConnectionIdentity,
    request: KafkaRequest,
    response: KafkaMessage,
) -> None:
    """Record what a request changed: of each topic or group that was not refused."""
    if audit is None or getattr(request.body, "validate_only", False):
        return
    action, group = CHANGES[request.served.api.key], getattr(request.body, "group_id", "")
    details = {"group": group} if group else {}
    for name in _changed(response):
        audit.add(action, name, identity.principal.name, identity.address, "kafka", **details)


def _changed(response: Any) -> Iterator[str]:
    for marker in getattr(response, "markers", ()):
        if any(part.error_code == 0 for topic in marker.topics for part in topic.partitions):
            yield f"kafka:{marker.producer_id}"
    for one in next((found for name in _LISTS if (found := getattr(response, name, None))), ()):
        parts = getattr(one, "partitions", None)
        codes = [one] if parts is None or hasattr(one, "error_code") else parts
        if any(getattr(part, "error_code", 0) == 0 for part in codes):
            names = (getattr(one, name, None) for name in _NAMES)
            yield next((str(name) for name in names if name), "")
