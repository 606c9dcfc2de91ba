"""The brokers of one Kafka: leaders of partitions, coordinators of groups, connections to them.

Theory of operation. What is known is a cache that answers correct: leaders and coordinators are
asked for when they are first needed and forgotten when a broker says that it is not the one, or
cannot be reached. `persist` repeats an attempt while failures may pass, with growing pauses, until
the caller's deadline; when no broker at all takes connections it gives up after a moment, so that a
Kafka that is down costs its callers `UNREACHABLE_SECONDS` and no more.

Connections are lent to one request at a time and kept for the next; at most
`MAX_REQUESTS_PER_BROKER` requests a broker are under way. The alternative, one connection a broker
for all callers, is slower by the sum of all answers before the own one.

One lock guards the caches and is never held over I/O.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import BoundedSemaphore, Lock
from typing import Any, Final, TypeVar
from uuid import UUID

from router.backends.kafka.apis import FIND_COORDINATOR, METADATA, ApiRequest
from router.backends.kafka.connection import KafkaConnection
from router.backends.kafka.failures import (
    CodeError,
    KafkaConnectionLostError,
    KafkaCredentialsError,
    LateError,
    NoAnswerError,
    NoBrokerError,
    check,
    codes,
    router_error,
)
from router.backends.kafka.options import KafkaConnectionOptions
from router.clocks.backoff import Backoff
from router.errors import BackendUnavailableError
from router.wire.kafka.error_codes import ErrorCode

T = TypeVar("T")
Host = tuple[str, int]

MAX_REQUESTS_PER_BROKER: Final = 32
MAX_IDLE_CONNECTIONS: Final = 32
"""With fewer, polls at once open and close connections all the time."""
UNREACHABLE_SECONDS: Final = 2.0
MAX_TRY_SECONDS: Final = 5.0
MIN_PAUSE_SECONDS: Final = 0.02
MAX_PAUSE_SECONDS: Final = 0.5
MAX_CACHED: Final = 20_000
GROUP: Final = 0
TRANSACTION: Final = 1
_COORDINATOR_MOVED: Final = codes(
    "COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR"
)


class Cluster:
    """Sends requests to the brokers they belong to; calls may be made from many threads."""

    def __init__(self, access: KafkaConnectionOptions) -> None:
        self._access = access
        self._lock = Lock()
        self._hosts: dict[int, Host] = {}
        self._leaders: dict[str, dict[int, int]] = {}
        self._topic_ids: dict[str, str] = {}
        self._coordinators: dict[tuple[int, str], int] = {}
        self._idle: defaultdict[Host, list[KafkaConnection]] = defaultdict(list)
        self._turns: dict[Host, BoundedSemaphore] = {}
        self._closed = False

    def __str__(self) -> str:
        return str(self._access)

    def persist(self, attempt: Callable[[], T], deadline: float) -> T:
        """Return what the attempt returns, repeated while its failure may pass.

        Raises what `router_error` makes of the last failure.
        """
        pauses = Backoff(MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        unreachable_until = time.monotonic() + UNREACHABLE_SECONDS
        while True:
            try:
                return attempt()
            except CodeError as error:
                if not error.retriable:
                    raise router_error(error) from error
                failure: NoAnswerError | CodeError = error
            except KafkaCredentialsError as error:
                raise router_error(error) from error
            except NoAnswerError as error:
                failure = error
            end = (
                min(deadline, unreachable_until) if isinstance(failure, NoBrokerError) else deadline
            )
            if not pauses.sleep(end):
                raise router_error(failure) from failure

    def ask(self, request: ApiRequest, deadline: float, node: int | None = None) -> Any:
        """Send a request to a broker, None: any; return its answer.

        Raises LostError, LateError, NoBrokerError.
        """
        if node is None:
            return self._ask_any(request, deadline)
        return self._ask(self._host(node, deadline), request, deadline)

    def _host(self, node: int, deadline: float) -> Host:
        if node not in self._hosts:
            self.metadata(None, deadline)
        try:
            return self._hosts[node]
        except KeyError:
            raise KafkaConnectionLostError(f"broker {node} is not there") from None

    def _ask_any(self, request: ApiRequest, deadline: float) -> Any:
        with self._lock:
            known = list(self._hosts.values())
        random.shuffle(known)
        hosts = [*known, *(host for host in self._access.hosts if host not in known)]
        failure: NoAnswerError | None = None
        for host in hosts:
            try:
                return self._ask(host, request, min(deadline, time.monotonic() + MAX_TRY_SECONDS))
            except NoAnswerError as error:
                failure = error
            if time.monotonic() >= deadline:
                break
        if isinstance(failure, LateError | KafkaCredentialsError):
            raise failure
        raise NoBrokerError(str(failure)) from failure

    def _ask(self, host: Host, request: ApiRequest, deadline: float) -> Any:
        with self._lock:
            turn = self._turns.setdefault(host, BoundedSemaphore(MAX_REQUESTS_PER_BROKER))
        if not turn.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise LateError(f"{host[0]}:{host[1]} is busy")
        try:
            with self._lent(host, deadline) as connection:
                return connection.ask(request, deadline)
        finally:
            turn.release()

    @contextmanager
    def lent(self, node: int, deadline: float) -> Iterator[KafkaConnection]:
        """Lend a connection to a broker, beside those that `ask` uses; raise NoAnswerError."""
        with self._lent(self._host(node, deadline), deadline) as connection:
            yield connection

    @contextmanager
    def _lent(self, host: Host, deadline: float) -> Iterator[KafkaConnection]:
        connection = self._kept(host) or KafkaConnection.open(*host, self._access, deadline)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        with self._lock:
            kept = self._idle[host]
            if not self._closed and len(kept) < MAX_IDLE_CONNECTIONS:
                kept.append(connection)
                return
        connection.close()

    def _kept(self, host: Host) -> KafkaConnection | None:
        while True:
            with self._lock:
                if self._closed:
                    raise BackendUnavailableError("the backend is closed")
                kept = self._idle[host]
                connection = kept.pop() if kept else None
            if connection is None or connection.usable():
                return connection
            connection.close()

    def metadata(
        self,
        topics: list[str] | None,
        deadline: float,
        *,
        all_topics: bool = False,
        node: int | None = None,
    ) -> Any:
        """Ask a broker, None: any, for brokers and these topics, remember the answer, return it.

        Never makes a topic. Raises LostError, LateError.
        """
        named = None if all_topics else [{"name": name} for name in topics or ()]
        request = METADATA(topics=named, allow_auto_topic_creation=False)
        answer = self.ask(request, deadline, node)
        with self._lock:
            if answer.brokers:
                self._hosts = {b.node_id: (b.host, b.port) for b in answer.brokers}
            if len(self._leaders) > MAX_CACHED:
                self._leaders.clear()
                self._topic_ids.clear()
            for topic in () if all_topics else answer.topics:
                if topic.error_code:
                    self._leaders.pop(topic.name, None)
                    self._topic_ids.pop(topic.name, None)
                    continue
                if any(topic.topic_id):
                    self._topic_ids[topic.name] = shown_id(topic)
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
        raise CodeError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic} has no partition {partition}"
        )

    def forget(self, topic: str) -> None:
        """Ask for a topic's leaders the next time."""
        with self._lock:
            self._leaders.pop(topic, None)

    def check(self, topic: str, code: int, about: str, deadline: float) -> None:
        """Raise unless a partition's code says that all went well; forget the leaders then."""
        if not code:
            return
        self.forget(topic)
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            # A broker may not have heard of a new topic or leader yet: is it really not there?
            self.topic(topic, deadline)
            raise KafkaConnectionLostError(f"{about}: the partition is not there yet")
        raise CodeError(code, about)

    def brokers(self, deadline: float) -> list[int]:
        """Return the ids of all brokers."""
        self.metadata(None, deadline)
        with self._lock:
            return sorted(self._hosts)

    def ask_controller(self, request: ApiRequest, deadline: float) -> Any:
        """Send a request to the controller."""
        return self.ask(request, deadline, self.metadata(None, deadline).controller_id)

    def ask_leader(self, topic: str, partition: int, request: ApiRequest, deadline: float) -> Any:
        """Send a request to the leader of a partition; forget one that cannot be reached."""
        try:
            return self.ask(request, deadline, self.leader(topic, partition, deadline))
        except NoAnswerError:
            self.forget(topic)
            raise

    def ask_until_done(
        self,
        kind: int,
        key: str,
        request: ApiRequest,
        codes_of: Callable[[Any], Iterable[int]],
        deadline: float,
    ) -> Any:
        """Return a coordinator's answer in which all codes are 0; raise RouterError."""

        def attempt() -> Any:
            answer = self.ask_coordinator(kind, key, request, deadline)
            for code in codes_of(answer):
                self.check_coordinator(kind, key, code)
            return answer

        return self.persist(attempt, deadline)

    def ask_coordinator(self, kind: int, key: str, request: ApiRequest, deadline: float) -> Any:
        """Send a request to the coordinator of a group or transaction."""
        try:
            node = self.coordinators(kind, [key], deadline)[key]
            return self.ask(request, deadline, node)
        except NoAnswerError:
            self.forget_coordinator(kind, key)
            raise

    def check_coordinator(self, kind: int, key: str, code: int) -> None:
        """Raise CodeError unless the code is 0; forget a coordinator that moved."""
        if code in _COORDINATOR_MOVED:
            self.forget_coordinator(kind, key)
        check(code, f"{'transaction' if kind == TRANSACTION else 'group'} {key}")

    def coordinators(self, kind: int, keys: Sequence[str], deadline: float) -> dict[str, int]:
        """Return the coordinators of groups or transactions."""
        with self._lock:
            known = {key: self._coordinators.get((kind, key)) for key in keys}
        found = {key: node for key, node in known.items() if node is not None}
        missing = [key for key in keys if key not in found]
        if not missing:
            return found
        request = FIND_COORDINATOR(key_type=kind, coordinator_keys=missing)
        for answer in self.ask(request, deadline).coordinators:
            check(answer.error_code, f"coordinator of {answer.key}", answer.error_message)
            found[answer.key] = answer.node_id
            with self._lock:
                self._hosts.setdefault(answer.node_id, (answer.host, answer.port))
        with self._lock:
            if len(self._coordinators) > MAX_CACHED:
                self._coordinators.clear()
            self._coordinators.update({(kind, key): found[key] for key in missing})
        return found

    def forget_coordinator(self, kind: int, key: str) -> None:
        """Ask for the coordinator the next time."""
        with self._lock:
            self._coordinators.pop((kind, key), None)

    def close(self) -> None:
        """End the idle connections now, and those in use when they come back."""
        with self._lock:
            self._closed = True
            kept = [connection for idle in self._idle.values() for connection in idle]
            self._idle.clear()
        for connection in kept:
            connection.close()


def shown_id(topic: Any) -> str:
    """Return the id of a topic of a metadata answer as text."""
    return str(UUID(bytes=topic.topic_id))


def top_code(answer: Any) -> Iterable[int]:
    """Return the code of an answer that has one."""
    return (answer.error_code,)


def partition_codes(answer: Any) -> Iterable[int]:
    """Return the codes of an answer that has one for each partition."""
    return [p.error_code for topic in answer.topics for p in topic.partitions]
