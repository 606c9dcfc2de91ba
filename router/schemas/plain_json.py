"""Whether a value of JSON is what a JSON schema's definition describes.

Clients write such values as their languages do: a member of a union stands there as it is, bytes
are a text, and what a definition calls a date or a decimal may be a number, a text or a list. What
is null may be left out, and so may what has a default.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from router.schemas.avro_binary import check_known
from router.schemas.definitions import DefinitionNode
from router.schemas.walking import UnfitError, WalkBudget, shown

_RANGES: Final = {"int": 1 << 31, "long": 1 << 63}


def check_fits(node: DefinitionNode, value: Any) -> None:
    """Raise PayloadMismatchError unless the value is one of this type."""
    _Check().value(node, value, 0)


def check_bounded(value: Any) -> None:
    """Raise PayloadMismatchError if a value has too many parts or levels, or no form in JSON."""
    steps = WalkBudget()
    level, depth = [value], 0
    while level:
        steps.take(depth, len(level))
        inner: list[Any] = []
        for part in level:
            if isinstance(part, dict):
                inner.extend(part.values())
            elif isinstance(part, list):
                inner.extend(part)
            else:
                _check_scalar(part)
        level, depth = inner, depth + 1


def _check_scalar(value: Any) -> None:
    if not isinstance(value, str | int | float | None):
        raise UnfitError(f"{shown(value)} is no JSON")
    if isinstance(value, float) and not math.isfinite(value):
        raise UnfitError("a number that is not finite")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise UnfitError("a number of more than 64 bits")


class _Check:
    def __init__(self) -> None:
        self._steps = WalkBudget()
        self._tests: dict[str, Callable[[DefinitionNode, Any], bool]] = {
            "null": lambda _node, value: value is None,
            "boolean": lambda _node, value: isinstance(value, bool),
            "int": _integer,
            "long": _integer,
            "float": _number,
            "double": _number,
            "bytes": lambda _node, value: isinstance(value, str),
            "fixed": lambda _node, value: isinstance(value, str),
            "string": lambda _node, value: isinstance(value, str),
            "enum": lambda node, value: isinstance(value, str) and value in node.places,
        }
        self._walks: dict[str, Callable[[DefinitionNode, Any, int], None]] = {
            "array": self._array,
            "map": self._map,
            "record": self._record,
            "union": self._union,
        }

    def value(self, node: DefinitionNode, value: Any, depth: int) -> None:
        self._steps.take(depth)
        if node.logical:
            check_bounded(value)
        elif (walk := self._walks.get(node.kind)) is not None:
            walk(node, value, depth)
        elif not self._tests[node.kind](node, value):
            raise UnfitError(f"{shown(value)} is no {node.label}")

    def _array(self, node: DefinitionNode, value: Any, depth: int) -> None:
        if not isinstance(value, list):
            raise UnfitError(f"{shown(value)} is no array")
        for place, part in enumerate(value):
            self._part(node.parts[0], part, str(place), depth)

    def _map(self, node: DefinitionNode, value: Any, depth: int) -> None:
        if not isinstance(value, dict):
            raise UnfitError(f"{shown(value)} is no map")
        for key, part in value.items():
            self._part(node.parts[0], part, key[:60], depth)

    def _record(self, node: DefinitionNode, value: Any, depth: int) -> None:
        if not isinstance(value, dict):
            raise UnfitError(f"{shown(value)} is no {node.label}")
        check_known(node, value)
        for field in node.fields:
            if field.name in value:
                self._part(field.node, value[field.name], field.name, depth)
            elif not field.has_default and not field.node.nullable:
                raise UnfitError(f"{node.label} lacks {field.name}")

    def _part(self, node: DefinitionNode, value: Any, where: str, depth: int) -> None:
        try:
            self.value(node, value, depth + 1)
        except UnfitError as error:
            error.path.append(where)
            raise

    def _union(self, node: DefinitionNode, value: Any, depth: int) -> None:
        for place in node.candidates(value):
            left = self._steps.left
            try:
                self.value(node.parts[place], value, depth + 1)
            except UnfitError:
                self._steps.waste(left)
                continue
            return
        raise UnfitError(f"{shown(value)} fits no branch of {', '.join(node.places)}")


def _integer(node: DefinitionNode, value: Any) -> bool:
    bound = _RANGES[node.kind]
    return isinstance(value, int) and not isinstance(value, bool) and -bound <= value < bound


def _number(_node: DefinitionNode, value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return (number and math.isfinite(value)) or value in ("NaN", "Infinity", "-Infinity")
