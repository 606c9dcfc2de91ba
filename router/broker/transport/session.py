"""What a protocol has to bring for a connection to serve it: a codec of frames, and a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from router.errors import RouterError

FAREWELL_SECONDS: Final = 1.0
"""Time for a client to take what it was sent and the last word."""
NO_FAREWELLS: Final[Mapping[str, bytes]] = {}


class FrameDecoder(Protocol):
    """Cuts bytes into frames. `expected_bytes` is the size of the one that has begun to arrive."""

    expected_bytes: int

    def receive(self, data: bytes, /) -> Sequence[Any]:
        """Return the frames that these bytes complete; raise ProtocolError."""
        ...


class ProtocolSession(Protocol):
    """One protocol on one connection. The connection calls it on the event loop; no call waits."""

    @property
    def frames(self) -> FrameDecoder:
        """Return what cuts arriving bytes into frames."""
        ...

    @property
    def keep_alive(self) -> bytes:
        """Return what a silent client is sent and has to answer.

        Empty when the client connects: it may be silent as long as its machine answers TCP.
        """
        ...

    @property
    def farewells(self) -> Mapping[str, bytes]:
        """Return what is sent before the transport ends the connection, by its reasons."""
        ...

    @property
    def name(self) -> str:
        """Return the client's name for people."""
        ...

    def handle(self, frame: Any, /) -> None:
        """Handle one frame; raise ProtocolError to close the connection."""
        ...

    def frames_handled(self) -> None:
        """Handle the end of a turn: hold reading if the frames of this turn are too many."""
        ...

    def encode_failure(self, failure: RouterError) -> bytes:
        """Return the frame that is sent before the connection closes with this failure."""
        ...

    def request_credentials(self) -> None:
        """Ask the client for a new token; called only if `authenticate` said `renewable`."""
        ...

    def connection_lost(self) -> None:
        """Release all that the client had."""
        ...
