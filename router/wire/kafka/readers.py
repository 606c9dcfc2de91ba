"""Generates the functions that read: straight lines per version, nested structs in line.

A run of values of fixed width, the length of what follows among them, is one call of a Struct.
Slices are not checked one by one: a slice that goes past the end leaves the offset past the end,
where each later read fails, and the last line of a function compares the offset with the end.
Counts are compared with what remains, and with how many elements the caller takes (`left`), before
anything is allocated: elements of a byte or two become objects of a hundred.
"""

from __future__ import annotations

from router.wire.kafka.definitions import (
    FieldDefinition,
    MessageDefinition,
    StructDefinition,
    attribute,
    fields_of,
    is_compact,
    is_tagged,
)
from router.wire.kafka.source import CODES, WIDTHS, FunctionSource, default_source, is_collection

FAIL = "raise ValueError"


def reader_source(definition: MessageDefinition, version: int, name: str) -> FunctionSource:
    """Return the function that reads a version."""
    return _ReaderEmitter(definition, version).function(name)


class _ReaderEmitter:
    """Writes one function; `_run` are the fixed values that the next call of a Struct reads."""

    def __init__(self, definition: MessageDefinition, version: int) -> None:
        self._definition = definition
        self._version = version
        self._flexible = version in definition.flexible
        self._source = FunctionSource()
        self._run: list[tuple[str, str]] = []

    def function(self, name: str) -> FunctionSource:
        """Return the lines of the whole function."""
        source = self._source
        struct = self._definition.struct
        with source.block(f"def {name}(buffer, at, left=p.UNBOUNDED):"):
            source.line("end = len(buffer)")
            if self._has_records():
                source.line("view = memoryview(buffer)")
            source.line(f"m = _new({struct.name})")
            self._struct(struct, "m")
            self._flush()
            with source.block("if at > end:"):
                source.line(FAIL)
            source.line("return m, at")
        return source

    def _has_records(self) -> bool:
        structs = self._definition.struct, *self._definition.structs.values()
        return any(
            field.type.element == "records"
            for struct in structs
            for field in fields_of(struct, self._version)
        )

    def _struct(self, struct: StructDefinition, var: str) -> None:
        source, version = self._source, self._version
        tagged = []
        for field in struct.fields:
            target = f"{var}.{attribute(field.name)}"
            if version not in field.versions:
                self._default(field, target)
            elif is_tagged(field, version):
                self._default(field, target)
                tagged.append(field)
            else:
                self._value(field, target)
        source.line(f"{var}.unknown_tagged_fields = ()")
        if self._flexible:
            self._tags(tagged, var)

    def _default(self, field: FieldDefinition, target: str) -> None:
        source = self._source
        if field.struct is None or field.type.array or field.default is None:
            source.line(f"{target} = {default_source(field)}")
            return
        # a new one for each, as it can be changed; in line, as a call of a class costs more
        var = source.name("o")
        source.line(f"{target} = {var} = _new({field.type.element})")
        for inner in field.struct.fields:
            self._default(inner, f"{var}.{attribute(inner.name)}")
        source.line(f"{var}.unknown_tagged_fields = ()")

    def _tags(self, fields: list[FieldDefinition], var: str) -> None:
        source = self._source
        self._read("B", "n")
        with source.block("if n:"):
            if not fields:
                target = f"{var}.unknown_tagged_fields"
                source.line(f"{target}, at = p.read_unknown(buffer, at, n, left)")
                source.line(f"left -= len({target})")
                return
            self._rest_of_count("n")
            with source.block("if n < 0:"):
                source.line(FAIL)
            self._count("n")
            tag, stop, unknown = source.name("tag"), source.name("stop"), source.name("unknown")
            source.line(f"{unknown} = []")
            with source.block("for _ in range(n):"):
                source.line(f"{tag}, {stop}, at = p.read_tag(buffer, at)")
                for position, field in enumerate(fields):
                    word = "elif" if position else "if"
                    with source.block(f"{word} {tag} == {field.tag}:"):
                        self._value(field, f"{var}.{attribute(field.name)}", tagged=True)
                        self._flush()
                with source.block("else:"):
                    source.line(f"{unknown}.append(({tag}, buffer[at:{stop}]))")
                    source.line(f"at = {stop}")
                with source.block(f"if at != {stop}:"):
                    source.line(FAIL)
            source.line(f"{var}.unknown_tagged_fields = tuple({unknown})")

    def _value(self, field: FieldDefinition, target: str, *, tagged: bool = False) -> None:
        nullable = self._version in field.nullable
        if field.type.array:
            self._array(field, target, nullable)
        elif field.struct is not None:
            self._nested(field, field.struct, target, (nullable, tagged))
        else:
            self._primitive(field, target, nullable)

    def _primitive(self, field: FieldDefinition, target: str, nullable: bool) -> None:
        kind = field.type.element
        compact = is_compact(self._definition, field, self._version)
        if kind in CODES:
            self._run.append((CODES[kind], target))
        elif kind == "string" and compact:
            self._compact_string(target, nullable)
        elif kind == "string":
            self._sized(target, nullable, "h", 'str(buffer[at:stop], "utf-8", "replace")')
        elif compact:
            self._compact_bytes(_slice(kind), target, nullable)
        else:
            self._sized(target, nullable, "i", _slice(kind))

    def _compact_string(self, target: str, nullable: bool) -> None:
        source = self._source
        self._read("B", "n")
        with source.block("if 0 < n < 128:"):
            source.line("stop = at + n - 1")
            source.line(f'{target} = str(buffer[at:stop], "utf-8", "replace")')
            source.line("at = stop")
        with source.block("else:"):
            word = "nullable_string" if nullable else "string"
            source.line(f"{target}, at = p.read_{word}(buffer, at, n)")

    def _compact_bytes(self, value: str, target: str, nullable: bool) -> None:
        source = self._source
        self._read("B", "n")
        self._rest_of_count("n")
        with source.block("if n > 0:"):
            source.line("stop = at + n - 1")
            source.line(f"{target} = {value}")
            source.line("at = stop")
        with source.block("else:"):
            source.line(f"{target} = None" if nullable else FAIL)

    def _sized(self, target: str, nullable: bool, code: str, value: str) -> None:
        source = self._source
        self._read(code, "n")
        with source.block("if n >= 0:"):
            source.line("stop = at + n")
            source.line(f"{target} = {value}")
            source.line("at = stop")
        with source.block("else:"):
            source.line(f"{target} = None" if nullable else FAIL)

    def _nested(
        self,
        field: FieldDefinition,
        struct: StructDefinition,
        target: str,
        how: tuple[bool, bool],
    ) -> None:
        source = self._source
        nullable, tagged = how
        var = source.name("o")
        if not nullable:
            source.line(f"{target} = {var} = _new({field.type.element})")
            self._struct(struct, var)
            return
        if tagged:
            self._read("B", "n")
            self._rest_of_count("n")
        else:
            self._read("b", "n")
        with source.block("if n < 1:" if tagged else "if n < 0:"):
            source.line(f"{target} = None")
        with source.block("else:"):
            source.line(f"{target} = {var} = _new({field.type.element})")
            self._struct(struct, var)
            self._flush()

    def _array(self, field: FieldDefinition, target: str, nullable: bool) -> None:
        source = self._source
        kind = field.type.element
        if self._flexible:
            self._read("B", "n")
        else:
            self._read("i", "n")
            source.line("n += 1")
        if kind in CODES and kind != "uuid":
            self._numbers(CODES[kind], target, nullable)
            return
        if self._flexible:
            self._rest_of_count("n")
        with source.block("if n > 0:"):
            if kind == "uuid":
                source.line(f"{target}, at = p.read_uuids(buffer, at, n)")
            else:
                self._elements(field, target)
        with source.block("else:"):
            source.line(f"{target} = None" if nullable else FAIL)

    def _numbers(self, code: str, target: str, nullable: bool) -> None:
        source = self._source
        width = WIDTHS[code]
        with source.block("if 0 < n < 64:"):
            source.line(f"{target} = {source.array_unpackers(code)}[n](buffer, at)")
            source.line(f"at += {width} * n - {width}" if width > 1 else "at += n - 1")
        if nullable:
            with source.block("elif n < 1:"):
                source.line(f"{target} = None")
        with source.block("else:"):
            word = "numbers" if self._flexible else "counted"
            source.line(f'{target}, at = p.read_{word}(buffer, at, n, "{code}")')

    def _elements(self, field: FieldDefinition, target: str) -> None:
        source = self._source
        with source.block("if n - 1 > end - at:"):
            source.line(FAIL)
        self._count("n - 1")
        items = source.name("items")
        source.line(f"{items} = []")
        with source.block("for _ in range(n - 1):"):
            var = source.name("o")
            if field.struct is not None:
                source.line(f"{var} = _new({field.type.element})")
                source.line(f"{items}.append({var})")
                self._struct(field.struct, var)
                self._flush()
            else:
                self._primitive(field, var, nullable=False)
                self._flush()
                source.line(f"{items}.append({var})")
        wrapped = f"{field.type.element}Collection({items})" if is_collection(field) else items
        source.line(f"{target} = {wrapped}")

    def _count(self, number: str) -> None:
        source = self._source
        source.line(f"left -= {number}")
        with source.block("if left < 0:"):
            source.line("p.refuse_elements()")

    def _rest_of_count(self, name: str) -> None:
        with self._source.block(f"if {name} > 127:"):
            self._source.line(f"{name}, at = p.uvarint_rest(buffer, at, {name})")

    def _read(self, code: str, target: str) -> None:
        """End the run with a length, which the next lines need."""
        self._run.append((code, target))
        self._flush()

    def _flush(self) -> None:
        run, self._run = self._run, []
        if not run:
            return
        source = self._source
        if len(run) == 1 and run[0][0] == "B":
            source.line(f"{run[0][1]} = buffer[at]")
        else:
            targets = ", ".join(target for _, target in run)
            unpacker = source.unpacker([code for code, _ in run])
            comma = "," if len(run) == 1 else ""
            source.line(f"{targets}{comma} = {unpacker}(buffer, at)")
        source.line(f"at += {sum(WIDTHS[code] for code, _ in run)}")


def _slice(kind: str) -> str:
    """Return the expression of bytes; records are a view, as they are large and handed on."""
    return "view[at:stop]" if kind == "records" else "buffer[at:stop]"
