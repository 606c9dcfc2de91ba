"""How topics, groups and partitions are called in Kafka.

A topic of the default namespace has its local name, others are `tenant.namespace.local`. A name in
Kafka that could be either is a local topic of the default namespace. A group is called as
`kafka.group` says. A topic of one partition is not partitioned for the router.

Names that begin with two underscores are internal: Kafka's own topics (`__consumer_offsets`,
`__transaction_state`) and those of its tools. So is the topic of the router's schemas. No call
reaches them, because every call takes a topic's name from here.
"""

from __future__ import annotations

import re
from typing import Final

from router.errors import BadNameError, InternalTopicError, NotAllowedError
from router.errors.quoting import quoted
from router.kafka.group_names import GroupNames
from router.model import NAME, NOT_PARTITIONED, PERSISTENT, TopicName

# Where Kafka keeps what an Idempotency-Key did; no group of a subscription.
REPEATS: Final = "router-idempotency-"
# Groups that carry the numbers of pipelines' batches; no groups of subscriptions either.
PIPELINES: Final = "router-pipeline-"
# Where the schemas of topics are; not a topic of a user.
SCHEMAS: Final = "_router_schemas"
INTERNAL: Final = f"__|{SCHEMAS}$"
"""What names of internal topics begin with, as a regular expression of Python, RE2 and Java."""
_INTERNAL: Final = re.compile(INTERNAL)


def is_internal(name: str) -> bool:
    """Return whether a topic of Kafka belongs to Kafka, its tools or the router itself."""
    return _INTERNAL.match(name) is not None


class Names:
    """Names in the router and in Kafka, for one default namespace and one form of group ids."""

    def __init__(self, tenant: str, namespace: str, group: str) -> None:
        self._tenant = tenant
        self._namespace = namespace
        self._groups = GroupNames(group)

    def topic(self, topic: TopicName) -> str:
        """Return a topic's name in Kafka; raise what the name is refused for.

        Raises BadNameError, InternalTopicError, and NotAllowedError for one without storage.
        """
        if topic.domain != PERSISTENT:
            raise NotAllowedError("Kafka keeps persistent topics only.")
        name = topic.local
        if (topic.tenant, topic.namespace) != (self._tenant, self._namespace):
            name = f"{topic.tenant}.{topic.namespace}.{topic.local}"
        if is_internal(name):
            raise InternalTopicError(f"Topic {name} is internal to Kafka or the router.")
        if not NAME.fullmatch(name):
            raise BadNameError(f"{quoted(name)} cannot be a topic's name in Kafka")
        return name

    def local(self, name: str) -> TopicName:
        """Return the router's name of a topic of Kafka, taken as one of the default namespace."""
        return TopicName(self._tenant, self._namespace, name)

    def group(self, name: str, topic: str) -> str:
        """Return the id of a group; `topic` is the name in Kafka."""
        return self._groups.id(name, topic)

    def subscription(self, group: str, topic: str) -> str | None:
        """Return the name of a group on a topic, by its id; None: it is none of that topic."""
        if group.startswith((REPEATS, PIPELINES)):
            return None
        return self._groups.name(group, topic)


def kafka_partition(partition: int) -> int:
    """Return a partition's number in Kafka."""
    return 0 if partition == NOT_PARTITIONED else partition
