"""The cambria framing: `<key length>.<message length>.<key><message>`, lengths in bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from router.errors import BadFramingError
from router.model import Message

LONGEST: Final = 4_096_000
# White space is taken possessively and in steps: a pattern holds the interpreter's lock while it
# matches, and 32 MB of it would otherwise be tried again from each of its bytes.
_HEAD: Final = re.compile(rb"\s{0,65536}+([0-9]{1,10})\.([0-9]{1,10})\.")
_BLANK: Final = re.compile(rb"\s{1,65536}+")


def records(body: bytes) -> Iterator[Message]:
    """Read all records, with white space between them; an empty key is none.

    Raises BadFramingError for a record that does not fit the body or declares over 4,096,000 bytes.
    """
    at = 0
    while head := _HEAD.match(body, at) or _HEAD.match(body, at := _after_blank(body, at)):
        key_length, length = map(int, head.groups())
        if key_length > LONGEST or length > LONGEST:
            raise BadFramingError(
                f"The record at byte {head.start(1)} declares {max(key_length, length)} bytes, over"
                f" {LONGEST}."
            )
        start = head.end()
        middle = start + key_length
        at = middle + length
        if at > len(body):
            raise BadFramingError(
                f"End of stream while reading the {key_length + length} bytes that the record at"
                f" byte {head.start(1)} declares."
            )
        yield Message(body[middle:at], body[start:middle] or None)
    if at < len(body):
        raise BadFramingError(f"Expected <key length>.<message length>. at byte {at}.")


def _after_blank(body: bytes, at: int) -> int:
    while blank := _BLANK.match(body, at):
        at = blank.end()
    return at


def framed(messages: Iterable[Message]) -> bytes:
    """Write messages as records, a line feed after each; `records` reads them back."""
    parts = []
    for message in messages:
        key = message.key or b""
        parts.append(b"%d.%d.%b%b\n" % (len(key), len(message.value), key, message.value))
    return b"".join(parts)
