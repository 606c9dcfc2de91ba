"""Where a node's broker is spoken to: the socket in its data folder, for both sides.

A unix socket's address holds 107 bytes. Longer paths are reached through the folder's descriptor
(`/proc/self/fd/<n>/broker.sock`), for bind and connect alike.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

SOCKET: Final = "broker.sock"
LONGEST: Final = 100
BACKLOG: Final = 1024


@contextmanager
def address(folder: Path) -> Iterator[str]:
    """Give the address of the folder's socket, good as long as the block lasts."""
    path = str(folder.absolute() / SOCKET)
    if len(os.fsencode(path)) <= LONGEST:
        yield path
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)


def connect(folder: Path, timeout: float) -> socket.socket:
    """Return a connected blocking socket; raise OSError if no broker serves the folder."""
    with address(folder) as path:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            peer.settimeout(timeout)
            peer.connect(path)
            peer.settimeout(None)
        except BaseException:
            peer.close()
            raise
    return peer


def answers(folder: Path, timeout: float = 1.0) -> bool:
    """Return whether a broker takes connections there; it does so once its store is open."""
    try:
        connect(folder, timeout).close()
    except OSError:
        return False
    return True


def listen(folder: Path) -> socket.socket:
    """Return a listening socket that only this user reaches; the caller holds the folder's lock.

    A socket file that a dead broker left is replaced.
    """
    with suppress(FileNotFoundError):
        (folder / SOCKET).unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with address(folder) as path:
            listener.bind(path)
        # Nobody gets in between bind and chmod: before listen() every connect is refused.
        (folder / SOCKET).chmod(0o600)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener
