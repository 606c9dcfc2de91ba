"""Every dialect of the router as a writer and as a reader of one topic, in plain values."""

from __future__ import annotations

import asyncio
import base64
import json
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import nats
import pulsar

from tests.kafka.clients import Record
from tests.kafka.clients.confluent import Confluent
from tests.nats.conftest import NatsStack

SECONDS: Final = 20
MILLISECONDS: Final = SECONDS * 1000
KEY: Final = "router-key"
TIME: Final = "router-event-time"
NULL: Final = "router-null"
WHOLE: Final = "router-nats-headers"
OTHERS: Final = "router-properties"
"""The header with properties that are none: JSON in base64."""
SUBJECT: Final = "Nats-Subject"


@dataclass(frozen=True)
class Sent:
    """A message; `time` is the event time in milliseconds, 0: none."""

    value: str | None
    key: str | None = None
    properties: dict[str, str] = field(default_factory=dict)
    time: int = 0


@dataclass(frozen=True)
class Place:
    """The router, clients on it, and the topic that all dialects share."""

    stack: NatsStack
    kafka: Confluent
    pulsar: Any
    topic: str

    def http(self, path: str, body: bytes | None = None, kind: str = "text/plain") -> bytes:
        """Send a request, a POST if it has a body; return the answer's body."""
        headers = {"Content-Type": kind} if body is not None else {}
        request = urllib.request.Request(self.stack.url + path, body, headers)
        with urllib.request.urlopen(request, timeout=2 * SECONDS) as answer:
            return bytes(answer.read())

    def json(self, path: str, body: Any = None) -> Any:
        """Send JSON, if any; return what JSON comes."""
        content = None if body is None else json.dumps(body).encode()
        return json.loads(self.http(path, content, "application/json"))


def _write_text(place: Place, sent: Sent) -> None:
    query = f"?partitionKey={urllib.parse.quote(sent.key)}" if sent.key else ""
    place.http(f"/events/{place.topic}{query}", (sent.value or "").encode())


def _write_json(place: Place, sent: Sent) -> None:
    query = f"?partitionKey={urllib.parse.quote(sent.key)}" if sent.key else ""
    place.http(f"/events/{place.topic}{query}", (sent.value or "").encode(), "application/json")


def _write_cambria(place: Place, sent: Sent) -> None:
    key, value = (sent.key or "").encode(), (sent.value or "").encode()
    body = b"%d.%d.%b%b" % (len(key), len(value), key, value)
    place.http(f"/events/{place.topic}", body, "application/cambria")


def _write_lines(place: Place, sent: Sent) -> None:
    line: dict[str, Any] = {"key": sent.key, "value": sent.value, "properties": sent.properties}
    line |= {"event_time": sent.time} if sent.time else {}
    found = {name: value for name, value in line.items() if value is not None or name == "value"}
    kind = "application/vnd.dragoman+ndjson"
    place.http(f"/events/{place.topic}", json.dumps(found).encode(), kind)


def _write_pip64(place: Place, sent: Sent) -> None:
    message: dict[str, Any] = {"key": sent.key, "value": sent.value, "eventTime": sent.time}
    message["properties"] = sent.properties
    found = place.json(f"/topics/public/default/{place.topic}", {"messages": [message]})
    assert [one["error"] for one in found["messageIds"]] == [None]


def _write_pulsar(place: Place, sent: Sent) -> None:
    producer = place.pulsar.create_producer(place.topic)
    producer.send(
        (sent.value or "").encode(),
        properties=sent.properties,
        partition_key=sent.key,
        event_timestamp=sent.time or None,
    )
    producer.close()


def _write_kafka(place: Place, sent: Sent) -> None:
    headers = tuple((name, value.encode()) for name, value in sent.properties.items())
    value = None if sent.value is None else sent.value.encode()
    key = None if sent.key is None else sent.key.encode()
    place.kafka.produce(place.topic, [Record(value, key, headers, sent.time)])


def _write_jetstream_http(place: Place, sent: Sent) -> None:
    answer = place.http(f"/jetstream/publish/{place.topic}.http", (sent.value or "").encode())
    assert answer.startswith(b"+OK"), answer


def _write_nats(place: Place, sent: Sent) -> None:
    headers = {name: one for name, one in sent.properties.items() if (name + one).isprintable()}
    headers = {name: one for name, one in headers.items() if name.isascii()}
    if others := {n: one for n, one in sent.properties.items() if n not in headers}:
        headers[OTHERS] = base64.b64encode(json.dumps(others).encode()).decode()
    headers |= {KEY: sent.key} if sent.key else {}
    headers |= {TIME: str(sent.time)} if sent.time else {}
    headers |= {NULL: "true"} if sent.value is None else {}

    async def publish() -> None:
        nc = await nats.connect(place.stack.nats_url)
        value = (sent.value or "").encode()
        await nc.jetstream().publish(f"{place.topic}.nats", value, headers=headers or None)
        await nc.close()

    asyncio.run(publish())


@dataclass(frozen=True)
class Writer:
    """A dialect that publishes; what it has no way to say is not `carried`."""

    write: Callable[[Place, Sent], None]
    carried: frozenset[str]

    def published(self, sent: Sent, topic: str) -> Sent:
        """Return the message that is stored."""
        found = sent if "null" in self.carried or sent.value else replace(sent, value="")
        if "key" not in self.carried:
            found = replace(found, key=None)
        if "properties" not in self.carried:
            found = replace(found, properties={})
        if "time" not in self.carried:
            found = replace(found, time=0)
        if self.write is _write_nats:
            subject = {SUBJECT: f"{topic}.nats"}
        elif self.write is _write_jetstream_http:
            subject = {SUBJECT: f"{topic}.http"}
        else:
            subject = {}
        return replace(found, properties=found.properties | subject)


ALL: Final = frozenset({"key", "properties", "time", "null"})
WRITERS: Final[dict[str, Writer]] = {
    "DMaaP text": Writer(_write_text, frozenset({"key"})),
    "DMaaP JSON": Writer(_write_json, frozenset({"key"})),
    "DMaaP cambria": Writer(_write_cambria, frozenset({"key"})),
    "DMaaP ndjson": Writer(_write_lines, ALL),
    "PIP 64": Writer(_write_pip64, ALL),
    # the Python client has no null values
    "Pulsar": Writer(_write_pulsar, ALL - {"null"}),
    "Kafka": Writer(_write_kafka, ALL),
    "JetStream HTTP": Writer(_write_jetstream_http, frozenset()),
    "NATS": Writer(_write_nats, ALL),
}


def _events(place: Place, count: int, accept: str) -> list[bytes]:
    """Poll a group until so many messages came; return the pages."""
    path = f"/events/{place.topic}/{accept.rpartition('/')[2]}/c?limit={count}"
    path += f"&timeout={MILLISECONDS}&from=earliest"
    request = urllib.request.Request(place.stack.url + path, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=2 * SECONDS) as answer:
        return [answer.read()]


def _read_json(place: Place, count: int) -> list[Sent]:
    (page,) = _events(place, count, "application/json")
    return [Sent(one) for one in json.loads(page)]


def _read_cambria(place: Place, count: int) -> list[Sent]:
    (page,) = _events(place, count, "application/cambria")
    found = []
    while page := page.lstrip():
        sizes, _, rest = page.partition(b".")
        size, _, rest = rest.partition(b".")
        end = int(sizes)
        found.append(Sent(rest[end : end + int(size)].decode(), rest[:end].decode() or None))
        page = rest[end + int(size) :]
    return found


def _read_lines(place: Place, count: int) -> list[Sent]:
    (page,) = _events(place, count, "application/x-ndjson")
    lines = [json.loads(line) for line in page.splitlines()]
    return [
        Sent(one["value"], one.get("key"), one.get("properties") or {}, one.get("event_time") or 0)
        for one in lines
    ]


def _read_pip64(place: Place, count: int) -> list[Sent]:
    path = f"/topics/public/default/{place.topic}/partitions/0/messages?max_messages={count}"
    found = place.json(path)["messages"]
    return [
        Sent(one["value"], one["key"], one["properties"], one["eventTime"] or 0) for one in found
    ]


def _read_pulsar(place: Place, count: int) -> list[Sent]:
    start = pulsar.InitialPosition.Earliest
    consumer = place.pulsar.subscribe(place.topic, "pulsar", initial_position=start)
    found = [consumer.receive(MILLISECONDS) for _ in range(count)]
    consumer.close()
    return [
        Sent(
            one.data().decode(),
            one.partition_key() or None,
            dict(one.properties()),
            one.event_timestamp(),
        )
        for one in found
    ]


def _read_kafka(place: Place, count: int) -> list[Sent]:
    found = [one.record for one in place.kafka.read(place.topic, 0, count)]
    return [
        Sent(
            None if one.value is None else one.value.decode(),
            None if one.key is None else one.key.decode(),
            {name: (value or b"").decode() for name, value in one.headers},
            one.timestamp,
        )
        for one in found
    ]


def _as_sent(subject: str, value: str, headers: dict[str, str], topic: str) -> Sent:
    """Return a message of NATS with what its headers say of it."""
    headers = dict(headers)
    key, time = headers.pop(KEY, None), int(headers.pop(TIME, "0"))
    if OTHERS in headers:
        headers |= json.loads(base64.b64decode(headers.pop(OTHERS)))
    shown = None if headers.pop(NULL, "") else value
    if subject != topic:
        headers[SUBJECT] = subject
    return Sent(shown, key, headers, time)


def _read_jetstream_http(place: Place, count: int) -> list[Sent]:
    config = {"durable_name": "http", "ack_policy": "explicit"}
    call = f"/jetstream/api/CONSUMER.CREATE.{place.topic}.http"
    place.json(call, {"stream_name": place.topic, "config": config})
    path = f"/jetstream/fetch/{place.topic}/http?batch={count}&expires={MILLISECONDS}"
    return [
        _as_sent(
            one["subject"],
            one["value"],
            {name: values[-1] for name, values in one.get("headers", {}).items()},
            place.topic,
        )
        for one in place.json(path, {})["messages"]
    ]


def _read_nats(place: Place, count: int) -> list[Sent]:
    async def read() -> list[Sent]:
        nc = await nats.connect(place.stack.nats_url)
        pull = await nc.jetstream().pull_subscribe("", "nats", place.topic)
        messages = await pull.fetch(count, timeout=SECONDS)
        await nc.close()
        return [
            _as_sent(one.subject, one.data.decode(), one.headers or {}, place.topic)
            for one in messages
        ]

    return asyncio.run(read())


@dataclass(frozen=True)
class Reader:
    """A dialect that reads; of what it has no way to say, nothing is `shown`."""

    read: Callable[[Place, int], list[Sent]]
    shown: frozenset[str]

    def seen(self, stored: Sent) -> Sent:
        """Return what this dialect shows of a stored message."""
        found = stored if "null" in self.shown else replace(stored, value=stored.value or "")
        if "key" not in self.shown:
            found = replace(found, key=None)
        if "properties" not in self.shown:
            found = replace(found, properties={})
        if "time" not in self.shown:
            found = replace(found, time=0)
        return found


READERS: Final[dict[str, Reader]] = {
    "DMaaP JSON": Reader(_read_json, frozenset()),
    "DMaaP cambria": Reader(_read_cambria, frozenset({"key"})),
    "DMaaP ndjson": Reader(_read_lines, ALL),
    "PIP 64": Reader(_read_pip64, ALL),
    "Pulsar": Reader(_read_pulsar, ALL - {"null"}),
    "Kafka": Reader(_read_kafka, ALL),
    "JetStream HTTP": Reader(_read_jetstream_http, ALL),
    "NATS": Reader(_read_nats, ALL),
}
