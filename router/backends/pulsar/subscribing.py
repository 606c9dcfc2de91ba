"""Attaching to subscriptions on the binary protocol."""

from __future__ import annotations

from router.backends import Start
from router.backends.pulsar.connection import Connection
from router.backends.pulsar.consumer import PulsarConsumer, close_consumer
from router.backends.pulsar.link import Link
from router.backends.pulsar.refusals import refusal
from router.backends.pulsar.routes import Routes
from router.errors import BackendTimeoutError, SubscriptionBusyError
from router.model import NOT_PARTITIONED, Subscription
from router.wire.pulsar import pulsar_pb2 as pb


class Deaf:
    """A mailbox of nobody, for a consumer that only leaves its cursor behind."""

    def wake(self) -> None:
        """Wake nobody."""


def attach(
    connection: Connection,
    consumer: PulsarConsumer,
    topic: str,
    name: str,
    *,
    start: Start | None = None,
    deadline: float,
) -> None:
    """Open a consumer at its broker; raise what the broker answers.

    Without a start the subscription has to exist. Apache Pulsar has no word for that: there it is
    made, at its latest message.
    """
    request_id = connection.next_id()
    command = pb.CommandSubscribe(
        topic=topic,
        subscription=name,
        subType=pb.CommandSubscribe.Exclusive,
        consumer_id=consumer.number,
        request_id=request_id,
        consumer_name=f"router-{consumer.number}",
        durable=True,
        initialPosition=_START[start or Start.LATEST],
        metadata=_EXISTING if start is None else (),
        force_topic_creation=False,
    )
    connection.add_consumer(consumer.number, consumer)
    try:
        answer = connection.call(
            request_id, pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE, subscribe=command), deadline
        )
    except BackendTimeoutError:
        connection.drop_consumer(consumer.number)
        close_consumer(connection, consumer.number)
        raise
    except BaseException:
        connection.drop_consumer(consumer.number)
        raise
    consumer.epoch = answer.router_epoch


def make_subscription(
    routes: Routes, subscription: Subscription, start: Start, deadline: float
) -> None:
    """Make a durable subscription on every partition, by a consumer that comes and goes."""
    partitions = count_partitions(routes.service, str(subscription.topic), deadline)
    for partition in range(partitions) if partitions else (NOT_PARTITIONED,):
        topic = str(subscription.topic.partition(partition))
        connection = routes.connection(topic, deadline)
        consumer = PulsarConsumer(connection, connection.next_id(), partition, 0, Deaf())
        try:
            attach(connection, consumer, topic, subscription.name, start=start, deadline=deadline)
        except SubscriptionBusyError:
            continue  # whoever reads it proves that it exists
        consumer.close()


def end_subscription(routes: Routes, subscription: Subscription, deadline: float) -> None:
    """End a subscription on every partition, by a consumer that unsubscribes.

    Raises SubscriptionBusyError where somebody reads it.
    """
    partitions = count_partitions(routes.service, str(subscription.topic), deadline)
    for partition in range(partitions) if partitions else (NOT_PARTITIONED,):
        topic = str(subscription.topic.partition(partition))
        connection = routes.connection(topic, deadline)
        consumer = PulsarConsumer(connection, connection.next_id(), partition, 0, Deaf())
        attach(connection, consumer, topic, subscription.name, deadline=deadline)
        request_id = connection.next_id()
        command = pb.CommandUnsubscribe(consumer_id=consumer.number, request_id=request_id)
        try:
            connection.call(
                request_id,
                pb.BaseCommand(type=pb.BaseCommand.UNSUBSCRIBE, unsubscribe=command),
                deadline,
            )
        finally:
            consumer.close()


def count_partitions(service: Link, topic: str, deadline: float) -> int:
    """Return the number of partitions, 0: not partitioned; raise TopicNotFoundError."""
    answer = service.call(
        lambda request_id: pb.BaseCommand(
            type=pb.BaseCommand.PARTITIONED_METADATA,
            partitionMetadata=pb.CommandPartitionedTopicMetadata(
                topic=topic, request_id=request_id, metadata_auto_creation_enabled=False
            ),
        ),
        deadline,
    )
    if answer.response == pb.CommandPartitionedTopicMetadataResponse.Failed:
        raise refusal(answer.error, answer.message)
    partitions: int = answer.partitions
    return partitions


_EXISTING = (pb.KeyValue(key="router-existing", value="true"),)
_START = {
    Start.EARLIEST: pb.CommandSubscribe.Earliest,
    Start.LATEST: pb.CommandSubscribe.Latest,
}
