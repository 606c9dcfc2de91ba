"""How many files and sockets the process may have open, and who gets which part of them.

A broker that has none left can not write its log on, and ends. So clients get half of them at most,
whatever settings say: who comes then is refused, and nobody else notices.
"""

from __future__ import annotations

import resource
from contextlib import suppress
from typing import Final

MOST: Final = 65_536


def raise_limit() -> None:
    """Let the process open as many as its user may allow it, up to MOST."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(MOST, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # Some systems refuse what they say is allowed; then it stays as it is.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def limit() -> int:
    """Return how many there may be now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else soft


def for_segments() -> int:
    """Return how many may be segments that are being written."""
    return max(64, min(2048, limit() // 4))


def for_clients(wanted: int) -> int:
    """Return how many of so many clients that are wanted there may be."""
    return min(wanted, limit() // 2)
