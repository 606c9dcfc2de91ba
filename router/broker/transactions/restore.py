"""Owns how a transaction is stored: values of one owner, which a start reads again."""

from __future__ import annotations

from struct import Struct
from typing import Final

import orjson

from router.broker.storage import (
    CommittedPosition,
    Store,
    Undecided,
    ValueChange,
    ValueOperation,
)
from router.broker.transactions.acknowledgements import (
    CUMULATIVE,
    ENTRY,
    restore_cumulative,
    restore_entry,
)
from router.broker.transactions.transaction import (
    JoinedPartition,
    PositionKey,
    SubscriptionKey,
    Transaction,
    part_size,
)

OWNER: Final = "transaction/"
"""Begins the owners; the transaction's key follows."""
BEGUN: Final = "begun"
DECISION: Final = "decision"
RANGE: Final = Struct(">QQ")
"""A range of messages: its last number, and its first entry."""


def position_name(key: PositionKey) -> str:
    """Return the key of the value that is a position."""
    return f"o/{key.ledger}/{key.name}"


def restore_transaction(store: Store, stored: str, now_ms: int, now: float) -> Transaction | None:
    """Return the transaction of an owner as it was stored; None: not when it began.

    `now_ms` is the time in milliseconds since 1970, `now` that of the event loop.
    """
    values = store.values.of(stored)
    if BEGUN not in values:
        return None
    begun_ms, timeout_ms, owner = orjson.loads(values[BEGUN])
    passed_ms = min(max(0, now_ms - begun_ms), timeout_ms)
    deadline = now + (timeout_ms - passed_ms) / 1_000
    found = Transaction(stored.removeprefix(OWNER), begun_ms, timeout_ms, deadline, owner=owner)
    for key, value in sorted(values.items()):
        kind, _, rest = key.partition("/")
        if kind == DECISION:
            found.committed = value == b"\1"
        elif kind != BEGUN:
            ledger_id, _, name = rest.partition("/")
            left = _restore_part(store, found, kind, int(ledger_id), name, value)
            if left is None:
                store.change_value(ValueChange(ValueOperation.REMOVE, stored, key))
            elif left != value:
                store.change_value(ValueChange(ValueOperation.PUT, stored, key, left))
    parts = store.values.of(stored)
    found.size_bytes = sum(part_size(key, value) for key, value in parts.items())
    return found


def _restore_part(
    store: Store, found: Transaction, kind: str, ledger_id: int, name: str, value: bytes
) -> bytes | None:
    """Take a partition (`p`), a range of messages (`r`), a position (`o`) or what is acked.

    Returns the value as it is from now on, None: nothing is left of it. Messages that a power cut
    took in relaxed mode belong to no transaction: their numbers are given out again.
    """
    try:
        ledger = store.ledger(ledger_id)
    except KeyError:  # its topic was deleted
        return None
    if kind == "o":
        found.positions[PositionKey(ledger_id, name)] = CommittedPosition.read(value, 0)[0]
    elif kind == ENTRY:
        number, entry, name = name.split("/", 2)
        if int(entry) >= ledger.next_entry:
            return None
        acks = found.acks.setdefault(SubscriptionKey(ledger_id, int(number), name), {})
        acks[int(entry)] = restore_entry(value)
    elif kind == CUMULATIVE:
        number, _, name = name.partition("/")
        ack = restore_cumulative(value)
        if ack.entry >= ledger.next_entry:
            return None
        found.cumulative[SubscriptionKey(ledger_id, int(number), name)] = ack
    else:
        joined = found.partitions.setdefault(ledger_id, JoinedPartition(ledger))
        if kind == "r":
            last, entry = RANGE.unpack(value)
            kept = joined.restore(Undecided(entry, int(name)), last)
            if kept is None:
                return None
            found.ranges += 1
            return RANGE.pack(kept, entry)
    return value
