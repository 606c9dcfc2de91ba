"""What the NATS listener counts."""

from __future__ import annotations

from collections import Counter

from router.broker.nats.protocol.hub import Hub
from router.broker.node.counters import NodeCounters
from router.metrics import Sample


class NatsMetrics:
    """Counts of all NATS clients; shown once a client has connected."""

    def __init__(self, counters: NodeCounters, hub: Hub) -> None:
        self._counters = counters
        self._hub = hub
        self._shown = False
        self.connections = 0
        self.received_messages = self.received_bytes = 0
        self.sent_messages = self.sent_bytes = 0
        self.slow_consumers = 0
        self.errors: Counter[str] = Counter()

    def show(self) -> None:
        """Show the figures from now on."""
        if self._shown:
            return
        self._shown = True
        watch = self._counters.watch
        watch("router_nats_connections", lambda: self.connections)
        watch("router_nats_subscriptions", lambda: self._hub.subscriptions)
        self._counters.observe(self._samples)

    async def _samples(self) -> list[Sample]:
        counted: list[Sample] = [
            ("router_nats_received_messages_total", (), self.received_messages),
            ("router_nats_received_bytes_total", (), self.received_bytes),
            ("router_nats_sent_messages_total", (), self.sent_messages),
            ("router_nats_sent_bytes_total", (), self.sent_bytes),
            ("router_nats_slow_consumers_total", (), self.slow_consumers),
        ]
        counted += [
            ("router_nats_errors_total", (("error", error),), count)
            for error, count in self.errors.items()
        ]
        return counted
