"""A registry in this process's memory."""

from __future__ import annotations

import threading
from collections import defaultdict

from router.backends import Record
from router.registry import check_kind, check_name, check_record, check_room, check_version


class MemoryRegistry:
    """The Registry of a node that runs alone; gone with its process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: defaultdict[str, dict[str, Record]] = defaultdict(dict)
        self._version = 0

    def get(self, kind: str, name: str, timeout: float) -> Record | None:
        """Return a record, None: there is none."""
        del timeout
        check_name(kind, name)
        with self._lock:
            return self._kinds[kind].get(name)

    def put(
        self, kind: str, name: str, value: bytes, expected: int | None, timeout: float
    ) -> Record:
        """Write a record, if it has the expected version; 0: only if there is none yet."""
        del timeout
        check_record(kind, name, value)
        with self._lock:
            records = self._kinds[kind]
            found = records.get(name)
            check_version(kind, name, expected, 0 if found is None else found.version)
            if found is None:
                check_room(kind, len(records))
            self._version += 1
            records[name] = Record(name, value, self._version)
            return records[name]

    def delete(self, kind: str, name: str, timeout: float) -> bool:
        """Delete a record; return whether there was one."""
        del timeout
        check_name(kind, name)
        with self._lock:
            return self._kinds[kind].pop(name, None) is not None

    def list(self, kind: str, timeout: float) -> list[Record]:
        """Return all records of a kind, by name."""
        del timeout
        check_kind(kind)
        with self._lock:
            return [record for _, record in sorted(self._kinds[kind].items())]
