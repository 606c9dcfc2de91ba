"""JetStream over a store of topics that is another server's: what such a store can promise.

Theory of operation. A topic with one partition is a stream of its name, and its name is the
stream's only subject. Where the store numbers messages without gaps by themselves (Kafka: offsets),
a sequence is that number + 1; elsewhere there are none, and what needs them is refused. Consumers,
purges and deletions of single messages are refused: the store has nothing that could keep them.
Every refusal is an answer of the type that the call returns, with the number `JetStream not
enabled` and a sentence that says what the store lacks. Answers have the form `v1`, as those of the
node's broker; the views write the other one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from router.access.authorizer import Authorizer
from router.access.permissions import Right
from router.backends import NullMailbox
from router.clocks.steps import Steps
from router.errors import (
    BadNameError,
    NotAllowedError,
    NotSupportedError,
    OutcomeUnknownError,
    TopicExistsError,
    TopicNotFoundError,
)
from router.model import Position, Principal, TopicInfo, TopicName, TopicStats
from router.model.policies import Policies
from router.services.jetstream import API_PREFIX, AckRequest, JetStreamRequest, Watch, unwatched
from router.services.jetstream.calls import JetStreamCall, call_of
from router.services.manage import NewTopic, TopicManagement
from router.services.producing import MessageProducer, Outgoing, Sender
from router.services.read import TopicReader
from router.wire.nats.headers import MSG_ID, NO_RESPONDERS, first, status
from router.wire.nats.jetstream.config import StreamConfig
from router.wire.nats.jetstream.errors import ErrorCode, JetStreamError, error
from router.wire.nats.jetstream.replies import (
    MAX_INFOS,
    MAX_NAMES,
    AccountInfo,
    ApiReply,
    ListPage,
    MessageReply,
    PagedReply,
    PubAck,
    ReplyResult,
    StreamInfo,
    StreamInfoPage,
    StreamState,
    Success,
)
from router.wire.nats.jetstream.requests import (
    MessageGetRequest,
    StreamConfigRequest,
    StreamPageRequest,
)
from router.wire.nats.jetstream.stream_rules import checked_stream
from router.wire.nats.message import AckResult, NatsMessage
from router.wire.nats.router_messages import read_message, write_message
from router.wire.nats.subjects import matches

MILLISECOND_NS: Final = 1_000_000
_MISSING: Final[Mapping[str, str]] = {
    "stream_update": "changes of a stream",
    "stream_purge": "purges",
    "stream_msg_delete": "deletions of single messages",
}
# Headers that need a look at the stream in the same step as the append.
_CONDITIONS: Final = (b"\nNats-Expected-Last", b"\nNats-Rollup", b"\nNats-TTL", b"\nNats-Schedule")
_NEXT: Final = f"{API_PREFIX}CONSUMER.MSG.NEXT."
_EXPECTED_STREAM: Final = "Nats-Expected-Stream"


@dataclass(frozen=True, slots=True)
class TopicStore:
    """The store: its name for people, and its services; `sequences`: it numbers messages."""

    name: str
    sequences: bool
    topics: TopicManagement
    producer: MessageProducer
    reading: TopicReader
    tenant: str
    namespace: str


class TopicStreams:
    """Answers JetStream requests from a store of topics; see the protocol `JetStream`."""

    def __init__(
        self, store: TopicStore, permissions: Authorizer, wall_ns: Callable[[], int]
    ) -> None:
        self._store = store
        self._permissions = permissions
        self._wall_ns = wall_ns
        self._answers: Mapping[str, Callable[[Principal, JetStreamCall, bytes], ReplyResult]] = {
            "account_info": self._account,
            "stream_create": self._create,
            "stream_info": self._info,
            "stream_names": self._names,
            "stream_list": self._list,
            "stream_delete": self._delete,
            "stream_msg_get": self._message,
        }

    def request(
        self, request: JetStreamRequest, watch: Watch = unwatched
    ) -> Steps[list[NatsMessage]]:
        """Return the replies; nothing is waited for."""
        del watch
        yield from ()  # a generator, as the protocol has it
        principal, message = request.principal, request.message
        if message.subject.startswith(_NEXT):
            raise NotSupportedError(self._lacks("consumers of JetStream"))
        if message.subject.startswith(API_PREFIX):
            call = call_of(message.subject)
            return [NatsMessage("", payload=self._answer(principal, call, message.payload))]
        return [self._published(principal, message)]

    def acknowledge(self, request: AckRequest) -> Steps[AckResult]:
        """Raise NotSupportedError: there are no consumers."""
        del request
        yield from ()  # a generator, as the protocol has it
        raise NotSupportedError(self._lacks("consumers of JetStream"))

    def stop(self) -> None:
        """Do nothing: no request waits."""

    def _answer(self, principal: Principal, call: JetStreamCall, body: bytes) -> bytes:
        try:
            if call.fault is not None:
                raise call.fault
            answer = self._answers.get(call.type)
            if answer is None:
                raise self._refused(_MISSING.get(call.type, "consumers of JetStream"))
            return ApiReply(call.type, answer(principal, call, body)).to_bytes()
        except JetStreamError as fault:
            return ApiReply(call.type, error=fault).to_bytes()

    def _lacks(self, what: str) -> str:
        return f"The store {self._store.name} has no {what}; the store `embedded` has."

    def _refused(self, what: str) -> JetStreamError:
        return JetStreamError(ErrorCode.NOT_ENABLED, self._lacks(what))

    def _topic(self, stream: str, bad_name: ErrorCode = ErrorCode.STREAM_NOT_FOUND) -> TopicName:
        """Return the topic of a stream; raise JetStreamError `bad_name` if none can be one."""
        local = stream.replace("%2E", ".").replace("%25", "%")
        try:
            return TopicName.parse(local, self._store.tenant, self._store.namespace)
        except BadNameError as bad:
            raise error(bad_name, err=bad) from bad

    def _stats(self, principal: Principal, stream: str) -> TopicStats:
        topic = self._topic(stream)
        if not self._permissions.allows(principal, topic, Right.VIEW):
            raise error(ErrorCode.STREAM_NOT_FOUND)
        try:
            return self._store.topics.described(topic)
        except TopicNotFoundError as missing:
            raise error(ErrorCode.STREAM_NOT_FOUND) from missing

    def _infos(self, principal: Principal, subject: str) -> list[TopicInfo]:
        """Return the topics that the principal sees, whose name a pattern of subjects matches."""
        return [
            info
            for info in self._store.topics.listed(self._store.tenant, self._store.namespace)
            if (not subject or matches(subject, info.topic.local))
            and self._permissions.allows(principal, info.topic, Right.VIEW)
        ]

    def _described(self, stats: TopicStats) -> StreamInfo:
        info, now = stats.info, self._wall_ns()
        return StreamInfo(_config(info), info.created_ms * MILLISECOND_NS, self._state(stats), now)

    def _state(self, stats: TopicStats) -> StreamState:
        size = sum(partition.bytes for partition in stats.partitions)
        messages = sum(partition.messages for partition in stats.partitions)
        consumers = len({subscription.name for subscription in stats.subscriptions})
        state = StreamState(messages, size, consumer_count=consumers)
        if not self._store.sequences or len(stats.partitions) != 1:
            return state
        partition = stats.partitions[0]
        first, last = partition.first_entry + 1, partition.next_entry
        return replace(state, first_seq=first, last_seq=last)

    def _account(self, principal: Principal, call: JetStreamCall, body: bytes) -> AccountInfo:
        del call, body
        return AccountInfo(streams=len(self._infos(principal, "")))

    def _info(self, principal: Principal, call: JetStreamCall, body: bytes) -> StreamInfoPage:
        del body
        return StreamInfoPage(self._described(self._stats(principal, call.stream)))

    def _names(self, principal: Principal, call: JetStreamCall, body: bytes) -> ListPage:
        del call
        request = StreamPageRequest.read(body)
        found = [_stream_name(info.topic) for info in self._infos(principal, request.subject)]
        page = found[request.offset : request.offset + MAX_NAMES]
        return ListPage("streams", page, PagedReply(len(found), request.offset, MAX_NAMES))

    def _list(self, principal: Principal, call: JetStreamCall, body: bytes) -> ListPage:
        del call
        request = StreamPageRequest.read(body)
        found = self._infos(principal, request.subject)
        shown = found[request.offset : request.offset + MAX_INFOS]
        page = PagedReply(len(found), request.offset, MAX_INFOS)
        return ListPage("streams", list(self._each(shown)), page)

    def _each(self, infos: Iterable[TopicInfo]) -> Iterable[StreamInfo]:
        for info in infos:
            try:
                yield self._described(self._store.topics.described(info.topic))
            except TopicNotFoundError:
                continue  # deleted meanwhile

    def _create(self, principal: Principal, call: JetStreamCall, body: bytes) -> StreamInfo:
        config = StreamConfigRequest.read(body).config
        if config.name != call.stream:
            raise error(ErrorCode.STREAM_MISMATCH)
        topic = self._topic(call.stream, ErrorCode.STREAM_INVALID_CONFIG)
        self._permissions.authorize(principal, topic, Right.CREATE)
        others = {
            info.topic.local
            for subject in config.subjects
            for info in self._infos(principal, subject)
        } - {topic.local}
        if others:
            raise error(ErrorCode.STREAM_SUBJECT_OVERLAP)
        if (reason := _unsupported(config, topic)) is not None:
            raise error(
                ErrorCode.STREAM_INVALID_CONFIG, err=f"{self._lacks('streams with more')} {reason}"
            )
        checked_stream(config)
        retention_ms = config.max_age // MILLISECOND_NS if config.max_age > 0 else None
        policies = Policies(retention_ms, config.max_bytes if config.max_bytes > 0 else None)
        try:
            self._store.topics.create(NewTopic(topic, 1, policies))
        except TopicExistsError as exists:
            raise error(ErrorCode.STREAM_NAME_EXIST) from exists
        except (NotAllowedError, NotSupportedError) as refused:
            raise JetStreamError(ErrorCode.NOT_ENABLED, str(refused)) from refused
        return replace(self._described(self._stats(principal, call.stream)), did_create=True)

    def _delete(self, principal: Principal, call: JetStreamCall, body: bytes) -> Success:
        del body
        stats = self._stats(principal, call.stream)
        self._permissions.authorize(principal, stats.info.topic, Right.DELETE)
        try:
            self._store.topics.delete(stats.info.topic)
        except TopicNotFoundError as missing:
            raise error(ErrorCode.STREAM_NOT_FOUND) from missing
        except (NotAllowedError, NotSupportedError) as refused:
            raise JetStreamError(ErrorCode.NOT_ENABLED, str(refused)) from refused
        return Success()

    def _message(self, principal: Principal, call: JetStreamCall, body: bytes) -> MessageReply:
        request = MessageGetRequest.read(body)
        stats = self._stats(principal, call.stream)
        topic = stats.info.topic
        self._permissions.authorize(principal, topic, Right.SUBSCRIBE)
        if not self._store.sequences or len(stats.partitions) != 1:
            raise self._refused("sequences of messages")
        subject, partition = topic.local, stats.partitions[0]
        sequence = request.seq
        if request.last_by_subj:
            sequence = partition.next_entry if request.last_by_subj == subject else 0
        if not sequence and not request.last_by_subj:
            raise error(ErrorCode.BAD_REQUEST)
        place = Position(partition.ledger, sequence - 1, partition.partition)
        wrong_subject = request.next_by_subj and not matches(request.next_by_subj, subject)
        if wrong_subject or not partition.first_entry < sequence <= partition.next_entry:
            raise error(ErrorCode.NO_MESSAGE_FOUND)
        timeout = self._store.reading.options.backend_timeout
        reader = self._store.reading.reader(topic, partition.partition, place, NullMailbox())
        try:
            found = reader.receive(1, 1, timeout)
        finally:
            reader.close()
        if not found or (found[0].position.entry != place.entry and not request.next_by_subj):
            raise error(ErrorCode.NO_MESSAGE_FOUND)
        stored = found[0]
        sent = write_message(stored.message)
        return MessageReply(
            sent.subject or subject,
            stored.position.entry + 1,
            sent.headers,
            sent.payload,
            stored.publish_time * MILLISECOND_NS,
        )

    def _published(self, principal: Principal, sent: NatsMessage) -> NatsMessage:
        """Store a message; return its acknowledgement, or the status that no stream takes it."""
        try:
            topic = TopicName.parse(sent.subject, self._store.tenant, self._store.namespace)
        except BadNameError:
            return NatsMessage("", headers=status(NO_RESPONDERS))
        self._permissions.authorize(principal, topic, Right.PUBLISH)
        stream = _stream_name(topic)
        try:
            fault = self._condition(sent.headers, stream)
            if fault is not None:
                return NatsMessage("", payload=PubAck(stream, error=fault).to_bytes())
            return self._stored(principal, topic, sent)
        except TopicNotFoundError:
            return NatsMessage("", headers=status(NO_RESPONDERS))

    def _stored(self, principal: Principal, topic: TopicName, sent: NatsMessage) -> NatsMessage:
        if not self._store.topics.exists(topic):
            raise TopicNotFoundError(f"[{topic.local}]")
        message = read_message(NatsMessage("", "", sent.headers, sent.payload))
        msg_id = first(sent.headers, MSG_ID) if sent.headers else None
        identity = None if msg_id is None else ("jetstream", principal.name, str(topic), msg_id)
        (result,) = self._store.producer.produce(topic, [Outgoing(message)], Sender(None, identity))
        if result.error is not None:
            raise result.error
        if result.position is None:
            raise OutcomeUnknownError
        members: dict[str, Any] = {"stream": _stream_name(topic)}
        if self._store.sequences:
            members["seq"] = result.position.entry + 1
        return NatsMessage("", payload=orjson.dumps(members))

    def _condition(self, headers: bytes, stream: str) -> JetStreamError | None:
        """Return why a message with these headers cannot be stored, None: it can."""
        if not headers:
            return None
        expected = first(headers, _EXPECTED_STREAM)
        if expected is not None and expected != stream:
            return error(ErrorCode.STREAM_NOT_MATCH)
        if any(condition in headers for condition in _CONDITIONS):
            return self._refused("conditions for publishes, rollups and times to live")
        return None


def _stream_name(topic: TopicName) -> str:
    return topic.local.replace("%", "%25").replace(".", "%2E")


def _config(info: TopicInfo) -> StreamConfig:
    """Return the configuration of a topic as a stream, what JetStream fills in included."""
    ms, size = info.policies.retention_ms, info.policies.retention_bytes
    return StreamConfig(
        name=_stream_name(info.topic),
        subjects=(info.topic.local,),
        max_consumers=-1,
        max_msgs=-1,
        max_bytes=-1 if size is None else size,
        max_age=0 if ms is None or ms < 0 else ms * MILLISECOND_NS,
        max_msgs_per_subject=-1,
        max_msg_size=-1,
        num_replicas=1,
        metadata={"partitions": str(info.partitions)} if info.partitions > 1 else {},
    )


_CREATED: Final = frozenset(
    {
        *("name", "description", "subjects", "retention", "max_age", "max_bytes", "storage"),
        *("discard", "num_replicas", "duplicate_window", "metadata", "allow_direct"),
    }
)


def _unsupported(config: StreamConfig, topic: TopicName) -> str | None:
    """Return what a topic cannot do of a stream's configuration, None: it can do all."""
    if config.subjects not in {(), (topic.local,)}:
        return f"Its subject is its name, {topic.local}."
    if config.num_replicas > 1:
        return "It has no replicas of its own."
    plain = StreamConfig()
    for name in StreamConfig.__slots__:
        value = getattr(config, name)
        if name not in _CREATED and value not in (getattr(plain, name), -1):
            return f"{name} cannot be set."
    if config.retention is not plain.retention or config.discard is not plain.discard:
        return "It keeps messages by time and size, and deletes the oldest."
    return None
