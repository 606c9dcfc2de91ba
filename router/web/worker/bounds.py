"""What a client may take: seconds, connections and bytes; each bound has its answer.

| bound | answer |
| --- | --- |
| request line over MAX_LINE_BYTES | 414 |
| a field over MAX_FIELD_BYTES, over MAX_FIELDS of them, a head over MAX_HEAD_BYTES | 431 |
| a head that is not complete `head_timeout` after its first byte | 408 |
| a body that is not complete `body_timeout` after its first read | 400 |
| a connection too many, of one address or in all, where none is idle | 503 |
| no request for KEEPALIVE_SECONDS seconds, no progress of an answer for `write_timeout` | none |

The connection ends with each of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Any, Final

MAX_LINE_BYTES: Final = 4094
MAX_FIELD_BYTES: Final = 8190
MAX_FIELDS: Final = 100
MAX_HEAD_BYTES: Final = 64 * 1024
KEEPALIVE_SECONDS: Final = (
    75  # longer than the 60 s after which nginx gives up an idle upstream connection
)
# What the application did not read of a body is read up to here, so that the connection goes on.
MAX_DRAINED_BYTES: Final = 256 * 1024
DRAIN_SECONDS: Final = 5.0
# So long, and so much, a refused client may send on before it reads its answer.
LINGER_SECONDS: Final = 2.0
MAX_LINGER_BYTES: Final = 64 << 20
MIN_BYTES_PER_SECOND: Final = (
    10 * 1024
)  # bytes a second that the reader of a long answer takes at least


@dataclass(frozen=True, slots=True)
class WorkerBounds:
    """The bounds that are settings; times are seconds."""

    head_timeout: float = 10.0
    body_timeout: float = 300.0
    write_timeout: float = 60.0
    per_address: int = 5_000
    proxies: Sequence[IPv4Network | IPv6Network] = ()


class ConnectionLimiter:
    """How many connections each address has; those of trusted proxies are not counted."""

    def __init__(self, bounds: WorkerBounds) -> None:
        self._limit = bounds.per_address
        self._proxies = bounds.proxies
        self._counts: Counter[str] = Counter()

    def enter(self, peer: Any) -> str | None:
        """Count a connection; return what `leave` takes, or None for one too many."""
        if not isinstance(peer, tuple) or not self._limit:
            return ""
        address = str(peer[0])
        if self._counts[address] >= self._limit:
            return None if not self._is_proxy(address) else ""
        self._counts[address] += 1
        return address

    def leave(self, address: str) -> None:
        """Forget a connection."""
        if address:
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]

    def _is_proxy(self, address: str) -> bool:
        parsed = ip_address(address.partition("%")[0])
        return any(parsed in network for network in self._proxies)
