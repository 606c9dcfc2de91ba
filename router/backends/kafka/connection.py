"""One connection to one broker, which carries one request at a time.

Theory of operation. The caller writes a request and reads its answer in its own thread or greenlet,
so that there is no reader, no correlation of answers beyond a check, and a deadline is the socket's
own timeout. A caller that needs two answers at once takes two connections (`cluster`). The
alternative, pipelining many callers' requests over one connection, saves sockets; but a broker
handles the requests of a connection one after the other, so that a fetch that waits for messages
would hold up everything behind it.

Versions are negotiated with the oldest form of ApiVersions, which every broker answers.
"""

from __future__ import annotations

import math
import socket
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from router.backends.kafka import apis
from router.backends.kafka.failures import (
    CodeError,
    KafkaConnectionLostError,
    KafkaCredentialsError,
    LateError,
    check,
)
from router.backends.kafka.options import KafkaConnectionOptions
from router.backends.kafka.sasl import exchange
from router.errors import TooManyRequestsError
from router.errors.quoting import failure_text
from router.wire.kafka.error_codes import ErrorCode
from router.wire.kafka.errors import KafkaMessageError

SETUP_SECONDS: Final = 5.0
MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
MAX_READ_BYTES: Final = 1024 * 1024
# A broker ends a connection when its credentials do; it is given up a little earlier.
_LIFETIME: Final = 0.9
_STALE: Final = 1.0
# So begins what a TLS port answers to other bytes.
_TLS_ALERT: Final = b"\x15\x03"
# So begins the refusal of a broker of ours that checks no more passwords for the moment.
_THROTTLED: Final = f"{TooManyRequestsError.code}: "


class KafkaConnection:
    """A socket to a broker with versions agreed upon and credentials shown."""

    def __init__(self, sock: socket.socket, name: str, client_id: str) -> None:
        self.name = name
        self._socket = sock
        self._client_id = client_id
        first = apis.API_VERSIONS
        self._versions: dict[int, tuple[int, int]] = {first.key: first.versions}
        self._last = 0
        self._until = math.inf
        self._aborted = False
        self._used = time.monotonic()

    @classmethod
    def open(
        cls, host: str, port: int, access: KafkaConnectionOptions, deadline: float
    ) -> KafkaConnection:
        """Connect, greet and show credentials.

        Raises KafkaConnectionLostError, KafkaCredentialsError, LateError.
        """
        deadline = min(deadline, time.monotonic() + SETUP_SECONDS)
        name = f"{host}:{port}"
        try:
            sock = socket.create_connection((host, port), _left(deadline, name, sent=False))
        except TimeoutError as error:
            raise LateError(f"{name} does not take connections", sent=False) from error
        except OSError as error:
            raise KafkaConnectionLostError(f"{name}: {failure_text(error)}") from error
        connection = cls(sock, name, access.client_id)
        try:
            connection._begin(host, access, deadline)
        except LateError as error:
            connection.close()
            raise LateError(str(error), sent=False) from error
        except BaseException as error:
            connection.close()
            if isinstance(
                error, (OSError, CodeError, ValueError, KeyError, KafkaConnectionLostError)
            ):
                refused = getattr(error, "code", None) == ErrorCode.SASL_AUTHENTICATION_FAILED
                kind = KafkaCredentialsError if refused else KafkaConnectionLostError
                raise kind(f"{name}: {failure_text(error)}") from error
            raise
        return connection

    def _begin(self, host: str, access: KafkaConnectionOptions, deadline: float) -> None:
        if self._socket.getsockname() == self._socket.getpeername():
            raise KafkaConnectionLostError(
                "nothing listens there"
            )  # TCP connected the port to itself
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if access.tls is not None:
            self._socket.settimeout(_left(deadline, self.name, sent=False))
            self._socket = access.tls.wrap_socket(self._socket, server_hostname=host)
        answer = self.ask(apis.API_VERSIONS(), deadline)
        check(answer.error_code, "versions")
        self._versions = {
            one.api_key: (one.min_version, one.max_version) for one in answer.api_keys
        }
        if access.mechanism != "none":
            self._authenticate(access, deadline)

    def _authenticate(self, access: KafkaConnectionOptions, deadline: float) -> None:
        answer = self.ask(apis.SASL_HANDSHAKE(mechanism=access.mechanism), deadline)
        check(answer.error_code, f"SASL {access.mechanism}")
        steps = exchange(access.mechanism, access.username, access.password)
        shown, lifetime = next(steps), 0
        with suppress(StopIteration):
            while True:
                answer = self.ask(apis.SASL_AUTHENTICATE(auth_bytes=shown), deadline)
                if (answer.error_message or "").startswith(_THROTTLED):
                    raise KafkaConnectionLostError(f"credentials: {answer.error_message}")
                check(answer.error_code, "credentials", answer.error_message)
                lifetime = answer.session_lifetime_ms
                shown = steps.send(answer.auth_bytes)
        if lifetime:
            self._until = time.monotonic() + lifetime / 1000 * _LIFETIME

    def ask(self, request: apis.ApiRequest, deadline: float) -> Any:
        """Send a request and return its answer.

        Raises LostError, LateError; the connection is of no use after either.
        """
        return self.ask_all((request,), deadline)[0]

    def ask_all(self, requests: Sequence[apis.ApiRequest], deadline: float) -> list[Any]:
        """Send requests at once and return their answers, in their order; raise as `ask` does.

        Together they are smaller than the buffers of a socket: the broker reads on as it answers.
        """
        sent = False
        try:
            frames = []
            for place, request in enumerate(requests, 1):
                number = (self._last + place) & 0x7FFFFFFF
                version = self._version(request)
                frames.append(request.api.frame(request, version, number, self._client_id))
            self._socket.settimeout(_left(deadline, self.name, sent=False))
            sent = True
            self._socket.sendall(frames[0] if len(frames) == 1 else b"".join(frames))
            return [self._answer(request, deadline) for request in requests]
        except TimeoutError as error:
            raise LateError(f"no answer from {self.name}", sent=sent) from error
        except (OSError, KafkaMessageError) as error:
            raise KafkaConnectionLostError(
                f"{self.name}: {failure_text(error)}", sent=sent
            ) from error

    def _answer(self, request: apis.ApiRequest, deadline: float) -> Any:
        head = self._read(4, deadline)
        if head[:2] == _TLS_ALERT:
            raise KafkaConnectionLostError(f"{self.name} expects TLS: set kafka.tls", sent=True)
        size = int.from_bytes(head)
        if not 4 <= size <= MAX_FRAME_BYTES:
            raise KafkaConnectionLostError(f"{self.name} sent a frame of {size} bytes", sent=True)
        found = request.api.answer(self._read(size, deadline), self._version(request))
        correlation_id, answer = found
        self._last = (self._last + 1) & 0x7FFFFFFF
        if correlation_id != self._last:
            raise KafkaConnectionLostError(f"{self.name} answered another request", sent=True)
        self._used = time.monotonic()
        return answer

    def _version(self, request: apis.ApiRequest) -> int:
        lowest, highest = request.api.versions
        low, high = self._versions.get(request.api.key, (0, -1))
        version = min(highest, high)
        if version < max(lowest, low):
            raise KafkaConnectionLostError(
                f"{self.name} is too old or too new: it has the versions {low}-{high} of"
                f" {request.api.name}, and the router {lowest}-{highest}"
            )
        return version

    def _read(self, size: int, deadline: float) -> bytes:
        parts = []
        while size:
            self._socket.settimeout(_left(deadline, self.name, sent=True))
            part = self._socket.recv(min(size, MAX_READ_BYTES))
            if not part:
                raise KafkaConnectionLostError(f"{self.name} closed the connection", sent=True)
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

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
        """Make a caller that waits for an answer raise LostError now; callable from any thread."""
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
