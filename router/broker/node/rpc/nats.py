"""NATS requests of HTTP: each is published for a principal, with an inbox whose messages answer it.

Acknowledgements are requests too, of many at once, and need no inbox.

Theory of operation. Any number of polls may wait here, each for one request, so they are tasks of
their own and no requests of the connection, of which it may have few at once. A client that no
longer waits (its own client left) says so by `cancel_nats_request`; the request then ends in the
broker as well, and a pull of it takes no message that another client could have had. All requests
of a connection end with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
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

    async def request_for(
        self,
        principal: Principal,
        administers: bool,
        message: NatsMessage,
        max_replies: int,
        seconds: float,
    ) -> list[NatsMessage]:
        """Publish a message for a principal; return what came to its inbox, in order.

        It ends with `max_replies` messages, with the first one that has a status other than 100,
        which is the last of the list, or after so many seconds. Without a receiver the answer is
        the status 503. A message that the principal may not publish raises ForbiddenError.
        """
        ...

    async def acknowledge_for(
        self, principal: Principal, subjects: Sequence[str], payload: bytes, seconds: float
    ) -> AckResult:
        """Take acknowledgements of a principal in order, up to the first that fails.

        Those that were taken are durable on return. Raises OutcomeUnknownError after so many
        seconds.
        """
        ...


Respond = Callable[[npb.CommandAdminResponse], None]
Asked = npb.NatsRequest | npb.NatsAcknowledge


class NatsRequests:
    """The NATS requests of one client of the node protocol."""

    def __init__(self, respond: Respond) -> None:
        self._respond = respond
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def begin(self, service: NatsService | None, request_id: int, asked: Asked) -> None:
        """Serve a request; its answer is sent when it is there."""
        if service is None:
            self._refuse(request_id, NotAllowedError("This broker has no streams."))
        elif len(self._tasks) >= MAX_NATS_REQUESTS or request_id in self._tasks:
            self._refuse(request_id, OverloadedError("too many NATS requests at once"))
        else:
            work = self._serve(service, request_id, asked)
            self._tasks[request_id] = asyncio.get_running_loop().create_task(work)

    def cancel(self, request_id: int) -> None:
        """End a request that is no longer waited for; it is not answered."""
        if (task := self._tasks.pop(request_id, None)) is not None:
            task.cancel()

    def close(self) -> None:
        """End all requests: the connection is closed."""
        for request_id in list(self._tasks):
            self.cancel(request_id)

    async def _serve(self, service: NatsService, request_id: int, asked: Asked) -> None:
        response = npb.CommandAdminResponse(request_id=request_id)
        try:
            if isinstance(asked, npb.NatsAcknowledge):
                await _acknowledge(service, asked, response)
            else:
                _fill(response, await _answers(service, asked))
        except RouterError as failure:
            _fail(response, request_id, failure)
        except StoreError as failure:
            _fail(response, request_id, DiskFullError(str(failure)))
        except Exception as failure:  # noqa: BLE001 - the rim of a request: its client gets an answer
            _log.error("nats-request-failed", exc_info=failure)
            _fail(
                response, request_id, RouterError("The request failed; the broker's log says why.")
            )
        if self._tasks.pop(request_id, None) is not None:
            self._respond(response)

    def _refuse(self, request_id: int, failure: RouterError) -> None:
        response = npb.CommandAdminResponse()
        _fail(response, request_id, failure)
        self._respond(response)


async def _answers(service: NatsService, asked: npb.NatsRequest) -> list[NatsMessage]:
    principal = Principal(asked.principal, asked.key, asked.admin)
    found = asked.message
    message = NatsMessage(found.subject, found.reply, found.headers, found.payload)
    most = max(1, min(asked.max_replies, MAX_REPLIES))
    timeout = min(asked.timeout_ms / 1000, MAX_TIMEOUT_SECONDS)
    return await service.request_for(principal, asked.administers, message, most, timeout)


async def _acknowledge(
    service: NatsService, asked: npb.NatsAcknowledge, response: npb.CommandAdminResponse
) -> None:
    if len(asked.subjects) > MAX_ACKNOWLEDGEMENTS:
        raise BadRequestError(f"The limit is {MAX_ACKNOWLEDGEMENTS} acknowledgements.")
    principal = Principal(asked.principal, asked.key, asked.admin)
    timeout = min(asked.timeout_ms / 1000, MAX_TIMEOUT_SECONDS)
    result = await service.acknowledge_for(principal, asked.subjects, asked.payload, timeout)
    response.acknowledged = result.done
    if (failure := result.failure) is not None:
        response.code, response.message = failure.code, str(failure)


def _fill(response: npb.CommandAdminResponse, messages: list[NatsMessage]) -> None:
    response.nats_messages.extend(map(_to_wire, messages))
    if response.ByteSize() > MAX_MESSAGE_SIZE:
        raise BadRequestError("The answer is larger than a frame.")


def _to_wire(message: NatsMessage) -> npb.NatsMessage:
    return npb.NatsMessage(
        subject=message.subject,
        reply=message.reply or None,
        headers=message.headers or None,
        payload=message.payload or None,
    )


def _fail(response: npb.CommandAdminResponse, request_id: int, failure: RouterError) -> None:
    response.Clear()
    response.request_id = request_id
    response.code, response.message = failure.code, str(failure)
