"""What the header Authorization may carry: a name and a password (Basic), or a token (Bearer)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from router.errors import UnauthenticatedError
from router.model import Principal
from router.web.access.passwords import Passwords

if TYPE_CHECKING:
    import socket

    from router.access.tokens import Tokens

_BEARER: Final = "bearer"


class Authorization:
    """Answers who sent a header; callable from many threads or greenlets."""

    def __init__(self, passwords: Passwords | None, tokens: Tokens | None) -> None:
        self._passwords = passwords
        self._tokens = tokens

    def principal(
        self, authorization: str, address: str, client: socket.socket | None
    ) -> Principal:
        """Return who sent this Authorization header from this address, over this connection.

        Raises UnauthenticatedError, or TooManyRequestsError after too many passwords.
        """
        scheme, _, token = authorization.partition(" ")
        if self._tokens is not None and scheme.lower() == _BEARER:
            return self._tokens.identity(token.strip()).principal
        if self._passwords is None:
            raise UnauthenticatedError("This server takes tokens: Authorization: Bearer …")
        return self._passwords.principal(authorization, address, client)
