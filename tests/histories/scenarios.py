"""What clients do to one topic, group, bucket or name: a scenario records one history.

Its workers are steps: each call of one makes one operation by chance. `prepare` and `conclude` run
without faults; the reads at the end see all that is there.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from tests.histories.http_client import HttpConnection
from tests.histories.kafka_client import KafkaConnection
from tests.histories.nats_client import NatsConnection, message_of
from tests.histories.pulsar_client import PulsarConnection, place_of
from tests.histories.pulsar_wire import PulsarWire
from tests.histories.recording import History, Output, RefusedError, UnknownOutcomeError

Step = Callable[[random.Random], None]
MAX_POLLS: Final = 100
"""Of a queue, until it is empty."""
LOST: Final = -2
"""The offset of a message that was acknowledged and is nowhere."""


@dataclass(frozen=True)
class Ports:
    """Where clients connect to."""

    http: int
    kafka: int
    nats: int
    pulsar: int


class Scenario(ABC):
    """One history in the making; each worker has connections of its own."""

    model = ""
    label = ""
    # Tests of the judge put clients here that do not tell the truth.
    Http: type[HttpConnection] = HttpConnection
    Kafka: type[KafkaConnection] = KafkaConnection
    Nats: type[NatsConnection] = NatsConnection
    Pulsar: type[PulsarConnection] = PulsarConnection
    Wire: type[PulsarWire] = PulsarWire

    def __init__(self, ports: Ports, name: str) -> None:
        self.name = name
        self.history = History(self.model, f"{self.label}-{name}")
        self._ports = ports
        self._owned = ExitStack()
        self._values: Counter[str] = Counter()

    def prepare(self) -> None:  # noqa: B027 - nothing, unless a scenario says more
        """Make what is needed."""

    @abstractmethod
    def workers(self) -> list[Step]:
        """Return the steps of concurrent clients."""

    def conclude(self) -> None:  # noqa: B027 - nothing, unless a scenario says more
        """Read what is there in the end."""

    def close(self) -> None:
        """End all connections."""
        self._owned.close()

    def http(self) -> HttpConnection:
        """Return a new HTTP connection."""
        return self._owned.enter_context(closing(self.Http(self._ports.http)))

    def kafka(self) -> KafkaConnection:
        """Return a new Kafka connection."""
        return self._owned.enter_context(closing(self.Kafka(self._ports.kafka)))

    def nats(self) -> NatsConnection:
        """Return a new NATS connection."""
        return self._owned.enter_context(closing(self.Nats(self._ports.nats)))

    def pulsar(self) -> PulsarConnection:
        """Return a new client of Pulsar, the official one."""
        return self._owned.enter_context(closing(self.Pulsar(self._ports.pulsar)))

    def wire(self) -> PulsarWire:
        """Return a new connection of Pulsar's protocol."""
        return self._owned.enter_context(closing(self.Wire(self._ports.pulsar)))

    def value(self, label: str) -> str:
        """Return a value that was not used before, for one client to publish."""
        self._values[label] += 1
        return f"{label}:{self._values[label]}"

    def create_topic(self, partitions: int = 1) -> None:
        """Make the topic of this name."""
        made = {"topicName": self.name, "partitionCount": partitions}
        answer = self.http().ask("POST", "/topics/create", made)
        assert answer.status == 200, answer


class TopicLog(Scenario):
    """A topic's partition as a log: Kafka, PIP 64 and Pulsar append to it and read it."""

    model, label = "log", "topic-log"

    def prepare(self) -> None:
        self.create_topic()
        # The official Pulsar client sends again what was not answered.
        path = f"/admin/v2/persistent/public/default/{self.name}/deduplicationEnabled"
        assert self.http().ask("POST", path, True).status == 204
        # It does not tell an empty topic from a connection that is lost.
        kafka, value = self.kafka(), self.value("setup")
        self.history.record("setup", "append", lambda: kafka.append(self.name, value), value=value)

    def workers(self) -> list[Step]:
        return [
            self._over_kafka("kafka-0"),
            self._over_kafka("kafka-1"),
            self._by_positions("http", self.http()),
            self._by_positions("pulsar-0", self.pulsar()),
            self._by_positions("pulsar-1", self.pulsar()),
        ]

    def conclude(self) -> None:
        kafka, pulsar = self.kafka(), self.pulsar()
        self.history.record("last", "end", lambda: kafka.end(self.name))
        values = read_all(self.history, kafka, self.name)
        self._read_positions("pulsar", pulsar)
        resolve(self.history, values, self._read_positions("last", self.http()))

    def _read_positions(self, label: str, client: HttpConnection | PulsarConnection) -> list[str]:
        positions: list[str] = []
        while True:
            after = positions[-1] if positions else ""
            read = partial(client.read, self.name, after)
            found = required(self.history.record(label, "read", read, offset=0, after=after))
            if not found["positions"]:
                return positions
            positions += found["positions"]

    def _over_kafka(self, label: str) -> Step:
        kafka = self.kafka()
        known = [0]

        def step(chance: random.Random) -> None:
            kind = chance.random()
            if kind < 0.5:
                value = self.value(label)
                done = self.history.record(
                    label, "append", lambda: kafka.append(self.name, value), value=value
                )
                known.append(done["offset"] if done else 0)
            elif kind < 0.85:
                offset = chance.choice([known[-1], chance.choice(known), max(known) + 1])
                self.history.record(
                    label, "read", lambda: kafka.read(self.name, offset), offset=offset
                )
            else:
                self.history.record(label, "end", lambda: kafka.end(self.name))

        return step

    def _by_positions(self, label: str, client: HttpConnection | PulsarConnection) -> Step:
        appended, read_to = [""], [""]

        def step(chance: random.Random) -> None:
            kind = chance.random()
            if kind < 0.5:
                value = self.value(label)
                append = partial(client.append, self.name, value)
                done = self.history.record(label, "append", append, value=value)
                if done and "position" in done:
                    appended.append(done["position"])
            elif kind < 0.85 or isinstance(client, HttpConnection):
                after = chance.choice([appended[-1], chance.choice(appended), read_to[0]])
                read = partial(client.read, self.name, after)
                found = self.history.record(label, "read", read, offset=0, after=after)
                if found and found["positions"]:
                    read_to[0] = found["positions"][-1]
            else:
                self.history.record(label, "end", lambda: client.end(self.name))

        return step


class BatchLog(TopicLog):
    """The log with batches of Pulsar, which stand there whole, in order and adjacent.

    A reader of the official client, when it connects again in front of a single message, is given
    the batch before that once more: it names the entry without a place in it.
    """

    label = "batch-log"

    def workers(self) -> list[Step]:
        return [
            self._over_kafka("kafka"),
            self._by_positions("http", self.http()),
            *(self._batches(f"batch-{n}", self.http()) for n in range(2)),
        ]

    def _batches(self, label: str, http: HttpConnection) -> Step:
        """Append entries of several messages, and read on from within one."""
        wire, positions = self.wire(), [""]

        def step(chance: random.Random) -> None:
            if chance.random() < 0.6:
                values = [self.value(label) for _ in range(chance.randint(2, 3))]
                append = partial(wire.append_batch, self.name, values)
                self.history.record(label, "append", append, values=values)
                return
            after = chance.choice(positions)
            read = partial(http.read, self.name, after)
            found = self.history.record(label, "read", read, offset=0, after=after)
            positions.extend(found["positions"] if found else ())

        return step


def required(output: Output | None) -> Output:
    """Return an output; raise RefusedError, so that it is asked for again, if there is none."""
    if output is None:
        raise RefusedError("not answered")
    return output


def read_all(history: History, kafka: KafkaConnection, topic: str) -> list[str]:
    """Read a topic to its end and return all values."""
    values: list[str] = []
    while True:
        read = partial(kafka.read, topic, len(values))
        found = required(history.record("last", "read", read, offset=len(values)))
        if not found["values"]:
            return values
        values += found["values"]


def resolve(history: History, values: list[str], positions: list[str]) -> None:
    """Give operations by positions their offsets, by two listings of the whole log.

    What the listings do not have is LOST, an offset that no log agrees to.
    """
    offsets = {place_of(position): offset for offset, position in enumerate(positions)}
    for place, one in enumerate(history.operations):
        given, output = dict(one.input), one.output
        if given.get("after"):
            given["offset"] = offsets.get(place_of(given["after"]), LOST - 1) + 1
        if output is not None and "position" in output:
            offset = offsets.get(place_of(output["position"]), LOST)
            output = {**output, "offset": offset + (one.op == "end")}
        elif output is not None and output.get("status") == "stored":
            stored = given["value"] in values
            output = {**output, "offset": values.index(given["value"]) if stored else LOST}
        history.operations[place] = replace(one, input=given, output=output)


class StreamLog(Scenario):
    """A JetStream stream as a log: NATS and HTTP publish to it and read it by sequences."""

    model, label = "log", "stream-log"
    LIMIT = 0
    """How many messages are kept; 0: all."""

    def prepare(self) -> None:
        create_stream(self.nats(), self.name)

    def workers(self) -> list[Step]:
        return [self._client(f"nats-{n}", self.nats()) for n in range(2)] + [
            self._client(f"http-{n}", self.http()) for n in range(2)
        ]

    def conclude(self) -> None:
        nats = self.nats()
        found = required(self.history.record("last", "end", lambda: stream_end(nats, self.name)))
        for offset in range(found["offset"] + 1):
            self._read("last", nats, offset)

    def _client(self, label: str, client: NatsConnection | HttpConnection) -> Step:
        known = [0]

        def step(chance: random.Random) -> None:
            kind = chance.random()
            if kind < 0.5:
                value = self.value(label)
                done = self.history.record(
                    label,
                    "append",
                    lambda: placed(client.publish(f"{self.name}.a", value)),
                    value=value,
                )
                known.append(done["offset"] if done else 0)
            elif kind < 0.85:
                offset = chance.choice([known[-1], chance.choice(known), max(known) + 1])
                self._read(label, client, offset)
            else:
                self.history.record(label, "end", lambda: stream_end(client, self.name))

        return step

    def _read(self, label: str, client: NatsConnection | HttpConnection, offset: int) -> None:
        def read() -> Output:
            subject = f"STREAM.MSG.GET.{self.name}"
            found = message_of(client.call(subject, {"seq": offset + 1}))
            return {"values": [found["value"]] if "value" in found else []}

        self.history.record(label, "read", read, offset=offset, limit=self.LIMIT)


class LimitedStream(StreamLog):
    """A stream that keeps its newest messages only: what its limit has taken does not come back."""

    model, label = "window", "limited-stream"
    LIMIT = 6

    def prepare(self) -> None:
        create_stream(self.nats(), self.name, max_msgs=self.LIMIT)


def placed(published: Output) -> Output:
    """Return the offset of a publish, which is one less than its sequence."""
    return {"offset": published["revision"] - 1}


def stream_end(client: NatsConnection | HttpConnection, stream: str) -> Output:
    """Return how many messages a stream has, and so its end as a log."""
    return {"offset": stream_state(client, stream)["last_seq"]}


def stream_state(client: NatsConnection | HttpConnection, stream: str) -> dict[str, Any]:
    """Return the state of a stream."""
    found = client.call(f"STREAM.INFO.{stream}", {})
    if "error" in found:
        raise UnknownOutcomeError(str(found))
    return dict(found["state"])


def create_stream(client: NatsConnection, name: str, **config: Any) -> None:
    """Make a stream with the subjects below its name."""
    made = {"name": name, "subjects": [f"{name}.>"], **config}
    answer = client.call(f"STREAM.CREATE.{name}", made)
    assert "error" not in answer, answer


class Cursor(Scenario):
    """The offset of a Kafka group, which simple consumers commit and fetch."""

    model, label = "cursor", "cursor"
    MESSAGES = 20

    def prepare(self) -> None:
        self.create_topic()
        kafka = self.kafka()
        for _ in range(self.MESSAGES):
            kafka.append(self.name, self.value("setup"))

    def workers(self) -> list[Step]:
        return [self._client(f"kafka-{n}") for n in range(4)]

    def conclude(self) -> None:
        self._fetch("last", self.kafka())

    def _client(self, label: str) -> Step:
        kafka = self.kafka()

        def step(chance: random.Random) -> None:
            if chance.random() < 0.5:
                offset = chance.randint(0, self.MESSAGES)
                self.history.record(
                    label,
                    "commit",
                    lambda: kafka.commit(self._group, self.name, offset),
                    offset=offset,
                )
            else:
                self._fetch(label, kafka)

        return step

    @property
    def _group(self) -> str:
        return f"g-{self.name}"

    def _fetch(self, label: str, kafka: KafkaConnection) -> None:
        self.history.record(label, "fetch", lambda: kafka.committed(self._group, self.name))


class Queue(Scenario):
    """A group that HTTP polls of one id and a Pulsar consumer share; Kafka and Pulsar append."""

    model, label = "queue", "queue"
    LIMIT = 5

    def prepare(self) -> None:
        self.create_topic()

    def workers(self) -> list[Step]:
        return [
            self._producer(),
            self._consumer("http-0"),
            self._consumer("http-1"),
            self._exclusive("pulsar"),
        ]

    def conclude(self) -> None:
        http, kafka = self.http(), self.kafka()
        for _ in range(MAX_POLLS):
            found = self._poll("last", http, "", "")
            if not (found and found["values"]):
                break
        self._settle(read_all(self.history, kafka, self.name))

    def _settle(self, values: list[str]) -> None:
        """Give tokens the offsets that they acknowledge, by a listing of the whole log."""
        offsets = {value: offset for offset, value in enumerate(values)}
        operations = self.history.operations
        for place, one in enumerate(operations):
            if last := one.input.get("last"):
                given = {**one.input, "through": offsets.get(last, LOST - 1) + 1}
                operations[place] = replace(one, input=given)

    def _producer(self) -> Step:
        clients = self.kafka(), self.wire()

        def step(_chance: random.Random) -> None:
            for client in clients:
                value = self.value("producer")
                append = partial(client.append, self.name, value)
                self.history.record("producer", "append", append, value=value)

        return step

    def _exclusive(self, label: str) -> Step:
        wire = self.wire()

        def step(chance: random.Random) -> None:
            self.history.record(label, "attach", lambda: wire.attach(self.name))
            ack = "explicit" if chance.random() < 0.3 else ""
            take = partial(wire.take, self.LIMIT, acknowledge=not ack)
            self.history.record(label, "poll", take, ack=ack, member=label, limit=self.LIMIT)

        return step

    def _consumer(self, label: str) -> Step:
        http = self.http()
        token, last = [""], [""]

        def step(chance: random.Random) -> None:
            kind = chance.random()
            if kind < 0.3:
                self._poll(label, http, "", "")
                return
            if kind < 0.6 and token[0]:
                self.history.record(
                    label,
                    "ack",
                    partial(http.acknowledge, self.name, token[0]),
                    ack="token",
                    token=token[0],
                    last=last[0],
                )
                token[0] = last[0] = ""
                return
            found = self._poll(label, http, token[0] or "explicit", last[0])
            token[0] = last[0] = ""
            if found and found["values"]:
                token[0], last[0] = found["token"], found["values"][-1]

        return step

    def _poll(self, label: str, http: HttpConnection, ack: str, last: str) -> Output | None:
        """Poll; a token is that of an answer whose last value was `last`."""
        return self.history.record(
            label,
            "poll",
            lambda: http.poll(self.name, ack, self.LIMIT),
            ack="token" if last else ack,
            token=ack if last else "",
            last=last,
            limit=self.LIMIT,
        )


class Bucket(Scenario):
    """A JetStream bucket: NATS and HTTP put, create, update, get and delete three keys."""

    model, label = "bucket", "bucket"
    KEYS = ("a", "b", "c")

    def prepare(self) -> None:
        config = {"max_msgs_per_subject": 1, "allow_direct": True, "allow_rollup_hdrs": True}
        create_stream(self.nats(), self.name, **config)

    def workers(self) -> list[Step]:
        return [self._client(f"nats-{n}", self.nats()) for n in range(2)] + [
            self._client(f"http-{n}", self.http()) for n in range(2)
        ]

    def conclude(self) -> None:
        nats, http = self.nats(), self.http()
        for key in self.KEYS:
            self._get("last", nats, key)
            self._get("last", http, key)
        self.history.record("last", "end", lambda: self._end(nats))

    def _client(self, label: str, client: NatsConnection | HttpConnection) -> Step:
        revisions = dict.fromkeys(self.KEYS, 0)

        def step(chance: random.Random) -> None:
            key, kind = chance.choice(self.KEYS), chance.random()
            if kind < 0.4:
                found = self._get(label, client, key)
            elif kind < 0.45:
                self.history.record(label, "end", lambda: self._end(client))
                return
            else:
                expected = None if kind < 0.6 else chance.choice([revisions[key]] * 5 + [0])
                value = "" if kind > 0.9 else self.value(label)
                found = self._put(label, client, key, value, expected)
            if found is not None:
                revisions[key] = found.get("revision", 0)

        return step

    def _put(
        self,
        label: str,
        client: NatsConnection | HttpConnection,
        key: str,
        value: str,
        expected: int | None,
    ) -> Output | None:
        """Put a value, or delete the key where it is empty."""
        headers = {} if value else {"KV-Operation": "DEL"}
        if expected is not None:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(expected)
        return self.history.record(
            label,
            "put" if value else "delete",
            lambda: client.publish(f"{self.name}.{key}", value, headers),
            key=key,
            value=value,
            expected=expected,
        )

    def _get(self, label: str, client: NatsConnection | HttpConnection, key: str) -> Output | None:
        subject = f"{self.name}.{key}"
        return self.history.record(label, "get", lambda: client.last(self.name, subject), key=key)

    def _end(self, client: NatsConnection | HttpConnection) -> Output:
        return {"revision": stream_state(client, self.name)["last_seq"]}


class Topic(Scenario):
    """A name that DMaaP's routes and Pulsar's administration create, delete and look at."""

    model, label = "topic", "topic"

    def workers(self) -> list[Step]:
        return [self._client(f"dmaap-{n}", self._by_dmaap) for n in range(2)] + [
            self._client(f"pulsar-{n}", self._by_pulsar) for n in range(2)
        ]

    def conclude(self) -> None:
        http = self.http()
        self.history.record("last", "look", lambda: self._by_dmaap(http, "look"))
        self.history.record("last", "look", lambda: self._by_pulsar(http, "look"))

    def _client(self, label: str, call: Callable[[HttpConnection, str], Output]) -> Step:
        http = self.http()

        def step(chance: random.Random) -> None:
            op = chance.choice(["create", "delete", "look", "look"])
            self.history.record(label, op, lambda: call(http, op))

        return step

    def _by_dmaap(self, http: HttpConnection, op: str) -> Output:
        path = f"/topics/{self.name}"
        if op == "create":
            answer = http.ask("POST", "/topics/create", {"topicName": self.name})
            return _status(answer.status, {200: "created", 204: "exists", 409: "exists"})
        if op == "delete":
            return _status(http.ask("DELETE", path).status, {200: "deleted", 404: "absent"})
        return _status(http.ask("GET", path).status, {200: "exists", 404: "absent"})

    def _by_pulsar(self, http: HttpConnection, op: str) -> Output:
        path = f"/admin/v2/persistent/public/default/{self.name}"
        if op == "create":
            return _status(http.ask("PUT", path).status, {204: "created", 409: "exists"})
        if op == "delete":
            return _status(http.ask("DELETE", path).status, {204: "deleted", 404: "absent"})
        answer = http.ask("GET", f"{path}/stats")
        return _status(answer.status, {200: "exists", 404: "absent"})


def _status(status: int, names: dict[int, str]) -> Output:
    if status not in names:
        raise UnknownOutcomeError(f"status {status}")
    return {"status": names[status]}
