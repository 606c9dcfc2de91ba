"""Who may do what, from one registry to another: API keys, owners, lists, blacklist and secrets.

What is in the other registry already and says something else stays: it was changed there since, or
its nodes made a secret of their own. What this copy wrote itself, and is as it was written, follows
the source, deletions included, for as long as the copy runs: a node that serves the target
meanwhile refuses what the source refuses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from router.access.addresses import BLACKLIST_RECORDS
from router.access.authorizer import TOPIC_RECORDS
from router.node import Node
from router.services import keys, shared_secret
from router.services.record_moving import MovableRecord, MoveStep, Name, Standing, compare, write

KINDS: Final = (
    keys.KIND,
    TOPIC_RECORDS,
    BLACKLIST_RECORDS,
    shared_secret.KIND,
    shared_secret.ENDED_SESSIONS,
)


@dataclass(slots=True)
class AccessReport:
    """What was copied: numbers of records, and a sentence for each that could not be written.

    `same` were there before; `different` are there and say something else, each by kind and name:
    they stay as they are.
    """

    copied: int = 0
    same: int = 0
    different: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def differs(self) -> int:
        """Return how many records say something else than those of the source."""
        return len(self.different)

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON document."""
        return asdict(self)


@dataclass(slots=True)
class AccessCopy:
    """The copy of the records of one node's registry to another's; `copy` for one caller at a time.

    `same_store`: both keep their messages in one store, so that what a registry knows of its topics
    holds for both. `timeout` bounds each request, in seconds.
    """

    source: Node
    target: Node
    timeout: float
    same_store: bool = False
    _written: dict[Name, int] = field(default_factory=dict, init=False)
    """The versions of the records that this copy wrote."""

    def copy(self, *, apply: bool) -> AccessReport:
        """Copy what is new or changed since the last call; without `apply` only count it.

        The report counts everything since the first call. Raises BackendUnavailableError,
        BackendTimeoutError.
        """
        kinds = (*KINDS, *(_store_kinds() if self.same_store else ()))
        found = [
            MovableRecord(kind, record.name, record.value)
            for kind in kinds
            for record in self.source.registry.list(kind, self.timeout)
        ]
        steps = compare(found, self.target.registry, self.timeout)
        mine = [step for step in steps if self._is_mine(step)]
        others = [step for step in steps if _name(step) not in self._written]
        changed = [s for s in steps if _name(s) in self._written and not self._is_mine(s)]
        failures = []
        if apply:
            failures += self._write(others, overwrite=False)
            failures += self._write(mine, overwrite=True)
            self._delete(self._written.keys() - {_name(step) for step in steps})
        counts = Counter(step.standing for step in others)
        differ = [s for s in others + changed if s.standing is Standing.DIFFERS]
        return AccessReport(
            len(self._written) if apply else counts[Standing.NEW],
            counts[Standing.SAME],
            [f"{step.found.kind} {step.found.name}" for step in differ],
            failures,
        )

    def _is_mine(self, step: MoveStep) -> bool:
        """Return whether the target's record is as this copy wrote it."""
        return self._written.get(_name(step)) == step.version

    def _write(self, steps: list[MoveStep], *, overwrite: bool) -> list[str]:
        return write(steps, self.target.registry, overwrite, self.timeout, self._written)

    def _delete(self, names: Iterable[Name]) -> None:
        """Delete records that the source has no more, unless they were changed at the target."""
        for kind, name in names:
            record = self.target.registry.get(kind, name, self.timeout)
            if record is not None and record.version == self._written[kind, name]:
                self.target.registry.delete(kind, name, self.timeout)
            del self._written[kind, name]


def _name(step: MoveStep) -> Name:
    return step.found.kind, step.found.name


def _store_kinds() -> tuple[str, ...]:
    """Return the kinds of records about topics that a store keeps in the registry."""
    from router.backends.kafka import known_topics  # noqa: PLC0415 - most copies need no Kafka

    return known_topics.TOPICS, known_topics.GROUPS
