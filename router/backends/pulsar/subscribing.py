"""Attaching to subscriptions on the binary protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from router.backends import NullMailbox, Start
from router.backends.pulsar.consumer import PulsarConsumer, close_consumer
from router.backends.pulsar.cursors import MAX_IDS_PER_COMMAND, in_commands
from router.backends.pulsar.routes import Routes, at_broker
from router.backends.pulsar.system_topics import check_not_system
from router.errors import BackendTimeoutError, SubscriptionBusyError
from router.model import NOT_PARTITIONED, Subscription, TopicName
from router.node.requests import partition_count
from router.pulsar_client.connection import PulsarConnection
from router.pulsar_client.link import PulsarLink
from router.pulsar_client.refusals import refusal
from router.wire.pulsar import pulsar_pb2 as pb


def attach(
    connection: PulsarConnection,
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

    A consumer that was opened under a claim says so: a router's that is in its way lost its lease.
    """
    command = _subscribe(connection, consumer, topic, name)
    command.durable = True
    command.initialPosition = _START[start or Start.LATEST]
    if start is None:
        command.metadata.extend(_EXISTING)
    if consumer.generation:
        command.metadata.extend(_LEASED)
    consumer.epoch = _open(connection, consumer, command, deadline).router_epoch


def attach_reader(
    connection: PulsarConnection,
    consumer: PulsarConsumer,
    topic: str,
    name: str,
    place: pb.MessageIdData,
    deadline: float,
) -> None:
    """Open a consumer of a subscription that is not durable and begins at this entry.

    Nothing that it receives belongs to an epoch: other subscriptions may acknowledge it.
    """
    command = _subscribe(connection, consumer, topic, name)
    command.durable = False
    command.start_message_id.CopyFrom(place)
    _open(connection, consumer, command, deadline)


def _subscribe(
    connection: PulsarConnection, consumer: PulsarConsumer, topic: str, name: str
) -> pb.CommandSubscribe:
    return pb.CommandSubscribe(
        topic=topic,
        subscription=name,
        subType=pb.CommandSubscribe.Exclusive,
        consumer_id=consumer.number,
        request_id=connection.next_id(),
        consumer_name=consumer.name,
        force_topic_creation=False,
    )


def _open(
    connection: PulsarConnection,
    consumer: PulsarConsumer,
    command: pb.CommandSubscribe,
    deadline: float,
) -> Any:
    """Open a consumer at its broker and return the answer; raise what it says."""
    connection.add_consumer(consumer.number, consumer)
    frame = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE, subscribe=command)
    try:
        return connection.call(command.request_id, frame, deadline)
    except BackendTimeoutError:
        connection.drop_consumer(consumer.number)
        close_consumer(connection, consumer.number)
        raise
    except BaseException:
        connection.drop_consumer(consumer.number)
        raise


def make_subscription(
    routes: Routes, subscription: Subscription, start: Start, deadline: float
) -> None:
    """Make a durable subscription on every partition, by a consumer that comes and goes."""
    for one in _by_partition(routes, subscription, deadline):
        try:
            _use(routes, one, lambda consumer: None, deadline, start=start)
        except SubscriptionBusyError:
            pass  # its reader proves that it exists


def end_subscription(routes: Routes, subscription: Subscription, deadline: float) -> None:
    """End a subscription on every partition, by a consumer that unsubscribes.

    Raises SubscriptionBusyError while it has a consumer.
    """

    def unsubscribe(consumer: PulsarConsumer) -> None:
        request_id = consumer.connection.next_id()
        command = pb.CommandUnsubscribe(consumer_id=consumer.number, request_id=request_id)
        consumer.connection.call(
            request_id,
            pb.BaseCommand(type=pb.BaseCommand.UNSUBSCRIBE, unsubscribe=command),
            deadline,
        )

    for one in _by_partition(routes, subscription, deadline):
        _use(routes, one, unsubscribe, deadline)


def acknowledge(
    routes: Routes,
    subscription: Subscription,
    partition: int,
    ids: Sequence[pb.MessageIdData],
    cumulative: bool,
    deadline: float,
    when_busy: Callable[[], None],
) -> None:
    """Acknowledge by a consumer that comes and goes; the subscription has to exist.

    While the partition has another consumer, that waits, after `when_busy` was called. Raises
    SubscriptionBusyError.
    """

    def acknowledge_all(consumer: PulsarConsumer) -> None:
        # A cumulative acknowledgement names one message.
        for some in in_commands(ids, 1 if cumulative else MAX_IDS_PER_COMMAND):
            _acknowledge(consumer, some, cumulative, deadline)

    one = Subscription(subscription.topic.partition(partition), subscription.name)
    _use(routes, one, acknowledge_all, deadline, when_busy=when_busy)


def _by_partition(
    routes: Routes, subscription: Subscription, deadline: float
) -> list[Subscription]:
    """Return the subscription on each partition; raise TopicNotFoundError."""
    topic = subscription.topic
    partitions = count_partitions(routes.service, topic, deadline)
    numbers = range(partitions) if partitions else (NOT_PARTITIONED,)
    return [Subscription(topic.partition(number), subscription.name) for number in numbers]


def _use(
    routes: Routes,
    subscription: Subscription,
    use: Callable[[PulsarConsumer], None],
    deadline: float,
    *,
    start: Start | None = None,
    when_busy: Callable[[], None] | None = None,
) -> None:
    """Call `use` with a consumer that leaves only its cursor behind, again as `at_broker` does.

    Raises SubscriptionBusyError, and what the broker answers.
    """
    topic = str(subscription.topic)

    def attempt(connection: PulsarConnection) -> None:
        number = connection.next_id()
        consumer = PulsarConsumer(connection, number, NOT_PARTITIONED, 0, NullMailbox())
        attach(connection, consumer, topic, subscription.name, start=start, deadline=deadline)
        try:
            use(consumer)
        finally:
            consumer.close()

    at_broker(routes, topic, attempt, deadline, when_busy=when_busy)


def _acknowledge(
    consumer: PulsarConsumer, ids: Sequence[pb.MessageIdData], cumulative: bool, deadline: float
) -> None:
    request_id = consumer.connection.next_id()
    ack = pb.CommandAck(
        consumer_id=consumer.number,
        ack_type=pb.CommandAck.Cumulative if cumulative else pb.CommandAck.Individual,
        message_id=ids,
        request_id=request_id,
    )
    answer = consumer.ask(request_id, pb.BaseCommand(type=pb.BaseCommand.ACK, ack=ack), deadline)
    if answer.HasField("error"):
        raise refusal(answer.error, answer.message)


def count_partitions(service: PulsarLink, topic: TopicName, deadline: float) -> int:
    """Return the number of partitions, 0: not partitioned.

    Raises TopicNotFoundError, InternalTopicError.
    """
    if not service.connection(deadline).ours:
        check_not_system(topic)
    return partition_count(lambda make: service.call(make, deadline), topic)


_EXISTING = (pb.KeyValue(key="router-existing", value="true"),)
_LEASED = (pb.KeyValue(key="router-leased", value="true"),)
_START = {
    Start.EARLIEST: pb.CommandSubscribe.Earliest,
    Start.LATEST: pb.CommandSubscribe.Latest,
}
