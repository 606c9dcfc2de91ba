"""The versions of topics' schemas, as tasks look them up while they decode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from router.model import Schema
from router.pipelines.declaration import SourceSpec
from router.pipelines.source.options import SourceOptions
from router.pipelines.source_columns import version_bytes

TIMEOUT_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class TopicSchemaVersions:
    """Looks up versions in the store of a source, over a connection of its own for each.

    A version never changes, so that the decoder of a task keeps what it got.
    """

    options: SourceOptions

    @classmethod
    def of_source(cls, source: SourceSpec) -> TopicSchemaVersions:
        """Return those of a declared source; raise SettingError."""
        return cls(SourceOptions.of_source(source).attached())

    def __call__(self, topic: str, version: int) -> Schema:
        """Return a version of the schema of a topic, which is named as in rows.

        Raises SchemaNotFoundError, TopicNotFoundError, BackendUnavailableError,
        BackendTimeoutError.
        """
        name = self.options.settings.topic(topic)
        with self.options.opened() as backend:
            return backend.schemas.get(name, version_bytes(version), TIMEOUT_SECONDS)
