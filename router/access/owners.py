"""What a topic's record says: whose the topic is, and whom its owner lets publish and read.

Records of the kind `topic` are named by the topic's full name and hold JSON: `owner`,
`description`, `transactional`, `readers`, `writers`. A topic without a record has no owner.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import orjson

KIND: Final = "topic"


class Valued(Protocol):
    """A record of the registry, as far as it matters here."""

    @property
    def value(self) -> bytes:
        """What is written down."""
        ...


@dataclass(frozen=True, slots=True)
class TopicRights:
    """What is written down about one topic; owner "": everybody may use it."""

    owner: str = ""
    readers: frozenset[str] = frozenset()
    writers: frozenset[str] = frozenset()
    description: str = ""
    transactional: bool = False

    @classmethod
    def load(cls, record: Valued) -> TopicRights:
        """Read a record."""
        found = orjson.loads(record.value)
        return cls(
            found.get("owner", ""),
            frozenset(found.get("readers", ())),
            frozenset(found.get("writers", ())),
            found.get("description", ""),
            found.get("transactional", False),
        )

    def dump(self) -> bytes:
        """Write the value of a record."""
        return orjson.dumps(
            {
                "owner": self.owner,
                "readers": sorted(self.readers),
                "writers": sorted(self.writers),
                "description": self.description,
                "transactional": self.transactional,
            }
        )

    def owned_by(self, name: str) -> bool:
        """Return whether the topic is this principal's, or nobody's."""
        return self.owner in {"", name}

    def may_publish(self, name: str) -> bool:
        """Return whether the owner lets this principal publish."""
        return self.owned_by(name) or (name != "" and name in self.writers)

    def may_read(self, name: str) -> bool:
        """Return whether the owner lets this principal read."""
        return self.owned_by(name) or (name != "" and name in self.readers)


NOBODY: Final = TopicRights()
