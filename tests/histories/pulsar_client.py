"""The official Pulsar client with a deadline for each call, within which it connects again.

It sends again what was not answered, so it appends once only where messages are deduplicated.
"""

from __future__ import annotations

import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import pulsar

from router.wire.pulsar import pulsar_pb2 as pb
from tests.histories.recording import Output, RefusedError, UnknownOutcomeError

SECONDS: Final = 8
"""A new client connects sooner than one that has failed for long."""
MILLISECONDS: Final = SECONDS * 1000
NOWHERE: Final = -1
"""The entry of a message that was stored before, and of the last one of an empty topic."""

Opened = TypeVar("Opened")


class PulsarConnection:
    """Opens what it needs; after a failure everything is opened again."""

    def __init__(self, port: int) -> None:
        self._url = f"pulsar://127.0.0.1:{port}"
        self._name = secrets.token_hex(8)
        self._sequence_id = 0
        self._client: pulsar.Client | None = None
        self._opened: dict[str, Any] = {}
        self._stands = ""

    def append(self, topic: str, value: str) -> Output:
        """Send a message; the output has its `position`, or the status `stored` of a repeat.

        The client's own sequence ids begin again, and so repeat one that is under way, where the
        connection is lost before the first receipt.
        """
        options = {"producer_name": self._name, "send_timeout_millis": MILLISECONDS}
        producer = self._open("producer", lambda client: client.create_producer(topic, **options))
        self._sequence_id += 1
        with self._answered():
            sent = producer.send(value.encode(), sequence_id=self._sequence_id)
        if sent.entry_id() == NOWHERE:
            return {"status": "stored"}
        return {"position": position_of(sent)}

    def read(self, topic: str, after: str = "") -> Output:
        """Read to the end behind a position, else from the beginning; a reader goes on."""
        last = place_of(self.end(topic)["position"])
        if after != self._stands:
            self._opened.pop("reader", None)
        reader = self._open("reader", lambda client: client.create_reader(topic, _id_of(after)))
        self._stands = after
        found: list[pulsar.Message] = []
        with self._answered():
            # Not has_message_available(), which is false, too, where the connection is lost.
            while not self._stands or place_of(self._stands) < last:
                found.append(reader.read_next(MILLISECONDS))
                self._stands = position_of(found[-1].message_id())
        positions = [position_of(one.message_id()) for one in found]
        return {"values": [one.data().decode() for one in found], "positions": positions}

    def end(self, topic: str) -> Output:
        """Ask for the id of the last message, as consumers do; the output has its `position`."""
        consumer = self._open("consumer", lambda client: client.subscribe(topic, self._name))
        with self._answered():
            last = consumer.get_last_message_id()
        if last.entry_id() == NOWHERE:
            raise UnknownOutcomeError("the topic is empty, or the connection was lost meanwhile")
        return {"position": position_of(last)}

    def close(self) -> None:
        """End the client, and wait for nothing."""
        if self._client is not None:
            self._client.shutdown()
        self._client, self._opened, self._stands = None, {}, ""

    def _open(self, kind: str, opened: Callable[[pulsar.Client], Opened]) -> Opened:
        """Return what was opened before; opening appends nothing and claims nothing."""
        if kind not in self._opened:
            try:
                self._client = self._client or self._connect()
                self._opened[kind] = opened(self._client)
            except pulsar.PulsarException as error:
                self.close()
                raise RefusedError(str(error)) from error
        found: Opened = self._opened[kind]
        return found

    def _connect(self) -> pulsar.Client:
        return pulsar.Client(
            self._url,
            operation_timeout_seconds=SECONDS,
            logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"),
        )

    @contextmanager
    def _answered(self) -> Iterator[None]:
        try:
            yield
        except pulsar.PulsarException as error:
            self.close()
            raise UnknownOutcomeError(str(error)) from error


def position_of(found: pulsar.MessageId) -> str:
    """Return a position in the form of PIP 64."""
    place = pb.MessageIdData(ledgerId=found.ledger_id(), entryId=found.entry_id())
    place.batch_index = found.batch_index()
    return b64encode(place.SerializeToString()).decode()


def place_of(position: str) -> tuple[int, int]:
    """Return the entry of a position and the place in it, -1: it has one message."""
    found = pb.MessageIdData.FromString(b64decode(position))
    return found.entryId, found.batch_index


def _id_of(position: str) -> pulsar.MessageId:
    if not position:
        return pulsar.MessageId.earliest
    found = pb.MessageIdData.FromString(b64decode(position))
    return pulsar.MessageId(-1, found.ledgerId, found.entryId, found.batch_index)
