"""Pages of other origins: those on the list may publish and poll, others may not.

Browsers send simple requests of any page to any address, 127.0.0.1 included, before they ask. A
page could so publish, or take a group's messages away, without reading the answer. Requests that a
browser marks as coming from an origin that is not on the list are therefore refused, and not only
left without the headers that let the page read the answer.
"""

from __future__ import annotations

import ipaddress
import socket
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit
from wsgiref.types import WSGIEnvironment

from router.access.addresses import parse_address
from router.access.authorizer import requires_authentication
from router.errors import ForeignPageError, SettingError
from router.errors.quoting import quoted
from router.settings import Settings
from router.web.addresses import root

# Pages may sign as well; a Date of its own a browser lets no page send.
ALLOWED_HEADERS: Final = (
    "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, Nats-Subject,"
    " X-CambriaAuth, X-CambriaDate, X-Auth, X-Date, X-Nonce, traceparent, tracestate"
)
EXPOSED_HEADERS: Final = "transactionId, Ack-Token, Idempotency-Replayed, Retry-After"
ALLOWED_METHODS: Final = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
MAX_AGE: Final = "600"
PAGE_HEADERS: Final = frozenset({"HTTP_ORIGIN", "HTTP_SEC_FETCH_SITE"})
"""In the environment: without any of them no browser says that a page of another origin asks."""
FOREIGN_SITES: Final = frozenset({"cross-site", "same-site"})
"""Of Sec-Fetch-Site; a page on another port of this machine is of the same site."""
OPENED: Final = frozenset({"/", "/console", "/docs"})
"""What links of other sites may open, with what is below OPENED_BELOW."""
OPENED_BELOW: Final = ("/console/", "/docs/")
MAX_NAMED_CHARACTERS: Final = 100
PROBES: Final = frozenset({"/health", "/ready"})


class Cors:
    """The list of origins, and what follows from it for requests and answers."""

    def __init__(self, origins: tuple[str, ...]) -> None:
        self._any = "*" in origins
        self.origins = frozenset(origin.rstrip("/").lower() for origin in origins)

    def check(self, environ: WSGIEnvironment) -> None:
        """Raise ForeignPageError for a request of a page that is not on the list."""
        if self._any or environ["REQUEST_METHOD"] == "OPTIONS" or not is_foreign(environ):
            return
        origin = environ.get("HTTP_ORIGIN")
        if origin is None or not self.allows(origin):
            raise ForeignPageError("Pages of this origin may not use the router (cors.origins).")

    def allows(self, origin: str) -> bool:
        """Return whether the origin is on the list."""
        return self._any or origin.lower() in self.origins

    def marks(self, environ: WSGIEnvironment) -> list[tuple[str, str]]:
        """Return the headers that say to the browser what the page may do and see."""
        if not self.origins:
            return []
        marks = [("Vary", "Origin")]
        origin = environ.get("HTTP_ORIGIN")
        if origin is None or not self.allows(origin):
            return marks
        marks += [
            ("Access-Control-Allow-Origin", origin),
            ("Access-Control-Expose-Headers", EXPOSED_HEADERS),
        ]
        if environ.get("HTTP_ACCESS_CONTROL_REQUEST_METHOD"):
            marks += [
                ("Access-Control-Allow-Methods", ALLOWED_METHODS),
                ("Access-Control-Allow-Headers", ALLOWED_HEADERS),
                ("Access-Control-Max-Age", MAX_AGE),
            ]
        return marks


def is_foreign(environ: WSGIEnvironment) -> bool:
    """Return whether a browser says that a request comes from a page of another origin."""
    origin = environ.get("HTTP_ORIGIN")
    site = environ.get("HTTP_SEC_FETCH_SITE")
    if origin is None:
        # No Origin: images, frames and the like.
        return site in FOREIGN_SITES and not _by_hand(environ)
    return site in FOREIGN_SITES or not _same(origin, environ)


def _by_hand(environ: WSGIEnvironment) -> bool:
    """Return whether a user followed a link to a page of ours; scripts and frames do not count.

    A link to any other path may take a group's messages away, as a poll does.
    """
    path = environ["PATH_INFO"]
    return (
        (path in OPENED or path.startswith(OPENED_BELOW))
        and environ["REQUEST_METHOD"] in {"GET", "HEAD"}
        and environ.get("HTTP_SEC_FETCH_USER") == "?1"
        and environ.get("HTTP_SEC_FETCH_DEST") == "document"
    )


def _same(origin: str, environ: WSGIEnvironment) -> bool:
    host = environ.get("HTTP_HOST", "").lower()
    if not host:
        return False
    own = urlsplit(root(environ))
    try:
        page = urlsplit(origin)
    except ValueError:  # as for http://[
        return False
    # A proxy that ends TLS may not say so; the page of a URL without TLS is no page of ours.
    schemes = {"https"} if own.scheme == "https" else {"http", "https"}
    # Of Host and X-Forwarded-Host, proxies rewrite the one or leave the port out of the other.
    return page.scheme in schemes and page.netloc.lower() in {host, own.netloc.lower()}


class Hosts:
    """The names that a Host header may have: `names`, localhost and the addresses of loopback."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = frozenset(("localhost", *(_name(name) for name in names)))
        # Clients send the same ones again and again; what is longer is looked at each time.
        self._is_allowed = lru_cache(maxsize=1_024)(self._allows)

    @classmethod
    def from_settings(cls, settings: Settings) -> Hosts | None:
        """Return what is allowed, None where any host is."""
        names = settings.words("server.hosts")
        if requires_authentication(settings) or not (names or _is_local_only(settings)):
            return None
        return cls(names)

    def check(self, environ: WSGIEnvironment) -> None:
        """Raise ForeignPageError for a request to another host; health checks may be to any."""
        host = environ.get("HTTP_HOST", "")
        allows = self._is_allowed if len(host) <= MAX_NAMED_CHARACTERS else self._allows
        if not host or allows(host):
            return
        if environ["PATH_INFO"].rstrip("/") in PROBES:
            return
        raise ForeignPageError(
            f"Anonymous requests to the host {quoted(host, MAX_NAMED_CHARACTERS)} are refused,"
            " since any page could send them: name the host in the setting server.hosts."
        )

    def _allows(self, host: str) -> bool:
        if (name := _name(host)) in self._names:
            return True
        address = parse_address(name)
        return address is not None and address.is_loopback


def warning(settings: Settings) -> str | None:
    """Return a warning if the router serves anonymous requests to any host, None otherwise."""
    if requires_authentication(settings) or Hosts.from_settings(settings) is not None:
        return None
    return (
        "server.hosts is empty: clients are anonymous and any Host header is served, so that a page"
        " that a user opens can publish and read (DNS rebinding); name the hosts that clients use"
    )


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches it; raise SettingError for an unknown name."""
    try:
        found = socket.getaddrinfo(host or "0.0.0.0", None, type=socket.SOCK_STREAM)  # noqa: S104 - what gunicorn takes an empty host for
    except OSError as error:
        raise SettingError(f"server.host = {host!r}: {error.strerror or error}") from error
    return all(ipaddress.ip_address(str(at[0]).partition("%")[0]).is_loopback for *_, at in found)


def _is_local_only(settings: Settings) -> bool:
    """Return whether clients are on this machine, and use its own names: no proxy is before it."""
    return not settings.words("server.trusted_proxies") and is_loopback(
        settings.text("server.host")
    )


def _name(host: str) -> str:
    """Return the name or address in HOST or HOST:PORT, an IPv6 address without its brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()
