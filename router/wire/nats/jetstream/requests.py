"""Bodies of requests of the JetStream API, read strictly; an empty body counts as `{}`.

Members have the names of the JSON; durations are nanoseconds, times nanoseconds since 1970.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self

from router.wire.nats.jetstream.config import ConsumerConfig, StreamConfig
from router.wire.nats.jetstream.errors import ErrorCode, JetStreamError, error
from router.wire.nats.jetstream.members import member, reader_of
from router.wire.nats.jetstream.reading import (
    WHITESPACE,
    ObjectReader,
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

    @classmethod
    def read(cls, body: bytes) -> Self:
        """Return the request of a body; raises JetStreamError 10025."""
        return cls(**reader_of(cls).read(decode(body)))


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

    stream_name: str = member(text, "")
    config: ConsumerConfig = member(
        lambda value: ConsumerConfig(**reader_of(ConsumerConfig)(value)),
        default_factory=ConsumerConfig,
    )
    action: ConsumerAction = member(choice(ConsumerAction), ConsumerAction.CREATE_OR_UPDATE)
    pedantic: bool = member(boolean, False)


@dataclass(frozen=True, slots=True)
class StreamInfoRequest(_OptionalRequest):
    """STREAM.INFO: `offset` is where the page of `state.subjects` starts."""

    offset: int = member(int64, 0)
    deleted_details: bool = member(boolean, False)
    subjects_filter: str = member(text, "")


@dataclass(frozen=True, slots=True)
class StreamPageRequest(_OptionalRequest):
    """STREAM.NAMES and STREAM.LIST: streams that store `subject`, from `offset` on."""

    offset: int = member(int64, 0)
    subject: str = member(text, "")


@dataclass(frozen=True, slots=True)
class ConsumerPageRequest(_OptionalRequest):
    """CONSUMER.NAMES and CONSUMER.LIST: consumers from `offset` on."""

    offset: int = member(int64, 0)


@dataclass(frozen=True, slots=True)
class PurgeRequest(_OptionalRequest):
    """STREAM.PURGE: messages below `seq`, of the subjects of `filter`, but for the last `keep`."""

    seq: int = member(uint64, 0)
    filter: str = member(text, "")
    keep: int = member(uint64, 0)

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

    deliver_subject: str = member(text, "")
    no_consumers: bool = member(boolean, False)
    chunk_size: int = member(int64, 0)
    window_size: int = member(int64, 0)
    jsck: bool = member(boolean, False)


def _first_sequence(value: object) -> int:
    found: int = ObjectReader({"first_seq": uint64}, ignore_unknown=True)(value).get("first_seq", 0)
    return found


@dataclass(frozen=True, slots=True)
class RestoreRequest(_NeededRequest):
    """STREAM.RESTORE: the configuration to be, and the first sequence that was kept."""

    config: StreamConfig = member(StreamConfig.from_json, default_factory=StreamConfig)
    state: int = member(_first_sequence, 0)


@dataclass(frozen=True, slots=True)
class MessageGetRequest(_Request):
    """STREAM.MSG.GET (`read`) and DIRECT.GET (`read_direct`)."""

    seq: int = member(uint64, 0)
    last_by_subj: str = member(text, "")
    next_by_subj: str = member(text, "")
    batch: int = member(int64, 0)
    max_bytes: int = member(int64, 0)
    start_time: int | None = member(timestamp, None)
    multi_last: tuple[str, ...] = member(array(text, ""), ())
    up_to_seq: int = member(uint64, 0)
    up_to_time: int | None = member(timestamp, None)
    no_hdr: bool = member(boolean, False)

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
            request = cls(**reader_of(cls, ignore_unknown=True).read(decode(body)))
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

    seq: int = member(uint64, 0)
    no_erase: bool = member(boolean, False)


@dataclass(frozen=True, slots=True)
class PauseRequest(_OptionalRequest):
    """CONSUMER.PAUSE: None, or a time that has passed, ends a pause."""

    pause_until: int | None = member(timestamp, None)


@dataclass(frozen=True, slots=True)
class UnpinRequest(_Request):
    """CONSUMER.UNPIN."""

    group: str = member(text, "")

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

    expires: int = member(int64, 0)
    batch: int = member(int64, 1)
    max_bytes: int = member(int64, 0)
    no_wait: bool = member(boolean, False)
    idle_heartbeat: int = member(int64, 0)
    group: str = member(text, "")
    min_pending: int = member(int64, 0)
    min_ack_pending: int = member(int64, 0)
    id: str = member(text, "")
    priority: int = member(int64, 0)

    @classmethod
    def read(cls, body: bytes) -> PullRequest:
        """Return the request of a body; raises JetStreamError 10025."""
        stripped = body.strip()
        if stripped.startswith(b"{"):
            return cls(**reader_of(cls, ignore_unknown=True).read(decode(stripped)))
        number = _NUMBER.fullmatch(stripped)
        return cls(batch=int(stripped)) if number else cls()
