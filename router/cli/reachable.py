"""What `serve` says while the store at the backend's URL takes no connections.

Theory of operation. Workers connect to the store with the first request, so nothing would be on the
screen before it. Until the router is ready, `serve` therefore opens a connection to each address of
the URL and closes it: at once, and every REPORT_SECONDS while none is taken. Credentials and
protocol are the workers' part; the client of the store is not loaded here, because the process
above broker and workers stays small.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from router.errors import SettingError
from router.settings import Settings, without_password

REPORT_SECONDS: Final = 30.0
CONNECT_SECONDS: Final = 1.0
"""For all addresses together: meanwhile `serve` heeds no signal."""
MIN_CONNECT_SECONDS: Final = 0.1
# The schemes of stores elsewhere: what they are called, and their port.
_STORES: Final = {
    "kafka": ("Kafka", 9092),
    "pulsar": ("Pulsar", 6650),
    "pulsar+ssl": ("Pulsar", 6651),
}


class StoreReport:
    """Reports a store that takes no connections, when it is looked for and every REPORT_SECONDS."""

    def __init__(
        self, settings: Settings, report: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._report = report
        self._clock = clock
        self._next = clock()

    def check(self) -> bool:
        """Look if it is time to, and report what is wrong; return whether a report was made."""
        now = self._clock()
        if now < self._next:
            return False
        self._next = now + REPORT_SECONDS
        sentence = unreachable(self._settings)
        if sentence is not None:
            self._report(sentence)
        return sentence is not None


def unreachable(settings: Settings) -> str | None:
    """Return why no address of the store takes connections; None: one does, or it is no server."""
    url = settings.text("backend.url")
    name, port = _STORES.get(url.partition(":")[0], ("", 0))
    if not name:
        return None
    hosts = _hosts(url, port)
    left = max(MIN_CONNECT_SECONDS, CONNECT_SECONDS / len(hosts))
    failures = []
    for host in hosts:
        try:
            with socket.create_connection(host, left):
                return None
        except OSError as error:
            failures.append(f"{host[0]}:{host[1]}: {error.strerror or error}")
    return (
        f"{name} cannot be reached ({'; '.join(failures)}); publishes and polls are refused until"
        " it is there"
    )


def _hosts(url: str, port: int) -> list[tuple[str, int]]:
    found = []
    for host in urlsplit(url).netloc.rpartition("@")[2].split(","):
        try:
            parts = urlsplit(f"//{host}")
            found.append((parts.hostname or "", parts.port or port))
        except ValueError as error:
            raise SettingError(f"{without_password(url)!r}: {error}") from error
    return found
