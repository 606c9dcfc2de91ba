"""The audit of administrative changes: lines of JSON in two files of the data folder.

A change is added at once and written soon, in order and in one piece with others; the older file is
dropped when the newer one is full, so that both together are bounded. Changes hold names of things,
and never values of messages, nor credentials. A line that was torn by a crash is left out.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import orjson
import structlog

FILE: Final = "audit.jsonl"
OLDER: Final = "audit.1.jsonl"
MAX_FILE_BYTES: Final = 8 << 20
MAX_TEXT: Final = 300
MAX_DETAILS: Final = 16
MAX_UNWRITTEN: Final = 10_000
"""Changes that the disk does not take in time; those beyond them are in the log alone."""
MAX_LISTED: Final = 10_000
_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW

_log = structlog.get_logger(__name__)


class AuditLog:
    """The changes of one broker; used on the event loop alone. `now_ms` is the wall clock."""

    def __init__(
        self, folder: Path, now_ms: Callable[[], int], max_bytes: int = MAX_FILE_BYTES
    ) -> None:
        self._file, self._older = folder / FILE, folder / OLDER
        self._now_ms, self._max_bytes = now_ms, max_bytes
        self._unwritten: deque[bytes] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._lead = b"\n"  # ends a line that a crash, or a full disk, has torn

    def add(
        self, action: str, target: str, user: str, address: str, protocol: str, **details: object
    ) -> None:
        """Add a change: what was done to what, by whom, from where; it is written soon.

        Texts are cut at MAX_TEXT characters. `details` are short values by their names.
        """
        change = {
            "at": self._now_ms(),
            "user": _cut(user),
            "from": _cut(address),
            "protocol": protocol,
            "action": _cut(action),
            "target": _cut(target),
            "details": dict(_short(details)),
        }
        if len(self._unwritten) >= MAX_UNWRITTEN:
            _log.warning("change-not-written", **change)
            return
        self._unwritten.append(orjson.dumps(change) + b"\n")
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())

    async def written(self) -> None:
        """Return when all that was added is written, or was refused by the disk."""
        if self._writing is not None:
            await asyncio.shield(self._writing)

    async def newest(self, limit: int, text: str = "") -> list[dict[str, Any]]:
        """Return the last changes that hold a text in any field, the newest first.

        At most `limit`, and MAX_LISTED. Raises OSError.
        """
        await self.written()
        return await asyncio.to_thread(self._find, min(limit, MAX_LISTED), text.lower())

    async def _write(self) -> None:
        while self._unwritten:
            lines = self._lead + b"".join(self._unwritten)
            self._unwritten.clear()
            self._lead = b""
            try:
                await asyncio.to_thread(self._append, lines)
            except OSError as error:
                self._lead = b"\n"
                _log.warning("audit-not-written", reason=str(error), lines=lines.decode())

    def _append(self, lines: bytes) -> None:
        descriptor = os.open(self._file, _FLAGS, 0o600)
        try:
            if os.fstat(descriptor).st_size + len(lines) > self._max_bytes:
                self._file.replace(self._older)
                os.close(descriptor)
                descriptor = os.open(self._file, _FLAGS, 0o600)
            while lines:
                lines = lines[os.write(descriptor, lines) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _find(self, limit: int, text: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for line in self._lines():
            if len(found) >= limit:
                break
            try:
                change = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
            if text in " ".join(_texts(change)).lower():
                found.append(change)
        return found

    def _lines(self) -> Iterator[bytes]:
        for path in (self._file, self._older):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                continue
            yield from reversed(data.splitlines())


def _short(details: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in list(details.items())[:MAX_DETAILS]:
        small = isinstance(value, int) and abs(value) < 1 << 63
        yield _cut(name), value if small else _cut(str(value))


def _cut(text: str) -> str:
    """Return the beginning of a text, as JSON can hold it."""
    return text[:MAX_TEXT].encode("utf-8", "replace").decode()


def _texts(change: Mapping[str, Any]) -> Iterator[str]:
    for value in change.values():
        if isinstance(value, dict):
            yield from (f"{name}={one}" for name, one in value.items())
        else:
            yield str(value)
