"""Administration, claims, deduplication and fencing, as our own client asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from router.wire.node import node_pb2 as npb
from router.wire.pulsar import pulsar_pb2 as pb
from tests.broker.conftest import Connect, greeted
from tests.broker.raw import RawClient
from tests.processes import BrokerProcess


def admin(raw: RawClient, **request: Any) -> npb.CommandAdminResponse:
    response: npb.CommandAdminResponse = raw.ask("ADMIN", "ADMIN_RESPONSE", **request)
    return response


def local(topic: str) -> str:
    return topic.rpartition("/")[2]


def test_topic_is_created_described_and_deleted(raw: RawClient, topic: str) -> None:
    policies = npb.Policies(retention_ms=5_000, deduplication=True)
    properties = [pb.KeyValue(key="owner", value="me")]
    wanted = npb.CreateTopic(topic=topic, partitions=2, policies=policies, properties=properties)
    assert not admin(raw, create_topic=wanted).HasField("code")
    assert admin(raw, create_topic=wanted).code == "topic-exists"
    stats = admin(raw, describe_topic=npb.TopicRef(topic=topic)).stats
    assert stats.info.topic == topic
    assert stats.info.policies == policies
    assert list(stats.info.properties) == properties
    assert [partition.partition for partition in stats.partitions] == [0, 1]
    listed = admin(raw, list_topics=npb.ListTopics(namespace="public/default")).topics
    assert topic in [info.topic for info in listed]
    assert not admin(raw, delete_topic=npb.TopicRef(topic=topic)).HasField("code")
    assert admin(raw, describe_topic=npb.TopicRef(topic=topic)).code == "topic-not-found"


def test_partitioned_topic_is_used_by_its_partitions_only(raw: RawClient, topic: str) -> None:
    admin(raw, create_topic=npb.CreateTopic(topic=topic, partitions=2))
    refused = raw.ask("PRODUCER", "ERROR", topic=topic, producer_id=0)
    assert refused.error == pb.NotAllowedError
    assert "Found partitioned metadata for non-partitioned topic" in refused.message
    refused = raw.ask("SUBSCRIBE", "ERROR", topic=topic, subscription="s", subType=0, consumer_id=0)
    assert refused.error == pb.NotAllowedError
    refused = raw.ask("PRODUCER", "ERROR", topic=f"{topic}-partition-2", producer_id=0)
    assert refused.error == pb.TopicNotFound
    raw.producer(f"{topic}-partition-1")
    raw.subscribe(f"{topic}-partition-1")
    raw.publish(b"v")
    raw.send("FLOW", consumer_id=0, messagePermits=1)
    assert raw.expect("MESSAGE").message_id.partition == 1


@pytest.mark.parametrize(
    ("suffix", "partitions", "code"),
    [("-partition-1", 0, "bad-name"), ("", 1_001, "bad-request"), ("/x", 0, "bad-name")],
)
def test_topic_is_not_created_when_it_may_not_be(
    raw: RawClient, topic: str, suffix: str, partitions: int, code: str
) -> None:
    wanted = npb.CreateTopic(topic=topic + suffix, partitions=partitions)
    assert admin(raw, create_topic=wanted).code == code


def test_topic_is_not_created_when_kafka_would_take_it_for_another(
    raw: RawClient, topic: str
) -> None:
    name = local(topic)
    admin(raw, put_tenant=npb.PutTenant(tenant=npb.Tenant(name="a")))
    admin(raw, create_namespace=npb.CreateNamespace(namespace="a/b"))
    admin(raw, create_topic=npb.CreateTopic(topic=f"persistent://a/b/{name}"))
    refused = admin(raw, create_topic=npb.CreateTopic(topic=f"a.b.{name}"))
    assert refused.code == "topic-exists"
    assert f"persistent://a/b/{name}" in refused.message


def test_clients_are_let_go_when_their_topic_is_deleted(raw: RawClient, topic: str) -> None:
    raw.producer(topic)
    raw.subscribe(topic)
    raw.send("ADMIN", request_id=99, delete_topic=npb.TopicRef(topic=topic))
    assert raw.expect("CLOSE_PRODUCER").producer_id == 0
    assert raw.expect("CLOSE_CONSUMER").consumer_id == 0
    assert raw.expect("ADMIN_RESPONSE").request_id == 99


def test_subscription_is_made_on_all_partitions_reset_and_deleted(
    raw: RawClient, topic: str
) -> None:
    admin(raw, create_topic=npb.CreateTopic(topic=topic, partitions=2))
    raw.producer(f"{topic}-partition-0")
    raw.publish(b"v")
    ref: dict[str, Any] = {"topic": topic, "subscription": "g"}
    assert (
        admin(raw, delete_subscription=npb.SubscriptionRef(**ref)).code == "subscription-not-found"
    )
    admin(raw, create_subscription=npb.CreateSubscription(**ref))
    assert backlogs(raw, topic) == [0, 0]
    admin(raw, reset_subscription=npb.ResetSubscription(**ref, earliest=True))
    assert backlogs(raw, topic) == [1, 0]
    admin(raw, reset_subscription=npb.ResetSubscription(**ref, timestamp_ms=2**50))
    assert backlogs(raw, topic) == [0, 0]
    both = npb.ResetSubscription(**ref, earliest=True, latest=True)
    assert admin(raw, reset_subscription=both).code == "bad-request"
    admin(raw, delete_subscription=npb.SubscriptionRef(**ref))
    assert backlogs(raw, topic) == []


def backlogs(raw: RawClient, topic: str) -> list[int]:
    stats = admin(raw, describe_topic=npb.TopicRef(topic=topic)).stats
    return [subscription.backlog for subscription in stats.subscriptions]


def test_tokens_and_metrics_are_served(raw: RawClient, topic: str) -> None:
    take = npb.TakeToken(bucket=topic, per_minute=1, burst=1)
    assert admin(raw, take_token=take).token.granted
    assert not admin(raw, take_token=take).token.granted
    raw.producer(topic)
    raw.publish(b"v")
    metrics = admin(raw, get_metrics=npb.Nothing()).metrics
    lines = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if line[:1] not in "#")
    assert float(lines["router_broker_producers"]) >= 1
    assert float(lines["router_broker_entries_total"]) >= 1
    assert float(lines["router_broker_topics"]) >= 1


def test_request_that_says_nothing_is_refused(raw: RawClient) -> None:
    assert admin(raw).code == "bad-request"


def deduplicating(raw: RawClient, topic: str, producer_id: int = 0) -> pb.CommandProducerSuccess:
    return raw.producer(
        topic,
        producer_id,
        producer_name="d",
        metadata=[pb.KeyValue(key="router-dedup", value="true")],
    )


def test_entry_is_stored_once_when_it_is_sent_again(
    raw: RawClient, other: RawClient, topic: str
) -> None:
    assert deduplicating(raw, topic).last_sequence_id == -1
    first = raw.publish(b"a", b"b", sequence_id=1)
    again = raw.publish(b"a", b"b", sequence_id=1)
    assert again.message_id == first.message_id
    assert (first.stored_messages, again.stored_messages) == (0, 2)
    raw.ask("CLOSE_PRODUCER", "SUCCESS", producer_id=0)
    assert deduplicating(other, topic).last_sequence_id == 1
    assert other.publish(b"c", sequence_id=2).message_id.entryId == 1


def test_receipts_keep_their_order_when_some_were_stored_before(raw: RawClient, topic: str) -> None:
    deduplicating(raw, topic)
    raw.publish(b"v", sequence_id=2)
    for sequence_id in (0, 1, 2, 3, 4):
        raw.send_entry(b"v", sequence_id=sequence_id)
    receipts = [raw.expect("SEND_RECEIPT") for _ in range(5)]
    assert [receipt.sequence_id for receipt in receipts] == [0, 1, 2, 3, 4]
    assert [bool(receipt.stored_messages) for receipt in receipts] == [True] * 3 + [False] * 2


def test_producers_do_not_deduplicate_unless_asked(raw: RawClient, topic: str) -> None:
    raw.producer(topic, producer_name="d")
    first = raw.publish(b"v", sequence_id=1)
    assert raw.publish(b"v", sequence_id=1).message_id.entryId == first.message_id.entryId + 1


def claim(raw: RawClient, topic: str, claim_id: int, consumer: str) -> npb.CommandClaimUpdate:
    raw.send(
        "CLAIM",
        claim_id=claim_id,
        topic=topic,
        subscription="s",
        consumer=consumer,
        partitions=0,
    )
    update: npb.CommandClaimUpdate = raw.expect("CLAIM_UPDATE")
    return update


def acknowledge(raw: RawClient, place: pb.MessageIdData, generation: int) -> pb.CommandAckResponse:
    response: pb.CommandAckResponse = raw.ask(
        "ACK",
        "ACK_RESPONSE",
        consumer_id=0,
        ack_type=pb.CommandAck.Cumulative,
        message_id=[place],
        properties=[pb.KeyLongValue(key="router-generation", value=generation)],
    )
    return response


def test_acknowledgement_is_refused_when_a_newer_claim_was_granted(
    raw: RawClient, topic: str
) -> None:
    raw.producer(topic)
    place = raw.publish(b"v").message_id
    raw.subscribe(topic)
    (old,) = claim(raw, topic, 1, "c").granted
    raw.send("RELEASE", claim_id=1)
    (new,) = claim(raw, topic, 2, "c").granted
    refused = acknowledge(raw, place, old.generation)
    assert refused.error == pb.NotAllowedError
    assert refused.message.startswith("fenced")
    assert backlogs(raw, topic) == [1]
    assert not acknowledge(raw, place, new.generation).HasField("error")
    assert backlogs(raw, topic) == [0]


def test_acknowledgement_with_a_receipt_survives_a_kill(
    broker: BrokerProcess, connect: Connect
) -> None:
    raw = greeted(connect(broker))
    raw.producer("t")
    places = [raw.publish(b"%d" % n, sequence_id=n).message_id for n in range(3)]
    raw.subscribe("t")
    response = raw.ask(
        "ACK", "ACK_RESPONSE", consumer_id=0, ack_type=0, message_id=[places[0], places[2]]
    )
    assert not response.HasField("error")
    broker.kill()
    broker.start()
    again = greeted(connect(broker))
    again.subscribe("t")
    again.send("FLOW", consumer_id=0, messagePermits=9)
    assert again.expect("MESSAGE").message_id.entryId == 1
    assert again.silent()


def test_broker_entry_metadata_is_sent_to_clients_that_know_it(
    shared_broker: BrokerProcess, connect: Connect, topic: str
) -> None:
    prefixes = []
    for knows in (False, True):
        raw = connect(shared_broker)
        raw.shake_hands(feature_flags=pb.FeatureFlags(supports_broker_entry_metadata=knows))
        raw.producer(topic)
        raw.publish(b"a", b"b")
        raw.subscribe(topic, subscription=f"s{knows}")
        raw.send("FLOW", consumer_id=0, messagePermits=1)
        frame = raw.read()
        assert frame is not None
        prefixes.append(frame.payload[:2])
    assert prefixes == [b"\x0e\x01", b"\x0e\x02"]


def test_stats_of_a_consumer_are_told(raw: RawClient, topic: str) -> None:
    raw.producer(topic)
    raw.publish(b"v")
    raw.subscribe(topic, consumer_name="me")
    raw.send("FLOW", consumer_id=0, messagePermits=0)
    stats = raw.ask("CONSUMER_STATS", "CONSUMER_STATS_RESPONSE", consumer_id=0)
    assert (stats.consumerName, stats.type, stats.msgBacklog) == ("me", "Exclusive", 1)


@pytest.fixture
def impatient(tmp_path: Path, free_port: int) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "data", free_port, broker_ping="3s")
    process.start()
    yield process
    process.stop()


def test_silent_client_is_pinged_and_closed_when_it_stays_silent(
    impatient: BrokerProcess, connect: Connect
) -> None:
    polite, silent = greeted(connect(impatient)), greeted(connect(impatient))
    polite.expect_ping()
    polite.send("PONG")
    silent.expect_ping()
    assert silent.closed_while_silent()
    polite.send("PING")
    polite.expect("PONG")


def hold_three(raw: RawClient, topic: str) -> list[pb.MessageIdData]:
    """Publish three entries, and have a shared consumer receive them."""
    raw.producer(topic)
    raw.subscribe(topic, subType=pb.CommandSubscribe.Shared)
    for sequence_id in range(3):
        raw.publish(b"v", sequence_id=sequence_id)
    raw.send("FLOW", consumer_id=0, messagePermits=10)
    return [raw.expect("MESSAGE").message_id for _ in range(3)]


def test_entries_that_a_shared_consumer_holds_are_acknowledged_without_it(
    raw: RawClient, other: RawClient, topic: str
) -> None:
    held = hold_three(raw, topic)
    places = held[:2]
    acknowledged = npb.AcknowledgePositions(topic=topic, subscription="s", message_id=places)
    assert not admin(other, acknowledge=acknowledged).HasField("code")
    asked = npb.DescribeCursors(topic=topic, subscription="s")
    (state,) = admin(other, describe_cursors=asked).cursors
    assert (state.mark_delete, state.unacked, state.type) == (1, 1, "Shared")
    raw.send("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=0)
    assert raw.expect("MESSAGE").message_id.entryId == 2
    assert raw.silent()


def test_entries_that_are_skipped_are_held_by_nobody(
    raw: RawClient, other: RawClient, topic: str
) -> None:
    assert [place.entryId for place in hold_three(raw, topic)] == [0, 1, 2]
    skipped = npb.SkipMessages(topic=topic, subscription="s", count=2)
    assert not admin(other, skip_messages=skipped).HasField("code")
    asked = npb.DescribeCursors(topic=topic, subscription="s")
    (state,) = admin(other, describe_cursors=asked).cursors
    assert (state.mark_delete, state.unacked) == (1, 1)


def test_producers_and_consumers_of_a_topic_are_named(
    raw: RawClient, other: RawClient, topic: str
) -> None:
    raw.producer(topic, producer_name="me")
    raw.subscribe(topic, 4, consumer_name="you")
    raw.send("FLOW", consumer_id=4, messagePermits=10)
    found = admin(other, describe_clients=npb.DescribeClients(topic=topic)).clients
    assert [(f.name, f.id, f.subscription, f.permits) for f in found] == [
        ("me", 0, "", 0),
        ("you", 4, "s", 10),
    ]
    assert {f.version for f in found} == {"raw"}
    assert all(f.address.startswith("127.0.0.1:") for f in found)
    later = admin(other, describe_clients=npb.DescribeClients(topic=topic, after=1)).clients
    assert [f.name for f in later] == ["you"]
    beyond = admin(other, describe_clients=npb.DescribeClients(topic=topic, after=2**64 - 1))
    assert (beyond.code, list(beyond.clients), beyond.more) == ("", [], False)


def test_namespace_goes_with_all_its_topics_when_that_is_forced(
    raw: RawClient, other: RawClient, topic: str
) -> None:
    namespace = f"public/{local(topic)}"
    admin(raw, create_namespace=npb.CreateNamespace(namespace=namespace))
    (found,) = admin(raw, get_namespace=namespace).namespaces
    assert found.created_ms > 1_700_000_000_000
    raw.producer(f"persistent://{namespace}/t")
    raw.producer(f"non-persistent://{namespace}/t", 1)
    refused = admin(other, delete_namespace=npb.DeleteNamespace(namespace=namespace))
    assert refused.code == "conflict"
    forced = npb.DeleteNamespace(namespace=namespace, force=True)
    assert not admin(other, delete_namespace=forced).HasField("code")
    assert {raw.expect("CLOSE_PRODUCER").producer_id for _ in range(2)} == {0, 1}
    assert admin(raw, get_namespace=namespace).code == "namespace-not-found"
    refused = raw.ask("PRODUCER", "ERROR", topic=f"persistent://{namespace}/t", producer_id=2)
    assert refused.error == pb.TopicNotFound
    listed = admin(raw, list_namespaces=npb.ListNames(under="public")).namespaces
    assert namespace not in [found.name for found in listed]


def test_deduplication_of_a_namespace_holds_for_producers_that_are_there(
    raw: RawClient, other: RawClient, topic: str
) -> None:
    namespace = f"public/{local(topic)}"
    admin(raw, create_namespace=npb.CreateNamespace(namespace=namespace))
    raw.producer(f"persistent://{namespace}/t", producer_name="p")
    first, again = raw.publish(b"a", sequence_id=1), raw.publish(b"a", sequence_id=1)
    assert first.message_id != again.message_id
    policies = npb.Policies(deduplication=True)
    admin(other, change_policies=npb.ChangePolicies(namespace=namespace, policies=policies))
    third, last = raw.publish(b"a", sequence_id=2), raw.publish(b"a", sequence_id=2)
    assert third.message_id == last.message_id
