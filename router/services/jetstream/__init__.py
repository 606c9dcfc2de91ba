"""JetStream for HTTP: a request is a NATS message of a principal, its answer what comes back.

The broker of the node has the streams (`BrokerStreams`), and answers as it answers NATS clients. On
a store that is another server's, `topics.TopicStreams` serves what a store of topics can do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from router.clocks.steps import Steps
from router.errors import OutcomeUnknownError
from router.model import Principal
from router.node.nats import NatsCall, NatsRoad
from router.pulsar_client.connection import PulsarConnectionLostError
from router.services.consume import ClientGoneError, ConnectedClient, WaitingClient
from router.wire.nats.message import AckResult, NatsMessage

API_PREFIX: Final = "$JS.API."
ACK_PREFIX: Final = "$JS.ACK."


class JetStreamRequest(NamedTuple):
    """A message, who sends it, and for how many replies and seconds it waits.

    The first reply with a status other than 100 ends the wait, too. `long_poll`: it waits for
    messages that may not come, so it ends when the worker stops. `reads`: it changes nothing, so it
    is made again if the broker went away.
    """

    principal: Principal
    administers: bool
    message: NatsMessage
    max_replies: int = 1
    seconds: float = 5.0
    long_poll: bool = False
    reads: bool = False


class AckRequest(NamedTuple):
    """Acknowledgements that all say the same: their subjects in order, and whose they are.

    `seconds`: how long the answer is waited for.
    """

    principal: Principal
    subjects: Sequence[str]
    payload: bytes
    seconds: float = 5.0


class WatchedClient(WaitingClient, Protocol):
    """A client that is watched until `close`."""

    def close(self) -> None:
        """Watch no longer."""
        ...


Watch = Callable[[Callable[[], None]], WatchedClient]
"""Watches a request's client, and calls what it is given if that may have left."""


class _Unwatched(ConnectedClient):
    """A client that stays."""

    def close(self) -> None:
        """Do nothing."""


def unwatched(_wake: Callable[[], None]) -> WatchedClient:
    """Return a client that stays connected."""
    return _Unwatched()


class JetStream(Protocol):
    """What answers; requests may be made from many threads or greenlets."""

    def request(
        self, request: JetStreamRequest, watch: Watch = unwatched
    ) -> Steps[list[NatsMessage]]:
        """Return the replies, in order; an empty list if none came in time.

        Without a receiver the reply is the status 503. Raises ForbiddenError, what the store
        raises, OutcomeUnknownError where the broker went away, and ClientGoneError if the client
        leaves meanwhile.
        """
        ...

    def acknowledge(self, request: AckRequest) -> Steps[AckResult]:
        """Take acknowledgements in order, up to the first that fails; those taken are durable.

        Raises what the store raises, and OutcomeUnknownError where no answer came in time, or the
        broker went away.
        """
        ...

    def stop(self) -> None:
        """End long polls, now and later, without waiting."""
        ...


class BrokerStreams:
    """The streams of the node's broker; `timeout` bounds its answer beyond the wait itself."""

    def __init__(self, road: NatsRoad, timeout: float) -> None:
        self._road = road
        self._timeout = timeout
        self._long_polls: set[NatsCall] = set()
        self._stopping = False

    def request(
        self, request: JetStreamRequest, watch: Watch = unwatched
    ) -> Steps[list[NatsMessage]]:
        """Return the replies; see the protocol."""
        if request.long_poll and self._stopping:
            return []
        until = time.monotonic() + request.seconds + self._timeout
        while True:
            try:
                return (yield from self._once(request, watch, until))
            except PulsarConnectionLostError as error:
                if request.reads and time.monotonic() < until:
                    continue
                if request.reads or request.long_poll:
                    raise
                raise OutcomeUnknownError.because(error) from error

    def _once(
        self, request: JetStreamRequest, watch: Watch, until: float
    ) -> Steps[list[NatsMessage]]:
        call = self._road.begin(
            request.principal,
            request.message,
            administers=request.administers,
            max_replies=request.max_replies,
            timeout=request.seconds,
        )
        client = watch(call.wake)
        if request.long_poll:
            self._long_polls.add(call)
        try:
            yield from self._wait(call, client, until)
            if not (call.is_done() or request.reads or request.long_poll):
                raise OutcomeUnknownError.because("The broker did not answer in time.")
            return call.messages() if call.is_done() or not request.long_poll else []
        finally:
            self._long_polls.discard(call)
            client.close()
            call.cancel()

    def acknowledge(self, request: AckRequest) -> Steps[AckResult]:
        """Take acknowledgements; see the protocol."""
        until = time.monotonic() + request.seconds
        try:
            call = self._road.acknowledge(request.principal, request.subjects, request.payload)
            try:
                yield from self._wait(call, _Unwatched(), until)
                if not call.is_done():
                    raise OutcomeUnknownError.because("The broker did not answer in time.")
                return call.acknowledged()
            finally:
                call.cancel()
        except PulsarConnectionLostError as error:
            raise OutcomeUnknownError.because(error) from error

    def stop(self) -> None:
        """End long polls; see the protocol."""
        self._stopping = True
        for call in list(self._long_polls):
            call.wake()

    def _wait(self, call: NatsCall, client: WaitingClient, deadline: float) -> Steps[None]:
        while not call.is_done():
            left = deadline - time.monotonic()
            if left <= 0 or (self._stopping and call in self._long_polls):
                return
            yield call, min(left, client.check_seconds())
            if not call.is_done() and client.is_closed():
                raise ClientGoneError
