"""A file that is read again when it changes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

import structlog

from router.access.reloading import reloadable
from router.errors import SettingError

T = TypeVar("T")
LOOK_EVERY: Final = 1.0

_log = structlog.get_logger(__name__)


class Watched(Generic[T]):
    """What a file says, at most a second old; `parse` raises ValueError where it says nothing.

    Opening raises SettingError when the file cannot be read or understood. Later that is logged,
    and what it said last stays in force: a half-written file must not let anybody in or all out.
    """

    def __init__(self, path: Path, parse: Callable[[bytes], T], clock: Callable[[], float]) -> None:
        self._path = path
        self._parse = parse
        self._clock = clock
        self._lock = threading.Lock()
        self._stamp, value = self._read()
        # In one piece: contents are never taken for those of another version.
        self._held = 0, value
        self._next_look = clock() + LOOK_EVERY
        reloadable(self)

    @property
    def version(self) -> int:
        """The number of the contents that `get` returned last; it grows when they change."""
        return self._held[0]

    def get(self) -> T:
        """Return the contents."""
        if self._clock() >= self._next_look:
            with self._lock:
                self._next_look = self._clock() + LOOK_EVERY
                self._look()
        return self._held[1]

    def reload(self) -> None:
        """Read the file now, changed or not; raise SettingError where it is not usable."""
        with self._lock:
            self._take()

    def _look(self) -> None:
        try:
            if self._stat() == self._stamp:
                return
            self._take()
        except (SettingError, OSError) as error:
            _log.error("file not usable; its last contents stay in force", reason=str(error))

    def _take(self) -> None:
        self._stamp, value = self._read()
        self._held = self._held[0] + 1, value

    def _read(self) -> tuple[tuple[int, ...], T]:
        try:
            stamp = self._stat()
            found = self._path.read_bytes()
        except OSError as error:
            raise SettingError(f"{self._path}: {error}") from error
        try:
            return stamp, self._parse(found)
        except ValueError as error:
            raise SettingError(f"{self._path}: {error}") from error

    def _stat(self) -> tuple[int, ...]:
        found = self._path.stat()
        return found.st_mtime_ns, found.st_size, found.st_ino


def in_text(parse: Callable[[str], T]) -> Callable[[bytes], T]:
    """Return the parser of a file that holds text in UTF-8."""

    def decoded(data: bytes) -> T:
        return parse(data.decode())  # what is no UTF-8 raises a ValueError as well

    return decoded
