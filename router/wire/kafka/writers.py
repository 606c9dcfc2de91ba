"""Generates the functions that write: straight lines per version, nested structs in line.

A function returns the parts of a message, which are joined at once. A run of values of fixed width,
the length of what follows among them, is one call of a Struct. What a version cannot carry, and
values that are none of the field's type, raise an error of Python; the sentence is found afterwards
by `router.wire.kafka.diagnosis`.
"""

from __future__ import annotations

from router.wire.kafka.definitions import (
    FieldDefinition,
    MessageDefinition,
    StructDefinition,
    attribute,
    is_compact,
    is_tagged,
)
from router.wire.kafka.source import CODES, FunctionSource, differs_source

FAIL = "raise ValueError"

_Run = list[tuple[str, str]]


def writer_source(definition: MessageDefinition, version: int, name: str) -> FunctionSource:
    """Return the function that writes a version."""
    return _WriterEmitter(definition, version).function(name)


class _WriterEmitter:
    """Writes one function; `_run` are the fixed values that the next call of a Struct packs."""

    def __init__(self, definition: MessageDefinition, version: int) -> None:
        self._definition = definition
        self._version = version
        self._flexible = version in definition.flexible
        self._source = FunctionSource()
        self._run: _Run = []
        self._parts = "parts"

    def function(self, name: str) -> FunctionSource:
        """Return the lines of the whole function."""
        source = self._source
        with source.block(f"def {name}(m):"):
            source.line("parts = []")
            source.line("add = parts.append")
            self._struct(self._definition.struct, "m")
            self._flush()
            source.line("return parts")
        return source

    def _struct(self, struct: StructDefinition, var: str) -> None:
        source, version = self._source, self._version
        tagged = []
        for field in struct.fields:
            value = f"{var}.{attribute(field.name)}"
            if version not in field.versions:
                if not field.ignorable:
                    with source.block(f"if {differs_source(field, value)}:"):
                        source.line(FAIL)
            elif is_tagged(field, version):
                tagged.append(field)
            else:
                self._value(field, value)
        if self._flexible:
            self._tags(tagged, var)
        else:
            with source.block(f"if {var}.unknown_tagged_fields:"):
                source.line(FAIL)

    def _tags(self, fields: list[FieldDefinition], var: str) -> None:
        source = self._source
        unknown = f"{var}.unknown_tagged_fields"
        known, condition = "()", unknown
        if fields:
            known = source.name("known")
            condition = f"{known} or {unknown}"
            self._known_tags(fields, var, known)
        with source.block(f"if {condition}:"):
            self._emit(self._run)
            source.line(f"add(p.write_tags({known}, {unknown}))")
        with source.block("else:"):
            self._emit([*self._run, ("B", "0")])
        self._run = []

    def _known_tags(self, fields: list[FieldDefinition], var: str, known: str) -> None:
        source = self._source
        outer, outer_run = self._parts, self._run
        source.line(f"{known} = []")
        for field in fields:
            value = f"{var}.{attribute(field.name)}"
            self._parts = source.name("parts")
            self._run = []
            with source.block(f"if {differs_source(field, value)}:"):
                source.line(f"{self._parts} = []")
                source.line(f"add = {self._parts}.append")
                self._value(field, value, tagged=True)
                self._flush()
                source.line(f'{known}.append(({field.tag}, b"".join({self._parts})))')
                source.line(f"add = {outer}.append")
        self._parts, self._run = outer, outer_run

    def _value(self, field: FieldDefinition, value: str, *, tagged: bool = False) -> None:
        nullable = self._version in field.nullable
        if field.type.array:
            self._array(field, value, nullable)
        elif field.struct is not None:
            self._nested(field.struct, value, nullable, tagged)
        else:
            self._primitive(field, value, nullable)

    def _primitive(self, field: FieldDefinition, value: str, nullable: bool) -> None:
        source = self._source
        kind = field.type.element
        compact = is_compact(self._definition, field, self._version)
        if kind in CODES:
            if kind == "uuid":
                with source.block(f"if len({value}) != 16:"):
                    source.line(FAIL)
            self._run.append((CODES[kind], value))
            return
        text = kind == "string"
        code = ("B" if compact else "h") if text else ("B" if compact else "i")
        if not nullable:
            self._sized(value, text, code)
        else:
            with source.block(f"if {value} is None:"):
                self._emit([*self._run, (code, "0" if compact else "-1")])
            with source.block("else:"):
                self._sized(value, text, code)
        self._run = []

    def _sized(self, value: str, text: bool, code: str) -> None:
        source = self._source
        content = source.name("content")
        source.line(f"{content} = {value}.encode()" if text else f"{content} = {value}")
        if code == "B":
            source.line(f"n = len({content}) + 1")
            self._compact_length("p.string_size(n)" if text else "p.uvarint(n)")
        else:
            source.line(f"n = len({content})")
            self._emit([*self._run, (code, "n")])
        source.line(f"add({content})")

    def _compact_length(self, long: str) -> None:
        """Write the run with the length n; the run stays, for there may be another branch."""
        source = self._source
        with source.block("if n < 128:"):
            self._emit([*self._run, ("B", "n")])
        with source.block("else:"):
            self._emit(self._run)
            source.line(f"add({long})")

    def _nested(self, struct: StructDefinition, value: str, nullable: bool, tagged: bool) -> None:
        source = self._source
        var = source.name("o")
        if not nullable:
            source.line(f"{var} = {value}")
            self._struct(struct, var)
            return
        code = "B" if tagged else "b"
        with source.block(f"if {value} is None:"):
            self._emit([*self._run, (code, "0" if tagged else "-1")])
        with source.block("else:"):
            self._run.append((code, "1"))
            source.line(f"{var} = {value}")
            self._struct(struct, var)
            self._flush()
        self._run = []

    def _array(self, field: FieldDefinition, value: str, nullable: bool) -> None:
        source = self._source
        if not nullable:
            self._counted(field, value)
        else:
            with source.block(f"if {value} is None:"):
                null = ("B", "0") if self._flexible else ("i", "-1")
                self._emit([*self._run, null])
            with source.block("else:"):
                self._counted(field, value)
        self._run = []

    def _counted(self, field: FieldDefinition, value: str) -> None:
        source = self._source
        kind = field.type.element
        if kind in CODES and kind != "uuid":
            self._numbers(CODES[kind], value)
            return
        if self._flexible:
            source.line(f"n = len({value}) + 1")
            self._compact_length("p.uvarint(n)")
        else:
            source.line(f"n = len({value})")
            self._emit([*self._run, ("i", "n")])
        if kind == "uuid":
            source.line(f"add(p.write_uuids({value}))")
            return
        outer, self._run = self._run, []
        var = source.name("o")
        with source.block(f"for {var} in {value}:"):
            if field.struct is not None:
                self._struct(field.struct, var)
            else:
                self._primitive(field, var, nullable=False)
            if not self._flush():
                source.line("pass")
        self._run = outer

    def _numbers(self, code: str, value: str) -> None:
        source = self._source
        self._emit(self._run)
        numbers = source.name("numbers")
        source.line(f"{numbers} = {value}")
        source.line(f"n = len({numbers})")
        table = source.array_packers(code, "B" if self._flexible else "i")
        first = "n + 1" if self._flexible else "n"
        with source.block("if n < 63:"):
            source.line(f"add({table}[n]({first}, *{numbers}))")
        with source.block("else:"):
            word = "numbers" if self._flexible else "counted"
            source.line(f'add(p.write_{word}({numbers}, "{code}"))')

    def _flush(self) -> bool:
        """Write the run and begin another one; tell whether there was any."""
        run, self._run = self._run, []
        self._emit(run, empty=False)
        return bool(run)

    def _emit(self, run: _Run, *, empty: bool = True) -> None:
        """Write a run, `pass` where it is empty and a branch needs a line."""
        source = self._source
        if not run:
            if empty:
                source.line("pass")
            return
        packer = source.packer([code for code, _ in run])
        source.line(f"add({packer}({', '.join(value for _, value in run)}))")
