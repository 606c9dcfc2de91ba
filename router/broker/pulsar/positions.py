"""Message ids of the protocol and entries of a ledger: where to start, which one is the last."""

from __future__ import annotations

from typing import Final

from router.broker.dispatch import Subscription
from router.broker.dispatch.feed import batch_size
from router.broker.ledger import DamagedError, Entry, Ledger
from router.wire.pulsar import pulsar_pb2 as pb

NOWHERE: Final = 2**64 - 1
LATEST: Final = 2**63 - 1


def start_entry(ledger: Ledger, place: pb.MessageIdData) -> int:
    """Return the entry that a reader at this message id begins with: its own entry.

    Clients drop what they did not ask for, be it the message itself or those before it in its
    batch; a broker that begins behind it can not give an inclusive start. Ids of another ledger are
    before or behind everything.
    """
    if place.ledgerId == NOWHERE or place.ledgerId < ledger.id or place.entryId == NOWHERE:
        return ledger.first_entry
    if place.ledgerId > ledger.id:
        return ledger.durable_entry
    return min(place.entryId, ledger.durable_entry)


def last_entry(subscription: Subscription, *, unacknowledged: bool) -> int | None:
    """Return the last entry that can be delivered without waiting for a publisher.

    `unacknowledged`: the last one that will be, which is not the same where single entries at the
    end are acknowledged or given up as damaged. None: there is none at all.
    """
    last = subscription.end - 1
    if unacknowledged:
        for first, end in reversed(list(subscription.cursor.ranges())):
            if first <= last <= end:
                last = first - 1
    return last if last >= subscription.ledger.first_entry else None


def cached_position(subscription: Subscription, last: int | None) -> pb.MessageIdData | None:
    """Return the message id of an entry; None: it has to be read first."""
    if last is None:
        return pb.MessageIdData(ledgerId=NOWHERE, entryId=NOWHERE)
    entry = subscription.ledger.cached(last)
    return None if entry is None else _position(subscription, last, entry)


async def read_position(subscription: Subscription, last: int) -> pb.MessageIdData:
    """Return the message id of an entry, read from disk for its batch index."""
    try:
        entries = await subscription.ledger.read(last, 1, 1)
    except (DamagedError, OSError):
        # Where delivery meets the damage it is reported; here only the batch index is wanted.
        entries = []
    return _position(subscription, last, entries[0] if entries else None)


def _position(subscription: Subscription, number: int, entry: Entry | None) -> pb.MessageIdData:
    size = None if entry is None or entry.entry_id != number else batch_size(entry)
    return pb.MessageIdData(
        ledgerId=subscription.ledger.id,
        entryId=number,
        partition=subscription.partition.index,
        batch_index=-1 if size is None else size - 1,
    )
