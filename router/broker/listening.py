"""Where a broker listens, and under which settings it does not serve; known before it starts."""

from __future__ import annotations

import ipaddress
import socket
import time
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from router.access.certificates import Certificates, File
from router.access.grants import known
from router.broker.advertised import Advertised
from router.broker.gate import check_files
from router.errors import SettingError
from router.settings import Settings

BACKLOG: Final = 1024
PLAIN: Final = "broker.pulsar"
TLS: Final = "broker.pulsar_tls"


class ListenError(Exception):
    """An address cannot be listened on; `str()` is the sentence to say so."""


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port; port 0 is any free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, setting: str = PLAIN) -> Address:
        """Read HOST:PORT, with an IPv6 host in brackets; raise SettingError."""
        host, colon, port = text.rpartition(":")
        if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise SettingError(f"{setting} = {text!r}: expected HOST:PORT")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))


class Listeners(NamedTuple):
    """Where Pulsar clients are served, None: not there; `certificates` are those of `tls`."""

    plain: Address | None
    tls: Address | None
    certificates: Certificates

    @classmethod
    def of(cls, settings: Settings) -> Listeners:
        """Return what settings say; raise SettingError."""
        plain, tls = settings.text(PLAIN), settings.text(TLS)
        return cls(
            Address.parse(plain) if plain else None,
            Address.parse(tls, TLS) if tls else None,
            _certificates(settings),
        )


def check(settings: Settings) -> None:
    """Refuse settings that do not go together, or under which strangers would be served.

    Where there are neither users nor keys of tokens everybody is anonymous, so that only loopback
    is served. Raises SettingError.
    """
    _check_nodes(settings)
    Advertised.parse(settings.text("broker.advertised"))
    listeners = Listeners.of(settings)
    for name, address in ((PLAIN, listeners.plain), (TLS, listeners.tls)):
        if address is not None:
            _check_listener(settings, name, address)
    if listeners.tls is not None:
        _check_certificates(settings, listeners.certificates)
    if listeners.plain or listeners.tls:
        # Files that cannot be used shall be known before anything starts.
        check_files(settings, time.monotonic)


def _check_listener(settings: Settings, name: str, address: Address) -> None:
    text = settings.text(name)
    if not has_log(settings):
        raise SettingError(
            f"{name} = {text}: there is nothing to serve, for messages live in"
            f" {elsewhere(settings)}; leave it empty, Pulsar clients are served by the backend"
            " embedded only"
        )
    if not (known(settings) or settings.flag("auth.insecure") or _is_loopback(address.host)):
        raise SettingError(
            f"{name} = {text}: there are neither users (auth.users) nor keys of tokens"
            " (auth.token_secret_file, auth.token_public_key), so that Pulsar clients are served"
            " anonymously, therefore on loopback only (127.0.0.1); set auth.insecure to serve other"
            " addresses all the same"
        )


def _check_certificates(settings: Settings, certificates: Certificates) -> None:
    if not (settings.text("broker.cert") or settings.text("server.cert")):
        raise SettingError(
            f"{TLS} is set, but no certificate: name one with broker.cert or server.cert"
        )
    certificates.load()


def _certificates(settings: Settings) -> Certificates:
    """Return the certificate of the listener: its own, or else that of HTTPS."""
    whose = "broker" if settings.text("broker.cert") else "server"
    ca = "broker.client_ca" if settings.text("broker.client_ca") else "server.client_ca"
    return Certificates(
        *(File(name, settings.text(name)) for name in (f"{whose}.cert", f"{whose}.key", ca))
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
