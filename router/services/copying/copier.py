"""Copying topics with a few threads, once or for as long as the source is written to.

Theory of operation. Each partition is copied in turns (`PartitionCopy.turn`) by one of the workers
at a time, and waits in line while it has more to copy. One that has nothing more keeps its reader,
whose mailbox puts it in line again when messages come: no partition is asked again and again. The
readers that wait are bounded (`MAX_WAITING_READERS`); partitions beyond that are *parked*: they let
go of theirs, and are put in line when a description of their topic shows another end. Topics are
described every `PARKED_SECONDS`, or more seldom where that takes long, and once more at the end.

A partition that fails for good is named and left out; the others go on.

One lock guards the states of partitions; it is never held over I/O.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from queue import SimpleQueue
from typing import Final

import structlog

from router.errors import RouterError, TopicNotFoundError
from router.model import TopicName
from router.services.copying.context import CopyContext, SourceGoneError, StoppedError
from router.services.copying.partition import PartitionCopy
from router.services.copying.places import Key
from router.services.copying.plan import partitions_of
from router.services.copying.reading import PartitionReading
from router.services.copying.state import CopiedTopic

MAX_WAITING_READERS: Final = 1_000
PARKED_SECONDS: Final = 2.0
PARKED_SHARE: Final = 20
"""Looking at parked partitions takes this part of the time at most."""
END_SECONDS: Final = 5.0
"""How long a copy that was level goes on when it is stopped, to copy what came meanwhile."""
LEVEL_SECONDS: Final = 3.0
"""With publishers at work there is always a message that is not copied yet: this one is new."""

_log = structlog.get_logger(__name__)


class TaskState(Enum):
    """What becomes of a partition next."""

    WAITING = "waiting"
    QUEUED = "queued"
    RUNNING = "running"
    WOKEN = "woken"
    """Something came while it was copied."""
    ENDED = "ended"


@dataclass(eq=False, slots=True)
class _Task:
    """A partition in the line; `wake` is its mailbox.

    `end`: where the source ended, by ledger and entry, when it was put in line while it was parked.
    """

    copier: PartitionCopier
    copy: PartitionCopy | None = None
    state: TaskState = TaskState.QUEUED
    failure: RouterError | None = None
    gone: bool = False
    end: tuple[int, int] | None = None

    def wake(self) -> None:
        """Have it copied, as something came."""
        self.copier.woken(self)


@dataclass(eq=False, slots=True)
class PartitionCopier:
    """Copies partitions until each was read to its end, or for ever; see the module.

    `max_bytes`: of a batch, by the weight of its messages.
    """

    context: CopyContext
    max_bytes: int
    _changed: threading.Condition = field(default_factory=threading.Condition, init=False)
    _tasks: list[_Task] = field(default_factory=list, init=False)
    _line: SimpleQueue[_Task | None] = field(default_factory=SimpleQueue, init=False)
    _busy: int = field(default=0, init=False)
    _ended: bool = field(default=False, init=False)
    _level: bool = field(default=False, init=False)

    def add(self, topic: CopiedTopic, fences: dict[int, Key], first: int = 0) -> None:
        """Copy the partitions of a topic from number `first` on, up to the fences if any."""
        follow = self.context.options.follow
        for partition in partitions_of(topic):
            if partition >= first or partition < 0:
                task = _Task(self)
                fence = None if follow else fences.get(partition)
                reading = PartitionReading(self.context, topic, partition, task, self.max_bytes)
                task.copy = PartitionCopy(reading, fence)
                with self._changed:
                    self._tasks.append(task)
                    self._busy += 1
                self._line.put(task)

    def forget_gone(self) -> list[TopicName]:
        """Forget topics of which no partition is there any more, and return them.

        They may be added again: nothing copies them now.
        """
        with self._changed:
            there: dict[TopicName, bool] = {}
            for task in self._tasks:
                if task.copy is not None:
                    topic = task.copy.topic.source
                    gone = task.gone and task.state is TaskState.ENDED
                    there[topic] = there.get(topic, False) or not gone or task.failure is not None
            found = [topic for topic, still in there.items() if not still]
            self._tasks[:] = [
                task for task in self._tasks if task.copy is None or there[task.copy.topic.source]
            ]
        return found

    def refuse(self, topic: TopicName, failure: RouterError) -> None:
        """Copy a topic no more."""
        woken = []
        with self._changed:
            for task in self._tasks:
                if task.copy is None or task.copy.topic.source != topic:
                    continue
                if task.state is TaskState.ENDED or task.failure is not None:
                    continue
                task.failure = failure
                if task.state is TaskState.WAITING:
                    task.state = TaskState.QUEUED
                    self._busy += 1
                    woken.append(task)
        for task in woken:
            self._line.put(task)

    def run(self, meanwhile: Callable[[bool], None], every: float) -> None:
        """Copy; calls `meanwhile` every so often, with whether it is level.

        Returns when all were read to their ends, with `follow` when the copy is stopped. Batches
        under way are finished.
        """
        options = self.context.options
        with ThreadPoolExecutor(options.workers, "copy") as pool:
            workers = [pool.submit(self._work) for _ in range(options.workers)]
            try:
                self._run(meanwhile, every)
            finally:
                self._ended = True
                for _ in workers:
                    self._line.put(None)
        with self._changed:
            # Nothing that came until the end is left, however new it is, as far as it was seen.
            self._level = self._level and self._busy == 0
        for task in self._tasks:
            if task.copy is not None:
                task.copy.close()

    def _run(self, meanwhile: Callable[[bool], None], every: float) -> None:
        """Wait for the end, look at parked partitions, and note whether it was level then."""
        level_at, look_at = -math.inf, time.monotonic() + PARKED_SECONDS
        while not self.context.stop.is_set():
            if self._waited(every):
                self._level = True
                return
            if level := self.is_level:
                level_at = time.monotonic()
            meanwhile(level)
            if (began := time.monotonic()) >= look_at:
                self._look_at_parked()
                took = time.monotonic() - began
                look_at = began + max(PARKED_SECONDS, took * PARKED_SHARE)
        if time.monotonic() - level_at <= LEVEL_SECONDS and self._look_at_parked():
            with self._changed:
                self._level = self._changed.wait_for(lambda: self._busy == 0, END_SECONDS)

    @property
    def failures(self) -> list[RouterError]:
        """Return why partitions are not copied on."""
        with self._changed:
            return [task.failure for task in self._tasks if task.failure is not None]

    @property
    def level(self) -> bool:
        """Return whether everything was copied when it ended, and no partition failed."""
        return self._level and not self.failures

    @property
    def is_level(self) -> bool:
        """Return whether all is copied that the source held a moment ago, but what failed."""
        now = time.monotonic()
        with self._changed:
            return all(
                task.state in {TaskState.WAITING, TaskState.ENDED}
                or (task.copy is not None and now - task.copy.level_at <= LEVEL_SECONDS)
                for task in self._tasks
            )

    def _waited(self, every: float) -> bool:
        """Wait for so long; return whether all partitions were read to their ends meanwhile."""
        if self.context.options.follow:
            self.context.stop.wait(every)
            return False
        with self._changed:
            return self._changed.wait_for(lambda: self._busy == 0, every)

    def woken(self, task: _Task) -> None:
        """Put a partition in line, as something came for it."""
        with self._changed:
            if task.state is TaskState.RUNNING:
                task.state = TaskState.WOKEN
            if task.state is not TaskState.WAITING:
                return
            task.state = TaskState.QUEUED
            self._busy += 1
        self._line.put(task)

    def _look_at_parked(self) -> bool:
        """Put parked partitions in line that end elsewhere; return whether all ends are known."""
        with self._changed:
            parked = self._parked()
        for topic, tasks in parked.items():
            try:
                stats = self.context.source.describe_topic(topic, self.context.options.timeout)
            except TopicNotFoundError:
                ends = {}  # reading finds that it is gone
            except RouterError:
                return False
            else:
                ends = {one.partition: (one.ledger, one.next_entry) for one in stats.partitions}
            for partition, task in tasks.items():
                if (end := ends.get(partition)) is None or end != task.end:
                    task.end = end
                    self.woken(task)
        return True

    def _parked(self) -> dict[TopicName, dict[int, _Task]]:
        """Return what waits without a reader, by topic and partition."""
        found: dict[TopicName, dict[int, _Task]] = {}
        for task in self._tasks:
            copy = task.copy
            if task.state is TaskState.WAITING and copy is not None and not copy.is_open:
                found.setdefault(copy.topic.source, {})[copy.partition] = task
        return found

    def _work(self) -> None:
        while (task := self._line.get()) is not None:
            if self._ended or task.copy is None:
                continue
            with self._changed:
                task.state, failure = TaskState.RUNNING, task.failure
            more = False
            try:
                more = failure is None and task.copy.turn()
            except StoppedError:
                continue  # in flight is a batch that only the next run may settle: no more of it
            except SourceGoneError:
                task.gone = True
            except RouterError as error:
                failure = error
            except Exception as error:  # noqa: BLE001 - the thread's rim: the partition fails
                _log.exception("copying failed", topic=str(task.copy.topic.source))
                failure = RouterError(f"copying failed: {type(error).__name__}")
            self._after(task, task.copy, failure, more=more)

    def _after(
        self, task: _Task, copy: PartitionCopy, failure: RouterError | None, *, more: bool
    ) -> None:
        """Put a partition in line again, or have it wait, or end."""
        follow = self.context.options.follow and not task.gone
        with self._changed:
            failure = failure or task.failure
        if task.gone:
            name = copy.topic.source.local
            self.context.figures.notify(f"gone {name}", f"topic {name} was deleted at the source")
        if failure is not None:
            self.context.figures.notify(f"failure {failure}", f"{failure}")
        if failure is not None or (not more and (not follow or self._has_too_many())):
            copy.close()
        with self._changed:
            again = failure is None and (more or task.state is TaskState.WOKEN)
            if again and (more or follow):
                task.state = TaskState.QUEUED
            else:
                ends = failure is not None or not follow
                task.state = TaskState.ENDED if ends else TaskState.WAITING
                task.failure = failure
                self._busy -= 1
                again = False
            self._changed.notify_all()
        if again:
            self._line.put(task)

    def _has_too_many(self) -> bool:
        if len(self._tasks) <= MAX_WAITING_READERS:
            return False
        with self._changed:
            waiting = sum(task.state is TaskState.WAITING for task in self._tasks)
        return waiting >= MAX_WAITING_READERS
