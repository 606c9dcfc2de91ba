"""A router on a data folder that outlives it: started, loaded, stopped, killed, started again."""

from __future__ import annotations

import http.client
import os
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.load import Result, request, run
from bench.servers import ROOT, Server, router_on

ACTIVE = "active"
KIB = b"x" * 1024
POST = request("POST", f"/events/{ACTIVE}", KIB)
SETTINGS = {"retention_max_groups": "100000", "server_head_timeout": "10m"}
START_SECONDS = 120.0


@dataclass(frozen=True)
class Memory:
    """What a broker holds: bytes of resident memory, and open files."""

    resident: int
    files: int


class Site:
    """A router on a folder. Between `start` and `stop` or `kill` its `server` runs."""

    server: Server

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running = ExitStack()

    def start(self) -> float:
        """Start the router; return the seconds from there to the first accepted POST."""
        began = time.perf_counter()
        running = router_on(self.folder, ROOT, "", **SETTINGS)
        self.server = self._running.enter_context(running)
        while not self._accepts():
            if time.perf_counter() - began > START_SECONDS:
                raise TimeoutError(f"no POST was accepted within {START_SECONDS:.0f} s")
            time.sleep(0.005)
        return time.perf_counter() - began

    def stop(self) -> None:
        """Stop the router as a user does, if it runs."""
        self._running.close()

    def kill(self) -> None:
        """Kill all processes of the router at once."""
        self.server.kill()
        self._running.close()

    def post(self, connections: int, seconds: float) -> tuple[Result, float]:
        """Publish 1 KiB a request; return that and the processor time of a request, in us."""
        before = self.server.processor_seconds()
        result = run(self.server.port, [POST], connections, seconds)
        assert not result.errors, result.errors
        used = self.server.processor_seconds() - before
        return result, used / max(1, len(result.latencies)) * 1e6

    def timed(self, method: str, path: str) -> float:
        """Return the milliseconds of a request that must be answered with 200."""
        with self._client() as client:
            client.connect()
            began = time.perf_counter()
            client.request(method, path)
            response = client.getresponse()
            body = response.read()
            assert response.status == 200, body[:200]
            return (time.perf_counter() - began) * 1000

    def memory(self) -> Memory:
        """Return what the broker holds now."""
        pid = self.server.broker()
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        return Memory(pages * os.sysconf("SC_PAGE_SIZE"), files)

    def drop_pages(self) -> None:
        """Have the kernel forget what it holds of the log: the next read is from the disk."""
        for file in self.folder.glob("ledgers/*/*"):
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)

    def log_bytes(self) -> int:
        """Return how many bytes the files of the log have."""
        return sum(file.stat().st_size for file in self.folder.glob("ledgers/*/*.seg"))

    def _accepts(self) -> bool:
        with suppress(OSError, http.client.HTTPException), self._client() as client:
            client.request("POST", f"/events/{ACTIVE}", KIB, {"Content-Type": "text/plain"})
            return client.getresponse().status == 200
        return False

    def _client(self) -> closing[http.client.HTTPConnection]:
        return closing(http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120))
