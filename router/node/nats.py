"""NATS requests that the node's broker serves for principals of HTTP."""

from __future__ import annotations

import time
from typing import Final

from router.errors import BackendTimeoutError, MessageTooLargeError, RouterError, from_code
from router.model import Principal
from router.pulsar_client.connection import Connection
from router.pulsar_client.link import Link
from router.steps import Event
from router.wire import node
from router.wire.nats.message import NatsMessage
from router.wire.node import node_pb2 as npb
from router.wire.pulsar import MAX_MESSAGE_SIZE, encode

MAX_MESSAGE_BYTES: Final = MAX_MESSAGE_SIZE - 64 * 1024
"""Of payload and headers: a request is one frame."""


class NatsCall(Event):
    """A request under way: an event that wakes its caller when the answer is there.

    Other things may wake it too: `is_done` says whether it was the answer.
    """

    __slots__ = ("_connection", "_done", "_error", "_messages", "_request_id")

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._done = False
        self._connection = connection
        self._request_id = connection.next_id()
        self._messages: list[NatsMessage] = []
        self._error: RouterError | None = None

    def is_done(self) -> bool:
        """Return whether the answer is there."""
        return self._done

    def send(self, asked: npb.NatsRequest) -> None:
        """Send the request; raise LostError."""
        command = npb.CommandAdmin(request_id=self._request_id, nats_request=asked)
        frame = encode(node.extension(admin=command))
        self._connection.ask_for(self._request_id, frame, self)

    def result(self) -> list[NatsMessage]:
        """Return the messages of the answer; raise what it says.

        Raises LostError, and BackendTimeoutError if it is not there.
        """
        if not self._done:
            raise BackendTimeoutError
        if self._error is not None:
            raise self._error
        return self._messages

    def cancel(self) -> None:
        """Wait no longer: a request under way ends at the broker as well. Callable twice."""
        if self._connection.drop(self._request_id):
            number = self._connection.next_id()
            command = npb.CommandAdmin(request_id=number, cancel_nats_request=self._request_id)
            self._connection.send(encode(node.extension(admin=command)))

    def put(self, value: npb.CommandAdminResponse) -> None:
        """Take the answer."""
        if value.HasField("code"):
            self._error = from_code(value.code, value.message)
        else:
            self._messages = [
                NatsMessage(one.subject, one.reply, one.headers, one.payload)
                for one in value.nats_messages
            ]
        self._end()

    def fail(self, error: RouterError) -> None:
        """Take a failure instead."""
        self._error = error
        self._end()

    def _end(self) -> None:
        self._done = True
        self.wake()


class NatsRoad:
    """Begins NATS requests at the node's broker; callable from many threads or greenlets."""

    def __init__(self, link: Link, timeout: float) -> None:
        """`timeout`: seconds for a connection to the broker."""
        self._link = link
        self._timeout = timeout

    def begin(
        self,
        principal: Principal,
        message: NatsMessage,
        *,
        administers: bool,
        max_replies: int,
        timeout: float,
    ) -> NatsCall:
        """Send a message for a principal, and collect replies as `NatsRequest` in node.proto says.

        Raises MessageTooLargeError, BackendUnavailableError, BackendTimeoutError.
        """
        if len(message.payload) + len(message.headers) > MAX_MESSAGE_BYTES:
            raise MessageTooLargeError(f"The limit is {MAX_MESSAGE_BYTES} bytes.")
        deadline = time.monotonic() + self._timeout
        call = NatsCall(self._link.connection(deadline))
        asked = npb.NatsRequest(
            message=npb.NatsMessage(
                subject=message.subject,
                reply=message.reply or None,
                headers=message.headers or None,
                payload=message.payload or None,
            ),
            max_replies=max_replies,
            timeout_ms=max(0, round(timeout * 1000)),
            principal=principal.name,
            key=principal.key,
            admin=principal.admin,
            administers=administers,
        )
        call.send(asked)
        return call
