"""The log of a node: topics, entries, cursors and producers' marks, kept on disk.

`Store` is the way in. Its module describes the data folder; each of the others owns one part of it.
"""

from router.broker.cursors import Ack, Cursor
from router.broker.dedup import Mark, Producers
from router.broker.ledger.faults import DamagedError, StoreError
from router.broker.ledger.options import Clock, StoreOptions
from router.broker.ledger.partition import Ledger
from router.broker.ledger.records import Entry
from router.broker.ledger.rows import Hole, SubscriptionRecord, TopicRecord
from router.broker.ledger.store import Store

__all__ = [
    "Ack",
    "Clock",
    "Cursor",
    "DamagedError",
    "Entry",
    "Hole",
    "Ledger",
    "Mark",
    "Producers",
    "Store",
    "StoreError",
    "StoreOptions",
    "SubscriptionRecord",
    "TopicRecord",
]
