"""Where a broker listens, and under which settings it does not serve; known before it starts."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from router.errors import SettingError
from router.settings import Settings

BACKLOG: Final = 1024


class ListenError(Exception):
    """An address cannot be listened on; `str()` is the sentence to say so."""


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port; port 0 is any free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read HOST:PORT, with an IPv6 host in brackets; raise SettingError."""
        host, colon, port = text.rpartition(":")
        if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise SettingError(f"broker.pulsar = {text!r}: expected HOST:PORT")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))


def check(settings: Settings) -> None:
    """Refuse settings that do not go together, or under which strangers would be served.

    The Pulsar listener does not ask who its clients are, so it serves loopback only, and nobody
    where users are set up. Raises SettingError.
    """
    _check_nodes(settings)
    text = settings.text("broker.pulsar")
    if not text:
        return
    host = Address.parse(text).host
    if not has_log(settings):
        raise SettingError(
            f"broker.pulsar = {text}: there is nothing to serve, for messages live in"
            f" {elsewhere(settings)}; leave it empty, Pulsar clients are served by the backend"
            " embedded only"
        )
    if settings.flag("auth.insecure"):
        return
    if settings.text("auth.users"):
        raise SettingError(
            "auth.users is set, and Pulsar clients are not asked who they are: leave broker.pulsar"
            " empty, or set auth.insecure"
        )
    if not _is_loopback(host):
        raise SettingError(
            f"broker.pulsar = {text}: Pulsar clients are served anonymously, therefore on loopback"
            " only (127.0.0.1); set auth.insecure to serve other addresses"
        )


def has_log(settings: Settings) -> bool:
    """Return whether messages live in the broker itself."""
    return _scheme(settings) == "embedded"


def elsewhere(settings: Settings) -> str:
    """Return where messages live otherwise, as people may be told: without names and passwords."""
    url = urlsplit(settings.text("backend.url"))
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}" if url.netloc else _scheme(settings)


def bind(address: Address) -> socket.socket:
    """Return a socket that listens there; raise ListenError."""
    try:
        family, kind, protocol, _, where = _resolve(address.host, address.port)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ListenError(f"cannot listen on {address.host}: {error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ListenError(f"cannot listen on {address.host}:{address.port}: {error}") from error
    return listener


def _check_nodes(settings: Settings) -> None:
    if not settings.text("zookeeper.servers"):
        return
    if _scheme(settings) in {"embedded", "memory"}:
        raise SettingError(
            "zookeeper.servers is set: nodes that share leases must share their messages as well,"
            f" and those of the backend {_scheme(settings)} are this node's own; name a broker that"
            " all nodes use (backend.url = kafka://… or pulsar://…), or leave zookeeper.servers"
            " empty"
        )
    # Imported when it is wanted, for it brings the client along.
    from router.coordination.zookeeper import ZookeeperOptions  # noqa: PLC0415

    ZookeeperOptions.of(settings)


def _scheme(settings: Settings) -> str:
    return settings.text("backend.url").partition(":")[0]


def _is_loopback(host: str) -> bool:
    try:
        found = _resolve(host, 0)
    except OSError:
        return False
    return all(ipaddress.ip_address(where[0]).is_loopback for *_, where in found)


def _resolve(host: str, port: int) -> list[tuple[int, int, int, str, tuple[str, int]]]:
    return socket.getaddrinfo(  # type: ignore[return-value]
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
