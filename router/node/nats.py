"""NATS requests that the node's broker serves for principals of HTTP."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from router.clocks.steps import Event
from router.errors import BackendTimeoutError, MessageTooLargeError, RouterError, from_code
from router.model import Principal
from router.pulsar_client.connection import PulsarConnection
from router.pulsar_client.link import PulsarLink
from router.wire import node
from router.wire.nats.message import AckResult, NatsMessage
from router.wire.node import node_pb2 as npb
from router.wire.pulsar import MAX_MESSAGE_SIZE, encode

MAX_MESSAGE_BYTES: Final = MAX_MESSAGE_SIZE - 64 * 1024
"""Of payload and headers: a request is one frame."""


class NatsCall(Event):
    """A request under way: an event that wakes its caller when the answer is there.

    Other things may wake it too: `is_done` says whether it was the answer.
    """

    __slots__ = ("_answer", "_connection", "_error", "_request_id")

    def __init__(self, connection: PulsarConnection) -> None:
        super().__init__()
        self._connection = connection
        self._request_id = connection.next_id()
        self._answer: npb.CommandAdminResponse | None = None
        self._error: RouterError | None = None

    def is_done(self) -> bool:
        """Return whether the answer is there, or a failure instead."""
        return self._answer is not None or self._error is not None

    def send(
        self,
        *,
        nats_request: npb.NatsRequest | None = None,
        nats_acknowledge: npb.NatsAcknowledge | None = None,
    ) -> None:
        """Send the request, one of both; raise LostError."""
        command = npb.CommandAdmin(
            request_id=self._request_id,
            nats_request=nats_request,
            nats_acknowledge=nats_acknowledge,
        )
        frame = encode(node.extension(admin=command))
        self._connection.ask_for(self._request_id, frame, self)

    def messages(self) -> list[NatsMessage]:
        """Return the messages of the answer; raise what it says.

        Raises LostError, and BackendTimeoutError if it is not there.
        """
        answer = self._received()
        if (failure := _failure(answer)) is not None:
            raise failure
        return [
            NatsMessage(one.subject, one.reply, one.headers, one.payload)
            for one in answer.nats_messages
        ]

    def acknowledged(self) -> AckResult:
        """Return what the answer says of acknowledgements; raise as `messages` does."""
        answer = self._received()
        return AckResult(answer.acknowledged, _failure(answer))

    def cancel(self) -> None:
        """Wait no longer: a request under way ends at the broker as well. Callable twice."""
        if self._connection.drop(self._request_id):
            number = self._connection.next_id()
            command = npb.CommandAdmin(request_id=number, cancel_nats_request=self._request_id)
            self._connection.send(encode(node.extension(admin=command)))

    def put(self, value: npb.CommandAdminResponse) -> None:
        """Take the answer."""
        self._answer = value
        self.wake()

    def fail(self, error: RouterError) -> None:
        """Take a failure instead."""
        self._error = error
        self.wake()

    def _received(self) -> npb.CommandAdminResponse:
        if self._error is not None:
            raise self._error
        if self._answer is None:
            raise BackendTimeoutError
        return self._answer


def _failure(answer: npb.CommandAdminResponse) -> RouterError | None:
    return from_code(answer.code, answer.message) if answer.HasField("code") else None


class NatsRoad:
    """Begins NATS requests at the node's broker; callable from many threads or greenlets."""

    def __init__(self, link: PulsarLink, timeout: float) -> None:
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
        command = npb.NatsRequest(
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
        call = self._call()
        call.send(nats_request=command)
        return call

    def acknowledge(
        self, principal: Principal, subjects: Sequence[str], payload: bytes
    ) -> NatsCall:
        """Send acknowledgements that all say the same, as `NatsAcknowledge` in node.proto says.

        Raises BackendUnavailableError, BackendTimeoutError.
        """
        command = npb.NatsAcknowledge(
            subjects=subjects,
            payload=payload,
            principal=principal.name,
            key=principal.key,
            admin=principal.admin,
        )
        call = self._call()
        call.send(nats_acknowledge=command)
        return call

    def _call(self) -> NatsCall:
        return NatsCall(self._link.connection(time.monotonic() + self._timeout))
