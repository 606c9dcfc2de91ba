"""Compaction of topics of the node's own log: the cleanup policy, a run, how the last one went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from router.errors import BadRequestError, NotSupportedError
from router.errors.quoting import quoted
from router.model import TopicName
from router.model.policies import CLEANUP_POLICIES, Policies

NOT_HERE: Final = "This store does not let the router change or run compaction."


class TopicAdministration(Protocol):
    """The administration of topics at the node's broker."""

    def call(self, name: str, **arguments: Any) -> Any:
        """Return the result of a call."""
        ...

    def change_policies(self, of: str | TopicName, policies: Mapping[str, Any]) -> None:
        """Set policies of a topic."""
        ...


class LastCompaction(NamedTuple):
    """The last compaction since the broker started: NOT_RUN, RUNNING, SUCCESS, or ERROR and why."""

    status: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class Compaction:
    """Asks the node's broker; `administration` None: messages do not live there.

    Calls raise NotSupportedError then, and TopicNotFoundError.
    """

    administration: TopicAdministration | None

    @property
    def unavailable_reason(self) -> str:
        """Return why there is none; empty: there is."""
        return NOT_HERE if self.administration is None else ""

    def last(self, topic: TopicName) -> LastCompaction:
        """Return how the last compaction went; of partitions, that of the one least done."""
        return LastCompaction(*self._administration().call("compaction", topic=str(topic)))

    def begin(self, topic: TopicName) -> None:
        """Begin to compact a topic; raise ConflictError if that is under way."""
        self._administration().call("compact", topic=str(topic))

    def set_policy(self, topic: TopicName, cleanup: str) -> None:
        """Change the cleanup policy of a topic; raise BadRequestError for one that is unknown."""
        self._administration().change_policies(topic, {"cleanup_policy": check(cleanup)})

    def _administration(self) -> TopicAdministration:
        if self.administration is None:
            raise NotSupportedError(NOT_HERE)
        return self.administration


def policy_of(policies: Policies) -> str:
    """Return the cleanup policy of a topic, one of the first three of CLEANUP_POLICIES."""
    if policies.compacts:
        return "compact,delete" if policies.deletes else "compact"
    return "delete"


def check(cleanup: str) -> str:
    """Return a cleanup policy if it is one; raise BadRequestError."""
    if cleanup not in CLEANUP_POLICIES:
        expected = ", ".join(CLEANUP_POLICIES[:3])
        raise BadRequestError(f"cleanup policy {quoted(cleanup, 40)}: expected {expected}")
    return cleanup
