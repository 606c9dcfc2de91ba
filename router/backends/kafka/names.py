"""How topics, groups and partitions are called in Kafka.

A topic of the default namespace has its local name, others are `tenant.namespace.local`. A name in
Kafka that could be either is a local topic of the default namespace. A group is called as
`kafka.group` says. A topic of one partition is not partitioned for the router.
"""

from __future__ import annotations

from typing import Final

from router.errors import BadNameError, NotAllowedError
from router.kafka_group_names import GroupNames
from router.model import NAME, NOT_PARTITIONED, PERSISTENT, TopicName
from router.quoting import quoted

# Where Kafka keeps what an Idempotency-Key did; no group of a subscription.
REPEATS: Final = "router-idempotency-"
# Groups that carry the numbers of pipelines' batches; no groups of subscriptions either.
PIPELINES: Final = "router-pipeline-"
# Where the schemas of topics are; not a topic of a user.
SCHEMAS: Final = "_router_schemas"


class Names:
    """Names in the router and in Kafka, for one default namespace and one form of group ids."""

    def __init__(self, tenant: str, namespace: str, group: str) -> None:
        self._tenant = tenant
        self._namespace = namespace
        self._groups = GroupNames(group)

    def topic(self, topic: TopicName) -> str:
        """Return a topic's name in Kafka; raise BadNameError, NotAllowedError."""
        if topic.domain != PERSISTENT:
            raise NotAllowedError("Kafka keeps persistent topics only.")
        if (topic.tenant, topic.namespace) == (self._tenant, self._namespace):
            if topic.local == SCHEMAS:
                raise NotAllowedError(f"{SCHEMAS} is where the router keeps the topics' schemas.")
            return topic.local
        name = f"{topic.tenant}.{topic.namespace}.{topic.local}"
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
