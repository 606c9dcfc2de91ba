"""A copy of one topic between stores in memory, which fail or see it killed at any step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from router.backends import Batch, NullMailbox, Receipt, Start
from router.backends.memory.store import MemoryBackend
from router.errors import BackendUnavailableError, ConflictError
from router.model import NOT_PARTITIONED, Message, Stored, TopicName
from router.services.copying.context import CopyContext, CopyOptions, Figures, Throttle
from router.services.copying.copier import PartitionCopier
from router.services.copying.fidelity import StoreKind, checksum
from router.services.copying.partition import PartitionCopy
from router.services.copying.plan import CopyPlanner, PlannedTopic
from router.services.copying.reading import PartitionReading
from router.services.copying.state import CopiedTopic, CopyState

TOPIC = TopicName.parse("orders")
TIMEOUT = 5.0
MOST = 1 << 20


class KilledError(BaseException):
    """Stands for SIGKILL: nothing of the copier runs on."""


class Target(MemoryBackend):
    """A store that fails, or sees its client die, before or after it stores a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[tuple[bool, BaseException]] = []

    def publish(self, batch: Batch, timeout: float) -> Receipt:
        if not self.faults:
            return super().publish(batch, timeout)
        stored_before, fault = self.faults.pop(0)
        if stored_before:
            super().publish(batch, timeout)
        raise fault


class Source(MemoryBackend):
    """A store whose readers fail now and then; retention takes the values that are `deleted`."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0
        self.deleted: set[bytes] = set()

    def read(self, *given: Any) -> Any:
        reader = super().read(*given)
        receive = reader.receive

        def failing(limit: int, max_bytes: int, timeout: float) -> list[Stored]:
            if self.failures:
                self.failures -= 1
                raise BackendUnavailableError("the source went away")
            while found := receive(limit, max_bytes, timeout):
                left = [stored for stored in found if stored.message.value not in self.deleted]
                if left:
                    return left
            return []

        reader.receive = failing  # type: ignore[method-assign]
        return reader


def read_all(backend: MemoryBackend, topic: TopicName, partition: int) -> list[Stored]:
    reader = backend.read(topic, partition, Start.EARLIEST, NullMailbox(), TIMEOUT)
    try:
        return reader.receive(100_000, 1 << 30, TIMEOUT)
    finally:
        reader.close()


class Bench:
    """A copy of one topic, begun again as often as it is killed."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.path = folder / "copy.db"
        self.source, self.target = Source(), Target()
        self.options = CopyOptions(timeout=TIMEOUT, **options)
        self.said: list[str] = []
        self.stop = threading.Event()
        self.pool = ThreadPoolExecutor(2)
        self.state = CopyState.open(self.path, "a", "b")

    def reopen(self) -> None:
        self.state.close()
        self.state = CopyState.open(self.path, "a", "b")

    def close(self) -> None:
        self.state.close()
        self.pool.shutdown()

    def context(self, kind: StoreKind = StoreKind.MEMORY) -> CopyContext:
        return CopyContext(
            self.source,
            self.target,
            kind,
            self.state,
            self.options,
            Figures(self.said.append),
            Throttle(self.options.rate, self.stop),
            self.pool,
            self.stop,
        )

    def publish(self, messages: Sequence[Message], partition: int = NOT_PARTITIONED) -> None:
        self.source.publish(Batch(TOPIC, partition, messages), TIMEOUT)

    def plan(self, **options: Any) -> list[PlannedTopic]:
        planner = CopyPlanner(
            self.source, self.target, self.state, TIMEOUT, kind=StoreKind.MEMORY, **options
        )
        planned = planner.plan(self.source.list_topics(TIMEOUT))
        for sentence in planner.refused.values():
            raise ConflictError(sentence)
        return planned

    def copier(self, kind: StoreKind = StoreKind.MEMORY) -> PartitionCopier:
        """Return what copies the topics that the state knows."""
        copier = PartitionCopier(self.context(kind), MOST)
        for topic in self.state.topics():
            copier.add(topic, {})
        return copier

    def run(self, **options: Any) -> PartitionCopier:
        """Plan and copy everything, as the command does."""
        context = self.context()
        planner = CopyPlanner(
            self.source, self.target, self.state, TIMEOUT, kind=StoreKind.MEMORY, **options
        )
        copier = PartitionCopier(context, MOST)
        for planned in planner.plan(self.source.list_topics(TIMEOUT)):
            copier.add(planner.make(context, planned), planned.fences())
        copier.run(lambda level: None, 0.05)
        return copier

    def copied(self, partition: int = NOT_PARTITIONED) -> list[Message]:
        return [stored.message for stored in read_all(self.target, TOPIC, partition)]

    def published(self, partition: int = NOT_PARTITIONED) -> list[Message]:
        return [stored.message for stored in read_all(self.source, TOPIC, partition)]

    def assert_whole(self, partitions: Sequence[int] = (NOT_PARTITIONED,)) -> None:
        """Each message is at the target once, in order, and its place is known."""
        for partition in partitions:
            assert self.copied(partition) == self.published(partition)
            there = read_all(self.target, TOPIC, partition)
            here = read_all(self.source, TOPIC, partition)
            rows = list(self.state.batches(TOPIC, partition))
            assert [place for row in rows for place in row.sources()] == [p.position for p in here]
            assert [place for row in rows for place in row.targets()] == [p.position for p in there]
            at = 0
            for row in rows:
                some = [stored.message for stored in there[at : at + row.count]]
                assert row.checksum == checksum(some)
                at += row.count
            assert at == len(there)


def copy_of(context: CopyContext) -> PartitionCopy:
    """Return the copy of the only partition of the topic."""
    topic = CopiedTopic(TOPIC, TOPIC, 0)
    return PartitionCopy(PartitionReading(context, topic, NOT_PARTITIONED, NullMailbox(), MOST))


def copy_until_killed(bench: Bench, where: str, after: bool, later: int) -> None:
    """Copy, and die at the given step: before or after what it does, when it comes so late."""
    context = bench.context()
    steps = iter(range(later + 1))

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*given: Any) -> Any:
            last = next(steps, None) == later
            if last and not after:
                raise KilledError
            found = call(*given)
            if last:
                raise KilledError
            return found

        return step

    owner: Any = bench.target if where == "publish" else bench.state
    if where:
        setattr(owner, where, dying(getattr(owner, where)))
    copy = copy_of(context)
    try:
        while copy.turn():
            pass
    except KilledError:
        pass
    finally:
        copy.close()
        if where:
            delattr(owner, where)
