"""A TCP proxy between two processes, that a test cuts, stalls and heals.

One thread owns every socket and copies bytes with a selector; `close` ends and joins it. What a
peer does not take is kept for at most BUFFER bytes a direction: then the proxy reads no more from
the other side, as a network would. A thread for each connection would be shorter, and could not be
stalled without a lock.
"""

from __future__ import annotations

import contextlib
import queue
import selectors
import socket
import struct
import threading
from collections.abc import Callable

from tests.ports import free_port

BUFFER = 262_144
RESET = struct.pack("ii", 1, 0)


class _End:
    """One side of a proxied connection, and the bytes that wait to be sent to it.

    `ended`: it sends no more; `told`: it knows that its peer sends no more.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.waiting = bytearray()
        self.peer: _End = self
        self.ended = False
        self.told = False


class TcpProxy:
    """Listens on `address` and forwards to the target, until it is told otherwise."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self.port = free_port()
        self._listener: socket.socket | None = None
        self._ends: set[_End] = set()
        self._stalled = False
        self._closed = False
        self._selector = selectors.DefaultSelector()
        self._orders: queue.SimpleQueue[tuple[Callable[[], None], threading.Event]]
        self._orders = queue.SimpleQueue()
        self._bell, self._ear = socket.socketpair()
        self._selector.register(self._ear, selectors.EVENT_READ)
        self._listen()
        self._thread = threading.Thread(target=self._run, name=f"proxy {target}", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """host:port that clients connect to."""
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Reset all connections and refuse new ones, until `heal`."""
        self._order(self._cut)

    def reset(self) -> None:
        """Reset all connections; new ones are welcome."""
        self._order(self._drop_all)

    def stall(self) -> None:
        """Forward nothing more, and close nothing, until `heal`; new connections hang too."""
        self._order(self._stall)

    def heal(self) -> None:
        """Forward again; what was cut may connect again, what was stalled goes on."""
        self._order(self._heal)

    def close(self) -> None:
        """End everything and wait for the thread."""
        if not self._closed:
            self._order(self._finish)
            self._thread.join(10)
            self._bell.close()

    def __enter__(self) -> TcpProxy:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _order(self, action: Callable[[], None]) -> None:
        """Have the proxy's thread do something, and wait until it is done."""
        done = threading.Event()
        self._orders.put((action, done))
        self._bell.send(b"!")
        assert done.wait(10), "the proxy's thread does not answer"

    def _run(self) -> None:
        while not self._closed:
            for key, events in self._selector.select():
                if key.fileobj is self._ear:
                    self._obey()
                elif key.fileobj is self._listener:
                    self._accept()
                elif key.data in self._ends:
                    self._move(key.data, events)

    def _obey(self) -> None:
        self._ear.recv(1)
        action, done = self._orders.get()
        action()
        done.set()

    def _listen(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._selector.register(self._listener, selectors.EVENT_READ)

    def _accept(self) -> None:
        assert self._listener is not None
        with contextlib.suppress(OSError):
            client = self._listener.accept()[0]
            near = _End(client)
            try:
                far = _End(socket.create_connection(self._target, 2))
            except OSError:
                _close(near, reset=True)
                return
            near.peer, far.peer = far, near
            for end in (near, far):
                end.socket.setblocking(False)
                end.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._ends.add(end)
                self._watch(end)

    def _watch(self, end: _End) -> None:
        """Wait for what this end can do now: be read while its peer keeps up, take what waits."""
        events = 0
        if not self._stalled:
            if not end.ended and len(end.peer.waiting) < BUFFER:
                events |= selectors.EVENT_READ
            if end.waiting:
                events |= selectors.EVENT_WRITE
        if not events:
            self._ignore(end.socket)
        elif end.socket in self._selector.get_map():
            self._selector.modify(end.socket, events, end)
        else:
            self._selector.register(end.socket, events, end)

    def _move(self, end: _End, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                data = end.socket.recv(65_536)
                end.peer.waiting += data
                end.ended = not data
            if events & selectors.EVENT_WRITE:
                del end.waiting[: end.socket.send(end.waiting)]
            for side in (end, end.peer):
                if side.peer.ended and not side.waiting and not side.told:
                    side.told = True
                    side.socket.shutdown(socket.SHUT_WR)
        except OSError:
            self._drop(end, reset=True)
            return
        if end.ended and end.peer.ended and not end.waiting and not end.peer.waiting:
            self._drop(end, reset=False)
        else:
            self._watch(end)
            self._watch(end.peer)

    def _drop(self, end: _End, *, reset: bool) -> None:
        for side in (end, end.peer):
            self._ignore(side.socket)
            self._ends.discard(side)
            _close(side, reset=reset)

    def _drop_all(self) -> None:
        while self._ends:
            self._drop(next(iter(self._ends)), reset=True)

    def _deafen(self) -> None:
        if self._listener is not None:
            self._ignore(self._listener)
            self._listener.close()
            self._listener = None

    def _ignore(self, sock: socket.socket) -> None:
        if sock in self._selector.get_map():
            self._selector.unregister(sock)

    def _cut(self) -> None:
        self._deafen()
        self._drop_all()

    def _stall(self) -> None:
        self._stalled = True
        if self._listener is not None:
            # the kernel still completes the handshake: the client waits for an answer
            self._ignore(self._listener)
        for end in self._ends:
            self._watch(end)

    def _heal(self) -> None:
        self._stalled = False
        if self._listener is None:
            self._listen()
        elif self._listener not in self._selector.get_map():
            self._selector.register(self._listener, selectors.EVENT_READ)
        for end in self._ends:
            self._watch(end)

    def _finish(self) -> None:
        self._heal()
        self._cut()
        self._selector.unregister(self._ear)
        self._ear.close()
        self._selector.close()
        self._closed = True


def _close(end: _End, *, reset: bool) -> None:
    with contextlib.suppress(OSError):
        if reset:
            end.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        end.socket.close()
