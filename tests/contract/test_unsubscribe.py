"""What every backend promises about subscriptions that end."""

from __future__ import annotations

import pytest

from router.backends import Batch, Start
from router.errors import SubscriptionNotFoundError, TopicNotFoundError
from router.model import NOT_PARTITIONED, Grant, Message, Subscription
from tests.contract.conftest import WAIT, Bell, Opened

pytestmark = pytest.mark.contract


@pytest.mark.parametrize("partitions", [0, 3])
def test_an_ended_subscription_is_gone_from_all_partitions(opened: Opened, partitions: int) -> None:
    topic = opened.new_topic(partitions)
    mine, other = Subscription(topic, "mine"), Subscription(topic, "other")
    for subscription in (mine, other):
        opened.backend.subscribe(subscription, Start.LATEST, WAIT)
    opened.backend.unsubscribe(mine, WAIT)
    stats = opened.backend.describe_topic(topic, WAIT)
    assert {found.name for found in stats.subscriptions} == {"other"}
    partition = 0 if partitions else NOT_PARTITIONED
    if opened.kind == "apache":  # where who reads makes a subscription, at the end
        opened.backend.publish(Batch(topic, partition, [Message(b"1")]), WAIT)
        consumer = opened.backend.consume(Grant(mine, partition, 1), Bell(), WAIT)
        assert consumer.receive(10, 1000, WAIT) == []
        consumer.close()
    else:
        with pytest.raises(SubscriptionNotFoundError):
            opened.backend.consume(Grant(mine, partition, 1), Bell(), WAIT)


def test_a_subscription_that_is_made_again_starts_anew(opened: Opened) -> None:
    topic = opened.new_topic()
    position = opened.backend.publish(Batch(topic, NOT_PARTITIONED, [Message(b"1")]), WAIT).position
    first = opened.consumer(topic)
    first.acknowledge(position, WAIT)
    first.close()
    opened.backend.unsubscribe(Subscription(topic, "g"), WAIT)
    again = opened.consumer(topic)
    assert [stored.message.value for stored in again.receive(10, 1000, WAIT)] == [b"1"]
    again.close()


def test_ending_no_subscription_is_done_already(opened: Opened) -> None:
    topic = opened.new_topic()
    opened.backend.unsubscribe(Subscription(topic, "never"), WAIT)


def test_ending_a_subscription_of_no_topic_is_refused(opened: Opened) -> None:
    with pytest.raises(TopicNotFoundError):
        opened.backend.unsubscribe(Subscription(opened.new_name(), "g"), WAIT)
