"""What statistics tell of the clients of a topic: those that produce, and those that consume."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pulsar
import pytest
from flask.testing import FlaskClient

from router.app import create_app
from router.settings import load
from tests.ports import free_port
from tests.processes import BrokerProcess

BASE = "/admin/v2"


def stats(site: FlaskClient, topic: str) -> Any:
    answer = site.get(f"{BASE}/{topic}/stats")
    assert answer.status_code == 200, answer.data
    return answer.json


def now() -> float:
    return time.time_ns() / 1e9


def check_since(told: dict[str, Any], began: float) -> None:
    since = datetime.fromisoformat(told["connectedSince"]).timestamp()
    assert began - 1 <= since <= now() + 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "name"),
    [
        (pulsar.ProducerAccessMode.Shared, "Shared"),
        (pulsar.ProducerAccessMode.Exclusive, "Exclusive"),
        (pulsar.ProducerAccessMode.ExclusiveWithFencing, "ExclusiveWithFencing"),
    ],
)
def test_statistics_tell_of_a_producer(
    site: FlaskClient, topic: str, client: pulsar.Client, mode: Any, name: str
) -> None:
    began = now()
    producer = client.create_producer(
        topic.replace("/", "://", 1),
        producer_name="p",
        properties={"app": "shop", "zone": "é"},
        access_mode=mode,
    )
    [told] = stats(site, topic)["publishers"]
    assert (told["producerName"], told["accessMode"]) == ("p", name)
    assert told["metadata"] == {"app": "shop", "zone": "é"}
    check_since(told, began)
    producer.close()


@pytest.mark.parametrize("replicated", [False, True])
def test_statistics_tell_of_a_consumer(
    site: FlaskClient, topic: str, client: pulsar.Client, replicated: bool
) -> None:
    began = now()
    consumer = client.subscribe(
        topic.replace("/", "://", 1),
        "s",
        consumer_name="c",
        properties={"app": "billing"},
        replicate_subscription_state_enabled=replicated,
    )
    told = stats(site, topic)["subscriptions"]["s"]
    assert told["isReplicated"] is replicated
    assert told["subscriptionProperties"] == {}
    [shown] = told["consumers"]
    assert (shown["consumerName"], shown["metadata"]) == ("c", {"app": "billing"})
    check_since(shown, began)
    consumer.close()


def test_statistics_tell_of_clients_of_a_topic_that_is_not_persistent(
    site: FlaskClient, namespace: str, client: pulsar.Client
) -> None:
    topic, began = f"non-persistent/{namespace}/f", now()
    url = topic.replace("/", "://", 1)
    consumer = client.subscribe(url, "s", properties={"app": "billing"})
    producer = client.create_producer(url, properties={"app": "shop"})
    producer.send(b"v")
    consumer.receive(10_000)
    told = stats(site, topic)
    [publisher], [reader] = told["publishers"], told["subscriptions"]["s"]["consumers"]
    assert told["msgOutCounter"] == told["subscriptions"]["s"]["msgOutCounter"] == 1
    assert min(told["msgRateIn"], told["msgRateOut"], publisher["msgRateIn"]) > 0
    assert (publisher["metadata"], publisher["accessMode"]) == ({"app": "shop"}, "Shared")
    assert reader["metadata"] == {"app": "billing"}
    check_since(publisher, began)
    check_since(reader, began)
    producer.close()
    consumer.close()


def test_metadata_of_a_client_is_kept_up_to_a_bound(
    site: FlaskClient, topic: str, client: pulsar.Client
) -> None:
    properties = {f"k{number:02}": "v" * 100 for number in range(60)}
    producer = client.create_producer(topic.replace("/", "://", 1), properties=properties)
    [told] = stats(site, topic)["publishers"]
    assert 0 < sum(len(key) + len(value) for key, value in told["metadata"].items()) <= 2_048
    assert told["metadata"].items() <= properties.items()
    producer.close()


@pytest.mark.slow
def test_replicated_flag_of_a_subscription_outlives_the_broker(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", free_port())
    broker.start()
    client = pulsar.Client(broker.url, operation_timeout_seconds=10)
    client.subscribe("kept", "s", replicate_subscription_state_enabled=True).close()
    client.close()
    broker.stop()
    broker.start()
    settings = {
        "data.dir": str(broker.folder),
        "broker.spawn": "false",
        "broker.pulsar": broker.url.removeprefix("pulsar://"),
    }
    app = create_app(load(None, {}, settings), only_admin=True)
    try:
        told = stats(app.test_client(), "persistent/public/default/kept")
        assert told["subscriptions"]["s"]["isReplicated"] is True
        assert told["subscriptions"]["s"]["subscriptionProperties"] == {}
    finally:
        app.extensions["router.close"]()
        broker.stop()
