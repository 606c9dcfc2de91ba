"""Notices to systemd (`sd_notify`): the service is up, reloads, stops, is alive.

A unit of `Type=notify` hands the address of a datagram socket to its main process. Without one
nothing is sent. Telling never waits and never fails: without a word systemd acts by itself.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Final

SOCKET_VARIABLE: Final = "NOTIFY_SOCKET"
WATCHDOG_VARIABLES: Final = ("WATCHDOG_USEC", "WATCHDOG_PID")
SIGNS_PER_TIMEOUT: Final = 4
"""Signs of life within the time that systemd waits for one."""


class Notifier:
    """Sends the state of this service; `interval` is the time between signs of life, None: none."""

    def __init__(self, address: str = "", interval: float | None = None) -> None:
        self._address = address
        self.interval = interval
        self.listened_to = bool(address)

    @classmethod
    def take(cls, environ: MutableMapping[str, str]) -> Notifier:
        """Return what the environment asks for, and take it away: it is for this process alone."""
        address = environ.pop(SOCKET_VARIABLE, "")
        microseconds, process = (environ.pop(name, "") for name in WATCHDOG_VARIABLES)
        if not (address and microseconds.isascii() and microseconds.isdigit()):
            return cls(address)
        if process not in {"", str(os.getpid())}:
            return cls(address)
        return cls(address, int(microseconds) / 1e6 / SIGNS_PER_TIMEOUT or None)

    def ready(self) -> None:
        """Tell that the service is up, or that a reload is done."""
        self._send("READY=1")

    def reloading(self) -> None:
        """Tell that a reload begins; `ready` ends it."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Tell that the service ends."""
        self._send("STOPPING=1")

    def alive(self) -> None:
        """Give a sign of life."""
        self._send("WATCHDOG=1")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        # An @ stands for the null byte of an abstract address.
        address = f"\0{self._address[1:]}" if self._address[0] == "@" else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(text.encode(), address)
