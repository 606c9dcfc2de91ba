"""Bodies of requests of the JetStream API, read strictly; an empty body counts as `{}`.

Members have the names of the JSON; durations are nanoseconds, times nanoseconds since 1970.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Final, Self

from router.wire.nats.jetstream.config import CONSUMER_MEMBERS, ConsumerConfig, StreamConfig
from router.wire.nats.jetstream.errors import ErrorCode, JetStreamError, error
from router.wire.nats.jetstream.reading import (
    WHITESPACE,
    ObjectReader,
    Reader,
    array,
    boolean,
    choice,
    decode,
    int64,
    invalid_json,
    text,
    timestamp,
    uint64,
)

_NUMBER: Final = re.compile(rb"[+-]?\d{1,18}")


class ConsumerAction(StrEnum):
    """What a request for a consumer allows: to create it, to update it, or both."""

    CREATE_OR_UPDATE = ""
    CREATE = "create"
    UPDATE = "update"


class _Request:
    """A body whose members are those of the dataclass."""

    __slots__ = ()
    members: ClassVar[ObjectReader]

    @classmethod
    def read(cls, body: bytes) -> Self:
        """Return the request of a body; raises JetStreamError 10025."""
        return cls(**cls.members.read(decode(body)))


class _OptionalRequest(_Request):
    """A body that counts only if it starts as an object or array; any other is ignored."""

    __slots__ = ()

    @classmethod
    def read(cls, body: bytes) -> Self:
        """Return the request of a body; raises JetStreamError 10025."""
        if not body.lstrip(WHITESPACE).startswith((b"{", b"[")):
            return cls()
        return super().read(body)


def require_empty(body: bytes) -> None:
    """Check the body of a call that takes none (deletions, CONSUMER.INFO); raises 10038."""
    if not _is_empty(body):
        raise error(ErrorCode.NOT_EMPTY_REQUEST)


def _is_empty(body: bytes) -> bool:
    if not body or body == b"{}":
        return True
    with suppress(JetStreamError):
        return bool(body.strip(WHITESPACE)) and decode(body) == {}
    return False


@dataclass(frozen=True, slots=True)
class StreamConfigRequest:
    """STREAM.CREATE and STREAM.UPDATE: a configuration at the top level."""

    config: StreamConfig
    pedantic: bool = False

    @classmethod
    def read(cls, body: bytes) -> StreamConfigRequest:
        """Return the request of a body; raises JetStreamError 10025."""
        value = decode(body)
        if not isinstance(value, dict):
            return cls(StreamConfig.from_json(value))
        pedantic, rest = _split_pedantic(value)
        return cls(StreamConfig.from_json(rest), pedantic)


def _split_pedantic(value: dict[str, Any]) -> tuple[bool, dict[str, Any]]:
    rest = dict(value)
    pedantic = False
    for key in [key for key in rest if key.lower() == "pedantic"]:
        found = rest.pop(key)
        if found is not None and not isinstance(found, bool):
            raise invalid_json("pedantic: true or false is expected")
        pedantic = pedantic if found is None else found
    return pedantic, rest


@dataclass(frozen=True, slots=True)
class ConsumerCreateRequest(_Request):
    """CONSUMER.CREATE and CONSUMER.DURABLE.CREATE."""

    members: ClassVar[ObjectReader] = ObjectReader(
        {
            "stream_name": text,
            "config": lambda value: ConsumerConfig(**CONSUMER_MEMBERS(value)),
            "action": choice(ConsumerAction),
            "pedantic": boolean,
        }
    )
    stream_name: str = ""
    config: ConsumerConfig = field(default_factory=ConsumerConfig)
    action: ConsumerAction = ConsumerAction.CREATE_OR_UPDATE
    pedantic: bool = False


@dataclass(frozen=True, slots=True)
class StreamInfoRequest(_OptionalRequest):
    """STREAM.INFO: `offset` is where the page of `state.subjects` starts."""

    members: ClassVar[ObjectReader] = ObjectReader(
        {"offset": int64, "deleted_details": boolean, "subjects_filter": text}
    )
    offset: int = 0
    deleted_details: bool = False
    subjects_filter: str = ""


@dataclass(frozen=True, slots=True)
class StreamPageRequest(_OptionalRequest):
    """STREAM.NAMES and STREAM.LIST: streams that store `subject`, from `offset` on."""

    members: ClassVar[ObjectReader] = ObjectReader({"offset": int64, "subject": text})
    offset: int = 0
    subject: str = ""


@dataclass(frozen=True, slots=True)
class ConsumerPageRequest(_OptionalRequest):
    """CONSUMER.NAMES and CONSUMER.LIST: consumers from `offset` on."""

    members: ClassVar[ObjectReader] = ObjectReader({"offset": int64})
    offset: int = 0


@dataclass(frozen=True, slots=True)
class PurgeRequest(_OptionalRequest):
    """STREAM.PURGE: messages below `seq`, of the subjects of `filter`, but for the last `keep`."""

    members: ClassVar[ObjectReader] = ObjectReader({"seq": uint64, "filter": text, "keep": uint64})
    seq: int = 0
    filter: str = ""
    keep: int = 0

    @classmethod
    def read(cls, body: bytes) -> Self:
        """Return the request of a body; raises JetStreamError 10025, or 10003 for seq with keep."""
        request = super(PurgeRequest, cls).read(body)
        if request.seq and request.keep:
            raise error(ErrorCode.BAD_REQUEST)
        return request


class _NeededRequest(_Request):
    """A body that must be there."""

    __slots__ = ()

    @classmethod
    def read(cls, body: bytes) -> Self:
        """Return the request of a body; raises JetStreamError 10025, or 10003 for an empty one."""
        if _is_empty(body):
            raise error(ErrorCode.BAD_REQUEST)
        return super().read(body)


@dataclass(frozen=True, slots=True)
class SnapshotRequest(_NeededRequest):
    """STREAM.SNAPSHOT: sizes of 0 stand for the server's own; `jsck` checks all messages first."""

    members: ClassVar[ObjectReader] = ObjectReader(
        {
            "deliver_subject": text,
            "no_consumers": boolean,
            "chunk_size": int64,
            "window_size": int64,
            "jsck": boolean,
        }
    )
    deliver_subject: str = ""
    no_consumers: bool = False
    chunk_size: int = 0
    window_size: int = 0
    jsck: bool = False


def _first_sequence(value: object) -> int:
    found: int = ObjectReader({"first_seq": uint64}, ignore_unknown=True)(value).get("first_seq", 0)
    return found


@dataclass(frozen=True, slots=True)
class RestoreRequest(_NeededRequest):
    """STREAM.RESTORE: the configuration to be, and the first sequence that was kept."""

    members: ClassVar[ObjectReader] = ObjectReader(
        {
            "config": StreamConfig.from_json,
            "state": _first_sequence,
        }
    )
    config: StreamConfig = field(default_factory=StreamConfig)
    state: int = 0


_MESSAGE_GET_MEMBERS: Final[Mapping[str, Reader]] = {
    "seq": uint64,
    "last_by_subj": text,
    "next_by_subj": text,
    "batch": int64,
    "max_bytes": int64,
    "start_time": timestamp,
    "multi_last": array(text, ""),
    "up_to_seq": uint64,
    "up_to_time": timestamp,
    "no_hdr": boolean,
}
_DIRECT_GET: Final = ObjectReader(_MESSAGE_GET_MEMBERS, ignore_unknown=True)


@dataclass(frozen=True, slots=True)
class MessageGetRequest(_Request):
    """STREAM.MSG.GET (`read`) and DIRECT.GET (`read_direct`)."""

    members: ClassVar[ObjectReader] = ObjectReader(_MESSAGE_GET_MEMBERS)
    seq: int = 0
    last_by_subj: str = ""
    next_by_subj: str = ""
    batch: int = 0
    max_bytes: int = 0
    start_time: int | None = None
    multi_last: tuple[str, ...] = ()
    up_to_seq: int = 0
    up_to_time: int | None = None
    no_hdr: bool = False

    @classmethod
    def read(cls, body: bytes) -> Self:
        """Return the request of STREAM.MSG.GET; raises JetStreamError 10025.

        A body that names no message or several raises 10003: `seq`, `last_by_subj` and `start_time`
        exclude one another, and `next_by_subj` goes with any but `last_by_subj`.
        """
        if _is_empty(body):
            raise error(ErrorCode.BAD_REQUEST)
        request = super(MessageGetRequest, cls).read(body)
        if request.batch > 0 or request.max_bytes > 0 or not request._names_one_place():
            raise error(ErrorCode.BAD_REQUEST)
        if not (request._starts() or request.next_by_subj):
            raise error(ErrorCode.BAD_REQUEST)
        return request

    @classmethod
    def read_direct(cls, body: bytes) -> Self:
        """Return the request of DIRECT.GET, which may have members that the server does not know.

        Raises ValueError with the description that belongs to the status 408.
        """
        if not body:
            raise ValueError("Empty Request")
        try:
            request = cls(**_DIRECT_GET.read(decode(body)))
        except JetStreamError:
            raise ValueError("Malformed Request") from None
        if not (request._starts() or request.next_by_subj or request.multi_last):
            raise ValueError("Empty Request")
        if (
            not request._names_one_place()
            or (request.last_by_subj and (request.batch > 0 or request.multi_last))
            or (request.next_by_subj and request.multi_last)
            or (request.up_to_seq and request.up_to_time is not None)
        ):
            raise ValueError("Bad Request")
        return request

    def _starts(self) -> bool:
        return bool(self.seq or self.last_by_subj or self.start_time is not None)

    def _names_one_place(self) -> bool:
        places = (self.seq > 0, bool(self.last_by_subj), self.start_time is not None)
        return sum(places) <= 1 and not (self.last_by_subj and self.next_by_subj)


@dataclass(frozen=True, slots=True)
class MessageDeleteRequest(_NeededRequest):
    """STREAM.MSG.DELETE."""

    members: ClassVar[ObjectReader] = ObjectReader({"seq": uint64, "no_erase": boolean})
    seq: int = 0
    no_erase: bool = False


@dataclass(frozen=True, slots=True)
class PauseRequest(_OptionalRequest):
    """CONSUMER.PAUSE: None, or a time that has passed, ends a pause."""

    members: ClassVar[ObjectReader] = ObjectReader({"pause_until": timestamp})
    pause_until: int | None = None


@dataclass(frozen=True, slots=True)
class UnpinRequest(_Request):
    """CONSUMER.UNPIN."""

    members: ClassVar[ObjectReader] = ObjectReader({"group": text})
    group: str = ""

    @classmethod
    def read(cls, body: bytes) -> Self:
        """Return the request of a body; raises JetStreamError 10025, also without a group."""
        request = super(UnpinRequest, cls).read(body)
        if not request.group:
            raise error(ErrorCode.INVALID_JSON, err="consumer group not specified")
        return request


@dataclass(frozen=True, slots=True)
class PullRequest(_Request):
    """CONSUMER.MSG.NEXT: a body that is neither an object nor a number asks for one message.

    Unlike the other requests this one may have members that the server does not know.
    """

    members: ClassVar[ObjectReader] = ObjectReader(
        {
            "expires": int64,
            "batch": int64,
            "max_bytes": int64,
            "no_wait": boolean,
            "idle_heartbeat": int64,
            "group": text,
            "min_pending": int64,
            "min_ack_pending": int64,
            "id": text,
            "priority": int64,
        },
        ignore_unknown=True,
    )
    expires: int = 0
    batch: int = 1
    max_bytes: int = 0
    no_wait: bool = False
    idle_heartbeat: int = 0
    group: str = ""
    min_pending: int = 0
    min_ack_pending: int = 0
    id: str = ""
    priority: int = 0

    @classmethod
    def read(cls, body: bytes) -> PullRequest:
        """Return the request of a body; raises JetStreamError 10025."""
        stripped = body.strip()
        if stripped.startswith(b"{"):
            return cls(**cls.members.read(decode(stripped)))
        number = _NUMBER.fullmatch(stripped)
        return cls(batch=int(stripped)) if number else cls()
