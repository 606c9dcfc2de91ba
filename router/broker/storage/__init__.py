"""The log of a node: topics, entries, cursors and producer states, kept on disk.

The one door of the package: other packages import nothing deeper (a contract in setup.cfg). Only
commands that work on the files without a store, check and backup, have a second one, `files`.

- `Store` is opened with a folder, `StoreOptions`, a `Clock`, and a `LatestTime`, which reads times
  from payloads. It makes topics and subscriptions, of which it returns a `TopicRecord` and a
  `SubscriptionRecord`. Its module describes the data folder.
- `Ledger`, from `Store.ledger`, is one partition: it appends and reads each `Entry`. The payload
  of an entry is opaque; its format is a number (`PULSAR_FORMAT`, ...). A `Hole` is what a repair
  gave up.
- `Cursor` holds what a subscription has acknowledged, by each `Ack`; `bits` and `words` convert the
  indexes of a batch that an ack set names. A `CommittedPosition` is the note that a Kafka group
  keeps with it.
- `ProducerStates` remembers the `ProducerState` by which each producer's retries are recognised.
- `StoredValues` are small values that a step changes together with entries and cursors, each by a
  `ValueChange`. `Undecided` is where the first undecided entry of a ledger stands.
- `StoreError` ends the store, `FormatError` refuses to open it. `DamagedError` is about the entries
  that cannot be read, and no others.
"""

from router.broker.disk.faults import FormatError, StoreError
from router.broker.storage.cursors import Ack, CommittedPosition, Cursor, bits, words
from router.broker.storage.faults import DamagedError
from router.broker.storage.options import Clock, StoreOptions
from router.broker.storage.partition import Ledger, Undecided
from router.broker.storage.producer_state import ProducerState, ProducerStates
from router.broker.storage.records import (
    KAFKA_FORMAT,
    NATS_FORMAT,
    PULSAR_FORMAT,
    UNKNOWN_TIME,
    Entry,
    LatestTime,
)
from router.broker.storage.rows import Hole, SubscriptionRecord, TopicRecord
from router.broker.storage.store import Store
from router.broker.storage.values import StoredValues, ValueChange, ValueOperation

__all__ = [
    "KAFKA_FORMAT",
    "NATS_FORMAT",
    "PULSAR_FORMAT",
    "UNKNOWN_TIME",
    "Ack",
    "Clock",
    "CommittedPosition",
    "Cursor",
    "DamagedError",
    "Entry",
    "FormatError",
    "Hole",
    "LatestTime",
    "Ledger",
    "ProducerState",
    "ProducerStates",
    "Store",
    "StoreError",
    "StoreOptions",
    "StoredValues",
    "SubscriptionRecord",
    "TopicRecord",
    "Undecided",
    "ValueChange",
    "ValueOperation",
    "bits",
    "words",
]
