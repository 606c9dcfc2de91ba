"""A history: what concurrent clients called, when, and what they were answered."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Output = dict[str, Any]


class UnknownOutcomeError(Exception):
    """A call was not answered, or with a failure: what it does may happen now, later or never."""


class RefusedError(Exception):
    """A call was refused and has no effect, so it is no part of the history."""


@dataclass(frozen=True)
class Operation:
    """One call; times are nanoseconds of the monotonic clock. Without an output it is unknown."""

    client: int
    op: str
    call: int
    returned: int
    input: dict[str, Any]
    output: Output | None
    error: str = ""
    """Why there is no output."""

    def line(self) -> str:
        """Return it as the judge reads it."""
        fields = {
            "client": self.client,
            "op": self.op,
            "call": self.call,
            "return": self.returned,
            "input": self.input,
            "output": self.output,
            "error": self.error,
        }
        return json.dumps(fields)


class History:
    """Operations of one object, recorded from several threads."""

    def __init__(self, model: str, name: str) -> None:
        self.model = model
        self.name = name
        self.operations: list[Operation] = []
        self._lock = threading.Lock()
        self._unused = itertools.count()
        self._numbers: dict[str, int] = {}

    def record(
        self, client: str, op: str, call: Callable[[], Output], **inputs: Any
    ) -> Output | None:
        """Make a call and record it; return its output, None: it was not answered.

        A client whose call was not answered counts as another one from then on, because that call
        still goes on. Raises RefusedError, and records nothing then.
        """
        with self._lock:
            number = self._numbers.setdefault(client, next(self._unused))
        began = time.monotonic_ns()
        output: Output | None = None
        reason = ""
        try:
            output = call()
        except UnknownOutcomeError as error:
            reason = str(error)[:200]
            with self._lock:
                del self._numbers[client]
        self.add(Operation(number, op, began, time.monotonic_ns(), inputs, output, reason))
        return output

    def note(self, client: str, op: str, began: int, *, known: bool, **inputs: Any) -> None:
        """Record what a client did at some time from `began` until now."""
        with self._lock:
            number = self._numbers.setdefault(client, next(self._unused))
        output: Output | None = {} if known else None
        self.add(Operation(number, op, began, time.monotonic_ns(), inputs, output))

    def add(self, operation: Operation) -> None:
        """Add what was recorded elsewhere."""
        with self._lock:
            self.operations.append(operation)

    def text(self) -> str:
        """Return the history in the order of its calls, an operation a line."""
        with self._lock:
            ordered = sorted(self.operations, key=lambda one: one.call)
        return "".join(one.line() + "\n" for one in ordered)

    def write(self, file: Path) -> None:
        """Keep the history."""
        file.write_text(self.text())
