"""A Kafka client as the handlers of its requests see it, its requests, and what an API is.

Theory of operation. An API is a line of a table (apis.py): its number, its versions, and a handler.
A handler is called on the event loop with a request. It returns the response; or None, and calls
`KafkaRequest.answer` later; or it is a coroutine, which may wait. The session sends responses in
the order of the requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from struct import Struct
from typing import Any, Final, TypeVar, cast

from router.access.permissions import Right
from router.broker.consume import Partition
from router.broker.kafka.context import LEADER_EPOCH, KafkaContext
from router.broker.kafka.failures import ErrorCode, KafkaError
from router.broker.storage import TopicRecord
from router.broker.transport.connection import ClientConnection
from router.errors import ForbiddenError, RouterError, TopicNotFoundError
from router.metrics import Sample
from router.model import TopicName
from router.wire.kafka.engine import request_header_version, response_header_version
from router.wire.kafka.error_codes import error_name
from router.wire.kafka.runtime import KafkaMessage

T = TypeVar("T")
Handler = Callable[["KafkaRequest"], "KafkaMessage | Coroutine[Any, Any, KafkaMessage] | None"]
"""Serves a request; see above."""

MAX_READ_GROUPS: Final = 10
"""Of which a connection remembers that its client may read what they read; mostly it has one."""
NO_ANSWER: Final = b""
"""The reply to a request that wants none."""
_ID: Final = Struct(">i")
_NO_TAGS: Final = b"\0"


@dataclass(frozen=True, slots=True)
class KafkaApi:
    """An API: `versions` are the first and last that ApiVersions answers.

    `served_from` is the first version that is served, if that is a later one. `public`: clients
    that are not authenticated yet are served. `overlaps`: a request may begin while others of the
    same API on the connection are not answered; all other requests wait for those before them.
    """

    key: int
    name: str
    versions: tuple[int, int]
    handle: Handler
    served_from: int | None = None
    public: bool = False
    overlaps: bool = False

    def serves(self, version: int) -> bool:
        """Return whether requests of a version are served."""
        first, last = self.versions
        return (first if self.served_from is None else self.served_from) <= version <= last


class ServedApi:
    """An API with the classes of its messages, which are compiled when they are first used.

    It counts requests, their bytes and those of responses, and errors by their codes.
    """

    def __init__(self, api: KafkaApi, context: KafkaContext) -> None:
        self.api = api
        self._messages = context.messages
        self._definitions = [
            context.messages.definition(f"{api.name}{kind}") for kind in ("Request", "Response")
        ]
        self._headers: dict[int, tuple[int, int]] = {}
        self.requests = self.received = self.sent = 0
        self.errors: Counter[int] = Counter()

    @cached_property
    def request(self) -> type[KafkaMessage]:
        """The class of requests."""
        return self._messages.message(f"{self.api.name}Request")

    @cached_property
    def response(self) -> type[KafkaMessage]:
        """The class of responses."""
        return self._messages.message(f"{self.api.name}Response")

    def samples(self) -> Iterator[Sample]:
        """Yield what was counted."""
        api = (("api", self.api.name),)
        if self.requests:
            yield "router_kafka_requests_total", api, self.requests
            yield "router_kafka_received_bytes_total", api, self.received
            yield "router_kafka_sent_bytes_total", api, self.sent
        for code, count in self.errors.items():
            yield "router_kafka_errors_total", (*api, ("error", error_name(code))), count

    def headers(self, version: int) -> tuple[int, int]:
        """Return the versions of the headers before a request and a response of a version."""
        found = self._headers.get(version)
        if found is None:
            request, response = self._definitions
            found = self._headers[version] = (
                request_header_version(request, version),
                response_header_version(response, version),
            )
        return found


class KafkaClient:
    """One client of the listener; `software` is what it says of its library, `client_id` its name.

    `on_close` are called when its connection is closed. `refusal` encodes the failure of an
    authentication that is under way. `sends_tokens`: its frames are tokens of SASL, not requests.
    """

    def __init__(self, connection: ClientConnection, context: KafkaContext) -> None:
        self.connection = connection
        self.identity = connection.identity
        self.context = context
        self.software = ""
        self.client_id = ""
        self.on_close: dict[Callable[[], None], None] = {}
        self.refusal: Callable[[RouterError], bytes] | None = None
        self.sends_tokens = False
        self._parts: dict[Callable[[KafkaClient], Any], Any] = {}
        # Sets of topics that the client may read, by group, and for which version of its rights.
        self._readable: dict[str, frozenset[str]] = {}
        self._readable_version: object = None

    @property
    def name(self) -> str:
        """Return the client's name for people."""
        return f"{self.software or 'a Kafka client'} at {self.connection.peer.name}"

    def part(self, make: Callable[[KafkaClient], T]) -> T:
        """Return what an API keeps for this client, made once."""
        found = self._parts.get(make)
        if found is None:
            found = self._parts[make] = make(self)
        return cast("T", found)

    @property
    def owner_name(self) -> str | None:
        """The name under which the client owns transactional ids; None: it may use all."""
        return self.identity.owner_name

    @property
    def is_unrestricted(self) -> bool:
        """Return whether the client has every right on every topic, now and later."""
        authorizer, identity = self.identity.authorizer, self.identity
        return authorizer is None or identity.trusted or authorizer.open

    def may(self, topic: TopicName, right: Right) -> bool:
        """Return whether the client has a right on a topic."""
        authorizer = self.identity.authorizer
        if authorizer is None or self.is_unrestricted:
            return True
        try:
            authorizer.authorize(self.identity.principal, topic, right)
        except RouterError:
            return False
        return True

    @property
    def rights_version(self) -> object:
        """Return what the client's rights follow from: they are the same while it is equal."""
        authorizer, identity = self.identity.authorizer, self.identity
        if authorizer is None or self.is_unrestricted:
            return None
        return identity.principal, authorizer.version

    def may_read_group(self, group_id: str, topics: frozenset[str]) -> bool:
        """Return whether the client may read all topics that a group reads, by their full names.

        The answer is kept while neither these nor the client's rights change, as each heartbeat
        needs it: of MAX_READ_GROUPS groups.
        """
        if self.is_unrestricted:
            return True
        version = self.rights_version
        if version != self._readable_version or len(self._readable) > MAX_READ_GROUPS:
            self._readable, self._readable_version = {}, version
        if self._readable.get(group_id) is topics:
            return True
        may = all(self.may(TopicName.parse(topic), Right.SUBSCRIBE) for topic in topics)
        if may:
            self._readable[group_id] = topics
        return may

    def partition(
        self, topic: str | bytes, index: int, right: Right, leader_epoch: int
    ) -> Partition:
        """Return a partition of a topic; raise as `topic` does.

        Raises KafkaError for an epoch that no leader had.
        """
        record = self.topic(topic, right)
        if leader_epoch > LEADER_EPOCH:
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)
        return self.context.partition(record, index)

    def topic(self, topic: str | bytes, right: Right) -> TopicRecord:
        """Return the topic with a Kafka name or an id, on which the client has a right.

        Raises ForbiddenError, TopicNotFoundError, or KafkaError for an id. Of a topic that is not
        there a client learns only what it may see.
        """
        record = self.context.find_topic(topic)
        if record is not None:
            if not self.may(TopicName.parse(record.name), right):
                raise ForbiddenError
            return record
        if isinstance(topic, bytes):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        try:
            seen = self.may(self.context.topics.parse(topic), Right.VIEW)
        except RouterError:
            seen = True
        raise TopicNotFoundError if seen else ForbiddenError


@dataclass(slots=True, eq=False)
class KafkaRequest:
    """A request: `body` is its message, `client_id` the name that it gives its sender.

    `size` is that of its frame. `reply` are the bytes to send, None as long as it is not answered.
    """

    served: ServedApi
    version: int
    correlation_id: int
    client_id: str
    body: Any
    size: int
    client: KafkaClient
    answered: Callable[[KafkaRequest, KafkaMessage | None], None]
    reply: bytes | None = field(default=None)

    @property
    def context(self) -> KafkaContext:
        """Return what all clients share."""
        return self.client.context

    def response(self, **fields: Any) -> Any:
        """Return a response of the request's API."""
        return self.served.response(**fields)

    def struct(self, name: str, /, **fields: Any) -> Any:
        """Return a struct of the response."""
        return self.served.response.STRUCTS[name](**fields)

    def encode(self, response: KafkaMessage) -> bytes:
        """Return the frame of a response."""
        _, header_version = self.served.headers(self.version)
        header = _ID.pack(self.correlation_id)
        return response.frame(self.version, header + _NO_TAGS if header_version else header)

    def count_error(self, code: int) -> None:
        """Count an error of a response, unless the code stands for none."""
        if code:
            self.served.errors[code] += 1

    def answer(self, response: KafkaMessage | None) -> None:
        """Answer the request, None: without a response; from the event loop, once."""
        self.answered(self, response)
