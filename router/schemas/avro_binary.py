"""Avro's binary form: from and to values in Avro's JSON encoding.

Theory of operation. A value of JSON is written in one walk along the nodes of its definition, and
read in one; there are no values of Python's in between that would forget what the bytes say. In the
JSON encoding a value of a union is an object that names its branch, `{"string": "a"}`, or null.
Reading writes it so. Writing takes a plain value as well, and tries the branches in order: what
people write by hand. A field that is left out takes its default, or null.

The alternative, the `fastavro` package, is the oracle of the tests. It does not say which branch of
`["int", "long"]` it read, and it believes what hostile bytes say of an array's length: five bytes
that promise 2^31 nulls keep it busy until the memory is full. Here a payload may have PARTS parts
for each of its bytes, and what it promises counts when it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, Final

from router.errors import PayloadMismatchError
from router.schemas.definitions import DefinitionNode, Field
from router.schemas.primitives import from_json, to_json
from router.schemas.walking import MAX_STEPS, UnfitError, WalkBudget, shown

PARTS: Final = 8
SOME_PARTS: Final = 1_000
"""What every payload may have, however short."""

_FLOAT: Final = Struct("<f")
_DOUBLE: Final = Struct("<d")
_RANGES: Final = {"int": 1 << 31, "long": 1 << 63}


def write(node: DefinitionNode, value: Any) -> bytes:
    """Return the bytes of a value; raise PayloadMismatchError."""
    writer = _Writer()
    writer.value(node, value, 0)
    return bytes(writer.out)


def read(node: DefinitionNode, data: bytes) -> Any:
    """Return the value that bytes stand for; raise PayloadMismatchError."""
    reader = _AvroReader(data)
    value = reader.value(node, 0)
    if reader.at != len(data):
        raise PayloadMismatchError(f"{len(data) - reader.at} bytes behind the value")
    return value


class _Writer:
    def __init__(self) -> None:
        self.out = bytearray()
        self._steps = WalkBudget()
        self._writers: dict[str, Callable[[DefinitionNode, Any, int], None]] = {
            "null": self._null,
            "boolean": self._boolean,
            "int": self._integer,
            "long": self._integer,
            "float": self._float,
            "double": self._float,
            "bytes": self._bytes,
            "fixed": self._fixed,
            "string": self._string,
            "enum": self._enum,
            "array": self._array,
            "map": self._map,
            "record": self._record,
            "union": self._union,
        }

    def value(self, node: DefinitionNode, value: Any, depth: int) -> None:
        self._steps.take(depth)
        self._writers[node.kind](node, value, depth)

    def _null(self, node: DefinitionNode, value: Any, _depth: int) -> None:
        if value is not None:
            raise _unfit(node, value)

    def _boolean(self, node: DefinitionNode, value: Any, _depth: int) -> None:
        if not isinstance(value, bool):
            raise _unfit(node, value)
        self.out.append(value)

    def _integer(self, node: DefinitionNode, value: Any, _depth: int) -> None:
        bound = _RANGES[node.kind]
        if not isinstance(value, int) or isinstance(value, bool) or not -bound <= value < bound:
            raise _unfit(node, value)
        self._long(value)

    def _float(self, node: DefinitionNode, value: Any, _depth: int) -> None:
        number = from_json(value, single=node.kind == "float")
        if number is None:
            raise _unfit(node, value)
        self.out += (_FLOAT if node.kind == "float" else _DOUBLE).pack(number)

    def _bytes(self, node: DefinitionNode, value: Any, _depth: int) -> None:
        data = _raw(node, value)
        self._long(len(data))
        self.out += data

    def _fixed(self, node: DefinitionNode, value: Any, _depth: int) -> None:
        data = _raw(node, value)
        if len(data) != node.size:
            raise UnfitError(f"{len(data)} bytes, expected {node.size} of {node.label}")
        self.out += data

    def _string(self, node: DefinitionNode, value: Any, _depth: int) -> None:
        if not isinstance(value, str):
            raise _unfit(node, value)
        self._text(value)

    def _enum(self, node: DefinitionNode, value: Any, _depth: int) -> None:
        place = node.places.get(value) if isinstance(value, str) else None
        if place is None:
            raise UnfitError(f"{shown(value)} is no symbol of {node.label}")
        self._long(place)

    def _array(self, node: DefinitionNode, value: Any, depth: int) -> None:
        if not isinstance(value, list):
            raise _unfit(node, value)
        if value:
            self._long(len(value))
            for place, part in enumerate(value):
                try:
                    self.value(node.parts[0], part, depth + 1)
                except UnfitError as error:
                    error.path.append(str(place))
                    raise
        self.out.append(0)

    def _map(self, node: DefinitionNode, value: Any, depth: int) -> None:
        if not isinstance(value, dict):
            raise _unfit(node, value)
        if value:
            self._long(len(value))
            for key, part in value.items():
                self._text(key)
                try:
                    self.value(node.parts[0], part, depth + 1)
                except UnfitError as error:
                    error.path.append(key[:60])
                    raise
        self.out.append(0)

    def _record(self, node: DefinitionNode, value: Any, depth: int) -> None:
        if not isinstance(value, dict):
            raise _unfit(node, value)
        check_known(node, value)
        for field in node.fields:
            try:
                self._field(field, value, depth + 1)
            except UnfitError as error:
                error.path.append(field.name)
                raise

    def _field(self, field: Field, value: dict[str, Any], depth: int) -> None:
        if field.name in value:
            self.value(field.node, value[field.name], depth)
        elif field.has_default:
            self.value(field.node, field.default, depth)
        elif field.node.nullable:
            self.value(field.node, None, depth)
        else:
            raise UnfitError("missing, and it has no default")

    def _union(self, node: DefinitionNode, value: Any, depth: int) -> None:
        if value is None and "null" in node.places:
            self._long(node.places["null"])
            return
        if isinstance(value, dict) and len(value) == 1:
            ((label, part),) = value.items()
            place = node.places.get(label)
            if place is not None and self._branch(node, place, part, depth):
                return
        if any(self._branch(node, place, value, depth) for place in node.candidates(value)):
            return
        raise UnfitError(f"{shown(value)} fits no branch of {', '.join(node.places)}")

    def _branch(self, node: DefinitionNode, place: int, value: Any, depth: int) -> bool:
        """Write a value as one of a branch; tell whether it is one."""
        begin, left = len(self.out), self._steps.left
        self._long(place)
        try:
            self.value(node.parts[place], value, depth + 1)
        except UnfitError:
            self._steps.waste(left)
            del self.out[begin:]
            return False
        return True

    def _text(self, text: str) -> None:
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise UnfitError("a text with half a character") from error
        self._long(len(data))
        self.out += data

    def _long(self, number: int) -> None:
        number = (number << 1) ^ (number >> 63)
        while number > 0x7F:
            self.out.append(number & 0x7F | 0x80)
            number >>= 7
        self.out.append(number)


class _AvroReader:
    def __init__(self, data: bytes) -> None:
        self.at = 0
        self._data = data
        self._steps = WalkBudget(min(MAX_STEPS, SOME_PARTS + PARTS * len(data)))
        self._readers: dict[str, Callable[[DefinitionNode, int], Any]] = {
            "null": lambda _node, _depth: None,
            "boolean": self._boolean,
            "int": self._integer,
            "long": self._integer,
            "float": lambda _node, _depth: to_json(_FLOAT.unpack(self._take(4))[0]),
            "double": lambda _node, _depth: to_json(_DOUBLE.unpack(self._take(8))[0]),
            "bytes": lambda _node, _depth: self._take(self._long()).decode("latin-1"),
            "fixed": lambda node, _depth: self._take(node.size).decode("latin-1"),
            "string": lambda _node, _depth: self._text(),
            "enum": self._enum,
            "array": self._array,
            "map": self._map,
            "record": self._record,
            "union": self._union,
        }

    def value(self, node: DefinitionNode, depth: int) -> Any:
        self._steps.take(depth)
        return self._readers[node.kind](node, depth)

    def _boolean(self, _node: DefinitionNode, _depth: int) -> bool:
        byte = self._take(1)[0]
        if byte > 1:
            raise PayloadMismatchError(f"a boolean of {byte}")
        return bool(byte)

    def _integer(self, node: DefinitionNode, _depth: int) -> int:
        number = self._long()
        bound = _RANGES[node.kind]
        if not -bound <= number < bound:
            raise PayloadMismatchError(f"{number} is no {node.kind}")
        return number

    def _enum(self, node: DefinitionNode, _depth: int) -> str:
        return node.symbols[self._place(node, len(node.symbols))]

    def _array(self, node: DefinitionNode, depth: int) -> list[Any]:
        values: list[Any] = []
        while count := self._count(depth):
            values.extend(self.value(node.parts[0], depth + 1) for _ in range(count))
        return values

    def _map(self, node: DefinitionNode, depth: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        while count := self._count(depth):
            for _ in range(count):
                key = self._text()
                values[key] = self.value(node.parts[0], depth + 1)
        return values

    def _record(self, node: DefinitionNode, depth: int) -> dict[str, Any]:
        return {field.name: self.value(field.node, depth + 1) for field in node.fields}

    def _union(self, node: DefinitionNode, depth: int) -> Any:
        branch = node.parts[self._place(node, len(node.parts))]
        value = self.value(branch, depth + 1)
        return value if branch.kind == "null" else {branch.label: value}

    def _count(self, depth: int) -> int:
        """Return how many values a block has; 0: it was the last one."""
        count = self._long()
        if count < 0:
            count = -count
            self._long()  # the block's bytes, for who wants to skip it
        self._steps.take(depth, 1 if count else 0)
        return count

    def _place(self, node: DefinitionNode, places: int) -> int:
        place = self._long()
        if not 0 <= place < places:
            raise PayloadMismatchError(f"{node.label} has no place {place}")
        return place

    def _text(self) -> str:
        try:
            return self._take(self._long()).decode()
        except UnicodeDecodeError as error:
            raise PayloadMismatchError("a text that is not UTF-8") from error

    def _take(self, size: int) -> bytes:
        data = self._data[self.at : self.at + size] if size >= 0 else b""
        if len(data) != size:
            raise PayloadMismatchError("the payload ends too early for its schema")
        self.at += size
        return data

    def _long(self) -> int:
        number = shift = 0
        for at in range(self.at, min(self.at + 10, len(self._data))):
            byte = self._data[at]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.at = at + 1
                return (number >> 1) ^ -(number & 1)
            shift += 7
        raise PayloadMismatchError("a number without an end")


def check_known(node: DefinitionNode, value: dict[str, Any]) -> None:
    """Raise UnfitError for a member of a record that its definition does not have."""
    for name in value:
        if name not in node.places:
            raise UnfitError(f"{node.label} has no field {shown(name)}")


def _raw(node: DefinitionNode, value: Any) -> bytes:
    """Return the bytes whose values the characters of a text are, as Avro writes them in JSON."""
    if not isinstance(value, str):
        raise _unfit(node, value)
    try:
        return value.encode("latin-1")
    except UnicodeEncodeError as error:
        raise UnfitError("bytes are written with the characters U+0000 to U+00FF") from error


def _unfit(node: DefinitionNode, value: Any) -> UnfitError:
    return UnfitError(f"{shown(value)} is no {node.label}")
