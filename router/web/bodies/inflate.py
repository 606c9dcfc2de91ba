"""Compressed bodies, unpacked within bounds of size and ratio."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from router.errors import BadFramingError, BatchTooLargeError, UnsupportedEncodingError
from router.errors.quoting import failure_text, quoted
from router.settings.options import SettingsOptions, from_setting

INFLATE_STEP_BYTES: Final = 64 * 1024
# Below this much output the ratio does not matter: small repetitive bodies shrink a lot.
MAX_FREE_BYTES: Final = 256 * 1024
# A gzip body may have several members, as made by appending to a file.
MAX_MEMBERS: Final = 1_000

_GZIP: Final = 16 + zlib.MAX_WBITS


@dataclass(frozen=True, slots=True)
class PublishBounds(SettingsOptions):
    """What one request may publish: bytes after unpacking, growth in unpacking, messages."""

    batch: int = from_setting("publish.max_batch")
    ratio: int = from_setting("publish.max_ratio")
    messages: int = from_setting("publish.max_messages")
    message: int = from_setting("publish.max_message")

    def too_large(self) -> BatchTooLargeError:
        """Return the failure that names the limit."""
        return BatchTooLargeError(f"The limit is {self.batch} bytes.")


def inflate(encoding: str, body: bytes, bounds: PublishBounds) -> bytes:
    """Undo a content encoding; an empty body stays empty.

    Raises UnsupportedEncodingError, BadFramingError when the body is not what the encoding says,
    and BatchTooLargeError as soon as it grows beyond the bounds.
    """
    coding = encoding.strip().lower()
    if coding in {"", "identity"} or not body:
        return body
    if coding in {"gzip", "x-gzip"}:
        kind = _GZIP
    elif coding == "deflate":
        # RFC 9110 means zlib's format; some clients send the bare stream.
        kind = zlib.MAX_WBITS if _is_zlib(body) else -zlib.MAX_WBITS
    else:
        raise UnsupportedEncodingError(
            f"{quoted(encoding, 40)} is none of gzip, deflate, identity."
        )
    return b"".join(_inflated(kind, body, bounds))


def _is_zlib(body: bytes) -> bool:
    return len(body) > 1 and body[0] & 0x0F == 8 and int.from_bytes(body[:2]) % 31 == 0


def max_inflated(size: int, bounds: PublishBounds) -> int:
    """Return how many bytes a compressed body of this size may have without its compression."""
    return min(bounds.batch, max(MAX_FREE_BYTES, bounds.ratio * size))


def _inflated(kind: int, body: bytes, bounds: PublishBounds) -> Iterator[bytes]:
    allowed = max_inflated(len(body), bounds)
    size = at = members = 0
    while at < len(body):
        members += 1
        if members > (MAX_MEMBERS if kind == _GZIP else 1):
            raise BadFramingError(f"Couldn't read compressed format: more follows at byte {at}")
        stream = zlib.decompressobj(kind)
        while not stream.eof:
            piece = body[at : at + INFLATE_STEP_BYTES]
            try:
                part = stream.decompress(piece, INFLATE_STEP_BYTES)
            except zlib.error as error:
                raise BadFramingError(
                    f"Couldn't read compressed format: {failure_text(error)}"
                ) from error
            at += len(piece) - len(stream.unconsumed_tail) - len(stream.unused_data)
            size += len(part)
            if size > allowed:
                raise _over(bounds, allowed)
            if not (part or piece or stream.eof):
                raise BadFramingError("Couldn't read compressed format: it ends too early")
            yield part


def _over(bounds: PublishBounds, allowed: int) -> BatchTooLargeError:
    if allowed == bounds.batch:
        return bounds.too_large()
    return BatchTooLargeError(f"Compressed bodies may grow {bounds.ratio} times at most.")
