"""Delivery: which entry of a partition goes to which consumer, when, and what comes back."""

from router.broker.dispatch.assignment import HashRangeError
from router.broker.dispatch.backlog import Counting
from router.broker.dispatch.consumer import Consumer, KeyPolicy, Kind, Link
from router.broker.dispatch.partition import Partition, Tally
from router.broker.dispatch.producers import (
    Access,
    NameBusyError,
    Producer,
    ProducerFencedError,
    ProducerLink,
)
from router.broker.dispatch.subscription import Subscription
from router.broker.dispatch.whence import Whence

__all__ = [
    "Access",
    "Consumer",
    "Counting",
    "HashRangeError",
    "KeyPolicy",
    "Kind",
    "Link",
    "NameBusyError",
    "Partition",
    "Producer",
    "ProducerFencedError",
    "ProducerLink",
    "Subscription",
    "Tally",
    "Whence",
]
