"""Publishing of the router to topics that other clients hold, wait for, or end."""

from __future__ import annotations

from collections.abc import Iterator

import pulsar as official
import pytest

from router import settings as all_settings
from router.backends import Backend, Batch, pulsar
from router.errors import TopicHeldError, TopicTerminatedError
from router.model import NOT_PARTITIONED, Message, TopicName
from router.wire.node import node_pb2 as pb
from tests.broker.raw import RawClient
from tests.processes import BrokerProcess

WAIT = 5.0


@pytest.fixture
def router(shared_broker: BrokerProcess) -> Iterator[Backend]:
    backend = pulsar.open_backend(shared_broker.url, all_settings.load(None, {}, {}), None)
    yield backend
    backend.close()


def publish(router: Backend, topic: str, value: bytes) -> int:
    batch = Batch(TopicName.parse(topic), NOT_PARTITIONED, [Message(value)])
    return router.publish(batch, WAIT).position.entry


def test_publishing_goes_on_when_a_holder_is_gone(
    router: Backend, client: official.Client, topic: str
) -> None:
    holder = client.create_producer(topic, access_mode=official.ProducerAccessMode.Exclusive)
    with pytest.raises(TopicHeldError, match="exclusive producer"):
        publish(router, topic, b"refused")
    holder.close()
    assert publish(router, topic, b"stored") == 0


def test_publishing_stops_when_a_topic_is_taken_over(
    router: Backend, client: official.Client, topic: str
) -> None:
    assert publish(router, topic, b"first") == 0
    fence = official.ProducerAccessMode.ExclusiveWithFencing
    holder = client.create_producer(topic, access_mode=fence)
    with pytest.raises(TopicHeldError):
        publish(router, topic, b"refused")
    holder.close()
    assert publish(router, topic, b"second") == 1


def test_publishing_to_a_terminated_topic_is_refused(
    router: Backend, raw: RawClient, topic: str
) -> None:
    assert publish(router, topic, b"first") == 0
    raw.send("ADMIN", request_id=1, terminate_topic=pb.TopicRef(topic=topic))
    raw.expect("ADMIN_RESPONSE")
    for _ in range(2):
        with pytest.raises(TopicTerminatedError):
            publish(router, topic, b"too late")
