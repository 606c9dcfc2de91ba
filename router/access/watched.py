"""Files that are read again when they change, or when SIGHUP asks the process to reload.

Each file is looked at again by itself, within a second of a change. A reload reads all of them,
changed or not, and logs that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar
from weakref import WeakSet

import structlog

from router.errors import SettingError

T = TypeVar("T")
CHECK_INTERVAL_SECONDS: Final = 1.0

_log = structlog.get_logger(__name__)


class Reloadable(Protocol):
    """Something that was read from files."""

    def reload(self) -> None:
        """Read the files again; raise SettingError, and change nothing, if they are unusable."""
        ...


_parts: Final[WeakSet[Reloadable]] = WeakSet()


def reloadable(part: Reloadable) -> None:
    """Have `reload_all` reload this part for as long as it is in use."""
    _parts.add(part)


def reload_all() -> None:
    """Reload all parts that this process uses; a part that does not load is kept, and logged."""
    failed = 0
    for part in (parts := list(_parts)):
        try:
            part.reload()
        except SettingError as error:
            failed += 1
            _log.error("not reloaded; what was read last stays in force", reason=str(error))
    _log.info("reloaded", parts=len(parts), failed=failed)


class Watched(Generic[T]):
    """The parsed content of a file, at most a second old; `parse` raises ValueError.

    Opening raises SettingError if the file cannot be read or parsed. Later that is logged, and the
    last content stays in force, because a half-written file must neither let clients in nor out.
    Until `next_check` the file is not looked at, and `held` is its version and content: requests
    may read both without a call.
    """

    def __init__(self, path: Path, parse: Callable[[bytes], T], clock: Callable[[], float]) -> None:
        self._path = path
        self._parse = parse
        self._clock = clock
        self._lock = threading.Lock()
        self._stamp, value = self._read()
        # In one piece: a content is never taken for that of another version.
        self.held = 0, value
        self.next_check = clock() + CHECK_INTERVAL_SECONDS
        reloadable(self)

    def version(self) -> int:
        """Return the number of the content; it grows when the content changes."""
        if self._clock() >= self.next_check:
            self._refresh()
        return self.held[0]

    def get(self) -> T:
        """Return the content."""
        if self._clock() >= self.next_check:
            self._refresh()
        return self.held[1]

    def reload(self) -> None:
        """Read the file now, changed or not; raise SettingError if it is not usable."""
        with self._lock:
            self._take()

    def _refresh(self) -> None:
        with self._lock:
            self.next_check = self._clock() + CHECK_INTERVAL_SECONDS
            try:
                if self._stat() != self._stamp:
                    self._take()
            except (SettingError, OSError) as error:
                _log.error("file not usable; its last contents stay in force", reason=str(error))

    def _take(self) -> None:
        self._stamp, value = self._read()
        self.held = self.held[0] + 1, value

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
