"""Topics that belong to Apache Pulsar itself: policies, transactions, load reports, health checks.

No call reaches them: the lookup of a topic's broker, the count of its partitions and every path of
the administration ask here first. A broker of ours has no such topics.
"""

from __future__ import annotations

from typing import Final

from router.errors import InternalTopicError
from router.model import PARTITION_INFIX, TopicName

_TENANT: Final = "pulsar"
"""Pulsar's own: `pulsar/system`, and a namespace for each broker's health check."""
_PREFIX: Final = "__"
_PENDING_ACKS: Final = "__transaction_pending_ack"


def is_system_topic(topic: TopicName) -> bool:
    """Return whether a topic, or the one that it is a partition of, belongs to Pulsar itself."""
    local = topic.local
    if topic.tenant == _TENANT or local.startswith(_PREFIX):
        return True
    if PARTITION_INFIX in local and (part := topic.parent()) is not None:
        local = part[0].local
    return local.endswith(_PENDING_ACKS)


def check_not_system(topic: TopicName) -> None:
    """Raise InternalTopicError for a topic that belongs to Pulsar itself."""
    if is_system_topic(topic):
        raise InternalTopicError(f"Topic {topic} is internal to Apache Pulsar.")
