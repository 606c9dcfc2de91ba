"""The file of contexts: named servers with the credentials for them, readable by its user alone."""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from router.cli import private_file
from router.errors import SettingError
from router.errors.quoting import failure_text, quoted

LOCAL: Final = "local"
"""The name that stands for the data folder: no context."""
FOLDER: Final = "dragoman"
FILE: Final = "contexts.json"
MAX_FILE_BYTES: Final = 1 << 20
MAX_SECRET_BYTES: Final = 64 << 10
LOCK_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.05
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Context:
    """A server, and how commands say who they are; empty texts are not given.

    Either a `user`, with the `password` or the file of one, or the file of a token. `ca` is a file
    of certificates that are trusted instead of the system's. `namespace` is that of topics without
    one, as the server's settings names.tenant and names.namespace say.
    """

    server: str
    user: str = ""
    password: str = field(default="", repr=False)
    password_file: str = ""
    token: str = field(default="", repr=False)
    token_file: str = ""
    ca: str = ""
    namespace: str = "public/default"

    def credentials(self) -> tuple[str, str]:
        """Return the scheme of `Authorization` and the secret; ("", ""): none.

        Files are read again. Raises SettingError.
        """
        if self.token or self.token_file:
            return "Bearer", self.token or secret(Path(self.token_file))
        if not self.user:
            return "", ""
        return "Basic", self.password or (
            secret(Path(self.password_file)) if self.password_file else ""
        )


@dataclass(frozen=True, slots=True)
class Contexts:
    """All contexts, and which of them commands use that name none."""

    known: Mapping[str, Context] = field(default_factory=dict)
    current: str = LOCAL

    def get(self, name: str) -> Context:
        """Return a context; raise SettingError if there is none of the name."""
        if name not in self.known:
            names = ", ".join(sorted(self.known)) or "none"
            raise SettingError(f"There is no context {quoted(name)}; there are: {names}.")
        return self.known[name]


def path(environ: Mapping[str, str]) -> Path:
    """Return where the file is: in $XDG_CONFIG_HOME, else in ~/.config."""
    given = Path(environ.get("XDG_CONFIG_HOME", ""))
    # A relative path is invalid and passed over (XDG Base Directory Specification).
    home = given if given.is_absolute() else Path(environ.get("HOME", "~")).expanduser() / ".config"
    return home / FOLDER / FILE


def load(file: Path) -> Contexts:
    """Read the file; none: there are no contexts. Raises SettingError."""
    try:
        with file.open("rb") as source:
            _check_private(file, os.fstat(source.fileno()))
            text = source.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise SettingError(f"{file}: {failure_text(error)}") from error
    if len(text) > MAX_FILE_BYTES:
        raise SettingError(f"{file}: it has more than {MAX_FILE_BYTES} bytes")
    try:
        return _read(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SettingError(
            f"{file}: this is no file of contexts; `router context` writes it"
        ) from error


@contextmanager
def changing(file: Path) -> Iterator[dict[str, Any]]:
    """Change the file: yields its document, and writes it unless the body raises.

    Others that change it wait meanwhile. Raises SettingError.
    """
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(file):
            found = load(file)
            document: dict[str, Any] = {"contexts": dict(found.known), "current": found.current}
            yield document
            _write(file, Contexts(document["contexts"], document["current"]))
    except OSError as error:
        raise SettingError(f"{file}: {failure_text(error)}") from error


def check_name(name: str) -> str:
    """Return a name that a context may have; raise SettingError."""
    if not _NAME.fullmatch(name):
        raise SettingError(
            f"context name {quoted(name)}: allowed are 1 to 64 of A-Z a-z 0-9 . _ -, a letter or"
            " digit first"
        )
    if name == LOCAL:
        raise SettingError(f"context name {LOCAL}: this is the data folder; take another name")
    return name


def check_server(url: str) -> str:
    """Return the URL of a server without a slash at its end; raise SettingError."""
    try:
        parts = urlsplit(url)
        port_is_good = parts.port is None or parts.port > 0
    except ValueError:
        parts, port_is_good = urlsplit(""), False
    if parts.scheme not in {"http", "https"} or not parts.hostname or not port_is_good:
        raise SettingError("server: expected a URL such as https://router.example.org:3905")
    if parts.username is not None or parts.password is not None:
        raise SettingError(
            "server: the URL holds a user or password; use --user, which asks for it"
        )
    if parts.query or parts.fragment or not url.isascii() or not url.isprintable() or " " in url:
        raise SettingError(
            "server: expected scheme, host, port and path in ASCII, and nothing else"
        )
    return url.rstrip("/")


def check_namespace(text: str) -> str:
    """Return a tenant and a namespace; raise SettingError."""
    if not re.fullmatch(r"[A-Za-z0-9._=:-]{1,249}/[A-Za-z0-9._=:-]{1,249}", text):
        raise SettingError(f"namespace {quoted(text)}: expected TENANT/NAMESPACE")
    return text


def secret(file: Path) -> str:
    """Return the password or token in a file, without the line end; raise SettingError."""
    try:
        with file.open("rb") as source:
            raw = source.read(MAX_SECRET_BYTES + 1)
        text = raw.decode().strip("\r\n")
    except OSError as error:
        raise SettingError(f"{file}: {failure_text(error)}") from error
    except UnicodeDecodeError as error:
        raise SettingError(f"{file}: this is no text") from error
    if not text or len(raw) > MAX_SECRET_BYTES or "\n" in text:
        raise SettingError(f"{file}: expected one line with a password or token")
    return text


def _check_private(file: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise SettingError(f"{file}: it belongs to another user, and is not read")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise SettingError(
            f"{file}: other users may read it, and it holds passwords: chmod 600 {file}"
        )


def _read(document: dict[str, Any]) -> Contexts:
    names = {one.name for one in fields(Context)}
    known = {}
    for name, given in document["contexts"].items():
        if given.keys() - names or not all(isinstance(text, str) for text in given.values()):
            raise ValueError("fields")
        known[name] = Context(**given)
    current = document.get("current", LOCAL)
    return Contexts(known, current if current in known else LOCAL)


def _write(file: Path, contexts: Contexts) -> None:
    document = {
        "current": contexts.current,
        "contexts": {
            name: {key: text for key, text in asdict(one).items() if text}
            for name, one in sorted(contexts.known.items())
        },
    }
    private_file.replace(file, json.dumps(document, indent=2) + "\n")


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    lock = os.open(file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        end = time.monotonic() + LOCK_SECONDS
        while not _taken(lock):
            if time.monotonic() > end:
                raise SettingError(f"{file}: another command is changing it")
            time.sleep(POLL_SECONDS)
        yield
    finally:
        os.close(lock)
