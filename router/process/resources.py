"""What a process takes of its machine: memory, CPU time, open files; as Linux tells it."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import NamedTuple

_PAGE_BYTES = resource.getpagesize()


class Resources(NamedTuple):
    """What this process has now, and the CPU seconds that it took since its start."""

    resident_bytes: int
    open_fds: int
    max_fds: int
    cpu_seconds: float

    @classmethod
    def now(cls) -> Resources:
        """Look."""
        resident = int(Path("/proc/self/statm").read_bytes().split()[1]) * _PAGE_BYTES
        usage = resource.getrusage(resource.RUSAGE_SELF)
        # Without the one by which the folder is read.
        open_fds = sum(1 for _ in Path("/proc/self/fd").iterdir()) - 1
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return cls(resident, open_fds, limit, usage.ru_utime + usage.ru_stime)

    def gauges(self) -> list[tuple[str, float]]:
        """Return them as metrics, each of the label `process`."""
        return [
            ("router_processes", 1.0),
            ("router_process_resident_memory_bytes", float(self.resident_bytes)),
            ("router_process_open_fds", float(self.open_fds)),
            ("router_process_max_fds", float(self.max_fds)),
        ]
