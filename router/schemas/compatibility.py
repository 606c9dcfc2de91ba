"""Which schemas may follow one another on a topic, by the strategies of Apache Pulsar.

Backward: who reads by the new schema understands what was written by the old one; forward: the
other way round. JSON and AVRO are compared by Avro's rules of resolution, KEY_VALUE by both of its
parts. Definitions that are only stored (Protobuf) cannot be compared and may follow one another
wherever something may follow at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from avro.compatibility import (
    ReaderWriterCompatibilityChecker,
    SchemaCompatibilityResult,
    SchemaCompatibilityType,
)
from avro.errors import AvroException

from router.errors import IncompatibleSchemaError
from router.errors.quoting import failure_text, quoted
from router.model import Schema, SchemaType
from router.schemas.definitions import SchemaDefinition
from router.schemas.kinds import check, definition_of, equal, identity
from router.schemas.pairs import halves

MAX_COMPARED: Final = 100_000
"""Pairs of types that are compared for one answer, whether with one old schema or with all."""
FIELDS_COMPARED: Final = 200
"""Pairs of fields that cost as much as a pair of types."""


class Strategy(Enum):
    """What is asked of a topic's next schema; the names are Apache Pulsar's."""

    ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"
    ALWAYS_INCOMPATIBLE = "ALWAYS_INCOMPATIBLE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def backward(self) -> bool:
        """Tell whether the new one must read what the old one wrote."""
        return self.name.startswith(("BACKWARD", "FULL"))

    @property
    def forward(self) -> bool:
        """Tell whether the old one must read what the new one writes."""
        return self.name.startswith(("FORWARD", "FULL"))

    @property
    def transitive(self) -> bool:
        """Tell whether all old ones count, rather than the newest."""
        return self.name.endswith("_TRANSITIVE")


_FOR_CONSUMERS: Final = {
    Strategy.FORWARD: Strategy.BACKWARD,
    Strategy.FORWARD_TRANSITIVE: Strategy.BACKWARD,
    Strategy.FULL: Strategy.BACKWARD,
}


def place(schemas: Sequence[Schema], schema: Schema, strategy: Strategy) -> int:
    """Return where in a topic's schemas this one is, or, at the end, belongs.

    Raises InvalidSchemaError, and IncompatibleSchemaError where it may not follow.
    """
    found = index_of(schemas, schema)
    if found is not None:
        return found
    check_follows(schemas, schema, strategy)
    return len(schemas)


def index_of(schemas: Sequence[Schema], schema: Schema) -> int | None:
    """Return which of some schemas says the same as this one; raise InvalidSchemaError."""
    check(schema)
    sought = identity(schema)
    return next((i for i, known in enumerate(schemas) if identity(known) == sought), None)


def check_follows(schemas: Sequence[Schema], schema: Schema, strategy: Strategy) -> None:
    """Raise IncompatibleSchemaError unless a schema may be the next of a topic's."""
    if strategy is Strategy.ALWAYS_COMPATIBLE:
        return
    budget = _Budget()
    for known in schemas if strategy.transitive else schemas[-1:]:
        _check_pair(known, schema, strategy, budget)


def check_consumer(schemas: Sequence[Schema], schema: Schema, strategy: Strategy) -> None:
    """Raise IncompatibleSchemaError unless who reads by a schema can read the topic.

    As in Apache Pulsar: by what was registered last, or under a transitive strategy by all.
    """
    check(schema)
    check_follows(schemas, schema, _FOR_CONSUMERS.get(strategy, strategy))


@dataclass(slots=True)
class _Budget:
    """How much may still be compared."""

    left: int = MAX_COMPARED


def _check_pair(old: Schema, new: Schema, strategy: Strategy, budget: _Budget) -> None:
    if old.type is not new.type:
        raise IncompatibleSchemaError(
            f"the topic has a schema of type {old.type.name}, and this one is {new.type.name}"
        )
    if equal(old, new):
        return
    if strategy is Strategy.ALWAYS_INCOMPATIBLE:
        raise IncompatibleSchemaError(f"under {strategy.name} the topic takes no other schema")
    if old.type is SchemaType.KEY_VALUE:
        before, after = halves(old), halves(new)
        _check_pair(before.key, after.key, strategy, budget)
        _check_pair(before.value, after.value, strategy, budget)
    elif (first := definition_of(old)) and (second := definition_of(new)):
        if strategy.backward:
            sentence = f"{strategy.name}: the new schema does not read the old"
            _check_reads(second, first, sentence, budget)
        if strategy.forward:
            sentence = f"{strategy.name}: the old schema does not read the new"
            _check_reads(first, second, sentence, budget)


class _Checker(ReaderWriterCompatibilityChecker):
    """Apache's rules, as far as they can be gone through in a second or so.

    They compare each branch of a union with each of the other's, and each type in them as well
    whose name is another one; a definition of 60 KB can be made to last for days.
    """

    def __init__(self, budget: _Budget) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._budget = budget

    def get_compatibility(self, reader: Any, writer: Any, *where: Any) -> SchemaCompatibilityResult:
        self._budget.left -= 1
        if reader.type == writer.type == "record":
            # For each field the library makes a table of all the other record's.
            self._budget.left -= len(reader.fields) * len(writer.fields) // FIELDS_COMPARED
        if self._budget.left < 0:
            raise IncompatibleSchemaError("the definitions are too large to be compared")
        return super().get_compatibility(reader, writer, *where)

    def get_whole(self, reader: Any, writer: Any) -> SchemaCompatibilityResult:
        """Compare two definitions as Apache Pulsar does: a record may get another name."""
        result = self.get_compatibility(reader, writer)
        if reader.type == writer.type == "record" and reader.fullname != writer.fullname:
            return self.check_reader_writer_record_fields(reader, writer, ["/"])
        return result


def _check_reads(
    reader: SchemaDefinition, writer: SchemaDefinition, sentence: str, budget: _Budget
) -> None:
    if reader.avro is None or writer.avro is None:
        # One of them is a JSON-Schema document, which may be replaced, but not by another one.
        if reader.avro is writer.avro and reader.id != writer.id:
            raise IncompatibleSchemaError(
                f"{sentence}: {quoted(reader.id)} is not {quoted(writer.id)}"
            )
        return
    try:
        result = _Checker(budget).get_whole(reader.avro, writer.avro)
    except (AvroException, TypeError, AttributeError, RecursionError) as error:
        # The library looks at some members, such as aliases, only now, and goes as deep as they go.
        raise IncompatibleSchemaError(
            f"the definitions cannot be compared: {failure_text(error)}"
        ) from error
    if result.compatibility is SchemaCompatibilityType.incompatible:
        why = "; ".join(sorted(result.messages))[:300]
        where = ", ".join(sorted(result.locations))[:200]
        raise IncompatibleSchemaError(f"{sentence}: {why} at {where}")
