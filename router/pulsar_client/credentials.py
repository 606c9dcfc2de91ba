"""How the router shows Apache Pulsar who it is, and whom it trusts there."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from router.errors import SettingError
from router.settings import Settings


@dataclass(frozen=True, slots=True)
class PulsarCredentials:
    """What the settings `pulsar.*` name; files are read when they are needed."""

    token: str = ""
    token_file: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""

    @classmethod
    def from_settings(cls, settings: Settings, *, tls: bool) -> PulsarCredentials:
        """Return what settings name; raise SettingError for what cannot be used."""
        names = ("token", "token_file", "ca", "cert", "key")
        made = cls(*(settings.text(f"pulsar.{name}") for name in names))
        if made.token and made.token_file:
            raise SettingError("pulsar.token and pulsar.token_file: one of them, not both")
        if made.key and not made.cert:
            raise SettingError("pulsar.key is set, but no certificate: name one with pulsar.cert")
        try:
            made.secret()
            made.context()
        except (OSError, ValueError) as error:
            raise SettingError(f"credentials for Pulsar (pulsar.*): {error}") from error
        if (made.cert or made.ca) and not tls:
            raise SettingError(
                "pulsar.ca and pulsar.cert are for TLS: backend.url = pulsar+ssl://host:port"
            )
        return made

    @property
    def method(self) -> str:
        """Return the method of authentication, in Pulsar's words."""
        if self.token or self.token_file:
            return "token"
        return "tls" if self.cert else "none"

    @property
    def shown(self) -> str:
        """Return what is shown, in words that hold no secret."""
        if self.method == "token":
            return f"the token of pulsar.{'token_file' if self.token_file else 'token'}"
        if self.method == "tls":
            return "the certificate of pulsar.cert"
        return "a client without credentials (pulsar.token, pulsar.token_file, pulsar.cert)"

    def secret(self) -> bytes:
        """Return what goes with the method; raise OSError."""
        if self.token_file:
            return Path(self.token_file).read_bytes().strip()
        return self.token.encode()

    def headers(self) -> dict[str, str]:
        """Return what goes with a request of the administration; raise OSError."""
        if self.method != "token":
            return {}
        return {"Authorization": f"Bearer {self.secret().decode('latin-1')}"}

    def context(self) -> ssl.SSLContext:
        """Return how TLS is spoken; raise OSError (of which ssl.SSLError is a kind)."""
        context = ssl.create_default_context(cafile=self.ca or None)
        if self.cert:
            context.load_cert_chain(self.cert, self.key or None, password=_no_password)
        return context


NO_CREDENTIALS = PulsarCredentials()


def _no_password() -> str:
    raise ValueError("the key of pulsar.cert is locked with a password: unlock it for us")
