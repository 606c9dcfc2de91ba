"""What commands work on: the store of the data folder, or a router elsewhere over HTTP.

Every command is written once, over `StoreConnection`; `local` and `remote` are its two kinds, and
`connecting` opens the one that options name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from router.backends import ResetTarget, Start
    from router.model import Message, PartitionStats, Stored
    from router.services.groups import Preview, TopicGroup


@dataclass(frozen=True, slots=True)
class ListedTopic:
    """A topic in a list; `partitions` = 0: not partitioned, `internal`: it is the store's own."""

    name: str
    partitions: int
    internal: bool


@dataclass(frozen=True, slots=True)
class TopicDetails:
    """A topic and what it holds; a server does not tell of single partitions: None."""

    name: str
    full_name: str
    partitions: int
    properties: dict[str, str]
    parts: Sequence[PartitionStats] | None
    groups: Sequence[TopicGroup]


@dataclass(frozen=True, slots=True)
class Tail:
    """Where reading without a group begins, and when it ends; `silence` in seconds, None: never.

    `start` is an end, a time in ms since 1970, or a place: it goes on behind the message there.
    """

    start: Start | int | str
    silence: float | None


class Consumption(Protocol):
    """A consumer of a group: what it is given comes again unless it is acknowledged."""

    def fetch(self, limit: int, timeout: float) -> list[Stored]:
        """Return messages as soon as there are some, none when the time is over."""
        ...

    def acknowledge(self) -> None:
        """Acknowledge what the last fetch returned, durably."""
        ...

    def close(self) -> None:
        """Let go; what is not acknowledged may be given to others at once."""
        ...


class StoreConnection(Protocol):
    """A store of messages; every call raises RouterError with a sentence."""

    def topics(self, *, internal: bool = False) -> list[ListedTopic]:
        """Return the topics, by name; internal ones only with `internal`."""
        ...

    def topic_names(self) -> list[str]:
        """Return the names of the topics."""
        ...

    def create_topic(self, name: str, partitions: int, cleanup: str | None = None) -> str:
        """Create a topic, maybe with a cleanup policy, and return its name in full.

        Raises TopicExistsError or ConflictError.
        """
        ...

    def delete_topic(self, name: str) -> str:
        """Delete a topic with its messages and groups; return its name in full."""
        ...

    def describe_topic(self, name: str) -> TopicDetails:
        """Return what a topic is and holds."""
        ...

    def latest_value(self, topic: str, key: bytes) -> dict[str, Any]:
        """Return the newest message of a key of a compacted topic, as `services.latest` shows it.

        Raises ValueNotFoundError, TopicNotFoundError, NotAllowedError.
        """
        ...

    def latest_values(self, topic: str, after: str | None, limit: int) -> dict[str, Any]:
        """Return `values`, the newest of each key, and `next`, the `after` of the next page.

        Raises TopicNotFoundError, NotAllowedError, BadRequestError for an unknown `after`.
        """
        ...

    def groups(self, topic: str) -> list[TopicGroup]:
        """Return the groups of a topic, by name."""
        ...

    def describe_group(self, topic: str, group: str) -> dict[str, Any]:
        """Return a group, its members and partitions, as `GroupDetails.as_json` has them."""
        ...

    def preview_reset(self, topic: str, group: str, to: ResetTarget) -> Preview:
        """Return what a reset would change, and change nothing."""
        ...

    def reset_group(self, topic: str, group: str, to: ResetTarget) -> str:
        """Move a group on all partitions, or those of positions; return the topic's full name."""
        ...

    def delete_group(self, topic: str, group: str) -> str:
        """End a group that has no readers; return the topic's name in full."""
        ...

    def dead_letter_topics(self) -> list[dict[str, Any]]:
        """Return the topics of dead letters, with how many wait and are stored."""
        ...

    def dead_letters(self, topic: str, after: str) -> dict[str, Any]:
        """Return dead letters that wait behind a place, as `Page.as_json` has them."""
        ...

    def handle_dead_letters(
        self, topic: str, action: str, fields: Mapping[str, str]
    ) -> dict[str, Any]:
        """Requeue or discard dead letters; fields are the API's: `DeadLetterOutcome.as_json`."""
        ...

    def transactions(self) -> dict[str, Any]:
        """Return the open transactions, as `OpenTransactions.listed` has them."""
        ...

    def describe_transaction(self, name: str) -> dict[str, Any]:
        """Return an open transaction by its id or its producer's; raise ValueNotFoundError."""
        ...

    def abort_transaction(self, name: str) -> dict[str, Any]:
        """Abort an open transaction and return it as it was.

        Raises ValueNotFoundError, ConflictError.
        """
        ...

    def jetstream(self, subject: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer of a call of the JetStream API, of the form `v1`."""
        ...

    def publish(self, topic: str, messages: Sequence[Message], request: str | None) -> int:
        """Store messages and return how many.

        `request` names this call alone among all calls, so that it can be repeated after a lost
        answer; None: it is not repeated then, which is faster for small requests.
        """
        ...

    def tail(self, topic: str, tail: Tail) -> Iterator[list[Stored]]:
        """Yield what is read without a group, or nothing as a sign of life."""
        ...

    def consume(self, topic: str, group: str, consumer: str, start: Start | int) -> Consumption:
        """Open a consumer of a group, which begins at `start` if it is new."""
        ...

    def sibling(self) -> StoreConnection:
        """Return another connection to the same place, for another thread, to be closed."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...
