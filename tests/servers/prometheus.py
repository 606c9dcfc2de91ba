"""A real Prometheus on loopback, which scrapes what a test names and answers expressions."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from tests.servers import maven

DEADLINE = 60.0
CONFIG = """\
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: router
    static_configs:
      - targets: ["{target}"]
"""


class Prometheus:
    """One Prometheus process, which scrapes `host:port` every second."""

    def __init__(self, folder: Path, port: int, target: str) -> None:
        self._folder = folder
        self._port = port
        (folder / "prometheus.yaml").write_text(CONFIG.format(target=target))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Prometheus:
        maven.require("prometheus")
        command = [
            str(maven.program("prometheus")),
            f"--config.file={self._folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={self._folder / 'series'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
        ]
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        return self

    def __exit__(self, *_error: object) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(DEADLINE)

    def ask(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an instant query; fail for an expression that is none."""
        query = urllib.parse.urlencode({"query": expression})
        url = f"http://127.0.0.1:{self._port}/api/v1/query?{query}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            with error:
                said = error.read().decode()
            if error.code == 503:
                raise ConnectionError(said) from error
            raise AssertionError(f"{expression}: {said}") from error
        return found

    def wait_for(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an expression once it has some."""
        until = time.monotonic() + DEADLINE
        while time.monotonic() < until:
            assert self._process is not None
            assert self._process.poll() is None, (self._folder / "prometheus.log").read_text()
            with contextlib.suppress(OSError):
                if found := self.ask(expression):
                    return found
            time.sleep(0.1)
        raise AssertionError(f"no series: {expression}")
