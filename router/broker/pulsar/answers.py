"""The broker's answers to a client's CONNECT, and about its consumers, as commands."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from router.broker.consume import BacklogCounter, PartitionSubscription
from router.broker.consume.dispatch.individual import MAX_HELD
from router.broker.pulsar.client import AnySubscription, AttachedConsumer
from router.broker.pulsar.positions import NO_POSITION
from router.process.build import NODE_PROTOCOL
from router.wire.pulsar import MAX_MESSAGE_SIZE, command
from router.wire.pulsar import pulsar_pb2 as pb

NO_REQUEST: Final = 2**64 - 1
"""The request id of what the broker sends without a request."""


def connected(server_version: str, protocol: int, *, ours: bool) -> pb.BaseCommand:
    """Return a CONNECTED; clients of our own learn which node protocol is spoken."""
    return command(
        pb.BaseCommand.CONNECTED,
        server_version=server_version,
        protocol_version=protocol,
        max_message_size=MAX_MESSAGE_SIZE,
        router_protocol=NODE_PROTOCOL if ours else None,
        feature_flags=pb.FeatureFlags(
            supports_broker_entry_metadata=True,
            supports_get_partitioned_metadata_without_auto_creation=True,
            supports_topic_watchers=True,
            supports_topic_watcher_reconcile=True,
        ),
    )


def success(request_id: int, epoch: int | None = None) -> pb.BaseCommand:
    """Return a SUCCESS; `epoch` is for clients of our own that subscribed."""
    return command(pb.BaseCommand.SUCCESS, request_id=request_id, router_epoch=epoch)


def ack_response(
    request: pb.CommandAck, refused: tuple[pb.ServerError, str] | None = None
) -> pb.BaseCommand:
    """Return an ACK_RESPONSE: the ids of the request and of its transaction, and any refusal."""
    kind = pb.BaseCommand.ACK_RESPONSE
    answer = command(kind, consumer_id=request.consumer_id, request_id=request.request_id)
    response = answer.ackResponse
    if in_transaction(request):
        response.txnid_most_bits = request.txnid_most_bits
        response.txnid_least_bits = request.txnid_least_bits
    if refused is not None:
        response.error, response.message = refused
    return answer


def in_transaction(request: pb.CommandAck) -> bool:
    """Return whether an acknowledgement names a transaction."""
    return request.HasField("txnid_most_bits") or request.HasField("txnid_least_bits")


def last_message(
    request_id: int, subscription: PartitionSubscription, place: pb.MessageIdData
) -> pb.BaseCommand:
    """Return the answer to GET_LAST_MESSAGE_ID."""
    mark_delete = subscription.cursor.mark_delete
    return command(
        pb.BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE,
        last_message_id=place,
        request_id=request_id,
        consumer_mark_delete_position=pb.MessageIdData(
            ledgerId=subscription.ledger.id,
            entryId=mark_delete if mark_delete >= 0 else NO_POSITION,
        ),
    )


async def stats(
    request_id: int, consumer: AttachedConsumer | None, address: str, now: float
) -> pb.BaseCommand:
    """Return the answer to CONSUMER_STATS; `now` is by the clock of the consumer's `flow`."""
    if consumer is None:
        return command(
            pb.BaseCommand.CONSUMER_STATS_RESPONSE,
            request_id=request_id,
            error_code=pb.ConsumerNotFound,
            error_message="Consumer not found",
        )
    subscription = consumer.subscription
    rates = consumer.flow.rates(now)
    since = datetime.fromtimestamp(consumer.since_ms / 1000, UTC)
    return command(
        pb.BaseCommand.CONSUMER_STATS_RESPONSE,
        request_id=request_id,
        msgRateOut=rates.messages,
        msgThroughputOut=rates.bytes,
        msgRateRedeliver=rates.redelivered,
        msgRateExpired=0.0,
        messageAckRate=rates.acknowledged,
        consumerName=consumer.name,
        # Below zero after a batch that was larger than what was left of them.
        availablePermits=max(0, consumer.permits),
        unackedMessages=_unacknowledged(consumer),
        blockedConsumerOnUnackedMsgs=consumer.held_messages >= MAX_HELD,
        address=f"/{address}",
        connectedSince=since.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        type="" if subscription.kind is None else subscription.kind.value,
        msgBacklog=await _backlog(subscription),
    )


async def _backlog(subscription: AnySubscription) -> int:
    if not isinstance(subscription, PartitionSubscription):
        return 0
    return await BacklogCounter().backlog(subscription.visible, subscription.cursor)


def _unacknowledged(consumer: AttachedConsumer) -> int:
    """Return how many messages a shared consumer holds, acknowledged ones of a batch left out."""
    held, subscription = consumer.held, consumer.subscription
    if not isinstance(subscription, PartitionSubscription):
        return 0
    partly = (part for part in subscription.cursor.partials() if part[0] in held)
    return consumer.held_messages - sum(max(0, held[entry] - left) for entry, left in partly)
