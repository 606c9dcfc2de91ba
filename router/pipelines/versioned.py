"""Values that are read with the version of their topic's schema that they were written with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from router.errors import InvalidSchemaError, PayloadMismatchError, SchemaNotFoundError
from router.model import Schema, SchemaType

MAX_DEPTH: Final = 30
MAX_TYPES: Final = 10_000
"""Types in the columns of a definition, which may name one record at many places."""
MAX_SENTENCE_CHARACTERS: Final = 500
NO_VALUE: Final = "the message has no value"

Row = tuple[Any, ...]
Decoded = tuple[str | None, list[Row] | None]
ReadRow = Callable[[bytes], Row]


@dataclass(frozen=True, slots=True)
class VersionedDecoder(ABC):
    """Reads values into the columns of a definition, which is what the registry has of a schema.

    `lookup` returns the schema of a topic and a version; without it all values are written with
    the definition. It raises SchemaNotFoundError. What reads the values of a version, or why they
    cannot be read, is made once.
    """

    definition: str
    lookup: Callable[[str, int], Schema] | None = None
    _readers: dict[tuple[str, int | None], ReadRow | str] = field(default_factory=dict)

    type: ClassVar[SchemaType]

    @abstractmethod
    def reader(self, written: Schema) -> ReadRow:
        """Return what makes a row of a value of a schema; it raises PayloadMismatchError.

        Raises InvalidSchemaError, UnicodeDecodeError: no such value is a row.
        """

    def __call__(self, value: bytes | None, topic: str = "", version: int | None = None) -> Decoded:
        """Return the record of a value that was written with a version, or what is wrong.

        None: the version is not known; the value is one of the definition.
        """
        if value is None:
            return NO_VALUE, None
        reader = self._readers.get((topic, version))
        if reader is None:
            reader = self._readers[topic, version] = self._made(topic, version)
        if isinstance(reader, str):
            return reader, None
        try:
            return None, [reader(bytes(value))]
        except PayloadMismatchError as error:
            return bounded_sentence(error), None

    def _made(self, topic: str, version: int | None) -> ReadRow | str:
        if version is None or self.lookup is None:
            return self.reader(Schema(self.type, self.definition.encode()))
        try:
            schema = self.lookup(topic, version)
        except SchemaNotFoundError:
            return f"{topic} has no version {version} of its schema, which the value names"
        known = f"version {version} of the schema of {topic}"
        if schema.type is not self.type:
            return f"{known} is {schema.type.name}, not {self.type.name}"
        try:
            return self.reader(schema)
        except (InvalidSchemaError, UnicodeDecodeError) as error:
            return bounded_sentence(f"{known}: {error}")


def bounded_sentence(error: object) -> str:
    """Return an error's sentence, bounded."""
    sentence = str(error)
    return (
        sentence
        if len(sentence) <= MAX_SENTENCE_CHARACTERS
        else sentence[:MAX_SENTENCE_CHARACTERS] + "..."
    )
