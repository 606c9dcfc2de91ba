"""A Kafka in memory, by the rules of the protocol: offsets of groups, records of partitions."""

from __future__ import annotations

import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from router.backends.kafka.apis import LIST_OFFSETS, OFFSET_COMMIT, OFFSET_FETCH, ApiRequest
from router.backends.kafka.cluster import GROUP, Cluster
from router.backends.kafka.connection import KafkaConnection
from router.backends.kafka.failures import KafkaConnectionLostError
from router.backends.kafka.offsets import COMMITTED_ONLY, CommittedOffset
from router.backends.kafka.options import KafkaConnectionOptions
from router.model import Message
from router.wire.kafka.record_messages import write_messages

Where = tuple[str, int]


class FakeKafka(Cluster):
    """One broker, whose topics are there once they have messages.

    `commits` holds what a group committed on a partition of a topic, `committed` counts them.
    `before_commit` is called ahead of each commit, `before_answer` of each answer to a fetch, after
    which a fetch that is called back has its answer still. `committed_together` has the number of
    commits that were sent at once, each time. Of `lost_answers` commits the answer is
    lost. `unmarked` says how many messages at the end of a partition readers do not see yet.
    """

    def __init__(self) -> None:
        super().__init__(KafkaConnectionOptions(()))
        self.commits: dict[tuple[str, str, int], CommittedOffset] = {}
        self.lost_answers = 0
        self.before_commit: Callable[[], None] = lambda: None
        self.before_answer: Callable[[], None] | None = None
        self.committed = 0
        self.committed_together: list[int] = []
        self.first: dict[Where, int] = defaultdict(int)
        self.unmarked: dict[Where, int] = defaultdict(int)
        self._batches: dict[Where, list[tuple[int, int, bytes]]] = defaultdict(list)
        self._changed = threading.Condition()
        self._is_settled: dict[str, bool] = {}
        """Whether the last look at what a group committed waited for open transactions."""

    def store(self, topic: str, *values: bytes, partition: int = 0, damaged: bool = False) -> None:
        """Store a batch of messages, with a byte changed if it shall be damaged."""
        data = write_messages([Message(value) for value in values], 0, (1, 0), 0)
        with self._changed:
            offset = self._end((topic, partition))
            struct.pack_into(">q", data, 0, offset)
            data[-1] ^= damaged
            end = offset + len(values)
            self._batches[topic, partition].append((offset, end, bytes(data)))
            self._changed.notify_all()

    def remove(self, topic: str, before: int, partition: int = 0) -> None:
        """Remove the messages before an offset, as retention does."""
        self.first[topic, partition] = before

    def commit_of(self, group: str, topic: str, partition: int = 0) -> CommittedOffset | None:
        """Return what a group committed."""
        return self.commits.get((group, topic, partition))

    def _end(self, where: Where) -> int:
        batches = self._batches[where]
        return batches[-1][1] if batches else 0

    def leader(self, topic: str, partition: int, deadline: float) -> int:
        """Return the one broker."""
        return 0

    def coordinators(self, kind: int, keys: Sequence[str], deadline: float) -> dict[str, int]:
        """Return the one broker."""
        return dict.fromkeys(keys, 0)

    def ask_coordinator(self, kind: int, key: str, request: ApiRequest, deadline: float) -> Any:
        """Answer what groups ask."""
        asked = request.message
        if request.api is OFFSET_FETCH:
            looked = dict.fromkeys((group.group_id for group in asked.groups), asked.require_stable)
            self._is_settled.update(looked)
            return SimpleNamespace(groups=[self._fetched(group) for group in asked.groups])
        assert request.api is OFFSET_COMMIT
        about = "a transaction may be about to commit another"
        assert self._is_settled.get(asked.group_id, True), about
        self.before_commit()
        for topic in asked.topics:
            for p in topic.partitions:
                where = asked.group_id, topic.name, p.partition_index
                self.commits[where] = CommittedOffset(p.committed_offset, p.committed_metadata)
                self.committed += 1
        if self.lost_answers:
            self.lost_answers -= 1
            raise KafkaConnectionLostError("reset", sent=True)
        return SimpleNamespace(topics=[])

    def _fetched(self, group: Any) -> Any:
        topics = []
        for topic in group.topics:
            found = []
            for index in topic.partition_indexes:
                commit = self.commits.get((group.group_id, topic.name, index))
                found.append(
                    SimpleNamespace(
                        partition_index=index,
                        error_code=0,
                        committed_offset=-1 if commit is None else commit.offset,
                        metadata=None if commit is None else commit.note,
                    )
                )
            topics.append(SimpleNamespace(name=topic.name, partitions=found))
        return SimpleNamespace(group_id=group.group_id, error_code=0, topics=topics)

    def ask_leader(self, topic: str, partition: int, request: ApiRequest, deadline: float) -> Any:
        """Answer where partitions begin and end."""
        assert request.api is LIST_OFFSETS
        topics = []
        for asked in request.message.topics:
            found = []
            for p in asked.partitions:
                where = asked.name, p.partition_index
                offset = self._end(where) if p.timestamp == -1 else self.first[where]
                if p.timestamp == -1 and request.message.isolation_level == COMMITTED_ONLY:
                    offset -= self.unmarked[where]
                found.append(
                    SimpleNamespace(partition_index=p.partition_index, error_code=0, offset=offset)
                )
            topics.append(SimpleNamespace(partitions=found))
        return SimpleNamespace(topics=topics)

    @contextmanager
    def lent(self, node: int, deadline: float) -> Iterator[KafkaConnection]:
        """Lend a connection that fetches."""
        yield FakeConnection(self)

    def fetch(self, request: Any, wanted: Callable[[], bool]) -> Any:
        """Answer a fetch when there is a batch, its time is over, or it is not wanted."""
        assert request.isolation_level == COMMITTED_ONLY, "what is not committed may be undone"
        (asked,) = request.topics
        (p,) = asked.partitions
        where, until = (asked.topic, p.partition), time.monotonic() + request.max_wait_ms / 1000
        with self._changed:
            while True:
                code = 0 if self.first[where] <= p.fetch_offset <= self._end(where) else 1
                data = next((b for _, end, b in self._batches[where] if end > p.fetch_offset), b"")
                left = until - time.monotonic()
                if code or data or left <= 0 or not wanted():
                    break
                self._changed.wait(left)
        found = SimpleNamespace(error_code=code, records=data, aborted_transactions=None)
        return SimpleNamespace(error_code=0, responses=[SimpleNamespace(partitions=[found])])

    def wake(self) -> None:
        """Have fetches look whether they are wanted still."""
        with self._changed:
            self._changed.notify_all()


class FakeConnection(KafkaConnection):
    """A connection of one reader, or of commits."""

    def __init__(self, kafka: FakeKafka) -> None:
        self._kafka = kafka
        self._aborted = False

    def ask(self, request: ApiRequest, deadline: float) -> Any:
        """Fetch."""
        found = self._kafka.fetch(request.message, lambda: not self._aborted)
        before, self._kafka.before_answer = self._kafka.before_answer, None
        if before is not None:
            before()
        elif self._aborted:
            raise KafkaConnectionLostError("called back", sent=True)
        return found

    def ask_all(self, requests: Sequence[ApiRequest], deadline: float) -> list[Any]:
        """Commit."""
        self._kafka.committed_together.append(len(requests))
        answer = self._kafka.ask_coordinator
        return [answer(GROUP, one.message.group_id, one, deadline) for one in requests]

    def abort(self) -> None:
        """End the fetch under way."""
        self._aborted = True
        self._kafka.wake()

    def close(self) -> None:
        """Do nothing."""
