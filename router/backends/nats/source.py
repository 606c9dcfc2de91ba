"""The streams of a NATS server as topics without partitions; nothing is ever written there.

Theory of operation. A sequence is the entry of a position. Messages are asked for one by one, many
requests at a time, which leaves no trace at the server and works for every kind of stream; where
none of them is there, the next one that is there is asked for. The durable consumers without a
filter are subscriptions, which stand where all before is acknowledged.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final, NoReturn

import orjson

from router.backends import Capabilities, ReadStart, Schemas, Start
from router.backends.nats.connection import NatsConnection, NatsUrl
from router.errors import (
    BadNameError,
    BadRequestError,
    NotAllowedError,
    NotSupportedError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from router.model import (
    NOT_PARTITIONED,
    PERSISTENT,
    CursorState,
    PartitionStats,
    Position,
    Schema,
    Stored,
    Subscription,
    SubscriptionStats,
    TopicInfo,
    TopicName,
    TopicStats,
)
from router.model.policies import Policies
from router.node import Mailbox
from router.wire.nats.jetstream.times import parse_time
from router.wire.nats.message import NatsMessage
from router.wire.nats.router_messages import read_message

API: Final = "$JS.API."
NS_PER_MS: Final = 1_000_000
MAX_WINDOW: Final = 256
"""Messages that are asked for at a time, as long as they are small."""
MAX_PAGES: Final = 100_000
_STREAM_NOT_FOUND: Final = 10059
_NO_MESSAGE: Final = 10037
_READ_ONLY: Final = "a NATS server can be copied from, and not written to"


class NatsSource:
    """A store that is only read; see `Backend`."""

    def __init__(self, url: str, tenant: str, namespace: str) -> None:
        self._url = NatsUrl(url)
        self._namespace = (tenant, namespace)
        self.schemas: Schemas = NoSchemas()

    def list_topics(self, timeout: float, *, internal: bool = False) -> list[TopicInfo]:
        """Return all streams whose names can be those of topics; none is internal."""
        del internal
        found = []
        for stream in self._pages("STREAM.LIST", "streams", timeout):
            try:
                found.append(self._info(stream))
            except BadNameError:
                continue
        return sorted(found, key=lambda info: str(info.topic))

    def describe_topic(self, topic: TopicName, timeout: float) -> TopicStats:
        """Return what a stream holds, and its durable consumers; raise TopicNotFoundError."""
        stream = self._stream(topic, timeout)
        state = stream["state"]
        first, last = int(state["first_seq"]), int(state["last_seq"])
        stats = PartitionStats(
            NOT_PARTITIONED,
            first_entry=max(1, first),
            next_entry=last + 1,
            messages=int(state["messages"]),
            bytes=int(state["bytes"]),
            deleted=int(state.get("num_deleted", 0)),
        )
        groups = [
            SubscriptionStats(one["name"], NOT_PARTITIONED, _backlog(one))
            for one in self._groups(topic, timeout)
        ]
        return TopicStats(self._info(stream), (stats,), tuple(groups))

    def partitions(self, topic: TopicName, timeout: float) -> int:
        """Return that a stream has none; raise TopicNotFoundError."""
        self._stream(topic, timeout)
        return 0

    def read(
        self, topic: TopicName, partition: int, start: ReadStart, mailbox: Mailbox, timeout: float
    ) -> StreamReader:
        """Open a reader; see the protocol. Its mailbox is never woken."""
        del mailbox
        if partition != NOT_PARTITIONED:
            raise TopicNotFoundError(f"stream {topic.local} has no partition {partition}")
        if isinstance(start, Position) and not start.may_be_of(partition):
            raise BadRequestError(f"{start} is no position of a stream")
        reader = StreamReader(self._url, topic)
        reader.begin(start, timeout)
        return reader

    def cursors(self, subscription: Subscription, timeout: float) -> list[CursorState]:
        """Return where a consumer stands; raise SubscriptionNotFoundError, TopicNotFoundError."""
        for one in self._groups(subscription.topic, timeout):
            if one["name"] == subscription.name:
                floor = int(one["ack_floor"]["stream_seq"])
                mark = Position(0, floor) if floor else None
                return [CursorState(NOT_PARTITIONED, mark, backlog=_backlog(one))]
        raise SubscriptionNotFoundError(f"there is no consumer {subscription.name}")

    def capabilities(self, timeout: float) -> Capabilities:
        """Return that nothing can be changed."""
        del timeout
        return Capabilities(*(_READ_ONLY,) * 5)

    def ready(self, timeout: float) -> None:
        """Return if the server answers."""
        self._call("INFO", {}, timeout)

    def close(self) -> None:
        """Do nothing: each call has a connection of its own, and so has a reader."""

    def _refuse(self, *given: Any, **named: Any) -> NoReturn:
        """Raise NotAllowedError: nothing is written to the server."""
        raise NotAllowedError(_READ_ONLY)

    publish = subscribe = reset = unsubscribe = consume = acknowledge = _refuse
    create_topic = create_on_demand = delete_topic = grow_topic = set_retention = _refuse

    def _info(self, stream: dict[str, Any]) -> TopicInfo:
        config = stream["config"]
        name = TopicName.parse(f"{PERSISTENT}://{'/'.join(self._namespace)}/{config['name']}")
        age, size = int(config.get("max_age", 0)), int(config.get("max_bytes", -1))
        policies = Policies(
            retention_ms=age // NS_PER_MS if age > 0 else -1,
            retention_bytes=size if size > 0 else -1,
        )
        return TopicInfo(name, 0, policies, created_ms=parse_time(stream["created"]) // NS_PER_MS)

    def _stream(self, topic: TopicName, timeout: float) -> dict[str, Any]:
        if (topic.tenant, topic.namespace) != self._namespace:
            raise TopicNotFoundError(f"there is no stream for {topic}")
        return self._call(f"STREAM.INFO.{topic.local}", {}, timeout)

    def _groups(self, topic: TopicName, timeout: float) -> list[dict[str, Any]]:
        """Return the durable consumers that get all subjects."""
        return [
            one
            for one in self._pages(f"CONSUMER.LIST.{topic.local}", "consumers", timeout)
            if one["config"].get("durable_name")
            and not (one["config"].get("filter_subject") or one["config"].get("filter_subjects"))
        ]

    def _pages(self, call: str, member: str, timeout: float) -> Iterator[dict[str, Any]]:
        offset = 0
        for _ in range(MAX_PAGES):
            page = self._call(call, {"offset": offset}, timeout)
            found = page.get(member) or []
            yield from found
            offset += len(found)
            if not found or offset >= int(page.get("total", 0)):
                return

    def _call(self, call: str, body: dict[str, Any], timeout: float) -> dict[str, Any]:
        with closing(NatsConnection(self._url)) as connection:
            [reply] = connection.requests([(API + call, orjson.dumps(body))], timeout)
        return checked(reply)


class StreamReader:
    """Reads one stream; see `Reader`."""

    def __init__(self, url: NatsUrl, topic: TopicName) -> None:
        self._connection = NatsConnection(url)
        self._topic = topic
        self._next = self._last = 0
        self._window = MAX_WINDOW // 8

    def begin(self, start: ReadStart, timeout: float) -> None:
        """Go to a place; raise TopicNotFoundError."""
        first = self._look(timeout)
        if isinstance(start, Position):
            self._next = max(1, start.entry)
        elif start is Start.EARLIEST:
            self._next = max(1, first)
        elif isinstance(start, Start):
            self._next = self._last + 1
        else:
            self._next = self._find_time(max(1, first), int(start), timeout)

    def receive(self, limit: int, max_bytes: int, timeout: float) -> list[Stored]:
        """Return what comes next; see the protocol."""
        if self._next > self._last:
            first = self._look(timeout)
            self._next = max(self._next, first)
        while self._next <= self._last:
            count = min(limit, self._window, self._last + 1 - self._next)
            found = self._messages(self._next, count, timeout)
            if found:
                return self._within(found, max_bytes)
            following = self._following(self._next + count, timeout)
            self._next = self._last + 1 if following is None else following.position.entry
        return []

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _within(self, found: list[Stored], max_bytes: int) -> list[Stored]:
        """Return the messages that fit, and ask for as many as fit the next time."""
        size = 0
        for count, stored in enumerate(found):
            size += stored.message.size()
            if count and size > max_bytes:
                found = found[:count]
                break
        average = max(1, size // len(found))
        self._window = max(1, min(MAX_WINDOW, max_bytes // average, 2 * self._window))
        self._next = found[-1].position.entry + 1
        return found

    def _messages(self, first: int, count: int, timeout: float) -> list[Stored]:
        """Return the messages that are there of so many sequences."""
        calls = [(self._get, orjson.dumps({"seq": first + at})) for at in range(count)]
        replies = self._connection.requests(calls, timeout)
        return [one for one in map(_stored, replies) if one is not None]

    def _following(self, sequence: int, timeout: float) -> Stored | None:
        """Return the first message from a sequence on, None: there is none."""
        body = orjson.dumps({"seq": sequence, "next_by_subj": ">"})
        [reply] = self._connection.requests([(self._get, body)], timeout)
        return _stored(reply)

    def _look(self, timeout: float) -> int:
        """Learn where the stream ends; return its first sequence."""
        info = f"{API}STREAM.INFO.{self._topic.local}"
        [reply] = self._connection.requests([(info, b"")], timeout)
        state = checked(reply)["state"]
        self._last = int(state["last_seq"])
        return int(state["first_seq"])

    def _find_time(self, low: int, time_ms: int, timeout: float) -> int:
        """Return the first sequence that was stored at a time or later."""
        high = self._last + 1
        while low < high:
            middle = (low + high) // 2
            found = self._following(middle, timeout)
            if found is None or found.publish_time >= time_ms:
                high = middle
            else:
                low = found.position.entry + 1
        return low

    @property
    def _get(self) -> str:
        return f"{API}STREAM.MSG.GET.{self._topic.local}"


class NoSchemas:
    """NATS has no schemas."""

    def get(self, topic: TopicName, version: bytes | None, timeout: float) -> Schema:
        """Refuse: there are none."""
        raise NotSupportedError("streams of NATS have no schemas")

    def put(self, topic: TopicName, schema: Schema, timeout: float) -> bytes:
        """Refuse: nothing is written."""
        raise NotAllowedError(_READ_ONLY)


def checked(reply: bytes) -> dict[str, Any]:
    """Return a reply of the API; raise TopicNotFoundError, NotAllowedError."""
    try:
        found: dict[str, Any] = orjson.loads(reply)
    except orjson.JSONDecodeError:
        raise NotAllowedError("the NATS server answered no JSON") from None
    if (error := found.get("error")) is None:
        return found
    description = str(error.get("description", ""))
    if error.get("err_code") == _STREAM_NOT_FOUND:
        raise TopicNotFoundError(description)
    raise NotAllowedError(f"the NATS server refuses it: {description}")


def _stored(reply: bytes) -> Stored | None:
    """Return the message of a reply, None: there is none."""
    if b'"err_code":%d' % _NO_MESSAGE in reply[:400]:
        return None
    found = checked(reply)["message"]
    headers, payload = b64decode(found.get("hdrs", "")), b64decode(found.get("data", ""))
    sequence, time_ms = int(found["seq"]), parse_time(found["time"]) // NS_PER_MS
    message = read_message(NatsMessage(found["subject"], "", headers, payload))
    # Nothing else keeps the time and the sequence.
    event_time = time_ms if message.event_time is None else message.event_time
    message = message._replace(event_time=event_time, sequence=sequence)
    return Stored(message, Position(0, sequence), time_ms)


def _backlog(consumer: dict[str, Any]) -> int:
    return int(consumer["num_pending"]) + int(consumer["num_ack_pending"])
