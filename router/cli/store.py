"""The store of messages that a command works on: the running broker's, or one started for it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from router.backends import Backend, Node
from router.backends.opening import open_backend, open_node
from router.model import TopicName
from router.services.directory import Directory
from router.settings import Settings


@dataclass(frozen=True, slots=True)
class Store:
    """What a command needs to publish, consume and manage topics."""

    settings: Settings
    node: Node
    backend: Backend

    @property
    def timeout(self) -> float:
        """How many seconds one call may take."""
        return self.settings.seconds("backend.timeout")

    def directory(self) -> Directory:
        """Return what knows the topics' partitions, and makes topics as settings say."""
        partitions = self.settings.number("topics.auto_partitions")
        return Directory(self.backend, partitions, self.timeout, clock)

    def topic(self, name: str) -> TopicName:
        """Return the topic of a name, local or full; raise BadNameError."""
        tenant = self.settings.text("names.tenant")
        return TopicName.parse(name, tenant, self.settings.text("names.namespace"))

    def shown(self, topic: TopicName) -> str:
        """Return the shortest name by which `topic` finds it again."""
        return topic.local if self.topic(topic.local) == topic else str(topic)


@contextmanager
def opened(settings: Settings) -> Iterator[Store]:
    """Connect to the store that the settings name; a broker is started if none runs."""
    with contextmanager(parts)(settings) as (node, backend):
        yield Store(settings, node, backend)


def parts(settings: Settings) -> Iterator[tuple[Node, Backend]]:
    """Yield node and backend, open until the generator is closed."""
    with closing(open_node(settings)) as node, closing(open_backend(settings, node)) as backend:
        yield node, backend


def clock() -> float:
    """Return seconds that only go forward."""
    return time.monotonic()


def wall_ms() -> int:
    """Return the time in ms since 1970."""
    return time.time_ns() // 1_000_000
