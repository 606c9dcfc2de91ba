"""What a client may take: seconds, connections and bytes; each bound has its answer.

| bound | answer |
| --- | --- |
| request line over LINE bytes | 414 |
| a field over FIELD bytes, more than FIELDS of them, a head over HEAD bytes | 431 |
| a head that is not complete `head_timeout` after its first byte | 408 |
| a body that is not complete `body_timeout` after its first read | 400 |
| a connection too many, of one address or in all, where none is idle | 503 |
| no request for KEEPALIVE seconds, no progress of an answer for `write_timeout` | none |

The connection ends with each of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Any, Final

LINE: Final = 4094
FIELD: Final = 8190
FIELDS: Final = 100
HEAD: Final = 64 * 1024
KEEPALIVE: Final = 75  # longer than the 60 s after which nginx gives up an idle upstream connection
# A body that nobody wanted is read up to here, so that the connection goes on; else it ends.
DRAIN: Final = 256 * 1024
DRAIN_TIME: Final = 5.0
# So long, and for so much, a refused client may send on before it looks at its answer.
LINGER: Final = 2.0
LINGER_BYTES: Final = 64 << 20
SLOWEST: Final = 10 * 1024  # bytes a second that the reader of a long answer takes at least


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds that are settings; times are seconds."""

    head_timeout: float = 10.0
    body_timeout: float = 300.0
    write_timeout: float = 60.0
    per_address: int = 5_000
    proxies: Sequence[IPv4Network | IPv6Network] = ()


class Crowd:
    """How many connections each address has; those of trusted proxies are not counted."""

    def __init__(self, bounds: Bounds) -> None:
        self._most = bounds.per_address
        self._proxies = bounds.proxies
        self._counts: Counter[str] = Counter()

    def enter(self, peer: Any) -> str | None:
        """Count a connection; return what `leave` takes, or None for one too many."""
        if not isinstance(peer, tuple) or not self._most:
            return ""
        address = str(peer[0])
        if self._counts[address] >= self._most:
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
