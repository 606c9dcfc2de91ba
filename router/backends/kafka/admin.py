"""Topics: make, delete, list, describe.

What Kafka cannot keep of a topic (its properties, when it was made, a backlog quota, the full name
of one outside the default namespace) is a record of the registry, of the kind `kafka-topic`, under
the name in Kafka. It names the topic's id in Kafka, so that a topic that somebody made anew under
the same name does not inherit it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import orjson
import structlog
from kafka.protocol.admin import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    DescribeLogDirsRequest,
)

from router.backends import Registry
from router.backends.kafka.cluster import Cluster
from router.backends.kafka.failures import (
    TIMED_OUT,
    TOPIC_EXISTS,
    UNKNOWN_TOPIC,
    CodeError,
    LateError,
    LostError,
    check,
)
from router.backends.kafka.known import TOPICS, KnownTopics
from router.backends.kafka.names import SCHEMAS, Names
from router.backends.kafka.offsets import EARLIEST, LATEST, Offsets
from router.errors import RouterError
from router.model import (
    NOT_PARTITIONED,
    PartitionStats,
    Policies,
    SubscriptionStats,
    TopicInfo,
    TopicName,
    TopicStats,
)

_TOPIC: Final = 2
_OWN: Final = 1  # a configuration of the topic itself, not a default
_RETENTION: Final = ("retention.ms", "retention.bytes")
_HIDDEN: Final = "__"

_log = structlog.get_logger(__name__)


class Admin:
    """Administers topics; calls raise what the protocol of backends lists."""

    def __init__(
        self,
        cluster: Cluster,
        offsets: Offsets,
        names: Names,
        registry: Registry,
        known: KnownTopics,
    ) -> None:
        self._cluster = cluster
        self._offsets = offsets
        self._names = names
        self._registry = registry
        self._known = known

    def create(self, info: TopicInfo, replicas: int, deadline: float) -> None:
        """Create a topic and wait until its partitions have leaders; raise TopicExistsError."""
        name = self._names.topic(info.topic)
        topic = _new_topic(name, info, self._replicas(info, deadline) or replicas)

        def request() -> Any:
            return CreateTopicsRequest(
                topics=[topic], timeout_ms=_ms(deadline), validate_only=False, max_version=7
            )

        self._change(name, request, lambda answer: answer.topics, TOPIC_EXISTS, deadline)
        topic_id = self._cluster.persist(lambda: self._led(name, deadline), deadline)
        self._keep(name, info, topic_id, deadline)

    def _replicas(self, info: TopicInfo, deadline: float) -> int:
        """Return how many copies are asked for, at most one a broker; 0: nobody asked.

        Clients of the original ask for more than there may be, as the original never looked.
        """
        asked = info.policies.replicas
        if not asked or asked < 0:
            return 0
        brokers = self._cluster.persist(lambda: self._cluster.brokers(deadline), deadline)
        return min(asked, len(brokers))

    def _keep(self, name: str, info: TopicInfo, topic_id: str, deadline: float) -> None:
        """Keep what Kafka cannot keep of a new topic."""
        try:
            self._known.created(name, info, topic_id, deadline)
        except RouterError as error:
            if info.properties or info.policies.backlog_bytes is not None:
                raise
            # Publishing makes topics too, and goes on without the registry.
            _log.warning("the time of creation is not kept", topic=name, reason=str(error))

    def _led(self, name: str, deadline: float) -> str:
        """Return a new topic's id; raise LostError while there is none, or leaders are missing."""
        try:
            found = self._cluster.topic(name, deadline)
        except CodeError as error:
            if error.code != UNKNOWN_TOPIC:
                raise
            raise LostError(f"topic {name} is not there yet") from error
        if any(p.error_code or p.leader_id < 0 for p in found.partitions):
            raise LostError(f"topic {name} has no leaders yet")
        return str(found.topic_id)

    def delete(self, name: str, deadline: float) -> None:
        """Delete a topic by its name in Kafka and wait until it is gone."""

        def request() -> Any:
            return DeleteTopicsRequest(topic_names=[name], timeout_ms=_ms(deadline), max_version=5)

        self._change(name, request, lambda answer: answer.responses, UNKNOWN_TOPIC, deadline)
        self._cluster.persist(lambda: self._gone(name, deadline), deadline)
        try:
            self._known.deleted(name, deadline)
        except (
            RouterError
        ) as error:  # it names the topic's id, so that nobody takes it for another's
            _log.warning("a record stays behind", topic=name, reason=str(error))

    def _change(
        self,
        name: str,
        request: Callable[[], Any],
        results: Callable[[Any], Any],
        done: int,
        deadline: float,
    ) -> None:
        """Have the controller make or delete a topic; `done` is the code when it is so already.

        Should the answer to a first try be lost, "already" is what the second is told.
        """
        tried = False

        def attempt() -> None:
            nonlocal tried
            try:
                (found,) = results(self._cluster.ask_controller(request(), deadline))
            except (LostError, LateError) as error:
                tried |= error.sent
                raise
            again, tried = tried, tried or found.error_code == TIMED_OUT
            if found.error_code != done or not again:
                check(found.error_code, f"topic {name}", found.error_message)

        self._cluster.persist(attempt, deadline)

    def _gone(self, name: str, deadline: float) -> None:
        try:
            self._cluster.topic(name, deadline)
        except CodeError as error:
            if error.code == UNKNOWN_TOPIC:
                return
            raise
        raise LostError(f"topic {name} is still there")

    def topics(self, deadline: float) -> list[TopicInfo]:
        """Return all topics but Kafka's own, by name."""
        answer = self._cluster.persist(
            lambda: self._cluster.metadata(None, deadline, all_topics=True), deadline
        )
        found = [
            topic
            for topic in answer.topics
            if not (topic.error_code or topic.is_internal or _hidden(topic.name))
        ]
        infos = self._infos(found, deadline)
        return sorted(infos, key=lambda info: str(info.topic))

    def _infos(self, topics: Sequence[Any], deadline: float) -> list[TopicInfo]:
        configs = self._configs([topic.name for topic in topics], deadline)
        records = {r.name: r.value for r in self._registry.list(TOPICS, _left(deadline))}
        return [
            self._info(topic, configs.get(topic.name, {}), records.get(topic.name))
            for topic in topics
        ]

    def _info(self, topic: Any, config: Mapping[str, int], record: bytes | None) -> TopicInfo:
        kept: dict[str, Any] = orjson.loads(record) if record else {}
        if kept.get("id") != str(topic.topic_id):
            kept = {}
        name = TopicName.parse(kept["topic"]) if kept else self._names.local(topic.name)
        policies = Policies(
            config.get("retention.ms"),
            config.get("retention.bytes"),
            kept.get("backlog_bytes"),
            kept.get("deduplication"),
            len(topic.partitions[0].replica_nodes) if topic.partitions else None,
        )
        return TopicInfo(
            name,
            _shown_count(len(topic.partitions)),
            policies,
            kept.get("properties", {}),
            kept.get("created_ms", 0),
        )

    def _configs(self, names: Sequence[str], deadline: float) -> dict[str, dict[str, int]]:
        """Return what topics have of retention settings of their own."""
        if not names:
            return {}
        of = DescribeConfigsRequest.DescribeConfigsResource
        wanted = [
            of(resource_type=_TOPIC, resource_name=name, configuration_keys=list(_RETENTION))
            for name in names
        ]

        def attempt() -> dict[str, dict[str, int]]:
            answer = self._cluster.ask(
                DescribeConfigsRequest(
                    resources=wanted, include_synonyms=False, include_documentation=False
                ),
                deadline,
            )
            return {
                found.resource_name: {
                    config.name: int(config.value)
                    for config in found.configs
                    if config.config_source == _OWN
                }
                for found in answer.results
                if not found.error_code  # deleted meanwhile, or not ours to see
            }

        return self._cluster.persist(attempt, deadline)

    def describe(
        self, topic: TopicName, in_use: Callable[[str, str], set[int]], deadline: float
    ) -> TopicStats:
        """Return what a topic holds and where its groups stand; raise TopicNotFoundError.

        `in_use` tells which of a group's partitions are open in this process.
        """
        name = self._names.topic(topic)
        found = self._cluster.persist(lambda: self._cluster.topic(name, deadline), deadline)
        numbers = sorted(p.partition_index for p in found.partitions)
        record = self._registry.get(TOPICS, name, _left(deadline))
        configs = self._configs([name], deadline)
        info = self._info(found, configs.get(name, {}), record.value if record else None)
        first = self._offsets.at(name, numbers, EARLIEST, deadline)
        end = self._offsets.at(name, numbers, LATEST, deadline)
        sizes = self._sizes(name, numbers, deadline)
        partitions = tuple(
            PartitionStats(
                _shown(number, len(numbers)),
                first_entry=first[number],
                next_entry=end[number],
                messages=end[number] - first[number],
                bytes=sizes.get(number, 0),
            )
            for number in numbers
        )
        return TopicStats(
            TopicInfo(topic, info.partitions, info.policies, info.properties, info.created_ms),
            partitions,
            tuple(self._subscriptions(name, first, end, in_use, deadline)),
        )

    def _subscriptions(
        self,
        name: str,
        first: Mapping[int, int],
        end: Mapping[int, int],
        in_use: Callable[[str, str], set[int]],
        deadline: float,
    ) -> list[SubscriptionStats]:
        ids = {
            group: shown
            for group in self._offsets.groups(deadline)
            if (shown := self._names.subscription(group, name)) is not None
        }
        if not ids:
            return []
        found = self._offsets.all_committed(list(ids), name, end, deadline)
        return [
            SubscriptionStats(
                ids[group],
                _shown(number, len(end)),
                commit.progress().backlog(first[number], end[number]),
                int(_shown(number, len(end)) in in_use(group, name)),
            )
            for group, commits in found.items()
            for number, commit in sorted(commits.items())
        ]

    def _sizes(self, name: str, numbers: list[int], deadline: float) -> dict[int, int]:
        """Return the bytes of each partition on its leader, as far as Kafka says so."""
        sizes: dict[int, int] = {}
        of = DescribeLogDirsRequest.DescribableLogDirTopic
        try:
            leaders = {n: self._cluster.leader(name, n, deadline) for n in numbers}
            for node in set(leaders.values()):
                led = [number for number in numbers if leaders[number] == node]
                request = DescribeLogDirsRequest(topics=[of(topic=name, partitions=led)])
                for folder in self._cluster.ask(request, deadline, node).results:
                    for topic in folder.topics:
                        sizes |= {p.partition_index: p.partition_size for p in topic.partitions}
        except (CodeError, LostError, LateError):
            return {}
        return sizes


def _hidden(name: str) -> bool:
    return name.startswith(_HIDDEN) or name == SCHEMAS


def _new_topic(name: str, info: TopicInfo, replicas: int) -> Any:
    of: Any = CreateTopicsRequest.CreatableTopic
    policies = info.policies
    values = zip(_RETENTION, (policies.retention_ms, policies.retention_bytes), strict=True)
    return of(
        name=name,
        num_partitions=max(1, info.partitions),
        replication_factor=replicas or -1,
        assignments=[],
        configs=[
            of.CreatableTopicConfig(name=key, value=str(value))
            for key, value in values
            if value is not None
        ],
    )


def _shown_count(partitions: int) -> int:
    return 0 if partitions == 1 else partitions


def _shown(number: int, partitions: int) -> int:
    return NOT_PARTITIONED if partitions == 1 else number


def _left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())


def _ms(deadline: float) -> int:
    return max(1, int(_left(deadline) * 1000))
