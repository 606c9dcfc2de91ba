"""TLS of the HTTP server: the files that are checked before anything starts, and their context.

gunicorn's own TLS settings hold for all of its listeners, so that one process cannot serve HTTP on
one port and HTTPS on another. Here the workers wrap the connections of the TLS port themselves, in
the greenlet or thread of the connection: a handshake that never comes holds up no other one, and
ends after HANDSHAKE seconds. The alternative, a second gunicorn for the second port, would double
the workers, and with them the broker's clients.

How files are renewed is in router/access/certificates.py.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable
from typing import Any, Final
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import structlog

from router.access.certificates import Certificates, PemFile, common_name
from router.errors import SettingError
from router.settings import Settings

HANDSHAKE_SECONDS: Final = 5.0
NAME_KEY: Final = "router.client_name"

_log = structlog.get_logger(__name__)


def tls_of(settings: Settings) -> Tls | None:
    """Return how HTTPS is served, None: not at all; raise SettingError where that cannot work."""
    cert, key = settings.text("server.cert"), settings.text("server.key")
    client_ca, port = settings.text("server.client_ca"), settings.number("server.tls_port")
    if not cert:
        given = {"server.key": key, "server.client_ca": client_ca, "server.tls_port": port}
        for name, value in given.items():
            if value:
                raise SettingError(f"{name} is set, but no certificate: name one with server.cert")
        return None
    if port and port == settings.number("server.port"):
        raise SettingError(
            f"server.tls_port and server.port are both {port}: leave server.tls_port out to serve"
            " HTTPS alone"
        )
    tls = Tls(cert, key, client_ca, port)
    tls.load()
    return tls


class Tls(Certificates):
    """The certificate of the server; `port` has HTTPS, 0: every port."""

    def __init__(self, cert: str, key: str, client_ca: str, port: int) -> None:
        super().__init__(
            PemFile("server.cert", cert),
            PemFile("server.key", key),
            PemFile("server.client_ca", client_ca),
        )
        self.port = port
        self.client_ca = client_ca

    def serves(self, address: Any) -> bool:
        """Return whether connections to this local address speak TLS."""
        return not self.port or (isinstance(address, tuple) and address[1] == self.port)

    def wrap(self, client: socket.socket) -> ssl.SSLSocket:
        """Return the connection as one that speaks TLS; the handshake is still to come.

        The socket that was handed in is empty afterwards. Raises OSError, also where a worker that
        is new finds no certificate that loads: it tries again with the next connection.
        """
        try:
            context = self.context()
        except SettingError as error:
            _log.error("no HTTPS: the certificate does not load", why=str(error))
            raise ConnectionAbortedError(str(error)) from error
        return context.wrap_socket(client, server_side=True, do_handshake_on_connect=False)


class Secure:
    """A WSGI application that marks requests that came over TLS, with the name of the client.

    `wsgi.url_scheme` is https for them. `router.client_name` is the common name of a client
    certificate that one of the authorities in server.client_ca signed; there is none otherwise.
    """

    def __init__(self, application: WSGIApplication) -> None:
        self._application = application

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Serve one request."""
        client = environ.get("gunicorn.socket")
        if isinstance(client, ssl.SSLSocket):
            environ["wsgi.url_scheme"] = "https"
            if name := common_name(client.getpeercert):
                environ[NAME_KEY] = name
        return self._application(environ, start_response)
