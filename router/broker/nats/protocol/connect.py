"""What a client sends in CONNECT: its options, and who it is."""

from __future__ import annotations

from typing import Any, Final

from router.broker.transport.authentication import BASIC, TOKEN

MAX_NAME: Final = 100
AUTHORIZATION_VIOLATION: Final = "Authorization Violation"


class ConnectOptionsError(Exception):
    """The options of a CONNECT have other types than they should, or do not go together."""


def _flag(options: dict[str, Any], name: str, *, default: bool) -> bool:
    value = options.get(name, default)
    if not isinstance(value, bool):
        raise ConnectOptionsError("Parser Error")
    return value


def _text(options: dict[str, Any], name: str) -> str:
    value = options.get(name) or ""
    if not isinstance(value, str):
        raise ConnectOptionsError("Parser Error")
    return value


class ConnectOptions:
    """The options of a CONNECT; before it, the defaults of the protocol hold."""

    __slots__ = (
        *("echo", "headers", "lang", "name", "no_responders", "pedantic", "verbose", "version"),
    )

    def __init__(self, options: dict[str, Any]) -> None:
        self.verbose = _flag(options, "verbose", default=True)
        self.pedantic = _flag(options, "pedantic", default=True)
        self.echo = _flag(options, "echo", default=True)
        self.headers = _flag(options, "headers", default=False)
        self.no_responders = _flag(options, "no_responders", default=False)
        self.name = _text(options, "name")[:MAX_NAME]
        self.lang = _text(options, "lang")[:MAX_NAME]
        self.version = _text(options, "version")[:MAX_NAME]
        if self.no_responders and not self.headers:
            raise ConnectOptionsError("no responders requires headers support")

    @property
    def software(self) -> str:
        """Return the library that the client uses."""
        return f"{self.lang} {self.version}".strip()


DEFAULT_OPTIONS: Final = ConnectOptions({})


def credentials(options: dict[str, Any]) -> tuple[str, bytes]:
    """Return the method and data of what a client presents in CONNECT; raise ConnectOptionsError.

    That is a name and password, or a token; a name alone is a token, as clients send one.
    """
    user, password = _text(options, "user"), _text(options, "pass")
    token = _text(options, "auth_token")
    if ":" in user:
        raise ConnectOptionsError(AUTHORIZATION_VIOLATION)
    if password:
        return BASIC, f"{user}:{password}".encode()
    if token or user:
        return TOKEN, (token or user).encode("latin-1", "replace")
    return "none", b""
