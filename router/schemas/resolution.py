"""Values written with one version of an Avro schema, as another version has them.

Theory of operation. Two definitions are compared once, node by node, and become functions from
values of the writer's to values of the reader's, both in Avro's JSON encoding. The rules are those
of Avro's specification: fields go by name or alias, those that the reader lacks are dropped, those
that the writer lacks have their default, numbers are widened, bytes and texts are each other, and
decimals of different scales are not: their bytes are different numbers. What does not fit raises an
error when a value has it, so that a branch of a union that no value takes harms nothing. As in
Apache Pulsar, a record may have another name in another version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from router.errors import PayloadMismatchError
from router.schemas.avro_binary import read, write
from router.schemas.definitions import DefinitionNode, Field
from router.schemas.walking import UnfitError, shown

Resolver = Callable[[Any], Any]
_NAMED: Final = frozenset({"record", "enum", "fixed"})
_WIDENED: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


def resolver(writer: DefinitionNode, reader: DefinitionNode) -> Resolver:
    """Return a function that turns a value of `writer` into one of `reader`.

    Both are in Avro's JSON encoding, as `decode` returns them. It raises PayloadMismatchError for a
    value that the reader cannot have.
    """
    return _ResolverCompiler().of(writer, reader)


class _ResolverCompiler:
    """Makes the function of each pair of nodes once; definitions may contain themselves."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int], list[Resolver]] = {}
        self._makers: dict[str, Callable[[DefinitionNode, DefinitionNode], Resolver]] = {
            "record": self._record,
            "array": self._array,
            "map": self._map,
            "enum": _enum,
            "fixed": _fixed,
        }

    def of(self, writer: DefinitionNode, reader: DefinitionNode) -> Resolver:
        key = id(writer), id(reader)
        if (made := self._made.get(key)) is not None:
            return _later(made)
        made = self._made[key] = []
        made.append(self._make(writer, reader))
        return made[0]

    def _make(self, writer: DefinitionNode, reader: DefinitionNode) -> Resolver:
        if writer.kind == "union":
            return self._from_union(writer, reader)
        if reader.kind == "union":
            return self._to_union(writer, reader)
        if writer.scale != reader.scale and None not in {writer.scale, reader.scale}:
            return _unfit(f"a decimal of scale {writer.scale}, expected scale {reader.scale}")
        if writer.kind == reader.kind:
            maker = self._makers.get(writer.kind)
            return _same if maker is None else maker(writer, reader)
        if reader.kind not in _WIDENED.get(writer.kind, ()):
            return _unfit(f"{writer.label} cannot be read as {reader.label}")
        return _CONVERTED.get((writer.kind, reader.kind), _same)

    def _from_union(self, writer: DefinitionNode, reader: DefinitionNode) -> Resolver:
        branches = {part.label: self.of(part, reader) for part in writer.parts}

        def resolve(value: Any) -> Any:
            if value is None:
                return branches["null"](None)
            ((label, inner),) = value.items()
            return branches[label](inner)

        return resolve

    def _to_union(self, writer: DefinitionNode, reader: DefinitionNode) -> Resolver:
        part = _branch(writer, reader)
        if part is None:
            return _unfit(f"{writer.label} is no branch of {', '.join(reader.places)}")
        if part.kind == "null":
            return _same
        inner = self.of(writer, part)
        return lambda value: {part.label: inner(value)}

    def _array(self, writer: DefinitionNode, reader: DefinitionNode) -> Resolver:
        inner = self.of(writer.parts[0], reader.parts[0])
        return lambda value: [inner(one) for one in value]

    def _map(self, writer: DefinitionNode, reader: DefinitionNode) -> Resolver:
        inner = self.of(writer.parts[0], reader.parts[0])
        return lambda value: {name: inner(one) for name, one in value.items()}

    def _record(self, writer: DefinitionNode, reader: DefinitionNode) -> Resolver:
        fields = [self._field(field, writer) for field in reader.fields]

        def resolve(value: dict[str, Any]) -> dict[str, Any]:
            return {name: get(value) for name, get in fields}

        return resolve

    def _field(self, field: Field, writer: DefinitionNode) -> tuple[str, Resolver]:
        """Return a field's name, and what makes its value of the writer's record."""
        source = next((name for name in (field.name, *field.aliases) if name in writer.places), "")
        if not source:
            return field.name, _default(field)
        inner = self.of(writer.fields[writer.places[source]].node, field.node)

        def resolve(value: dict[str, Any]) -> Any:
            try:
                return inner(value[source])
            except UnfitError as error:
                error.path.append(field.name)
                raise

        return field.name, resolve


def _branch(writer: DefinitionNode, reader: DefinitionNode) -> DefinitionNode | None:
    """Return the branch of a union that values of a type go to, None: there is none."""
    same = [part for part in reader.parts if part.kind == writer.kind]
    if writer.kind in _NAMED:
        # By the whole name, by the name without its namespace, or the first one.
        same.sort(key=lambda part: (part.label != writer.label, _local(part) != _local(writer)))
    wider = (
        part for kind in _WIDENED.get(writer.kind, ()) for part in reader.parts if part.kind == kind
    )
    return same[0] if same else next(wider, None)


def _local(node: DefinitionNode) -> str:
    return node.label.rpartition(".")[2]


def _default(field: Field) -> Resolver:
    if not field.has_default:
        return _unfit(f"the field {field.name} has no default, and was not written")
    try:
        default = read(field.node, write(field.node, field.default))
    except PayloadMismatchError as error:
        return _unfit(f"the default of the field {field.name}: {error}")
    return lambda _value: default


def _enum(_writer: DefinitionNode, reader: DefinitionNode) -> Resolver:
    def resolve(value: str) -> str:
        if value in reader.places:
            return value
        if not reader.other_symbol:
            raise UnfitError(f"{shown(value)} is no symbol of {reader.label}")
        return reader.other_symbol

    return resolve


def _fixed(writer: DefinitionNode, reader: DefinitionNode) -> Resolver:
    if writer.size == reader.size:
        return _same
    return _unfit(f"{writer.size} bytes, expected {reader.size} of {reader.label}")


def _unfit(sentence: str) -> Resolver:
    def resolve(_value: Any) -> Any:
        raise UnfitError(sentence)

    return resolve


def _later(made: list[Resolver]) -> Resolver:
    """Return what calls the function that will be there when the compiler is done."""

    def resolve(value: Any) -> Any:
        return made[0](value)

    return resolve


def _same(value: Any) -> Any:
    return value


def _text(value: str) -> str:
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError as error:
        raise UnfitError("bytes that are not UTF-8 are no text") from error


def _bytes(value: str) -> str:
    return value.encode().decode("latin-1")


_CONVERTED: Final[dict[tuple[str, str], Resolver]] = {
    ("bytes", "string"): _text,
    ("string", "bytes"): _bytes,
}
