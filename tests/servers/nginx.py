"""A real nginx on loopback, with the server sections that a test writes."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from pathlib import Path

from tests.servers import maven

DEADLINE = 15.0
FRAME = """daemon off; master_process off; pid {folder}/pid; error_log {folder}/errors;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
{sections}
}}
"""


class Nginx:
    """One nginx process of the test's user; the sections say where it listens."""

    def __init__(self, folder: Path, port: int, sections: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = port
        self._config = folder / "nginx.conf"
        self._config.write_text(FRAME.format(folder=folder, sections=sections))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Nginx:
        maven.require("nginx")
        command = [str(maven.program("nginx")), "-p", str(self.folder), "-c", str(self._config)]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        until = time.monotonic() + DEADLINE
        while not self._answers():
            assert self._process.poll() is None, (self.folder / "errors").read_text()
            assert time.monotonic() < until, "nginx does not answer"
            time.sleep(0.02)
        return self

    def __exit__(self, *_error: object) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(DEADLINE)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False
