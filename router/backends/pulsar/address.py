"""Where a Pulsar service is: its URL, taken apart."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from router.errors import SettingError
from router.settings import without_password

PORTS = {"pulsar": 6650, "pulsar+ssl": 6651}
ADMIN_PORTS = {"http": 8080, "https": 8443}
NO_ADMIN = "none"
"""The value of `admin` that says that the administration is not to be used."""


@dataclass(frozen=True, slots=True)
class PulsarAddress:
    """The brokers to ask first, and the base URL of the REST administration.

    `admin` is as the address names it: None: it does not, "none": there is none to use.
    """

    hosts: tuple[tuple[str, int], ...]
    tls: bool = False
    admin: str | None = None

    @classmethod
    def parse(cls, url: str) -> PulsarAddress:
        """Read `pulsar://host[:port][,host[:port]…][/?admin=http://…]`; raise SettingError."""
        shown = repr(without_password(url))
        # An @ before the option, wherever: a piece of a password is taken for no host or option.
        credentials = "@" in url.partition("?admin=")[0]
        try:
            parts = urlsplit("" if credentials else url)
        except ValueError as error:
            raise SettingError(f"{shown}: {error}") from error
        if not credentials and parts.scheme not in PORTS:
            raise SettingError(f"{shown} is no address of a Pulsar service: pulsar://host:port")
        if credentials or parts.path not in {"", "/"} or parts.fragment:
            raise SettingError(
                f"{shown}: expected pulsar://host:port[,host:port][/?admin=http://…]"
            )
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        admin = options.pop("admin", None)
        if options:
            raise SettingError(f"{shown}: unknown option {min(options)!r}; there is `admin`")
        if admin is not None:
            admin = admin.rstrip("/")
            if admin != NO_ADMIN and urlsplit(admin).scheme not in ADMIN_PORTS:
                raise SettingError(
                    f"{shown}: admin must be an http:// or https:// address, or none"
                )
        default = PORTS[parts.scheme]
        hosts = tuple(_host(host, default, shown) for host in parts.netloc.split(","))
        return cls(hosts, parts.scheme == "pulsar+ssl", admin)

    @property
    def administration(self) -> str:
        """Return the base URL of the administration, empty: there is none to use.

        If the address does not name it, it is at Apache Pulsar's default port of the first host.
        """
        if self.admin is not None:
            return "" if self.admin == NO_ADMIN else self.admin
        scheme = "https" if self.tls else "http"
        host = self.hosts[0][0]
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{ADMIN_PORTS[scheme]}"

    def __str__(self) -> str:
        scheme = "pulsar+ssl" if self.tls else "pulsar"
        return f"{scheme}://" + ",".join(f"{host}:{port}" for host, port in self.hosts)


def _host(text: str, default: int, shown: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise SettingError(f"{shown}: {error}") from error
    if not host:
        raise SettingError(f"{shown}: a host is missing")
    return host, default if port is None else port
