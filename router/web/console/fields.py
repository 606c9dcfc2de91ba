"""The fields of the console's forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl
from wsgiref.types import WSGIEnvironment

from werkzeug.http import parse_options_header

from router.errors import BadRequestError, UnsupportedEncodingError
from router.errors.quoting import quoted
from router.web import requests
from router.web.media import media_type

MAX_FORM_BYTES: Final = 2 * 1024 * 1024
MAX_FIELDS: Final = 100
MAX_DIGITS: Final = 15
FORM: Final = "application/x-www-form-urlencoded"
MULTIPART: Final = "multipart/form-data"
MAX_UPLOAD_BYTES: Final = 33 * 1024 * 1024
"""Of a form with a file, all fields together."""
_READ: Final = "router.console.fields"


@dataclass(frozen=True, slots=True)
class Upload:
    """A file; its name is what the browser says it is."""

    file_name: str
    data: bytes


class Fields:
    """A form as it was sent; each method raises BadRequestError for a field that it cannot read.

    It may be made more than once for a request: the body is read once. `limit` is of its bytes;
    without one it is MAX_FORM_BYTES, and MAX_UPLOAD_BYTES for a form with files.
    """

    def __init__(self, environ: WSGIEnvironment, limit: int | None = None) -> None:
        if _READ not in environ:
            environ[_READ] = self._read(environ, limit)
        self._found: dict[str, str | Upload] = environ[_READ]

    @staticmethod
    def _read(environ: WSGIEnvironment, limit: int | None) -> dict[str, str | Upload]:
        kind = media_type(environ.get("CONTENT_TYPE", ""))
        if kind == MULTIPART:
            return _parts(environ, limit or MAX_UPLOAD_BYTES)
        if kind != FORM:
            raise UnsupportedEncodingError(f"Content-Type: expected {FORM}, not {quoted(kind)}.")
        body = requests.body(environ, limit or MAX_FORM_BYTES)
        try:
            pairs = parse_qsl(
                body.decode("ascii"),
                keep_blank_values=True,
                errors="strict",
                max_num_fields=MAX_FIELDS,
            )
        except ValueError as error:  # UnicodeError too
            raise BadRequestError(
                f"The form cannot be read: expected at most {MAX_FIELDS} fields in UTF-8."
            ) from error
        return dict(reversed(pairs))

    def text(self, name: str, default: str | None = None) -> str:
        """Return a field; line breaks are LF, which browsers send as CRLF."""
        found = self._found.get(name, default)
        if not isinstance(found, str):
            raise BadRequestError(f"{name}: the form has no such field.")
        return found.replace("\r\n", "\n")

    def names(self, prefix: str) -> list[str]:
        """Return the names of fields that begin so, in their order."""
        return [name for name in reversed(self._found) if name.startswith(prefix)]

    def texts(self) -> dict[str, str]:
        """Return all fields that are no files, in their order."""
        found = reversed(self._found.items())
        return {name: self.text(name) for name, value in found if isinstance(value, str)}

    def upload(self, name: str) -> Upload | None:
        """Return a file, None: the form has none."""
        found = self._found.get(name)
        return found if isinstance(found, Upload) and (found.file_name or found.data) else None

    @property
    def has_upload(self) -> bool:
        """Return whether the form has a file."""
        return any(self.upload(name) is not None for name in self._found)

    def number(self, name: str) -> int | None:
        """Return a whole number, None: the field is empty or not there."""
        text = self.text(name, "").strip()
        if not text:
            return None
        if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
            raise BadRequestError(f"{name}: expected a whole number, not {quoted(text, 40)}.")
        return int(text)


def fields_read(environ: WSGIEnvironment) -> Fields | None:
    """Return the form of a request, None: none was read."""
    return Fields(environ) if _READ in environ else None


def _parts(environ: WSGIEnvironment, limit: int) -> dict[str, str | Upload]:
    """Return the fields of a form with files (RFC 7578); the first of a name counts."""
    _, options = parse_options_header(environ.get("CONTENT_TYPE", ""))
    boundary = options.get("boundary", "").encode()
    body = b"\r\n" + requests.body(environ, limit)
    parts = body.split(b"\r\n--" + boundary, MAX_FIELDS + 2)
    whole = bool(boundary) and len(parts) > 1 and parts[-1].startswith(b"--")
    if not whole or len(parts) > MAX_FIELDS + 2:
        raise BadRequestError(
            f"The form cannot be read: expected {MULTIPART} with a boundary, at most"
            f" {MAX_FIELDS} fields."
        )
    return dict(map(_part, reversed(parts[1:-1])))


def _part(part: bytes) -> tuple[str, str | Upload]:
    head, _, data = part.partition(b"\r\n\r\n")
    try:
        options = _disposition(head.decode())
        name, file_name = options["name"], options.get("filename")
        return name, data.decode() if file_name is None else Upload(file_name, data)
    except (UnicodeDecodeError, KeyError) as error:
        raise BadRequestError(
            "The form cannot be read: expected parts with a name, in UTF-8."
        ) from error


def _disposition(head: str) -> dict[str, str]:
    """Return the parameters of a part's Content-Disposition."""
    for line in head.split("\r\n"):
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-disposition":
            return parse_options_header(value)[1]
    return {}
