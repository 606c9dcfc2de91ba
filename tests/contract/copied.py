"""A copier that tests can stop at any batch, and what its source and target hold."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from router.backends import Batch, NullMailbox, Start
from router.model import (
    NOT_PARTITIONED,
    Grant,
    Message,
    Stored,
    Subscription,
    TopicName,
)
from router.services.copying.fidelity import checksum
from router.services.copying.groups import GroupReport, GroupSync
from router.services.copying.places import runs_of
from router.services.copying.state import CopiedBatch, CopiedTopic, CopyState
from router.services.copying.verify import How, Verification, Verifier
from tests.contract.conftest import WAIT, Bell, Opened

MANY = 100_000
BYTES = 1 << 30
_numbers = itertools.count()


@contextmanager
def opened_state(folder: Path) -> Iterator[CopyState]:
    """Open a new state."""
    path = folder / f"state-{next(_numbers)}.db"
    with closing(CopyState.open(path, "source", "target")) as state:
        yield state


class Copy:
    """One topic at two stores, copied batch by batch as the product copies."""

    def __init__(
        self, source: Opened, target: Opened, state: CopyState, partitions: int = 0
    ) -> None:
        self.source = source
        self.target = target
        self.state = state
        self.topic = source.new_topic(partitions)
        self.to = target.new_topic(partitions)
        self.partitions = range(partitions) if partitions else (NOT_PARTITIONED,)
        self.groups = GroupSync(source.backend, target.backend, state, state.topics, WAIT)
        state.put_topic(CopiedTopic(self.topic, self.to, partitions, done=True))
        self.compared: list[int] = []
        self._sequences = dict.fromkeys(self.partitions, 0)
        self._copied = dict.fromkeys(self.partitions, 0)

    def publish(self, opened: Opened, values: Sequence[bytes], partition: int = -1) -> None:
        """Store these values together at one of the two."""
        topic = self.topic if opened is self.source else self.to
        batch = Batch(topic, partition, [Message(value) for value in values])
        opened.backend.publish(batch, WAIT)

    def copy(self, most: int, partition: int = -1) -> int:
        """Copy the next messages of a partition as one batch; return how many they are."""
        found = stored(self.source, self.topic, partition)[self._copied[partition] :][:most]
        if not found:
            return 0
        number = self._sequences[partition]
        runs = runs_of(one.position for one in found)
        messages = [one.message for one in found]
        row = CopiedBatch(partition, number, runs, len(found), 1, checksum(messages), 0)
        self.state.begin(self.topic, row)
        producer = f"copy-{self.state.id}-{partition}"
        batch = Batch(self.to, partition, messages, producer, number)
        self.state.complete(self.topic, row, self.target.backend.publish(batch, WAIT))
        self._sequences[partition] += 1
        self._copied[partition] += len(found)
        return len(found)

    def leave_out(self, most: int, partition: int = -1) -> None:
        """Go on behind so many messages."""
        self._copied[partition] += most

    def verify(self, how: How, *, groups: bool = True) -> Verification:
        """Compare what was copied."""
        ends = self.source.backend, self.target.backend
        verifier = Verifier(*ends, self.state, WAIT, self.compared.append)
        return verifier.run(self.state.topics(), how, groups=groups)

    def sync(self, *, last: bool = False) -> GroupReport:
        """Move the groups of the target."""
        return self.groups.sync(last=last)

    def left(self, opened: Opened, group: str, partition: int = -1) -> list[bytes]:
        """Return what a group has not acknowledged at one of the two."""
        topic = self.topic if opened is self.source else self.to
        return values(left(opened, Subscription(topic, group), partition))


def stored(opened: Opened, topic: TopicName, partition: int = -1) -> list[Stored]:
    """Return all messages of a partition."""
    reader = opened.backend.read(topic, partition, Start.EARLIEST, NullMailbox(), WAIT)
    with closing(reader):
        found: list[Stored] = []
        while some := reader.receive(MANY, BYTES, WAIT):
            found += some
    return found


def left(opened: Opened, group: Subscription, partition: int = -1) -> list[Stored]:
    """Return what a group has not acknowledged."""
    consumer = opened.backend.consume(Grant(group, partition, 1), Bell(), WAIT)
    with closing(consumer):
        found: list[Stored] = []
        while some := consumer.receive(MANY, BYTES, WAIT):
            found += some
    return found


def values(received: Iterable[Stored]) -> list[bytes]:
    """Return what the messages hold."""
    return [one.message.value for one in received]
