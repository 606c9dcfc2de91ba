"""Message ids of the protocol and entries of a ledger: where to start, which one is the last."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from router.broker.consume import PartitionSubscription
from router.broker.consume.entry_info import UnreadableEntryError
from router.broker.consume.visible import Visible
from router.broker.entries import Transcoder
from router.broker.storage import PULSAR_FORMAT, DamagedError, Entry, Ledger, bits
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
        return Visible(ledger).end_entry
    return min(place.entryId, ledger.durable_entry)


def last_entry(subscription: PartitionSubscription, *, unacknowledged: bool) -> int | None:
    """Return the last entry that can be delivered without waiting for a publisher.

    `unacknowledged`: the last one that will be, which is not the same where single entries at the
    end are acknowledged or given up as damaged. None: there is none at all. Where messages are
    left out `last_visible_entry` finds it.
    """
    last = subscription.end - 1
    if unacknowledged:
        last = _unacknowledged(subscription, last)
    return last if last >= subscription.ledger.first_entry else None


async def last_visible_entry(
    subscription: PartitionSubscription, *, unacknowledged: bool
) -> int | None:
    """Return the last entry, as `last_entry` does, that has messages which are not left out.

    Raises OSError if files cannot be opened.
    """
    ledger, visible, last = subscription.ledger, subscription.visible, subscription.end - 1
    while last >= ledger.first_entry:
        if unacknowledged:
            last = _unacknowledged(subscription, last)
        end_number = await ledger.number_before(last + 1)
        number = visible.last_to(end_number - 1)
        if number < ledger.first_number:
            break
        entry = await ledger.entry_of_number(number)
        if entry < last:
            last = entry
            continue
        first = await ledger.number_before(last)
        live = visible.between(first, end_number - 1)
        left = bits(subscription.cursor.ack_set(last)) if unacknowledged else 0
        if live & (left or live):
            return last
        last -= 1
    return None


def _unacknowledged(subscription: PartitionSubscription, last: int) -> int:
    """Return the last entry up to this one that is not acknowledged whole."""
    for first, end in reversed(list(subscription.cursor.ranges())):
        if first <= last <= end:
            last = first - 1
    return last


def cached_position(
    subscription: PartitionSubscription, last: int | None, transcoder: Transcoder
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
    subscription: PartitionSubscription, last: int, transcoder: Transcoder
) -> pb.MessageIdData:
    """Return the message id of an entry, read from disk for its batch index."""
    entry: Entry | None = None
    # Where delivery meets damage it is reported; here only the batch index is needed.
    with suppress(DamagedError, OSError, UnreadableEntryError):
        entry = await subscription.ledger.entry(last)
        if entry is not None:
            await transcoder.transcoded(subscription.ledger.id, [entry], PULSAR_FORMAT)
    return _position(subscription, last, entry, transcoder)


def _position(
    subscription: PartitionSubscription, number: int, entry: Entry | None, transcoder: Transcoder
) -> pb.MessageIdData:
    ledger_id, last_in_batch = subscription.ledger.id, -1
    if entry is not None:
        # A client that cannot be sent the entry is not sent its place in a batch either.
        with suppress(UnreadableEntryError, ProtocolError):
            metadata = read_metadata(transcoder.payload(ledger_id, entry, PULSAR_FORMAT))
            if metadata.HasField("num_messages_in_batch"):
                live = subscription.visible.messages(entry)
                last_in_batch = (entry.messages if not live else live.bit_length()) - 1
    return pb.MessageIdData(
        ledgerId=ledger_id,
        entryId=number,
        partition=subscription.partition.index,
        batch_index=last_in_batch,
    )
