"""TLS for a connection that one thread reads while others write.

OpenSSL's state must not be used by two threads at once, and a blocking SSLSocket would hold its
state while it waits. Here the cipher works on memory, under a lock for moments only, and the socket
is read and written outside of it. Sealed bytes must leave in the order in which they were sealed:
the connection has one writer at a time, and the reader has nothing to write once the handshake is
done but what the next writer takes along.
"""

from __future__ import annotations

import socket
import ssl
from threading import Lock
from typing import Final, Protocol

READ_BYTES: Final = 64 * 1024


class ByteStream(Protocol):
    """What a connection needs of its socket."""

    def recv(self, size: int, /) -> bytes:
        """Return some bytes, none at the end of the stream."""
        ...

    def send(self, data: bytes, /) -> int:
        """Write some bytes, and return how many; raise OSError."""
        ...

    def sendall(self, data: bytes, /) -> None:
        """Write all bytes or raise OSError."""
        ...

    def settimeout(self, seconds: float | None, /) -> None:
        """Bound each wait."""
        ...

    def shutdown(self, how: int, /) -> None:
        """End the stream for both sides."""
        ...

    def close(self) -> None:
        """Let the socket go."""
        ...


class TlsStream:
    """A socket's stream under TLS."""

    def __init__(self, peer: socket.socket, host: str, context: ssl.SSLContext) -> None:
        self._peer = peer
        self._lock = Lock()
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)

    def shake_hands(self) -> None:
        """Agree on keys and check the peer's certificate; raise ssl.SSLError, OSError."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._peer.sendall(self._outgoing.read())
                self._feed(self._peer.recv(READ_BYTES))
            else:
                self._peer.sendall(self._outgoing.read())
                return

    def recv(self, size: int) -> bytes:
        """Return some bytes, none at the end of the stream."""
        while True:
            with self._lock:
                try:
                    return self._tls.read(size)
                except ssl.SSLWantReadError:
                    pass
                except ssl.SSLZeroReturnError:
                    return b""
            data = self._peer.recv(READ_BYTES)
            with self._lock:
                self._feed(data)

    def send(self, data: bytes) -> int:
        """Write all bytes as `sendall` does, and return how many."""
        self.sendall(data)
        return len(data)

    def sendall(self, data: bytes) -> None:
        """Write all bytes or raise OSError; one caller at a time."""
        with self._lock:
            self._tls.write(data)
            sealed = self._outgoing.read()
        self._peer.sendall(sealed)

    def settimeout(self, seconds: float | None) -> None:
        """Bound each wait."""
        self._peer.settimeout(seconds)

    def shutdown(self, how: int) -> None:
        """End the stream for both sides."""
        self._peer.shutdown(how)

    def close(self) -> None:
        """Let the socket go."""
        self._peer.close()

    def _feed(self, data: bytes) -> None:
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()


def secured(
    peer: socket.socket, host: str, timeout: float, context: ssl.SSLContext | None = None
) -> TlsStream:
    """Return the stream under TLS, the peer's certificate checked; close the socket on failure."""
    try:
        peer.settimeout(timeout)
        stream = TlsStream(peer, host, context or ssl.create_default_context())
        stream.shake_hands()
    except BaseException:
        peer.close()
        raise
    return stream
