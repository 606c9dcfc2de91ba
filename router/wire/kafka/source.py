"""Lines of generated Python, and the fixed runs that become one call of struct."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from router.wire.kafka.definitions import FieldDefinition, FieldType

CODES: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
WIDTHS: Final = {"?": 1, "b": 1, "B": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8, "d": 8, "16s": 16}


class FunctionSource:
    """The lines of one function, with the constants that it needs."""

    def __init__(self) -> None:
        self.constants: dict[str, str] = {}
        self.lines: list[str] = []
        self._depth = 0
        self._names = 0

    def line(self, text: str) -> None:
        """Add a line at the present depth."""
        self.lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Add a head such as `if x:` and indent what follows."""
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    def name(self, kind: str) -> str:
        """Return a name that the function has not used."""
        self._names += 1
        return f"{kind}{self._names}"

    def unpacker(self, codes: list[str]) -> str:
        """Return the name of what unpacks a run of fixed values."""
        return self._struct("READ", codes, "unpack_from")

    def packer(self, codes: list[str]) -> str:
        """Return the name of what packs a run of fixed values."""
        return self._struct("PACK", codes, "pack")

    def _struct(self, prefix: str, codes: list[str], method: str) -> str:
        text = "".join(codes)
        name = f"_{prefix}_{text.replace('?', 'o').replace('16s', 'u')}"
        self.constants[name] = f'struct.Struct(">{text}").{method}'
        return name

    def array_unpackers(self, code: str) -> str:
        """Return the name of the table that unpacks short arrays of numbers."""
        name = f"_READ_ARRAY_{code.replace('?', 'o')}"
        self.constants[name] = f'p.unpackers("{code}")'
        return name

    def array_packers(self, code: str, prefix: str) -> str:
        """Return the name of the table that packs short arrays of numbers with their count."""
        name = f"_PACK_ARRAY_{prefix}_{code.replace('?', 'o')}"
        self.constants[name] = f'p.packers("{code}", "{prefix}")'
        return name


def is_collection(field: FieldDefinition) -> bool:
    """Tell whether a field is an array whose elements are found by key."""
    return field.type.array and field.struct is not None and bool(field.struct.keys)


def is_numbers(field: FieldDefinition) -> bool:
    """Tell whether a field is an array of numbers, which is a tuple."""
    return field.type.array and field.type.element in CODES and field.type.element != "uuid"


def default_source(field: FieldDefinition) -> str:
    """Return the expression of a field's default, a new one where it can be changed."""
    if field.default is None:
        return "None"
    if is_collection(field):
        return f"{field.type.element}Collection()"
    if field.type.array:
        return "()" if is_numbers(field) else "[]"
    if field.struct is not None:
        return f"{field.type.element}()"
    if field.type == FieldType("float64"):
        return f'float("{field.default!r}")' if field.default else "0.0"
    return repr(field.default)


def differs_source(field: FieldDefinition, value: str) -> str:
    """Return the condition that a value is not the field's default."""
    if field.default is None:
        return f"{value} is not None"
    if field.type.array or (field.type.element in {"bytes"}):
        return f"{value} is None or len({value})"
    if field.type == FieldType("bool"):
        return f"{value} is not {field.default}"
    return f"{value} != {default_source(field)}"
