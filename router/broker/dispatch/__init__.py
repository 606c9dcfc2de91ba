"""Delivery: which entry of a partition goes to which consumer, when, and what comes back."""

from router.broker.dispatch.backlog import Counting
from router.broker.dispatch.consumer import Consumer, Kind, Link
from router.broker.dispatch.partition import NameBusyError, Partition, Producer, ProducerLink, Tally
from router.broker.dispatch.subscription import Subscription
from router.broker.dispatch.whence import Whence

__all__ = [
    "Consumer",
    "Counting",
    "Kind",
    "Link",
    "NameBusyError",
    "Partition",
    "Producer",
    "ProducerLink",
    "Subscription",
    "Tally",
    "Whence",
]
