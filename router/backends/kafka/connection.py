"""One connection to one broker, which carries one request at a time.

Theory of operation. Who has the connection writes a request and reads its answer in its own thread
or greenlet, so that there is no reader, no correlation of answers beyond a check, and a deadline is
the socket's own timeout. Whoever needs two answers at once takes two connections (`cluster`). The
alternative, pipelining many callers' requests over one connection, saves sockets; but a broker
handles the requests of a connection one after the other, so that a fetch that waits for news would
hold up everything behind it.

Versions are negotiated with the oldest form of ApiVersions, which every broker answers.
"""

from __future__ import annotations

import io
import math
import socket
import ssl
import time
from contextlib import suppress
from typing import Any, Final

from kafka.errors import IncompatibleBrokerVersion
from kafka.net.sasl import get_sasl_mechanism
from kafka.protocol.broker_version_data import BrokerVersionData
from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from router.backends.kafka.address import Access
from router.backends.kafka.failures import CodeError, LateError, LostError, check
from router.quoting import said

SETUP_SECONDS: Final = 5.0
MAX_FRAME: Final = 64 * 1024 * 1024
_HEAD: Final = 64  # enough for the header of any response
# A broker ends a connection when its credentials do; it is given up a little earlier.
_LIFETIME: Final = 0.9
_STALE: Final = 1.0


class Connection:
    """A socket to a broker with versions agreed upon and credentials shown."""

    def __init__(self, sock: socket.socket, name: str, client_id: str) -> None:
        self.name = name
        self._socket = sock
        self._client_id = client_id
        self._versions: BrokerVersionData | None = None
        self._last = 0
        self._until = math.inf
        self._aborted = False
        self._used = time.monotonic()

    @classmethod
    def open(cls, host: str, port: int, access: Access, deadline: float) -> Connection:
        """Connect, greet and show credentials; raise LostError, LateError."""
        deadline = min(deadline, time.monotonic() + SETUP_SECONDS)
        name = f"{host}:{port}"
        try:
            sock = socket.create_connection((host, port), _left(deadline, name, sent=False))
        except TimeoutError as error:
            raise LateError(f"{name} does not take connections", sent=False) from error
        except OSError as error:
            raise LostError(f"{name}: {said(error)}") from error
        connection = cls(sock, name, access.client_id)
        try:
            connection._begin(host, access, deadline)
        except LateError as error:
            connection.close()
            raise LateError(str(error), sent=False) from error
        except BaseException as error:
            connection.close()
            if isinstance(error, (OSError, CodeError, ValueError, KeyError, LostError)):
                raise LostError(f"{name}: {said(error)}") from error
            raise
        return connection

    def _begin(self, host: str, access: Access, deadline: float) -> None:
        if self._socket.getsockname() == self._socket.getpeername():
            raise LostError("nobody listens there")  # a port of our own, met by chance
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if access.tls is not None:
            self._socket.settimeout(_left(deadline, self.name, sent=False))
            self._socket = access.tls.wrap_socket(self._socket, server_hostname=host)
        request = ApiVersionsRequest()
        request.API_VERSION = 0
        answer = self.ask(request, deadline)
        check(answer.error_code, "versions")
        self._versions = BrokerVersionData(
            api_versions={
                key.api_key: (key.min_version, key.max_version) for key in answer.api_keys
            }
        )
        if access.mechanism != "none":
            self._authenticate(host, access, deadline)

    def _authenticate(self, host: str, access: Access, deadline: float) -> None:
        handshake = SaslHandshakeRequest(mechanism=access.mechanism, min_version=1, max_version=1)
        answer = self.ask(handshake, deadline)
        check(answer.error_code, f"SASL {access.mechanism}")
        mechanism = get_sasl_mechanism(access.mechanism)(
            host=host,
            sasl_mechanism=access.mechanism,
            sasl_plain_username=access.username,
            sasl_plain_password=access.password,
        )
        lifetime = 0
        while not mechanism.is_done():
            request = SaslAuthenticateRequest(mechanism.auth_bytes(), max_version=2)
            answer = self.ask(request, deadline)
            check(answer.error_code, "credentials", answer.error_message)
            mechanism.receive(answer.auth_bytes)
            lifetime = answer.session_lifetime_ms or 0
        if lifetime:
            self._until = time.monotonic() + lifetime / 1000 * _LIFETIME

    def ask(self, request: Any, deadline: float) -> Any:
        """Send a request of kafka-python's and return its answer.

        Raises LostError, LateError; the connection is of no use after either.
        """
        if request.API_VERSION is None:
            request.API_VERSION = self._version(request)
        self._last = (self._last + 1) & 0x7FFFFFFF
        request.with_header(correlation_id=self._last, client_id=self._client_id)
        frame = request.encode(framed=True, header=True)
        sent = False
        try:
            self._socket.settimeout(_left(deadline, self.name, sent=False))
            sent = True
            self._socket.sendall(frame)
            size = int.from_bytes(self._read(4, deadline))
            if not 4 <= size <= MAX_FRAME:
                raise LostError(f"{self.name} sent a frame of {size} bytes", sent=True)
            body = self._read(size, deadline)
        except TimeoutError as error:
            raise LateError(f"no answer from {self.name}", sent=sent) from error
        except OSError as error:
            raise LostError(f"{self.name}: {said(error)}", sent=sent) from error
        self._used = time.monotonic()
        return self._decoded(request, body)

    def _version(self, request: Any) -> int:
        assert self._versions is not None
        try:
            return int(self._versions.api_version(request))
        except IncompatibleBrokerVersion as error:
            raise LostError(f"{self.name} is too old or too new: {said(error)}") from error

    def _read(self, size: int, deadline: float) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            self._socket.settimeout(_left(deadline, self.name, sent=True))
            count = self._socket.recv_into(view)
            if not count:
                raise LostError(f"{self.name} closed the connection", sent=True)
            view = view[count:]
        return data

    def _decoded(self, request: Any, body: bytearray) -> Any:
        kind = request.header.get_response_class()
        head = io.BytesIO(bytes(body[:_HEAD]))
        header = kind.parse_header(head)
        if header.correlation_id != self._last:
            raise LostError(f"{self.name} answered another request", sent=True)
        try:
            return kind.decode(memoryview(body)[head.tell() :])
        except (ValueError, IndexError, KeyError, TypeError) as error:
            raise LostError(
                f"{self.name} sent what is no answer: {said(error)}", sent=True
            ) from error

    def usable(self) -> bool:
        """Return whether the next request may go over this connection; never waits."""
        now = time.monotonic()
        if self._aborted or now >= self._until:
            return False
        if now - self._used < _STALE:
            return True
        # After a pause the broker may have closed it: an end, or anything else, would be waiting.
        try:
            self._socket.settimeout(0)
            self._socket.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False
        return False

    def abort(self) -> None:
        """Make whoever waits for an answer raise LostError now; callable from any thread."""
        self._aborted = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection; callable twice."""
        with suppress(OSError):
            self._socket.close()


def _left(deadline: float, name: str, *, sent: bool) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise LateError(f"no answer from {name}", sent=sent)
    return left
