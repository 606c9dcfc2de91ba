"""The log of a node: topics, entries, cursors and producer states, kept on disk.

`Store` is the way in. Its module describes the data folder; each of the others owns one part of it.
"""

from router.broker.storage.cursors import Ack, Cursor
from router.broker.storage.faults import DamagedError, FormatError, StoreError
from router.broker.storage.offset_commits import Commit
from router.broker.storage.options import Clock, StoreOptions
from router.broker.storage.partition import Ledger
from router.broker.storage.producer_state import Producers, ProducerState
from router.broker.storage.records import (
    KAFKA_FORMAT,
    NATS_FORMAT,
    PULSAR_FORMAT,
    UNKNOWN_TIME,
    Entry,
)
from router.broker.storage.rows import Hole, SubscriptionRecord, TopicRecord
from router.broker.storage.store import Store

__all__ = [
    "KAFKA_FORMAT",
    "NATS_FORMAT",
    "PULSAR_FORMAT",
    "UNKNOWN_TIME",
    "Ack",
    "Clock",
    "Commit",
    "Cursor",
    "DamagedError",
    "Entry",
    "FormatError",
    "Hole",
    "Ledger",
    "ProducerState",
    "Producers",
    "Store",
    "StoreError",
    "StoreOptions",
    "SubscriptionRecord",
    "TopicRecord",
]
