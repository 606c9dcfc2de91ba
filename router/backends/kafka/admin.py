"""Topics: make, delete, list, describe.

What Kafka cannot keep of a topic (its properties, when it was made, a backlog quota, the full name
of one outside the default namespace) is a record of the registry, of the kind `kafka-topic`, under
the name in Kafka. It names the topic's id in Kafka, so that a topic that is created again
under the same name does not inherit it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import orjson
import structlog

from router.backends.kafka import apis
from router.backends.kafka.cluster import Cluster, shown_id
from router.backends.kafka.failures import CodeError, KafkaConnectionLostError, NoAnswerError, check
from router.backends.kafka.known_topics import TOPICS, KnownTopics
from router.backends.kafka.names import Names, is_internal
from router.backends.kafka.offsets import EARLIEST, LATEST, UNCOMMITTED_TOO, Offsets
from router.clocks import seconds_left
from router.errors import RouterError, TopicExistsError
from router.model import (
    NOT_PARTITIONED,
    PartitionStats,
    SubscriptionStats,
    TopicInfo,
    TopicName,
    TopicStats,
)
from router.model.policies import Policies
from router.sharing.registry import Registry
from router.wire.kafka.error_codes import ErrorCode

_TOPIC: Final = 2
_OWN: Final = 1  # a configuration of the topic itself, not a default
_CONFIGS: Final = ("retention.ms", "retention.bytes", "cleanup.policy")
"""Of a topic, by the order of what the policies have of them."""
ANSWER_SECONDS: Final = 1.0
"""How long one broker may take to answer whether it knows a topic."""

_log = structlog.get_logger(__name__)


@dataclass(eq=False, slots=True)
class Admin:
    """Administers topics; calls raise what the protocol of backends lists."""

    _cluster: Cluster
    _offsets: Offsets
    _names: Names
    _registry: Registry
    _known: KnownTopics

    def create(self, info: TopicInfo, replicas: int, deadline: float) -> None:
        """Create a topic and wait until any broker can be used; raise TopicExistsError."""
        name = self._names.topic(info.topic)
        policies = info.policies
        kept = policies.retention_ms, policies.retention_bytes, policies.cleanup_policy
        pairs = zip(_CONFIGS, kept, strict=True)
        configs = {key: str(value) for key, value in pairs if value is not None}
        replicas = self._replicas(info, deadline) or replicas
        partitions = max(1, info.partitions)
        topic_id = create_topic(self._cluster, name, partitions, replicas, configs, deadline)
        self._keep(name, info, topic_id, deadline)

    def _replicas(self, info: TopicInfo, deadline: float) -> int:
        """Return how many copies are asked for, at most one a broker; 0: no number is given.

        Clients of the original ask for more than there may be, as the original never looked.
        """
        replicas_of_topic = info.policies.replicas
        if not replicas_of_topic or replicas_of_topic < 0:
            return 0
        brokers = self._cluster.persist(lambda: self._cluster.brokers(deadline), deadline)
        return min(replicas_of_topic, len(brokers))

    def _keep(self, name: str, info: TopicInfo, topic_id: str, deadline: float) -> None:
        try:
            self._known.created(name, info, topic_id, deadline)
        except RouterError as error:
            if info.properties or info.policies.backlog_bytes is not None:
                raise
            # Publishing makes topics too, and goes on without the registry.
            _log.warning("the time of creation is not kept", topic=name, reason=str(error))

    def delete(self, name: str, deadline: float) -> None:
        """Delete a topic by its name in Kafka and wait until it is gone."""
        cluster, done = self._cluster, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        _change(cluster, name, apis.DELETE_TOPICS, {"topic_names": [name]}, done, deadline)
        cluster.persist(lambda: _check_deleted(cluster, name, deadline), deadline)
        try:
            self._known.deleted(name, deadline)
        except RouterError as error:  # the record has the topic's id, which no other topic gets
            _log.warning("a record stays behind", topic=name, reason=str(error))

    def topics(self, deadline: float, *, internal: bool = False) -> list[TopicInfo]:
        """Return all topics, by name; internal ones only with `internal`."""
        answer = self._cluster.persist(
            lambda: self._cluster.metadata(None, deadline, all_topics=True), deadline
        )
        found = [
            topic
            for topic in answer.topics
            if not topic.error_code and (internal or not is_internal(topic.name))
        ]
        infos = self._infos(found, deadline)
        return sorted(infos, key=lambda info: str(info.topic))

    def _infos(self, topics: Sequence[Any], deadline: float) -> list[TopicInfo]:
        configs = self._configs([topic.name for topic in topics], deadline)
        records = {r.name: r.value for r in self._registry.list(TOPICS, seconds_left(deadline))}
        return [
            self._info(topic, configs.get(topic.name, {}), records.get(topic.name))
            for topic in topics
        ]

    def _info(self, topic: Any, config: Mapping[str, str], record: bytes | None) -> TopicInfo:
        kept: dict[str, Any] = orjson.loads(record) if record else {}
        if kept.get("id") != shown_id(topic):
            kept = {}
        name = TopicName.parse(kept["topic"]) if kept else self._names.local(topic.name)
        policies = Policies(
            _number(config.get("retention.ms")),
            _number(config.get("retention.bytes")),
            kept.get("backlog_bytes"),
            kept.get("deduplication"),
            len(topic.partitions[0].replica_nodes) if topic.partitions else None,
            cleanup_policy=config.get("cleanup.policy"),
        )
        return TopicInfo(
            name,
            _shown_count(len(topic.partitions)),
            policies,
            kept.get("properties", {}),
            kept.get("created_ms", 0),
            is_internal(topic.name),
        )

    def _configs(self, names: Sequence[str], deadline: float) -> dict[str, dict[str, str]]:
        """Return what topics have of these configs of their own."""
        if not names:
            return {}
        config_resources = [
            {"resource_type": _TOPIC, "resource_name": name, "configuration_keys": _CONFIGS}
            for name in names
        ]

        def attempt() -> dict[str, dict[str, str]]:
            answer = self._cluster.ask(apis.DESCRIBE_CONFIGS(resources=config_resources), deadline)
            return {
                found.resource_name: {
                    config.name: config.value
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
        record = self._registry.get(TOPICS, name, seconds_left(deadline))
        configs = self._configs([name], deadline)
        info = self._info(found, configs.get(name, {}), record.value if record else None)
        first = self._offsets.at(name, numbers, EARLIEST, deadline)
        end = self._offsets.at(name, numbers, LATEST, deadline)
        stored = self._offsets.at(name, numbers, LATEST, deadline, UNCOMMITTED_TOO)
        sizes = self._sizes(name, numbers, deadline)
        partitions = tuple(
            PartitionStats(
                _shown(number, len(numbers)),
                first_entry=first[number],
                next_entry=end[number],
                messages=end[number] - first[number],
                bytes=sizes.get(number, 0),
                undecided=max(0, stored[number] - end[number]),
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
        try:
            leaders = {n: self._cluster.leader(name, n, deadline) for n in numbers}
            for node in set(leaders.values()):
                led = [number for number in numbers if leaders[number] == node]
                request = apis.DESCRIBE_LOG_DIRS(topics=[{"topic": name, "partitions": led}])
                for folder in self._cluster.ask(request, deadline, node).results:
                    for topic in folder.topics:
                        sizes |= {p.partition_index: p.partition_size for p in topic.partitions}
        except (CodeError, NoAnswerError):
            return {}
        return sizes


def _number(value: str | None) -> int | None:
    return None if value is None else int(value)


def create_topic(
    cluster: Cluster,
    name: str,
    partitions: int,
    replicas: int,
    configs: Mapping[str, str],
    deadline: float,
) -> str:
    """Create a topic, wait until it can be used by way of any broker, and return its id.

    `replicas` 0: the brokers' default. Raises TopicExistsError, also
    when all brokers know the topic: another worker may just have created it.
    """
    topic = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replicas or -1,
        "configs": [{"name": key, "value": value} for key, value in configs.items()],
    }
    done = ErrorCode.TOPIC_ALREADY_EXISTS
    try:
        _change(cluster, name, apis.CREATE_TOPICS, {"topics": [topic]}, done, deadline)
    except TopicExistsError:
        cluster.persist(lambda: _known(cluster, name, deadline), deadline)
        raise
    return cluster.persist(lambda: _led(cluster, name, deadline), deadline)


def _led(cluster: Cluster, name: str, deadline: float) -> str:
    """Return a new topic's id; raise LostError while brokers do not know it or leaders miss."""
    found = _known(cluster, name, deadline)
    if any(p.error_code or p.leader_id < 0 for p in found.partitions):
        raise KafkaConnectionLostError(f"topic {name} has no leaders yet")
    return shown_id(found)


def _known(cluster: Cluster, name: str, deadline: float) -> Any:
    """Return the metadata of a topic; raise LostError while a broker does not know the topic."""
    answers = _answers(cluster, name, deadline)
    for found in answers:
        if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise KafkaConnectionLostError(f"topic {name} is not known to all brokers yet")
        check(found.error_code, f"topic {name}")
    return answers[-1]


def _check_deleted(cluster: Cluster, name: str, deadline: float) -> None:
    """Raise LostError while a broker knows the topic."""
    for found in _answers(cluster, name, deadline):
        if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            continue
        check(found.error_code, f"topic {name}")
        raise KafkaConnectionLostError(f"topic {name} is still there")


def _answers(cluster: Cluster, name: str, deadline: float) -> list[Any]:
    """Return what each broker says of a topic: Kafka's brokers learn of a change one by one.

    A broker that does not answer soon is left out: one that starts learns all before it serves.
    Raises LostError if none answers.
    """
    answers = []
    for node in cluster.brokers(deadline):
        soon = min(deadline, time.monotonic() + ANSWER_SECONDS)
        with suppress(NoAnswerError):
            answers.append(cluster.metadata([name], soon, node=node).topics[0])
    if not answers:
        raise KafkaConnectionLostError(f"no broker says whether topic {name} is there")
    return answers


def _change(
    cluster: Cluster,
    name: str,
    api: apis.ClientApi,
    fields: Mapping[str, Any],
    done: int,
    deadline: float,
) -> None:
    """Have the controller create or delete a topic; `done` is the code when it is so already.

    If the answer to the first try is lost, that is the code of the second.
    """
    tried = False

    def attempt() -> None:
        nonlocal tried
        request = api(**fields, timeout_ms=max(1, int(seconds_left(deadline) * 1000)))
        try:
            answer = cluster.ask_controller(request, deadline)
        except NoAnswerError as error:
            tried |= error.sent
            raise
        (found,) = answer.topics if api is apis.CREATE_TOPICS else answer.responses
        again, tried = tried, tried or found.error_code == ErrorCode.REQUEST_TIMED_OUT
        if found.error_code != done or not again:
            check(found.error_code, f"topic {name}", found.error_message)

    cluster.persist(attempt, deadline)


def _shown_count(partitions: int) -> int:
    return 0 if partitions == 1 else partitions


def _shown(number: int, partitions: int) -> int:
    return NOT_PARTITIONED if partitions == 1 else number
