"""A client that sends what it is told, right or wrong, and shows what comes back."""

from __future__ import annotations

import socket
import time
from collections import deque
from typing import Any
from urllib.parse import urlsplit

from router.model import Message
from router.wire import node
from router.wire.pulsar import Frame, PulsarFrameReader, command, encode, pack
from router.wire.pulsar import pulsar_pb2 as pb

PATIENCE = 30.0
NODE_COMMANDS = {field.name.upper(): field for field in node.NodeCommand.DESCRIPTOR.fields}


def node_frame(kind: str, **fields: Any) -> bytes:
    """The frame of a command of the node protocol, such as ADMIN."""
    return node.frame(**{kind.lower(): fields})


class RawClient:
    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        self._socket = socket.create_connection((where.hostname, where.port), PATIENCE)
        self._reader = PulsarFrameReader()
        self._frames: deque[Frame] = deque()
        self._ids = 0

    def shake_hands(self, version: int = 20, **fields: Any) -> pb.CommandConnected:
        self.send("CONNECT", client_version="raw", protocol_version=version, **fields)
        frame = self.read()
        assert frame is not None
        return frame.command.connected

    def send(self, kind: str, payload: bytes = b"", **fields: Any) -> None:
        if kind in NODE_COMMANDS:
            self.send_bytes(node_frame(kind, **fields))
            return
        value: Any = pb.BaseCommand.Type.Value(kind)
        self.send_bytes(encode(command(value, **fields), payload))

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def read(self, patience: float = PATIENCE) -> Frame | None:
        """The next frame that is no ping; None: the broker closed the connection."""
        until = time.monotonic() + patience
        while True:
            while self._frames:
                frame = self._frames.popleft()
                if frame.command.type != pb.BaseCommand.PING:
                    return frame
                self.send("PONG")
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            try:
                data = self._socket.recv(1 << 16)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._frames.extend(self._reader.receive(data))

    def expect(self, kind: str, patience: float = PATIENCE) -> Any:
        """The body of the next frame, which must be of this kind."""
        frame = self.read(patience)
        assert frame is not None, f"closed instead of {kind}"
        found: Any = frame.command
        if kind in NODE_COMMANDS:
            found = node.read(found.extension)
            assert found.WhichOneof("body") == kind.lower(), found
        else:
            assert pb.BaseCommand.Type.Name(found.type) == kind, found
        (body,) = [value for field, value in found.ListFields() if field.name != "type"]
        return body

    def ask(self, kind: str, answer: str, **fields: Any) -> Any:
        self._ids += 1
        self.send(kind, request_id=self._ids, **fields)
        body = self.expect(answer)
        assert body.request_id == self._ids
        return body

    def silent(self, patience: float = 0.2) -> bool:
        """Whether nothing but pings, which are answered, comes for a while."""
        try:
            frame = self.read(patience)
        except TimeoutError:
            return True
        assert frame is None, frame
        return False

    def expect_ping(self) -> None:
        """Receive a ping and do not answer it."""
        self._socket.settimeout(PATIENCE)
        (frame,) = self._reader.receive(self._socket.recv(1 << 16))
        assert frame.command.type == pb.BaseCommand.PING

    def closed_while_silent(self) -> bool:
        """Whether the broker closes the connection when nothing is sent to it."""
        self._socket.settimeout(PATIENCE)
        try:
            return self._socket.recv(1 << 16) == b""
        except ConnectionResetError:
            return True

    def closed(self) -> bool:
        """Whether the broker closes the connection without another word."""
        return self.read() is None

    def producer(
        self, topic: str, producer_id: int = 0, **fields: Any
    ) -> pb.CommandProducerSuccess:
        opened: pb.CommandProducerSuccess = self.ask(
            "PRODUCER", "PRODUCER_SUCCESS", topic=topic, producer_id=producer_id, **fields
        )
        return opened

    def subscribe(self, topic: str, consumer_id: int = 0, **fields: Any) -> None:
        given = {
            "subscription": "s",
            "subType": pb.CommandSubscribe.Exclusive,
            "initialPosition": pb.CommandSubscribe.Earliest,
        }
        given.update(fields)
        self.ask("SUBSCRIBE", "SUCCESS", topic=topic, consumer_id=consumer_id, **given)

    def publish(
        self, *values: bytes, sequence_id: int = 0, producer_id: int = 0
    ) -> pb.CommandSendReceipt:
        """Send one entry, a batch where there are several values, and wait for its receipt."""
        self.send_entry(*values, sequence_id=sequence_id, producer_id=producer_id)
        receipt: pb.CommandSendReceipt = self.expect("SEND_RECEIPT")
        assert receipt.sequence_id == sequence_id
        return receipt

    def send_entry(self, *values: bytes, sequence_id: int = 0, producer_id: int = 0) -> None:
        payload = pack([Message(value) for value in values], "raw", sequence_id, 1_000)
        self.send(
            "SEND",
            payload,
            producer_id=producer_id,
            sequence_id=sequence_id,
            num_messages=len(values),
        )

    def close(self) -> None:
        self._socket.close()
