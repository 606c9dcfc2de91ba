"""A partition's producer against a broker that loses requests, answers and its memory."""

from __future__ import annotations

import time
from collections import Counter
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch

from router.backends.kafka import cluster as cluster_module
from router.backends.kafka import producing
from router.backends.kafka.apis import ApiRequest
from router.backends.kafka.cluster import Cluster
from router.backends.kafka.failures import KafkaConnectionLostError, LateError
from router.backends.kafka.options import KafkaConnectionOptions
from router.backends.kafka.producing import MAX_SEQUENCE, KafkaProducers
from router.errors import BackendTimeoutError, BackendUnavailableError, OutcomeUnknownError
from router.model import Message

SOON = 0.05
WAIT = 10.0
NOW_MS = 1_700_000_000_000
FAULTS = ("", "lost", "lost answer", "late answer", "forgets", "not leader", "few replicas")


class Broker(Cluster):
    """One partition with Kafka's rules for idempotent producers, and faults by a script.

    `gone`: raised instead of an answer, once, by a request that is stored.
    """

    def __init__(self, script: list[str]) -> None:
        super().__init__(KafkaConnectionOptions(()))
        self.log: list[bytes] = []
        self._script = script
        self.ids = 0
        self.gone: BaseException | None = None
        self.remembers = True
        self._seen: dict[int, tuple[int, int, int]] = {}

    def ask(self, request: ApiRequest, deadline: float, node: int | None = None) -> Any:
        self.ids += 1
        return SimpleNamespace(error_code=0, producer_id=self.ids, producer_epoch=0)

    def ask_leader(self, topic: str, partition: int, request: ApiRequest, deadline: float) -> Any:
        assert request.message.acks == -1, (
            "stored by the leader alone, acknowledged data may be lost"
        )
        fault = self._script.pop(0) if self._script else ""
        if fault == "lost":
            raise KafkaConnectionLostError("connection refused")
        batch = DefaultRecordBatch(request.message.topic_data[0].partition_data[0].records)
        # Kafka keeps producers as long as their records. It takes any id that begins at 0 for a
        # new producer, so a first batch in doubt would be stored twice whatever the router does.
        if fault == "forgets" and batch.base_sequence:
            self._seen.clear()
        assert batch.first_timestamp == NOW_MS
        code, offset = self._append(batch) if fault != "not leader" else (6, -1)
        if self.gone is not None:
            gone, self.gone = self.gone, None
            raise gone
        if fault == "lost answer":
            raise KafkaConnectionLostError("reset", sent=True)
        if fault == "late answer":
            raise LateError("no answer", sent=True)
        answered = SimpleNamespace(
            error_code=20 if fault == "few replicas" and not code else code, base_offset=offset
        )
        return SimpleNamespace(responses=[SimpleNamespace(partition_responses=[answered])])

    def _append(self, batch: DefaultRecordBatch) -> tuple[int, int]:
        first, last, offset = self._seen.get(batch.producer_id, (-1, -1, -1))
        if (first, last) == (batch.base_sequence, batch.last_sequence):
            # Kafka answers a repeat as the first time, or says that it is one and not where it is.
            return (0, offset) if self.remembers else (46, -1)
        if batch.base_sequence != last + 1:
            return (45 if batch.producer_id in self._seen else 59), -1
        offset = len(self.log)
        self._seen[batch.producer_id] = batch.base_sequence, batch.last_sequence, offset
        self.log += [record.value for record in batch]
        return 0, offset


scripts = st.lists(st.sampled_from(FAULTS), max_size=12)


@given(script=scripts, counts=st.lists(st.integers(1, 3), min_size=1, max_size=8))
def test_what_was_acknowledged_is_stored_once_in_order_and_the_rest_at_most_once(
    script: list[str], counts: list[int]
) -> None:
    broker = Broker(list(script))
    producers = KafkaProducers(broker, lambda: NOW_MS)
    done: list[bytes] = []
    sent = 0
    with mock.patch.object(cluster_module, "MIN_PAUSE_SECONDS", 0.0):
        for count in counts:
            values = [b"%d" % (sent + n) for n in range(count)]
            sent += count
            try:
                ((offset, stored_count),) = producers.publish(
                    "t", 0, [Message(value) for value in values], time.monotonic() + WAIT
                )
            except (BackendTimeoutError, BackendUnavailableError):
                continue
            assert stored_count == count
            assert broker.log[offset : offset + count] == values
            done += values
    stored = Counter(broker.log)
    assert set(stored.values()) <= {1}
    assert [value for value in broker.log if value in set(done)] == done


@pytest.mark.parametrize(
    ("first", "then", "unknown"),
    [
        ("lost", "lost", False),
        ("lost answer", "lost answer", True),
        ("lost answer", "lost", True),
        ("few replicas", "lost", True),
        ("not leader", "lost", False),
    ],
)
def test_the_outcome_is_unknown_only_when_kafka_may_have_it(
    first: str, then: str, unknown: bool
) -> None:
    broker = Broker([first] + [then] * 100)
    producers = KafkaProducers(broker, lambda: NOW_MS)
    with pytest.raises(OutcomeUnknownError if unknown else BackendUnavailableError) as failed:
        producers.publish("t", 0, [Message(b"1")], time.monotonic() + SOON)
    assert ("unknown" in str(failed.value)) is unknown
    assert broker.log == [b"1"] * unknown
    # What comes next does not trip over the number that may be taken or not.
    broker._script.clear()
    producers.publish("t", 0, [Message(b"2")], time.monotonic() + WAIT)
    assert broker.log[-1] == b"2"


def test_a_producer_that_kafka_forgot_goes_on_under_another_id() -> None:
    broker = Broker(["", "forgets"])
    producers = KafkaProducers(broker, lambda: NOW_MS)
    for value in (b"1", b"2", b"3"):
        producers.publish("t", 0, [Message(value)], time.monotonic() + WAIT)
    assert broker.log == [b"1", b"2", b"3"]


@pytest.mark.parametrize("doubt", ["lost answer", "late answer", "few replicas"])
def test_a_batch_in_doubt_is_not_sent_under_another_id_when_kafka_forgot_the_producer(
    doubt: str,
) -> None:
    broker = Broker(["", doubt, "forgets"])
    producers = KafkaProducers(broker, lambda: NOW_MS)
    producers.publish("t", 0, [Message(b"1")], time.monotonic() + WAIT)
    with pytest.raises(BackendTimeoutError, match="unknown"):
        producers.publish("t", 0, [Message(b"2")], time.monotonic() + WAIT)
    assert broker.log == [b"1", b"2"]
    producers.publish("t", 0, [Message(b"3")], time.monotonic() + WAIT)
    assert broker.log == [b"1", b"2", b"3"]


def test_a_publish_after_one_that_was_broken_off_is_stored() -> None:
    broker = Broker([])
    producers = KafkaProducers(broker, lambda: NOW_MS)
    broker.gone = KeyboardInterrupt()  # as a greenlet is killed in the middle of a request
    with pytest.raises(KeyboardInterrupt):
        producers.publish("t", 0, [Message(b"1")], time.monotonic() + WAIT)
    producers.publish("t", 0, [Message(b"2")], time.monotonic() + WAIT)
    assert broker.log == [b"1", b"2"]


def test_a_lane_keeps_its_producer_while_kafka_does_and_numbers_last() -> None:
    broker = Broker([])
    producers = KafkaProducers(broker, lambda: NOW_MS)
    for _ in range(3):
        producers.publish("t", 0, [Message(b"1"), Message(b"2")], time.monotonic() + WAIT)
    assert broker.ids == 1
    producers._producer("t", 0).next = MAX_SEQUENCE - 1
    producers.publish("t", 0, [Message(b"3"), Message(b"4")], time.monotonic() + WAIT)
    assert broker.ids == 2
    assert broker.log == [b"1", b"2"] * 3 + [b"3", b"4"]


def test_the_lane_used_longest_ago_goes_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producing, "MAX_PRODUCERS", 2)
    broker = Broker([])
    producers = KafkaProducers(broker, lambda: NOW_MS)
    for partition in (0, 1, 0, 2, 0):
        producers.publish("t", partition, [Message(b"1")], time.monotonic() + WAIT)
    assert broker.ids == 3


@pytest.mark.parametrize(("remembers", "offset"), [(True, 0), (False, -1)])
def test_a_batch_that_is_stored_already_is_stored(remembers: bool, offset: int) -> None:
    broker = Broker(["lost answer"])
    broker.remembers = remembers
    producers = KafkaProducers(broker, lambda: NOW_MS)
    stored = producers.publish("t", 0, [Message(b"1")], time.monotonic() + WAIT)
    assert (stored, broker.log) == ([(offset, 1)], [b"1"])
