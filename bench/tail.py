"""The page of live messages at 1,000 messages a second: tasks of Chromium's main thread over 50 ms.

    python -m bench.tail [--seconds 30] [TREE …]

Each source tree, this checkout's by default, serves a page that follows a topic; messages are
published in 10 requests a second. Trees are measured one after the other, twice.
"""

from __future__ import annotations

import argparse
import http.client
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from bench.servers import ROOT, router
from tests.servers.chromium import executable

RATE, POSTS_A_SECOND = 1_000, 10
COUNT_TASKS = """
window.tasks = [];
new PerformanceObserver((found) => {
  for (const one of found.getEntries()) window.tasks.push(one.duration);
}).observe({ type: "longtask", buffered: true });
window.received = 0;
const listen = EventSource.prototype.addEventListener;
EventSource.prototype.addEventListener = function (kind, ...rest) {
  if (kind === "message") listen.call(this, kind, () => { window.received += 1; });
  return listen.call(this, kind, ...rest);
};
"""


def measure(tree: Path, page: Page, seconds: int) -> str:
    """Return what the page of a tree's router did while messages came for some seconds."""
    with router(tree) as server:
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        post(client, "first")
        page.goto(f"http://127.0.0.1:{server.port}/console/topics/tail?tab=messages")
        page.wait_for_function("document.body.innerText.includes('Live')")
        page.evaluate("window.tasks.length = 0")
        step = "\n".join(f"message {number} of a burst" for number in range(RATE // POSTS_A_SECOND))
        began = time.monotonic()
        for number in range(seconds * POSTS_A_SECOND):
            post(client, step)
            ahead = began + (number + 1) / POSTS_A_SECOND - time.monotonic()
            page.wait_for_timeout(max(0.0, ahead) * 1000)
        page.wait_for_function(f"window.received >= {seconds * RATE}", timeout=30_000)
        tasks: list[float] = page.evaluate("window.tasks")
    longest = max(tasks, default=0.0)
    return (
        f"{len(tasks):4} tasks over 50 ms, {sum(tasks):7.0f} ms in all, longest {longest:5.0f} ms"
    )


def post(client: http.client.HTTPConnection, lines: str) -> None:
    """Publish a message a line."""
    client.request("POST", "/events/tail", lines, {"Content-Type": "text/plain"})
    answer = client.getresponse()
    answer.read()
    assert answer.status == 200


def main() -> None:
    """Measure the trees of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("trees", nargs="*", type=Path, default=[ROOT])
    chosen = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable())
        for tree in chosen.trees * 2:
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            page.add_init_script(COUNT_TASKS)
            print(f"{tree.name:20} {measure(tree.resolve(), page, chosen.seconds)}", flush=True)
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
