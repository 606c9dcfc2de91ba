"""Where a Pulsar service is: its URL, taken apart."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from router.errors import SettingError
from router.settings import without_password

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
        said = repr(without_password(url))
        # An @ before the option, wherever: a piece of a password is taken for no host or option.
        credentials = "@" in url.partition("?admin=")[0]
        try:
            parts = urlsplit("" if credentials else url)
        except ValueError as error:
            raise SettingError(f"{said}: {error}") from error
        if not credentials and parts.scheme not in PORTS:
            raise SettingError(f"{said} is no address of a Pulsar service: pulsar://host:port")
        if credentials or parts.path not in {"", "/"} or parts.fragment:
            raise SettingError(f"{said}: expected pulsar://host:port[,host:port][/?admin=http://…]")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        admin = options.pop("admin", "")
        if options:
            raise SettingError(f"{said}: unknown option {min(options)!r}; there is `admin`")
        if admin and urlsplit(admin).scheme not in {"http", "https"}:
            raise SettingError(f"{said}: admin must be an http:// or https:// address")
        default = PORTS[parts.scheme]
        hosts = tuple(_host(host, default, said) for host in parts.netloc.split(","))
        return cls(hosts, parts.scheme == "pulsar+ssl", admin.rstrip("/"))

    def __str__(self) -> str:
        scheme = "pulsar+ssl" if self.tls else "pulsar"
        return f"{scheme}://" + ",".join(f"{host}:{port}" for host, port in self.hosts)


def _host(text: str, default: int, said: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise SettingError(f"{said}: {error}") from error
    if not host:
        raise SettingError(f"{said}: a host is missing")
    return host, default if port is None else port
