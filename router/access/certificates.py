"""The certificate of a TLS listener: files that are checked at the start, and again for changes.

New connections check the files for changes, at most once a second, and use a renewed certificate
from then on. While new files do not load (the certificate is new, its key not yet), the old ones
are used, and a warning is logged. A renewal needs neither a restart nor a signal.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog

from router.access.watched import reloadable
from router.errors import SettingError

CHECK_INTERVAL_SECONDS: Final = 1.0

_log = structlog.get_logger(__name__)


class PemFile(NamedTuple):
    """A file in PEM form, and the setting that names it; `name` is "" if it names none."""

    setting: str
    name: str


class Certificates:
    """The certificate of a listener, its key, and the authorities of clients' certificates."""

    def __init__(self, cert: PemFile, key: PemFile, client_ca: PemFile) -> None:
        self._cert = cert
        self._key = key
        self._client_ca = client_ca
        self._context: ssl.SSLContext | None = None
        self._seen: tuple[object, ...] = ()
        self._checked_at = 0.0
        reloadable(self)

    def context(self) -> ssl.SSLContext:
        """Return the context of new connections, from the files as they are now.

        It is made in the process that serves, because gevent has classes of its own.
        """
        now = time.monotonic()
        context = self._context
        if context is None or now - self._checked_at >= CHECK_INTERVAL_SECONDS:
            self._checked_at = now  # without a lock: two threads at once find the same files
            self._context = context = self._renewed(context)
        return context

    def reload(self) -> None:
        """Load the files now, for new connections; raise SettingError.

        The next connection makes its context from the files as they are then.
        """
        self.load()
        self._seen, self._checked_at = (), 0.0

    def _renewed(self, old: ssl.SSLContext | None) -> ssl.SSLContext:
        """Return the old context if the files have not changed, or do not load."""
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
        """Return a context from the files; raise SettingError if they do not fit together."""
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

    None if it has none, or several: the authority vouched for one name, and it is not known which.
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


def _readable(file: PemFile) -> None:
    try:
        with Path(file.name).open("rb"):
            pass
    except OSError as error:
        raise SettingError(f"{file.setting} = {file.name!r}: {error.strerror}") from error


def _no_password() -> str:
    raise SettingError("the key of the certificate is locked with a password: unlock it for us")


def _unfit(cert: PemFile, key: PemFile, error: OSError | ValueError) -> str:
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
