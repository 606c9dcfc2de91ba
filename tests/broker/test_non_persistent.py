"""Topics that are not persistent, frame by frame."""

from __future__ import annotations

from typing import Any

import pytest

from router.model import Message
from router.wire.node import node_pb2 as npb
from router.wire.pulsar import join_payload, pack
from router.wire.pulsar import pulsar_pb2 as pb
from tests.broker.raw import RawClient


@pytest.fixture
def topic(topic: str) -> str:
    return topic.replace("persistent://", "non-persistent://")


def test_messages_and_receipts_have_no_place(raw: RawClient, topic: str) -> None:
    assert raw.producer(topic).last_sequence_id == -1
    raw.subscribe(topic, 4)
    raw.send("FLOW", consumer_id=4, messagePermits=10)
    raw.send_entry(b"a", b"b", sequence_id=3)
    message = raw.expect("MESSAGE")
    assert message.consumer_id == 4
    assert (message.message_id.ledgerId, message.message_id.entryId) == (0, 0)
    assert message.message_id.partition == -1
    receipt = raw.expect("SEND_RECEIPT")
    assert (receipt.sequence_id, receipt.message_id.ledgerId) == (3, 0)


def test_persistent_topics_are_served_beside_them(raw: RawClient, topic: str) -> None:
    raw.producer(topic, 0)
    raw.subscribe(topic, 0)
    stored = topic.replace("non-persistent", "persistent")
    raw.producer(stored, 1)
    raw.subscribe(stored, 1)
    for consumer_id in (0, 1):
        raw.send("FLOW", consumer_id=consumer_id, messagePermits=10)
    raw.send_entry(b"v", producer_id=1)
    answers = [raw.read(), raw.read()]
    kinds = {pb.BaseCommand.Type.Name(answer.command.type) for answer in answers if answer}
    assert kinds == {"SEND_RECEIPT", "MESSAGE"}
    raw.ask("UNSUBSCRIBE", "SUCCESS", consumer_id=1)
    raw.ask("UNSUBSCRIBE", "SUCCESS", consumer_id=0)
    raw.ask("CLOSE_PRODUCER", "SUCCESS", producer_id=0)
    raw.ask("CLOSE_PRODUCER", "SUCCESS", producer_id=1)
    raw.send_entry(b"v", producer_id=0)
    assert raw.closed()


def test_consumers_commands_are_answered_though_nothing_is_kept(raw: RawClient, topic: str) -> None:
    raw.subscribe(topic, 4, subType=pb.CommandSubscribe.Shared, consumer_name="me")
    raw.send("FLOW", consumer_id=4, messagePermits=10)
    place = pb.MessageIdData(ledgerId=0, entryId=0)
    raw.ask(
        "ACK", "ACK_RESPONSE", consumer_id=4, ack_type=pb.CommandAck.Individual, message_id=[place]
    )
    raw.send("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=4)
    for command in ("SEEK", "GET_LAST_MESSAGE_ID"):
        assert raw.ask(command, "ERROR", consumer_id=4).error == pb.NotAllowedError
    stats = raw.ask("CONSUMER_STATS", "CONSUMER_STATS_RESPONSE", consumer_id=4)
    assert (stats.consumerName, stats.availablePermits, stats.type) == ("me", 10, "Shared")
    raw.ask("CLOSE_CONSUMER", "SUCCESS", consumer_id=4)
    raw.ask("CLOSE_CONSUMER", "SUCCESS", consumer_id=4)


def test_transactions_are_refused_as_on_a_stored_topic(raw: RawClient, topic: str) -> None:
    raw.subscribe(topic, 4)
    raw.producer(topic, 1)
    ids: dict[str, Any] = {"txnid_most_bits": 3, "txnid_least_bits": 9}
    refused = raw.ask("ACK", "ACK_RESPONSE", consumer_id=4, ack_type=0, **ids)
    assert (refused.txnid_most_bits, refused.txnid_least_bits) == (3, 9)
    assert refused.error == pb.NotAllowedError
    payload = pack([Message(b"v")], "raw", 0, 1_000)
    raw.send("SEND", payload, producer_id=1, sequence_id=0, **ids)
    assert raw.expect("SEND_ERROR").error == pb.NotAllowedError


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"producer_name": "taken"}, pb.ProducerBusy),
        ({"producer_access_mode": pb.Exclusive}, pb.NotAllowedError),
        ({"producer_name": "x" * 1_025}, pb.InvalidTopicName),
    ],
)
def test_producer_is_refused_when_it_cannot_be_served(
    raw: RawClient, other: RawClient, topic: str, fields: dict[str, Any], error: pb.ServerError
) -> None:
    raw.producer(topic, producer_name="taken")
    assert other.ask("PRODUCER", "ERROR", topic=topic, producer_id=0, **fields).error == error


def test_message_with_a_wrong_checksum_is_refused(raw: RawClient, topic: str) -> None:
    raw.producer(topic)
    raw.send("SEND", b"\x0e\x01\0\0\0\0" + b"\0\0\0\0", producer_id=0, sequence_id=5)
    refused = raw.expect("SEND_ERROR")
    assert (refused.error, refused.sequence_id) == (pb.ChecksumError, 5)


def test_topic_is_not_found_when_its_consumer_does_not_want_it_made(
    raw: RawClient, topic: str
) -> None:
    refused = raw.ask(
        "SUBSCRIBE", "ERROR", topic=topic, subscription="s", subType=0, consumer_id=0,
        force_topic_creation=False,
    )  # fmt: skip
    assert refused.error == pb.TopicNotFound
    raw.producer(topic)
    raw.subscribe(topic, force_topic_creation=False)


def test_clients_are_let_go_when_the_topic_is_deleted(
    raw: RawClient, other: RawClient, topic: str
) -> None:
    raw.producer(topic)
    raw.subscribe(topic, 3)
    described = other.ask("ADMIN", "ADMIN_RESPONSE", describe_topic=npb.TopicRef(topic=topic)).stats
    assert (described.partitions[0].producers, described.subscriptions[0].consumers) == (1, 1)
    deleted = other.ask("ADMIN", "ADMIN_RESPONSE", delete_topic=npb.TopicRef(topic=topic))
    assert not deleted.HasField("code")
    assert raw.expect("CLOSE_PRODUCER").producer_id == 0
    assert raw.expect("CLOSE_CONSUMER").consumer_id == 3
    gone = other.ask("ADMIN", "ADMIN_RESPONSE", delete_topic=npb.TopicRef(topic=topic))
    assert gone.code == "topic-not-found"


def test_batch_that_would_cost_too_many_permits_is_refused(raw: RawClient, topic: str) -> None:
    raw.producer(topic)
    raw.subscribe(topic, 4)
    raw.send("FLOW", consumer_id=4, messagePermits=10)
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=2**31 - 1
    )
    raw.send("SEND", join_payload(metadata, b"v"), producer_id=0, sequence_id=0)
    assert raw.expect("SEND_ERROR").error == pb.NotAllowedError
    raw.send_entry(b"a", sequence_id=1)
    assert raw.expect("MESSAGE").consumer_id == 4
