"""Delivery: which entry of a partition goes to which consumer, when, and what comes back."""

from router.broker.consume.consumer import (
    ClientConsumer,
    ConsumerFlow,
    ConsumerLink,
    KeyPolicy,
    SubscriptionType,
)
from router.broker.consume.context import DeliveryContext, Tally
from router.broker.consume.cursor.backlog import BacklogCounter
from router.broker.consume.cursor.start_position import StartPosition
from router.broker.consume.membership.key_slots import HashRangeError
from router.broker.consume.membership.live_members import LiveMember, LiveMembers
from router.broker.consume.partition import REPLICATED, Partition, PartitionSubscription
from router.broker.consume.producers import (
    NameBusyError,
    Producer,
    ProducerAccess,
    ProducerFencedError,
    ProducerLink,
)

__all__ = [
    "REPLICATED",
    "BacklogCounter",
    "ClientConsumer",
    "ConsumerFlow",
    "ConsumerLink",
    "DeliveryContext",
    "HashRangeError",
    "KeyPolicy",
    "LiveMember",
    "LiveMembers",
    "NameBusyError",
    "Partition",
    "PartitionSubscription",
    "Producer",
    "ProducerAccess",
    "ProducerFencedError",
    "ProducerLink",
    "StartPosition",
    "SubscriptionType",
    "Tally",
]
