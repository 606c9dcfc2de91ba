"""Delivery: which entry of a partition goes to which consumer, when, and what comes back."""

from router.broker.delivery.backlog import BacklogCounter
from router.broker.delivery.consumer import Consumer, Flow, KeyPolicy, Kind, Link
from router.broker.delivery.context import DeliveryContext, Tally
from router.broker.delivery.key_slots import HashRangeError
from router.broker.delivery.live_members import LiveMember, LiveMembers
from router.broker.delivery.partition import REPLICATED, Partition, Subscription
from router.broker.delivery.producers import (
    Access,
    NameBusyError,
    Producer,
    ProducerFencedError,
    ProducerLink,
)
from router.broker.delivery.start_position import StartPosition

__all__ = [
    "REPLICATED",
    "Access",
    "BacklogCounter",
    "Consumer",
    "DeliveryContext",
    "Flow",
    "HashRangeError",
    "KeyPolicy",
    "Kind",
    "Link",
    "LiveMember",
    "LiveMembers",
    "NameBusyError",
    "Partition",
    "Producer",
    "ProducerFencedError",
    "ProducerLink",
    "StartPosition",
    "Subscription",
    "Tally",
]
