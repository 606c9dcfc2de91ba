"""Avro definitions and values of them, in Avro's JSON encoding."""

from __future__ import annotations

import copy
import struct
from typing import Any

from hypothesis import strategies as st

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
NAMED = ("record", "enum", "fixed")
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
RAW = st.text(st.characters(max_codepoint=255), max_size=8)
SINGLE = st.floats(width=32, allow_nan=False)
DOUBLE = st.floats(allow_nan=False)

_LEAVES = (
    st.sampled_from(PRIMITIVES)
    | st.builds(lambda: {"type": "enum", "name": "", "symbols": ["A", "B", "C"]})
    | st.builds(lambda size: {"type": "fixed", "name": "", "size": size}, st.integers(1, 4))
)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.builds(lambda items: {"type": "array", "items": items}, inner)
        | st.builds(lambda values: {"type": "map", "values": values}, inner)
        | st.lists(inner, max_size=4).map(_record)
        | st.lists(inner, min_size=1, max_size=4).map(_union).filter(len)
    )


def _record(types: list[Any]) -> dict[str, Any]:
    fields = [{"name": f"f{index}", "type": part} for index, part in enumerate(types)]
    return {"type": "record", "name": "", "fields": fields}


def _union(types: list[Any]) -> list[Any]:
    """The types that may stand in one union."""
    found: dict[str, Any] = {}
    for part in types:
        if kind(part) != "union":
            key = f"{kind(part)}{len(found)}" if kind(part) in NAMED else kind(part)
            found.setdefault(key, part)
    return list(found.values())


def kind(definition: Any) -> str:
    if isinstance(definition, str):
        return definition
    return "union" if isinstance(definition, list) else str(definition["type"])


def label(definition: Any) -> str:
    return str(definition["name"]) if kind(definition) in NAMED else kind(definition)


def _named(definition: Any) -> Any:
    """Give each of its types that need one a name of its own."""
    definition, names = copy.deepcopy(definition), iter(range(10_000))

    def walk(part: Any) -> None:
        if isinstance(part, list):
            for branch in part:
                walk(branch)
        elif isinstance(part, dict):
            if "name" in part and part["type"] in NAMED:
                part["name"] = f"N{next(names)}"
            for key in ("items", "values"):
                walk(part.get(key))
            for field in part.get("fields", ()):
                walk(field["type"])

    walk(definition)
    return definition


definitions = st.recursive(_LEAVES, _containers, max_leaves=8).map(_named)
records = st.lists(definitions, max_size=4).map(lambda types: _named({**_record(types)}))


def values(definition: Any) -> st.SearchStrategy[Any]:
    """Values of a definition."""
    made = _SIMPLE.get(kind(definition))
    if made is not None:
        return made
    match kind(definition):
        case "enum":
            return st.sampled_from(definition["symbols"])
        case "fixed":
            size = definition["size"]
            return st.binary(min_size=size, max_size=size).map(lambda raw: raw.decode("latin-1"))
        case "array":
            return st.lists(values(definition["items"]), max_size=3)
        case "map":
            return st.dictionaries(TEXT, values(definition["values"]), max_size=3)
        case "union":
            return st.one_of([_branch(part) for part in definition])
    fields = {field["name"]: values(field["type"]) for field in definition["fields"]}
    return st.fixed_dictionaries(fields)


def _branch(part: Any) -> st.SearchStrategy[Any]:
    if part == "null":
        return st.none()
    return values(part).map(lambda value: {label(part): value})


def _worded(number: float) -> float | str:
    if number in (float("inf"), float("-inf")):
        return "Infinity" if number > 0 else "-Infinity"
    return number


_SIMPLE: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": SINGLE.map(_worded),
    "double": DOUBLE.map(_worded),
    "bytes": RAW,
    "string": TEXT,
}


def plain(definition: Any, value: Any) -> Any:
    """A value as Python programs have it: no branches named, bytes as such."""
    match kind(definition):
        case "union":
            if value is None:
                return None
            ((name, inner),) = value.items()
            return plain(next(part for part in definition if label(part) == name), inner)
        case "bytes" | "fixed":
            return value.encode("latin-1")
        case "float" | "double":
            number = float(value.replace("Infinity", "inf") if isinstance(value, str) else value)
            return (
                struct.unpack("f", struct.pack("f", number))[0] if definition == "float" else number
            )
        case "array":
            return [plain(definition["items"], part) for part in value]
        case "map":
            return {key: plain(definition["values"], part) for key, part in value.items()}
        case "record":
            return {f["name"]: plain(f["type"], value[f["name"]]) for f in definition["fields"]}
    return value
