"""Replies of the JetStream API: values for each type, and their JSON of the form `v1`.

A reply has the type that its call returns, also when it carries an error. Times are nanoseconds
since 1970, None where there is none; the JSON has the members, and leaves out the empty ones, as
nats-server 2.15 does.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import orjson

from router.wire.nats.jetstream.config import ConsumerConfig, StreamConfig
from router.wire.nats.jetstream.errors import JetStreamError
from router.wire.nats.jetstream.members import OPTIONAL, TIME, JsonObject, shown_time
from router.wire.nats.jetstream.times import format_time

API_LEVEL: Final = 1
"""The level of the API that `account_info` shows: that of nats-server 2.11, with pauses."""

MAX_NAMES: Final = 1024
"""How many names one page of a reply has."""

MAX_INFOS: Final = 256
"""How many descriptions of streams or consumers one page of a reply has."""

_TYPE_PREFIX: Final = "io.nats.jetstream.api.v1."
_NO_PAGE: Final[Mapping[str, Any]] = {"total": 0, "offset": 0, "limit": 0}

ERROR_MEMBERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "stream_info": _NO_PAGE,
    "stream_names": _NO_PAGE,
    "stream_list": _NO_PAGE,
    "stream_purge": {"purged": 0},
    "stream_restore": {"deliver_subject": ""},
    "consumer_names": _NO_PAGE,
    "consumer_list": _NO_PAGE,
}
"""The members that a reply of a type keeps beside its error.

nats-server keeps the list of a page too, and `paused`, which the schemas of jsm.go refuse.
"""


class ReplyResult(Protocol):
    """What a reply of one type carries."""

    def to_json(self) -> dict[str, Any]:
        """Return the members of the reply, without its type."""
        ...


@dataclass(frozen=True, slots=True)
class ApiReply:
    """A reply: the name of its type without prefix and `_response`, and a result or an error."""

    type: str
    result: ReplyResult | None = None
    error: JetStreamError | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the object of the form `v1`."""
        members: dict[str, Any] = {"type": f"{_TYPE_PREFIX}{self.type}_response"}
        if self.error is not None:
            return {
                **members,
                "error": self.error.to_json(),
                **ERROR_MEMBERS.get(self.type, {}),
            }
        if self.result is not None:
            members |= self.result.to_json()
        return members

    def to_bytes(self) -> bytes:
        """Return the JSON of the form `v1`."""
        return orjson.dumps(self.to_json())


@dataclass(frozen=True, slots=True)
class StreamState(JsonObject):
    """What a stream holds; `num_deleted` counts the numbers without a message in its range."""

    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    first_ts: int | None = field(default=None, metadata=TIME)
    last_seq: int = 0
    last_ts: int | None = field(default=None, metadata=TIME)
    num_subjects: int = field(default=0, metadata=OPTIONAL)
    num_deleted: int = field(default=0, metadata=OPTIONAL)
    consumer_count: int = 0
    subjects: Mapping[str, int] = field(default_factory=dict, metadata=OPTIONAL)
    deleted: Sequence[int] = field(default=(), metadata=OPTIONAL)


@dataclass(frozen=True, slots=True)
class StreamInfo(JsonObject):
    """A stream: stream_create, stream_update, and one of stream_list."""

    config: StreamConfig
    created: int = field(metadata=TIME)
    state: StreamState
    ts: int = field(metadata=TIME)
    did_create: bool = field(default=False, metadata=OPTIONAL)


@dataclass(frozen=True, slots=True)
class PagedReply(JsonObject):
    """Which part of a list a reply has: `total` elements, from `offset` on, at most `limit`."""

    total: int = 0
    offset: int = 0
    limit: int = 0

    @classmethod
    def of(cls, total: int, offset: int, limit: int) -> PagedReply:
        """Return the page at a requested offset, which may lie outside of the list."""
        return cls(total, min(max(0, offset), total), limit)

    def part(self, names: list[str]) -> list[str]:
        """Return the elements of the page."""
        return names[self.offset : self.offset + self.limit]


@dataclass(frozen=True, slots=True)
class StreamInfoPage:
    """A stream and a page of its subjects (stream_info)."""

    info: StreamInfo
    page: PagedReply = field(default_factory=PagedReply)

    def to_json(self) -> dict[str, Any]:
        """Return the members of the reply."""
        return self.page.to_json() | self.info.to_json()


@dataclass(frozen=True, slots=True)
class ListPage:
    """A page of names or descriptions, in the member `streams` or `consumers`.

    nats-server writes null for an empty list of names of streams; the router writes [], which every
    client and the schema take.
    """

    member: str
    listed: Sequence[str] | Sequence[StreamInfo] | Sequence[ConsumerInfo]
    page: PagedReply

    def to_json(self) -> dict[str, Any]:
        """Return the members of the reply."""
        shown = [one if isinstance(one, str) else one.to_json() for one in self.listed]
        return self.page.to_json() | {self.member: shown}


@dataclass(frozen=True, slots=True)
class StreamSnapshot(JsonObject):
    """The stream whose archive follows (stream_snapshot)."""

    config: StreamConfig
    state: StreamState


@dataclass(frozen=True, slots=True)
class Restore(JsonObject):
    """Where the client sends an archive (stream_restore)."""

    deliver_subject: str


@dataclass(frozen=True, slots=True)
class Success:
    """What deletions return (stream_delete, stream_msg_delete, consumer_delete)."""

    def to_json(self) -> dict[str, Any]:
        """Return the member `success`."""
        return {"success": True}


@dataclass(frozen=True, slots=True)
class Purged:
    """How many messages a purge deleted (stream_purge)."""

    purged: int

    def to_json(self) -> dict[str, Any]:
        """Return the members of the reply."""
        return {"success": True, "purged": self.purged}


@dataclass(frozen=True, slots=True)
class MessageReply:
    """A stored message (stream_msg_get); `headers` is the whole block or empty."""

    subject: str
    sequence: int
    headers: bytes
    payload: bytes
    time_ns: int

    def to_json(self) -> dict[str, Any]:
        """Return the member `message`."""
        members: dict[str, Any] = {"subject": self.subject, "seq": self.sequence}
        if self.headers:
            members["hdrs"] = b64encode(self.headers).decode()
        if self.payload:
            members["data"] = b64encode(self.payload).decode()
        members["time"] = format_time(self.time_ns)
        return {"message": members}


@dataclass(frozen=True, slots=True)
class SequencePair(JsonObject):
    """A position of a consumer: in its own deliveries and in the stream."""

    consumer_seq: int = 0
    stream_seq: int = 0
    last_active: int | None = field(default=None, metadata=OPTIONAL | TIME)


@dataclass(frozen=True, slots=True)
class PriorityGroupState(JsonObject):
    """A priority group of a consumer, and the client that is pinned."""

    group: str
    pinned_client_id: str = field(default="", metadata=OPTIONAL)
    pinned_ts: int | None = field(default=None, metadata=TIME)


class Unpinned:
    """The client of a group is unpinned (consumer_unpin)."""

    def to_json(self) -> dict[str, Any]:
        """Return the members of the reply: none."""
        return {}


@dataclass(frozen=True, slots=True)
class ConsumerInfo(JsonObject):
    """A consumer: consumer_create, consumer_info, and one of consumer_list."""

    stream_name: str
    name: str
    created: int = field(metadata=TIME)
    config: ConsumerConfig
    delivered: SequencePair
    ack_floor: SequencePair
    ts: int = field(metadata=TIME)
    num_ack_pending: int = 0
    num_redelivered: int = 0
    num_waiting: int = 0
    num_pending: int = 0
    push_bound: bool = field(default=False, metadata=OPTIONAL)
    paused: bool = field(default=False, metadata=OPTIONAL)
    pause_remaining: int = field(default=0, metadata=OPTIONAL)
    priority_groups: Sequence[PriorityGroupState] = field(default=(), metadata=OPTIONAL)


@dataclass(frozen=True, slots=True)
class Paused:
    """Until when a consumer pauses, and how many nanoseconds are left (consumer_pause)."""

    pause_until: int | None
    remaining: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the members of the reply."""
        members: dict[str, Any] = {
            "paused": self.remaining > 0,
            "pause_until": shown_time(self.pause_until),
        }
        if self.remaining > 0:
            members["pause_remaining"] = self.remaining
        return members


@dataclass(frozen=True, slots=True)
class AccountInfo:
    """What all streams of the caller use (account_info); sizes are bytes, limits -1 for none."""

    memory: int = 0
    storage: int = 0
    reserved_memory: int = 0
    reserved_storage: int = 0
    streams: int = 0
    consumers: int = 0
    max_streams: int = -1
    max_consumers: int = -1
    api_total: int = 0
    api_errors: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the members of the reply."""
        return {
            "memory": self.memory,
            "storage": self.storage,
            "reserved_memory": self.reserved_memory,
            "reserved_storage": self.reserved_storage,
            "streams": self.streams,
            "consumers": self.consumers,
            "limits": {
                "max_memory": -1,
                "max_storage": -1,
                "max_streams": self.max_streams,
                "max_consumers": self.max_consumers,
                "max_ack_pending": -1,
                "memory_max_stream_bytes": -1,
                "storage_max_stream_bytes": -1,
                "max_bytes_required": False,
            },
            "api": {"level": API_LEVEL, "total": self.api_total, "errors": self.api_errors},
        }


@dataclass(frozen=True, slots=True)
class PubAck:
    """The acknowledgement of a publish, which has no type; an error has the sequence 0."""

    stream: str
    seq: int = 0
    duplicate: bool = False
    error: JetStreamError | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the object of the form `v1`."""
        members: dict[str, Any] = {}
        if self.error is not None:
            members["error"] = self.error.to_json()
        members |= {"stream": self.stream, "seq": self.seq}
        if self.duplicate:
            members["duplicate"] = True
        return members

    def to_bytes(self) -> bytes:
        """Return the JSON of the form `v1`."""
        return orjson.dumps(self.to_json())
