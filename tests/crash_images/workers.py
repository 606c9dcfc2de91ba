"""The clients of the load, which note each call that a broker must keep to as a fact."""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, TypeVar

from router.wire.pulsar import pulsar_pb2 as pb
from tests.broker.raw import RawClient
from tests.crash_images.connections import FAILURES, Connection, Http, Kafka, Nats, Ports, Pulsar
from tests.crash_images.facts import Fact, Facts, key_of, make_value, name_of, names_in
from tests.histories.recording import UnknownOutcomeError

T = TypeVar("T")
OK: Final = 200
IDLE_SECONDS: Final = 1.0
LARGE_BYTES: Final = 9_000
TEXT: Final = {"Content-Type": "text/plain"}


class Worker(ABC):
    """A client, which makes one step after the other."""

    def __init__(self, ports: Ports, facts: Facts, label: str, seed: str) -> None:
        self.ports = ports
        self.facts = facts
        self.label = label
        self.chance = random.Random(f"{seed} {label}")
        self.count = 0

    @abstractmethod
    def step(self) -> None:
        """Make one step; raises one of the failures of a connection."""

    @abstractmethod
    def close(self) -> None:
        """End the connections."""

    def value(self) -> str:
        """Return a value that was not used before: most are small, some as long as a few pages."""
        self.count += 1
        size = LARGE_BYTES if self.chance.random() < 0.05 else self.chance.randrange(40, 900)
        return make_value(self.label, self.count, size)

    def note(
        self,
        connection: Connection,
        kind: str,
        call: Callable[[], T],
        *,
        topic: str,
        value: str = "",
        group: str = "",
    ) -> T:
        """Make a call and note when it began, and when it was answered."""
        begun = time.monotonic_ns()
        done, port = None, 0
        try:
            result = call()
            done, port = time.monotonic_ns(), connection.port
        except FAILURES:
            connection.close()
            raise
        finally:
            self.facts.add(Fact(kind, topic, value, group, begun, done, port))
        return result


class KafkaProducer(Worker):
    """Appends to a topic, and deletes its oldest records now and then."""

    def __init__(
        self, ports: Ports, facts: Facts, label: str, seed: str, topic: str, deletes: bool = False
    ) -> None:
        super().__init__(ports, facts, label, seed)
        self.kafka, self.topic, self.deletes = Kafka(ports.kafka), topic, deletes
        self._offsets: list[int] = []

    def step(self) -> None:
        value = self.value()
        append = lambda: self.kafka.append(self.topic, value)  # noqa: E731
        done = self.note(self.kafka, "publish", append, topic=self.topic, value=name_of(value))
        self._offsets.append(int(done["offset"]))
        if self.deletes and len(self._offsets) % 8 == 0:
            offset = self._offsets[-4]
            self.note(
                self.kafka,
                "delete-before",
                lambda: self.kafka.delete_before(self.topic, offset),
                topic=self.topic,
                value=str(offset),
            )

    def close(self) -> None:
        self.kafka.close()


class KeyedProducer(KafkaProducer):
    """Appends to a compacted topic, some messages under each key."""

    def step(self) -> None:
        value = make_value(self.label, self.count + 1, self.chance.randrange(1_200, 2_400))
        self.count += 1
        key = key_of(name_of(value)).encode()
        append = lambda: self.kafka.append_keyed(self.topic, key, value)  # noqa: E731
        self.note(self.kafka, "publish", append, topic=self.topic, value=name_of(value))


class KafkaGroup(Worker):
    """Commits higher and higher offsets."""

    def __init__(self, ports: Ports, facts: Facts, label: str, seed: str, topic: str) -> None:
        super().__init__(ports, facts, label, seed)
        self.kafka, self.topic = Kafka(ports.kafka), topic

    def step(self) -> None:
        self.count += 1
        offset = self.count
        self.note(
            self.kafka,
            "commit",
            lambda: self.kafka.commit(self.label, self.topic, offset),
            topic=self.topic,
            value=str(offset),
            group=self.label,
        )

    def close(self) -> None:
        self.kafka.close()


class HttpPublisher(Worker):
    """Posts to a topic."""

    def __init__(self, ports: Ports, facts: Facts, label: str, seed: str, topic: str) -> None:
        super().__init__(ports, facts, label, seed)
        self.http, self.topic = Http(ports.http), topic

    def step(self) -> None:
        value = self.value()
        self.note(
            self.http,
            "publish",
            lambda: expect(
                self.http.ask("POST", f"/events/{self.topic}", value.encode(), TEXT).status
            ),
            topic=self.topic,
            value=name_of(value),
        )

    def close(self) -> None:
        self.http.close()


class HttpGroup(Worker):
    """Polls as the one consumer of a group, and acknowledges what it received."""

    def __init__(self, ports: Ports, facts: Facts, label: str, seed: str, topic: str) -> None:
        super().__init__(ports, facts, label, seed)
        self.http, self.topic = Http(ports.http), topic

    def step(self) -> None:
        path = f"/events/{self.topic}/{self.label}/c?from=earliest&timeout=50"
        answer = self.http.ask("GET", f"{path}&limit=3&ack=explicit")
        if answer.status != OK:
            raise UnknownOutcomeError(str(answer))
        names = names_in(answer.body)
        if names:
            token = answer.headers["ack-token"]
            self.note(
                self.http,
                "acknowledge",
                lambda: expect(self.http.ask("GET", f"{path}&limit=0&ack={token}").status),
                topic=self.topic,
                value=",".join(names),
                group=self.label,
            )

    def close(self) -> None:
        self.http.close()


class Topics(Worker):
    """Creates topics, publishes to them, and deletes most of them."""

    def __init__(self, ports: Ports, facts: Facts, label: str, seed: str) -> None:
        super().__init__(ports, facts, label, seed)
        self.http, self._topic = Http(ports.http), ""

    def step(self) -> None:
        kind = self.chance.random()
        if not self._topic:
            self._topic = f"{self.label}{self.count}"
            self.count += 1
            body = {"topicName": self._topic}
            create = lambda: expect(self.http.ask("POST", "/topics/create", body).status)  # noqa: E731
            self.note(self.http, "create-topic", create, topic=self._topic)
        elif kind < 0.6:
            value = self.value()
            post = lambda: expect(  # noqa: E731
                self.http.ask("POST", f"/events/{self._topic}", value.encode(), TEXT).status
            )
            self.note(self.http, "publish", post, topic=self._topic, value=name_of(value))
        else:
            topic, self._topic = self._topic, ""
            if kind < 0.9:
                delete = lambda: expect(self.http.ask("DELETE", f"/topics/{topic}").status)  # noqa: E731
                self.note(self.http, "delete-topic", delete, topic=topic)

    def close(self) -> None:
        self.http.close()


class NatsPublisher(Worker):
    """Publishes to a stream, and deletes single messages of its own."""

    def __init__(
        self, ports: Ports, facts: Facts, label: str, seed: str, stream: str, deletes: bool = False
    ) -> None:
        super().__init__(ports, facts, label, seed)
        self.nats, self.stream, self.deletes = Nats(ports.nats), stream, deletes
        self._sequences: dict[int, str] = {}

    def step(self) -> None:
        if self.deletes and len(self._sequences) > 3 and self.chance.random() < 0.3:
            sequence = self.chance.choice(sorted(self._sequences))
            name = self._sequences.pop(sequence)
            body = {"seq": sequence}
            self.note(
                self.nats,
                "delete",
                lambda: self.nats.call(f"STREAM.MSG.DELETE.{self.stream}", body)["success"],
                topic=self.stream,
                value=name,
            )
            return
        value = self.value()
        publish = lambda: self.nats.publish(f"{self.stream}.{self.label}", value)  # noqa: E731
        done = self.note(self.nats, "publish", publish, topic=self.stream, value=name_of(value))
        self._sequences[int(done["revision"])] = name_of(value)

    def close(self) -> None:
        self.nats.close()


class NatsConsumer(Worker):
    """Pulls from a durable consumer of a stream, and waits for each acknowledgement."""

    def __init__(self, ports: Ports, facts: Facts, label: str, seed: str, stream: str) -> None:
        super().__init__(ports, facts, label, seed)
        self.nats, self.stream = Nats(ports.nats), stream
        self._is_created = False

    def step(self) -> None:
        if not self._is_created:
            config = {"durable_name": self.label, "ack_policy": "explicit"}
            subject = f"CONSUMER.DURABLE.CREATE.{self.stream}.{self.label}"
            body = {"stream_name": self.stream, "config": config}
            create = lambda: self.nats.call(subject, body)["name"]  # noqa: E731
            self.note(self.nats, "create-consumer", create, topic=self.stream, group=self.label)
            self._is_created = True
        body_of, subject = self.nats.pull(self.stream, self.label)
        for name in names_in(body_of):
            self.note(
                self.nats,
                "acknowledge",
                lambda: self.nats.confirm(subject),
                topic=self.stream,
                value=name,
                group=self.label,
            )

    def close(self) -> None:
        self.nats.close()


class PulsarProducer(Worker):
    """A named producer, whose sequence ids the broker remembers."""

    def __init__(self, ports: Ports, facts: Facts, label: str, seed: str, topic: str) -> None:
        super().__init__(ports, facts, label, seed)
        self.topic = topic
        self.pulsar = Pulsar(ports.pulsar, lambda raw: raw.producer(topic, producer_name=label))

    def step(self) -> None:
        raw, value = self.pulsar.connected(), self.value()
        publish = lambda: raw.publish(value.encode(), sequence_id=self.count)  # noqa: E731
        self.note(self.pulsar, "publish", publish, topic=self.topic, value=name_of(value))

    def close(self) -> None:
        self.pulsar.close()


class PulsarConsumer(Worker):
    """Acknowledges messages one by one, and waits for each answer."""

    def __init__(self, ports: Ports, facts: Facts, label: str, seed: str, topic: str) -> None:
        super().__init__(ports, facts, label, seed)
        self.topic = topic
        self.pulsar = Pulsar(ports.pulsar, self._subscribe)

    def _subscribe(self, raw: RawClient) -> None:
        raw.subscribe(self.topic, subscription=self.label)

    def step(self) -> None:
        raw = self.pulsar.connected()
        raw.send("FLOW", consumer_id=0, messagePermits=1)
        try:
            frame = raw.read(IDLE_SECONDS)
        except TimeoutError:
            return  # all messages are acknowledged
        if frame is None or frame.command.type != pb.BaseCommand.MESSAGE:
            raise UnknownOutcomeError(str(frame))
        place = frame.command.message.message_id
        (name,) = names_in(frame.payload)
        self.note(
            self.pulsar,
            "acknowledge",
            lambda: raw.ask(
                "ACK",
                "ACK_RESPONSE",
                consumer_id=0,
                ack_type=pb.CommandAck.Individual,
                message_id=[place],
            ),
            topic=self.topic,
            value=name,
            group=self.label,
        )

    def close(self) -> None:
        self.pulsar.close()


def expect(status: int) -> None:
    """Raise UnknownOutcomeError if a request was not carried out."""
    if status != OK:
        raise UnknownOutcomeError(f"status {status}")
