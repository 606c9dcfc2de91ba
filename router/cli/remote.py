"""The commands' connection to a router elsewhere, over its HTTP API.

Topics, groups and publishes are calls of the DMaaP dialect and of /topics; a tail is a stream of
server-sent events, which goes on where it was after a lost connection; a consumer of a group is one
of PIP 64, because only there a message is acknowledged after it was printed, whatever happens to
this process in between.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote

from router.backends import ResetTarget, Start
from router.cli.connection import Consumption, ListedTopic, Tail, TopicDetails
from router.cli.contexts import Context
from router.cli.http_client import HttpClient, HttpRequest
from router.cli.remote_tail import RemoteTail
from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    BadNameError,
    ConflictError,
    PathNotFoundError,
    RouterError,
    SubscriptionNotFoundError,
    TopicExistsError,
    TopicNotFoundError,
    ValueNotFoundError,
)
from router.errors.quoting import quoted
from router.model import Message, Position, Stored, SubscriptionStats, TopicName
from router.services.group_details import shown_target
from router.services.groups import Preview, TopicGroup
from router.wire import cambria, ndjson

MAX_IDS: Final = 10_000
CLOSE_SECONDS: Final = 2.0
MAX_RENEWALS: Final = 5
"""Consumers that one fetch goes through."""
_PLAIN: Final = {"Content-Type": "application/cambria"}
_READS: Final = (
    *("STREAM.INFO.", "STREAM.LIST", "STREAM.MSG.GET.", "CONSUMER.INFO.", "CONSUMER.LIST."),
)
_DESCRIBED: Final = {"Content-Type": ndjson.KIND}


class RemoteConnection:
    """A connection to one server."""

    def __init__(
        self, context: Context, report: Callable[[str], None], deadline: float | None = None
    ) -> None:
        """`deadline`: seconds that the server has to answer at all, and no request is repeated."""
        self.context = context
        self.client = HttpClient(context, report=report, deadline=deadline)
        self._report = report

    def topics(self, *, internal: bool = False) -> list[ListedTopic]:
        """Return the topics of the server's own namespace that the user may see."""
        # Only this list has numbers of partitions.
        request = HttpRequest("GET", "/topics/listAll", {"internal": "true"})
        return [
            ListedTopic(one["topicName"], one["partitionCount"], one["internal"])
            for one in self.client.ask(request).json()["topics"]
            if internal or not one["internal"]
        ]

    def topic_names(self) -> list[str]:
        """Return the names of these topics."""
        return sorted(self.client.ask(HttpRequest("GET", "/topics")).json()["topics"])

    def create_topic(self, name: str, partitions: int, cleanup: str | None = None) -> str:
        """Create a topic."""
        topic = self._topic(name)
        fields: dict[str, str | int] = {"topicName": topic.local, "partitionCount": partitions}
        if cleanup is not None:
            fields["cleanupPolicy"] = cleanup
        body = json.dumps(fields).encode()
        headers = {"Content-Type": "application/json"}
        request = HttpRequest("POST", "/topics/create", body=body, headers=headers, safe=False)
        try:
            answer = self.client.ask(request)
        except ConflictError as error:
            raise TopicExistsError(str(error)) from error
        if answer.status == 204:
            raise TopicExistsError(f"The topic exists already: [{topic.local}]")
        return str(topic)

    def delete_topic(self, name: str) -> str:
        """Delete a topic."""
        topic = self._topic(name)
        self._ask_of(topic, HttpRequest("DELETE", f"/topics/{_segment(topic.local)}", safe=False))
        return str(topic)

    def describe_topic(self, name: str) -> TopicDetails:
        """Return what a topic is, and its groups."""
        topic = self._topic(name)
        given = self._ask_of(topic, HttpRequest("GET", f"/topics/{_segment(topic.local)}"))
        shown = (
            *("description", "owner", "retentionMs", "retentionBytes", "backlogBytes"),
            "cleanupPolicy",
        )
        properties = {word: str(given[word]) for word in shown if given.get(word) not in {None, ""}}
        partitions = given["partitionCount"]
        return TopicDetails(
            topic.local, str(topic), partitions, properties, None, self.groups(name)
        )

    def latest_value(self, topic: str, key: bytes) -> dict[str, Any]:
        """Return the newest message of a key."""
        name = self._topic(topic)
        encoded = base64.urlsafe_b64encode(key).decode()
        path = f"/topics/{_segment(name.local)}/latest/{_segment(encoded)}"
        try:
            found: dict[str, Any] = self.client.ask(
                HttpRequest("GET", path, {"base64": "true"})
            ).json()
        except PathNotFoundError as error:
            # Of the topic or of the key: its sentence says which.
            raise ValueNotFoundError(str(error)) from error
        return found

    def latest_values(self, topic: str, after: str | None, limit: int) -> dict[str, Any]:
        """Return a page of the newest messages."""
        name = self._topic(topic)
        query = {"limit": str(limit)} | ({} if after is None else {"after": after})
        found = self._ask_of(
            name, HttpRequest("GET", f"/topics/{_segment(name.local)}/latest", query)
        )
        return {"values": found["values"], "next": found["next"]}

    def groups(self, topic: str) -> list[TopicGroup]:
        """Return the groups of a topic."""
        name = self._topic(topic)
        answer = self._ask_of(name, HttpRequest("GET", f"/topics/{_segment(name.local)}/groups"))
        return [_group(one) for one in answer["groups"]]

    def describe_group(self, topic: str, group: str) -> dict[str, Any]:
        """Return a group, its members and partitions."""
        name, path = self._group(topic, group)
        found = self._ask_of(name, HttpRequest("GET", path), group)
        del found["topic"]
        return found

    def preview_reset(self, topic: str, group: str, to: ResetTarget) -> Preview:
        """Return what a reset would change."""
        name, path = self._group(topic, group)
        query = {"to": str(shown_target(to)), "preview": "true"}
        found = self._ask_of(name, HttpRequest("POST", f"{path}/reset", query), group)["preview"]
        return Preview(found["lag"], found["least"], found["most"])

    def reset_group(self, topic: str, group: str, to: ResetTarget) -> str:
        """Move a group."""
        name, path = self._group(topic, group)
        query = {"to": str(shown_target(to))}
        self._ask_of(name, HttpRequest("POST", f"{path}/reset", query), group)
        return str(name)

    def delete_group(self, topic: str, group: str) -> str:
        """End a group."""
        name, path = self._group(topic, group)
        self._ask_of(name, HttpRequest("DELETE", path, safe=False), group)
        return str(name)

    def dead_letter_topics(self) -> list[dict[str, Any]]:
        """Return the topics of dead letters that the user may see."""
        answer = self.client.ask(HttpRequest("GET", "/dead-letters"))
        found: list[dict[str, Any]] = answer.json()["topics"]
        return found

    def dead_letters(self, topic: str, after: str) -> dict[str, Any]:
        """Return dead letters that wait behind a place."""
        name = self._topic(topic)
        request = HttpRequest("GET", f"/dead-letters/{_segment(name.local)}", {"behind": after})
        return self._ask_of(name, request)

    def handle_dead_letters(
        self, topic: str, action: str, fields: Mapping[str, str]
    ) -> dict[str, Any]:
        """Requeue or discard some dead letters; again is harmless."""
        name = self._topic(topic)
        path = f"/dead-letters/{_segment(name.local)}/{action}"
        return self._ask_of(name, HttpRequest("POST", path, dict(fields)))

    def transactions(self) -> dict[str, Any]:
        """Return the open transactions."""
        found: dict[str, Any] = self.client.ask(HttpRequest("GET", "/transactions")).json()
        return found

    def describe_transaction(self, name: str) -> dict[str, Any]:
        """Return an open transaction."""
        return self._transaction(HttpRequest("GET", f"/transactions/{_segment(name)}"))

    def abort_transaction(self, name: str) -> dict[str, Any]:
        """Abort an open transaction."""
        path = f"/transactions/{_segment(name)}/abort"
        return self._transaction(HttpRequest("POST", path, safe=False))

    def jetstream(self, subject: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer of the server's streams."""
        request = HttpRequest(
            "POST",
            f"/jetstream/api/{_segment(subject)}",
            {"form": "v1"},
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            safe=subject.startswith(_READS),
        )
        try:
            found: dict[str, Any] = self.client.ask(request).json()
        except PathNotFoundError as error:
            raise TopicNotFoundError(str(error)) from error
        return found

    def publish(self, topic: str, messages: Sequence[Message], request: str | None) -> int:
        """Store messages; the request's name keeps a repeat from being stored twice."""
        name = self._topic(topic)
        plain = all(map(_is_plain, messages))
        headers = dict(_PLAIN if plain else _DESCRIBED)
        if request is not None:
            headers["Idempotency-Key"] = request
        body = cambria.framed(messages) if plain else ndjson.framed(messages)
        path = f"/events/{_segment(name.local)}"
        answer = self._ask_of(
            name, HttpRequest("POST", path, None, body, headers, request is not None)
        )
        count: int = answer["count"]
        return count

    def tail(self, topic: str, tail: Tail) -> Iterator[list[Stored]]:
        """Yield what a stream brings; a lost connection is resumed behind the last message."""
        path = f"/events/{_segment(self._topic(topic).local)}"
        return RemoteTail(self.client, path, tail, self._report).batches()

    def consume(self, topic: str, group: str, consumer: str, start: Start | int) -> Consumption:
        """Open a consumer of a group."""
        parsed = self._topic(topic)
        where = start.value if isinstance(start, Start) else str(start)
        return _Fetches(self.client, parsed, group, consumer, where, self._report)

    def sibling(self) -> RemoteConnection:
        """Return another connection to the same server."""
        return RemoteConnection(self.context, self._report)

    def close(self) -> None:
        """Close the connections."""
        self.client.close()

    def _transaction(self, request: HttpRequest) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self.client.ask(request).json()
        except PathNotFoundError as error:
            raise ValueNotFoundError(str(error)) from error
        return found

    def _topic(self, text: str) -> TopicName:
        """Return the topic of a name; raise BadNameError for one that HTTP has no address for."""
        tenant, _, namespace = self.context.namespace.partition("/")
        topic = TopicName.parse(text, tenant, namespace)
        if topic != TopicName(tenant, namespace, topic.local):
            raise BadNameError(
                f"topic {quoted(text)}: over HTTP a server has the topics of its own namespace,"
                f" {tenant}/{namespace} (--namespace of the context says another one)"
            )
        return topic

    def _group(self, topic: str, group: str) -> tuple[TopicName, str]:
        """Return a topic, and the path of one of its groups."""
        name = self._topic(topic)
        return name, f"/topics/{_segment(name.local)}/groups/{_segment(group)}"

    def _ask_of(
        self, topic: TopicName, request: HttpRequest, group: str | None = None
    ) -> dict[str, Any]:
        """Return the object of an answer, empty if there is none; a 404 is of topic or group."""
        try:
            answer = self.client.ask(request)
        except PathNotFoundError as error:
            cls = TopicNotFoundError if group is None else SubscriptionNotFoundError
            raise cls(str(error)) from error
        found: dict[str, Any] = answer.json() if answer.data.startswith(b"{") else {}
        return found


class _Fetches:
    """A consumer of PIP 64."""

    def __init__(
        self,
        client: HttpClient,
        topic: TopicName,
        group: str,
        name: str,
        start: str,
        report: Callable[[str], None],
    ) -> None:
        self._name = name
        self._start = start
        self._client = client
        self._report = report
        self._at = (
            f"/topics/{topic.domain}/{_segment(topic.tenant)}/{_segment(topic.namespace)}"
            f"/{_segment(topic.local)}/subscription/{_segment(group)}"
        )
        self._consumer = ""
        self._given: list[str] = []

    def fetch(self, limit: int, timeout: float) -> list[Stored]:
        self._given = []
        query = {
            "timeout": str(round(timeout * 1000)),
            "max_messages": str(limit),
            "schema_type": "bytes",
        }
        messages = self._answered(query, timeout)["messages"]
        self._given = [one["messageId"] for one in messages]
        return [_given(one) for one in messages]

    def _answered(self, query: Mapping[str, str], timeout: float) -> Any:
        """Return the answer of a fetch, by another consumer where this one is no more."""
        if not self._consumer:
            self._open(self._name)
        for tries_left in reversed(range(MAX_RENEWALS)):
            path = f"{self._consumer}/messages"
            try:
                return self._ask(HttpRequest("GET", path, query, safe=False, wait=timeout))
            except PathNotFoundError:
                # Forgotten, or deleted by another process of this name.
                self._open(self._name)
            except (BackendUnavailableError, BackendTimeoutError) as error:
                if not tries_left:
                    raise
                self._report(f"{error} Trying again.")
                self._renew()
        raise BackendUnavailableError(f"The server forgets {self._name} again and again.")

    def _renew(self) -> None:
        """Replace the consumer: an answer that got lost is its own, and comes to no other yet."""
        with suppress(PathNotFoundError):
            self._client.ask(HttpRequest("DELETE", self._consumer))
        self._open(f"{self._name}-{secrets.token_hex(4)}")

    def acknowledge(self) -> None:
        """Acknowledge what was given; a repeat does no harm."""
        for at in range(0, len(self._given), MAX_IDS):
            ids = ",".join(f'"{one}"' for one in self._given[at : at + MAX_IDS])
            body = f'{{"type":"individual","messageIds":[{ids}]}}'.encode()
            self._client.ask(HttpRequest("POST", f"{self._at}/cursor", body=body))
        self._given = []

    def close(self) -> None:
        """Delete the consumer: what it did not acknowledge is given to others at once."""
        if not self._consumer:
            return
        consumer, self._consumer = self._consumer, ""
        hasty = HttpClient(self._client.context, retry_seconds=CLOSE_SECONDS)
        with suppress(RouterError):  # a server that is away forgets the consumer by itself
            hasty.ask(HttpRequest("DELETE", consumer, safe=False))
        hasty.close()

    def _open(self, name: str) -> None:
        body = f'{{"name":"{name}","id":"{name}","start":"{self._start}"}}'.encode()
        try:
            answer = self._ask(HttpRequest("POST", self._at, body=body))
        except PathNotFoundError as error:
            raise TopicNotFoundError(str(error)) from error
        self._consumer = f"{self._at}/consumer/{_segment(answer['id'])}"

    def _ask(self, request: HttpRequest) -> Any:
        return self._client.ask(request).json()


def _is_plain(message: Message) -> bool:
    """Return whether a record of cambria has all of a message."""
    if message.properties or message.null or message.event_time is not None:
        return False
    return message.key != b"" and message.size() <= cambria.LONGEST


def _segment(name: str) -> str:
    return quote(name, safe="")


def _group(given: Mapping[str, Any]) -> TopicGroup:
    name: str = given["name"]
    return TopicGroup(
        name,
        tuple(
            SubscriptionStats(
                name, one["partition"], one["backlog"], one["consumers"], given["durable"]
            )
            for one in given["partitions"]
        ),
    )


def _given(one: Mapping[str, Any]) -> Stored:
    """Return a message that PIP 64's consumer was given, with key and value in base64."""
    from router.wire.pulsar import pulsar_pb2  # noqa: PLC0415 - only groups need protobuf

    value, key = one["value"], one["key"]
    message = Message(
        b"" if value is None else base64.b64decode(value),
        None if key is None else base64.b64decode(key),
        one["properties"],
        one["eventTime"],
        null=value is None,
    )
    found = pulsar_pb2.MessageIdData.FromString(base64.b64decode(one["messageId"]))
    position = Position(found.ledgerId, found.entryId, found.partition, found.batch_index)
    return Stored(message, position, one["publishTime"], one["redeliveryCount"])
