"""Compiles definitions: classes in memory with functions made at first use, or source for a folder.

Both come from the same lines. In memory a version is compiled when it is first read or written, as
a message may have twenty versions of which a peer uses one. Versions with equal code share one
function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from router.wire.kafka.classes import HEADER, RUNTIME, classes_source
from router.wire.kafka.definitions import DefinitionError, MessageDefinition
from router.wire.kafka.parsing import check_set, parse
from router.wire.kafka.readers import reader_source
from router.wire.kafka.runtime import KafkaMessage
from router.wire.kafka.source import FunctionSource
from router.wire.kafka.writers import writer_source

RUNTIME_MODULES: Final = (
    "definitions",
    "diagnosis",
    "errors",
    "json_form",
    "nodes",
    "parsing",
    "primitives",
    "runtime",
    "versions",
)
"""The modules of RUNTIME that generated code imports, and those that these import."""

_Emit = Callable[[MessageDefinition, int, str], FunctionSource]


def compile_message(text: str, file: str) -> type[KafkaMessage]:
    """Return the class of a definition; raise DefinitionError."""
    return _compiled(parse(text, file), text)


def message_source(text: str, file: str, runtime: str = RUNTIME) -> str:
    """Return the module of a definition, with the functions of all versions.

    It imports RUNTIME_MODULES from the package `runtime`.
    """
    definition = parse(text, file)
    lines = [HEADER.format(name=definition.name, runtime=runtime), "", *classes_source(definition)]
    constants: dict[str, str] = {}
    tables: list[str] = []
    functions: list[str] = []
    for table, emit in (("READERS", reader_source), ("WRITERS", writer_source)):
        names = {}
        seen: dict[str, str] = {}
        for version in definition.valid.numbers():
            found = emit(definition, version, f"_{table.lower()[:-3]}_{version}")
            body = "\n".join(found.lines[1:])
            if body not in seen:
                seen[body] = f"_{table.lower()[:-3]}_{version}"
                constants.update(found.constants)
                functions += ["", "", *found.lines]
            names[version] = seen[body]
        entries = ", ".join(f"{version}: {name}" for version, name in names.items())
        tables.append(f"{definition.name}.{table} = {{{entries}}}")
    lines += ["", *(f"{name} = {value}" for name, value in sorted(constants.items()))]
    lines += [*functions, "", "", *tables, f"{definition.name}.DEFINITION = {text!r}"]
    return "\n".join(lines) + "\n"


class Messages:
    """The messages of a set of definitions, each compiled at its first use."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts: dict[str, tuple[MessageDefinition, str]] = {}
        for file, text in texts.items():
            found = parse(text, file)
            if found.name in self._texts:
                raise DefinitionError(file, "", f"there is another definition of {found.name}")
            self._texts[found.name] = found, text
        check_set([definition for definition, _ in self._texts.values()])
        self._classes: dict[str, type[KafkaMessage]] = {}
        self._keys = {(found.api_key, found.type): name for name, (found, _) in self._texts.items()}

    @property
    def names(self) -> list[str]:
        """Return the names of all messages, sorted."""
        return sorted(self._texts)

    def definition(self, name: str) -> MessageDefinition:
        """Return the definition of a message; raise KeyError."""
        return self._texts[name][0]

    def message(self, name: str) -> type[KafkaMessage]:
        """Return the class of a message; raise KeyError."""
        found = self._classes.get(name)
        if found is None:
            found = self._classes[name] = _compiled(*self._texts[name])
        return found

    def request(self, api_key: int) -> type[KafkaMessage]:
        """Return the class of an API's request; raise KeyError."""
        return self.message(self._keys[api_key, "request"])

    def response(self, api_key: int) -> type[KafkaMessage]:
        """Return the class of an API's response; raise KeyError."""
        return self.message(self._keys[api_key, "response"])


API_VERSIONS_KEY = 18


def request_header_version(definition: MessageDefinition, version: int) -> int:
    """Return the version of the header before a request of a version."""
    return 2 if version in definition.flexible else 1


def response_header_version(definition: MessageDefinition, version: int) -> int:
    """Return the version of the header before a response of a version.

    That of ApiVersions is always 0, as its client does not know yet what the broker speaks.
    """
    if definition.api_key == API_VERSIONS_KEY:
        return 0
    return 1 if version in definition.flexible else 0


def _compiled(definition: MessageDefinition, text: str) -> type[KafkaMessage]:
    module: dict[str, Any] = {"__name__": f"{__name__}.{definition.name}"}
    lines = [HEADER.format(name=definition.name, runtime=RUNTIME), *classes_source(definition)]
    _execute("\n".join(lines), definition.name, module)
    found: type[KafkaMessage] = module[definition.name]
    found.DEFINITION = text
    found._definition = definition
    found.READERS = _Functions(definition, module, reader_source)
    found.WRITERS = _Functions(definition, module, writer_source)
    return found


class _Functions(dict[int, Any]):
    """The functions by version; one is compiled when it is first asked for."""

    def __init__(self, definition: MessageDefinition, module: dict[str, Any], emit: _Emit) -> None:
        super().__init__()
        self._definition = definition
        self._module = module
        self._emit = emit
        self._by_source: dict[str, Any] = {}

    def __missing__(self, version: int) -> Any:
        if version not in self._definition.valid:
            raise KeyError(version)
        source = self._emit(self._definition, version, "_function")
        text = "\n".join(source.lines)
        found = self._by_source.get(text)
        if found is None:
            constants = [f"{name} = {value}" for name, value in source.constants.items()]
            _execute("\n".join(constants), self._definition.name, self._module)
            # The function goes to a namespace of its own: another thread may compile a version too.
            own: dict[str, Any] = {}
            _execute(text, self._definition.name, self._module, own)
            found = self._by_source[text] = own["_function"]
        self[version] = found
        return found


def _execute(
    text: str, name: str, module: dict[str, Any], own: dict[str, Any] | None = None
) -> None:
    code = compile(text, f"<kafka message {name}>", "exec")
    exec(code, module, own)  # noqa: S102 generated here
