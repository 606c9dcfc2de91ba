"""Topics as the official Pulsar client finds, grows, watches and uses them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pulsar
import pytest

from router.wire.node import node_pb2 as npb
from router.wire.pulsar import pulsar_pb2 as pb
from tests.broker.conftest import official_client
from tests.broker.raw import RawClient
from tests.ports import free_port
from tests.processes import BrokerProcess

SOON = 5_000
NOTHING = 300
EARLIEST: dict[str, Any] = {"initial_position": pulsar.InitialPosition.Earliest}


def admin(raw: RawClient, **request: Any) -> npb.CommandAdminResponse:
    response: npb.CommandAdminResponse = raw.ask("ADMIN", "ADMIN_RESPONSE", **request)
    assert not response.HasField("code"), response
    return response


def values(consumer: pulsar.Consumer, count: int) -> set[bytes]:
    found = set()
    for _ in range(count):
        message = consumer.receive(SOON)
        found.add(message.data())
        consumer.acknowledge(message)
    return found


def eventually(check: Callable[[], bool], patience: float = 30.0) -> None:
    until = time.monotonic() + patience
    while not check():
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.fixture
def non_persistent(topic: str) -> str:
    return topic.replace("persistent://", "non-persistent://")


@pytest.mark.parametrize("name", ["persistent://public/nowhere/t", "persistent://nobody/ns/t"])
def test_topic_is_not_found_when_its_namespace_is_missing(client: pulsar.Client, name: str) -> None:
    with pytest.raises(pulsar.TopicNotFound):
        client.create_producer(name)
    with pytest.raises(pulsar.TopicNotFound):
        client.subscribe(name, "s")
    with pytest.raises(pulsar.TopicNotFound):
        client.create_producer(name.replace("persistent", "non-persistent"))


def test_topics_of_a_namespace_are_used_once_it_is_created(
    client: pulsar.Client, raw: RawClient
) -> None:
    tenant = f"t-{uuid4().hex}"
    admin(raw, put_tenant=npb.PutTenant(tenant=npb.Tenant(name=tenant)))
    admin(raw, create_namespace=npb.CreateNamespace(namespace=f"{tenant}/ns"))
    consumer = client.subscribe(f"persistent://{tenant}/ns/t", "s")
    client.create_producer(f"persistent://{tenant}/ns/t").send(b"v")
    assert values(consumer, 1) == {b"v"}


def test_namespace_decides_whether_topics_are_created_and_how_many_partitions_they_get(
    client: pulsar.Client, raw: RawClient
) -> None:
    namespace = f"public/n-{uuid4().hex}"
    policies = npb.Policies(auto_create=False)
    admin(raw, create_namespace=npb.CreateNamespace(namespace=namespace, policies=policies))
    with pytest.raises(pulsar.TopicNotFound):
        client.create_producer(f"persistent://{namespace}/t")
    changed = npb.Policies(auto_create=True, auto_partitions=3)
    admin(raw, change_policies=npb.ChangePolicies(namespace=namespace, policies=changed))
    client.create_producer(f"persistent://{namespace}/t")
    assert len(client.get_topic_partitions(f"persistent://{namespace}/t")) == 3


def test_patterns_find_topics_of_their_namespace(client: pulsar.Client, topic: str) -> None:
    for suffix in ("a", "b", "z"):
        client.create_producer(f"{topic}-{suffix}").send(suffix.encode())
    consumer = client.subscribe(re.compile(f"{topic}-[ab]"), "s", **EARLIEST)
    assert values(consumer, 2) == {b"a", b"b"}
    with pytest.raises(pulsar.Timeout):
        consumer.receive(NOTHING)


def test_partitions_that_are_added_have_the_subscriptions_from_their_beginning(
    client: pulsar.Client, raw: RawClient, topic: str, shared_broker: BrokerProcess
) -> None:
    admin(raw, create_topic=npb.CreateTopic(topic=topic, partitions=2))
    client.subscribe(topic, "s").close()
    admin(raw, update_partitions=npb.UpdatePartitions(topic=topic, partitions=4))
    newcomer = official_client(shared_broker.url)
    try:
        assert len(newcomer.get_topic_partitions(topic)) == 4
        for index in range(4):
            newcomer.create_producer(f"{topic}-partition-{index}").send(b"%d" % index)
        # Latest, so that only what the subscription was given before is the reason to receive it.
        assert values(newcomer.subscribe(topic, "s"), 4) == {b"0", b"1", b"2", b"3"}
    finally:
        newcomer.close()


def test_topic_that_is_not_persistent_reaches_who_is_there(
    client: pulsar.Client, non_persistent: str, raw: RawClient
) -> None:
    producer = client.create_producer(non_persistent)
    producer.send(b"nobody is there")
    one = client.subscribe(non_persistent, "one")
    two = client.subscribe(non_persistent, "two", consumer_type=pulsar.ConsumerType.Shared)
    sent = [producer.send(b"m%d" % n) for n in range(3)]
    assert [(place.ledger_id(), place.entry_id()) for place in sent] == [(0, 0)] * 3
    for consumer in (one, two):
        got = [consumer.receive(SOON).data() for _ in range(3)]
        assert got == [b"m0", b"m1", b"m2"]
    listed = raw.ask(
        "GET_TOPICS_OF_NAMESPACE",
        "GET_TOPICS_OF_NAMESPACE_RESPONSE",
        namespace="public/default",
        mode=pb.CommandGetTopicsOfNamespace.NON_PERSISTENT,
    )
    assert non_persistent in listed.topics
    one.unsubscribe()
    two.close()
    three = client.subscribe(non_persistent, "one", **EARLIEST)
    with pytest.raises(pulsar.Timeout):
        three.receive(NOTHING)


def test_consumer_without_permits_misses_what_is_sent_meanwhile(
    client: pulsar.Client, non_persistent: str, raw: RawClient
) -> None:
    consumer = client.subscribe(non_persistent, "s", receiver_queue_size=2)
    producer = client.create_producer(non_persistent, batching_enabled=False)
    for n in range(10):
        producer.send(b"%d" % n)
    assert [consumer.receive(SOON).data() for _ in range(2)] == [b"0", b"1"]
    clients = admin(raw, describe_clients=npb.DescribeClients(topic=non_persistent)).clients
    (missing,) = [found for found in clients if found.HasField("subscription")]
    assert missing.dropped >= 7
    producer.send(b"again")
    eventually(lambda: consumer.receive(SOON).data() == b"again")


def test_topic_that_is_not_persistent_has_exclusive_consumers(
    client: pulsar.Client, non_persistent: str, shared_broker: BrokerProcess
) -> None:
    client.subscribe(non_persistent, "s")
    other = official_client(shared_broker.url)
    try:
        with pytest.raises(pulsar.ConsumerBusy):
            other.subscribe(non_persistent, "s")
    finally:
        other.close()


def test_namespaces_exist_when_topics_are_in_them_at_the_start(
    tmp_path: Path,
) -> None:
    name = "persistent://old/one/t"
    process = BrokerProcess(tmp_path / "data", free_port(), namespaces_auto_create="true")
    process.start()
    found = official_client(process.url)
    found.create_producer(name).send(b"v")
    found.close()
    process.stop()
    process = BrokerProcess(tmp_path / "data", free_port())
    process.start()
    found = official_client(process.url)
    try:
        found.create_producer(name.replace("/t", "/u"))
        assert values(found.subscribe(name, "s", **EARLIEST), 1) == {b"v"}
    finally:
        found.close()
        process.stop()
