"""What users of any Kafka client do: each scenario returns what they saw, as plain values."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from tests.kafka.clients import CODECS, SECONDS, ClientError, KafkaClient, Record
from tests.processes import wait_until

T0: Final = time.time_ns() // 10**6 - 60_000
"""The time of the first record: past, and not past the retention that Kafka has by default."""
POLL_SECONDS: Final = 0.1

Scenario = Callable[[KafkaClient], Any]
SCENARIOS: dict[str, tuple[Scenario, Any]] = {}
"""Each scenario with what Apache Kafka shows to all clients."""


def shows(expected: Any) -> Callable[[Scenario], Scenario]:
    """Enter a scenario with what it shows on Apache Kafka."""

    def enter(scenario: Scenario) -> Scenario:
        SCENARIOS[scenario.__name__] = (scenario, expected)
        return scenario

    return enter


def new_topic(client: KafkaClient, partitions: int = 1) -> str:
    """Create a topic with a name of its own."""
    topic = f"t-{uuid.uuid4()}"
    client.create(topic, partitions)
    return topic


def outcome(call: Callable[[], Any]) -> str:
    """Return "ok", or the name of the error that a call ends with."""
    try:
        call()
    except ClientError as error:
        return error.name
    return "ok"


def numbered(count: int, first: int = 0) -> list[Record]:
    """Return records that differ in value and time."""
    return [Record(b"m%d" % n, timestamp=T0 + n) for n in range(first, first + count)]


@shows(("ok", "TOPIC_ALREADY_EXISTS", "ok", "UNKNOWN_TOPIC_OR_PARTITION"))
def topics_come_and_go(client: KafkaClient) -> Any:
    topic = f"t-{uuid.uuid4()}"
    created = outcome(lambda: client.create(topic, 3))
    wait_until(lambda: topic in client.topics(), SECONDS)
    again = outcome(lambda: client.create(topic, 3))
    deleted = outcome(lambda: client.delete(topic))
    return created, again, deleted, outcome(lambda: client.delete(topic))


@shows(
    {"dots": "ok"} | dict.fromkeys(("space", "umlaut", "two", "long"), "INVALID_TOPIC_EXCEPTION")
)
def names_of_topics(client: KafkaClient) -> Any:
    tail = str(uuid.uuid4())
    names = {"dots": f"a.b_c-{tail}", "space": f"a {tail}", "umlaut": f"ü{tail}", "two": ".."}
    names["long"] = "x" * 250
    return {key: outcome(partial(client.create, name)) for key, name in names.items()}


@shows("INVALID_PARTITIONS")
def partitions_that_cannot_be(client: KafkaClient) -> Any:
    return outcome(lambda: client.create(f"t-{uuid.uuid4()}", 0))


@shows((True, True))
def every_compression(client: KafkaClient) -> Any:
    topic = new_topic(client)
    sent = [Record(b"%d " % n + b"text " * 50, timestamp=T0 + n) for n in range(30)]
    offsets = [client.produce(topic, sent, codec=codec) for codec in CODECS]
    dense = list(itertools.chain(*offsets)) == list(range(30 * len(CODECS)))
    seen = client.read(topic, 0, 30 * len(CODECS))
    return dense, [one.record for one in seen] == sent * len(CODECS)


@shows([])
def everything_of_a_record(client: KafkaClient) -> Any:
    topic = new_topic(client)
    sent = [
        Record(b"value", b"key", (("a", b"1"), ("a", b"2"), ("b", b"")), T0),
        Record(b"", b"", (), T0 + 1),
        Record(None, b"deleted", (("why", bytes(range(256))),), T0 + 2),
        Record(bytes(range(256)), None, (), T0 - 1000),
    ]
    client.produce(topic, sent)
    seen = [one.record for one in client.read(topic, 0, 4)]
    return [number for number in range(4) if seen[number] != sent[number]]


@shows(([0, 0, 1, 7, 9, -1], (0, 10)))
def offsets_by_time(client: KafkaClient) -> Any:
    topic = new_topic(client)
    client.produce(topic, [Record(b"%d" % n, timestamp=T0 + 1000 * n) for n in range(5)])
    client.produce(topic, [Record(b"%d" % n, timestamp=T0 + 1000 * n) for n in range(5, 10)])
    found = client.times(topic, [T0 - 1, T0, T0 + 1, T0 + 6500, T0 + 9000, T0 + 9001])
    return found, client.ends(topic)


@shows(([0, 2, 4, 4, -1], [T0 + 5_000, T0 + 1_000, T0 + 9_000, T0 + 2_000]))
def offsets_by_time_of_records_in_any_order(client: KafkaClient) -> Any:
    """The last record is dated ahead of the broker's clock."""
    topic, ahead = new_topic(client), time.time_ns() // 10**6 + 60_000
    times = [T0 + 5_000, T0 + 1_000, T0 + 9_000, T0 + 2_000, ahead]
    client.produce(topic, [Record(b"%d" % n, timestamp=one) for n, one in enumerate(times)])
    wanted = [T0 + 1, T0 + 5_001, T0 + 9_001, ahead - 30_000, ahead + 1]
    read = [one.record.timestamp for one in client.read(topic, 0, 4)]
    return client.times(topic, wanted), read


@shows(([(13, b"m13"), (14, b"m14")], "OFFSET_OUT_OF_RANGE"))
def reading_from_the_middle(client: KafkaClient) -> Any:
    topic = new_topic(client)
    client.produce(topic, numbered(20))
    middle = [(one.offset, one.record.value) for one in client.read(topic, 13, 2)]
    return middle, outcome(lambda: client.read(topic, 99, 1))


@shows((True, True))
def idempotent_producers(client: KafkaClient) -> Any:
    topic = new_topic(client)
    offsets = [client.produce(topic, numbered(10, n * 10), idempotent=True) for n in range(3)]
    seen = [one.record.value for one in client.read(topic, 0, 30)]
    return offsets == [list(range(n, n + 10)) for n in (0, 10, 20)], seen == [
        b"m%d" % n for n in range(30)
    ]


@shows((0, 900_000, "MESSAGE_TOO_LARGE"))
def large_records(client: KafkaClient) -> Any:
    topic = new_topic(client)
    (offset,) = client.produce(topic, [Record(b"x" * 900_000, timestamp=T0)])
    ((_, length),) = [
        (one.offset, len(one.record.value or b"")) for one in client.read(topic, 0, 1)
    ]
    return offset, length, outcome(lambda: client.produce(topic, [Record(b"x" * (7 << 20))]))


def _gather(client: KafkaClient, members: list[str], count: int) -> list[tuple[int, int]]:
    """Poll members in turn until so many records arrived."""
    found: list[tuple[int, int]] = []
    until = time.monotonic() + SECONDS
    while len(found) < count:
        assert time.monotonic() < until, f"{len(found)} of {count} records came"
        for member in members:
            found += client.poll(member, POLL_SECONDS)
    return found


def _settle(client: KafkaClient, members: list[str], sizes: list[int]) -> list[tuple[int, int]]:
    """Poll members in turn until they have so many partitions; return what arrived."""
    found: list[tuple[int, int]] = []
    until = time.monotonic() + SECONDS
    while sorted(len(client.assignment(member)) for member in members) != sizes:
        assert time.monotonic() < until, [client.assignment(member) for member in members]
        for member in members:
            found += client.poll(member, POLL_SECONDS)
    return found


@shows((True, True))
def resuming_where_a_group_committed(client: KafkaClient) -> Any:
    topic, group = new_topic(client), f"g-{uuid.uuid4()}"
    client.produce(topic, numbered(10))
    client.join("one", group, topic)
    first = _gather(client, ["one"], 10)
    client.commit("one")
    client.produce(topic, numbered(5, 10))
    not_committed = _gather(client, ["one"], 5)
    client.leave("one")
    client.join("two", group, topic)
    second = _gather(client, ["two"], 5)
    client.leave("two")
    return first == [(0, n) for n in range(10)], not_committed == second


def _rebalance(client: KafkaClient, assignor: str) -> Any:
    topic, group = new_topic(client, 4), f"g-{uuid.uuid4()}"
    client.join("one", group, topic, assignor)
    _settle(client, ["one"], [4])
    client.join("two", group, topic, assignor)
    _settle(client, ["one", "two"], [2, 2])
    both = sorted(client.assignment("one") + client.assignment("two"))
    for partition in range(4):
        client.produce(topic, numbered(5), partition=partition)
    seen = _gather(client, ["one", "two"], 20)
    client.commit("one")
    client.commit("two")
    client.leave("one")
    _settle(client, ["two"], [4])
    client.produce(topic, numbered(1), partition=client.assignment("two")[0])
    late = _gather(client, ["two"], 1)
    client.leave("two")
    return both, sorted(seen) == [(p, n) for p in range(4) for n in range(5)], late == [(0, 5)]


@shows(([0, 1, 2, 3], True, True))
def eager_rebalance(client: KafkaClient) -> Any:
    return _rebalance(client, "eager")


@shows(([0, 1, 2, 3], True, True))
def cooperative_rebalance(client: KafkaClient) -> Any:
    return _rebalance(client, "cooperative")


@shows(([0, 1, 2, 3], True, True))
def rebalance_by_the_broker(client: KafkaClient) -> Any:
    return _rebalance(client, "server")


@shows([[2, 2], [4], [2, 2], [4]])
def change_of_the_protocol_of_a_group(client: KafkaClient) -> Any:
    """Members come and go, first classic ones, then others, then classic ones again."""
    topic, group = new_topic(client, 4), f"g-{uuid.uuid4()}"
    client.join("one", group, topic, "eager")
    _settle(client, ["one"], [4])
    found = []
    for came, protocol, left in (("two", "server", "one"), ("three", "cooperative", "two")):
        client.join(came, group, topic, protocol)
        _settle(client, [left, came], [2, 2])
        both = client.assignment(left) + client.assignment(came)
        found.append([len(set(both)) // 2] * 2)
        client.leave(left)
        _settle(client, [came], [4])
        found.append([len(client.assignment(came))])
    client.leave("three")
    return found
