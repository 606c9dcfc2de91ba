"""The administration of the node's own broker, as the REST API of Pulsar's administration needs it.

What the extension of the protocol answers is handed on as it is: it is that API's model in other
words, and one more in between would say nothing new.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import BoundedSemaphore
from typing import Any, Final

from router.backends.pulsar.admin import deadline_in
from router.backends.pulsar.asking import ask
from router.backends.pulsar.link import Link
from router.backends.pulsar.refusals import refusal
from router.errors import BackendTimeoutError
from router.wire.pulsar import pulsar_pb2 as pb

AT_ONCE: Final = 32
"""Calls of one worker that the broker has before it; it ends a connection that has too many."""

MODES: Final = tuple(pb.CommandGetTopicsOfNamespace.Mode.keys())


class Administration:
    """Asks the node's broker; calls may be made from many threads or greenlets.

    All raise what the broker answers, BackendUnavailableError and BackendTimeoutError.
    """

    def __init__(self, link: Link, timeout: float) -> None:
        self._link = link
        self._timeout = timeout
        self._room = BoundedSemaphore(AT_ONCE)

    def ask(self, command: pb.CommandAdmin, *, again: bool = True) -> Any:
        """Return the answer to a request, which is not made `again` where that could do harm."""
        return self._alone(lambda deadline: ask(self._link, command, deadline, again=again))

    def partitions(self, topic: str, *, create: bool = False) -> int:
        """Return the number of partitions, 0: not partitioned; raise TopicNotFoundError.

        With `create`, a missing topic is one that would be made by its first use.
        """

        def make(request_id: int) -> pb.BaseCommand:
            asked = pb.CommandPartitionedTopicMetadata(
                topic=topic, request_id=request_id, metadata_auto_creation_enabled=create
            )
            return pb.BaseCommand(type=pb.BaseCommand.PARTITIONED_METADATA, partitionMetadata=asked)

        answer = self._call(make)
        if answer.response == pb.CommandPartitionedTopicMetadataResponse.Failed:
            raise refusal(answer.error, answer.message)
        partitions: int = answer.partitions
        return partitions

    def look_up(self, topic: str) -> None:
        """Return if the broker serves a topic, or would make it; raise NamespaceNotFoundError."""

        def make(request_id: int) -> pb.BaseCommand:
            asked = pb.CommandLookupTopic(topic=topic, request_id=request_id)
            return pb.BaseCommand(type=pb.BaseCommand.LOOKUP, lookupTopic=asked)

        answer = self._call(make)
        if answer.response == pb.CommandLookupTopicResponse.Failed:
            raise refusal(answer.error, answer.message)

    def names(self, namespace: str, mode: str) -> list[str]:
        """Return the topics of a namespace, each partition by its own name.

        The mode is one of MODES.
        """

        def make(request_id: int) -> pb.BaseCommand:
            asked = pb.CommandGetTopicsOfNamespace(
                namespace=namespace, request_id=request_id, mode=mode
            )
            return pb.BaseCommand(
                type=pb.BaseCommand.GET_TOPICS_OF_NAMESPACE, getTopicsOfNamespace=asked
            )

        return list(self._call(make).topics)

    def _call(self, make: Callable[[int], pb.BaseCommand]) -> Any:
        return self._alone(lambda deadline: self._link.call(make, deadline))

    def _alone(self, call: Callable[[float], Any]) -> Any:
        deadline = deadline_in(self._timeout)
        if not self._room.acquire(timeout=max(0.001, deadline - time.monotonic())):
            raise BackendTimeoutError("the administration has too much to do")
        try:
            return call(deadline)
        finally:
            self._room.release()
