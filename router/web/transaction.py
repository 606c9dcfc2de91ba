"""Transaction ids of answers, in the format of the guide."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from ipaddress import IPv6Address
from itertools import count
from typing import Final

GIVEN: Final = "router.transaction"
"""Where a view leaves the id of its answer in the environment, if it made one."""
USER: Final = "router.user"
"""Where the environment has the name of who made a request, once it is known."""


class TransactionIds:
    """Makes `dd-MM-yyyy::hh:mm:ss:SSS::<ip>::<batch id>`, as the DMaaP Message Router API has it.

    The time is UTC, its hours run to 12 as in the original. The batch id is the second, the number
    of the worker's process and a counter, which makes each id the only one of its kind on its node.
    """

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self.wall_ms = wall_ms
        self._process = f"{os.getpid():07d}"
        self._counter = count()
        self._second = -1
        self._texts = ("", "")

    def next(self, address: str) -> str:
        """Return a new id for an answer to this address."""
        second, ms = divmod(self.wall_ms(), 1000)
        if second != self._second:
            at = datetime.fromtimestamp(second, UTC)
            self._texts = at.strftime("%d-%m-%Y::%I:%M:%S"), at.strftime("%d%m%Y%H%M%S")
            self._second = second
        shown, batch = self._texts
        if not address:
            address = "0.0.0.0"  # noqa: S104 - a client without one, on a unix socket
        elif ":" in address:
            address = _exploded(address)
        return f"{shown}:{ms:03d}::{address}::{batch}{self._process}{next(self._counter)}"


def _exploded(address: str) -> str:
    """Write an IPv6 address without `::`, which separates the fields."""
    try:
        return IPv6Address(address).exploded
    except ValueError:
        return address.replace("::", ":")
