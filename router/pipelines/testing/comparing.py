"""Rows that came beside rows that were expected: the lines that differ.

The rows of a sink have no order, so both sides are compared sorted. Only columns that an expected
row names are compared, within objects as well: a test names what it is about.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from router.pipelines.testing.cases import Case, Row

MAX_LINES: Final = 200
_Shape = Mapping[str, Any] | None
_WHOLE_SECOND: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.0+(?=Z$|[+-]\d\d:\d\d$)")


def line(row: Row) -> str:
    """Return a row as a test writes it: one line of JSON."""
    return json.dumps(_plain(row), ensure_ascii=False)


def difference(expected: Sequence[Row], came: Sequence[Row]) -> list[str]:
    """Return the lines of a difference: `-` was expected, `+` came; none: they agree."""
    shape = _shape([_plain(row) for row in expected])
    before = sorted(line(_cut(_plain(row), shape)) for row in expected)
    after = sorted(line(_cut(_plain(row), shape)) for row in came)
    if before == after:
        return []
    found = difflib.unified_diff(before, after, n=1, lineterm="")
    lines = [one for one in found if not one.startswith(("---", "+++", "@@"))]
    rest = len(lines) - MAX_LINES
    return lines if rest <= 0 else [*lines[:MAX_LINES], f"… {rest} lines more"]


def _shape(values: Sequence[Any]) -> _Shape:
    """Return the names that objects have, and within them; None: they are compared as they are."""
    objects = [value for value in values if isinstance(value, dict)]
    if not objects:
        return None
    names = dict.fromkeys(name for value in objects for name in value)
    return {name: _shape([value.get(name) for value in objects]) for name in names}


def _cut(value: Any, shape: _Shape) -> Any:
    if shape is None or not isinstance(value, dict):
        return value
    return {name: _cut(value.get(name), inner) for name, inner in shape.items()}


def _plain(value: Any) -> Any:
    """Return a value as it is compared: a text that is a JSON object is that object."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, str):
        if value.startswith(("{", "[")):
            try:
                return _plain(json.loads(value))
            except ValueError:
                return value
        return _WHOLE_SECOND.sub(r"\1", value)
    return value


@dataclass(frozen=True, slots=True)
class CaseResult:
    """How a case went: what `came` for each sink, and what differs from what was expected.

    `error` is the sentence that the case ended with, empty: it ended well. `failures` are lines;
    none: the case passed.
    """

    case: Case
    came: Mapping[str, tuple[Row, ...]]
    error: str
    seconds: float

    def accepted(self) -> CaseResult:
        """Return the result of a case that expects what came."""
        return replace(self, case=replace(self.case, expected=self.came, error=self.error))

    def failures(self) -> list[str]:
        """Return the lines that say what differs."""
        if self.case.error or self.error:
            if self.case.error and self.case.error in self.error:
                return []
            if not self.case.error:
                return [f"it ended with: {self.error}"]
            return [f"-error: {self.case.error}", f"+error: {self.error or 'none'}"]
        lines = []
        for sink, rows in self.case.expected.items():
            if differing := difference(rows, self.came.get(sink, ())):
                lines += [f"sink {sink}:", *(f"  {one}" for one in differing)]
        return lines
