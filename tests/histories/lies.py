"""Clients that do not tell the truth, each in one way: what a broken router would look like."""

from __future__ import annotations

import random
import secrets
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any, ClassVar

from router.wire.pulsar import pulsar_pb2 as pb
from tests.broker.raw import RawClient
from tests.histories.http_client import HttpConnection
from tests.histories.kafka_client import KafkaConnection
from tests.histories.kafka_members import MemberConnection
from tests.histories.nats_client import NatsConnection
from tests.histories.pulsar_client import PulsarConnection
from tests.histories.pulsar_wire import PulsarWire
from tests.histories.recording import Output

EXPECTED = "Nats-Expected-Last-Subject-Sequence"


class StaleReads(KafkaConnection):
    """Reads as if the last message was not there yet."""

    def read(self, topic: str, offset: int) -> Output:
        values = super().read(topic, offset)["values"]
        return {"values": values if len(values) > 1 else []}


class StaleEnds(KafkaConnection):
    """Lists the end as it was one call before."""

    _end: Output | None = None

    def end(self, topic: str) -> Output:
        self._end, found = super().end(topic), self._end
        return found or self._end


class LostAppends(KafkaConnection):
    """Acknowledges appends that it does not make, at the offset that would be theirs."""

    def append(self, topic: str, value: str) -> Output:
        return self.end(topic)


class RepeatedOffsets(KafkaConnection):
    """Acknowledges an append with the offset of the message before."""

    def append(self, topic: str, value: str) -> Output:
        return {"offset": max(0, super().append(topic, value)["offset"] - 1)}


class DoubledAppends(HttpConnection):
    """Sends each append twice, as a client does that retries what was stored."""

    def append(self, topic: str, value: str) -> Output:
        super().append(topic, value)
        return super().append(topic, value)


class EmptyReads(HttpConnection):
    """Finds nothing behind a message."""

    def read(self, topic: str, after: str = "") -> Output:
        found = super().read(topic, after)
        return {"values": [], "positions": []} if after else found


class ForgottenNumbers(PulsarConnection):
    """Sends each message twice, as what a producer of another name repeats."""

    def append(self, topic: str, value: str) -> Output:
        self._name = secrets.token_hex(8)
        self.close()
        super().append(topic, value)
        self._name = secrets.token_hex(8)
        self.close()
        return super().append(topic, value)


class FalseRepeats(PulsarConnection):
    """Says of what it does not send that it was stored before."""

    def append(self, topic: str, value: str) -> Output:
        return {"status": "stored"}


class SkippingReaders(PulsarConnection):
    """Reads on behind the message that should come next."""

    def read(self, topic: str, after: str = "") -> Output:
        found = super().read(topic, after)
        return {name: some[1:] if after else some for name, some in found.items()}


class EarlierEnds(PulsarConnection):
    """Names the first id that it was told as the last one."""

    _end: Output | None = None

    def end(self, topic: str) -> Output:
        self._end = self._end or super().end(topic)
        return self._end


class LostPublishes(NatsConnection):
    """Acknowledges what it deletes at once."""

    def publish(self, subject: str, value: str, headers: dict[str, str] | None = None) -> Output:
        done = super().publish(subject, value, headers)
        stream = subject.partition(".")[0]
        self.call(f"STREAM.MSG.DELETE.{stream}", {"seq": done["revision"]})
        return done


class KeptMessages(NatsConnection):
    """Reads messages as they were, though they are gone."""

    _kept: ClassVar[dict[str, dict[str, Any]]] = {}

    def call(self, subject: str, body: object) -> dict[str, Any]:
        found = super().call(subject, body)
        if "message" in found:
            self._kept[f"{subject} {body}"] = found
        return self._kept.get(f"{subject} {body}", found)


class LostCommits(KafkaConnection):
    """Acknowledges commits that it does not make."""

    def commit(self, group: str, topic: str, offset: int) -> Output:
        return {}


class StaleCommits(KafkaConnection):
    """Fetches an offset that was committed once."""

    _first: Output | None = None

    def committed(self, group: str, topic: str, partition: int = 0) -> Output:
        self._first = self._first or super().committed(group, topic, partition)
        return self._first


class UnfencedCommits(MemberConnection):
    """Confirms the commits that are refused of a member that is fenced."""

    def commit_as(
        self, group: str, topic: str, member: str, epoch: int, partition: int, offset: int
    ) -> Output:
        super().commit_as(group, topic, member, epoch, partition, offset)
        return {}


class ForgottenCommits(MemberConnection):
    """Confirms the commits of members without making them."""

    def commit_as(
        self, group: str, topic: str, member: str, epoch: int, partition: int, offset: int
    ) -> Output:
        return {}


class TwiceAssigned(MemberConnection):
    """Assigns all partitions to each member of a generation, or that sends a heartbeat."""

    def join(
        self, group: str, member: str, partitions: int, rebalance_ms: int, chance: random.Random
    ) -> Output:
        found = super().join(group, member, partitions, rebalance_ms, chance)
        return found if "status" in found else found | {"partitions": list(range(partitions))}

    def beat(self, group: str, topic: str, member: str, epoch: int, owned: Sequence[int]) -> Output:
        found = super().beat(group, topic, member, epoch, owned)
        return found if "status" in found else found | {"partitions": [0, 1, 2]}


class SkippedMessages(HttpConnection):
    """Takes messages and keeps the first to itself."""

    def poll(self, topic: str, ack: str, limit: int, consumer: str = "c") -> Output:
        found = super().poll(topic, ack, limit, consumer)
        return {**found, "values": found["values"][1:]}


class LostAcknowledgements(HttpConnection):
    """Confirms acknowledgements that it does not send."""

    def poll(self, topic: str, ack: str, limit: int, consumer: str = "c") -> Output:
        return super().poll(topic, ack and "explicit", limit, consumer)

    def acknowledge(self, topic: str, token: str, consumer: str = "c") -> Output:
        return {}


class LostReceipts(PulsarWire):
    """Confirms acknowledgements that it does not send."""

    def acknowledge(self, client: RawClient, place: pb.MessageIdData) -> None:
        pass


class EmptyHands(PulsarWire):
    """Says that there is nothing left."""

    def take(self, limit: int, *, acknowledge: bool) -> Output:
        super().take(limit, acknowledge=False)
        return {"values": []}


class SilentAcknowledgements(PulsarWire):
    """Acknowledges what it only looks at."""

    def take(self, limit: int, *, acknowledge: bool) -> Output:
        return super().take(limit, acknowledge=True)


class CutBatches(PulsarWire):
    """Sends batches without their last message."""

    def append_batch(self, topic: str, values: list[str]) -> Output:
        return super().append_batch(topic, values[:-1])


class ReversedBatches(PulsarWire):
    """Sends batches in another order."""

    def append_batch(self, topic: str, values: list[str]) -> Output:
        return super().append_batch(topic, values[::-1])


class BatchesByEntry(PulsarWire):
    """Counts a batch as one message: names the place behind its first as the batch's."""

    def append_batch(self, topic: str, values: list[str]) -> Output:
        place = pb.MessageIdData.FromString(
            b64decode(super().append_batch(topic, values)["position"])
        )
        place.batch_index = 1
        return {"position": b64encode(place.SerializeToString()).decode()}


class SecondHolders(HttpConnection):
    """Takes under a grant that another holds: what a poll has, one of another group has too."""

    def poll(self, topic: str, ack: str, limit: int, consumer: str = "c") -> Output:
        found = super().poll(topic, ack, limit, consumer)
        if found["values"] or ack:
            return found
        answer = self.ask("GET", f"/events/{topic}/h/{consumer}?from=earliest&timeout=0")
        return {**found, "values": answer.json[:limit]}


class ReorderedMessages(HttpConnection):
    """Takes messages in another order than theirs."""

    def poll(self, topic: str, ack: str, limit: int, consumer: str = "c") -> Output:
        found = super().poll(topic, ack, limit, consumer)
        return {**found, "values": found["values"][::-1]}


class RedeliveredMessages(HttpConnection):
    """Polls without ever acknowledging."""

    def poll(self, topic: str, ack: str, limit: int, consumer: str = "c") -> Output:
        return super().poll(topic, "explicit", limit, consumer)


class IgnoredConditions(NatsConnection):
    """Puts without the revision that is expected."""

    def publish(self, subject: str, value: str, headers: dict[str, str] | None = None) -> Output:
        return super().publish(subject, value, _without_condition(headers))


class StaleValues(HttpConnection):
    """Reads a key as it was once."""

    _first: dict[str, Output]

    def last(self, stream: str, subject: str) -> Output:
        self._first = getattr(self, "_first", {})
        return self._first.setdefault(subject, super().last(stream, subject))


class WrongRevisions(NatsConnection):
    """Reads keys with the revision before."""

    def last(self, stream: str, subject: str) -> Output:
        found = super().last(stream, subject)
        return found | {"revision": found.get("revision", 0) - 1}


class LostDeletions(HttpConnection):
    """Confirms the deletion of topics that stay."""

    def ask(self, method: str, path: str, *arguments: Any) -> Any:
        if method == "DELETE":
            method = "GET"
        return super().ask(method, path, *arguments)


def _without_condition(headers: dict[str, str] | None) -> dict[str, str]:
    return {name: value for name, value in (headers or {}).items() if name != EXPECTED}
