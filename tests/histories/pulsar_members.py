"""A consumer of a subscription that several share, over one connection of Pulsar's protocol.

The broker sends messages at any time while there are permits. Each call is answered behind what was
sent before, so its output has all messages that came until then.
"""

from __future__ import annotations

from typing import Any, Final

from router.wire.pulsar import FRAME_LIMIT, Frame, unpack
from router.wire.pulsar import pulsar_pb2 as pb
from tests.broker.raw import RawClient
from tests.histories.pulsar_wire import FAILURES, NO_ENTRY
from tests.histories.recording import Output, RefusedError, UnknownOutcomeError


class PulsarMember:
    """One consumer at a time; a call that is not answered ends its connection.

    `permits`: how many messages the broker may have sent that no call returned. `active`: it has
    the turn, as all but those of a failover subscription have; `turns_lost`: how often it was taken
    away. The output of a call has `values`,
    and `last`: whether all of the log is acknowledged.
    """

    group = "g"
    durable = True

    def __init__(self, port: int) -> None:
        self._url = f"pulsar://127.0.0.1:{port}"
        self._client: RawClient | None = None
        self._places: dict[str, pb.MessageIdData] = {}
        self._values: list[str] = []
        self._requests = 0
        self.permits = 0
        self.active = True
        self.turns_lost = 0

    def attach(self, topic: str, kind: int, name: str, priority: int = 0) -> None:
        """Join a group of the topic, without permits; raise RefusedError if it did not work."""
        self.permits, self.active = 0, kind != pb.CommandSubscribe.Failover
        self._values, self._places = [], {}
        given: dict[str, Any] = {"topic": topic, "subscription": self.group, "subType": kind}
        given["initialPosition"] = pb.CommandSubscribe.Earliest
        given |= {"priority_level": priority, "durable": self.durable}
        try:
            if self._client is None:
                self._client = RawClient(self._url)
                self._client.shake_hands()
            self._ask("SUBSCRIBE", "SUCCESS", consumer_name=name, **given)
        except FAILURES as error:
            self.close()
            raise RefusedError(str(error)) from error

    def take(self, permits: int) -> Output:
        """Give permits, and return once all has been sent that can be."""
        if permits:
            self._send("FLOW", messagePermits=permits)
            self.permits += permits
        return self._settled()

    def acknowledge(self, values: list[str]) -> Output:
        """Acknowledge messages, and wait until that is on disk."""
        places = [self._places[value] for value in values]
        acked = {"ack_type": pb.CommandAck.Individual, "message_id": places}
        answer = self._answer("ACK", "ACK_RESPONSE", **acked)
        assert not answer.HasField("error"), answer
        return self._came()

    def give_back(self) -> Output:
        """Have everything redelivered that is not acknowledged, to whoever may have it."""
        self._send("REDELIVER_UNACKNOWLEDGED_MESSAGES")
        return self._settled()

    def leave(self) -> Output:
        """Close the consumer, not the connection."""
        self._answer("CLOSE_CONSUMER", "SUCCESS")
        return self._came()

    def close(self) -> None:
        """End the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _settled(self) -> Output:
        kind = "GET_LAST_MESSAGE_ID"
        found = self._answer(kind, f"{kind}_RESPONSE")
        ends = found.last_message_id.entryId, found.consumer_mark_delete_position.entryId
        return {**self._came(), "last": ends[0] in (NO_ENTRY, ends[1])}

    def _came(self) -> Output:
        values, self._values = self._values, []
        self.permits -= len(values)
        return {"values": values}

    def _send(self, kind: str, **fields: Any) -> None:
        try:
            assert self._client is not None
            self._client.send(kind, consumer_id=0, **fields)
        except FAILURES as error:
            self.close()
            raise UnknownOutcomeError(str(error)) from error

    def _answer(self, kind: str, answer: str, **fields: Any) -> Any:
        try:
            return self._ask(kind, answer, **fields)
        except FAILURES as error:
            self.close()
            raise UnknownOutcomeError(str(error)) from error

    def _ask(self, kind: str, answer: str, **fields: Any) -> Any:
        """Send a request and return its answer; keep the messages that come before it."""
        assert self._client is not None
        self._requests += 1
        self._client.send(kind, request_id=self._requests, consumer_id=0, **fields)
        while True:
            frame = self._client.read()
            assert frame is not None, "closed"
            if frame.command.type == pb.BaseCommand.MESSAGE:
                self._keep(frame)
            elif frame.command.type == pb.BaseCommand.ACTIVE_CONSUMER_CHANGE:
                before, self.active = self.active, frame.command.active_consumer_change.is_active
                self.turns_lost += before and not self.active
            else:
                assert frame.command.type == pb.BaseCommand.Type.Value(answer), frame
                return getattr(frame.command, _BODIES[answer])

    def _keep(self, frame: Frame) -> None:
        (one,) = unpack(frame.payload, FRAME_LIMIT)
        value = (one.message.value or b"").decode()
        self._values.append(value)
        self._places[value] = frame.command.message.message_id


_BODIES: Final = {
    "SUCCESS": "success",
    "ACK_RESPONSE": "ackResponse",
    "GET_LAST_MESSAGE_ID_RESPONSE": "getLastMessageIdResponse",
}
