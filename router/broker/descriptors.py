"""How many files and sockets the process may have open, and how they are divided.

A broker that has none left cannot write its log on, and ends. So clients get half of them at most,
whatever settings say: further clients are refused, and the others are not affected.
"""

from __future__ import annotations

import resource
from contextlib import suppress
from typing import Final

MAX_DESCRIPTORS: Final = 65_536


def raise_limit() -> None:
    """Raise the limit of the process as far as its user may, up to MAX_DESCRIPTORS."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(MAX_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < highest:
        # Some systems refuse what they say is allowed; then the limit stays.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))


def limit() -> int:
    """Return how many there may be now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def for_segments() -> int:
    """Return how many may be segments that are being written."""
    return max(64, min(2048, limit() // 4))


def for_clients(clients: int) -> int:
    """Return how many of so many clients there may be."""
    return min(clients, limit() // 2)
