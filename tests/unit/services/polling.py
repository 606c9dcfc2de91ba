"""A subscriber on a topic of the memory backend, and clients that leave."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from router.backends import Batch, Start
from router.backends.memory import MemoryNode
from router.metrics import Metrics
from router.model import Message, Subscription, TopicInfo, TopicName
from router.services.consume import (
    AnsweredPoll,
    ConnectedClient,
    ConsumeOptions,
    PollMailbox,
    PollRequest,
    PollServer,
)
from router.services.topic_metadata import TopicMetadataCache
from tests.unit.web.applications import Troubled

TOPIC = TopicName.parse("t")
GROUP = Subscription(TOPIC, "g")
PATIENCE = 20.0


class Leaving(ConnectedClient):
    """A client that goes away when told; the mailbox is woken as by the event loop."""

    def __init__(self) -> None:
        self.mailbox = PollMailbox()
        self.left = False

    def is_closed(self) -> bool:
        return self.left

    def leave(self) -> None:
        self.left = True
        self.mailbox.wake()


class Bench:
    """A subscriber on a topic of the memory backend."""

    def __init__(self, partitions: int = 0, *, limit: int = 0, create: bool = False) -> None:
        self.backend = Troubled()
        self.backend.create_topic(TopicInfo(TOPIC, partitions), 1)
        self.node = MemoryNode(idle=0.2, empty_polls_per_minute=limit)
        self.metrics = Metrics()
        directory = TopicMetadataCache(self.backend, 0, 1, time.monotonic)
        options = ConsumeOptions(1 << 24, 5, create)
        self.subscriber = PollServer(
            self.backend, self.node, directory, options, self.metrics, time.monotonic
        )
        self.partitions = partitions
        self.pool = ThreadPoolExecutor(16)

    def publish(self, *values: bytes, partition: int | None = None) -> None:
        """Store messages, in partition 0 of a partitioned topic unless told otherwise."""
        if partition is None:
            partition = 0 if self.partitions else -1
        self.backend.publish(Batch(TOPIC, partition, [Message(v) for v in values]), 1)

    def request(self, **more: object) -> PollRequest:
        """Ask as c1, from the beginning, without waiting."""
        asked: dict[str, object] = {
            "subscription": GROUP,
            "consumer": "c1",
            "timeout": 0,
            "limit": 100,
            "start": Start.EARLIEST,
        }
        return PollRequest(**(asked | more))  # type: ignore[arg-type] # the tests name real fields

    def poll(self, client: Leaving | None = None, **more: object) -> AnsweredPoll:
        """Poll here and now."""
        mailbox = client.mailbox if client else PollMailbox()
        return self.subscriber.poll(self.request(**more), mailbox, client or ConnectedClient())

    def take(self, **more: object) -> list[bytes]:
        """Poll, and get the answer out."""
        poll = self.poll(None, **more)
        poll.delivered()
        return [stored.message.value for stored in poll.messages]

    def later(self, client: Leaving | None = None, **more: object) -> Future[AnsweredPoll]:
        """Poll in another thread; return once it waits or is done."""
        before = len(self.subscriber.context.figures.waiting)
        more.setdefault("timeout", PATIENCE)
        task = self.pool.submit(lambda: self.poll(client, **more))
        until(lambda: task.done() or len(self.subscriber.context.figures.waiting) > before)
        return task

    def polls(self) -> dict[str, float]:
        """Return how many polls ended how."""
        drained = self.metrics.drain().counters
        return {labels[0][1]: n for name, labels, n in drained if name == "router_polls_total"}


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)
