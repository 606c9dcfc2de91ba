from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from router.backends import Backend, NullMailbox, Start
from router.backends.pulsar import PulsarBackend
from router.backends.pulsar.admin import BrokerAdmin
from router.backends.pulsar.reader import Opening, PulsarReader
from router.backends.pulsar.routes import OneBroker, wait_on
from router.backends.pulsar.subscribing import acknowledge
from router.errors import BackendTimeoutError, BackendUnavailableError, SubscriptionBusyError
from router.model import NOT_PARTITIONED, ConsumerId, Grant, Position, Subscription, TopicName
from router.node.client import BrokerNode
from router.wire import node as wire_node
from router.wire.node import node_pb2 as npb
from router.wire.pulsar import pulsar_pb2 as pb
from tests.unit.pulsar_client.fake_broker import WAIT, FakeBroker, Side, T

GROUP = Subscription(TopicName.parse("t"), "g")


@pytest.fixture
def broker() -> FakeBroker:
    broker = FakeBroker()
    broker.on[T.PARTITIONED_METADATA] = three_partitions
    return broker


@pytest.fixture
def backend(broker: FakeBroker) -> Iterator[Backend]:
    routes = OneBroker(broker.link(), own=True)
    backend = PulsarBackend(routes, None, lambda: 0)
    yield backend
    backend.close()


def three_partitions(side: Side, command: Any, _payload: bytes) -> None:
    answer = pb.CommandPartitionedTopicMetadataResponse(
        request_id=command.partitionMetadata.request_id, partitions=3
    )
    side.send(T.PARTITIONED_METADATA_RESPONSE, partitionMetadataResponse=answer)


def busy(side: Side, command: Any, _payload: bytes) -> None:
    request_id = command.subscribe.request_id
    side.send(
        T.ERROR, error=pb.CommandError(request_id=request_id, error=pb.ConsumerBusy, message="x")
    )


@pytest.mark.parametrize("react", [None, busy])
def test_a_foreign_broker_gets_subscriptions_by_consumers_that_come_and_go(
    broker: FakeBroker, react: Any
) -> None:
    broker.server_version = "Pulsar Server4.2.4"
    if react is not None:
        broker.on[T.SUBSCRIBE] = react
    routes = OneBroker(broker.link(), own=True)
    PulsarBackend(routes, None, lambda: 0).subscribe(GROUP, Start.EARLIEST, WAIT)
    topics = [command.subscribe.topic for command in broker.of(T.SUBSCRIBE)]
    positions = {command.subscribe.initialPosition for command in broker.of(T.SUBSCRIBE)}
    if react is None:
        broker.wait_for(T.CLOSE_CONSUMER, 3)
    routes.close()
    assert topics == [f"persistent://public/default/t-partition-{n}" for n in range(3)]
    assert positions == {pb.CommandSubscribe.Earliest}


def acknowledged(routes: OneBroker, deadline: float) -> None:
    acknowledge(routes, GROUP, 0, [], False, deadline, wait_on)


def read(routes: OneBroker, deadline: float) -> None:
    opening = Opening(GROUP.topic, 0, Start.EARLIEST, NullMailbox(), 0)
    PulsarReader(routes, opening, deadline)


@pytest.mark.parametrize("use", [acknowledged, read])
@pytest.mark.parametrize(
    ("answers", "error"), [(1, SubscriptionBusyError), (0, BackendTimeoutError)]
)
def test_what_meets_another_consumer_fails_as_busy_however_its_last_try_ends(
    broker: FakeBroker,
    answers: int,
    error: type[Exception],
    use: Callable[[OneBroker, float], None],
) -> None:
    left = iter(range(answers))

    def silent_then(side: Side, command: Any, payload: bytes) -> None:
        if next(left, None) is not None:
            busy(side, command, payload)

    broker.on[T.SUBSCRIBE] = silent_then
    routes = OneBroker(broker.link(), own=True)
    with pytest.raises(error):
        use(routes, time.monotonic() + 0.3)
    routes.close()
    assert len(broker.of(T.SUBSCRIBE)) == answers + 1


def test_a_broker_that_does_not_serve_the_topic_yet_is_asked_again(broker: FakeBroker) -> None:
    answers = [pb.ServiceNotReady]

    def not_yet(side: Side, command: Any, _payload: bytes) -> None:
        request_id = command.subscribe.request_id
        if not answers:
            side.send(T.SUCCESS, success=pb.CommandSuccess(request_id=request_id))
            return
        failed = pb.CommandError(request_id=request_id, error=answers.pop(), message="redo")
        side.send(T.ERROR, error=failed)

    broker.server_version = "Pulsar Server4.2.4"
    broker.on[T.SUBSCRIBE] = not_yet
    routes = OneBroker(broker.link(), own=True)
    PulsarBackend(routes, None, lambda: 0).subscribe(GROUP, Start.EARLIEST, WAIT)
    asked = [command.subscribe.topic[-1] for command in broker.of(T.SUBSCRIBE)]
    routes.close()
    assert asked == ["0", "0", "1", "2"]


def test_a_foreign_broker_ends_subscriptions_by_consumers_that_unsubscribe(
    broker: FakeBroker,
) -> None:
    def success(side: Side, command: Any, _payload: bytes) -> None:
        request_id = command.unsubscribe.request_id
        side.send(T.SUCCESS, success=pb.CommandSuccess(request_id=request_id))

    broker.server_version = "Pulsar Server4.2.4"
    broker.on[T.UNSUBSCRIBE] = success
    routes = OneBroker(broker.link(), own=True)
    PulsarBackend(routes, None, lambda: 0).unsubscribe(GROUP, WAIT)
    opened = [command.subscribe.consumer_id for command in broker.of(T.SUBSCRIBE)]
    ended = [command.unsubscribe.consumer_id for command in broker.of(T.UNSUBSCRIBE)]
    routes.close()
    assert len(opened) == 3
    assert ended == opened


def closed_once(broker: FakeBroker, side: Side, number: int) -> bool:
    """Close a consumer as a broker does that unloads its topic, if it is the first one."""
    if len(broker.of(T.SUBSCRIBE)) > 1:
        return False
    side.send(
        T.CLOSE_CONSUMER, close_consumer=pb.CommandCloseConsumer(consumer_id=number, request_id=0)
    )
    return True


def test_what_acknowledges_comes_again_if_its_consumer_is_closed(broker: FakeBroker) -> None:
    acknowledge_it = broker.on[T.ACK]

    def closed(side: Side, command: Any, payload: bytes) -> None:
        if not closed_once(broker, side, command.ack.consumer_id):
            acknowledge_it(side, command, payload)

    broker.on[T.ACK] = closed
    routes = OneBroker(broker.link(), own=True)
    ids = [pb.MessageIdData(ledgerId=1, entryId=1)]
    acknowledge(routes, GROUP, 0, ids, False, time.monotonic() + WAIT, wait_on)
    routes.close()
    acknowledged = [command.ack.consumer_id for command in broker.of(T.ACK)]
    opened = [command.subscribe.consumer_id for command in broker.of(T.SUBSCRIBE)]
    assert len(set(opened)) == 2
    assert acknowledged == opened


def test_what_acknowledges_says_that_it_waits_for_another_consumer(broker: FakeBroker) -> None:
    subscribe = broker.on[T.SUBSCRIBE]
    calls: list[int] = []

    def held(side: Side, command: Any, payload: bytes) -> None:
        (subscribe if calls else busy)(side, command, payload)

    broker.on[T.SUBSCRIBE] = held
    routes = OneBroker(broker.link(), own=True)
    ids = [pb.MessageIdData(ledgerId=1, entryId=1)]
    until = time.monotonic() + WAIT
    acknowledge(routes, GROUP, 0, ids, False, until, lambda: calls.append(1))
    routes.close()
    assert calls == [1]
    assert len(broker.of(T.ACK)) == 1


@pytest.mark.parametrize("start", [Start.EARLIEST, Start.LATEST, 1, Position(1, 2, 0)])
@pytest.mark.parametrize("kind", [T.SEEK, T.GET_LAST_MESSAGE_ID])
def test_a_reader_opens_another_consumer_if_its_first_one_is_not_there(
    broker: FakeBroker, start: Start | int | Position, kind: int
) -> None:
    failed: list[int] = []

    def answer(side: Side, command: Any, _payload: bytes) -> None:
        seek = command.type == T.SEEK
        request_id = (command.seek if seek else command.getLastMessageId).request_id
        if command.type == kind and not failed:
            failed.append(request_id)
            error = pb.CommandError(
                request_id=request_id, error=pb.MetadataError, message="Consumer not found"
            )
            side.send(T.ERROR, error=error)
        elif seek:
            side.send(T.SUCCESS, success=pb.CommandSuccess(request_id=request_id))
        else:
            last = pb.CommandGetLastMessageIdResponse(
                last_message_id=pb.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1),
                request_id=request_id,
            )
            side.send(T.GET_LAST_MESSAGE_ID_RESPONSE, getLastMessageIdResponse=last)

    broker.on[T.SEEK] = broker.on[T.GET_LAST_MESSAGE_ID] = answer
    routes = OneBroker(broker.link(), own=True)
    opening = Opening(GROUP.topic, 0, start, NullMailbox(), 0)
    reader = PulsarReader(routes, opening, time.monotonic() + WAIT)
    assert reader.receive(1, 1, WAIT) == []
    reader.close()
    routes.close()
    seeks = isinstance(start, int) and not isinstance(start, Start)
    assert len(failed) == (kind == T.GET_LAST_MESSAGE_ID or seeks)


def test_a_subscription_that_somebody_reads_is_not_ended(broker: FakeBroker) -> None:
    broker.server_version = "Pulsar Server4.2.4"
    broker.on[T.SUBSCRIBE] = busy
    routes = OneBroker(broker.link(), own=True)
    with pytest.raises(SubscriptionBusyError):
        PulsarBackend(routes, None, lambda: 0).unsubscribe(GROUP, WAIT)
    routes.close()
    assert broker.of(T.UNSUBSCRIBE) == []


def test_a_consumer_on_its_way_out_is_waited_for(broker: FakeBroker, backend: Backend) -> None:
    def busy_once(side: Side, command: Any, payload: bytes) -> None:
        if len(broker.of(T.SUBSCRIBE)) == 1:
            busy(side, command, payload)
        else:
            request_id = command.subscribe.request_id
            side.send(T.SUCCESS, success=pb.CommandSuccess(request_id=request_id))

    broker.on[T.SUBSCRIBE] = busy_once
    backend.consume(Grant(GROUP, NOT_PARTITIONED, 1), NullMailbox(), WAIT).close()
    assert len(broker.of(T.SUBSCRIBE)) == 2


def test_a_broker_that_waits_for_the_last_holder_is_asked_to_let_it_go(broker: FakeBroker) -> None:
    evicted: list[tuple[Subscription, int, str]] = []

    class Evicting(BrokerAdmin):
        def evict(
            self, subscription: Subscription, partition: int, asking: str, deadline: float
        ) -> None:
            evicted.append((subscription, partition, asking))
            broker.on[T.SUBSCRIBE] = answered

    answered = broker.on.pop(T.SUBSCRIBE)
    broker.server_version = "Pulsar Server4.2.4"
    routes = OneBroker(broker.link(), own=True)
    backend = PulsarBackend(routes, Evicting(routes.service), lambda: 0)
    backend.consume(Grant(GROUP, 2, 1), NullMailbox(), WAIT).close()
    backend.close()
    names = [command.subscribe.consumer_name for command in broker.of(T.SUBSCRIBE)]
    assert evicted == [(GROUP, 2, names[0])]
    assert len(set(names)) == 2
    asked = [
        {pair.key for pair in command.subscribe.metadata} for command in broker.of(T.SUBSCRIBE)
    ]
    assert asked == [{"router-existing", "router-leased"}] * 2


def test_a_consumer_that_stays_is_said_to_be_busy(broker: FakeBroker, backend: Backend) -> None:
    broker.on[T.SUBSCRIBE] = busy
    with pytest.raises(SubscriptionBusyError):
        backend.consume(Grant(GROUP, NOT_PARTITIONED, 1), NullMailbox(), 0.2)


def test_a_consumer_is_opened_on_the_next_connection(broker: FakeBroker, backend: Backend) -> None:
    def cut_the_first(side: Side, command: Any, _payload: bytes) -> None:
        if len(broker.sides) == 1:
            side.cut()
        else:
            request_id = command.subscribe.request_id
            side.send(T.SUCCESS, success=pb.CommandSuccess(request_id=request_id))

    broker.on[T.SUBSCRIBE] = cut_the_first
    backend.consume(Grant(GROUP, NOT_PARTITIONED, 1), NullMailbox(), WAIT).close()
    assert len(broker.sides) == 2


def test_a_consumer_that_was_not_opened_in_time_is_closed_at_the_broker(
    broker: FakeBroker, backend: Backend
) -> None:
    del broker.on[T.SUBSCRIBE]
    with pytest.raises(BackendTimeoutError):
        backend.consume(Grant(GROUP, NOT_PARTITIONED, 1), NullMailbox(), 0.1)
    broker.wait_for(T.CLOSE_CONSUMER)


def test_a_broker_that_does_not_answer_is_not_ready(broker: FakeBroker, backend: Backend) -> None:
    def has_space(side: Side, command: Any, _payload: bytes) -> None:
        asked = wire_node.read(command.extension).admin
        side.send(
            T.EXTENSION,
            extension=wire_node.extension(
                admin_response=npb.CommandAdminResponse(request_id=asked.request_id)
            ).extension,
        )

    broker.on["admin"] = has_space
    backend.ready(10)  # it is connected
    del broker.on[T.PARTITIONED_METADATA]
    with pytest.raises(BackendTimeoutError):
        backend.ready(0.1)


def test_a_claim_without_an_answer_is_withdrawn(broker: FakeBroker) -> None:
    node = BrokerNode(broker.link(), 10)
    with pytest.raises(BackendTimeoutError):
        node.claim(ConsumerId(GROUP, "c"), 0, NullMailbox(), 0.1)
    (released,) = broker.wait_for("release")
    (claimed,) = broker.of_the_node("claim")
    node.close()
    assert released.claim_id == claimed.claim_id


def test_a_claim_is_repeated_on_the_next_connection_until_its_deadline(
    broker: FakeBroker,
) -> None:
    broker.on["claim"] = lambda side, _command, _payload: side.cut()
    node = BrokerNode(broker.link(), 10)
    with pytest.raises((BackendUnavailableError, BackendTimeoutError)):
        node.claim(ConsumerId(GROUP, "c"), 0, NullMailbox(), 0.2)
    node.close()
    assert len(broker.of_the_node("claim")) > 1


def test_a_refused_claim_is_raised_as_what_it_means(broker: FakeBroker) -> None:
    def refuse(side: Side, command: Any, _payload: bytes) -> None:
        update = npb.CommandClaimUpdate(
            claim_id=wire_node.read(command.extension).claim.claim_id,
            code="subscription-busy",
            message="too many polls",
        )
        side.send_raw(wire_node.frame(claim_update=update))

    broker.on["claim"] = refuse
    node = BrokerNode(broker.link(), 10)
    with pytest.raises(SubscriptionBusyError, match="too many polls"):
        node.claim(ConsumerId(GROUP, "c"), 0, NullMailbox(), WAIT)
    node.close()
    assert broker.of_the_node("release") == []
