"""Servers of a test's own for commands that work over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from werkzeug.serving import WSGIRequestHandler, make_server

from tests.unit.web.applications import Site


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: object) -> None:
        """Log nothing."""


@contextmanager
def live(site: Site) -> Iterator[str]:
    """Serve an application on loopback; yields its URL."""
    server = make_server("127.0.0.1", 0, site.app, threaded=True, request_handler=_Quiet)
    server.daemon_threads = True  # type: ignore[attr-defined] # threaded=True makes it such a server
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        site.app.extensions["router.stop"]()
        server.shutdown()
        thread.join(10)
        server.server_close()


Handler = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def scripted(*answers: Handler) -> Iterator[tuple[str, list[BaseHTTPRequestHandler]]]:
    """Serve given answers in turn, the last one from then on; yields the URL and the requests."""
    seen: list[BaseHTTPRequestHandler] = []

    class Scripted(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
            seen.append(self)
            answers[min(len(seen), len(answers)) - 1](self)

        def __getattr__(self, name: str) -> Callable[[], None]:
            if not name.startswith("do_"):
                raise AttributeError(name)
            return self.handle_any

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


def answer(status: int, body: str = "", **headers: str) -> Handler:
    """Return what answers with a status, a body and headers (`_` for `-`)."""

    def handle(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, text in headers.items():
            request.send_header(name.replace("_", "-"), text)
        request.send_header("Content-Length", str(len(body.encode())))
        request.end_headers()
        request.wfile.write(body.encode())

    return handle


def hang_up(request: BaseHTTPRequestHandler) -> None:
    """Close the connection without an answer."""
    request.close_connection = True
