"""A Pulsar client that writes and acknowledges in transactions, over a connection in memory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

from router.broker.storage import words
from router.model import Message
from router.wire.pulsar import PulsarFrameReader, command, encode, pack, unpack
from router.wire.pulsar import pulsar_pb2 as pb
from tests.unit.broker.pulsar.serving import Context
from tests.unit.broker.pulsar.test_connection import CONNECT, TOPIC, Client

Ids = dict[str, int]
MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Received:
    """A message that came: its entry, its index in that, -1: no batch, how often it came before."""

    value: bytes
    place: pb.MessageIdData
    index: int
    redeliveries: int

    def alone(self, messages: int) -> Received:
        """Return it with an id that names it alone among so many messages of its batch."""
        place = pb.MessageIdData()
        place.CopyFrom(self.place)
        place.ack_set[:] = words((1 << messages) - 1 & ~(1 << self.index))
        place.batch_size = messages
        return replace(self, place=place)


class TransactionalClient:
    """One client; calls return what the broker answered."""

    def __init__(self, context: Context, peer: object = ("127.0.0.1", 1)) -> None:
        self.client = Client(context, peer)
        self._requests = 100
        self._sequences = 0
        self._consumers: dict[str, int] = {}
        self._messages: list[Received] = []
        self.client.send(CONNECT)

    async def ask(self, kind: str, **fields: Any) -> Any:
        """Send a request; return the body of its answer."""
        self._requests += 1
        number: Any = pb.BaseCommand.Type.Value(kind)
        self.client.send(encode(command(number, request_id=self._requests, **fields)))
        return await self._answer(request_id=self._requests)

    async def _answer(self, **fields: int) -> Any:
        for _ in range(200):
            await self.client.settle()
            for body in self._take():
                if all(getattr(body, name, None) == value for name, value in fields.items()):
                    return body
        raise AssertionError(f"no answer with {fields}")

    def _take(self) -> list[Any]:
        """Return the bodies of what came, but for messages, which are kept."""
        data, self.client.transport.writes = b"".join(self.client.transport.writes), []
        found = []
        for frame in PulsarFrameReader().receive(data):
            ((_, _), (_, body), *_) = frame.command.ListFields()
            if isinstance(body, pb.CommandMessage):
                place = pb.MessageIdData()
                place.CopyFrom(body.message_id)
                self._messages += [
                    Received(one.message.value, place, one.batch_index, body.redelivery_count)
                    for one in unpack(frame.payload, MAX_BYTES, body.ack_set)
                ]
            else:
                found.append(body)
        return found

    async def begin(self, timeout_ms: int = 60_000) -> Ids:
        """Begin a transaction; return its ids."""
        answer = await self.ask("NEW_TXN", txn_ttl_seconds=timeout_ms, tc_id=0)
        assert not answer.HasField("error"), answer.message
        return {
            "txnid_most_bits": answer.txnid_most_bits,
            "txnid_least_bits": answer.txnid_least_bits,
        }

    async def end(self, ids: Ids, *, commit: bool = True) -> Any:
        """Commit or abort a transaction."""
        action = pb.COMMIT if commit else pb.ABORT
        return await self.ask("END_TXN", txn_action=action, **ids)

    async def producer(self, topic: str = TOPIC, number: int = 0) -> None:
        """Open a producer."""
        await self.ask("PRODUCER", topic=topic, producer_id=number)

    async def write(
        self,
        *values: bytes,
        ids: Ids | None = None,
        number: int = 0,
        deliver_at: int | None = None,
    ) -> Any:
        """Write a batch; return the receipt or the refusal."""
        sequence, self._sequences = self._sequences, self._sequences + 1
        payload = pack(
            [Message(value, deliver_at=deliver_at) for value in values], "p", sequence, 1
        )
        sent = command(pb.BaseCommand.SEND, producer_id=number, sequence_id=sequence, **ids or {})
        self.client.send(encode(sent, payload))
        return await self._answer(producer_id=number, sequence_id=sequence)

    async def subscribe(
        self,
        kind: pb.CommandSubscribe.SubType,
        number: int = 0,
        topic: str = TOPIC,
        *,
        permits: int = 1_000,
    ) -> None:
        """Open a consumer of the subscription s, from the beginning, with many permits."""
        answer = await self.ask(
            "SUBSCRIBE",
            topic=topic,
            subscription="s",
            subType=kind,
            consumer_id=number,
            initialPosition=pb.CommandSubscribe.Earliest,
        )
        assert isinstance(answer, pb.CommandSuccess), answer
        self.permit(permits, number)

    def permit(self, permits: int, number: int = 0) -> None:
        """Let a consumer get so many messages more."""
        flow = command(pb.BaseCommand.FLOW, consumer_id=number, messagePermits=permits)
        self.client.send(encode(flow))

    async def received(self, least: int = 0) -> list[Received]:
        """Return the messages that came since the last call, when so many did."""
        async with asyncio.timeout(20):
            await self.client.settle()
            while self._take() or len(self._messages) < least:
                await self.client.settle()
        found, self._messages = self._messages, []
        return found

    async def sees(self, *values: bytes) -> bool:
        """Return whether these messages and no others came since the last call."""
        return [one.value for one in await self.received(len(values))] == list(values)

    async def acknowledge(
        self, *received: Received, ids: Ids | None = None, number: int = 0, **fields: Any
    ) -> Any:
        """Acknowledge messages one by one, or with `ack_type` all up to one; return the answer."""
        given = {"ack_type": pb.CommandAck.Individual} | fields
        places = [one.place for one in received]
        return await self.ask("ACK", consumer_id=number, message_id=places, **given, **ids or {})

    def close(self) -> None:
        """Close the connection."""
        self.client.connection.connection_lost(None)
