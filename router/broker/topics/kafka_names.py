"""The names by which Kafka clients know topics: one topic for each name.

A topic of the default namespace has its local name, `a.b.c`; every other one has its tenant and
namespace before that, `tenant.namespace.a.b.c`. Only of the others the names are kept here.
"""

from __future__ import annotations

from collections.abc import Container

from router.model import PERSISTENT, TopicName


class KafkaNames:
    """The full names of topics by their Kafka names; the default namespace is given.

    `topics` are the full names of all topics there are, also of those that are added here.
    """

    def __init__(self, tenant: str, namespace: str, topics: Container[str]) -> None:
        self._default = tenant, namespace
        self._prefix = f"{PERSISTENT}://{tenant}/{namespace}/"
        self._topics = topics
        self._full: dict[str, str] = {}

    def of(self, name: TopicName) -> str:
        """Return the name of a topic."""
        if (name.tenant, name.namespace) == self._default:
            return name.local
        return f"{name.tenant}.{name.namespace}.{name.local}"

    def full(self, kafka_name: str) -> str | None:
        """Return the full name of the topic that has a Kafka name."""
        full = self._prefix + kafka_name
        return full if full in self._topics else self._full.get(kafka_name)

    def add(self, full: str) -> None:
        """Note a topic."""
        if not full.startswith(self._prefix):
            self._full[self.of(TopicName.parse(full))] = full

    def remove(self, name: TopicName) -> None:
        """Forget a topic, so that its name is free."""
        self._full.pop(self.of(name), None)
