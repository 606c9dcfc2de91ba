"""Calls of the node protocol about what the broker does, and about its connections."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

from router.broker.activity.alerts import firing
from router.broker.activity.history import ActivitySample
from router.broker.activity.recorder import Recorder
from router.broker.audit import AuditLog
from router.broker.transport.connection import ClientConnection
from router.broker.transport.listener import Listeners
from router.errors import BadRequestError, ReadFailedError
from router.errors.quoting import quoted

MAX_CONNECTIONS: Final = 1_000
"""Of one answer."""
DAY_MINUTES: Final = 24 * 60


class ActivityCalls:
    """Each returns what JSON can hold."""

    def __init__(self, recorder: Recorder, listeners: Listeners, audit: AuditLog) -> None:
        self._recorder = recorder
        self._listeners = listeners
        self._audit = audit

    async def activity(self, minutes: int) -> Mapping[str, Any]:
        """Return what happened in the last minutes: `fields`, and `samples` with a value of each.

        Besides: `topics` with most traffic, `groups` with the largest lag, and `alerts`.
        """
        recorder = self._recorder
        history = recorder.history
        latest = history.recent[-1] if history.recent else ActivitySample(0.0)
        return {
            "fields": ActivitySample._fields,
            "samples": list(map(list, history.span(min(max(minutes, 1), DAY_MINUTES)))),
            "latest": list(latest),
            "disk_size": recorder.gauge("router_disk_size_bytes"),
            "connections": recorder.connected(),
            "polls_waiting": recorder.gauge("router_polls_waiting"),
            "topics": recorder.topics,
            "groups": recorder.groups,
            "alerts": firing(recorder.gauge, history.recent, latest.at),
        }

    async def connections(self) -> Mapping[str, Any]:
        """Return the clients of the network: `clients`, at most MAX_CONNECTIONS, and their `count`.

        `seconds`: for how long they are connected. `received` and `sent` are bytes.
        """
        now, clients = asyncio.get_running_loop().time(), list(self._clients())
        return {
            "count": len(clients),
            "clients": [
                {
                    "peer": one.peer.name,
                    "protocol": protocol,
                    "user": one.identity.principal.name,
                    "client": one.session.name,
                    "tls": one.secure,
                    "seconds": max(0.0, now - one.connected_at),
                    "received": one.received_bytes,
                    "sent": one.sent_bytes,
                }
                for protocol, one in islice(clients, MAX_CONNECTIONS)
            ],
        }

    async def disconnect(self, peer: str) -> Mapping[str, Any]:
        """End the connection of a client of the network; raise BadRequestError if there is none."""
        found = [one for _, one in self._clients() if one.peer.name == peer]
        if not found:
            raise BadRequestError(f"no client is connected from {quoted(peer)}")
        for one in found:
            one.abort("disconnected-by-administrator")
        return {"disconnected": len(found)}

    async def record_change(
        self, action: str, target: str, user: str, address: str, details: Mapping[str, Any]
    ) -> None:
        """Record a change that a request of HTTP made; return when it is written."""
        self._audit.add(action, target, user, address, "http", **details)
        await self._audit.written()

    async def audit(self, limit: int, text: str) -> Sequence[Mapping[str, Any]]:
        """Return the last changes that hold a text, the newest first."""
        try:
            return await self._audit.newest(limit, text)
        except OSError as error:
            raise ReadFailedError(f"the audit cannot be read: {error}") from error

    def _clients(self) -> list[tuple[str, ClientConnection]]:
        found = self._listeners.clients()
        return [(name, one) for name, one in found if not one.peer.trusted and not one.closed]
