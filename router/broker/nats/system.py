"""Answers the requests of `$SYS.REQ.>`: who a client is, and what the server says of itself.

Every client gets what nats-server answers to clients of an account: `USER.INFO`, its connections
and the account's figures. The figures of the whole server (`SERVER.PING`, which is `STATSZ`, and
`IDZ`, `VARZ`, `JSZ`, `HEALTHZ`) are for administrators, who stand for the system account. Any other
subject has no receiver.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from router.broker.nats.protocol.authorization import NatsCaller
from router.broker.nats.protocol.hub import ServiceRequest
from router.broker.nats.server import PROTOCOL_VERSION, NatsServer
from router.process.resources import Resources
from router.wire.nats.jetstream.times import format_time
from router.wire.nats.message import NatsMessage

PREFIX: Final = "$SYS.REQ."
ACCOUNT: Final = "$G"
MAX_CONNECTIONS_SHOWN: Final = 1_024
_SERVER: Final = "SERVER."
_PING: Final = "SERVER.PING"

Answer = Mapping[str, Any]


class SystemService:
    """The service of `$SYS.REQ.>` on one server."""

    def __init__(self, server: NatsServer) -> None:
        self._server = server
        self._since_ns = time.time_ns()
        self._requests = 0
        for_all: dict[str, Callable[[NatsCaller], Answer]] = {
            "USER.INFO": lambda caller: {"data": _user(caller)},
            "ACCOUNT.PING.CONNZ": lambda caller: {"data": self._connections(caller)},
            "ACCOUNT.PING.STATZ": lambda _: {"data": self._account()},
            f"{_PING}.CONNZ": lambda caller: {"data": self._connections(caller)},
        }
        for_administrators: dict[str, Callable[[NatsCaller], Answer]] = {
            _PING: lambda _: {"statsz": self._figures()},
            f"{_PING}.STATSZ": lambda _: {"statsz": self._figures()},
            f"{_PING}.IDZ": lambda _: {"name": server.name, "host": server.name, "id": server.id},
            f"{_PING}.VARZ": lambda _: {"data": self._variables()},
            f"{_PING}.JSZ": lambda _: {"data": self._jetstream()},
            f"{_PING}.HEALTHZ": lambda _: {"data": {"status": "ok", "status_code": 200}},
        }
        self._for_all = for_all
        self._answers = for_all | for_administrators
        self._direct = f"{_SERVER}{server.id}"

    def handle(self, request: ServiceRequest) -> None:
        """Answer a request at its reply subject."""
        message, caller = request.message, request.caller
        subject = message.subject.removeprefix(PREFIX)
        if subject.startswith(f"{self._direct}."):
            subject = subject.replace(self._direct, _PING, 1)
        is_administrator = caller.unrestricted or caller.administers
        answer = (self._answers if is_administrator else self._for_all).get(subject)
        if answer is None:
            if caller.no_responders:
                self._server.hub.no_responders(message)
        elif message.reply:
            self._requests += 1
            found = answer(caller)
            if subject != f"{_PING}.IDZ":
                found = {"server": self._identity(), **found}
            self._server.hub.publish(NatsMessage(message.reply, payload=orjson.dumps(found)))

    def _identity(self) -> Answer:
        server = self._server
        return {
            "name": server.name,
            "host": server.name,
            "id": server.id,
            "ver": PROTOCOL_VERSION,
            "jetstream": server.jetstream,
            "seq": self._requests,
            "time": _now(),
        }

    def _traffic(self) -> dict[str, dict[str, int]]:
        metrics = self._server.metrics
        return {
            "sent": {"msgs": metrics.sent_messages, "bytes": metrics.sent_bytes},
            "received": {"msgs": metrics.received_messages, "bytes": metrics.received_bytes},
        }

    def _figures(self) -> Answer:
        server = self._server
        return {
            "start": format_time(self._since_ns),
            "mem": Resources.now().resident_bytes,
            "cores": os.cpu_count() or 1,
            "connections": len(server.clients),
            "total_connections": server.last_client_id,
            "active_accounts": 1,
            "subscriptions": server.hub.subscriptions,
            **self._traffic(),
            "slow_consumers": server.metrics.slow_consumers,
            "active_servers": 1,
        }

    def _account(self) -> Answer:
        server = self._server
        account = {
            "acc": ACCOUNT,
            "name": ACCOUNT,
            "conns": len(server.clients),
            "leafnodes": 0,
            "total_conns": len(server.clients),
            "num_subscriptions": server.hub.subscriptions,
            **self._traffic(),
            "slow_consumers": server.metrics.slow_consumers,
        }
        return {"server_id": server.id, "now": _now(), "account_statz": [account]}

    def _connections(self, caller: NatsCaller) -> Answer:
        """Return all connections for an administrator, a user's own for others."""
        server = self._server
        shows_all = caller.unrestricted or caller.administers
        found = [
            one.describe()
            for one in server.clients.values()
            if shows_all or one.caller.name == caller.name
        ]
        shown = found[:MAX_CONNECTIONS_SHOWN]
        return {
            "server_id": server.id,
            "now": _now(),
            "num_connections": len(shown),
            "total": len(found),
            "offset": 0,
            "limit": MAX_CONNECTIONS_SHOWN,
            "connections": shown,
        }

    def _variables(self) -> Answer:
        server, metrics = self._server, self._server.metrics
        return {
            "server_id": server.id,
            "server_name": server.name,
            "version": PROTOCOL_VERSION,
            "proto": 1,
            "max_payload": server.options.max_payload,
            "max_pending": server.options.max_pending,
            "start": format_time(self._since_ns),
            "now": _now(),
            "uptime": duration(time.time_ns() - self._since_ns),
            "mem": Resources.now().resident_bytes,
            "cores": os.cpu_count() or 1,
            "connections": len(server.clients),
            "total_connections": server.last_client_id,
            "in_msgs": metrics.received_messages,
            "out_msgs": metrics.sent_messages,
            "in_bytes": metrics.received_bytes,
            "out_bytes": metrics.sent_bytes,
            "slow_consumers": metrics.slow_consumers,
            "subscriptions": server.hub.subscriptions,
        }

    def _jetstream(self) -> Answer:
        server = self._server
        streams = [server.streams.find(name) for name in server.streams.names()]
        size = sum(stream.log.bytes for stream in streams)  # on disk, whether it may be read or not
        return {
            "memory": 0,
            "storage": size,
            "api": {"total": server.api.total, "errors": server.api.errors},
            "server_id": server.id,
            "now": _now(),
            "disabled": not server.jetstream,
            "streams": len(streams),
            "consumers": sum(len(stream.consumers) for stream in streams),
            "messages": sum(stream.messages for stream in streams),
            "bytes": size,
        }


def _user(caller: NatsCaller) -> Answer:
    return {"user": caller.name, "account": ACCOUNT, "account_name": ACCOUNT}


def _now() -> str:
    return format_time(time.time_ns())


def duration(elapsed_ns: int) -> str:
    """Return a time as nats-server writes it, such as 1d2h3m4s."""
    seconds = elapsed_ns // 1_000_000_000
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "m")]
    first = next((place for place, (count, _) in enumerate(parts) if count), len(parts))
    return "".join(f"{count}{unit}" for count, unit in parts[first:]) + f"{seconds}s"
