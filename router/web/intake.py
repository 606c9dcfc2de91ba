"""Reading requests: the query and the body, bounded, whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import parse_qsl

from router.errors import (
    BadRequestError,
    BatchTooLargeError,
    ReadBodyTooLargeError,
    UnsupportedEncodingError,
)
from router.quoting import quoted, said

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

STEP: Final = 256 * 1024
MAX_FIELDS: Final = 100
MAX_IDEMPOTENCY_KEY: Final = 255
# Longest pause within a body; the server bounds the rest of a request itself.
SILENCE: Final = 60.0


class _Stream(Protocol):
    def read(self, size: int = ..., /) -> bytes: ...


def body(environ: WSGIEnvironment, limit: int) -> bytes:
    """Return the body; raise BatchTooLargeError when it exceeds the limit.

    A body that breaks off, or that is chunked wrongly, is refused with BadRequestError, and one in
    another transfer coding, which nobody would undo, with UnsupportedEncodingError.
    """
    coding = environ.get("HTTP_TRANSFER_ENCODING")
    if coding and coding.strip().lower() != "chunked":
        raise UnsupportedEncodingError(f"Transfer-Encoding: {quoted(coding, 40)} is not chunked.")
    length = _length(environ)
    if length == 0:
        return b""
    if length is not None and length > limit:
        raise BatchTooLargeError(f"The limit is {limit} bytes.")
    client = environ.get("gunicorn.socket")
    if client is None:
        return _whole(environ, length, limit)
    patience = client.gettimeout()
    client.settimeout(SILENCE)
    try:
        return _whole(environ, length, limit)
    finally:
        client.settimeout(patience)


def _whole(environ: WSGIEnvironment, length: int | None, limit: int) -> bytes:
    if length is not None:
        found = _read(environ, length)
        if len(found) < length:
            raise BadRequestError(f"The body broke off after {len(found)} of {length} bytes.")
        return found
    parts, size = [], 0
    while part := _read(environ, STEP):
        size += len(part)
        if size > limit:
            raise BatchTooLargeError(f"The limit is {limit} bytes.")
        parts.append(part)
    return b"".join(parts)


def no_body(environ: WSGIEnvironment, limit: int) -> None:
    """Let a reading request have a body that nobody needs; raise ReadBodyTooLargeError."""
    length = _length(environ)
    if length is not None and length <= limit:
        return  # the server reads and drops it
    try:
        body(environ, limit)
    except BatchTooLargeError as error:
        raise ReadBodyTooLargeError(str(error)) from error


def _length(environ: WSGIEnvironment) -> int | None:
    """Return the declared length, None for a chunked body."""
    declared = environ.get("CONTENT_LENGTH")
    if declared:
        try:
            length = int(declared)
        except ValueError:
            length = -1
        if length < 0:
            raise BadRequestError("Content-Length is no number.")
        return length
    return None if environ.get("wsgi.input_terminated") else 0


def _read(environ: WSGIEnvironment, size: int) -> bytes:
    stream: _Stream = environ["wsgi.input"]
    try:
        return stream.read(size)
    except TimeoutError as error:
        raise BadRequestError("The body did not come in time.") from error
    except OSError as error:
        raise BadRequestError("The connection broke off within the body.") from error
    except Exception as error:
        # gunicorn raises failures of its own for malformed chunks; the front runs under any server.
        if not type(error).__module__.startswith("gunicorn.http"):
            raise
        raise BadRequestError(f"The body cannot be read: {said(error)}") from error


def query(environ: WSGIEnvironment) -> Mapping[str, str]:
    """Return the query's parameters, each character one byte as sent; the first of a name wins."""
    text = environ.get("QUERY_STRING", "")
    if not text:
        return {}
    try:
        pairs = parse_qsl(
            text, keep_blank_values=True, encoding="latin-1", max_num_fields=MAX_FIELDS
        )
    except ValueError as error:
        raise BadRequestError(f"The query has more than {MAX_FIELDS} parameters.") from error
    return dict(reversed(pairs))


def idempotency_key(environ: WSGIEnvironment) -> str | None:
    """Return the key of a repeatable publish; raise BadRequestError for one that is too long."""
    key: str | None = environ.get("HTTP_IDEMPOTENCY_KEY")
    if not key:
        return None
    if len(key) > MAX_IDEMPOTENCY_KEY:
        raise BadRequestError(f"Idempotency-Key has more than {MAX_IDEMPOTENCY_KEY} characters.")
    return key
