"""The messages of the broker's log, as connections produce, consume and look for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from router.broker.pulsar.consuming import Consuming
from router.broker.pulsar.context import Handler, LeaseTable
from router.broker.pulsar.fleeting import Fleeting
from router.broker.pulsar.lookups import Lookups
from router.broker.pulsar.producing import Producing
from router.broker.pulsar.schemas import SchemaRequests
from router.broker.pulsar.topic_lists import TopicLists
from router.broker.pulsar.watching import Watching
from router.broker.schemas import TopicSchemas
from router.broker.topics import Topics

if TYPE_CHECKING:
    from router.broker.pulsar.connection import Connection

Watch = Callable[[str, Callable[[], float]], None]
"""Has a gauge read whenever metrics are shown."""


class LogMessages:
    """The Messages of a broker that has a log."""

    def __init__(
        self,
        topics: Topics,
        leases: LeaseTable,
        watch: Watch,
        schemas: TopicSchemas | None = None,
    ) -> None:
        self.topics = topics
        self.schemas = schemas or TopicSchemas()
        self.leases = leases
        self.lists = TopicLists(topics)
        self.all: set[LogTraffic] = set()
        self._names = 0
        watch("router_broker_producers", lambda: sum(t.producing.count for t in self.all))
        watch("router_broker_consumers", lambda: sum(t.consuming.count for t in self.all))

    def traffic(self, connection: Connection) -> LogTraffic:
        """Return what a new connection does with the log."""
        traffic = LogTraffic(connection, self)
        self.all.add(traffic)
        return traffic

    def new_name(self, kind: str) -> str:
        """Return a name that no producer or consumer ever had, over restarts too."""
        self._names += 1
        return f"{kind}-{self.topics.store.boot}-{self._names}"

    async def settled(self) -> None:
        """Return when everything appended so far is on disk."""
        stored = asyncio.Event()
        self.topics.store.after_sync(stored.set)
        await stored.wait()


class LogTraffic:
    """What one connection does with the log."""

    def __init__(self, connection: Connection, messages: LogMessages) -> None:
        self._messages = messages
        self.producing = Producing(connection, messages)
        self.consuming = Consuming(connection, messages)
        self._lookups = Lookups(connection, messages)
        self._schemas = SchemaRequests(connection, messages)
        self._watching = Watching(connection, messages.lists)
        self._fleeting = Fleeting(connection, messages)

    def handlers(self) -> dict[int, Handler]:
        """Return the commands served."""
        handlers = {
            **self.producing.handlers(),
            **self.consuming.handlers(),
            **self._lookups.handlers(),
            **self._schemas.handlers(),
            **self._watching.handlers(),
        }
        return {**handlers, **self._fleeting.handlers(handlers)}

    def read(self) -> None:
        """Read no more for now, if more waits to be stored than may."""
        self.producing.pause()

    def gone(self) -> None:
        """Close all producers and consumers."""
        self._messages.all.discard(self)
        self.producing.gone()
        self.consuming.gone()
        self._watching.gone()
        self._fleeting.gone()
