"""Where a request really comes from: the one place that reads X-Forwarded-For.

Each proxy appends the address that it was connected from, so the last entries of the header are
those of the nearest proxies, and everything before the first one that we do not trust is whatever
the client wrote. The client is therefore the right-most hop that is no trusted proxy. The usual
alternative, the first entry, lets each client choose an address.

REMOTE_ADDR is set to it before anything else reads it: rations of logins, blacklist,
transaction ids and logs then agree. The address by which the client reached us, X-Forwarded-Host
and -Proto, counts from trusted proxies only and for one thing, the addresses that answers hold: a
client that writes them itself, where its proxy lets it, misleads itself alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from ipaddress import ip_network
from typing import Final
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from router.access.addresses import Address, Network, parse_address
from router.errors import SettingError

MAX_HOPS: Final = 50
_HEADER: Final = "HTTP_X_FORWARDED_FOR"
_PROXIED: Final = "router.proxied"
_HOST: Final = re.compile(
    r"[A-Za-z0-9._-]{1,255}(?::[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](?::[0-9]{1,5})?"
)
_PREFIX: Final = re.compile(r"(?:/[A-Za-z0-9._~-]{1,80}){0,10}")
# What proxies add. Loopback is only trusted as loopback where nothing of this is there.
_MARKS: Final = (_HEADER, "HTTP_FORWARDED", "HTTP_VIA", "HTTP_X_REAL_IP")

USER: Final = "router.user"
"""Where the environment has the name of the client's principal, once it is known."""


class Forwarded:
    """Hands the application the client's address in the place of a trusted proxy's."""

    def __init__(self, application: WSGIApplication, proxies: Sequence[Network]) -> None:
        self._application = application
        self._proxies = tuple(proxies)

    def __call__(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        """Serve one request."""
        nearest = parse_address(environ.get("REMOTE_ADDR", ""))
        if nearest is not None and self._trusts(nearest):
            environ["REMOTE_ADDR"] = str(self._client(nearest, environ.get(_HEADER, "")))
            environ[_PROXIED] = True
        return self._application(environ, start)

    def _client(self, nearest: Address, header: str) -> Address:
        found = nearest
        for hop in reversed(header.split(",")[-MAX_HOPS:]):
            address = _hop(hop.strip())
            if address is None:
                break  # nothing that can be read: the proxy that wrote it is as far as we know
            found = address
            if not self._trusts(address):
                break
        return found

    def _trusts(self, address: Address) -> bool:
        return any(address in network for network in self._proxies)


def root(environ: WSGIEnvironment) -> str:
    """Return the address by which a client reached the application, without a slash at its end."""
    scheme, host, prefix = environ["wsgi.url_scheme"], environ.get("HTTP_HOST", ""), ""
    if environ.get(_PROXIED):
        scheme = _last(environ, "HTTP_X_FORWARDED_PROTO").lower() or scheme
        host = _last(environ, "HTTP_X_FORWARDED_HOST") or host
        prefix = _last(environ, "HTTP_X_FORWARDED_PREFIX").rstrip("/")
    if not _HOST.fullmatch(host):
        host = f"{environ['SERVER_NAME']}:{environ['SERVER_PORT']}"
    if scheme not in {"http", "https"}:
        scheme = environ["wsgi.url_scheme"]
    mounted = environ.get("SCRIPT_NAME", "")
    return f"{scheme}://{host}{prefix if _PREFIX.fullmatch(prefix) else ''}{mounted}"


def _last(environ: WSGIEnvironment, header: str) -> str:
    """Return what the nearest proxy wrote into a header that each of them adds to."""
    return str(environ.get(header, "")).rpartition(",")[2].strip()


def trusted(words: Sequence[str]) -> tuple[Network, ...]:
    """Read server.trusted_proxies; raise SettingError naming what is no address or network."""
    found = []
    for word in words:
        try:
            found.append(ip_network(word))
        except ValueError as error:
            raise SettingError(f"server.trusted_proxies: {error}") from error
    return tuple(found)


def is_local(environ: WSGIEnvironment) -> bool:
    """Return whether a request comes from this machine, and through no proxy that says so.

    What a trusted proxy handed on is never local: its own loopback may be another machine's. Nor is
    what was sent to a name other than localhost: a page of somewhere can have its own name stand
    for this machine, and its requests are then to their own origin, as the browser sees it.
    """
    if any(mark in environ for mark in _MARKS) or not _is_here(
        environ.get("HTTP_HOST", "").lower()
    ):
        return False
    address = parse_address(environ.get("REMOTE_ADDR", ""))
    return address is not None and address.is_loopback


def _is_here(host: str) -> bool:
    """Return whether a Host header is an address or localhost, or there is none."""
    return host in {"", "localhost"} or _hop(host) is not None or host.startswith("localhost:")


def _hop(text: str) -> Address | None:
    """Read one entry: an address, maybe with a port, an IPv6 one then in brackets."""
    if text.startswith("["):
        inside, closed, port = text[1:].partition("]")
        valid = closed and (not port or (port[0] == ":" and _is_port(port[1:])))
        return parse_address(inside) if valid and ":" in inside else None
    if text.count(":") == 1:
        text, _, port = text.partition(":")
        if not _is_port(port):
            return None
    return parse_address(text)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5
