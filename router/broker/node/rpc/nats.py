"""NATS requests of HTTP: each is published for a principal, with an inbox whose messages answer it.

Acknowledgements are requests too, of many at once, and need no inbox.

Theory of operation. Any number of polls may wait here, each for one request, so they are no
requests of the connection, of which it may have few at once, and no tasks: a request that can be
answered at once is answered within the call. A client that no
longer waits (its own client left) says so by `cancel_nats_request`; the request then ends in the
broker as well, and a pull of it takes no message that another client could have had. All requests
of a connection end with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

import structlog

from router.broker.storage import StoreError
from router.errors import (
    BadRequestError,
    DiskFullError,
    NotAllowedError,
    OverloadedError,
    RouterError,
)
from router.model import Principal
from router.wire.nats.message import AckResult, NatsMessage
from router.wire.node import node_pb2 as npb
from router.wire.pulsar import MAX_MESSAGE_SIZE

MAX_NATS_REQUESTS: Final = 20_000
"""Of one worker at once; it has at most half as many connections."""
MAX_REPLIES: Final = 10_000
MAX_ACKNOWLEDGEMENTS: Final = 1_000
MAX_TIMEOUT_SECONDS: Final = 3_600.0

_log = structlog.get_logger(__name__)


class NatsService(Protocol):
    """What answers the requests: the part of the broker that has the streams."""

    def begin_request_for(
        self,
        principal: Principal,
        administers: bool,
        message: NatsMessage,
        max_replies: int,
        seconds: float,
        done: Callable[[list[NatsMessage]], object],
    ) -> Callable[[], None]:
        """Publish a message for a principal; `done` gets what came to its inbox, in order.

        It ends with `max_replies` messages, with the first one that has a status other than 100,
        which is the last of the list, or after so many seconds. Without a receiver the answer is
        the status 503. A message that the principal may not publish raises ForbiddenError. `done`
        is called once, maybe before this returns. What is returned ends the wait without it.
        """
        ...

    async def acknowledge_for(
        self, principal: Principal, subjects: Sequence[str], payload: bytes
    ) -> AckResult:
        """Take acknowledgements of a principal in order, up to the first that fails.

        Those that were taken are durable on return.
        """
        ...


Respond = Callable[[npb.CommandAdminResponse], None]
NatsCommand = npb.NatsRequest | npb.NatsAcknowledge


class NatsRequests:
    """The NATS requests of one client of the node protocol."""

    def __init__(self, respond: Respond) -> None:
        self._respond = respond
        # What ends each request that is under way.
        self._ends: dict[int, Callable[[], object]] = {}

    def begin(self, service: NatsService | None, request_id: int, command: NatsCommand) -> None:
        """Serve a request; its answer is sent when it is there."""
        if service is None:
            self._refuse(request_id, NotAllowedError("This broker has no streams."))
        elif len(self._ends) >= MAX_NATS_REQUESTS or request_id in self._ends:
            self._refuse(request_id, OverloadedError("too many NATS requests at once"))
        elif not isinstance(command, npb.NatsAcknowledge):
            self._publish(service, request_id, command)
        elif len(command.subjects) > MAX_ACKNOWLEDGEMENTS:
            failure = BadRequestError(f"The limit is {MAX_ACKNOWLEDGEMENTS} acknowledgements.")
            self._refuse(request_id, failure)
        else:
            work = self._acknowledge(service, request_id, command)
            self._ends[request_id] = asyncio.get_running_loop().create_task(work).cancel

    def cancel(self, request_id: int) -> None:
        """End a request that is no longer waited for; it is not answered."""
        if (end := self._ends.pop(request_id, None)) is not None:
            end()

    def close(self) -> None:
        """End all requests: the connection is closed."""
        for request_id in list(self._ends):
            self.cancel(request_id)

    def _publish(self, service: NatsService, request_id: int, command: npb.NatsRequest) -> None:
        found = command.message
        self._ends[request_id] = _nothing
        try:
            end = service.begin_request_for(
                Principal(command.principal, command.key, command.admin),
                command.administers,
                NatsMessage(found.subject, found.reply, found.headers, found.payload),
                max(1, min(command.max_replies, MAX_REPLIES)),
                min(command.timeout_ms / 1000, MAX_TIMEOUT_SECONDS),
                partial(self._replied, request_id),
            )
        except Exception as failure:  # noqa: BLE001 - the rim of a request: its client gets an answer
            self._failed(request_id, failure)
            return
        if request_id in self._ends:
            self._ends[request_id] = end

    def _replied(self, request_id: int, messages: list[NatsMessage]) -> None:
        response = npb.CommandAdminResponse(request_id=request_id)
        response.nats_messages.extend(map(_to_wire, messages))
        if response.ByteSize() > MAX_MESSAGE_SIZE:
            self._failed(request_id, BadRequestError("The answer is larger than a frame."))
        elif self._ends.pop(request_id, None) is not None:
            self._respond(response)

    async def _acknowledge(
        self, service: NatsService, request_id: int, command: npb.NatsAcknowledge
    ) -> None:
        try:
            principal = Principal(command.principal, command.key, command.admin)
            done, failure = await service.acknowledge_for(
                principal, command.subjects, command.payload
            )
        except Exception as error:  # noqa: BLE001 - the rim of a request: its client gets an answer
            self._failed(request_id, error)
            return
        response = npb.CommandAdminResponse(request_id=request_id, acknowledged=done)
        if failure is not None:
            response.code, response.message = failure.code, str(failure)
        if self._ends.pop(request_id, None) is not None:
            self._respond(response)

    def _failed(self, request_id: int, failure: Exception) -> None:
        if self._ends.pop(request_id, None) is not None:
            self._refuse(request_id, _as_router_error(failure))

    def _refuse(self, request_id: int, failure: RouterError) -> None:
        self._respond(
            npb.CommandAdminResponse(request_id=request_id, code=failure.code, message=str(failure))
        )


def _as_router_error(failure: Exception) -> RouterError:
    if isinstance(failure, RouterError):
        return failure
    if isinstance(failure, StoreError):
        return DiskFullError(str(failure))
    _log.error("nats-request-failed", exc_info=failure)
    return RouterError("The request failed; the broker's log says why.")


def _nothing() -> None:
    """Do nothing: the request has not been begun."""


def _to_wire(message: NatsMessage) -> npb.NatsMessage:
    return npb.NatsMessage(
        subject=message.subject,
        reply=message.reply or None,
        headers=message.headers or None,
        payload=message.payload or None,
    )
