"""The store of messages that a command works on: the running broker's, or one started for it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from router.backends import Backend, opening
from router.node import Node
from router.services.topic_metadata import TopicMetadataCache
from router.settings import Settings


@dataclass(frozen=True, slots=True)
class CommandStore:
    """What a command needs to publish, consume and manage topics."""

    settings: Settings
    node: Node
    backend: Backend

    @property
    def timeout(self) -> float:
        """How many seconds one call may take."""
        return self.settings.seconds("backend.timeout")

    def directory(self) -> TopicMetadataCache:
        """Return what knows the topics' partitions, and makes topics as settings say."""
        partitions = self.settings.number("topics.auto_partitions")
        return TopicMetadataCache(self.backend, partitions, self.timeout, time.monotonic)


@contextmanager
def opened(settings: Settings) -> Iterator[CommandStore]:
    """Connect to the store that the settings name; a broker is started if none runs."""
    with opening.opened(settings) as (node, backend):
        yield CommandStore(settings, node, backend)
