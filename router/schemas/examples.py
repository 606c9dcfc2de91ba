"""An example of a value that a schema describes, for people who write one by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from router.model import Schema, SchemaType

MAX_DEPTH: Final = 12
MAX_PARTS: Final = 2_000
_AVRO: Final[Mapping[str, Any]] = {
    **{"null": None, "boolean": False, "int": 0, "long": 0, "float": 0.5, "double": 0.5},
    **{"string": "text", "bytes": "bytes"},
}
_JSON: Final[Mapping[str, Any]] = {
    **{"null": None, "boolean": False, "integer": 0, "number": 0.5, "string": "text"}
}


def example(schema: Schema) -> Any | None:
    """Return a value as JSON holds it, None: the schema describes no record, or is too large."""
    if schema.type not in {SchemaType.JSON, SchemaType.AVRO}:
        return None
    try:
        definition = orjson.loads(schema.data)
        return _Example().value(definition, 0) if isinstance(definition, dict) else None
    except (ValueError, KeyError, TypeError, RecursionError):  # no definition that is read here
        return None


class _Example:
    """Makes one value; named types are those that came before."""

    def __init__(self) -> None:
        self._named: dict[str, Mapping[str, Any]] = {}
        self._parts = 0

    def value(self, of: Any, depth: int) -> Any:
        self._parts += 1
        if depth > MAX_DEPTH or self._parts > MAX_PARTS:
            raise ValueError("it is too large")
        if isinstance(of, list):
            chosen = [one for one in of if one != "null"] or of
            return self.value(chosen[0], depth)
        if isinstance(of, str):
            return _AVRO[of] if of in _AVRO else self.value(self._named[of], depth + 1)
        if "properties" in of or of.get("type") == "object":
            return {name: self._json(one, depth) for name, one in of.get("properties", {}).items()}
        return self._complex(of, depth)

    def _complex(self, of: Mapping[str, Any], depth: int) -> Any:
        kind = of["type"]
        if kind in {"record", "enum", "fixed"}:
            space = of.get("namespace", "")
            for name in (of["name"], f"{space}.{of['name']}"):
                self._named[name] = of
        if kind == "record":
            return {one["name"]: self._field(one, depth + 1) for one in of["fields"]}
        if kind == "enum":
            return of["symbols"][0]
        if kind == "array":
            return [self.value(of["items"], depth + 1)]
        if kind == "map":
            return {"key": self.value(of["values"], depth + 1)}
        if kind == "fixed":
            return "0" * int(of["size"])
        return self.value(kind, depth + 1)

    def _field(self, field: Mapping[str, Any], depth: int) -> Any:
        kind = field["type"]
        optional = isinstance(kind, list) and "null" in kind
        # A member of the type that it is in would go on for ever.
        if optional and depth > 2:
            return None
        if field.get("default") is not None:
            return field["default"]
        return self.value(kind, depth)

    def _json(self, of: Mapping[str, Any], depth: int) -> Any:
        self._parts += 1
        if depth > MAX_DEPTH or self._parts > MAX_PARTS:
            raise ValueError("it is too large")
        for word in ("default", "const"):
            if word in of:
                return of[word]
        for word in ("examples", "enum"):
            if of.get(word):
                return of[word][0]
        kinds = of["type"] if isinstance(of["type"], list) else [of["type"]]
        kind = next((one for one in kinds if one != "null"), "null")
        if kind == "object":
            members = of.get("properties", {}).items()
            return {name: self._json(one, depth + 1) for name, one in members}
        if kind == "array":
            return [self._json(of["items"], depth + 1)]
        return _JSON[kind]
