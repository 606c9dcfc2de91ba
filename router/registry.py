"""What a record of the registry may be, wherever the registry is kept."""

from __future__ import annotations

import re
from typing import Final

from router.errors import BadRequestError, ConflictError
from router.quoting import quoted

MAX_NAME: Final = 1_024
MAX_VALUE: Final = 64 * 1024
MAX_RECORDS: Final = 100_000
"""Records of one kind."""

ANY: Final = None
"""Expected by who overwrites whatever there is."""
NEW: Final = 0
"""Expected by who wants no record to be there yet."""

_KIND = re.compile(r"[a-z][a-z0-9-]{0,31}")


def check_kind(kind: str) -> None:
    """Raise BadRequestError unless this may be a set of records."""
    if not _KIND.fullmatch(kind):
        raise BadRequestError(f"the registry has no kind {quoted(kind)}")


def check_name(kind: str, name: str) -> None:
    """Raise BadRequestError unless a record of this kind may have this name."""
    check_kind(kind)
    if not 1 <= len(name) <= MAX_NAME:
        raise BadRequestError(f"a {kind}'s name has 1 to {MAX_NAME} characters")


def check_record(kind: str, name: str, value: bytes) -> None:
    """Raise BadRequestError unless this may be a record."""
    check_name(kind, name)
    if len(value) > MAX_VALUE:
        raise BadRequestError(
            f"{kind} {quoted(name)} has {len(value)} bytes, and may have {MAX_VALUE}"
        )


def check_room(kind: str, records: int) -> None:
    """Raise BadRequestError if there are so many records of a kind that there may be no other."""
    if records >= MAX_RECORDS:
        raise BadRequestError(f"there are {records} records of the kind {kind} already")


def check_version(kind: str, name: str, expected: int | None, found: int) -> None:
    """Raise ConflictError unless a record has the version expected; found = 0: there is none."""
    if expected is ANY or expected == found:
        return
    if expected == NEW:
        raise ConflictError(f"{kind} {quoted(name)} exists already")
    raise ConflictError(f"{kind} {quoted(name)} was changed or deleted meanwhile")
