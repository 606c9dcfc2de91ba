"""Definitions of JSON and AVRO schemas: bounded, parsed by Apache's library, and kept for a while.

Theory of operation. The library recurses through a definition as deep as it goes, and compares the
names of fields and branches pairwise; so a definition is measured before it is handed over. What
comes back is turned into `DefinitionNode`s, which say what reading and writing needs and nothing
else, and which refer to one another where a definition is recursive.

Logical types say how a program shows a value (a date, a decimal); they change neither the bytes nor
who can read them. The library would warn of those that it does not know, so they are hidden from it
under another name.

What was made lately and may be wanted again is kept, bounded by its weight.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import Any, Final, Generic, TypeVar

import avro.errors
import avro.schema
import orjson

from router.errors import InvalidSchemaError
from router.errors.quoting import failure_text, quoted

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Values by their keys; those not asked for longest go first. For many threads."""

    def __init__(self, limit: int, weigh: Callable[[K], int]) -> None:
        self._limit = limit
        self._weigh = weigh
        self._weight = 0
        self._found: dict[K, V] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: K, make: Callable[[K], V]) -> V:
        """Return the value of a key, made if it is not there; what `make` raises is not kept."""
        with self._lock:
            if key in self._found:
                self._found[key] = value = self._found.pop(key)
                return value
        value = make(key)
        with self._lock:
            if key not in self._found:
                self._weight += self._weigh(key)
                self._found[key] = value
            while self._weight > self._limit:
                oldest = next(iter(self._found))
                del self._found[oldest]
                self._weight -= self._weigh(oldest)
        return value


MAX_DEFINITION: Final = 60_000
"""Bytes of a definition; of a KEY_VALUE schema, of both together."""
MAX_DEPTH: Final = 100
"""Levels of JSON in a definition."""
MAX_PARTS: Final = 10_000
"""JSON values in a definition."""
MAX_BRANCHES: Final = 200
"""Branches of a union."""
# Definitions that are kept parsed, by the bytes of their text.
MAX_CACHED_BYTES: Final = 4 << 20
_LOGICAL: Final = "router-logical-type"
_LEGACY: Final = frozenset(
    {"object", "array", "string", "number", "integer", "boolean", "null", "any"}
)


@dataclass(slots=True, eq=False)
class Field:
    """A field of a record; without a default where `has_default` is false.

    `aliases` are names that it has in other versions of the record.
    """

    name: str
    node: DefinitionNode
    has_default: bool = False
    default: Any = None
    aliases: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class DefinitionNode:
    """One type of a definition; `kind` is Avro's word for it, `label` what a union calls it.

    `other_symbol` is that of an enum for symbols of other versions, empty: there is none. `scale`
    is that of a decimal, None: it is none.
    """

    kind: str
    label: str
    logical: bool = False
    size: int = 0
    scale: int | None = None
    symbols: tuple[str, ...] = ()
    other_symbol: str = ""
    fields: tuple[Field, ...] = ()
    parts: tuple[DefinitionNode, ...] = ()
    places: dict[str, int] = field(default_factory=dict)
    """Where a symbol, the label of a branch or the name of a field stands."""

    def candidates(self, value: Any) -> list[int]:
        """Return the places of a union's branches that a value of this JSON type may be one of."""
        return [
            place
            for place, part in enumerate(self.parts)
            if isinstance(value, _TAKEN[part.kind]) or part.logical
        ]

    @property
    def nullable(self) -> bool:
        """Tell whether null is a value of this type."""
        return self.kind == "null" or (self.kind == "union" and "null" in self.places)


_PROTOCOL: Final = avro.schema.ErrorUnionSchema
# By what JSON values are written; floating point numbers may be words.
_TAKEN: Final[dict[str, type | UnionType]] = {
    "null": NoneType,
    "boolean": bool,
    "int": int,
    "long": int,
    "float": int | float | str,
    "double": int | float | str,
    "bytes": str,
    "string": str,
    "enum": str,
    "fixed": str,
    "array": list,
    "map": dict,
    "record": dict,
}


@dataclass(slots=True, eq=False)
class SchemaDefinition:
    """A definition as it is used: `node` to read and write by, `avro` to compare.

    Both are None for a JSON-Schema document of an old client, which only `id` tells from others.
    """

    node: DefinitionNode | None
    avro: avro.schema.Schema | None
    canonical: bytes
    id: str = ""


_recent: Recent[bytes, SchemaDefinition] = Recent(MAX_CACHED_BYTES, len)


def parse(data: bytes) -> SchemaDefinition:
    """Return what an Avro definition says; raise InvalidSchemaError."""
    return _recent.get(data, _parse)


def parse_json(data: bytes) -> SchemaDefinition:
    """Return what the definition of a JSON schema says; raise InvalidSchemaError.

    Clients before Pulsar 2.1 sent JSON-Schema documents, which Apache Pulsar goes on taking.
    """
    try:
        return parse(data)
    except InvalidSchemaError:
        document = _load(data)
        kind = document.get("type") if isinstance(document, dict) else None
        if not isinstance(kind, str) or kind not in _LEGACY:
            raise
        return SchemaDefinition(None, None, _canonical(document), str(document.get("id", "")))


def _parse(data: bytes) -> SchemaDefinition:
    document = _load(data)
    canonical = _canonical(document)
    try:
        # Names: Apache Pulsar takes what Java calls its classes, such as Outer$Inner.
        schema = avro.schema.make_avsc_object(_prepared(document), validate_names=False)
    except (avro.errors.AvroException, TypeError, ValueError, AttributeError, KeyError) as error:
        raise InvalidSchemaError(f"not an Avro definition: {failure_text(error)}") from error
    return SchemaDefinition(_Nodes().of(schema), schema, canonical)


def _load(data: bytes) -> Any:
    """Return the JSON of a definition that is not larger than definitions may be."""
    if len(data) > MAX_DEFINITION:
        raise InvalidSchemaError(f"a definition has at most {MAX_DEFINITION} bytes")
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidSchemaError(f"a definition is JSON: {error}") from error
    parts = 0
    level: list[Any] = [document]
    for _depth in range(MAX_DEPTH):
        parts += len(level)
        if parts > MAX_PARTS:
            break
        level = [part for value in level for part in _inner(value)]
        if not level:
            return document
    raise InvalidSchemaError(
        f"a definition has at most {MAX_PARTS} parts, in at most {MAX_DEPTH} levels"
    )


def _inner(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _canonical(document: Any) -> bytes:
    """Return a form that is equal for definitions that differ in spacing, order and `doc` only."""

    def stripped(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: stripped(part) for key, part in value.items() if key != "doc"}
        return [stripped(part) for part in value] if isinstance(value, list) else value

    return orjson.dumps(stripped(document), option=orjson.OPT_SORT_KEYS)


def _prepared(document: Any) -> Any:
    """Return a definition whose logical types the library does not look at."""
    if isinstance(document, dict):
        return {
            _LOGICAL if key == "logicalType" else key: _prepared(value)
            for key, value in document.items()
        }
    return [_prepared(value) for value in document] if isinstance(document, list) else document


class _Nodes:
    """The nodes of one definition, each made once."""

    def __init__(self) -> None:
        self._made: dict[int, DefinitionNode] = {}
        self._fill: dict[str, Callable[[DefinitionNode, Any], None]] = {
            "record": self._record,
            "enum": _enum,
            "fixed": _fixed,
            "array": lambda node, schema: self._parts(node, [schema.items]),
            "map": lambda node, schema: self._parts(node, [schema.values]),
            "union": lambda node, schema: self._parts(node, schema.schemas),
        }

    def of(self, schema: Any) -> DefinitionNode:
        """Return the node of one of the library's types; raise InvalidSchemaError."""
        found = self._made.get(id(schema))
        if found is not None:
            return found
        kind = schema.type
        if (kind not in _TAKEN and kind != "union") or isinstance(schema, _PROTOCOL):
            raise InvalidSchemaError("errors are for protocols, not for messages")
        node = DefinitionNode(kind, getattr(schema, "fullname", None) or kind)
        node.logical = _LOGICAL in schema.props
        if schema.props.get(_LOGICAL) == "decimal":
            scale = schema.props.get("scale", 0)
            node.scale = scale if isinstance(scale, int) else None
        self._made[id(schema)] = node
        if fill := self._fill.get(kind):
            fill(node, schema)
        return node

    def _record(self, node: DefinitionNode, schema: Any) -> None:
        node.fields = tuple(
            Field(
                part.name,
                self.of(part.type),
                part.has_default,
                part.default if part.has_default else None,
                _aliases(part),
            )
            for part in schema.fields
        )
        node.places = {part.name: place for place, part in enumerate(node.fields)}

    def _parts(self, node: DefinitionNode, schemas: list[Any]) -> None:
        if len(schemas) > MAX_BRANCHES:
            raise InvalidSchemaError(f"a union has at most {MAX_BRANCHES} branches")
        node.parts = tuple(self.of(part) for part in schemas)
        node.places = {part.label: place for place, part in enumerate(node.parts)}


def _aliases(part: Any) -> tuple[str, ...]:
    aliases = part.props.get("aliases")
    return (
        tuple(one for one in aliases if isinstance(one, str)) if isinstance(aliases, list) else ()
    )


def _enum(node: DefinitionNode, schema: Any) -> None:
    node.symbols = tuple(schema.symbols)
    other = schema.props.get("default")
    node.other_symbol = other if other in node.symbols else ""
    node.places = {symbol: place for place, symbol in enumerate(node.symbols)}


def _fixed(node: DefinitionNode, schema: Any) -> None:
    size = schema.size
    if not isinstance(size, int) or not 0 <= size <= 1 << 24:
        raise InvalidSchemaError(f"a fixed of {quoted(size)} bytes")
    node.size = size
