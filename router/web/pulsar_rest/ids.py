"""Message ids in texts: PIP 64's base64, Apache Pulsar's `ledger:entry:partition`, and marks.

The base64 text holds a MessageIdData of the Pulsar protocol, as the official clients write it. A
mark says where reading goes on, for the `id` of a server-sent event: `12.345` is behind an entry,
`12.345.2` behind the third message of a batch, and with an `@` in front it is a place to begin at:
`@earliest`, `@latest`, `@1700000000000` (a time) or `@12.345`. Marks of several partitions are
joined by commas, in the order of the partitions.
"""

from __future__ import annotations

import base64
import re
from binascii import Error as Base64Error
from collections.abc import Sequence
from typing import Final

from google.protobuf.message import DecodeError

from router.backends import Start
from router.errors import BadRequestError
from router.errors.quoting import quoted
from router.model import NOT_PARTITIONED, Position
from router.services.read import After, StartPosition
from router.wire.pulsar import MAX_BATCH
from router.wire.pulsar import pulsar_pb2 as pb

MAX_ID_CHARACTERS: Final = 200
MAX_MARKS: Final = 500
MAX_NUMBER: Final = 2**63
MAX_INDEX: Final = 2**31
_COLONS: Final = re.compile(
    r"([0-9]{1,19}):([0-9]{1,19})(?::(-1|[0-9]{1,9}))?(?::(-1|[0-9]{1,9}))?"
)
_MARK: Final = re.compile(r"(@?)([0-9]{1,19})\.([0-9]{1,19})(?:\.([0-9]{1,10}))?")
_TIME: Final = re.compile(r"@([0-9]{1,15})")


def write(position: Position) -> str:
    """Return a message's id in base64."""
    found = pb.MessageIdData(ledgerId=position.ledger, entryId=position.entry)
    if position.partition != NOT_PARTITIONED:
        found.partition = position.partition
    if position.batch_index >= 0:
        found.batch_index = position.batch_index
        found.batch_size = position.batch_size
    return base64.b64encode(found.SerializeToString()).decode()


def write_colons(position: Position) -> str:
    """Return a message's id as Apache Pulsar's REST calls write it, with its place in a batch."""
    batch = f":{position.batch_index}" if position.batch_index >= 0 else ""
    return f"{position.ledger}:{position.entry}:{position.partition}{batch}"


def read(text: object) -> Position:
    """Read an id in either form; raise BadRequestError."""
    if not isinstance(text, str) or len(text) > MAX_ID_CHARACTERS:
        raise BadRequestError(f"{quoted(text)} is no message id")
    if colons := _COLONS.fullmatch(text):
        ledger, entry, partition, index = (int(found or -1) for found in colons.groups())
        return _checked(Position(ledger, entry, partition, index), text)
    try:
        plain = text.replace("-", "+").replace("_", "/").replace(" ", "+").rstrip("=")
        raw = base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
        found = pb.MessageIdData.FromString(raw)
    except (Base64Error, ValueError, DecodeError) as error:
        raise BadRequestError(f"{quoted(text)} is no message id") from error
    if not found.IsInitialized():
        raise BadRequestError(f"{quoted(text)} is no message id")
    position = Position(
        found.ledgerId,
        found.entryId,
        found.partition,
        found.batch_index,
        max(0, found.batch_size),
    )
    return _checked(position, text)


def write_mark(whence: StartPosition) -> str:
    """Return where reading goes on, as a text."""
    if isinstance(whence, Start):
        return f"@{whence.value}"
    if isinstance(whence, int):
        return f"@{whence}"
    if isinstance(whence, After):
        return _place(whence.position)
    return f"@{_place(whence)}"


def read_marks(text: str) -> list[StartPosition]:
    """Read marks, or the id of the message to go on behind; raise BadRequestError."""
    if "." not in text and "@" not in text:
        return [After(read(text))]
    marks = text.split(",", MAX_MARKS)
    if len(marks) > MAX_MARKS:
        raise BadRequestError(f"a place has at most {MAX_MARKS} partitions")
    return [_read_mark(mark) for mark in marks]


def write_marks(whences: Sequence[StartPosition]) -> str:
    """Return where reading goes on in each partition, as a text."""
    return ",".join(write_mark(whence) for whence in whences)


def _read_mark(text: str) -> StartPosition:
    if text in {"@earliest", "@latest"}:
        return Start(text[1:])
    if time := _TIME.fullmatch(text):
        return int(time[1])
    found = _MARK.fullmatch(text)
    if found is None:
        raise BadRequestError(f"{quoted(text)} is no place to go on from")
    at, ledger, entry, index = found.groups()
    position = Position(
        int(ledger), int(entry), NOT_PARTITIONED, -1 if index is None else int(index)
    )
    _checked(position, text)
    return position if at else After(position)


def _place(position: Position) -> str:
    batch = f".{position.batch_index}" if position.batch_index >= 0 else ""
    return f"{position.ledger}.{position.entry}{batch}"


def _checked(position: Position, text: str) -> Position:
    if max(position.ledger, position.entry) >= MAX_NUMBER or position.batch_index >= MAX_INDEX:
        raise BadRequestError(f"{quoted(text)} is no message id")
    # What is left of a batch is said bit by bit: a forged size must not cost gigabytes.
    if position.batch_size > MAX_BATCH:
        raise BadRequestError(f"{quoted(text)} is of a batch of more than {MAX_BATCH} messages")
    if position.partition < NOT_PARTITIONED or position.batch_index < -1:
        raise BadRequestError(f"{quoted(text)} is no message id")
    return position
