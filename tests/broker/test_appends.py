"""APPENDS: entries of several producers in one frame, each with an outcome of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from router.model import Message
from router.wire.node import node_pb2 as npb
from router.wire.pulsar import pack, read_metadata
from router.wire.pulsar import pulsar_pb2 as pb
from tests.broker.raw import RawClient

DEDUPLICATED = [pb.KeyValue(key="router-dedup", value="true")]
Entry = tuple[int, int, bytes]
"""Producer, sequence id, payload."""


def entry(producer: int, sequence: int, *values: bytes) -> Entry:
    payload = pack([Message(value) for value in values], f"raw-{producer}", sequence, 1_000)
    return producer, sequence, payload


def send(raw: RawClient, entries: Sequence[Entry], request_id: int = 7, **lists: Any) -> None:
    fields: dict[str, Any] = {
        "producer_ids": [one[0] for one in entries],
        "sequence_ids": [one[1] for one in entries],
        "sizes": [len(one[2]) for one in entries],
    }
    payload = b"".join(one[2] for one in entries)
    raw.send("APPENDS", payload, request_id=request_id, **(fields | lists))


def append(raw: RawClient, *entries: Entry) -> dict[int, pb.AppendFailure]:
    """Send entries; return which are refused."""
    send(raw, entries)
    response = raw.expect("APPENDS_RESPONSE")
    assert response.request_id == 7
    return {failure.entry: failure for failure in response.failures}


def open_producers(raw: RawClient, topic: str, count: int) -> list[str]:
    topics = [f"{topic}-{number}" for number in range(count)]
    for number, name in enumerate(topics):
        raw.producer(name, number, producer_name=f"raw-{number}", metadata=DEDUPLICATED)
    return topics


def stored(raw: RawClient, topic: str) -> list[bytes]:
    """The payloads of a topic, in order."""
    stats = raw.ask("ADMIN", "ADMIN_RESPONSE", describe_topic=npb.TopicRef(topic=topic)).stats
    left = stats.partitions[0].messages
    raw.subscribe(topic, 99)
    raw.send("FLOW", consumer_id=99, messagePermits=100)
    found = []
    while left:
        frame = raw.read()
        assert frame is not None
        assert frame.command.type == pb.BaseCommand.MESSAGE
        found.append(frame.payload)
        left -= read_metadata(frame.payload).num_messages_in_batch
    raw.ask("CLOSE_CONSUMER", "SUCCESS", consumer_id=99)
    return found


def test_each_entry_is_stored_in_its_partition_in_order(raw: RawClient, topic: str) -> None:
    topics = open_producers(raw, topic, 3)
    entries = [entry(n % 3, n // 3, b"%d" % n, b"second") for n in range(9)]
    assert append(raw, *entries) == {}
    for number, name in enumerate(topics):
        assert stored(raw, name) == [one[2] for one in entries if one[0] == number]


def test_an_entry_that_is_refused_refuses_no_other(raw: RawClient, topic: str) -> None:
    topics = open_producers(raw, topic, 4)
    # Terminated; damaged; never opened; a sequence id that no producer may have.
    raw.send("ADMIN", request_id=1, terminate_topic=npb.TopicRef(topic=topics[1]))
    assert raw.expect("CLOSE_PRODUCER").producer_id == 1
    assert raw.expect("ADMIN_RESPONSE").request_id == 1
    good, damaged = entry(0, 0, b"good"), entry(3, 0, b"damaged")
    damaged = (3, 0, damaged[2][:-1] + b"!")
    late = (2, 2**63, entry(2, 1, b"late")[2])
    refused = append(raw, entry(1, 0, b"x"), damaged, good, entry(55, 0, b"x"), late)
    assert {place: failure.error for place, failure in refused.items()} == {
        0: pb.ServiceNotReady,
        1: pb.ChecksumError,
        3: pb.ServiceNotReady,
        4: pb.NotAllowedError,
    }
    assert stored(raw, topics[0]) == [good[2]]
    assert [stored(raw, name) for name in topics[2:]] == [[], []]


def test_an_entry_is_stored_once_when_it_is_sent_again(raw: RawClient, topic: str) -> None:
    topics = open_producers(raw, topic, 2)
    first, other = entry(0, 4, b"first"), entry(1, 0, b"other")
    assert append(raw, first) == {}
    assert append(raw, first, other, first, other) == {}
    raw.send("SEND", first[2], producer_id=0, sequence_id=4)
    assert raw.expect("SEND_RECEIPT").stored_messages == 1
    assert [stored(raw, name) for name in topics] == [[first[2]], [other[2]]]


def test_what_is_too_large_a_batch_is_refused(raw: RawClient, topic: str) -> None:
    open_producers(raw, topic, 2)
    metadata = pb.MessageMetadata(
        producer_name="raw-0", sequence_id=0, publish_time=1, num_messages_in_batch=-1
    ).SerializeToString()
    payload = len(metadata).to_bytes(4, "big") + metadata + b"x"
    refused = append(raw, (0, 0, payload), entry(1, 0, b"x"))
    assert [failure.error for failure in refused.values()] == [pb.NotAllowedError]


def test_topics_that_are_not_persistent_are_answered_too(raw: RawClient, topic: str) -> None:
    raw.producer(topic, 0)
    raw.producer(topic.replace("persistent://", "non-persistent://"), 1)
    assert append(raw, entry(1, 0, b"x")) == {}
    assert append(raw, entry(0, 0, b"x"), entry(1, 1, b"y")) == {}


ONE = entry(0, 0, b"x")


@pytest.mark.parametrize(
    "lists",
    [
        {"producer_ids": [0, 0]},
        {"sequence_ids": []},
        {"sizes": [len(ONE[2]) - 1]},
        {"sizes": [len(ONE[2]) + 1]},
        {"sizes": [2**64 - 1]},
        {"producer_ids": [], "sequence_ids": [], "sizes": []},
    ],
)
def test_lists_that_do_not_fit_close_the_connection(
    raw: RawClient, other: RawClient, topic: str, lists: dict[str, Any]
) -> None:
    raw.producer(topic, 0)
    send(raw, [ONE], **lists)
    assert raw.closed()
    other.producer(topic, 0)
    assert append(other, ONE) == {}


def test_an_empty_entry_closes_the_connection_as_an_empty_send_does(
    raw: RawClient, topic: str
) -> None:
    raw.producer(topic, 0)
    send(raw, [ONE, (0, 1, b"")])
    assert raw.closed()


@pytest.mark.parametrize("count", [0, 1001])
def test_none_and_too_many_entries_close_the_connection(
    raw: RawClient, topic: str, count: int
) -> None:
    raw.producer(topic, 0)
    send(raw, [entry(0, number, b"v") for number in range(count)])
    assert raw.closed()
