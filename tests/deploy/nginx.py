"""A real nginx under the deployed configuration, on a free port before nodes on loopback."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.deploy.tools import DEPLOY, tool

DEADLINE = 15.0
TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


def changed(text: str, changes: Mapping[str, str]) -> str:
    """Replace each piece of a configuration; one that is not there exactly once is an error."""
    for old, new in changes.items():
        if text.count(old) != 1:
            raise ValueError(f"expected once in the configuration: {old!r}")
        text = text.replace(old, new)
    return text


class Nginx:
    """nginx with the files of deploy/nginx: only the port, the nodes and paths are the caller's.

    `changes` replaces pieces of router.conf, to see what one line of it does.
    """

    def __init__(
        self,
        folder: Path,
        port: int,
        nodes: Sequence[int],
        changes: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.port = port
        self.process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        source = DEPLOY / "nginx"
        main = (source / "nginx.conf").read_text(encoding="utf-8")
        paths = "".join(f"    {name}_temp_path {folder / name};\n" for name in TEMPORARY)
        (folder / "nginx.conf").write_text(changed(main, {"http {\n": "http {\n" + paths}))
        site = (source / "router.conf").read_text(encoding="utf-8")
        listen = {"listen 80;": f"listen 127.0.0.1:{port};"}
        (folder / "router.conf").write_text(changed(site, listen | dict(changes or {})))
        shutil.copy(source / "router-hold.conf", folder)
        line = _node_line((source / "router-nodes.conf").read_text(encoding="utf-8"))
        (folder / "router-nodes.conf").write_text(
            "".join(line.replace("127.0.0.1:3904", f"127.0.0.1:{node}") for node in nodes)
        )

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of nginx on this configuration."""
        user = "user root; " if os.geteuid() == 0 else ""
        own = f"{user}daemon off; pid {self.folder / 'pid'};"
        command = [
            tool("nginx", "nginx"),
            "-p",
            str(self.folder),
            "-e",
            str(self.folder / "errors"),
        ]
        return [*command, "-c", str(self.folder / "nginx.conf"), "-g", own, *arguments]

    def start(self) -> None:
        """Start and wait until it accepts connections."""
        self.process = subprocess.Popen(self.command(), stderr=subprocess.DEVNULL)
        until = time.monotonic() + DEADLINE
        while time.monotonic() < until:
            assert self.process.poll() is None, (self.folder / "errors").read_text()
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                time.sleep(0.02)
            else:
                return
        raise AssertionError("nginx does not answer")

    def serving(self) -> set[int]:
        """Return the processes that accept connections; those that a reload ends are not in it."""
        assert self.process is not None
        master = Path(f"/proc/{self.process.pid}")
        found = set()
        for pid in (master / "task" / master.name / "children").read_text().split():
            with contextlib.suppress(OSError):  # it has just ended
                title = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
                if "shutting down" not in title:
                    found.add(int(pid))
        return found

    def stop(self) -> None:
        """Stop it at once."""
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(DEADLINE)

    def __enter__(self) -> Nginx:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()


def _node_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.startswith("server ")]
    return lines[0] + "\n"
