"""Batches for several partitions on their way together: one frame to our own broker, one answer.

Theory of operation. Of a thousand partitions in use each has few messages at a time, so that a
frame, a system call and a wait for each cost more than the messages. `JointPublishing` takes the
turns of all producers at once, sends the entries in one APPENDS, and gives the turns back when its
response is there. What it has no turn for, or no producer that the broker knows, is published
alone, in a thread of its own: nothing waits for it. So is what the broker did not answer for or
wants again, with its turn still held and the same number and bytes, by the same code that repeats a
single publish (`NamedProducers.deliver`); the broker stores it once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from threading import Thread
from typing import Final

from router.backends import Batch, Settled
from router.backends.pulsar.producers import NamedProducers, Publishing, alike
from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    OutcomeUnknownError,
    PublishRefusedError,
    RouterError,
)
from router.model import TopicName
from router.pulsar_client.connection import PulsarConnection
from router.pulsar_client.refusals import ProducerNameBusyError, refusal
from router.wire.pulsar import encode
from router.wire.pulsar import pulsar_pb2 as pb

MAX_JOINT_ENTRIES: Final = 1_000
"""As the broker takes them."""
MAX_SOURCES_BYTES: Final = 256 << 10
"""Of one frame, beside its payload; more are left out."""


class JointPublishing:
    """Publishes batches for several partitions at once; see `router.backends.JointBackend`."""

    def __init__(self, producers: NamedProducers) -> None:
        self._producers = producers

    def is_open(self, topic: TopicName, partition: int) -> bool:
        """Return whether the broker has the partition's producer open; see the protocol."""
        return self._producers.ready((topic, partition)) is not None

    def publish_many(self, batches: Sequence[Batch], timeout: float, settled: Settled) -> None:
        """Store each batch or tell why not; see the protocol."""
        now = time.monotonic()
        deadline = now + timeout
        joint = _Joint(settled)
        try:
            for place, batch in enumerate(batches):
                begun = self._producers.begin(batch, now) if alike(batch.messages) else None
                if begun is None:
                    self._apart(partial(self._producers.publish, batch, timeout), place, settled)
                elif not joint.add(place, begun):
                    self._finish(joint, place, deadline)
            if joint.left:
                self._send(joint, deadline)
        finally:
            joint.release()

    def _send(self, joint: _Joint, deadline: float) -> None:
        failures: dict[int, RouterError] = {}
        try:
            failures = joint.send(deadline)
        except BackendTimeoutError as error:
            failures = dict.fromkeys(joint.left, OutcomeUnknownError.because(error))
        except RouterError as error:
            failures = dict.fromkeys(joint.left, error)  # not of those that are published apart
        for place in [*joint.left]:
            failure = failures.get(place)
            if isinstance(failure, BackendUnavailableError | ProducerNameBusyError):
                self._finish(joint, place, deadline)
            else:
                joint.settle(place, failure)

    def _finish(self, joint: _Joint, place: int, deadline: float) -> None:
        """Send one batch alone, whose turn is held, until there is an answer."""
        publishing = joint.left.pop(place)

        def finish() -> None:
            try:
                self._producers.deliver(publishing, deadline)
            finally:
                publishing.producer.release(time.monotonic())

        self._apart(finish, place, joint.settled)

    def _apart(self, publish: Callable[[], object], place: int, settled: Settled) -> None:
        def run() -> None:
            failure: Exception | None = None
            try:
                publish()
            except Exception as error:  # noqa: BLE001 - whatever it is, a request waits for it
                failure = error
            settled(place, failure)

        Thread(target=run, name="publish-apart", daemon=True).start()


class _Joint:
    """The batches of one frame, whose turns are held; `left` are those that are not settled."""

    def __init__(self, settled: Settled) -> None:
        self.settled = settled
        self.left: dict[int, Publishing] = {}
        self._connection: PulsarConnection | None = None
        self._size = 0

    def add(self, place: int, publishing: Publishing) -> bool:
        """Take a batch; return whether it fits into the frame."""
        self.left[place] = publishing
        connection = publishing.producer.live_connection
        if connection is None or connection is not (self._connection or connection):
            return False
        self._connection = connection
        try:
            publishing.pack(connection.max_message)
        except PublishRefusedError as error:
            self.settle(place, error)
            return True
        self._size += len(publishing.payload)
        return self._size <= connection.max_message and len(self.left) <= MAX_JOINT_ENTRIES

    def send(self, deadline: float) -> dict[int, RouterError]:
        """Send the frame; return what the broker refused of it, by place.

        Raises BackendTimeoutError, BackendUnavailableError.
        """
        connection = self._connection
        assert connection is not None
        request_id, publishings = connection.next_id(), self.left.values()
        sources = [one.batch.source for one in publishings]
        command = pb.CommandAppends(
            request_id=request_id,
            producer_ids=[one.producer.number for one in publishings],
            sequence_ids=[one.sequence for one in publishings],
            sizes=[len(one.payload) for one in publishings],
            sources=sources if sum(map(len, sources)) <= MAX_SOURCES_BYTES else (),
        )
        kind = pb.BaseCommand.APPENDS
        payload = b"".join([one.payload for one in publishings])
        for one in publishings:
            one.sent = True
        frame = encode(pb.BaseCommand(type=kind, appends=command), payload)
        answer = connection.take(request_id, connection.ask(request_id, frame), deadline)
        if not answer.failures:
            return {}
        places = list(self.left)
        return {places[one.entry]: refusal(one.error, one.message) for one in answer.failures}

    def settle(self, place: int, failure: RouterError | None) -> None:
        """Give a turn back and tell what became of the batch."""
        self.left.pop(place).producer.release(time.monotonic())
        self.settled(place, failure)

    def release(self) -> None:
        """Give all turns back that are still held: the publish broke off."""
        for publishing in self.left.values():
            publishing.producer.release(time.monotonic())
        self.left.clear()
