"""A router for the time of a test or a program: `router serve` in a process and folder of its own.

Nothing of the router runs in the caller's process, which may use threads, asyncio or gevent as it
likes.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from router.process.build import module_command, module_path
from router.process.ports import reserve_port
from router.settings import CONFIG, variable

START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 30.0
"""More than server.graceful_timeout gives to requests in progress."""
KILL_SECONDS: Final = 10.0
PROBE_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 0.05
_LOG: Final = "serve.log"
_LOG_BYTES: Final = 4096
_PROTOCOLS: Final = ("kafka", "nats", "pulsar")
_OWN: Final = {"server.host", "server.port", "data.dir", *(f"broker.{one}" for one in _PROTOCOLS)}


class Router:
    """A router on free ports of 127.0.0.1, from `start` (or `with`) to `stop`; it may start again.

    `folder` holds the data and `serve.log`; without one it is temporary, and gone after `stop`.
    `settings` are names and texts as in the configuration file, such as `{"server.workers": "2"}`;
    the caller's ROUTER_ variables and configuration files do not count. One worker serves HTTP.
    `kafka` is HOST:PORT, the others are URLs; those of a protocol are empty with a backend other
    than embedded, which serves HTTP alone. Raises ValueError for settings of addresses and folder.
    """

    def __init__(
        self,
        folder: Path | str | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        timeout: float = START_SECONDS,
    ) -> None:
        """`timeout`: the seconds that a start may take."""
        self._settings = {"server.workers": "1"} | dict(settings or {})
        if decided := sorted(_OWN & self._settings.keys()):
            raise ValueError(f"Router decides these settings itself: {', '.join(decided)}")
        self._given_folder = folder
        self._timeout = timeout
        self._kept = contextlib.ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        self.folder = Path()
        self.url = self.kafka = self.nats = self.pulsar = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start, and return when /ready answers 200; raise RuntimeError with the end of the log."""
        if self._process is not None:
            raise RuntimeError("the router runs already")
        try:
            self._launch()
            self._wait_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop within 40 s, by force after 30; nothing happens if it does not run."""
        process, self._process = self._process, None
        with self._kept:
            if process is None:
                return
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                # Its children get SIGTERM from the kernel.
                process.kill()
                process.wait(KILL_SECONDS)

    def _launch(self) -> None:
        if self._given_folder is None:
            made = tempfile.TemporaryDirectory(prefix="router-", ignore_cleanup_errors=True)
            self.folder = Path(self._kept.enter_context(made))
        else:
            self.folder = Path(self._given_folder).absolute()
            self.folder.mkdir(parents=True, exist_ok=True)
        settings = self._settings | self._addresses() | {"data.dir": str(self.folder / "data")}
        environ = {n: v for n, v in os.environ.items() if not n.startswith("ROUTER_")}
        environ |= {variable(name): text for name, text in settings.items()}
        with (self.folder / _LOG).open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [*module_command("router"), "serve"],
                cwd=self.folder,
                env=environ | {CONFIG: "", "PYTHONPATH": module_path()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C reaches the caller alone, who then stops the router.
                process_group=0,
            )

    def _addresses(self) -> dict[str, str]:
        """Choose where it listens; return that as settings."""
        self._port = self._reserve()
        self.url = f"http://127.0.0.1:{self._port}"
        found = {"server.host": "127.0.0.1", "server.port": str(self._port)}
        if self._settings.get("backend.url", "embedded").partition(":")[0] != "embedded":
            return found
        found |= {f"broker.{one}": f"127.0.0.1:{self._reserve()}" for one in _PROTOCOLS}
        self.kafka = found["broker.kafka"]
        self.nats = f"nats://{found['broker.nats']}"
        self.pulsar = f"pulsar://{found['broker.pulsar']}"
        return found

    def _reserve(self) -> int:
        port, reservation = reserve_port()
        self._kept.enter_context(reservation)
        return port

    def _wait_ready(self) -> None:
        until = time.monotonic() + self._timeout
        while not self._ready():
            if self._process is None or self._process.poll() is not None:
                raise RuntimeError(f"the router did not start:\n{self._last_lines()}")
            if time.monotonic() > until:
                raise RuntimeError(
                    f"the router is not ready after {self._timeout:g} s:\n{self._last_lines()}"
                )
            time.sleep(_PAUSE_SECONDS)

    def _ready(self) -> bool:
        client = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PROBE_SECONDS)
        with contextlib.closing(client), contextlib.suppress(OSError, http.client.HTTPException):
            client.request("GET", "/ready")
            return client.getresponse().status == HTTPStatus.OK
        return False

    def _last_lines(self) -> str:
        return (self.folder / _LOG).read_bytes()[-_LOG_BYTES:].decode(errors="replace").strip()
