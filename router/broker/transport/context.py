"""What the connections of all listeners share: limits, the authorizer, the memory budget."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol

from router.broker import descriptors
from router.broker.transport.authentication import ListenerAuthorizer
from router.broker.transport.blacklist import BrokerBlacklist
from router.broker.transport.memory_budget import FrameBudget
from router.log import LineLimit
from router.settings.options import SettingsOptions, from_setting


class Abortable(Protocol):
    """A connection that can be ended at once."""

    def abort(self, reason: str) -> None:
        """End the connection without sending what waits; `reason` is the event that is logged."""
        ...


@dataclass(frozen=True, slots=True)
class TransportOptions(SettingsOptions):
    """Limits of all listeners together.

    `ping_seconds`: a client that is silent for so long is asked whether it is still there.
    """

    # Within the descriptors that the process may open.
    max_connections: int = from_setting(
        "broker.connections", descriptors.for_clients, default=10_000
    )
    ping_seconds: float = from_setting("broker.ping", default=30.0)


@dataclass(slots=True)
class TransportContext:
    """Shared by the connections of all listeners.

    `authorizer` is None if only the node's own socket is served, whose clients are trusted.
    `unauthenticated` holds the connections whose client is not known yet, oldest first.
    `broken_lines` bounds the log lines about clients that break the protocol, or are too many: they
    keep no line about a refused login out.
    """

    options: TransportOptions = TransportOptions()
    authorizer: ListenerAuthorizer | None = None
    blacklist: BrokerBlacklist | None = None
    connections: set[Abortable] = field(default_factory=set)
    unauthenticated: dict[Abortable, None] = field(default_factory=dict)
    memory_budget: FrameBudget = field(default_factory=FrameBudget)
    broken_lines: LineLimit = field(default_factory=lambda: LineLimit(time.monotonic))
