"""One Kafka client from its first request to its end: requests in, responses in the same order.

Theory of operation. A request begins when all requests before it on the connection are answered,
as at Apache Kafka, so that a client that sends on without waiting finds what its earlier requests
did. Requests of an API that says so (`Api.overlaps`) begin beside others of the same API, so that
what a producer has in flight shares one sync. Frames that wait are kept here, and nothing is
read meanwhile: that is one read of the transport at most. Responses that are ready before their
turn wait in their request. Requests that store wait while the disk does not keep up.

A client need not say who it is where settings ask for no authentication. Elsewhere a request other
than those of the handshake is served to a client that has authenticated by SASL, or by the
certificate of its TLS connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from struct import Struct
from typing import Any, Final

from router.broker.context import BrokerContext
from router.broker.kafka import audit
from router.broker.kafka.apis import APIS
from router.broker.kafka.client import NO_ANSWER, KafkaClient, KafkaRequest, ServedApi
from router.broker.kafka.context import KafkaContext
from router.broker.kafka.produce import PRODUCE
from router.broker.kafka.sasl import SASL_AUTHENTICATE, BareToken
from router.broker.transport.connection import ClientConnection
from router.broker.transport.session import NO_FAREWELLS
from router.errors import RouterError
from router.metrics import Sample
from router.wire import ProtocolError
from router.wire.kafka.errors import KafkaMessageError
from router.wire.kafka.frames import KafkaFrameReader
from router.wire.kafka.runtime import KafkaMessage

MAX_REQUEST_BYTES: Final = 32 << 20
MAX_OTHER_REQUEST_BYTES: Final = 2 << 20
"""Of a request that carries no batches."""
MAX_ELEMENTS: Final = 50_000
"""Of all arrays of a request: partitions, mostly."""
MAX_IN_FLIGHT_BYTES: Final = 2 << 20
"""Of requests that overlap, beyond the first. They may share one sync, for which all publishers
wait: four times as much is stored no faster and has others wait three times as long."""
MAX_IN_FLIGHT: Final = 200
"""Requests that overlap; each has up to two tasks of the connection's."""
API_VERSIONS_KEY: Final = 18

_HEAD: Final = Struct(">hhi")
_PIPELINE: Final = "pipeline"


async def sessions(broker: BrokerContext) -> Callable[[ClientConnection], KafkaSession]:
    """Return what opens a Kafka session on a connection, once the groups that were stored are back.

    Raises BackendUnavailableError.
    """
    if broker.topics is None:
        raise ValueError("a broker without a log serves no Kafka clients")
    context = KafkaContext(broker, broker.topics)
    await context.coordinator.load()
    served = {api.key: ServedApi(api, context) for api in APIS}
    context.versions = {api.key: api.versions for api in APIS}

    async def collect() -> list[Sample]:
        return [sample for one in served.values() for sample in one.samples()]

    broker.counters.observe(collect)
    return lambda connection: KafkaSession(connection, context, served)


class KafkaSession(KafkaClient):
    """The session of one Kafka client; see router.broker.transport.session.ProtocolSession."""

    keep_alive = b""
    farewells = NO_FAREWELLS

    def __init__(
        self, connection: ClientConnection, context: KafkaContext, served: dict[int, ServedApi]
    ) -> None:
        super().__init__(connection, context)
        self.frames = KafkaFrameReader(MAX_REQUEST_BYTES)
        self._store = context.topics.store
        self._audit = context.broker.audit
        self._served = served
        self._header = context.messages.message("RequestHeader")
        self._waiting: deque[bytes] = deque()
        self._in_flight: deque[KafkaRequest] = deque()
        self._in_flight_bytes = 0
        self._advancing = False

    # What the connection calls.

    def handle(self, frame: bytes) -> None:
        """Serve a request, or keep it until those before it are answered."""
        self._waiting.append(frame)
        self._advance()

    def frames_handled(self) -> None:
        """Hold reading while requests wait."""
        if self._waiting:
            self.connection.hold_reading(_PIPELINE)

    def encode_failure(self, failure: RouterError) -> bytes:
        """Return the answer to an authentication; other clients learn by the connection's end."""
        return b"" if self.refusal is None else self.refusal(failure)

    def request_credentials(self) -> None:
        """Do nothing: no authentication of Kafka is renewable by the broker."""

    def connection_lost(self) -> None:
        """Release all that the client had."""
        self.frames = KafkaFrameReader(
            MAX_REQUEST_BYTES
        )  # what it held need not wait for the collector
        self._waiting.clear()
        self._in_flight.clear()
        self._store.pressure.pop(self._relieved, None)
        calls, self.on_close = self.on_close, {}
        for call in calls:
            call()

    # Requests in their order.

    def _advance(self) -> None:
        if self._advancing:
            return
        self._advancing = True
        try:
            while self._waiting and not self.connection.closed and self._may_begin():
                self._begin(self._waiting.popleft())
        finally:
            self._advancing = False
        if not self._waiting:
            self.connection.release_reading(_PIPELINE)

    def _may_begin(self) -> bool:
        """Return whether the next request may begin; not before the client took its answers."""
        if not self.connection.writable:
            self.connection.when_writable(self._advance_guarded)
            return False
        if self.sends_tokens:
            return not self._in_flight
        if len(self._waiting[0]) < _HEAD.size:
            raise ProtocolError(f"a request of {len(self._waiting[0])} bytes")
        (key,) = _HEAD.unpack_from(self._waiting[0])[:1]
        if key == PRODUCE.key and self._store.congested:
            self._store.pressure[self._relieved] = None
            return False
        if not self._in_flight:
            return True
        last = self._in_flight[-1].served.api
        full = self._in_flight_bytes >= MAX_IN_FLIGHT_BYTES or len(self._in_flight) >= MAX_IN_FLIGHT
        return last.overlaps and last.key == key and not full

    def _relieved(self) -> None:
        self._store.pressure.pop(self._relieved, None)
        self._advance_guarded()

    def _advance_guarded(self) -> None:
        self.connection.guard(self._advance)

    def _begin(self, frame: bytes) -> None:
        request = self._read_token(frame) if self.sends_tokens else self._read(frame)
        self.client_id = request.client_id
        self._in_flight.append(request)
        self._in_flight_bytes += request.size
        identity = self.identity
        required = identity.authorizer is not None and identity.authorizer.authentication_required
        if identity.known or (request.served.api.public and required):
            self._serve(request)
        else:
            identity.authenticate("none", b"", partial(self._serve, request))

    def _read_token(self, frame: bytes) -> KafkaRequest:
        served = self._served[SASL_AUTHENTICATE.key]
        body = served.request()
        body.auth_bytes = frame  # type: ignore[attr-defined]
        return BareToken(served, 0, 0, self.client_id, body, len(frame), self, self._answer)

    def _read(self, frame: bytes) -> KafkaRequest:
        """Return the request of a frame; raise ProtocolError."""
        key, version, correlation_id = _HEAD.unpack_from(frame)
        served = self._served.get(key)
        if served is None:
            raise ProtocolError(f"the API {key} is not served")
        if len(frame) > MAX_OTHER_REQUEST_BYTES and not served.api.overlaps:
            raise ProtocolError(f"a request of {served.api.name} has {len(frame)} bytes")
        body = None
        client_id = ""
        if served.api.serves(version):
            header_version, _ = served.headers(version)
            try:
                header, start = self._header.read_from(
                    frame, header_version, max_elements=MAX_ELEMENTS
                )
                body = served.request.read(frame, version, start, MAX_ELEMENTS)
            except KafkaMessageError as error:
                raise ProtocolError(str(error)) from None
            client_id = header.client_id or ""  # type: ignore[attr-defined]
        elif key == API_VERSIONS_KEY:
            version = 0
        else:
            raise ProtocolError(f"{served.api.name} is not served in version {version}")
        return KafkaRequest(
            served, version, correlation_id, client_id, body, len(frame), self, self._answer
        )

    def _serve(self, request: KafkaRequest) -> None:
        result = request.served.api.handle(request)
        if isinstance(result, KafkaMessage):
            self._answer(request, result)
        elif result is not None:
            self.connection.spawn(self._finish(request, result))

    async def _finish(self, request: KafkaRequest, work: Coroutine[Any, Any, KafkaMessage]) -> None:
        self._answer(request, await work)

    def _answer(self, request: KafkaRequest, response: KafkaMessage | None) -> None:
        """Send a response in its turn; a failure to do so is this connection's alone."""
        if response is not None and request.served.api.key in audit.CHANGES:
            audit.record(self._audit, self.identity, request, response)
        if not self.connection.closed:
            self.connection.guard(partial(self._reply, request, response))

    def _reply(self, request: KafkaRequest, response: KafkaMessage | None) -> None:
        served = request.served
        served.requests += 1
        served.received += request.size
        if response is not None:
            request.reply = request.encode(response)
            served.sent += len(request.reply)
            request.count_error(getattr(response, "error_code", 0))
        else:
            request.reply = NO_ANSWER
        in_flight = self._in_flight
        while in_flight and (reply := in_flight[0].reply) is not None:
            self._in_flight_bytes -= in_flight.popleft().size
            if reply:
                self.connection.write(reply)
        if self._waiting:
            self._advance()
