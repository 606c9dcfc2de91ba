"""Comparing what was found with our registry, and writing what is missing there.

Each record is compared by what it means, not by its bytes, so that moving in twice changes nothing.
A record that is here already and says something else was changed since: it stays, unless it
shall be overwritten, and only as long as it is what was compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from router.access.authorizer import TOPIC_RECORDS
from router.errors import BadRequestError, ConflictError
from router.services import keys
from router.services.keys import ApiKey
from router.services.rights import TopicRights
from router.sharing.registry import Registry, RegistryRecord

_MEANING: Final[dict[str, Callable[[RegistryRecord], Any]]] = {
    keys.KIND: ApiKey.load,
    TOPIC_RECORDS: TopicRights.load,
}


Name = tuple[str, str]
"""The kind and the name of a record."""


@dataclass(frozen=True, slots=True)
class MovableRecord:
    """One record for a registry; `description` is for people, without secrets."""

    kind: str
    name: str
    value: bytes
    description: str = ""


class Standing(Enum):
    """How a record that was found stands to our registry."""

    NEW = "new"
    SAME = "same"
    DIFFERS = "differs"


@dataclass(frozen=True, slots=True)
class MoveStep:
    """One record, and what is to be done about it; `version` is that of ours, 0: there is none."""

    found: MovableRecord
    standing: Standing
    version: int


def compare(found: list[MovableRecord], registry: Registry, timeout: float) -> list[MoveStep]:
    """Return the steps in the order of what was found."""
    here = {
        (kind, record.name): record
        for kind in sorted({one.kind for one in found})
        for record in registry.list(kind, timeout)
    }
    return [_step(one, here.get((one.kind, one.name))) for one in found]


def _step(found: MovableRecord, record: RegistryRecord | None) -> MoveStep:
    if record is None:
        return MoveStep(found, Standing.NEW, 0)
    same = _meaning(found.kind, RegistryRecord(found.name, found.value, 0)) == _meaning(
        found.kind, record
    )
    return MoveStep(found, Standing.SAME if same else Standing.DIFFERS, record.version)


def _meaning(kind: str, record: RegistryRecord) -> Any:
    load = _MEANING.get(kind)
    try:
        return record.value if load is None else load(record)
    except (ValueError, KeyError, TypeError, AttributeError):
        return record.value  # not ours: it differs from anything that can be read


def write(
    steps: list[MoveStep],
    registry: Registry,
    overwrite: bool,
    timeout: float,
    written: dict[Name, int] | None = None,
) -> list[str]:
    """Write what is new, and what differs if so wanted; return a sentence for each failure.

    `written` gets the version of each record that is written. Raises BackendUnavailableError,
    BackendTimeoutError; what was written before that stays.
    """
    failures = []
    written = {} if written is None else written
    for step in steps:
        if step.standing is Standing.NEW or (overwrite and step.standing is Standing.DIFFERS):
            found = step.found
            try:
                record = registry.put(found.kind, found.name, found.value, step.version, timeout)
                written[found.kind, found.name] = record.version
            except (BadRequestError, ConflictError) as error:
                failures.append(f"{found.kind} {found.name}: {error}")
    return failures
