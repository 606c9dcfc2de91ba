"""The certificate of a TLS listener: files that are checked before anything starts, and renewed.

The files are looked at again for new connections, once a second at most: a renewed certificate
serves from then on. While new files do not load (a certificate is there, its key not yet) the old
ones serve, and a warning says so. Nothing needs a restart or a signal.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog

from router.access.reloading import reloadable
from router.errors import SettingError

LOOK_EVERY: Final = 1.0

_log = structlog.get_logger(__name__)


class File(NamedTuple):
    """A file in PEM form, and the setting that names it; "" where none is named."""

    setting: str
    name: str


class Certificates:
    """The certificate of a listener, its key, and who may sign those of clients."""

    def __init__(self, cert: File, key: File, client_ca: File) -> None:
        self._cert = cert
        self._key = key
        self._client_ca = client_ca
        self._context: ssl.SSLContext | None = None
        self._seen: tuple[object, ...] = ()
        self._looked = 0.0
        reloadable(self)

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

    def reload(self) -> None:
        """Load the files now, for connections from now on; raise SettingError.

        The next connection makes its context of the files as they are then.
        """
        self.load()
        self._seen, self._looked = (), 0.0

    def _renewed(self, old: ssl.SSLContext | None) -> ssl.SSLContext:
        """Return the old context while the files are as they were, or do not load."""
        seen = tuple(_state(file.name) for file in (self._cert, self._key, self._client_ca))
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
            _log.warning("a new certificate serves", file=self._cert.name)
        return context

    def load(self) -> ssl.SSLContext:
        """Read the files; raise SettingError with a sentence when they do not go together."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        for file in (self._cert, self._key):
            if file.name:
                _readable(file)
        try:
            context.load_cert_chain(self._cert.name, self._key.name or None, password=_no_password)
        except SettingError:
            raise
        except (OSError, ValueError) as error:
            raise SettingError(_unfit(self._cert, self._key, error)) from error
        if self._client_ca.name:
            _readable(self._client_ca)
            try:
                context.load_verify_locations(self._client_ca.name)
            except (OSError, ValueError) as error:
                raise SettingError(
                    f"{self._client_ca.setting} = {self._client_ca.name!r} holds no certificates in"
                    " PEM form"
                ) from error
            context.verify_mode = ssl.CERT_OPTIONAL
        return context


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


def _state(name: str) -> tuple[int, int, int] | None:
    try:
        found = Path(name).stat() if name else None
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_ino, found.st_size)


def _readable(file: File) -> None:
    try:
        with Path(file.name).open("rb"):
            pass
    except OSError as error:
        raise SettingError(f"{file.setting} = {file.name!r}: {error.strerror}") from error


def _no_password() -> str:
    raise SettingError("the key of the certificate is locked with a password: unlock it for us")


def _unfit(cert: File, key: File, error: OSError | ValueError) -> str:
    reason = getattr(error, "reason", None) or ""
    if reason == "KEY_VALUES_MISMATCH":
        file = key.name or cert.name
        return f"{key.setting} = {file!r} is not the key of the certificate {cert.name!r}"
    where, hint = f"{cert.setting} = {cert.name!r}", ""
    if key.name:
        where += f" and {key.setting} = {key.name!r}"
    else:
        hint = f"; without {key.setting} the file must hold the key too"
    return f"{where}: expected a certificate and its key in PEM form ({reason or error}){hint}"
