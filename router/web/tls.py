"""TLS of the HTTP server: the files that are checked before anything starts, and their context.

gunicorn's own TLS settings hold for all of its listeners, so that one process cannot serve HTTP on
one port and HTTPS on another. Here the workers wrap the connections of the TLS port themselves, in
the greenlet or thread of the connection: a handshake that never comes holds up nobody else, and
ends after HANDSHAKE seconds. The alternative, a second gunicorn for the second port, would double
the workers, and with them the broker's clients.

The files are looked at again for new connections, once a second at most: a renewed certificate
serves from then on. While new files do not load (a certificate is there, its key not yet) the old
ones serve, and a warning says so. Nothing needs a restart or a signal.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from router.errors import SettingError

if TYPE_CHECKING:
    import socket

    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

    from router.settings import Settings

HANDSHAKE: Final = 5.0
LOOK_EVERY: Final = 1.0
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


class Tls:
    """The certificate of the server; `port` has HTTPS, 0: every port."""

    def __init__(self, cert: str, key: str, client_ca: str, port: int) -> None:
        self.port = port
        self.client_ca = client_ca
        self._cert = cert
        self._key = key
        self._context: ssl.SSLContext | None = None
        self._seen: tuple[object, ...] = ()
        self._looked = 0.0

    def serves(self, address: Any) -> bool:
        """Return whether connections to this local address speak TLS."""
        return not self.port or (isinstance(address, tuple) and address[1] == self.port)

    def wrap(self, client: socket.socket) -> ssl.SSLSocket:
        """Return the connection as one that speaks TLS; the handshake is still to come.

        The socket that was handed in is empty afterwards. Raises OSError, also where a worker that
        is new finds no certificate that loads: it looks again at the next connection.
        """
        try:
            context = self.context()
        except SettingError as error:
            _log.error("no HTTPS: the certificate does not load", why=str(error))
            raise ConnectionAbortedError(str(error)) from error
        return context.wrap_socket(client, server_side=True, do_handshake_on_connect=False)

    def context(self) -> ssl.SSLContext:
        """Return the context of new connections, from the files as they are now.

        It is made in the process that serves, since gevent brings classes of its own.
        """
        now = time.monotonic()
        context = self._context
        if context is None or now - self._looked >= LOOK_EVERY:
            self._looked = now  # without a lock: two threads that look at once find the same
            self._context = context = self._renewed(context)
        return context

    def _renewed(self, old: ssl.SSLContext | None) -> ssl.SSLContext:
        """Return the old context while the files are as they were, or do not load."""
        seen = tuple(_state(name) for name in (self._cert, self._key, self.client_ca))
        if old is not None and seen == self._seen:
            return old
        self._seen = seen
        try:
            context = self.load()
        except SettingError as error:
            if old is None:
                raise
            _log.warning("the old certificate serves on, the new does not load", why=str(error))
            return old
        if old is not None:
            _log.warning("a new certificate serves", file=self._cert)
        return context

    def load(self) -> ssl.SSLContext:
        """Read the files; raise SettingError with a sentence when they do not go together."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        for name, file in (("server.cert", self._cert), ("server.key", self._key)):
            if file:
                _readable(name, file)
        try:
            context.load_cert_chain(self._cert, self._key or None, password=_no_password)
        except SettingError:
            raise
        except (OSError, ValueError) as error:
            raise SettingError(_unfit(self._cert, self._key, error)) from error
        if self.client_ca:
            _readable("server.client_ca", self.client_ca)
            try:
                context.load_verify_locations(self.client_ca)
            except (OSError, ValueError) as error:
                raise SettingError(
                    f"server.client_ca = {self.client_ca!r} holds no certificates in PEM form"
                ) from error
            context.verify_mode = ssl.CERT_OPTIONAL
        return context


def _state(name: str) -> tuple[int, int, int] | None:
    try:
        found = Path(name).stat() if name else None
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_ino, found.st_size)


def _readable(name: str, file: str) -> None:
    try:
        with Path(file).open("rb"):
            pass
    except OSError as error:
        raise SettingError(f"{name} = {file!r}: {error.strerror}") from error


def _no_password() -> str:
    raise SettingError("the key of the certificate is locked with a password: unlock it for us")


def _unfit(cert: str, key: str, error: OSError | ValueError) -> str:
    reason = getattr(error, "reason", None) or ""
    if reason == "KEY_VALUES_MISMATCH":
        return f"server.key = {key or cert!r} is not the key of the certificate {cert!r}"
    where = f"server.cert = {cert!r} and server.key = {key!r}" if key else f"server.cert = {cert!r}"
    hint = "" if key else "; without server.key the file must hold the key too"
    return f"{where}: expected a certificate and its key in PEM form ({reason or error}){hint}"


class Secure:
    """A WSGI application that is told which requests came over TLS, and from whom.

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


def common_name(certificate: Callable[[], Any]) -> str | None:
    """Return the common name in a verified certificate as `getpeercert` has it.

    None: it has none, or several, of which nobody could say which one the authority vouched for.
    """
    try:
        found = certificate()
    except (OSError, ValueError):  # the connection is gone
        return None
    subject = (found or {}).get("subject", ())
    names = [str(value) for part in subject for name, value in part if name == "commonName"]
    return names[0] or None if len(names) == 1 else None
