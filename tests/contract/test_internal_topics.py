"""Topics that belong to a store itself: no call of a backend and no route reaches them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from flask import Flask
from kafka import KafkaAdminClient, KafkaProducer

from router.app import create_app
from router.backends import Backend, Batch, Start
from router.backends.kafka.names import SCHEMAS
from router.backends.pulsar import PulsarBackend
from router.backends.pulsar.extents import BEGINNING
from router.errors import InternalTopicError
from router.model import (
    NOT_PARTITIONED,
    Grant,
    Message,
    Position,
    Schema,
    SchemaType,
    Subscription,
    TopicInfo,
    TopicName,
)
from tests.contract.conftest import (
    ON_APACHE,
    ON_KAFKA,
    WAIT,
    Bell,
    Opened,
    open_apache,
    open_kafka,
)

VARIABLE = re.compile(r"<(?:\w+:)?(\w+)>")
LOCAL = "persistent://public/default/"
# Of transactions, the load manager and health checks of Apache Pulsar.
OTHERS = [
    TopicName.parse(name)
    for name in (
        "persistent://public/default/__transaction_buffer_snapshot",
        "persistent://public/default/t-s__transaction_pending_ack-partition-0",
        "persistent://pulsar/system/transaction_coordinator_assign-partition-0",
        "non-persistent://pulsar/system/loadbalancer-broker-load-data",
        "persistent://pulsar/localhost:8080/healthcheck",
    )
]

pytestmark = pytest.mark.contract


class Store:
    """A real store, an application over it, and the internal topics that it has by its own word."""

    def __init__(
        self, opened: Opened, topics: list[TopicName], others: Sequence[TopicName] = ()
    ) -> None:
        """`others`: internal topics that the store makes where their features are turned on."""
        self.opened = opened
        self.topics = [*topics, *others]
        self.made = {part[0] if (part := topic.parent()) else topic for topic in topics}
        self.app: Flask = create_app(opened.settings, opened.backend, opened.node)


def kafka_internals(opened: Opened, address: str) -> list[TopicName]:
    """Have Kafka make its internal topics, and the router its own; return what Kafka lists."""
    topic = opened.new_topic()
    opened.backend.publish(Batch(topic, NOT_PARTITIONED, [Message(b"1")]), WAIT)
    consumer = opened.consumer(topic)
    consumer.acknowledge(consumer.receive(1, 100, WAIT)[0].position, WAIT)
    consumer.close()
    opened.backend.schemas.put(topic, Schema(SchemaType.STRING, b""), WAIT)
    producer = KafkaProducer(bootstrap_servers=address, transactional_id="internal-topics")
    producer.init_transactions()
    producer.close()
    admin = KafkaAdminClient(bootstrap_servers=address)
    try:
        found = [one["name"] for one in admin.describe_topics() if one["is_internal"]]
    finally:
        admin.close()
    assert {"__consumer_offsets", "__transaction_state"} <= set(found)
    return [TopicName.parse(name) for name in (*found, SCHEMAS)]


def apache_internals(opened: Opened, ask: Callable[..., Any]) -> list[TopicName]:
    """Have Apache Pulsar make its topic of policies, and return the topics that it hides."""
    topic = opened.new_topic()
    ask("POST", f"persistent/public/default/{topic.local}/deduplicationEnabled", body=True)
    path, found, end = "persistent/public/default", set[str](), time.monotonic() + WAIT
    while not found:
        assert time.monotonic() < end
        found = set(ask("GET", f"{path}?includeSystemTopic=true")) - set(ask("GET", path))
    assert any("__change_events" in name for name in found)
    return [TopicName.parse(name) for name in sorted(found)]


@pytest.fixture(
    scope="module",
    params=[pytest.param("kafka", marks=ON_KAFKA), pytest.param("apache", marks=ON_APACHE)],
)
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    folder = tmp_path_factory.mktemp("data")
    with ExitStack() as stack:
        if request.param == "kafka":
            address = request.getfixturevalue("kafka").address
            opened = open_kafka(address, folder, stack)
            found = Store(opened, kafka_internals(opened, address))
        else:
            server = request.getfixturevalue("apache_pulsar")
            opened = open_apache(server, folder, stack)
            found = Store(opened, apache_internals(opened, server.ask), OTHERS)
        stack.callback(found.app.extensions["router.close"])
        yield found


def calls(backend: Backend, topic: TopicName) -> Iterator[Callable[[], object]]:
    """Yield every call of a backend that names a topic."""
    group = Subscription(topic, "g")
    here = Position(0, 0, NOT_PARTITIONED)
    batch, named = Batch(topic, NOT_PARTITIONED, [Message(b"1")]), ("name", 1)
    yield lambda: backend.publish(batch, WAIT)
    yield lambda: backend.publish(replace(batch, producer="p", sequence=1), WAIT)
    yield lambda: backend.partitions(topic, WAIT)
    yield lambda: backend.subscribe(group, Start.EARLIEST, WAIT)
    yield lambda: backend.subscribe(group, 1, WAIT)
    yield lambda: backend.reset(group, Start.LATEST, WAIT)
    yield lambda: backend.unsubscribe(group, WAIT)
    yield lambda: backend.consume(Grant(group, NOT_PARTITIONED, 1), Bell(), WAIT)
    yield lambda: backend.read(topic, NOT_PARTITIONED, Start.EARLIEST, Bell(), WAIT)
    yield lambda: backend.acknowledge(group, (here,), True, WAIT)
    yield lambda: backend.cursors(group, WAIT)
    yield lambda: backend.create_topic(TopicInfo(topic), WAIT)
    yield lambda: backend.create_topic(TopicInfo(topic, 3), WAIT)
    yield lambda: backend.create_on_demand(topic, 0, WAIT)
    yield lambda: backend.delete_topic(topic, WAIT)
    yield lambda: backend.describe_topic(topic, WAIT)
    yield lambda: backend.schemas.get(topic, None, WAIT)
    yield lambda: backend.schemas.put(topic, Schema(SchemaType.STRING, b""), WAIT)
    if isinstance(backend, PulsarBackend):
        yield lambda: backend.grow_topic(topic, 3, WAIT)
        yield lambda: backend.extents({topic: ()}, WAIT)
        yield lambda: backend.stream(topic, NOT_PARTITIONED, BEGINNING, WAIT)
        yield lambda: backend.deduplicates(topic, WAIT)
        yield lambda: backend.deduplicate(topic, WAIT)
        yield lambda: backend.find_batch(topic, NOT_PARTITIONED, named, None, WAIT)


def test_no_call_of_a_backend_reaches_an_internal_topic(store: Store) -> None:
    for topic in store.topics:
        for number, call in enumerate(calls(store.opened.backend, topic)):
            try:
                call()
            except InternalTopicError:
                continue
            pytest.fail(f"call {number} reached {topic}")


def test_internal_topics_are_not_listed(store: Store) -> None:
    listed = {info.topic for info in store.opened.backend.list_topics(WAIT)}
    assert listed
    assert not listed & set(store.topics)


def test_internal_topics_are_listed_and_marked_when_they_are_requested(store: Store) -> None:
    backend = store.opened.backend
    usual, listed = backend.list_topics(WAIT), backend.list_topics(WAIT, internal=True)
    assert [info for info in listed if not info.internal] == usual
    marked = {info.topic for info in listed if info.internal}
    assert store.made <= marked
    for topic in marked:
        with pytest.raises(InternalTopicError):
            backend.describe_topic(topic, WAIT)


def test_routes_list_internal_topics_when_they_are_requested(store: Store) -> None:
    client = store.app.test_client()
    names = {topic.local for topic in store.made if str(topic).startswith(LOCAL)}
    assert names
    assert names <= set(client.get("/topics?internal=true").get_json()["topics"])
    listed = client.get("/topics/listAll?internal=true").get_json()["topics"]
    assert names <= {one["topicName"] for one in listed if one["internal"]}
    assert all(one["partitionCount"] >= 1 for one in listed)
    usual = client.get("/topics/listAll").get_json()["topics"]
    assert names.isdisjoint(client.get("/topics").get_json()["topics"])
    assert names.isdisjoint(one["topicName"] for one in usual)


def addresses(app: Flask, topic: TopicName) -> Iterator[tuple[str, str]]:
    """Yield method and path of every route that can name a topic."""
    values = {"topic": topic.local, "tenant": topic.tenant, "namespace": topic.namespace}
    values |= {"partition": "0", "role": "producer"}
    local = (topic.tenant, topic.namespace) == ("public", "default")
    for rule in app.url_map.iter_rules():
        if "topic" in rule.arguments and (local or "tenant" in rule.arguments):
            path = VARIABLE.sub(lambda found: values.get(found[1], "x"), rule.rule)
            for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}:
                yield method, path


def test_no_route_serves_an_internal_topic(store: Store) -> None:
    client = store.app.test_client()
    for topic in store.topics:
        for method, path in addresses(store.app, topic):
            answer = client.open(path, method=method, data="{}", content_type="application/json")
            assert answer.status_code >= 400, (method, path, answer.text)


def requests(name: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield complete requests of every dialect about a topic."""
    pip64 = f"/topics/public/default/{name}"
    producing = {"value_schema": {"type": "STRING"}, "messages": [{"value": "v"}]}
    yield "POST", f"/events/{name}", {"data": "x", "content_type": "text/plain"}
    yield "GET", f"/events/{name}/g/c?timeout=0", {}
    yield "GET", f"/events/{name}?stream", {}
    yield "GET", f"/topics/{name}", {}
    yield "DELETE", f"/topics/{name}", {}
    yield "POST", "/topics/create", {"json": {"topicName": name, "partitionCount": 1}}
    yield "GET", f"/topics/{name}/groups", {}
    yield "POST", f"/topics/{name}/groups/g/reset?to=earliest", {}
    yield "POST", pip64, {"json": producing}
    yield "GET", f"{pip64}/messages?stream", {}
    yield "POST", f"{pip64}/subscription/s", {"json": {}}
    yield "GET", f"{pip64}/subscription/s/cursor", {}
    yield "GET", f"/console/topics/{name}", {}


def test_internal_topics_are_refused_with_a_code_of_their_own(store: Store) -> None:
    client = store.app.test_client()
    name = store.topics[0].local
    for method, address, body in requests(name):
        answer = client.open(address, method=method, **body)
        assert answer.status_code == 403, (method, address, answer.text)
        assert "is internal to" in answer.text, (method, address, answer.text)
