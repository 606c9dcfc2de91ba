"""The brokers of one Kafka: who leads a partition, who coordinates a group, connections to them.

Theory of operation. What is known is a cache that answers correct: leaders and coordinators are
asked for when they are first needed and forgotten when a broker says that it is not the one, or
cannot be reached. `persist` repeats an attempt while failures may pass, with growing pauses, until
the caller's deadline; when no broker at all takes connections it gives up after a moment, so that a
Kafka that is down costs its callers `PATIENCE` and no more.

Connections are lent to one request at a time and kept for the next; at most `MOST` requests a
broker are under way. The alternative, one connection a broker for everybody, is slower by the sum
of all answers before one's own.

One lock guards the caches and is never held over I/O.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import BoundedSemaphore, Lock
from typing import Any, Final, TypeVar

from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from router.backends.kafka.address import Access
from router.backends.kafka.connection import Connection
from router.backends.kafka.failures import (
    UNKNOWN_TOPIC,
    CodeError,
    LateError,
    LostError,
    NobodyError,
    check,
    told,
)
from router.errors import BackendUnavailableError

T = TypeVar("T")
Host = tuple[str, int]

MOST: Final = 32
IDLE: Final = 32  # with fewer, polls at once open and close connections all the time
PATIENCE: Final = 2.0
ONE_TRY: Final = 5.0
FIRST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 0.5
MOST_KNOWN: Final = 20_000
GROUP: Final = 0
TRANSACTION: Final = 1


class Cluster:
    """Sends requests to the brokers they belong to; calls may be made from many threads."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._lock = Lock()
        self._hosts: dict[int, Host] = {}
        self._leaders: dict[str, dict[int, int]] = {}
        self._topic_ids: dict[str, str] = {}
        self._coordinators: dict[tuple[int, str], int] = {}
        self._idle: defaultdict[Host, list[Connection]] = defaultdict(list)
        self._turns: dict[Host, BoundedSemaphore] = {}
        self._closed = False

    def __str__(self) -> str:
        return str(self._access)

    def persist(self, attempt: Callable[[], T], deadline: float) -> T:
        """Return what the attempt returns, repeated while its failure may pass.

        Raises what `told` makes of the last failure.
        """
        pause, patience = FIRST_PAUSE, time.monotonic() + PATIENCE
        while True:
            try:
                return attempt()
            except CodeError as error:
                if not error.retriable:
                    raise told(error) from error
                failure: LostError | LateError | CodeError = error
            except (LostError, LateError) as error:
                failure = error
            end = min(deadline, patience) if isinstance(failure, NobodyError) else deadline
            now = time.monotonic()
            if now + pause >= end:
                raise told(failure) from failure
            time.sleep(pause)
            pause = min(LONGEST_PAUSE, pause * 2)

    def ask(self, request: Any, deadline: float, node: int | None = None) -> Any:
        """Send a request to a broker, None: any; return its answer.

        Raises LostError, LateError, NobodyError.
        """
        if node is None:
            return self._ask_any(request, deadline)
        with self._lock:
            host = self._hosts.get(node)
        if host is None:
            self.metadata(None, deadline)
            with self._lock:
                host = self._hosts.get(node)
        if host is None:
            raise LostError(f"broker {node} is not there")
        return self._ask(host, request, deadline)

    def _ask_any(self, request: Any, deadline: float) -> Any:
        with self._lock:
            known = list(self._hosts.values())
        random.shuffle(known)
        hosts = [*known, *(host for host in self._access.hosts if host not in known)]
        failure: LostError | LateError | None = None
        for host in hosts:
            try:
                return self._ask(host, request, min(deadline, time.monotonic() + ONE_TRY))
            except (LostError, LateError) as error:
                failure = error
            if time.monotonic() >= deadline:
                break
        if isinstance(failure, LateError):
            raise failure
        raise NobodyError(str(failure)) from failure

    def _ask(self, host: Host, request: Any, deadline: float) -> Any:
        turn = self._turn(host)
        if not turn.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise LateError(f"{host[0]}:{host[1]} is busy", sent=False)
        try:
            with self._lent(host, deadline) as connection:
                return connection.ask(request, deadline)
        finally:
            turn.release()

    @contextmanager
    def lent(self, node: int, deadline: float) -> Iterator[Connection]:
        """Lend a connection to a broker, beside those that `ask` uses; raise LostError."""
        with self._lock:
            host = self._hosts.get(node)
        if host is None:
            raise LostError(f"broker {node} is not there")
        with self._lent(host, deadline) as connection:
            yield connection

    @contextmanager
    def _lent(self, host: Host, deadline: float) -> Iterator[Connection]:
        connection = self._kept(host) or Connection.open(*host, self._access, deadline)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        with self._lock:
            kept = self._idle[host]
            if not self._closed and len(kept) < IDLE:
                kept.append(connection)
                return
        connection.close()

    def _kept(self, host: Host) -> Connection | None:
        while True:
            with self._lock:
                if self._closed:
                    raise BackendUnavailableError("the backend is closed")
                kept = self._idle[host]
                connection = kept.pop() if kept else None
            if connection is None or connection.usable():
                return connection
            connection.close()

    def _turn(self, host: Host) -> BoundedSemaphore:
        with self._lock:
            return self._turns.setdefault(host, BoundedSemaphore(MOST))

    def metadata(
        self, topics: list[str] | None, deadline: float, *, all_topics: bool = False
    ) -> Any:
        """Ask for brokers and these topics, remember the answer, and return it.

        Never makes a topic. Raises LostError, LateError.
        """
        wanted: list[Any] | None = [
            MetadataRequest.MetadataRequestTopic(name=name) for name in topics or ()
        ]
        answer = self.ask(
            MetadataRequest(topics=None if all_topics else wanted, allow_auto_topic_creation=False),
            deadline,
        )
        with self._lock:
            if answer.brokers:
                self._hosts = {b.node_id: (b.host, b.port) for b in answer.brokers}
            if len(self._leaders) > MOST_KNOWN:
                self._leaders.clear()
                self._topic_ids.clear()
            for topic in () if all_topics else answer.topics:
                if topic.error_code:
                    self._leaders.pop(topic.name, None)
                    self._topic_ids.pop(topic.name, None)
                    continue
                if topic.topic_id is not None and topic.topic_id.int:
                    self._topic_ids[topic.name] = str(topic.topic_id)
                self._leaders[topic.name] = {
                    p.partition_index: p.leader_id for p in topic.partitions if p.leader_id >= 0
                }
        return answer

    def topic(self, name: str, deadline: float) -> Any:
        """Return what the metadata says of one topic; raise CodeError, LostError, LateError."""
        (found,) = self.metadata([name], deadline).topics
        check(found.error_code, f"topic {name}")
        return found

    def partitions(self, name: str, deadline: float) -> int:
        """Return how many partitions a topic has, as it is now."""
        return len(self.topic(name, deadline).partitions)

    def topic_id(self, name: str) -> str | None:
        """Return a topic's id as the last answer about the topic had it; None: it had none."""
        with self._lock:
            return self._topic_ids.get(name)

    def leader(self, topic: str, partition: int, deadline: float) -> int:
        """Return the broker that leads a partition; raise CodeError, LostError, LateError."""
        with self._lock:
            found = self._leaders.get(topic, {}).get(partition)
        if found is not None:
            return found
        described = self.topic(topic, deadline)
        for known in described.partitions:
            if known.partition_index == partition:
                check(known.error_code, f"topic {topic}, partition {partition}")
                return int(known.leader_id)
        raise CodeError(UNKNOWN_TOPIC, f"topic {topic} has no partition {partition}")

    def forget(self, topic: str) -> None:
        """Ask for a topic's leaders the next time."""
        with self._lock:
            self._leaders.pop(topic, None)

    def check(self, topic: str, code: int, about: str, deadline: float) -> None:
        """Raise unless a partition's code says that all went well; forget the leaders then."""
        if not code:
            return
        self.forget(topic)
        if code == UNKNOWN_TOPIC:
            # A broker may not have heard of a new topic or leader yet: is it really not there?
            self.topic(topic, deadline)
            raise LostError(f"{about}: the partition is not there yet")
        raise CodeError(code, about)

    def brokers(self, deadline: float) -> list[int]:
        """Return the ids of all brokers."""
        self.metadata(None, deadline)
        with self._lock:
            return sorted(self._hosts)

    def ask_controller(self, request: Any, deadline: float) -> Any:
        """Send a request to the controller."""
        return self.ask(request, deadline, self.metadata(None, deadline).controller_id)

    def ask_leader(self, topic: str, partition: int, request: Any, deadline: float) -> Any:
        """Send a request to the leader of a partition; who cannot be reached is forgotten."""
        try:
            return self.ask(request, deadline, self.leader(topic, partition, deadline))
        except (LostError, LateError):
            self.forget(topic)
            raise

    def ask_coordinator(self, kind: int, key: str, request: Any, deadline: float) -> Any:
        """Send a request to the coordinator of a group or transaction."""
        try:
            return self.ask(request, deadline, self._coordinator(kind, key, deadline))
        except (LostError, LateError):
            self.forget_coordinator(kind, key)
            raise

    def _coordinator(self, kind: int, key: str, deadline: float) -> int:
        return self.coordinators(kind, [key], deadline)[key]

    def coordinators(self, kind: int, keys: Sequence[str], deadline: float) -> dict[str, int]:
        """Return the coordinators of groups or transactions."""
        with self._lock:
            known = {key: self._coordinators.get((kind, key)) for key in keys}
        found = {key: node for key, node in known.items() if node is not None}
        missing = [key for key in keys if key not in found]
        if not missing:
            return found
        request = FindCoordinatorRequest(
            key_type=kind, coordinator_keys=missing, min_version=4, max_version=4
        )
        for answer in self.ask(request, deadline).coordinators:
            check(answer.error_code, f"coordinator of {answer.key}", answer.error_message)
            found[answer.key] = answer.node_id
            with self._lock:
                self._hosts.setdefault(answer.node_id, (answer.host, answer.port))
        with self._lock:
            if len(self._coordinators) > MOST_KNOWN:
                self._coordinators.clear()
            self._coordinators.update({(kind, key): found[key] for key in missing})
        return found

    def forget_coordinator(self, kind: int, key: str) -> None:
        """Ask for the coordinator the next time."""
        with self._lock:
            self._coordinators.pop((kind, key), None)

    def close(self) -> None:
        """End the connections that nobody uses, and those in use when they come back."""
        with self._lock:
            self._closed = True
            kept = [connection for idle in self._idle.values() for connection in idle]
            self._idle.clear()
        for connection in kept:
            connection.close()
