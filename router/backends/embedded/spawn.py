"""Connect or spawn: a connection to the broker of a data folder, which is started if need be.

Theory of operation. Dial the folder's socket. If nobody answers, start `python -m router.broker` in
a session of its own and dial until it does. Workers that do so at the same time start several; a
lock on the folder lets exactly one of them serve it, and the others leave. Starts back off from
0.1 s to 5 s while they fail. A broker of another build is asked to drain, so that an upgrade of the
router takes the broker along. A folder that is marked READ-ONLY stays without a broker until
somebody looked at its disk.

The alternative, to let only a supervisor start brokers, leaves `flask run`, tests and pipelines
without one; where there is a supervisor, the setting `broker.spawn` is false. Who only reads and
writes topics, and may come from another machine's installation, leaves a broker of another build in
its place: `broker.replace` is false.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from threading import Thread
from typing import Final

from router import node_socket
from router.backends.pulsar.connection import OURS, Connection, shake_hands
from router.backends.pulsar.link import NotServedError
from router.build import build_id, module_command, module_path
from router.errors import BackendTimeoutError, BackendUnavailableError
from router.wire.pulsar import pulsar_pb2 as pb

LOG: Final = "broker.log"
MARK: Final = "READ-ONLY"
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
LOOK: Final = 0.01
CONNECT_TIMEOUT: Final = 2.0


class Spawner:
    """Opens connections to one folder's broker; used by one caller at a time."""

    def __init__(
        self,
        folder: Path,
        variables: Mapping[str, str],
        *,
        spawn: bool = True,
        replace: bool = True,
    ) -> None:
        self._folder = folder
        self._variables = dict(variables)
        self._spawn = spawn
        # Once only: if files change under a running worker, no broker will ever be of its build.
        self._replaced = not replace
        self._process: subprocess.Popen[bytes] | None = None
        self._pause = 0.0
        self._not_before = 0.0

    def dial(self, deadline: float) -> Connection:
        """Return a connection; raise NotServedError, or BackendUnavailableError at the deadline."""
        while True:
            connection = self._connect(deadline)
            if connection is None:
                self._start()
            elif self._replaced or connection.server_version == OURS + build_id():
                self._pause = 0.0
                return connection
            else:
                self._replaced = True
                self._drain(connection, deadline)
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._unavailable()
            time.sleep(min(LOOK, left))

    def _connect(self, deadline: float) -> Connection | None:
        left = max(LOOK, min(CONNECT_TIMEOUT, deadline - time.monotonic()))
        try:
            peer = node_socket.connect(self._folder, left)
            return shake_hands(peer, time.monotonic() + left)
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
        if not self._spawn:
            return
        process, now = self._process, time.monotonic()
        if process is not None:
            if process.poll() is None:
                return
            self._process = None
            # Status 0: it was told to leave, had no clients, or another one serves the folder.
            if process.returncode != os.EX_OK:
                self._pause = min(LONGEST_PAUSE, max(FIRST_PAUSE, self._pause * 2))
                self._not_before = now + self._pause
        if now >= self._not_before:
            self._process = self._spawned()

    def _spawned(self) -> subprocess.Popen[bytes]:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            log = os.open(self._folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
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

    def _drain(self, connection: Connection, deadline: float) -> None:
        """Have a broker of another build leave, and wait until it did."""
        request_id = connection.next_id()
        command = pb.CommandAdmin(request_id=request_id, drain=pb.Nothing())
        try:
            connection.call(
                request_id, pb.BaseCommand(type=pb.BaseCommand.ADMIN, admin=command), deadline
            )
            while connection.error is None and time.monotonic() < deadline:
                time.sleep(LOOK)
        except (BackendUnavailableError, BackendTimeoutError):
            pass  # it left before it answered, or does not listen: the next dial will tell
        finally:
            connection.close()

    def _unavailable(self) -> BackendUnavailableError:
        wait = max(FIRST_PAUSE, self._not_before - time.monotonic())
        return BackendUnavailableError(
            f"the broker of {self._folder} does not answer; its log is {self._folder / LOG}",
            retry_after=wait,
        )
