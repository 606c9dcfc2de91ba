"""Delivery: which entry of a partition goes to which consumer, when, and what comes back."""

from router.broker.consume.consumer import Consumer, Flow, KeyPolicy, Kind, Link
from router.broker.consume.context import DeliveryContext, Tally
from router.broker.consume.cursor.backlog import BacklogCounter
from router.broker.consume.cursor.start_position import StartPosition
from router.broker.consume.membership.key_slots import HashRangeError
from router.broker.consume.membership.live_members import LiveMember, LiveMembers
from router.broker.consume.partition import REPLICATED, Partition, Subscription
from router.broker.consume.producers import (
    Access,
    NameBusyError,
    Producer,
    ProducerFencedError,
    ProducerLink,
)

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
