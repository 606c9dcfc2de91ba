"""What the broker answers to clients that do what they must not, and to those that hurry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from router.model import Message
from router.wire.pulsar import (
    FRAME_LIMIT,
    MAX_BATCH,
    broker_entry_prefix,
    command,
    encode,
    join_payload,
    pack,
    read_broker_entry,
)
from router.wire.pulsar import pulsar_pb2 as pb
from tests.broker.conftest import Connect
from tests.broker.raw import RawClient
from tests.processes import BrokerProcess

EVERYTHING = 2**64 - 1


def entry(value: bytes = b"v") -> bytes:
    return pack([Message(value)], "raw", 0, 1_000)


@pytest.mark.parametrize(
    "frame",
    [
        encode(command(pb.BaseCommand.LOOKUP, topic="t", request_id=1)),
        encode(command(pb.BaseCommand.PING)),
        encode(pb.BaseCommand(type=pb.BaseCommand.CONNECTED)),
        b"\x00\x00\x00\x04\x00\x00\x00\x00",
        b"\x00\x00\x00\x05\x00\x00\x00\xff\x08",
        (FRAME_LIMIT + 1).to_bytes(4, "big"),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["lookup", "ping", "server-command", "empty", "cut", "large", "http"],
)
def test_connection_closes_when_the_first_frame_is_no_connect(
    shared_broker: BrokerProcess, connect: Connect, frame: bytes
) -> None:
    client = connect(shared_broker)
    client.send_bytes(frame)
    assert client.closed()


@pytest.mark.parametrize(
    "send",
    [
        lambda c: c.send("CONNECT", client_version="again", protocol_version=20),
        lambda c: c.send("SEND", entry(), producer_id=7, sequence_id=0),
        lambda c: c.send("SUCCESS", request_id=1),
        lambda c: c.send("REACHED_END_OF_TOPIC", consumer_id=1),
        lambda c: c.send_bytes((FRAME_LIMIT + 1).to_bytes(4, "big")),
        lambda c: c.send_bytes(b"\x00\x00\x00\x06\x00\x00\x00\x02\xff\xff"),
    ],
    ids=["second-connect", "unknown-producer", "server-command", "no-request", "large", "garbage"],
)
def test_only_that_connection_closes_when_a_client_breaks_the_protocol(
    shared_broker: BrokerProcess,
    connect: Connect,
    raw: RawClient,
    send: Callable[[RawClient], None],
) -> None:
    broken = connect(shared_broker)
    broken.shake_hands()
    send(broken)
    assert broken.closed()
    raw.send("PING")
    raw.expect("PONG")


@pytest.mark.parametrize(("asked", "answered"), [(0, 0), (5, 5), (20, 20), (21, 21), (99, 21)])
def test_handshake_answers_the_lower_version(
    shared_broker: BrokerProcess, connect: Connect, asked: int, answered: int
) -> None:
    client = connect(shared_broker)
    hello = client.shake_hands(asked)
    assert hello.protocol_version == answered
    assert hello.max_message_size == 5242880
    assert hello.server_version.startswith("dragoman ")


def test_send_is_refused_when_its_checksum_is_wrong(raw: RawClient, topic: str) -> None:
    raw.producer(topic)
    bad = bytearray(entry())
    bad[-1] ^= 1
    raw.send("SEND", bytes(bad), producer_id=0, sequence_id=5)
    refused = raw.expect("SEND_ERROR")
    assert (refused.sequence_id, refused.error) == (5, pb.ChecksumError)
    raw.publish(b"good", sequence_id=6)


def test_send_is_stored_when_it_has_no_checksum(raw: RawClient, topic: str) -> None:
    raw.producer(topic)
    raw.send("SEND", entry()[6:], producer_id=0, sequence_id=5)
    assert raw.expect("SEND_RECEIPT").sequence_id == 5


@pytest.mark.parametrize(
    "payload", [b"\x0e", b"\x0e\x01\x00", b"\x00\x00\xff\xff", b"\x0e\x02\x00"]
)
def test_connection_closes_when_a_payload_is_malformed(
    raw: RawClient, topic: str, payload: bytes
) -> None:
    raw.producer(topic)
    raw.send("SEND", payload, producer_id=0, sequence_id=5)
    assert raw.closed()


def batch_of(count: int) -> bytes:
    """An entry whose metadata says that it holds so many messages."""
    metadata = pb.MessageMetadata(
        producer_name="raw", sequence_id=1, publish_time=1, num_messages_in_batch=count
    )
    return join_payload(metadata, b"")


@pytest.mark.parametrize(
    "payload",
    [
        *map(batch_of, (MAX_BATCH + 1, 2**31 - 1, 0, -1, -(2**31))),
        broker_entry_prefix(pb.BrokerEntryMetadata(broker_timestamp=1, index=7)) + entry(),
    ],
    ids=["over", "most", "none", "negative", "least", "broker-entry"],
)
def test_entry_is_refused_when_it_could_not_be_read_or_counted(
    raw: RawClient, topic: str, payload: bytes
) -> None:
    raw.producer(topic)
    raw.send("SEND", payload, producer_id=0, sequence_id=1)
    refused = raw.expect("SEND_ERROR")
    assert (refused.sequence_id, refused.error) == (1, pb.NotAllowedError)
    assert raw.publish(b"good", sequence_id=2).message_id.entryId == 0


@pytest.mark.parametrize("claimed", [-5, 0, 1, 2**31 - 1])
def test_messages_are_counted_by_metadata_when_the_command_says_otherwise(
    shared_broker: BrokerProcess, connect: Connect, topic: str, claimed: int
) -> None:
    client = connect(shared_broker)
    client.shake_hands(feature_flags=pb.FeatureFlags(supports_broker_entry_metadata=True))
    client.producer(topic)
    client.subscribe(topic)
    three = pack([Message(b"v")] * 3, "raw", 0, 1_000)
    for sequence_id, payload in enumerate((three, entry())):
        client.send("SEND", payload, producer_id=0, sequence_id=sequence_id, num_messages=claimed)
        client.expect("SEND_RECEIPT")
    client.send("FLOW", consumer_id=0, messagePermits=10)
    indexes = []
    for _ in range(2):
        frame = client.read()
        assert frame is not None
        stored = read_broker_entry(frame.payload)
        assert stored is not None
        indexes.append(stored.index)
    assert indexes == [2, 3]


def test_sequence_id_is_refused_when_the_next_producer_could_not_be_told_it(
    raw: RawClient, other: RawClient, topic: str
) -> None:
    deduplicated = [pb.KeyValue(key="router-dedup", value="true")]
    raw.producer(topic, producer_name="me", metadata=deduplicated)
    raw.send("SEND", entry(), producer_id=0, sequence_id=2**63)
    assert raw.expect("SEND_ERROR").error == pb.NotAllowedError
    raw.publish(b"last", sequence_id=2**63 - 1)
    raw.ask("CLOSE_PRODUCER", "SUCCESS", producer_id=0)
    again = other.producer(topic, producer_name="me", metadata=deduplicated)
    assert again.last_sequence_id == 2**63 - 1


def test_producer_keeps_its_name_when_its_number_is_opened_again(
    raw: RawClient, topic: str
) -> None:
    first = raw.producer(topic, 3)
    assert raw.producer(f"{topic}-other", 3).producer_name == first.producer_name


def test_producer_is_busy_when_another_connection_has_its_name(
    raw: RawClient, other: RawClient, topic: str
) -> None:
    raw.producer(topic, producer_name="me")
    refused = other.ask("PRODUCER", "ERROR", topic=topic, producer_id=0, producer_name="me")
    assert refused.error == pb.ProducerBusy
    assert "'me' is already connected" in refused.message


def test_generated_name_moves_when_its_client_comes_back(
    raw: RawClient, other: RawClient, topic: str
) -> None:
    name = raw.producer(topic, user_provided_producer_name=False).producer_name
    again = other.producer(topic, producer_name=name, user_provided_producer_name=False, epoch=1)
    assert again.producer_name == name
    assert raw.expect("CLOSE_PRODUCER").producer_id == 0


def test_name_is_free_when_its_producer_is_closed(
    raw: RawClient, other: RawClient, topic: str
) -> None:
    raw.producer(topic, producer_name="me")
    raw.ask("CLOSE_PRODUCER", "SUCCESS", producer_id=0)
    assert other.producer(topic, producer_name="me").producer_name == "me"


def test_subscribing_again_with_the_same_number_succeeds(raw: RawClient, topic: str) -> None:
    raw.subscribe(topic, 4)
    raw.subscribe(topic, 4)


def test_commands_for_unknown_consumers_get_their_answers(raw: RawClient) -> None:
    raw.send("FLOW", consumer_id=9, messagePermits=1)
    raw.send("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=9)
    raw.send("ACK", consumer_id=9, ack_type=pb.CommandAck.Individual)
    for kind in ("UNSUBSCRIBE", "SEEK", "GET_LAST_MESSAGE_ID"):
        refused = raw.ask(kind, "ERROR", consumer_id=9)
        assert (refused.error, refused.message) == (pb.MetadataError, "Consumer not found")
    raw.ask("CLOSE_CONSUMER", "SUCCESS", consumer_id=9)
    raw.ask("CLOSE_PRODUCER", "SUCCESS", producer_id=9)
    assert raw.ask("ACK", "ACK_RESPONSE", consumer_id=9, ack_type=0).error == pb.MetadataError
    stats = raw.ask("CONSUMER_STATS", "CONSUMER_STATS_RESPONSE", consumer_id=9)
    assert stats.error_code == pb.ConsumerNotFound


def test_exclusive_subscription_is_busy_when_it_has_a_consumer(raw: RawClient, topic: str) -> None:
    raw.subscribe(topic, 1)
    refused = raw.ask("SUBSCRIBE", "ERROR", topic=topic, subscription="s", subType=0, consumer_id=2)
    assert refused.error == pb.ConsumerBusy
    assert "Exclusive consumer is already connected" in refused.message


def test_subscription_is_busy_for_consumers_of_another_type(raw: RawClient, topic: str) -> None:
    raw.subscribe(topic, 1, subType=pb.CommandSubscribe.Shared)
    refused = raw.ask("SUBSCRIBE", "ERROR", topic=topic, subscription="s", subType=0, consumer_id=2)
    assert refused.error == pb.ConsumerBusy
    assert "different type" in refused.message


@pytest.mark.parametrize(
    ("fields", "number"),
    [
        (
            {"subType": 3, "keySharedMeta": pb.KeySharedMeta(keySharedMode=pb.STICKY)},
            pb.ConsumerAssignError,
        ),
        ({"subscription": ""}, pb.NotAllowedError),
        ({"subscription": "s" * 1025}, pb.NotAllowedError),
        ({"force_topic_creation": False}, pb.TopicNotFound),
        ({"topic": "persistent://public/default/a b"}, pb.InvalidTopicName),
        ({"topic": "persistent://public/default/none-partition-0"}, pb.TopicNotFound),
    ],
)
def test_subscribe_is_refused_when_it_asks_for_what_is_not_there(
    raw: RawClient, topic: str, fields: dict[str, object], number: int
) -> None:
    given = {"topic": topic, "subscription": "s", "subType": 0, "consumer_id": 1} | fields
    assert raw.ask("SUBSCRIBE", "ERROR", **given).error == number


def test_lookup_of_a_bad_name_fails(raw: RawClient) -> None:
    looked = raw.ask("LOOKUP", "LOOKUP_RESPONSE", topic="persistent://public/default/")
    assert looked.response == pb.CommandLookupTopicResponse.Failed
    assert looked.error == pb.InvalidTopicName


def test_lookup_sends_the_client_the_way_that_it_came(
    shared_broker: BrokerProcess, raw: RawClient, topic: str
) -> None:
    looked = raw.ask("LOOKUP", "LOOKUP_RESPONSE", topic=topic)
    assert looked.response == pb.CommandLookupTopicResponse.Connect
    assert looked.proxy_through_service_url
    assert looked.brokerServiceUrl == shared_broker.url


def test_metadata_of_a_missing_topic_says_no_partitions(raw: RawClient, topic: str) -> None:
    answer = raw.ask("PARTITIONED_METADATA", "PARTITIONED_METADATA_RESPONSE", topic=topic)
    assert (answer.response, answer.partitions) == (
        pb.CommandPartitionedTopicMetadataResponse.Success,
        0,
    )


def test_metadata_of_a_missing_topic_fails_when_it_may_not_be_created(
    raw: RawClient, topic: str
) -> None:
    answer = raw.ask(
        "PARTITIONED_METADATA",
        "PARTITIONED_METADATA_RESPONSE",
        topic=topic,
        metadata_auto_creation_enabled=False,
    )
    assert answer.error == pb.TopicNotFound


def test_schema_is_not_found(raw: RawClient, topic: str) -> None:
    assert raw.ask("GET_SCHEMA", "GET_SCHEMA_RESPONSE", topic=topic).error_code == pb.TopicNotFound


def test_commands_between_brokers_are_refused(raw: RawClient) -> None:
    for kind in ("END_TXN_ON_PARTITION", "END_TXN_ON_SUBSCRIPTION"):
        assert raw.ask(kind, "ERROR").error == pb.NotAllowedError


def test_message_of_an_unknown_transaction_is_not_stored(raw: RawClient, topic: str) -> None:
    raw.producer(topic, txn_enabled=True)
    payload = pack([Message(b"v")], "raw", 0, 1_000)
    raw.send("SEND", payload, producer_id=0, sequence_id=0, txnid_most_bits=0, txnid_least_bits=0)
    assert raw.expect("SEND_ERROR").error == pb.NotAllowedError
    assert raw.publish(b"next", sequence_id=1).message_id.entryId == 0


@pytest.mark.parametrize(
    "transaction",
    [{"txnid_most_bits": 3, "txnid_least_bits": 9}, {"txnid_most_bits": 0, "txnid_least_bits": 0}],
)
@pytest.mark.parametrize("kind", [pb.CommandAck.Individual, pb.CommandAck.Cumulative])
def test_acknowledgement_in_an_unknown_transaction_is_refused_with_both_ids(
    raw: RawClient,
    topic: str,
    kind: int,
    transaction: dict[str, Any],
) -> None:
    raw.producer(topic)
    place = raw.publish(b"v").message_id
    raw.subscribe(topic)
    ack: dict[str, Any] = {"consumer_id": 0, "message_id": [place], "ack_type": kind}
    refused = raw.ask("ACK", "ACK_RESPONSE", **ack, **transaction)
    assert (refused.consumer_id, refused.error) == (0, pb.TransactionNotFound)
    assert {name: getattr(refused, name) for name in transaction} == transaction
    # Without a request there is no answer, and nothing is acknowledged either.
    raw.send("ACK", **ack, **transaction)
    raw.ask("CLOSE_CONSUMER", "SUCCESS", consumer_id=0)
    raw.subscribe(topic)
    raw.send("FLOW", consumer_id=0, messagePermits=1)
    assert raw.expect("MESSAGE").message_id.entryId == place.entryId
    assert not raw.ask("ACK", "ACK_RESPONSE", **ack).HasField("error")


def test_frames_for_a_consumer_wait_until_it_is_open(raw: RawClient, topic: str) -> None:
    """A client may send on without waiting for the answer to SUBSCRIBE."""
    raw.producer(f"{topic}")
    raw.publish(b"first")
    raw.send(
        "SUBSCRIBE",
        topic=topic,
        subscription="new",
        subType=0,
        consumer_id=1,
        request_id=10,
        initialPosition=pb.CommandSubscribe.Earliest,
    )
    raw.send("FLOW", consumer_id=1, messagePermits=10)
    raw.send("GET_LAST_MESSAGE_ID", consumer_id=1, request_id=11)
    assert raw.expect("SUCCESS").request_id == 10
    message = raw.expect("MESSAGE")
    last = raw.expect("GET_LAST_MESSAGE_ID_RESPONSE")
    assert last.last_message_id.entryId == message.message_id.entryId == 0


def test_frames_for_a_producer_wait_until_it_is_open(raw: RawClient, topic: str) -> None:
    raw.send("PRODUCER", topic=topic, producer_id=1, request_id=10)
    raw.send_entry(b"v", sequence_id=3, producer_id=1)
    raw.send("CLOSE_PRODUCER", producer_id=1, request_id=11)
    assert raw.expect("PRODUCER_SUCCESS").request_id == 10
    assert raw.expect("SEND_RECEIPT").sequence_id == 3
    assert raw.expect("SUCCESS").request_id == 11


def test_client_may_open_any_number_of_new_topics_at_once(raw: RawClient, topic: str) -> None:
    """As a client does that consumes from a list of topics."""
    asked = [
        command(
            pb.BaseCommand.SUBSCRIBE,
            topic=f"{topic}-{number}",
            subscription="s",
            subType=pb.CommandSubscribe.Shared,
            consumer_id=number,
            request_id=number,
        )
        for number in range(1_500)
    ]
    raw.send_bytes(b"".join(map(encode, asked)))
    answered = {raw.expect("SUCCESS", 20).request_id for _ in asked}
    assert answered == set(range(1_500))


def test_rollback_by_time_goes_by_when_the_broker_stored_the_messages(
    raw: RawClient, topic: str
) -> None:
    raw.producer(topic)
    place = raw.publish(b"written long ago, by the clock of its producer").message_id
    raw.subscribe(
        topic,
        durable=False,
        initialPosition=pb.CommandSubscribe.Latest,
        start_message_rollback_duration_sec=3_600,
    )
    raw.send("FLOW", consumer_id=0, messagePermits=1)
    assert raw.expect("MESSAGE").message_id.entryId == place.entryId
