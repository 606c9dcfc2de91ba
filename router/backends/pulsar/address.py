"""Where a Pulsar service is: its URL, taken apart."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from router.errors import SettingError

PORTS = {"pulsar": 6650, "pulsar+ssl": 6651}


@dataclass(frozen=True, slots=True)
class Address:
    """The brokers to ask first, and the base URL of the REST administration, if there is one."""

    hosts: tuple[tuple[str, int], ...]
    tls: bool = False
    admin: str = ""

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read `pulsar://host[:port][,host[:port]…][/?admin=http://…]`; raise SettingError."""
        parts = urlsplit(url)
        if parts.scheme not in PORTS:
            raise SettingError(f"{url!r} is no address of a Pulsar service: pulsar://host:port")
        if parts.path not in {"", "/"} or parts.fragment or "@" in parts.netloc:
            raise SettingError(
                f"{url!r}: expected pulsar://host:port[,host:port][/?admin=http://…]"
            )
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        admin = options.pop("admin", "")
        if options:
            raise SettingError(f"{url!r}: unknown option {min(options)!r}; there is `admin`")
        if admin and urlsplit(admin).scheme not in {"http", "https"}:
            raise SettingError(f"{url!r}: admin must be an http:// or https:// address")
        default = PORTS[parts.scheme]
        hosts = tuple(_host(host, default, url) for host in parts.netloc.split(","))
        return cls(hosts, parts.scheme == "pulsar+ssl", admin.rstrip("/"))

    def __str__(self) -> str:
        scheme = "pulsar+ssl" if self.tls else "pulsar"
        return f"{scheme}://" + ",".join(f"{host}:{port}" for host, port in self.hosts)


def _host(text: str, default: int, url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise SettingError(f"{url!r}: {error}") from error
    if not host:
        raise SettingError(f"{url!r}: a host is missing")
    return host, default if port is None else port
