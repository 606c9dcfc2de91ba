"""The hosts that requests of anonymous clients may be sent to.

A page of any origin can have its own name stand for 127.0.0.1 (DNS rebinding). Its requests are
then to its own origin, so the browser sends them and gives the page the answers; neither CORS nor
the address of the client tells them from others. The Host header does: it has the name of the page.
Where clients say who they are it is not looked at: a browser has no credentials for such a name.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING, Final

from router.access.grants import known
from router.access.logins import parse_address
from router.errors import ForbiddenError, SettingError
from router.quoting import quoted
from router.settings import Settings

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

MAX_NAMED_CHARACTERS: Final = 100
PROBES: Final = frozenset({"/health", "/ready"})


class Hosts:
    """The names that a Host header may have: `names`, localhost and the addresses of loopback."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = frozenset(("localhost", *(_name(name) for name in names)))

    @classmethod
    def from_settings(cls, settings: Settings) -> Hosts | None:
        """Return what is allowed, None where any host is."""
        names = settings.words("server.hosts")
        if known(settings) or not (names or _is_local_only(settings)):
            return None
        return cls(names)

    def check(self, environ: WSGIEnvironment) -> None:
        """Raise ForbiddenError for a request to another host; health checks may be to any."""
        host = environ.get("HTTP_HOST", "")
        if not host or (name := _name(host)) in self._names:
            return
        address = parse_address(name)
        if address is not None and address.is_loopback:
            return
        if environ["PATH_INFO"].rstrip("/") in PROBES:
            return
        raise ForbiddenError(
            f"Anonymous requests to the host {quoted(host, MAX_NAMED_CHARACTERS)} are refused,"
            " since any page could send them: name the host in the setting server.hosts."
        )


def warning(settings: Settings) -> str | None:
    """Return what there is to say of a router that serves anonymous requests to any host."""
    if known(settings) or Hosts.from_settings(settings) is not None:
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
