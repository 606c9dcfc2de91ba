"""Where a listener listens, and under which settings it does not serve; known before it starts."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from router.access.authorizer import requires_authentication
from router.access.certificates import Certificates, PemFile
from router.broker.transport.advertised import NOT_ADVERTISED, Advertised
from router.errors import SettingError
from router.settings import Settings

BACKLOG: Final = 1024


class ListenError(Exception):
    """An address cannot be listened on; `str()` is the sentence to say so."""


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """A host and a port; port 0 is any free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, setting: str) -> ListenAddress:
        """Read HOST:PORT, with an IPv6 host in brackets; raise SettingError."""
        host, colon, port = text.rpartition(":")
        if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise SettingError(f"{setting} = {text!r}: expected HOST:PORT")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address that a listener serves: `setting` names it, `scheme` is that of its URL."""

    scheme: str
    setting: str
    tls: bool = False

    def address(self, settings: Settings) -> ListenAddress | None:
        """Return where to listen, None: nowhere; raise SettingError."""
        text = settings.text(self.setting)
        return ListenAddress.parse(text, self.setting) if text else None


@dataclass(frozen=True, slots=True)
class ListenerSpec:
    """What a protocol says of itself before it is loaded.

    `protocol` is its name for people. `sessions` names, as `package.module:function`, a function
    that takes the BrokerContext and returns what opens a session on a connection, or a coroutine
    that does; a name, so that a command that checks settings does not load the protocol.
    `advertised` is the setting of the addresses that clients are sent to, empty: there is none;
    their scheme is `name`. `serves_node`: the node's unix socket is served as well.
    `greeting` names in the same way what makes the greeting that precedes TLS (handshakes.py).
    """

    name: str
    protocol: str
    endpoints: tuple[Endpoint, ...]
    sessions: str
    advertised: str = ""
    serves_node: bool = False
    greeting: str = ""

    def addresses(self, settings: Settings) -> Advertised:
        """Return where clients are sent to; raise SettingError."""
        if not self.advertised:
            return NOT_ADVERTISED
        return Advertised.parse(settings.text(self.advertised), self.advertised, self.name)


def check_spec(spec: ListenerSpec, settings: Settings) -> bool:
    """Raise SettingError if a listener cannot be served safely; return whether any address is."""
    spec.addresses(settings)
    served = False
    for endpoint in spec.endpoints:
        address = endpoint.address(settings)
        if address is None:
            continue
        served = True
        _check_endpoint(settings, spec, endpoint, address)
        if endpoint.tls:
            _check_certificates(settings, endpoint)
    return served


def _check_endpoint(
    settings: Settings, spec: ListenerSpec, endpoint: Endpoint, address: ListenAddress
) -> None:
    name, text = endpoint.setting, settings.text(endpoint.setting)
    if not has_log(settings):
        raise SettingError(
            f"{name} = {text}: there is nothing to serve, for messages live in"
            f" {remote_url(settings)}; leave it empty, {spec.protocol} clients are served by the"
            " backend embedded only"
        )
    if not (
        requires_authentication(settings)
        or settings.flag("auth.insecure")
        or _is_loopback(address.host)
    ):
        raise SettingError(
            f"{name} = {text}: there are neither users (auth.users) nor keys of tokens"
            f" (auth.token_secret_file, auth.token_public_key), so that {spec.protocol} clients are"
            " served anonymously, therefore on loopback only (127.0.0.1); set auth.insecure to"
            " serve other addresses all the same"
        )


def _check_certificates(settings: Settings, endpoint: Endpoint) -> None:
    if not (settings.text("broker.cert") or settings.text("server.cert")):
        raise SettingError(
            f"{endpoint.setting} is set, but no certificate: name one with broker.cert or"
            " server.cert"
        )
    certificates(settings).load()


def certificates(settings: Settings) -> Certificates:
    """Return the certificate of all listeners: the broker's own, or else that of HTTPS."""
    whose = "broker" if settings.text("broker.cert") else "server"
    ca = "broker.client_ca" if settings.text("broker.client_ca") else "server.client_ca"
    return Certificates(
        *(PemFile(name, settings.text(name)) for name in (f"{whose}.cert", f"{whose}.key", ca))
    )


def has_log(settings: Settings) -> bool:
    """Return whether messages live in the broker itself."""
    return scheme(settings) == "embedded"


def remote_url(settings: Settings) -> str:
    """Return the URL of the server that has the messages, without names and passwords."""
    url = urlsplit(settings.text("backend.url"))
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}" if url.netloc else scheme(settings)


def bind(address: ListenAddress) -> socket.socket:
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


def scheme(settings: Settings) -> str:
    """Return the scheme of the backend's URL."""
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
