"""Message ids of the protocol and entries of a ledger: where to start, which one is the last."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from router.broker.delivery import Subscription
from router.broker.delivery.entry_info import UnreadableEntryError
from router.broker.entries import Transcoder
from router.broker.storage import PULSAR_FORMAT, DamagedError, Entry, Ledger
from router.wire.pulsar import ProtocolError, read_metadata
from router.wire.pulsar import pulsar_pb2 as pb

NO_POSITION: Final = 2**64 - 1
LATEST: Final = 2**63 - 1


def start_entry(ledger: Ledger, place: pb.MessageIdData) -> int:
    """Return the entry that a reader at this message id begins with: its own entry.

    Clients drop what they did not ask for, be it the message itself or those before it in its
    batch; a broker that begins behind it can not give an inclusive start. Ids of another ledger are
    before or behind everything.
    """
    if place.ledgerId == NO_POSITION or place.ledgerId < ledger.id or place.entryId == NO_POSITION:
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


def cached_position(
    subscription: Subscription, last: int | None, transcoder: Transcoder
) -> pb.MessageIdData | None:
    """Return the message id of an entry; None: it has to be read or transcoded first."""
    if last is None:
        return pb.MessageIdData(ledgerId=NO_POSITION, entryId=NO_POSITION)
    ledger = subscription.ledger
    entry = ledger.cached(last)
    if entry is None or transcoder.prepare(ledger.id, [entry], PULSAR_FORMAT) is not None:
        return None
    return _position(subscription, last, entry, transcoder)


async def read_position(
    subscription: Subscription, last: int, transcoder: Transcoder
) -> pb.MessageIdData:
    """Return the message id of an entry, read from disk for its batch index."""
    try:
        entries = await subscription.ledger.read(last, 1, 1)
    except (DamagedError, OSError):
        # Where delivery meets the damage it is reported; here only the batch index is wanted.
        entries = []
    entry = entries[0] if entries else None
    if entry is not None:
        with suppress(UnreadableEntryError):
            await transcoder.transcoded(subscription.ledger.id, [entry], PULSAR_FORMAT)
    return _position(subscription, last, entry, transcoder)


def _position(
    subscription: Subscription, number: int, entry: Entry | None, transcoder: Transcoder
) -> pb.MessageIdData:
    ledger_id, last_in_batch = subscription.ledger.id, -1
    if entry is not None and entry.entry_id == number:
        # A client that cannot be sent the entry is not sent its place in a batch either.
        with suppress(UnreadableEntryError, ProtocolError):
            metadata = read_metadata(transcoder.payload(ledger_id, entry, PULSAR_FORMAT))
            if metadata.HasField("num_messages_in_batch"):
                last_in_batch = entry.messages - 1
    return pb.MessageIdData(
        ledgerId=ledger_id,
        entryId=number,
        partition=subscription.partition.index,
        batch_index=last_in_batch,
    )
