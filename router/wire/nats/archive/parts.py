"""What an archive of a stream holds: messages, deletions, consumers, and where the stream ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from router.wire import ProtocolError
from router.wire.nats.jetstream.reading import ObjectReader, uint64

PendingMessages = Mapping[int, tuple[int, int]]
"""By sequence: the number of the delivery among those of the consumer, and its time."""


class ArchivedMessage(NamedTuple):
    """A message; `time_ns` counts from 1970."""

    sequence: int
    subject: str
    headers: bytes
    payload: bytes
    time_ns: int


class ArchivedDeletion(NamedTuple):
    """A message of a sequence was deleted after it was archived."""

    sequence: int


class ArchivedBounds(NamedTuple):
    """The first sequence that is kept, and the last that was given out."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class ConsumerPosition:
    """Where a consumer stands: pairs of a consumer's sequence and the stream's.

    `redelivered` counts the deliveries after the first of a pending message.
    """

    delivered: tuple[int, int] = (0, 0)
    floor: tuple[int, int] = (0, 0)
    pending: PendingMessages = field(default_factory=dict)
    redelivered: Mapping[int, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the object that nats-server writes."""
        members: dict[str, Any] = {
            "delivered": _pair_json(self.delivered),
            "ack_floor": _pair_json(self.floor),
        }
        if self.pending:
            members["pending"] = {
                str(sequence): {"Sequence": number, "Timestamp": time_ns}
                for sequence, (number, time_ns) in self.pending.items()
            }
        if self.redelivered:
            members["redelivered"] = {str(one): count for one, count in self.redelivered.items()}
        return members

    @classmethod
    def from_json(cls, value: object) -> ConsumerPosition:
        """Return what nats-server wrote; raise ValueError."""
        members = _POSITION(value)
        floor = members.pop("ack_floor", (0, 0))
        return cls(floor=floor, **members)


class ArchivedConsumer(NamedTuple):
    """A consumer: its configuration as decoded JSON, and where it stands."""

    name: str
    config: object
    position: ConsumerPosition


Part = ArchivedMessage | ArchivedDeletion | ArchivedBounds | ArchivedConsumer


def damaged(sentence: str) -> ProtocolError:
    """Return the error of an archive that cannot be read."""
    return ProtocolError(f"the archive is damaged: {sentence}")


def _pair_json(pair: tuple[int, int]) -> dict[str, int]:
    return {"consumer_seq": pair[0], "stream_seq": pair[1]}


def _pair(value: object) -> tuple[int, int]:
    found = _PAIR(value)
    return found.get("consumer_seq", 0), found.get("stream_seq", 0)


def _pending(value: object) -> dict[int, tuple[int, int]]:
    return {
        _sequence(key): (one.get("Sequence", 0), one.get("Timestamp", 0))
        for key, one in ((key, _PENDING(one)) for key, one in _members(value))
    }


def _redelivered(value: object) -> dict[int, int]:
    return {_sequence(key): uint64(count) for key, count in _members(value)}


def _members(value: object) -> Any:
    if not isinstance(value, dict):
        raise ValueError("an object is expected")  # noqa: TRY004
    return value.items()


def _sequence(key: str) -> int:
    if not (key.isascii() and key.isdecimal()):
        raise ValueError("a sequence is expected")
    return uint64(int(key[:21]))  # type: ignore[no-any-return]


_PAIR: Final = ObjectReader({"consumer_seq": uint64, "stream_seq": uint64}, ignore_unknown=True)
_PENDING: Final = ObjectReader({"Sequence": uint64, "Timestamp": uint64}, ignore_unknown=True)
_POSITION: Final = ObjectReader(
    {
        "delivered": _pair,
        "ack_floor": _pair,
        "pending": _pending,
        "redelivered": _redelivered,
    },
    ignore_unknown=True,
)
