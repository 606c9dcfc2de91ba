"""The registry: what it promises to who uses it, and what a record of it may be."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, Protocol

from router.errors import BadRequestError, ConflictError
from router.errors.quoting import quoted

MAX_NAME_CHARACTERS: Final = 1_024
MAX_VALUE_BYTES: Final = 64 * 1024
GROUP_RECORDS: Final = "kafka-group"
MAX_GROUP_RECORD_BYTES: Final = 16 << 20
"""Of a Kafka group, of which only the broker that has its offsets keeps a record: more than the
limits of a group allow."""
MAX_RECORDS_PER_KIND: Final = 100_000
"""Records of one kind."""

ANY: Final = None
"""Expected by who overwrites whatever there is."""
NEW: Final = 0
"""Expected by who wants no record to be there yet."""

_KIND = re.compile(r"[a-z][a-z0-9-]{0,31}")


@dataclass(frozen=True, slots=True)
class RegistryRecord:
    """One durable fact about administration; `version` changes whenever it is written."""

    name: str
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class RecordVersion:
    """A version of a record."""

    kind: str
    name: str
    version: int


class Registry(Protocol):
    """Small durable facts that all nodes share: API keys, owners and rights of topics, blacklist.

    A *kind* is a set of records, such as `key`; names are unique in it. All calls raise
    BackendUnavailableError, BackendTimeoutError.
    """

    def get(self, kind: str, name: str, timeout: float) -> RegistryRecord | None:
        """Return a record, None: there is none."""
        ...

    def put(
        self, kind: str, name: str, value: bytes, expected: int | None, timeout: float
    ) -> RegistryRecord:
        """Write a record durably, if it has the expected version; 0: only if there is none yet.

        None overwrites whatever there is. Raises ConflictError.
        """
        ...

    def delete(self, kind: str, name: str, timeout: float) -> bool:
        """Delete a record; return whether there was one."""
        ...

    def list(self, kind: str, timeout: float) -> list[RegistryRecord]:
        """Return all records of a kind, by name."""
        ...


class AsyncRegistry(Protocol):
    """The same registry, as the broker process asks for it on its event loop."""

    async def get(self, kind: str, name: str) -> RegistryRecord | None:
        """Return a record, None: there is none."""
        ...

    async def put(self, kind: str, name: str, value: bytes, expected: int | None) -> RegistryRecord:
        """Write a record durably; raise ConflictError unless it has the expected version.

        0: only if there is none yet; None: whatever there is.
        """
        ...

    async def delete(self, kind: str, name: str) -> bool:
        """Delete a record; return whether there was one."""
        ...

    async def list(self, kind: str, after: str = "") -> list[RegistryRecord]:
        """Return the next records of a kind behind a name, by name; none: there are no more.

        A page of them, which fits into an answer.
        """
        ...


async def all_records(registry: AsyncRegistry, kind: str) -> AsyncIterator[RegistryRecord]:
    """Yield all records of a kind, by name, read page by page; raise BackendUnavailableError."""
    after = ""
    while page := await registry.list(kind, after):
        for record in page:
            yield record
        after = page[-1].name


def check_kind(kind: str) -> None:
    """Raise BadRequestError unless this may be a set of records."""
    if not _KIND.fullmatch(kind):
        raise BadRequestError(f"the registry has no kind {quoted(kind)}")


def check_name(kind: str, name: str) -> None:
    """Raise BadRequestError unless a record of this kind may have this name."""
    check_kind(kind)
    if not 1 <= len(name) <= MAX_NAME_CHARACTERS:
        raise BadRequestError(f"a {kind}'s name has 1 to {MAX_NAME_CHARACTERS} characters")


def check_record(kind: str, name: str, value: bytes) -> None:
    """Raise BadRequestError unless this may be a record."""
    check_name(kind, name)
    limit = MAX_GROUP_RECORD_BYTES if kind == GROUP_RECORDS else MAX_VALUE_BYTES
    if len(value) > limit:
        raise BadRequestError(f"{kind} {quoted(name)} has {len(value)} bytes, and may have {limit}")


def check_room(kind: str, records: int) -> None:
    """Raise BadRequestError if there are so many records of a kind that there may be no other."""
    if records >= MAX_RECORDS_PER_KIND:
        raise BadRequestError(f"there are {records} records of the kind {kind} already")


def check_version(kind: str, name: str, expected: int | None, found: int) -> None:
    """Raise ConflictError unless a record has the version expected; found = 0: there is none."""
    if expected is ANY or expected == found:
        return
    if expected == NEW:
        raise ConflictError(f"{kind} {quoted(name)} exists already")
    raise ConflictError(f"{kind} {quoted(name)} was changed or deleted meanwhile")
