"""What a scenario can ask of any Kafka client: one interface over libraries, programs and kcat."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

SECONDS: Final = 20.0
"""How long a client may take for one call of a scenario."""
SESSION_MS: Final = 6_000
"""The session timeout of a member of a group."""

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
NAMES: Final[Mapping[int, str]] = {
    0: "ok",
    1: "OFFSET_OUT_OF_RANGE",
    3: "UNKNOWN_TOPIC_OR_PARTITION",
    10: "MESSAGE_TOO_LARGE",
    17: "INVALID_TOPIC_EXCEPTION",
    29: "TOPIC_AUTHORIZATION_FAILED",
    36: "TOPIC_ALREADY_EXISTS",
    37: "INVALID_PARTITIONS",
    38: "INVALID_REPLICATION_FACTOR",
    40: "INVALID_CONFIG",
    42: "INVALID_REQUEST",
    44: "POLICY_VIOLATION",
    58: "SASL_AUTHENTICATION_FAILED",
    69: "GROUP_ID_NOT_FOUND",
}


@dataclass(frozen=True, slots=True)
class Record:
    """What a producer sends."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int = 0


@dataclass(frozen=True, slots=True)
class Read:
    """What a consumer receives."""

    offset: int
    record: Record


class ClientError(Exception):
    """A client raised what the broker answered; `name` is Kafka's name of the error."""

    def __init__(self, code: int) -> None:
        self.name = NAMES.get(code, f"error {code}")
        super().__init__(self.name)


class KafkaClient(abc.ABC):
    """One client library on one bootstrap address; members of groups have names."""

    name = ""

    @abc.abstractmethod
    def topics(self) -> list[str]:
        """Return the names of all topics."""

    @abc.abstractmethod
    def create(self, topic: str, partitions: int = 1) -> None:
        """Create a topic; raises ClientError."""

    @abc.abstractmethod
    def delete(self, topic: str) -> None:
        """Delete a topic; raises ClientError."""

    @abc.abstractmethod
    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        partition: int = 0,
        codec: str = "none",
        idempotent: bool = False,
    ) -> list[int]:
        """Produce in one batch if the client can; return offsets, or raise ClientError."""

    @abc.abstractmethod
    def read(self, topic: str, offset: int, count: int, partition: int = 0) -> list[Read]:
        """Read by assignment from an offset on; raises ClientError for one out of range."""

    @abc.abstractmethod
    def times(self, topic: str, timestamps: Sequence[int], partition: int = 0) -> list[int]:
        """Return the first offset at or after each time, -1 where there is none."""

    @abc.abstractmethod
    def ends(self, topic: str, partition: int = 0) -> tuple[int, int]:
        """Return the first offset and the one after the last."""

    @abc.abstractmethod
    def join(self, member: str, group: str, topic: str, assignor: str = "eager") -> None:
        """Make a member that reads from the earliest offset and commits only when asked to."""

    @abc.abstractmethod
    def poll(self, member: str, seconds: float) -> list[tuple[int, int]]:
        """Poll once; return partition and offset of what arrived."""

    @abc.abstractmethod
    def assignment(self, member: str) -> list[int]:
        """Return the partitions that a member has now."""

    @abc.abstractmethod
    def commit(self, member: str) -> None:
        """Commit what the member's polls returned."""

    @abc.abstractmethod
    def leave(self, member: str) -> None:
        """Close a member, which leaves its group."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close everything that this opened."""
