"""Who published messages, as bytes that travel and are kept with an entry, and are read on demand.

JSON: the protocol, the principal, the address and the client of one source; of an entry that
several requests share, pairs of a number of messages and their source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import orjson

NO_SOURCE: Final = b""
"""It is not known."""
MAX_TEXT: Final = 200
"""Characters of each field."""
MAX_SHARED: Final = 256
"""Sources of one entry; of more none is kept."""


@dataclass(frozen=True, slots=True)
class PublishSource:
    """Who published a message; fields are empty where that is not known."""

    protocol: str
    principal: str
    address: str
    client: str


@lru_cache(1_024)
def encode_source(protocol: str, principal: str, address: str, client: str) -> bytes:
    """Return the bytes of one source; texts are cut."""
    fields = protocol, principal, address, client
    return orjson.dumps([one[:MAX_TEXT].encode("utf-8", "replace").decode() for one in fields])


def shared_source(parts: Sequence[tuple[int, bytes]]) -> bytes:
    """Return the source of an entry that numbers of messages of several sources share."""
    runs: list[tuple[int, bytes]] = []
    for count, source in parts:
        if runs and runs[-1][1] == source:
            runs[-1] = runs[-1][0] + count, source
        else:
            runs.append((count, source))
    if len(runs) == 1:
        return runs[0][1]
    if len(runs) > MAX_SHARED:
        return NO_SOURCE
    return b"[%b]" % b",".join(b"[%d,%b]" % (count, source or b"null") for count, source in runs)


def source_at(source: bytes, index: int) -> PublishSource | None:
    """Return who published the message of an index in its entry, None: that is not known."""
    found: Any = orjson.loads(source or b"null")
    if found and isinstance(found[0], list):
        for count, fields in found:
            if index < count:
                return PublishSource(*fields) if fields else None
            index -= count
        return None
    return PublishSource(*found) if found else None
