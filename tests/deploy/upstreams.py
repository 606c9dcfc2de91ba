"""Fake nodes behind nginx: they write down what reaches them, and answer as the path says."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from tests.threaded_server import ThreadedServer


@dataclass
class Seen:
    """A request as it reached a node: when, from which connection, and what was in it."""

    method: str
    path: str
    headers: dict[str, str]
    connection: int
    body: int


@dataclass
class Script:
    """What all requests to a node meet: `leave` closes instead of answering."""

    leave: bool = False
    seen: list[Seen] = field(default_factory=list)
    begun: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)


class Upstream(ThreadedServer):
    """One fake node on a free port of loopback.

    The query parameter `wait` keeps a request for that many milliseconds; `parts` has the answer
    sent in two pieces, the second when the test sets `script.release`.
    """

    def __init__(self) -> None:
        self.script = Script()
        super().__init__(ThreadingHTTPServer(("127.0.0.1", 0), handler(self.script)))

    def __exit__(self, *error: object) -> None:
        self.script.release.set()
        super().__exit__(*error)


def handler(script: Script) -> type[BaseHTTPRequestHandler]:
    """Return the handler class of one node."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            script.begun.set()
            length = int(self.headers.get("Content-Length", "0"))
            body = self.rfile.read(length)
            headers = {name.lower(): value for name, value in self.headers.items()}
            script.seen.append(
                Seen(self.command, self.path, headers, int(self.client_address[1]), len(body))
            )
            query = parse_qs(urlsplit(self.path).query)
            time.sleep(int(query.get("wait", ["0"])[0]) / 1000)
            if script.leave:
                self.close_connection = True
                return
            with contextlib.suppress(ConnectionError):  # nginx did not wait
                self._write("parts" in query)

        def _write(self, parts: bool) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"[ ")
            self.wfile.flush()
            if parts:
                script.release.wait(10)
            self.wfile.write(b" ]")

        def __getattr__(self, name: str) -> Callable[[], None]:
            if name.startswith("do_"):
                return self._answer
            raise AttributeError(name)

        def log_message(self, format: str, *args: object) -> None:
            """Keep the tests' output free of it."""

    return Handler
