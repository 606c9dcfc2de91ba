"""What a SUBSCRIBE asks for: its checks, and its fields in the words of dispatch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from router.broker.dispatch import KeyPolicy, Kind, Partition
from router.broker.pulsar.positions import start_entry
from router.errors import BadRequestError
from router.wire.pulsar import pulsar_pb2 as pb

MAX_NAME: Final = 1_024
MAX_SIZE: Final = 1 << 16
MAX_METADATA_CHARACTERS: Final = 2_048
# Begins the properties that the router's own clients use.
OURS: Final = "router-"
# A consumer that says so does not make the subscription that it asks for: by Pulsar's own rules it
# would begin where this consumer happens to come, and not where its group was told to begin.
EXISTING: Final = "router-existing"
# A router says so that holds the lease of the partition: whichever router reads it has lost that.
LEASED: Final = "router-leased"

KINDS: Final = {
    pb.CommandSubscribe.Exclusive: Kind.EXCLUSIVE,
    pb.CommandSubscribe.Shared: Kind.SHARED,
    pb.CommandSubscribe.Failover: Kind.FAILOVER,
    pb.CommandSubscribe.Key_Shared: Kind.KEY_SHARED,
}


def kept_metadata(pairs: Iterable[pb.KeyValue]) -> dict[str, str]:
    """Return what a client says of its producer or consumer, as far as statistics keep it."""
    kept: dict[str, str] = {}
    size = 0
    for pair in pairs:
        size += len(pair.key) + len(pair.value)
        if size > MAX_METADATA_CHARACTERS:
            break
        if not pair.key.startswith(OURS):
            kept[pair.key] = pair.value
    return kept


def check(asked: pb.CommandSubscribe) -> None:
    """Raise BadRequestError if it breaks a bound."""
    if not asked.subscription or len(asked.subscription) > MAX_NAME:
        raise BadRequestError(f"a subscription's name has 1 to {MAX_NAME} characters")
    if len(asked.consumer_name) > MAX_NAME:
        raise BadRequestError(f"a consumer's name has at most {MAX_NAME} characters")
    if asked.ByteSize() > MAX_SIZE:
        raise BadRequestError("the properties of the subscription are too large")


def only_existing(asked: pb.CommandSubscribe) -> bool:
    """Tell whether the subscription is not to be made."""
    return any(pair.key == EXISTING and pair.value == "true" for pair in asked.metadata)


def leased(asked: pb.CommandSubscribe) -> bool:
    """Tell whether the consumer's router holds the lease of the partition."""
    return any(pair.key == LEASED and pair.value == "true" for pair in asked.metadata)


def keys_of(asked: pb.CommandSubscribe) -> KeyPolicy:
    """Return which keys the consumer asks for."""
    meta = asked.keySharedMeta
    return KeyPolicy(
        sticky=meta.keySharedMode == pb.STICKY,
        ranges=tuple((part.start, part.end) for part in meta.hashRanges),
        out_of_order=meta.allowOutOfOrderDelivery,
    )


def start_of(partition: Partition, asked: pb.CommandSubscribe) -> int:
    """Return the entry that a new subscription begins with."""
    if not asked.durable and asked.HasField("start_message_id"):
        return start_entry(partition.ledger, asked.start_message_id)
    if asked.initialPosition == pb.CommandSubscribe.Earliest:
        return partition.ledger.first_entry
    return partition.ledger.durable_entry
