"""Acknowledged positions and cursors: between the model and the Pulsar protocol.

Messages of one entry are acknowledged together, by the set of those that are left: Apache Pulsar
takes note of a part of an entry only with `acknowledgmentAtBatchIndexLevelEnabled`, but of the
whole one always.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from router.backends.pulsar.consumer import ack_words, acknowledging
from router.errors import BadRequestError
from router.model import CursorState, Position
from router.model.administration import SUBSCRIPTION_OWNER
from router.wire.node import node_pb2 as npb
from router.wire.pulsar import pulsar_pb2 as pb

MAX_IDS_PER_COMMAND: Final = 1_000
"""Message ids of one command."""
MAX_COMMAND_BYTES: Final = 1024 * 1024
"""Bytes of the ids of one command: a broker ends the connection of a frame that is too large."""
_RANGE: Final = re.compile(r"\((\d+):(-?\d+)(?:\.\.|\u2025)(\d+):(\d+)\]")
_MARK: Final = re.compile(r"(\d+):(-?\d+)")

Place = tuple[int, int]
Range = tuple[Position, Position]


def message_ids(positions: Iterable[Position], *, cumulative: bool) -> list[pb.MessageIdData]:
    """Return what acknowledges these messages, or each with all before it.

    Raises BadRequestError for a message of a batch whose size is not known.
    """
    known = [p for p in positions if p.ledger >= 0 and p.entry >= 0]
    if cumulative:
        upto = ((acknowledging(position), position.epoch) for position in known)
        return [_of_epoch(where, epoch) for where, epoch in upto if where is not None]
    entries: dict[Place, list[Position]] = {}
    for position in known:
        entries.setdefault((position.ledger, position.entry), []).append(position)
    return [_alone(same) for same in entries.values()]


def _alone(positions: Sequence[Position]) -> pb.MessageIdData:
    """Return what acknowledges these messages of one entry."""
    first, left = positions[0], -1
    for position in positions:
        if position.batch_index >= position.batch_size:
            raise BadRequestError(
                f"{position.ledger}:{position.entry}:{position.partition}:{position.batch_index}"
                " does not tell how many messages its batch has"
            )
        left &= ~(1 << position.batch_index) if position.batch_index >= 0 else 0
    size = max(position.batch_size for position in positions)
    where = pb.MessageIdData(ledgerId=first.ledger, entryId=first.entry)
    if bits := left & ((1 << size) - 1):
        where.ack_set.extend(ack_words(bits, size))
        where.batch_size = size
    return _of_epoch(where, first.epoch)


def _of_epoch(where: pb.MessageIdData, epoch: int) -> pb.MessageIdData:
    if epoch:
        where.router_epoch = epoch
    return where


def in_commands(
    ids: Sequence[pb.MessageIdData], limit: int
) -> Iterator[Sequence[pb.MessageIdData]]:
    """Yield them in portions; what is left of large batches takes many bytes."""
    begin = size = 0
    for at, one in enumerate(ids):
        more = one.ByteSize()
        if at > begin and (at - begin == limit or size + more > MAX_COMMAND_BYTES):
            yield ids[begin:at]
            begin, size = at, 0
        size += more
    if begin < len(ids):
        yield ids[begin:]


def cursors_from_broker(state: npb.CursorState) -> CursorState:
    """Return what our own broker says of a cursor."""
    ledger, partition = state.ledger_id, state.partition

    def at(entry: int) -> Position:
        return Position(ledger, entry, partition)

    ranges = [(at(one.first), at(one.last)) for one in state.acknowledged]
    for part in state.partial:
        ranges += _parts(part, partition)
    return CursorState(
        partition,
        at(state.mark_delete) if state.mark_delete >= 0 else None,
        tuple(sorted(ranges)),
        state.backlog,
        state.last_used_ms,
        next((one.value for one in state.properties if one.key == SUBSCRIPTION_OWNER), ""),
    )


def _parts(part: pb.MessageIdData, partition: int) -> list[Range]:
    """Return the ranges of messages that are acknowledged within an entry."""
    size, ranges = part.batch_size, list[Range]()
    for index in range(size):
        word = part.ack_set[index >> 6] if index >> 6 < len(part.ack_set) else 0
        if word >> (index & 63) & 1:
            continue
        here = Position(part.ledgerId, part.entryId, partition, index, size)
        adjoins = ranges and ranges[-1][1].batch_index == index - 1
        ranges[-1:] = [(ranges[-1][0], here)] if adjoins else [*ranges[-1:], (here, here)]
    return ranges


def cursors_from_rest(
    partition: int, cursor: dict[str, Any], backlog: int, ledgers: Sequence[tuple[int, int]] = ()
) -> CursorState:
    """Return what Apache Pulsar's internal statistics say of a cursor: entries only.

    `ledgers` are those that are kept, each with its number of entries, in order: a cursor before
    the first entry of one stands at the last entry of the one before.
    """
    marked = _MARK.fullmatch(cursor.get("markDeletePosition", ""))
    ranges = tuple(
        (Position(int(a), int(b) + 1, partition), Position(int(c), int(d), partition))
        for a, b, c, d in _RANGE.findall(cursor.get("individuallyDeletedMessages", ""))
    )
    mark_delete = None
    if marked is not None and (at := _stored_upto(int(marked[1]), int(marked[2]), ledgers)):
        mark_delete = Position(*at, partition)
    return CursorState(partition, mark_delete, ranges, backlog)


def _stored_upto(ledger: int, entry: int, ledgers: Sequence[tuple[int, int]]) -> Place | None:
    """Return the last entry at a place or before it, None: none is kept."""
    if entry >= 0:
        return ledger, entry
    before = [(number, entries - 1) for number, entries in ledgers if number < ledger and entries]
    return before[-1] if before else None
