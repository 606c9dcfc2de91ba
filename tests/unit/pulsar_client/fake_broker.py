"""The far end of a connection, played by a test: it answers as told and remembers what it saw."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from router.process.build import NODE_PROTOCOL
from router.pulsar_client.connection import PulsarConnection
from router.pulsar_client.handshake import shake_hands
from router.pulsar_client.link import PulsarLink
from router.pulsar_client.refusals import OURS
from router.wire import node
from router.wire.pulsar import PulsarFrameReader, encode
from router.wire.pulsar import pulsar_pb2 as pb

WAIT = 5.0
T = pb.BaseCommand
Reaction = Callable[["Side", Any, bytes], None]


class Side:
    """One connection as the broker sees it."""

    def __init__(self, broker: FakeBroker, peer: socket.socket) -> None:
        self.broker = broker
        self._peer = peer
        # Before it answers anything: whoever was answered may look.
        broker.sides.append(self)
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, kind: pb.BaseCommand.Type, payload: bytes = b"", **body: Any) -> None:
        self.send_raw(encode(pb.BaseCommand(type=kind, **body), payload))

    def send_raw(self, data: bytes) -> None:
        """Send bytes, if the client is still there."""
        with suppress(OSError):
            self._peer.sendall(data)

    def cut(self) -> None:
        with suppress(OSError):
            self._peer.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        reader = PulsarFrameReader()
        with self._peer:
            while data := self._chunk():
                for command, payload in reader.receive(data):
                    self.broker.handle(self, command, payload)

    def _chunk(self) -> bytes:
        try:
            return self._peer.recv(65536)
        except OSError:
            return b""


class FakeBroker:
    """Answers like a broker of ours that stores nothing, unless told otherwise by `on`."""

    def __init__(self, server_version: str = "dragoman test") -> None:
        self.server_version = server_version
        self.node_protocol = NODE_PROTOCOL
        self.sides: list[Side] = []
        self.seen: list[tuple[pb.BaseCommand, bytes]] = []
        self.seen_of_the_node: list[tuple[str, Any]] = []
        self.on: dict[int | str, Reaction] = {
            T.CONNECT: self._connected,
            T.PRODUCER: self._producer,
            T.SEND: self._receipt,
            T.APPENDS: lambda side, c, _p: self.respond(side, c.appends.request_id),
            T.SUBSCRIBE: lambda side, c, _p: self._success(side, c.subscribe.request_id),
            T.CLOSE_PRODUCER: lambda side, c, _p: self._success(side, c.close_producer.request_id),
            T.CLOSE_CONSUMER: lambda side, c, _p: self._success(side, c.close_consumer.request_id),
            T.ACK: self._acknowledged,
        }
        self.last_sequence = -1
        self.entry = 0

    def dial(self, deadline: float) -> PulsarConnection:
        """Open a connection to this broker."""
        near, far = socket.socketpair()
        Side(self, far)
        return shake_hands(near, deadline)

    def link(self) -> PulsarLink:
        return PulsarLink(self.dial)

    def connect(self) -> PulsarConnection:
        return self.dial(time.monotonic() + WAIT)

    @property
    def side(self) -> Side:
        return self.sides[-1]

    def of(self, kind: int) -> list[Any]:
        """Return the commands of a type that came so far."""
        return [command for command, _ in list(self.seen) if command.type == kind]

    def of_the_node(self, kind: str) -> list[Any]:
        """Return the commands of the node protocol of a kind that came so far."""
        return [command for name, command in list(self.seen_of_the_node) if name == kind]

    def wait_for(self, kind: int | str, count: int = 1) -> list[Any]:
        """Return the commands of a type when there are so many."""
        deadline = time.monotonic() + WAIT

        def look() -> list[Any]:
            return self.of(kind) if isinstance(kind, int) else self.of_the_node(kind)

        while len(found := look()) < count:
            assert time.monotonic() < deadline, f"{kind} did not come"
            time.sleep(0.002)
        return found

    def handle(self, side: Side, command: pb.BaseCommand, payload: bytes) -> None:
        self.seen.append((command, payload))
        kind: int | str = command.type
        if kind == T.EXTENSION:
            of_the_node = node.read(command.extension)
            kind = str(of_the_node.WhichOneof("body"))
            self.seen_of_the_node.append((kind, getattr(of_the_node, kind)))
        reaction = self.on.get(kind)
        if reaction is not None:
            reaction(side, command, payload)

    def respond(self, side: Side, request_id: int, *failures: pb.AppendFailure) -> None:
        """Answer an APPENDS."""
        response = pb.CommandAppendsResponse(request_id=request_id, failures=failures)
        side.send(T.APPENDS_RESPONSE, appendsResponse=response)

    def _connected(self, side: Side, _command: Any, _payload: bytes) -> None:
        ours = self.server_version.startswith(OURS)
        connected = pb.CommandConnected(
            server_version=self.server_version,
            protocol_version=20,
            router_protocol=self.node_protocol if ours else None,
        )
        side.send(T.CONNECTED, connected=connected)

    def _producer(self, side: Side, command: Any, _payload: bytes) -> None:
        asked = command.producer
        side.send(
            T.PRODUCER_SUCCESS,
            producer_success=pb.CommandProducerSuccess(
                request_id=asked.request_id,
                producer_name=asked.producer_name,
                last_sequence_id=self.last_sequence,
            ),
        )

    def _receipt(self, side: Side, command: Any, _payload: bytes) -> None:
        sent = command.send
        self.entry += 1
        side.send(
            T.SEND_RECEIPT,
            send_receipt=pb.CommandSendReceipt(
                producer_id=sent.producer_id,
                sequence_id=sent.sequence_id,
                message_id=pb.MessageIdData(ledgerId=1, entryId=self.entry),
            ),
        )

    def _acknowledged(self, side: Side, command: Any, _payload: bytes) -> None:
        ack = command.ack
        side.send(
            T.ACK_RESPONSE,
            ackResponse=pb.CommandAckResponse(
                consumer_id=ack.consumer_id, request_id=ack.request_id
            ),
        )

    def _success(self, side: Side, request_id: int) -> None:
        side.send(T.SUCCESS, success=pb.CommandSuccess(request_id=request_id))
