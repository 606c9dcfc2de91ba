"""Connect or spawn: a connection to the broker of a data folder, which is started if need be.

Theory of operation. Dial the folder's socket. If there is no answer and no process supervises the
folder (process/supervised.py), start `python -m router.broker` in a session of its own; dial until
a broker answers. Processes that do so at the same time start several brokers; a lock on the folder
lets exactly one of them serve it, and the others leave. Starts back off from 0.1 s to 5 s while
they fail. A broker that runs is used, never ended: a build with the same version of the node
protocol works with it, and another one says which builds differ. A folder that is marked READ-ONLY
stays without a broker until an operator looked at its disk.

The alternative, to let only a supervisor start brokers, leaves `flask run`, commands and pipelines
without one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from threading import Thread
from typing import Final

from router.clocks.backoff import Backoff
from router.errors import BackendUnavailableError, NotServedError
from router.process import node_socket, supervised
from router.process.build import module_command, module_path
from router.pulsar_client.connection import PulsarConnection
from router.pulsar_client.handshake import shake_hands
from router.pulsar_client.link import PulsarLink
from router.settings import Settings, variable, without_password

LOG: Final = "broker.log"
_LOG_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
MARK: Final = "READ-ONLY"
REGISTRY: Final = "registry.db"
"""A broker makes it first of all."""
EMBEDDED: Final = "embedded"
"""The `backend.url` of a node whose broker stores messages."""
MIN_PAUSE_SECONDS: Final = 0.1
MAX_PAUSE_SECONDS: Final = 5.0
POLL_SECONDS: Final = 0.01
CONNECT_SECONDS: Final = 2.0


class Spawner:
    """Opens connections to one folder's broker; used by one caller at a time."""

    def __init__(self, folder: Path, variables: Mapping[str, str], *, spawn: bool = True) -> None:
        self._folder = folder
        self._variables = dict(variables)
        self._spawn = spawn
        self._announced = False
        self._process: subprocess.Popen[bytes] | None = None
        self._backoff = Backoff(MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        self._not_before = 0.0

    def dial(self, deadline: float) -> PulsarConnection:
        """Return a connection; raise NotServedError, or BackendUnavailableError at the deadline."""
        while True:
            if (connection := self._connect(deadline)) is not None:
                self._backoff.reset()
                return connection
            self._start()
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._unavailable()
            time.sleep(min(POLL_SECONDS, left))

    def _connect(self, deadline: float) -> PulsarConnection | None:
        left = max(POLL_SECONDS, min(CONNECT_SECONDS, deadline - time.monotonic()))
        try:
            peer = node_socket.connect(self._folder, left)
            return shake_hands(peer, time.monotonic() + left)
        except NotServedError:
            raise
        except (OSError, BackendUnavailableError):
            return None

    def _start(self) -> None:
        mark = self._folder / MARK
        if mark.exists():
            reason = mark.read_text(encoding="utf-8", errors="replace").strip()
            raise NotServedError(
                f"the data folder {self._folder} is marked {MARK}: {reason}; "
                "look at its disk, then run `router check --repair`"
            )
        if not self._spawn or supervised.holder(self._folder) is not None:
            return
        process, now = self._process, time.monotonic()
        if process is not None:
            if process.poll() is None:
                return
            self._process = None
            # Status 0: it was stopped, had no clients, or another one serves the folder.
            if process.returncode != os.EX_OK:
                self._not_before = now + self._backoff.next()
        if now >= self._not_before:
            self._announce()
            self._process = self._spawned()

    def _announce(self) -> None:
        """Say once on standard error that a folder without data gets a broker.

        That is hardly ever meant: the command runs in another folder than the router.
        """
        if self._announced or (self._folder / REGISTRY).exists():
            return
        self._announced = True
        url = without_password(self._variables.get(variable("backend.url"), EMBEDDED))
        what = "a broker is started there"
        if url != EMBEDDED:
            what = f"the node's process for leases and access rights is started there, for {url}"
        sys.stderr.write(
            f"router: no router runs on the folder {self._folder}, and it holds no data: {what}."
            " If another folder is meant, name it with --data or data.dir\n"
        )
        sys.stderr.flush()

    def _spawned(self) -> subprocess.Popen[bytes]:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            log = os.open(self._folder / LOG, _LOG_FLAGS, 0o600)
        except OSError as error:
            raise NotServedError(f"the data folder cannot be used: {error}") from error
        kept = {k: v for k, v in os.environ.items() if not k.startswith("ROUTER_")}
        try:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [*module_command("router.broker"), "--data", str(self._folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=kept | self._variables | {"PYTHONPATH": module_path()},
                start_new_session=True,
            )
        finally:
            os.close(log)
        # So that it does not stay as a zombie when it leaves before this process does.
        Thread(target=process.wait, name="broker-reaper", daemon=True).start()
        return process

    def _unavailable(self) -> BackendUnavailableError:
        wait = max(MIN_PAUSE_SECONDS, self._not_before - time.monotonic())
        supervisor = supervised.holder(self._folder)
        if not supervisor and not self._spawn:
            return BackendUnavailableError(absent(self._folder), retry_after=wait)
        whose = f", which process {supervisor} keeps running," if supervisor else ""
        return BackendUnavailableError(
            f"the broker of {self._folder}{whose} does not answer; its log is {self._folder / LOG}",
            retry_after=wait,
        )


def absent(folder: Path) -> str:
    """Return the sentence for a folder on which a broker is needed and none may be started."""
    return (
        f"no router runs on the folder {folder} of this machine: start `router serve` or"
        " `router broker` there, or name another folder"
    )


def open_link(settings: Settings) -> PulsarLink:
    """Return the link to the broker of the data folder, which is dialled when it is needed."""
    folder = Path(settings.text("data.dir")).absolute()
    variables = {variable(name): value.text for name, value in settings.values.items()}
    variables[variable("data.dir")] = str(folder)
    return PulsarLink(Spawner(folder, variables, spawn=settings.flag("broker.spawn")).dial)
