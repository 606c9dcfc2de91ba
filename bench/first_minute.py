"""How long it takes from `git clone` to the first message that is seen in a browser.

    python -m bench.first_minute             pip takes what it downloaded before from its cache
    python -m bench.first_minute --download  pip downloads everything

It clones this checkout's last commit into a new folder, runs `make serve` there on a free port, and
then does in a browser what a new user does: open the address, create a topic, watch it, publish.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

from tests.ports import free_port
from tests.servers.chromium import executable

ROOT = Path(__file__).parent.parent
MAX_SECONDS = 600.0
PATIENCE_MS = 60_000


class Clock:
    """Prints how long each part took."""

    def __init__(self) -> None:
        self._began = self._last = time.monotonic()

    def lap(self, name: str) -> None:
        """Print the seconds since the last part."""
        now = time.monotonic()
        print(f"{now - self._last:7.1f} s  {name}", flush=True)
        self._last = now

    def end(self) -> None:
        """Print the seconds of all parts."""
        print(f"{self._last - self._began:7.1f} s  altogether", flush=True)


def wait_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    """Wait until the router is ready; raise TimeoutError, or RuntimeError if it ended."""
    until = time.monotonic() + MAX_SECONDS
    while time.monotonic() < until:
        if server.poll() is not None:
            raise RuntimeError(f"make serve ended with status {server.returncode}")
        try:
            with urllib.request.urlopen(f"{url}/ready", timeout=2):
                return
        except OSError:
            time.sleep(0.05)
    raise TimeoutError(f"the router is not ready after {MAX_SECONDS:.0f} s")


def first_message(page: Page, url: str) -> None:
    """Create a topic, open its messages beside the form, publish, and see the message come."""
    page.goto(url)
    page.get_by_role("button", name="Create topic").click()
    page.get_by_role("textbox", name="Name", exact=True).fill("first")
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("first")
    live = page.context.new_page()
    live.goto(f"{url}/console/topics/first?tab=messages")
    expect(live.get_by_role("status").filter(has_text="Live")).to_be_visible()
    page.get_by_role("textbox", name="Message", exact=True).fill("hello")
    page.get_by_role("button", name="Publish", exact=True).click()
    log = live.get_by_role("log", name="Live messages")
    expect(log.get_by_role("article").filter(has_text="hello")).to_be_visible()


def measure(folder: Path, *, download: bool) -> None:
    """Do all of it in a folder; the router is stopped at the end."""
    clock, port = Clock(), free_port()
    clone = folder / "dragoman"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    clock.lap("git clone")
    environ = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    if download:
        environ["PIP_NO_CACHE_DIR"] = "1"
    serve = ["make", "serve", f"ARGS=--port {port}"]
    with (folder / "serve.log").open("wb") as log:
        server = subprocess.Popen(
            serve, cwd=clone, env=environ, stdout=log, stderr=log, start_new_session=True
        )
    try:
        wait_ready(f"http://127.0.0.1:{port}", server)
        clock.lap("make serve: packages installed, router ready")
        expect.set_options(timeout=PATIENCE_MS)
        with (
            sync_playwright() as playwright,
            playwright.chromium.launch(executable_path=executable()) as browser,
        ):
            first_message(browser.new_context().new_page(), f"http://127.0.0.1:{port}")
            clock.lap("browser: started, topic created, message published and seen")
        clock.end()
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)


def main() -> None:
    """Measure once and print the parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--download", action="store_true", help="without pip's cache")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="first-minute-"))
    try:
        measure(folder, download=options.download)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
