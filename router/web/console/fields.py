"""The fields of the console's forms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from router.errors import BadRequestError, UnsupportedEncodingError
from router.quoting import quoted
from router.web import intake
from router.web.media import media_type

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

MAX_FORM_BYTES: Final = 2 * 1024 * 1024
MAX_FIELDS: Final = 100
MAX_DIGITS: Final = 15
FORM: Final = "application/x-www-form-urlencoded"
_READ: Final = "router.console.fields"


class Fields:
    """A form as it was sent; each method raises BadRequestError for a field that it cannot read.

    It may be made more than once for a request: the body is read once.
    """

    def __init__(self, environ: WSGIEnvironment, limit: int = MAX_FORM_BYTES) -> None:
        if _READ not in environ:
            environ[_READ] = self._read(environ, limit)
        self._found: dict[str, str] = environ[_READ]

    @staticmethod
    def _read(environ: WSGIEnvironment, limit: int) -> dict[str, str]:
        kind = media_type(environ.get("CONTENT_TYPE", ""))
        if kind != FORM:
            raise UnsupportedEncodingError(f"Content-Type: expected {FORM}, not {quoted(kind)}.")
        body = intake.body(environ, limit)
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
        if found is None:
            raise BadRequestError(f"{name}: the form has no such field.")
        return found.replace("\r\n", "\n")

    def names(self, prefix: str) -> list[str]:
        """Return the names of fields that begin so, in their order."""
        return [name for name in reversed(self._found) if name.startswith(prefix)]

    def number(self, name: str) -> int | None:
        """Return a whole number, None: the field is empty or not there."""
        text = self.text(name, "").strip()
        if not text:
            return None
        if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
            raise BadRequestError(f"{name}: expected a whole number, not {quoted(text, 40)}.")
        return int(text)
