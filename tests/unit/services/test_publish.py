"""Publishing: parting, joining, limits and repeats."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.backends import Batch, Receipt, Start
from router.backends.memory import MemoryBackend
from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    MessageTooLargeError,
    PartialPublishError,
    PublishRefusedError,
    RouterError,
    SettingError,
    TopicNotFoundError,
)
from router.metrics import Metrics
from router.model import Grant, Message, Principal, Subscription, TopicInfo, TopicName
from router.node.memory import MemoryRegistry
from router.services.batches import ENTRY_LIMITS, PublishBatch
from router.services.partitioning import partition_of
from router.services.publish import Publisher, PublishOptions, PublishResult
from router.services.shared_secret import RequestNames
from router.services.topic_metadata import TopicMetadataCache
from tests.processes import ManualClock

TOPIC = TopicName.parse("t")
ALICE = Principal("alice")
PATIENCE = 20

messages = st.lists(
    st.builds(Message, st.binary(max_size=20), st.none() | st.binary(min_size=1, max_size=3)),
    min_size=1,
    max_size=30,
)


class Recorded(MemoryBackend):
    """Keeps the batches; publishes wait at a gate or fail, when told to."""

    def __init__(self) -> None:
        super().__init__(auto_create=False)
        self.batches: list[Batch] = []
        self.entered = threading.Semaphore(0)
        self.gate: threading.Semaphore | None = None
        self.failures: list[BaseException | None] = []
        self.room: int | None = None

    def publish(self, batch: Batch, timeout: float) -> Receipt:
        self.batches.append(batch)
        self.entered.release()
        if self.gate is not None:
            assert self.gate.acquire(timeout=PATIENCE)
        if self.failures and (failure := self.failures.pop(0)) is not None:
            raise failure
        if self.room is not None and len(batch.messages) > self.room:
            return self._store_some(batch, self.room, timeout)
        receipt = super().publish(batch, timeout)
        if self.room is not None:
            self.room -= len(batch.messages)
        return receipt

    def _store_some(self, batch: Batch, room: int, timeout: float) -> Receipt:
        """Store the first messages and fail, as Kafka does with an append of several batches."""
        self.room = 0
        failure = BackendTimeoutError("no room")
        if not room:
            raise failure
        some = Batch(batch.topic, batch.partition, batch.messages[:room])
        super().publish(some, timeout)
        raise PartialPublishError(str(failure), stored=room) from failure

    def kept(self) -> list[bytes]:
        """Return the values that are stored in partition -1."""
        group = Subscription(TOPIC, "all")
        self.subscribe(group, Start.EARLIEST, 1)
        found = self.consume(Grant(group, -1, 1), Silent(), 1).receive(100_000, 1 << 30, 1)
        return [stored.message.value for stored in found]


class Silent:
    """A mailbox that nobody waits for."""

    def wake(self) -> None:
        pass


@dataclass
class Bench:
    """A publisher on a topic."""

    partitions: int = 0
    timeout: float = PATIENCE
    max_message: int = 1_000_000
    auto_create: bool = False
    clock: ManualClock = field(default_factory=ManualClock)
    backend: Recorded = field(default_factory=Recorded)

    def __post_init__(self) -> None:
        if not self.auto_create:
            self.backend.create_topic(TopicInfo(TOPIC, self.partitions), 1)
        self.metrics = Metrics()
        self.topics = TopicMetadataCache(self.backend, self.partitions, 1, self.clock)
        options = PublishOptions(self.max_message, self.timeout, self.auto_create)
        names = RequestNames(MemoryRegistry(), 1)
        self.publisher = Publisher(
            self.backend, self.topics, names, options, self.metrics, self.clock
        )

    def publish(
        self, sent: list[Message], key: str | None = None, who: Principal = ALICE
    ) -> PublishResult:
        return self.publisher.publish(TOPIC, sent, who, key)

    def stored(self) -> dict[int, list[Message]]:
        found: dict[int, list[Message]] = {}
        for batch in self.backend.batches:
            found.setdefault(batch.partition, []).extend(batch.messages)
        return found


@pytest.mark.slow
@given(sent=messages, partitions=st.integers(0, 5))
def test_messages_are_all_stored_in_order_by_key(sent: list[Message], partitions: int) -> None:
    bench = Bench(partitions)
    assert bench.publish(sent) == PublishResult(len(sent))
    stored = bench.stored()
    assert sum(map(len, stored.values())) == len(sent)
    for key in {message.key for message in sent}:
        [partition] = [p for p, kept in stored.items() if any(m.key == key for m in kept)]
        assert [m for m in stored[partition] if m.key == key] == [m for m in sent if m.key == key]
        if key is not None:
            assert partition == partition_of(key, partitions)


def test_messages_without_key_take_turns_by_request() -> None:
    bench = Bench(3)
    for _ in range(6):
        bench.publish([Message(b"a"), Message(b"b")])
    partitions = [batch.partition for batch in bench.backend.batches]
    assert sorted(partitions[:3]) == [0, 1, 2]
    assert partitions[3:] == partitions[:3]
    assert all(len(batch.messages) == 2 for batch in bench.backend.batches)


def test_no_messages_are_no_publish() -> None:
    bench = Bench()
    assert bench.publish([]) == PublishResult(0)
    assert bench.backend.batches == []


def test_message_over_the_limit_refuses_all() -> None:
    bench = Bench(max_message=10)
    with pytest.raises(MessageTooLargeError, match="Message 2 of 2 has 11 bytes, the limit is 10"):
        bench.publish([Message(b"x" * 10), Message(b"x" * 8, b"key")])
    assert bench.backend.batches == []


def test_message_limit_must_fit_into_an_entry() -> None:
    with pytest.raises(SettingError):
        PublishOptions(ENTRY_LIMITS.max_bytes + 1, 1, True)


@settings(max_examples=20)
@given(sizes=st.lists(st.integers(0, 999_000), min_size=1, max_size=20))
def test_large_requests_are_split_into_entries_that_fit(sizes: list[int]) -> None:
    bench = Bench()
    sent = [Message(bytes(size), b"key") for size in sizes]
    assert bench.publish(sent).count == len(sent)
    assert [m for batch in bench.backend.batches for m in batch.messages] == sent
    for batch in bench.backend.batches:
        assert sum(m.size() for m in batch.messages) <= ENTRY_LIMITS.max_bytes


def test_many_messages_are_split_into_entries_that_fit() -> None:
    bench = Bench()
    bench.publish([Message(b"")] * (2 * ENTRY_LIMITS.max_messages + 1))
    assert [len(b.messages) for b in bench.backend.batches] == [
        ENTRY_LIMITS.max_messages,
        ENTRY_LIMITS.max_messages,
        1,
    ]


@pytest.mark.parametrize(("more", "batches"), [(0, 1), (1, 2)])
def test_a_request_is_one_entry_as_long_as_it_fits(more: int, batches: int) -> None:
    bench = Bench()
    each = 1_000_000
    last = ENTRY_LIMITS.max_bytes - PublishBatch([Message(bytes(each))] * 4 + [Message(b"")]).weight
    bench.publish([Message(bytes(each))] * 4 + [Message(bytes(last + more))])
    assert len(bench.backend.batches) == batches
    bench.backend.batches.clear()
    bench.publish([Message(bytes(each))] * 4 + [Message(bytes(last + more)), Message(b"")])
    assert [len(batch.messages) for batch in bench.backend.batches] == [5 - more, 1 + more]


def test_keys_count_twice_in_what_fits_into_an_entry() -> None:
    """A key that is no UTF-8 is stored in base64."""
    bench = Bench()
    sent = [Message(b"", b"\xff" * 100_000)] * 30
    assert bench.publish(sent).count == len(sent)
    assert [len(batch.messages) for batch in bench.backend.batches] == [20, 10]


def test_topic_is_created_when_allowed() -> None:
    bench = Bench(2, auto_create=True)
    bench.publish([Message(b"x")])
    assert bench.backend.partitions(TOPIC, 1) == 2


def test_topic_that_changed_is_looked_up_again() -> None:
    bench = Bench(4)
    bench.publish([Message(b"x")])
    bench.backend.delete_topic(TOPIC, 1)
    bench.backend.create_topic(TopicInfo(TOPIC), 1)
    assert bench.publish([Message(b"x")]) == PublishResult(1)
    bench.backend.delete_topic(TOPIC, 1)
    bench.backend.create_topic(TopicInfo(TOPIC, 2), 1)
    assert bench.publish([Message(b"x")]) == PublishResult(1)
    assert bench.backend.batches[-1].partition in {0, 1}


def test_topic_that_is_gone_is_told() -> None:
    bench = Bench()
    bench.publish([Message(b"x")])
    bench.backend.delete_topic(TOPIC, 1)
    with pytest.raises(TopicNotFoundError):
        bench.publish([Message(b"x")])


def test_failure_after_some_are_stored_tells_how_many() -> None:
    bench = Bench()
    bench.backend.failures = [None, PublishRefusedError("no room")]
    with pytest.raises(PartialPublishError, match=r"published 10000 .* no room") as e:
        bench.publish([Message(b"")] * (ENTRY_LIMITS.max_messages + 5))
    assert e.value.stored == ENTRY_LIMITS.max_messages


def wait_for_queue(bench: Bench, length: int) -> None:
    for _ in range(PATIENCE * 1000):
        if any(
            len(lane.waiting) == length for lane in bench.publisher._appender._accumulators.values()
        ):
            return
        threading.Event().wait(0.001)
    raise AssertionError("the requests did not queue")


def test_requests_that_arrive_meanwhile_are_joined_into_one_append() -> None:
    bench = Bench()
    gate = bench.backend.gate = threading.Semaphore(0)
    with ThreadPoolExecutor(20) as pool:
        first = pool.submit(bench.publish, [Message(b"first")])
        assert bench.backend.entered.acquire(timeout=PATIENCE)
        others = [pool.submit(bench.publish, [Message(b"%d" % n)] * 2) for n in range(10)]
        wait_for_queue(bench, 10)
        gate.release(2)
        assert first.result(PATIENCE) == PublishResult(1)
        assert [other.result(PATIENCE) for other in others] == [PublishResult(2)] * 10
    assert [len(batch.messages) for batch in bench.backend.batches] == [1, 20]
    joined = bench.backend.batches[1].messages
    assert all(a == b for a, b in zip(joined[::2], joined[1::2], strict=True))


def test_joined_appends_stay_within_an_entry() -> None:
    bench = Bench()
    gate = bench.backend.gate = threading.Semaphore(0)
    with ThreadPoolExecutor(8) as pool:
        tasks = [pool.submit(bench.publish, [Message(b"")])]
        assert bench.backend.entered.acquire(timeout=PATIENCE)
        tasks += [pool.submit(bench.publish, [Message(bytes(900_000))]) for _ in range(6)]
        wait_for_queue(bench, 6)
        gate.release(20)
        assert [task.result(PATIENCE) for task in tasks] == [PublishResult(1)] * 7
    assert [len(batch.messages) for batch in bench.backend.batches] == [1, 4, 2]


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (PublishRefusedError("no room"), PublishRefusedError),
        (BackendTimeoutError("slow"), BackendTimeoutError),
        (ZeroDivisionError(), BackendTimeoutError),
    ],
)
def test_failure_of_a_joined_append_is_told_to_all(
    failure: Exception, told: type[Exception]
) -> None:
    bench = Bench()
    gate = bench.backend.gate = threading.Semaphore(0)
    bench.backend.failures = [None, failure]
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(bench.publish, [Message(b"first")])
        assert bench.backend.entered.acquire(timeout=PATIENCE)
        others = [pool.submit(bench.publish, [Message(b"x")]) for _ in range(3)]
        wait_for_queue(bench, 3)
        gate.release(9)
        assert first.result(PATIENCE) == PublishResult(1)
        raised = [other.exception(PATIENCE) for other in others]
    assert sum(isinstance(error, told) for error in raised) >= 2
    assert all(isinstance(error, told | type(failure)) for error in raised)
    assert len({id(error) for error in raised}) == 3
    assert bench.publish([Message(b"after")]) == PublishResult(1)


class Sent(list[Message]):
    """Messages of which can be told whether they are still there."""


class Failing(Recorded):
    """Takes the first append, fails all that follow; one with room for some stores these."""

    def publish(self, batch: Batch, timeout: float) -> Receipt:
        self.batches.clear()
        if self.room is None and len(batch.messages) > 1:
            raise BackendUnavailableError("gone")
        return super().publish(batch, timeout)


@pytest.mark.slow
@pytest.mark.parametrize("room", [None, 2])
def test_messages_of_failed_requests_go_without_the_garbage_collector(room: int | None) -> None:
    bench = Bench(backend=Failing())
    gate = bench.backend.gate = threading.Semaphore(0)
    watched: list[weakref.ref[Sent]] = []

    def publish() -> str:
        sent = Sent([Message(b"x")] * 2)
        watched.append(weakref.ref(sent))
        try:
            bench.publish(sent)
        except RouterError as error:
            return error.code
        return ""

    gc.collect()
    gc.disable()
    try:
        with ThreadPoolExecutor(4) as pool:
            first = pool.submit(bench.publish, [Message(b"first")])
            assert bench.backend.entered.acquire(timeout=PATIENCE)
            others = [pool.submit(publish) for _ in range(3)]
            wait_for_queue(bench, 3)
            bench.backend.room = room
            gate.release(9)
            assert first.result(PATIENCE) == PublishResult(1)
            told = [other.result(PATIENCE) for other in others]
        bench.backend.batches.clear()
        assert [ref() for ref in watched] == [None] * 3
    finally:
        gc.enable()
    assert all(told), told


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5), room=st.integers(0, 26))
def test_each_joined_request_is_told_what_is_stored_of_its_own(sizes: list[int], room: int) -> None:
    bench = Bench()
    gate = bench.backend.gate = threading.Semaphore(0)
    with ThreadPoolExecutor(len(sizes) + 1) as pool:
        first = pool.submit(bench.publish, [Message(b"first")])
        assert bench.backend.entered.acquire(timeout=PATIENCE)
        tasks = []
        for number, size in enumerate(sizes):
            sent = [Message(b"%d" % number)] * size
            tasks.append(pool.submit(bench.publish, sent))
            wait_for_queue(bench, number + 1)
        bench.backend.room = 1 + room
        gate.release(2)
        assert first.result(PATIENCE) == PublishResult(1)
        ends = [task.exception(PATIENCE) for task in tasks]
    kept = bench.backend.kept()
    assert len(kept) == 1 + min(room, sum(sizes))
    for number, (size, end) in enumerate(zip(sizes, ends, strict=True)):
        stored = kept.count(b"%d" % number)
        if isinstance(end, PartialPublishError):
            assert end.stored == stored
            assert 0 < stored < size
            assert f"published {stored} number" in str(end)
        else:
            assert stored == (size if end is None else 0)
            assert end is None or type(end) is BackendTimeoutError
    assert bench.metrics.drain().counters[0] == ("router_published_messages_total", (), len(kept))


@settings(max_examples=30, deadline=None)
@given(sent=messages, partitions=st.integers(0, 4), room=st.integers(0, 31))
def test_a_failure_in_any_part_counts_all_that_is_stored(
    sent: list[Message], partitions: int, room: int
) -> None:
    bench = Bench(partitions)
    bench.backend.room = room
    if room >= len(sent):
        assert bench.publish(sent) == PublishResult(len(sent))
    elif not room:
        with pytest.raises(BackendTimeoutError):
            bench.publish(sent)
    else:
        with pytest.raises(PartialPublishError) as refused:
            bench.publish(sent)
        assert refused.value.stored == room
    stored = bench.backend.describe_topic(TOPIC, 1).partitions
    assert sum(partition.messages for partition in stored) == min(room, len(sent))


def test_requests_that_waited_too_long_are_left_out_of_the_next_append() -> None:
    bench = Bench(timeout=10)
    gate = bench.backend.gate = threading.Semaphore(0)
    with ThreadPoolExecutor(4) as pool:
        tasks = [pool.submit(bench.publish, [Message(b"first")])]
        assert bench.backend.entered.acquire(timeout=PATIENCE)
        for length in (1, 2):
            tasks.append(pool.submit(bench.publish, [Message(b"late")]))
            wait_for_queue(bench, length)
        bench.clock.advance(9)
        tasks.append(pool.submit(bench.publish, [Message(b"in time")]))
        wait_for_queue(bench, 3)
        bench.clock.advance(1)
        gate.release(9)
        ends = [task.exception(PATIENCE) for task in tasks]
    assert [type(end) for end in ends] == [
        type(None),
        BackendTimeoutError,
        BackendTimeoutError,
        type(None),
    ]
    assert all(type(end) is BackendTimeoutError for end in ends if end)
    stored = [message.value for batch in bench.backend.batches for message in batch.messages]
    assert stored == [b"first", b"in time"]


def test_requests_behind_one_that_leads_are_left_out_when_late() -> None:
    bench = Bench(timeout=10)
    gate = bench.backend.gate = threading.Semaphore(0)
    with ThreadPoolExecutor(4) as pool:
        tasks = [pool.submit(bench.publish, [Message(b"first")])]
        assert bench.backend.entered.acquire(timeout=PATIENCE)
        bench.clock.advance(5)
        tasks.append(pool.submit(bench.publish, [Message(b"leads")]))
        wait_for_queue(bench, 1)
        bench.clock.advance(-5)
        tasks.append(pool.submit(bench.publish, [Message(b"late")]))
        wait_for_queue(bench, 2)
        bench.clock.advance(10)
        gate.release(9)
        ends = [task.exception(PATIENCE) for task in tasks]
    assert [type(end) for end in ends] == [type(None), type(None), BackendTimeoutError]


def test_lanes_are_gone_when_nothing_is_under_way() -> None:
    bench = Bench(3)
    bench.publish([Message(b"x", b"%d" % n) for n in range(9)])
    assert bench.publisher._appender._accumulators == {}


@pytest.mark.slow
@given(sent=messages, partitions=st.integers(0, 4))
def test_repeat_with_the_same_key_answers_the_first_result(
    sent: list[Message], partitions: int
) -> None:
    bench = Bench(partitions)
    first = bench.publish(sent, "key")
    assert first == PublishResult(len(sent))
    assert bench.publish(sent, "key") == PublishResult(len(sent), replayed=True)
    stored = bench.backend.describe_topic(TOPIC, 1).partitions
    assert sum(partition.messages for partition in stored) == len(sent)


def test_repeat_of_a_partial_publish_stores_the_rest() -> None:
    bench = Bench()
    sent = [Message(b"%d" % n) for n in range(ENTRY_LIMITS.max_messages + 3)]
    bench.backend.failures = [None, BackendUnavailableError()]
    with pytest.raises(PartialPublishError):
        bench.publish(sent, "key")
    assert bench.publish(sent, "key") == PublishResult(len(sent))
    [partition] = bench.backend.describe_topic(TOPIC, 1).partitions
    assert partition.messages == len(sent)


def test_idempotency_keys_are_each_publishers_own() -> None:
    bench = Bench()
    bench.publish([Message(b"x")], "key")
    assert not bench.publish([Message(b"x")], "key", Principal("bob")).replayed
    assert not bench.publish([Message(b"x")], "other").replayed
    names = {batch.producer for batch in bench.backend.batches}
    assert len(names) == 3
    assert all(name and "alice" not in name and "key" not in name for name in names)


def test_published_messages_are_counted() -> None:
    bench = Bench()
    bench.publish([Message(b"abc"), Message(b"de")])
    assert bench.metrics.drain().counters == [
        ("router_published_messages_total", (), 2),
        ("router_published_bytes_total", (), 5),
    ]
