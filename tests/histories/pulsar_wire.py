"""One connection of the Pulsar protocol without retries: each call is answered, or its end is open.

The official client sends again what was not answered, and does not ask whether an acknowledgement
was stored.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from router.model import Message
from router.wire import ProtocolError
from router.wire.pulsar import FRAME_LIMIT, pack, unpack
from router.wire.pulsar import pulsar_pb2 as pb
from tests.broker.raw import RawClient
from tests.histories.recording import Output, RefusedError, UnknownOutcomeError

FAILURES: Final = (OSError, ProtocolError, AssertionError)
"""What a connection ends with; what the client does not expect is one, too."""
NO_ENTRY: Final = 2**64 - 1
"""The entry before the first."""


class PulsarWire:
    """Connects when it is needed; after a failure the next call connects again.

    Where each entry of a topic has one message, both have the same number.
    """

    def __init__(self, port: int) -> None:
        self._url = f"pulsar://127.0.0.1:{port}"
        self._client: RawClient | None = None

    def append(self, topic: str, value: str) -> Output:
        """Send a message without deduplication."""
        return self.append_keyed(topic, None, value)

    def append_keyed(self, topic: str, key: bytes | None, value: str) -> Output:
        """Send a message under a key without deduplication."""
        return {"offset": self.publish(topic, Message(value.encode(), key)).entryId}

    def append_batch(self, topic: str, values: list[str]) -> Output:
        """Send messages as one entry; the output has the `position` of the first."""
        place = self.publish(topic, *(Message(value.encode()) for value in values))
        place.batch_index = 0
        return {"position": b64encode(place.SerializeToString()).decode()}

    def attach(self, topic: str) -> Output:
        """Become the only consumer of the group g; raise RefusedError if another is."""
        given: dict[str, Any] = {"topic": topic, "subscription": "g", "consumer_id": 0}
        given["subType"] = pb.CommandSubscribe.Exclusive
        given["initialPosition"] = pb.CommandSubscribe.Earliest
        with self._answered() as client:
            client.send("SUBSCRIBE", request_id=0, **given)
            answer = client.read()
            assert answer is not None, "closed"
            if answer.command.type == pb.BaseCommand.ERROR:
                raise RefusedError(answer.command.error.message)
        return {}

    def take(self, limit: int, *, acknowledge: bool) -> Output:
        """Take what comes next, acknowledge it one by one if told to, and leave the group.

        There is nothing where the broker says that the last message is acknowledged.
        """
        with self._answered() as client:
            kind = "GET_LAST_MESSAGE_ID"
            found = client.ask(kind, f"{kind}_RESPONSE", consumer_id=0)
            ends = found.last_message_id.entryId, found.consumer_mark_delete_position.entryId
            last, acknowledged = (-1 if end == NO_ENTRY else end for end in ends)
            count = min(limit, last - acknowledged)
            if count:
                client.send("FLOW", consumer_id=0, messagePermits=count)
            taken = [_message(client) for _ in range(count)]
            for place, _ in taken if acknowledge else ():
                self.acknowledge(client, place)
            client.ask("CLOSE_CONSUMER", "SUCCESS", consumer_id=0)
        return {"values": [value for _, value in taken]}

    def acknowledge(self, client: RawClient, place: pb.MessageIdData) -> None:
        """Acknowledge one message, and wait until that is on disk."""
        acked = {"ack_type": pb.CommandAck.Individual, "message_id": [place]}
        answer = client.ask("ACK", "ACK_RESPONSE", consumer_id=0, **acked)
        assert not answer.HasField("error"), answer

    def close(self) -> None:
        """End the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def publish(self, topic: str, *messages: Message) -> pb.MessageIdData:
        """Send an entry as a producer of a new name, and return its id."""
        payload, count = pack(messages, "raw", 0, 1_000), len(messages)
        with self._answered() as client:
            client.producer(topic)
            client.send("SEND", payload, producer_id=0, sequence_id=0, num_messages=count)
            place: pb.MessageIdData = client.expect("SEND_RECEIPT").message_id
            client.ask("CLOSE_PRODUCER", "SUCCESS", producer_id=0)
        return place

    @contextmanager
    def _answered(self) -> Iterator[RawClient]:
        """Yield the connection; what the client does not expect leaves the outcome open, too."""
        self._connect()
        assert self._client is not None
        try:
            yield self._client
        except FAILURES as error:
            self.close()
            raise UnknownOutcomeError(str(error)) from error

    def _connect(self) -> None:
        if self._client is not None:
            return
        try:
            self._client = RawClient(self._url)
            self._client.shake_hands()
        except FAILURES as error:
            self.close()
            raise RefusedError(str(error)) from error


def _message(client: RawClient) -> tuple[pb.MessageIdData, str]:
    frame = client.read()
    assert frame is not None, "closed"
    assert frame.command.type == pb.BaseCommand.MESSAGE, frame
    (one,) = unpack(frame.payload, FRAME_LIMIT)
    return frame.command.message.message_id, (one.message.value or b"").decode()
